"""The events of a call for the host: one begin, then decisions and deltas, and one end.

    begin ──> decided* ──> delta* ──> end

A call that failed, was refused or was cancelled also has an `end`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from pybase64 import b64encode

from execclient.connection.connection import Json
from execclient.govern.network import NetworkTarget

log = logging.getLogger(__name__)

MAX_DELTAS = 10_000
"""Deltas of one call. Later output is in the result only: an interface that draws each delta would be busy
for minutes with a command that prints a million lines."""


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call has begun; nothing was decided or started yet."""

    type: ClassVar[str] = "begin"
    call_id: str
    tool: str
    command: tuple[str, ...]
    """Empty for a tool that runs no command."""
    cwd: str


@dataclass(frozen=True, slots=True)
class CallDecided:
    """A decision on a call, or on its second attempt."""

    type: ClassVar[str] = "decided"
    call_id: str
    decision: Literal["run", "refuse"]
    source: str
    """The source of the decision (`policy.decision.DecisionSource`)."""
    decided_by: str | None
    """The origin of the answer, if an approval was needed: `cache`, `hook`, `guardian`, `user`, `nobody`."""
    sandboxed: bool
    retry: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NetworkDecided:
    """A decision on a host that a command wants to reach.

    It comes after the end of the call if the command runs on.
    """

    type: ClassVar[str] = "network_decided"
    call_id: str
    decision: Literal["allow", "deny"]
    source: str
    """The source of the decision (`policy.network.NetworkSource`)."""
    decided_by: str | None
    """The origin of the answer, if an approval was needed."""
    host: str
    port: int
    protocol: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """A piece of output as received; characters may be split."""

    type: ClassVar[str] = "delta"
    call_id: str
    stream: str
    """`stdout`, `stderr` or `pty`."""
    chunk: bytes


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call has ended."""

    type: ClassVar[str] = "end"
    call_id: str
    tool: str
    success: bool
    exit_code: int | None
    duration: float
    """In seconds, including the time for approvals."""
    preview: str
    """The beginning of the text for the model (`tools.result.preview`)."""
    failure: str | None = None
    """The kind of failure, if there was one."""
    process_id: str | None = None
    """The id of a process that still runs."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A session of a model was ended to make room for another one."""

    type: ClassVar[str] = "session_closed"
    session_id: str
    reason: str
    """`pruned`."""


@dataclass(frozen=True, slots=True)
class SnapshotUnused:
    """Commands run in a login shell, in spite of `ToolsConfig.shell_snapshot`; sent once for each reason."""

    type: ClassVar[str] = "snapshot_unused"
    call_id: str
    reason: str


ToolEvent = CallBegin | CallDecided | NetworkDecided | OutputDelta | CallEnd | SessionClosed | SnapshotUnused
"""All events."""

EventSink = Callable[[ToolEvent], None]
"""Called on the event loop, in order. An exception at `begin` or `decided`, before a command was started,
ends the call: a call that cannot be recorded is not run. A later exception is only logged."""


def to_json(event: ToolEvent) -> dict[str, Json]:
    """An event as JSON; the bytes of a delta as base64."""
    members: Mapping[str, Json] = asdict(event)
    plain = {
        name: b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in members.items()
    }
    return {"type": event.type, **plain}


def notify(sink: EventSink | None, *events: ToolEvent) -> None:
    """Send events of what has already happened; errors of the sink are logged."""
    if sink is None:
        return
    try:
        for event in events:
            sink(event)
    except Exception:
        log.exception("a sink of events failed")


class CallEvents:
    """The events of one call.

    Args:
        sink: gets the events; None for no sink.
        call_id: the id of the call.
        tool: the name of the tool.
    """

    def __init__(self, sink: EventSink | None, call_id: str, tool: str) -> None:
        self.call_id = call_id
        self.tool = tool
        self._sink = sink
        self._begun = False
        self._ended = False
        self._deltas = 0

    def begin(self, command: tuple[str, ...], cwd: str) -> None:
        """Send the first event, once: a call that is passed to another tool is one call."""
        if not self._begun:
            self._begun = True
            self._send(CallBegin(self.call_id, self.tool, command, cwd))

    def decided(
        self,
        decision: Literal["run", "refuse"],
        source: str,
        decided_by: str | None,
        *,
        sandboxed: bool,
        retry: bool = False,
        reason: str | None = None,
    ) -> None:
        """Send a decision."""
        self._send(CallDecided(self.call_id, decision, source, decided_by, sandboxed, retry, reason))

    def network_decided(
        self,
        target: NetworkTarget,
        source: str,
        decided_by: str | None,
        *,
        allowed: bool,
        reason: str | None,
    ) -> None:
        """Send a decision on a host."""
        decision: Literal["allow", "deny"] = "allow" if allowed else "deny"
        host, port, protocol = target.host, target.port, target.protocol
        self._send(NetworkDecided(self.call_id, decision, source, decided_by, host, port, protocol, reason))

    def delta(self, stream: str, chunk: bytes) -> None:
        """Send output, up to `MAX_DELTAS` times."""
        if self._deltas < MAX_DELTAS and not self._ended:
            self._deltas += 1
            self._send(OutputDelta(self.call_id, stream, chunk))

    def snapshot_unused(self, reason: str) -> None:
        """Send the reason why a command, which has started, runs in a login shell."""
        notify(self._sink, SnapshotUnused(self.call_id, reason))

    def end(
        self,
        *,
        success: bool,
        exit_code: int | None,
        duration: float,
        preview: str,
        failure: str | None = None,
        process_id: str | None = None,
    ) -> None:
        """Send the last event, and the first one before it if that is missing."""
        if self._ended:
            return
        self._ended = True
        ending = CallEnd(self.call_id, self.tool, success, exit_code, duration, preview, failure, process_id)
        notify(self._sink, *(() if self._begun else (CallBegin(self.call_id, self.tool, (), ""),)), ending)
        self._begun = True

    def _send(self, event: ToolEvent) -> None:
        if self._sink is not None:
            self._sink(event)
