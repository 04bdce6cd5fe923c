"""What a host is told of a call while it runs: exactly one begin and one end, deltas and decisions between.

    begin ──> decided* ──> delta* ──> end

`end` comes also when the call failed, was refused or was cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from pybase64 import b64encode

from execclient.connection.connection import Json

log = logging.getLogger(__name__)

MAX_DELTAS = 10_000
"""Of one call. What comes after is in its result only: an interface that draws each delta would be
busy for minutes with a command that prints a million lines."""


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call has begun; nothing was decided or started yet."""

    type: ClassVar[str] = "begin"
    call_id: str
    tool: str
    command: tuple[str, ...]
    """Empty for a tool that runs none."""
    cwd: str


@dataclass(frozen=True, slots=True)
class CallDecided:
    """Somebody decided on a call, or on its second attempt."""

    type: ClassVar[str] = "decided"
    call_id: str
    decision: Literal["run", "refuse"]
    source: str
    """What the requirement came from (`policy.decision.Source`)."""
    decided_by: str | None
    """Who answered, if somebody was asked: `cache`, `hook`, `guardian`, `user`, `nobody`."""
    sandboxed: bool
    retry: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """A piece of output, as it came; characters may be cut."""

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
    """Seconds, those of waiting for an approval included."""
    preview: str
    """The beginning of what the model gets (`tools.preview`)."""
    failure: str | None = None
    """What kind of failure, if there was one."""
    process_id: str | None = None
    """Of a process that still runs."""


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """A process that a model could come back to was ended for the sake of another one."""

    type: ClassVar[str] = "session_closed"
    session_id: str
    reason: str
    """`pruned`."""


ToolEvent = CallBegin | CallDecided | OutputDelta | CallEnd | SessionClosed
"""All that a host is told of."""

EventSink = Callable[[ToolEvent], None]
"""Called on the event loop, in order. One that raises before a command was started, at `begin` or `decided`,
ends the call: what cannot be recorded is not run. Later it only misses what else there is to tell."""


def to_json(event: ToolEvent) -> dict[str, Json]:
    """An event as JSON; the bytes of a delta as base64."""
    members: Mapping[str, Json] = asdict(event)
    plain = {
        name: b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in members.items()
    }
    return {"type": event.type, **plain}


def tell(sink: EventSink | None, *events: ToolEvent) -> None:
    """Tell of what has happened already, and no error can change."""
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
        sink: gets them; None for nobody.
        call_id: the call.
        tool: its name.
    """

    def __init__(self, sink: EventSink | None, call_id: str, tool: str) -> None:
        self.call_id = call_id
        self.tool = tool
        self._sink = sink
        self._begun = False
        self._ended = False
        self._deltas = 0

    def begin(self, command: tuple[str, ...], cwd: str) -> None:
        """The first event. A second one is not sent: a call that hands over to another tool is one call."""
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
        """A decision."""
        self._send(CallDecided(self.call_id, decision, source, decided_by, sandboxed, retry, reason))

    def delta(self, stream: str, chunk: bytes) -> None:
        """Output; not sent any more after `MAX_DELTAS`."""
        if self._deltas < MAX_DELTAS and not self._ended:
            self._deltas += 1
            self._send(OutputDelta(self.call_id, stream, chunk))

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
        """The last event, with a first one before it if there was none."""
        if self._ended:
            return
        self._ended = True
        ending = CallEnd(self.call_id, self.tool, success, exit_code, duration, preview, failure, process_id)
        tell(self._sink, *(() if self._begun else (CallBegin(self.call_id, self.tool, (), ""),)), ending)
        self._begun = True

    def _send(self, event: ToolEvent) -> None:
        if self._sink is not None:
            self._sink(event)
