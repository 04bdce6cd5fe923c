"""The leader of a process: signals to it, and its end, which is recorded before the leader is reaped.

Rules kept in this file:

1. The end of our own child is recorded before the child is reaped. Until then a new server still finds it.
2. A leader from a previous server is a child of the supervisor, which reports the end and reaps it after that
   is recorded. Its pidfd is for signals only.
3. The reason for a kill is recorded before the kill, and the first reason counts (`exit_cause.py`).
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Protocol, cast

from execserver.fault_points import reach
from execserver.processes.exit_cause import OomCounter, exit_cause, may_be_out_of_memory
from execserver.processes.poller import READABLE, DescriptorPoller, Watch
from execserver.processes.recovery_state import RecoveryState
from execserver.processes.sandboxed_child import ProcessSandbox, SandboxedChild
from execserver.spool.records import ProcessState
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.process import ExitCause

UNKNOWN_EXIT = 255
"""The exit code of a process whose real one is not known."""


class ExitOwner(Protocol):
    """The process whose leader ends."""

    number: int
    pid: int

    sandbox: ProcessSandbox | None

    @property
    def running(self) -> bool:
        """Whether the leader has not been reaped."""

    def leader_ended(self, exit_code: int, *, by_signal: bool, cause: ExitCause | None = None) -> None:
        """Record the end of the leader."""


class Leader:
    """The first process of a command, from its start until it is reaped.

    Args:
        owner: is notified of the end.
        poller: reports the end of a child.
        recovery: is told why the process is killed, and when the supervisor may reap.
        oom_kills: the kernel's count of kills for want of memory.
    """

    __slots__ = (
        "_oom_counter",
        "_oom_kills",
        "_owner",
        "_pidfd",
        "_poller",
        "_reason",
        "_recovery",
        "inherited",
        "kill_at",
        "tree_ending",
    )

    def __init__(
        self, owner: ExitOwner, poller: DescriptorPoller, recovery: RecoveryState, oom_kills: OomCounter
    ) -> None:
        self.inherited = False
        """Whether the leader is a child of the supervisor."""
        self.tree_ending = False
        """Whether the ledger says that all descendants are about to be killed."""
        self.kill_at: float | None = None
        """When everything is killed that is left after a SIGTERM at a time limit (CLOCK_MONOTONIC, seconds);
        None without such a signal."""
        self._owner = owner
        self._poller = poller
        self._recovery = recovery
        self._oom_counter = oom_kills
        self._oom_kills: int | None = None
        """The count before the start; None if it is not known."""
        self._reason: ExitCause | None = None
        """Why the process is about to be killed."""
        self._pidfd: Watch | None = None

    def watch_child(self, pidfd: int) -> None:
        """Wait for the end of our own child. The descriptor belongs to this object from now on.

        Raises:
            OSError: the kernel cannot watch it.
        """
        self._oom_kills = self._oom_counter.before_start()
        self._pidfd = self._poller.watch(pidfd, READABLE, self._on_exit)

    def inherit(self, state: ProcessState, pidfd: int | None) -> None:
        """Continue for a leader from a previous server, whose end the supervisor reports."""
        self.inherited = True
        self.tree_ending = state.tree_ending
        self.kill_at = state.kill_at
        self._reason = cast("ExitCause | None", state.ending)
        if pidfd is not None:
            self._pidfd = self._poller.watch(pidfd, 0, self._on_end_of_forgotten)

    @property
    def pidfd(self) -> int | None:
        """For signals; None once the leader is reaped."""
        return None if self._pidfd is None else self._pidfd.fd

    @property
    def sandboxed_child(self) -> SandboxedChild | None:
        """The command inside a sandbox whose launcher is the leader; None without a launcher."""
        sandbox = self._owner.sandbox
        return None if sandbox is None else sandbox.child

    def end_for(self, reason: ExitCause, *, tree: bool = False) -> None:
        """Record why the process is about to be killed, with `tree` also all its descendants. The first
        reason counts.
        """
        first = self._owner.running and self._reason is None
        if first:
            self._reason = reason
        if first or (tree and not self.tree_ending):
            self.tree_ending = self.tree_ending or tree
            self._recovery.ending(self._owner.number, reason, tree=tree)

    @property
    def ending(self) -> bool:
        """Whether it is about to be killed."""
        return self._reason is not None or self.tree_ending

    @property
    def in_grace(self) -> bool:
        """Whether a SIGTERM at a time limit was sent, and the kill after it is still to come."""
        return self.kill_at is not None and not self.tree_ending

    def warn(self, reason: ExitCause, kill_at: float) -> bool:
        """Send SIGTERM to the group before a kill. The caller kills at `kill_at`, also if the leader ends.

        Returns:
            False, and nothing happens, if the process is about to be killed already.
        """
        if not self._owner.running or self._reason is not None:
            return False
        self._reason, self.kill_at = reason, kill_at
        self._recovery.ending(self._owner.number, reason, kill_at=kill_at)
        self.signal_group(signal.SIGTERM)
        # A stopped process cannot act on a signal.
        self.signal_group(signal.SIGCONT)
        return True

    def signal(self, number: int) -> bool:
        """Signal the leader alone; in a sandbox the command, and with SIGKILL everything inside. False, and
        nothing happens, once it is reaped.

        Raises:
            PermissionError: it belongs to another user by now.
        """
        child = self.sandboxed_child
        if number == signal.SIGKILL and child is not None:
            return self.signal_group(number)
        pidfd = self.pidfd if self._owner.running else None
        if pidfd is None:
            return False
        _count_signal(number)
        if child is not None:
            child.signal(number, leader=True)
            return True
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def signal_group(self, number: int) -> bool:
        """Signal the process group; in a sandbox that of the command, and with SIGKILL everything inside.
        False, and nothing happens, once the leader is reaped: after that the group's number may be reused.
        """
        if not self._owner.running:
            return False
        _count_signal(number)
        child = self.sandboxed_child
        if child is not None:
            if number != signal.SIGKILL:
                child.signal(number)
                return True
            if not child.namespaces:
                # No namespace ends what has left the group: the launcher's end starts a search for it.
                self.end_for("signal", tree=True)
            child.kill()
        try:
            os.killpg(self._owner.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # A member has changed its user; the others were signalled.
            pass
        return True

    def cause_of(self, exit_code: int, *, by_signal: bool, launched: bool) -> ExitCause:
        """Why the leader ended; `launched` as for `exit_cause`."""
        counted = may_be_out_of_memory(exit_code, self._reason)
        return exit_cause(
            exit_code,
            by_signal=by_signal,
            ending=self._reason,
            oom_kills_before=self._oom_kills,
            oom_kills_now=self._oom_counter.look() if counted else None,
            launched=launched,
            warned=self.kill_at is not None,
        )

    def reported(self, status: int) -> None:
        """The supervisor's child has ended with this status (as `os.waitpid` gives it)."""
        if self._owner.running:
            code = os.waitstatus_to_exitcode(status)
            self._owner.leader_ended(128 - code if code < 0 else code, by_signal=code < 0)
        self.close()
        self._recovery.reaped(self._owner.number)

    def check(self) -> None:
        """Find out whether an inherited leader has ended without a report."""
        if not self._owner.running or self._pidfd is None:
            return
        try:
            signal.pidfd_send_signal(self._pidfd.fd, 0)
        except ProcessLookupError:
            # It was reaped already; the signal to a zombie succeeds.
            self._owner.leader_ended(UNKNOWN_EXIT, by_signal=False, cause="unknown")
            self.close()
        except PermissionError:
            return

    def release(self) -> None:
        """The process is forgotten: notice the end without the supervisor, which no longer reports it."""
        if self.inherited and self._pidfd is not None:
            self._pidfd.set(READABLE)

    def close(self) -> None:
        """Close the pidfd."""
        if self._pidfd is not None:
            self._pidfd.close()
            self._pidfd = None

    def _on_exit(self, _events: int) -> None:
        assert self._pidfd is not None
        fd = self._pidfd.fd
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return
        by_signal = result.si_code != os.CLD_EXITED
        self._pidfd.set(0)
        code = 128 + result.si_status if by_signal else result.si_status
        self._owner.leader_ended(code, by_signal=by_signal)
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
        reach("after-reap")
        self.close()

    def _on_end_of_forgotten(self, _events: int) -> None:
        self._owner.leader_ended(UNKNOWN_EXIT, by_signal=True)
        self.close()


def _count_signal(number: int) -> None:
    kind = "kill" if number == signal.SIGKILL else "interrupt" if number == signal.SIGINT else "other"
    measures.signals[kind] += 1
