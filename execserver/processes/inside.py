"""The inside of a sandboxed process, as the launcher reports it.

The process that we spawned is the launcher, which waits outside. It tells, on a descriptor, the pid of
the first process inside, and at the end the exit code, *if* the set-up succeeded. What is meant for
the command is sent inside: a signal to the launcher would end the watch and not the command.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from execserver import membership
from execserver.processes.poller import READABLE, DescriptorPoller, Watch

_RETRY_SECONDS = 0.002
_MOST_RETRIES = 2500
"""A command that was told to be interrupted at once is interrupted when there is one: 5 s at most."""

_MOST_STATUS_BYTES = 64 << 10
"""What a launcher says is a few hundred bytes."""


class Inside:
    """The sandbox of one process.

    Args:
        launcher: the pid of the process that was spawned.
        status: our end of the launcher's report, non-blocking; it belongs to this object from now on.
        namespaces: whether the first process inside is the `init` of a pid namespace.
        tag: the membership tag that it must bear; None when there are no tags.
        poller: tells when there is something to read.
    """

    def __init__(
        self, launcher: int, status: int, namespaces: bool, tag: int | None, poller: DescriptorPoller
    ) -> None:
        self._tag = tag
        self._launcher = launcher
        self._namespaces = namespaces
        self._poller = poller
        self._said = b""
        self._first: int | None = None
        self._pidfd: Watch | None = None
        self._on_end: Callable[[], None] | None = None
        self._interrupts = 0
        self.set_up = False
        """Whether the command was run; final once the launcher has ended."""
        self._status: Watch | None = poller.watch(status, READABLE, lambda _events: self._read())

    # -- what is meant for the command

    def interrupt(self) -> None:
        """Send SIGINT to the command's process group, as soon as there is one."""
        self._read()
        if self._interrupts == 0:
            self._interrupts = _MOST_RETRIES
            self._try_interrupt()

    def kill(self) -> None:
        """SIGKILL everything inside that can be told from here. The launcher is the caller's affair."""
        self._read()
        self._interrupts = 0
        if self._pidfd is not None:
            _send(self._pidfd.fd, signal.SIGKILL)
            if not self._namespaces and self._first is not None:
                _kill_group(self._first, signal.SIGKILL, but_not=self._launcher)

    def launcher_ended(self, on_end: Callable[[], None]) -> bool:
        """The launcher was reaped: nobody inside has a reason to go on.

        Args:
            on_end: called when nothing runs inside any more.

        Returns:
            Whether that will be told; if not, the first process is not known, and others have to look.
        """
        self._read()
        self._close_status()
        if self._pidfd is None:
            return False
        self._on_end = on_end
        if self._namespaces:
            _send(self._pidfd.fd, signal.SIGKILL)
        self._pidfd.set(READABLE)
        return True

    # -- the report

    def _read(self) -> None:
        while self._status is not None:
            try:
                data = os.read(self._status.fd, 4096)
            except BlockingIOError:
                return
            self._said += data
            *lines, self._said = self._said.split(b"\n")
            for line in lines:
                self._take(line)
            if not data or len(self._said) > _MOST_STATUS_BYTES:
                self._close_status()

    def _take(self, line: bytes) -> None:
        try:
            said: Any = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return
        if not isinstance(said, dict):
            return
        if "exit-code" in said:
            self.set_up = True
        first = said.get("child-pid")
        if isinstance(first, int) and self._first is None:
            self._first = first
            try:
                pidfd = os.pidfd_open(first)
            except OSError:
                return
            if self._tag is not None and membership.tag_of(first) != self._tag:
                # It ended before we looked, and the number is somebody else's by now.
                os.close(pidfd)
                return
            self._pidfd = self._poller.watch(pidfd, 0, lambda _events: self._ended())

    def _close_status(self) -> None:
        if self._status is not None:
            watch, self._status = self._status, None
            _close(watch)

    def _ended(self) -> None:
        if self._pidfd is not None:
            watch, self._pidfd = self._pidfd, None
            _close(watch)
        self._interrupts = 0
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    # -- interrupts

    def _try_interrupt(self) -> None:
        if self._interrupts == 0:
            return
        targets = self._leaders()
        sent = [_kill_group(pid, signal.SIGINT, but_not=self._launcher) for pid in targets]
        if any(sent):
            self._interrupts = 0
            return
        self._interrupts -= 1
        if self._status is None and self._pidfd is None:
            self._interrupts = 0
        if self._interrupts:
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._try_interrupt)

    def _leaders(self) -> list[int]:
        """Processes of the command's group."""
        if self._first is None or self._pidfd is None:
            return []
        if not self._namespaces:
            return [self._first]
        try:
            with open(f"/proc/{self._first}/task/{self._first}/children", "rb") as file:
                return [int(pid) for pid in file.read().split()[:1]]
        except OSError:
            return []


def _kill_group(pid: int, number: signal.Signals, *, but_not: int) -> bool:
    """Signal the group of a process. The launcher's group is not the command's yet."""
    try:
        group = os.getpgid(pid)
        if group == but_not:
            return False
        os.killpg(group, number)
    except OSError:
        return False
    return True


def _send(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return  # It has ended already.


def _close(watch: Watch) -> None:
    watch.set(0)
    watch.callback = _ignore
    os.close(watch.fd)


def _ignore(_: int) -> None:
    """Nothing."""
