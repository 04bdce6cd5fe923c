"""The sandbox of one process, and the command inside it.

With bubblewrap the process that we spawned is a launcher, which waits outside. It writes a report into a file
(a memfd): the pid of the first process inside, and at the end the exit code, *if* the setup succeeded.
Signals for the command are sent inside: a signal to the launcher would end the launcher and not the command.

The report is read when it is needed, and stays as it is. So a new server knows all that the previous server
knew, from the same file.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from execserver import descendants
from execserver.processes.output_log import OutputLog
from execserver.processes.poller import READABLE, DescriptorPoller

if TYPE_CHECKING:
    from execserver.sandbox.confinement import Confinement

_RETRY_SECONDS = 0.002
_MOST_RETRIES = 2500
"""A signal that comes before there is a command waits for it: 5 s at most."""

_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})

_JUDGED_BYTES = 1 << 20
"""How much of the last output is searched for signs of a denial; what the reference keeps."""

_EVIDENCE_BYTES = 128 << 10
"""How much of the last output is searched for evidence, line by line: a few milliseconds. The reason for a
failure is at the end."""

_LAUNCHER_BYTES = 4096
"""How much of the last output is searched for an error of the launcher."""

_SANDBOX_END_SECONDS = 3.0
"""How long the end of a sandbox may take. It takes a millisecond, unless something in it hangs in the
kernel."""

_MOST_COUNTED = 100
"""Processes that the end of a sandbox ends and that are counted: looking at so many takes 3 ms."""

_MOST_NAMED = 5

_MOST_REPORT_BYTES = 64 << 10
"""A launcher's report has a few hundred bytes."""


class SandboxOwner(Protocol):
    """The process that a sandbox belongs to."""

    log: OutputLog
    failure: str | None
    """Why the command was never run."""

    def sandbox_left(self, unknown: bool) -> None:
        """Nothing runs inside any more, or it is `unknown` whether something does."""

    def sandbox_ended(self) -> None:
        """Nothing of the sandbox is left, or its end took too long."""


class ProcessSandbox:
    """The sandbox of one process: its confinement, the command inside, and the signs of a denial."""

    __slots__ = ("_denied", "_evidence", "child", "confinement", "left_running", "stands")

    def __init__(self, confinement: Confinement) -> None:
        self.confinement = confinement
        self.child: SandboxedChild | None = None
        """The command inside, where a launcher waits outside."""
        self.stands = False
        """Whether the launcher has ended, and something of the sandbox may be left."""
        self.left_running: list[bytes] = []
        """The names of the processes that the command left running, and that ended with its sandbox."""
        self._denied: tuple[int, bool] | None = None
        self._evidence: tuple[int, dict[str, object]] | None = None
        """Each with the number of bytes of output that it was found in."""

    def denied(self, exit_code: int, log: OutputLog) -> bool:
        """Whether the sandbox seems to be the reason for this exit code, by the last output."""
        if self._denied is None or self._denied[0] != log.total:
            from execserver.sandbox.denial import denied  # with sandboxes only: its patterns take 0.3 MiB

            # The words may come after the exit, from a descendant that holds the output.
            self._denied = (log.total, denied(exit_code, log.tail(_JUDGED_BYTES)))
        return self._denied[1]

    def evidence(self, exit_code: int, log: OutputLog) -> dict[str, object]:
        """The evidence for a denial in the last output, as JSON."""
        if self._evidence is not None and self._evidence[0] == log.total:
            return self._evidence[1]
        from execserver.sandbox.denial import StandIns, evidence, respelled

        confinement = self.confinement
        spellings = confinement.spellings() if exit_code else {}
        stand_ins = tuple(respelled(path, spellings) for path in confinement.stand_ins)
        found = evidence(
            confinement.policy,
            exit_code,
            log.tail(_EVIDENCE_BYTES),
            confinement.cwd,
            landlock=confinement.backend == "landlock",
            stand_ins=StandIns(stand_ins, lambda folder: _holds_only(folder, stand_ins)),
            spellings=spellings,
        )
        self._evidence = log.total, found.as_json()
        return self._evidence[1]

    def ended_with_sandbox(self) -> dict[str, object] | None:
        """The processes that the command left running, as JSON; None if there are none, or it is unknown."""
        if not self.left_running:
            return None
        names = dict.fromkeys(_printable(name) for name in self.left_running)
        return {"count": len(self.left_running), "names": list(names)[:_MOST_NAMED]}

    def watch(self, launcher: int, report: int, tag: int | None, poller: DescriptorPoller) -> None:
        """Find the command by the launcher's report; the arguments are those of `SandboxedChild`."""
        self.child = SandboxedChild(launcher, report, self.confinement.namespaces, tag, poller)

    def leave(self, owner: SandboxOwner, *, by_signal: bool, whole: bool) -> None:
        """The process that was spawned, a launcher or the command itself, has ended.

        Args:
            owner: is closed when nothing of the sandbox is left, so that a client that looks then finds the
                workspace as it was.
            by_signal: whether that process was killed.
            whole: whether all descendants of the command are to end.
        """
        self.stands = True
        asyncio.get_running_loop().call_later(_SANDBOX_END_SECONDS, owner.sandbox_ended)
        child = self.child
        if child is not None and not by_signal:
            self.left_running = child.left_running()
        reports = child is not None and child.launcher_ended(lambda: owner.sandbox_left(False), whole=whole)
        if child is not None and not child.set_up and not by_signal and owner.failure is None:
            # Else its network proxy has said why: at the end of the proxy the launcher may end by itself.
            owner.failure = _set_up_failure(owner.log, self.confinement.backend)
        if not reports:
            # A backend without a process namespace ends like one with it, if files are limited: nothing may
            # run on.
            owner.sandbox_left(child is not None or self.confinement.backend != "seccomp")


def _holds_only(folder: str, paths: Sequence[str]) -> bool:
    """Whether a folder holds nothing else than these paths."""
    try:
        with os.scandir(folder) as entries:
            return all(entry.path in paths for entry in entries)
    except OSError:
        return False


def _printable(name: bytes) -> str:
    return "".join(char if char.isprintable() else "?" for char in name.decode("utf-8", "replace"))


def _set_up_failure(log: OutputLog, backend: str) -> str:
    # Other launchers begin their lines in their own ways. Nothing else has written any.
    prefix = b"bwrap: " if backend == "bubblewrap" else b""
    lines = [
        line for line in log.tail(_LAUNCHER_BYTES).splitlines() if line.strip() and line.startswith(prefix)
    ]
    reason = lines[-1].decode("utf-8", "replace") if lines else "the launcher gave no reason"
    return f"failed to prepare process sandbox: {reason}"


class SandboxedChild:
    """The command inside a sandbox, found by the launcher's report.

    Args:
        launcher: the pid of the process that was spawned.
        report: the file that the launcher writes to; it belongs to this object from now on.
        namespaces: whether the first process inside is the `init` of a pid namespace.
        tag: the ownership tag that it must bear; None without tags.
        poller: reports the end of the first process.
    """

    def __init__(
        self, launcher: int, report: int, namespaces: bool, tag: int | None, poller: DescriptorPoller
    ) -> None:
        self.namespaces = namespaces
        self._tag = tag
        self._launcher = launcher
        self._poller = poller
        self._report: int | None = report
        self._first: int | None = None
        self._pidfd: int | None = None
        self._killed = False
        self._gone = False
        """Whether the first process is known to have ended."""
        self._replaced = False
        """Whether the pid of the first process belongs to another process by now."""
        self._waiting: deque[tuple[int, bool]] = deque()
        """Signals for a command that is not there yet, oldest first, each with whether it is for the command
        alone and not for its group."""
        self._retries = 0
        self.set_up = False
        """Whether the command was run; final once the launcher has ended."""

    # -- signals for the command

    def signal(self, number: int, *, leader: bool = False) -> None:
        """Send any signal but SIGKILL to the command's process group, or to the command alone, as soon as
        there is one. Waiting signals are sent in order, equal ones once; SIGCONT and stop signals cancel each
        other.
        """
        wanted, idle = (number, leader), not self._waiting
        undone = _STOPS if number == signal.SIGCONT else {signal.SIGCONT} if number in _STOPS else ()
        if undone:
            # As the kernel does with pending signals.
            self._waiting = deque(each for each in self._waiting if each[0] not in undone)
        if wanted in self._waiting:
            return
        self._waiting.append(wanted)
        if idle:
            self._retries = _MOST_RETRIES
            self._try_signals()

    @property
    def waiting(self) -> bool:
        """Whether a signal waits for the command."""
        return bool(self._waiting)

    def setup_pids(self) -> set[int] | None:
        """The pids of the processes that set the sandbox up and wait for its end, without the command; None
        while there is no command.
        """
        if self._command() is None or self._first is None:
            return None
        return {self._launcher, self._first} if self.namespaces else {self._launcher}

    def kill(self) -> None:
        """SIGKILL the processes inside that are known here. The caller kills the launcher. Without a process
        namespace the caller also has to find what has left the command's group (`launcher_ended`).
        """
        self._waiting.clear()
        self._killed = True
        pidfd = self._find_first()
        if pidfd is None:
            return
        command = None if self.namespaces else self._command()
        if command is not None:
            # Before the first process: a reaped command has no group any more.
            self._signal_group(command, signal.SIGKILL)
        _send(pidfd, signal.SIGKILL)

    def left_running(self) -> list[bytes]:
        """The names of the processes that the command, which has ended, left running in its pid namespace.
        Their end follows at once. None after `kill`, which meant them too.
        """
        pidfd = self._find_first() if self.namespaces and not self._killed else None
        if pidfd is None or self._first is None:
            return []
        try:
            names = descendants.names_below(self._first, _MOST_COUNTED)
            # Fails when the first process is reaped: then the children may be those of another process.
            signal.pidfd_send_signal(pidfd, 0)
        except OSError:
            return []
        return names

    def launcher_ended(self, on_end: Callable[[], None], *, whole: bool = False) -> bool:
        """The launcher has ended, so what is left inside has to end.

        Args:
            on_end: called, but not before the return, when nothing runs inside any more.
            whole: whether all descendants of the command have to end.

        Returns:
            Whether `on_end` will be called. If not, the caller has to search by the tag: the first process is
            not known, or all descendants have to end and no namespace ensures that.
        """
        pidfd = self._find_first()
        self._close_report()
        if whole and not self.namespaces and self._tag is not None:
            if pidfd is not None:
                os.close(pidfd)
            self._gone, self._pidfd = True, None
            self._waiting.clear()
            return False
        if pidfd is None:
            if not self._gone:
                return False
            # The other processes of a pid namespace are reaped before its first one.
            asyncio.get_running_loop().call_soon(on_end)
            return True
        if self.namespaces:
            _send(pidfd, signal.SIGKILL)

        def ended(_events: int) -> None:
            self._gone, self._pidfd = True, None
            watch.close()
            on_end()

        watch = self._poller.watch(pidfd, READABLE, ended)
        return True

    # -- the report

    def _find_first(self) -> int | None:
        """A pidfd of the first process inside; None: there is none yet, or none any more."""
        self._read()
        if self._first is None or self._pidfd is not None or self._gone or self._replaced:
            return self._pidfd
        try:
            pidfd = os.pidfd_open(self._first)
        except ProcessLookupError:
            self._gone = True
            return None
        except OSError:
            return None  # no descriptor is available
        if self._tag is not None and descendants.tag_of(self._first) != self._tag:
            os.close(pidfd)
            self._replaced = True
            return None
        self._pidfd = pidfd
        return pidfd

    def _read(self) -> None:
        if self._report is None or self.set_up:
            return
        # By offset: the launcher writes at the descriptor's position.
        report = os.pread(self._report, _MOST_REPORT_BYTES, 0)
        if report.strip().isdigit():
            # A pid file, which container runtimes write when everything is set up.
            self._first, self.set_up = int(report), True
            return
        for line in report.split(b"\n")[:-1]:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            fields: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if not isinstance(fields, dict):
            return
        if "exit-code" in fields:
            self.set_up = True
        first = fields.get("child-pid")
        if isinstance(first, int) and self._first is None:
            self._first = first

    def _close_report(self) -> None:
        if self._report is not None:
            os.close(self._report)
            self._report = None

    # -- signals

    def _try_signals(self) -> None:
        while self._waiting and self._deliver(*self._waiting[0]):
            self._waiting.popleft()
        self._retries -= 1
        unreachable = self._gone or self._replaced or (self._report is None and self._pidfd is None)
        if unreachable or self._retries <= 0:
            self._waiting.clear()
        if self._waiting:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._try_signals)

    def _deliver(self, number: int, leader: bool) -> bool:
        """False when there is no command yet."""
        command = self._command()
        if command is None:
            return False
        if leader:
            self._signal_command(command, number)
            return True
        sent = self._signal_group(command, number)
        if sent and number == signal.SIGSTOP and self.namespaces and self._pidfd is not None:
            # The first process belongs to the command's group, and has to run when the command ends.
            _send(self._pidfd, signal.SIGCONT)
        return sent

    def _signal_group(self, command: int, number: int) -> bool:
        """Signal the group of the command; False when it has ended."""
        try:
            group = os.getpgid(command)
            # Only now the pid certainly belongs to the command.
            if self._command() != command:
                return False
            os.killpg(group, number)
        except OSError:
            return False
        return True

    def _signal_command(self, command: int, number: int) -> None:
        try:
            pidfd = os.pidfd_open(command)
        except OSError:
            return  # It has ended.
        try:
            # Only now the pid certainly belongs to the command.
            if self._command() == command:
                _send(pidfd, number)
        finally:
            os.close(pidfd)

    def _command(self) -> int | None:
        """The pid of the command; None: there is none yet, or none any more."""
        pidfd = self._find_first()
        if pidfd is None or self._first is None:
            return None
        found: int | None = self._first
        try:
            if self.namespaces:
                with open(f"/proc/{self._first}/task/{self._first}/children", "rb") as file:
                    found = next(map(int, file.read().split()), None)
            # Until it has a group of its own, it is still being set up.
            if found is None or os.getpgid(found) == self._launcher:
                return None
            # Fails when the first process is reaped: then `children` may have been that of another process.
            signal.pidfd_send_signal(pidfd, 0)
        except OSError:
            return None
        return found


def _send(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return  # It has ended already.
