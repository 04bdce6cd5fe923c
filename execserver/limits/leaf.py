"""One leaf: the control group of one process and its descendants, in one or more hierarchies."""

from __future__ import annotations

import errno
import glob
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec

from execprotocol.errors import InvalidRequest
from execserver.descendants import signal_found

if TYPE_CHECKING:
    from execprotocol.process import ExitUsage, ResourceLimits

_PERIOD_US = 100_000
"""Of the processor quota: the kernel's own default."""

_KILL_SECONDS = 2.0
_PAUSE_SECONDS = 0.005

_MOST_BYTES = 64 << 10

GROUPS_HELP = (
    "run the daemon as root, or as a systemd unit with Delegate=yes; `execserver doctor` has details"
)


NO_WEIGHTS = "no block device shares its time by weight"
WEIGHTS_HELP = "choose bfq in /sys/block/DEVICE/queue/scheduler, or turn on io.cost.qos in cgroup v2"


class LimitRefused(InvalidRequest):
    """A limit that cannot be enforced here."""

    default_name = "limit_unavailable"

    def __init__(self, member: str, cause: str, fix: str = GROUPS_HELP) -> None:
        """Args:
        member: of `limits`.
        cause: half a sentence.
        fix: half a sentence.
        """
        super().__init__(f"`limits.{member}` cannot be enforced: {cause}; {fix}", field=f"limits.{member}")


class Folder(msgspec.Struct, frozen=True):
    """The group of the service in one hierarchy."""

    fd: int
    version: Literal[1, 2]
    controllers: frozenset[str]
    """Those that a leaf in it has."""


class MemoryState(msgspec.Struct, frozen=True):
    """Whether the kernel has killed for want of memory in a leaf."""

    kills: int
    """Processes of the leaf that it has killed, whatever the reason."""
    at_limit: bool
    """Whether the leaf's own limit was the reason, and not the machine or a group above."""


_CHARGED_TOGETHER = 256 << 10
"""Bytes that the kernel may charge at once; the last charge before the limit is refused as a whole."""

CONTROLLERS = {
    "memoryBytes": ("memory",),
    "pids": ("pids",),
    "cpuPercent": ("cpu",),
    "ioWeight": ("io", "blkio"),
}
"""The controllers that can enforce a member of `limits`; one of them is enough. `wallMs` needs none."""


class Leaf:
    """The control group of one process.

    Args:
        folders: of the service; they outlive the leaf.
        number: of the process.
        extra_pids: processes that a sandbox adds to those of the command.
    """

    def __init__(self, folders: Iterable[Folder], number: int, extra_pids: int = 0) -> None:
        self.number = number
        self.extra_pids = extra_pids
        self.oom_events: int | None = None
        """An eventfd that counts events of memory running out (cgroup v1); None on v2, where the kernel ends
        the whole leaf by itself."""
        self.on_removed: Callable[[], None] = self._close_events
        """Called once, on the loop, when it is removed."""
        self.leave: Callable[[], None] = _nothing
        """Removes it as soon as it is empty."""
        self._folders = tuple(folders)
        self._out_of_memory = False

    # -- making

    def make(self, limits: ResourceLimits) -> None:
        """Make the groups and set the limits; blocking. After an error nothing is left.

        Raises:
            LimitRefused: a limit cannot be enforced.
            OSError: a group cannot be made.
        """
        made: list[Folder] = []
        try:
            for folder in self._folders:
                os.mkdir(str(self.number), dir_fd=folder.fd)
                made.append(folder)
            for member, value in limits.values().items():
                if member in CONTROLLERS:
                    self._set(member, value)
        except BaseException:
            for folder in made:
                os.rmdir(str(self.number), dir_fd=folder.fd)
            self._close_events()
            raise

    def _set(self, member: str, value: int) -> None:
        folder = self._folder(*CONTROLLERS[member])
        if folder is None:
            raise LimitRefused(member, f"no {CONTROLLERS[member][0]} controller is available")
        try:
            for file, text in self._files(folder, member, value):
                self._write(folder, file, text)
        except OSError as error:
            cause = f"the kernel refused {value}: {error.strerror}"
            raise LimitRefused(member, cause, "a group above the daemon's may have a lower limit") from None

    def _files(self, folder: Folder, member: str, value: int) -> list[tuple[str, str]]:
        """What to write for a limit: names and contents."""
        match member:
            case "memoryBytes":
                return self._memory(folder, value)
            case "pids":
                return [("pids.max", str(value + self.extra_pids))]
            case "cpuPercent":
                return self._cpu(folder, value)
            case _:
                return self._io(folder, value)

    def _memory(self, folder: Folder, value: int) -> list[tuple[str, str]]:
        swap = "memory.swap.max" if folder.version == 2 else "memory.memsw.limit_in_bytes"
        has_swap = self._has(folder, swap)
        if not has_swap and _machine_swaps():
            raise LimitRefused(
                "memoryBytes", "the kernel does not limit swap", "boot with swapaccount=1, or turn swap off"
            )
        if folder.version == 2:
            texts = [("memory.max", str(value)), ("memory.oom.group", "1")]
            return [*texts, (swap, "0")] if has_swap else texts
        self._watch_memory(folder)
        return [("memory.limit_in_bytes", str(value)), *([(swap, str(value))] if has_swap else [])]

    def _cpu(self, folder: Folder, value: int) -> list[tuple[str, str]]:
        quota = value * _PERIOD_US // 100
        if folder.version == 2:
            return [("cpu.max", f"{quota} {_PERIOD_US}")]
        return [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]

    def _io(self, folder: Folder, value: int) -> list[tuple[str, str]]:
        prefix = "io" if folder.version == 2 else "blkio"
        texts: list[tuple[str, str]] = []
        if _some_scheduler_is_bfq() and self._has(folder, f"{prefix}.bfq.weight"):
            texts.append((f"{prefix}.bfq.weight", str(_bfq_weight(value))))
        if folder.version == 2 and _cost_model_is_on() and self._has(folder, "io.weight"):
            texts.append(("io.weight", f"default {value}"))
        if not texts:
            raise LimitRefused("ioWeight", NO_WEIGHTS, WEIGHTS_HELP)
        return texts

    def _watch_memory(self, folder: Folder) -> None:
        # A count that is not read stays in the eventfd, so a new server learns of it.
        events = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        control = -1
        try:
            control = self._open(folder, "memory.oom_control", os.O_RDONLY)
            self._write(folder, "cgroup.event_control", f"{events} {control}")
        except BaseException:
            os.close(events)
            raise
        finally:
            if control >= 0:
                os.close(control)
        self.oom_events = events

    # -- its processes

    def enter(self, pid: int) -> None:
        """Move a process into the leaf; blocking, for 10 ms and more on some kernels.

        Raises:
            OSError: the process is gone, or the kernel refused.
        """
        for folder in self._folders:
            self._write(folder, "cgroup.procs", str(pid))

    def kill(self) -> bool:
        """SIGKILL every process in the leaf; blocking. False if some are alive after two seconds.

        They are stopped first: a shell whose child is killed a moment before itself would go on with its
        next command, or exit with a status of its own.
        """
        until = time.monotonic() + _KILL_SECONDS
        self._write_all(2, "cgroup.freeze", "1")
        self._write_all(2, "cgroup.kill", "1")
        while pids := self._pids_inside():
            self._signal(pids, signal.SIGSTOP)
            # A fork bomb must not outrun the kills, and no other command may see a fork fail.
            self._write_all(1, "pids.max", "0")
            self._signal(pids, signal.SIGKILL)
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    def _write_all(self, version: Literal[1, 2], file: str, text: str) -> None:
        """Write to this file of the groups that have it."""
        for folder in self._folders:
            if folder.version == version:
                with suppress(OSError):
                    self._write(folder, file, text)

    def _pids_inside(self) -> set[int]:
        found: set[int] = set()
        for folder in self._folders:
            with suppress(OSError):
                found |= {int(pid) for pid in self._read(folder, "cgroup.procs").split()}
        return found - {0}  # of another pid namespace

    def _signal(self, pids: set[int], number: int) -> None:
        """Signal these processes as far as they are inside and descriptors are free."""
        with suppress(OSError):
            signal_found(pids.copy(), number, self._pids_inside, set())

    def remove(self) -> bool:
        """Remove the groups. False if a process is left in one."""
        gone = True
        for folder in self._folders:
            try:
                os.rmdir(str(self.number), dir_fd=folder.fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                gone = False
        return gone

    def _close_events(self) -> None:
        if self.oom_events is not None:
            os.close(self.oom_events)
            self.oom_events = None

    # -- what happened

    def memory_state(self) -> MemoryState | None:
        """Kills for want of memory; None without the controller, or when the leaf is gone."""
        folder = self._folder("memory")
        if folder is None:
            return None
        try:
            if folder.version == 2:
                events = _counts(self._read(folder, "memory.events"))
                return MemoryState(events.get("oom_kill", 0), events.get("oom", 0) > 0)
            # A group above that runs out of memory notifies this one, too.
            at_limit = self._take_oom_events() and self._was_full(folder)
            kills = _counts(self._read(folder, "memory.oom_control")).get("oom_kill", 0)
            return MemoryState(kills, at_limit)
        except (OSError, ValueError):
            return None

    def _was_full(self, folder: Folder) -> bool:
        # Not `memory.failcnt`: current kernels leave it at zero.
        peak = int(self._read(folder, "memory.max_usage_in_bytes"))
        return peak > int(self._read(folder, "memory.limit_in_bytes")) - _CHARGED_TOGETHER

    def _take_oom_events(self) -> bool:
        if self.oom_events is not None:
            with suppress(BlockingIOError):
                os.eventfd_read(self.oom_events)
                self._out_of_memory = True
        return self._out_of_memory

    def usage(self) -> ExitUsage:
        """What the leaf was used for so far. Members that the kernel does not count are missing."""
        usage: ExitUsage = {"limitsHit": []}
        hit = usage["limitsHit"]
        state = self.memory_state()
        if state is not None and state.at_limit:
            hit.append("memory")
        if (peak := self._number("memory", "memory.peak", "memory.max_usage_in_bytes")) is not None:
            usage["memoryPeakBytes"] = peak
        if (peak := self._number("pids", "pids.peak", "pids.peak")) is not None:
            usage["pidsPeak"] = max(0, peak - self.extra_pids)
        if self._count("pids", "pids.events", "max"):
            hit.append("pids")
        if (time_us := self._cpu_us()) is not None:
            usage["cpuMs"] = time_us // 1000
        if self._count("cpu", "cpu.stat", "nr_throttled"):
            hit.append("cpu")
        return usage

    def _cpu_us(self) -> int | None:
        nanoseconds = self._number("cpuacct", "", "cpuacct.usage")
        if nanoseconds is not None:
            return nanoseconds // 1000
        # In cgroup v2 every group has it.
        folder = next((each for each in self._folders if each.version == 2), None)
        if folder is None:
            return None
        with suppress(OSError, ValueError):
            return _counts(self._read(folder, "cpu.stat")).get("usage_usec")
        return None

    def _number(self, controller: str, v2: str, v1: str) -> int | None:
        folder = self._folder(controller)
        if folder is None:
            return None
        with suppress(OSError, ValueError):
            return int(self._read(folder, v2 if folder.version == 2 else v1))
        return None

    def _count(self, controller: str, file: str, name: str) -> int:
        folder = self._folder(controller)
        if folder is None:
            return 0
        with suppress(OSError, ValueError):
            return _counts(self._read(folder, file)).get(name, 0)
        return 0

    # -- files

    def _folder(self, *controllers: str) -> Folder | None:
        return next((each for each in self._folders if each.controllers.intersection(controllers)), None)

    def _open(self, folder: Folder, name: str, flags: int) -> int:
        return os.open(f"{self.number}/{name}", flags | os.O_CLOEXEC, dir_fd=folder.fd)

    def _has(self, folder: Folder, name: str) -> bool:
        return os.access(f"{self.number}/{name}", os.W_OK, dir_fd=folder.fd)

    def _read(self, folder: Folder, name: str) -> str:
        fd = self._open(folder, name, os.O_RDONLY)
        try:
            return os.read(fd, _MOST_BYTES).decode("ascii")
        finally:
            os.close(fd)

    def _write(self, folder: Folder, name: str, text: str) -> None:
        fd = self._open(folder, name, os.O_WRONLY)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)


def _nothing() -> None:
    """Nothing."""


def _counts(text: str) -> dict[str, int]:
    """The numbers in a file with lines of a name and a value."""
    pairs = (line.split() for line in text.splitlines())
    return {name: int(value) for name, value in pairs}


def _machine_swaps() -> bool:
    try:
        with open("/proc/swaps", encoding="utf-8") as file:
            return len(file.readlines()) > 1
    except OSError:
        return False


def weights_count() -> bool:
    """Whether some block device shares its time by weight."""
    return _some_scheduler_is_bfq() or _cost_model_is_on()


def _some_scheduler_is_bfq() -> bool:
    for path in glob.iglob("/sys/block/*/queue/scheduler"):
        with suppress(OSError), open(path, encoding="ascii") as file:
            if "[bfq]" in file.read():
                return True
    return False


def _cost_model_is_on() -> bool:
    with suppress(OSError), open("/sys/fs/cgroup/io.cost.qos", encoding="ascii") as file:
        return "enable=1" in file.read()
    return False


def _bfq_weight(weight: int) -> int:
    """1..10000 on the scale of BFQ, which ends at 1000; 100 is the default on both. As systemd does it."""
    return weight if weight <= 100 else 100 + (weight - 100) * (1000 - 100) // (10_000 - 100)
