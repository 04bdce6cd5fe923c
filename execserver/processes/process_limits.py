"""The limits of one process: its leaf, what it was used for, and which limit ended the process.

Rules kept in this file:

1. The reason that a client or the daemon had for a kill before memory ran out stays the cause.
2. Death by SIGKILL is for the memory limit only if the kernel killed in this leaf because of this limit. A
   kill in the leaf for another reason (the whole machine, a group above) is `outOfMemory`.
3. In cgroup v2 the kernel kills the whole leaf. In v1 it kills one process and this server the others, so
   there the cause is the limit also if the leader manages to exit in between.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from execprotocol.process import ResourceLimits
from execserver.processes.poller import READABLE, DescriptorPoller

if TYPE_CHECKING:
    from execprotocol.process import ExitCause, ExitUsage, LimitHit
    from execserver.limits.leaf import Leaf
    from execserver.spool.records import ProcessState, Started

_KILLED = 128 + signal.SIGKILL
_SYSTEM_LIMITS = (128 + signal.SIGXCPU, 128 + signal.SIGXFSZ)


class ProcessLimits:
    """The limits of one process.

    Args:
        limits: those in force.
        leaf: None if the only limit is that in time, or if the leaf is gone.
    """

    __slots__ = ("hit", "leaf", "limits", "usage_at_end")

    def __init__(self, limits: ResourceLimits, leaf: Leaf | None = None) -> None:
        self.limits = limits
        self.leaf = leaf
        self.hit: LimitHit | None = None
        """The limit that ended the process."""
        self.usage_at_end: ExitUsage | None = None

    @classmethod
    def restored(cls, state: ProcessState, leaf: Leaf | None) -> ProcessLimits | None:
        """Those of a previous server's process; None if it has none."""
        if state.started.limits is None:
            return None
        restored = cls(msgspec.convert(state.started.limits, ResourceLimits), leaf)
        if state.exited is not None:
            restored.hit = cast("LimitHit | None", state.exited.limit)
            restored.usage_at_end = cast("ExitUsage | None", state.exited.usage)
        return restored

    def watch(self, poller: DescriptorPoller, on_out_of_memory: Callable[[], None]) -> None:
        """Call back each time that memory runs out in the leaf, where the kernel does not end all of it.

        Raises:
            OSError: the kernel cannot watch it.
        """
        leaf = self.leaf
        if leaf is None or leaf.oom_events is None:
            return

        def look(_events: int) -> None:
            state = leaf.memory_state()
            if state is not None and state.at_limit:
                on_out_of_memory()

        leaf.on_removed = poller.watch(leaf.oom_events, READABLE, look).close

    def leave(self) -> None:
        """The process is over: remove the leaf as soon as it is empty."""
        if self.leaf is not None:
            self.leaf.leave()

    def ends(self, started: Started) -> bool:
        """Whether the time of a process is over by `wallMs`, and not by `timeoutMs`."""
        wall_ms = self.limits.wall_ms
        return wall_ms is not None and started.started_at + wall_ms / 1000 == started.timeout_at

    def usage(self) -> ExitUsage:
        """What was used so far, or until the end; blocks for a moment."""
        return self.usage_at_end or (self.leaf.usage() if self.leaf is not None else {"limitsHit": []})

    def end(self, cause: ExitCause, exit_code: int) -> ExitCause:
        """The leader has ended. Decide whether a limit was the reason.

        Args:
            cause: the reason without a look at the leaf.
            exit_code: on the wire.
        """
        usage = self.usage_at_end = self.usage()
        state = None if self.leaf is None else self.leaf.memory_state()
        limit = self.limits
        full = state is not None and state.at_limit
        if state is not None and cause in ("signal", "outOfMemory") and exit_code == _KILLED:
            cause = "signal" if not state.kills else "limit" if full else "outOfMemory"
        elif cause == "normal" and full and self.leaf is not None and self.leaf.oom_events is not None:
            cause = "limit"
        if cause == "limit" and full and limit.memory_bytes is not None:
            self.hit = {"which": "memory", "value": limit.memory_bytes}
        elif cause == "limit" and exit_code not in _SYSTEM_LIMITS and limit.wall_ms is not None:
            self.hit = {"which": "wall", "value": limit.wall_ms}
            usage["limitsHit"].append("wall")
        return cause
