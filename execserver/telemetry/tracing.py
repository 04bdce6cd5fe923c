"""The trace context of a request: into every log line that it causes and, where OpenTelemetry is
set up, into a span of its own.

A request may carry `trace: {traceparent, tracestate}` (W3C Trace Context). Without one, and
without OpenTelemetry, `begin` gives None and nothing here costs anything.

    trace = tracing.begin(method, message.trace, dialect, transport)
    with tracing.active(trace):      # around the handler and around whatever creates its task
        ...
    if trace is not None:            # once, with the code of the answer
        trace.end(code)

A context that does not parse is no error: the specification wants it treated as absent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from execserver.telemetry.logs import Logger, bound_fields

if TYPE_CHECKING:
    from execserver.telemetry.spans import RequestSpan, SpanRecorder

# Compiled when the first request has one, as `re` does: 0.2 ms of a start.
_TRACEPARENT = r"(?s)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_INVALID_VERSION = "ff"
_VERSION = "00"

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = Logger()


class TraceParent(NamedTuple):
    """Where a request belongs: its trace, and the caller's span. In small hexadecimal digits."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(value: str) -> TraceParent | None:
    """What a `traceparent` says, or None when it is not valid (W3C Trace Context, 3.2).

    A later version than 00 may have more after the flags; what is known of it is used.
    """
    match = re.fullmatch(_TRACEPARENT, value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _INVALID_VERSION or (version == _VERSION and more is not None):
        return None
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1))


class RequestTrace:
    """One request that is traced."""

    __slots__ = ("_fields", "_span")

    def __init__(self, trace_id: str, span_id: str, span: RequestSpan | None) -> None:
        self._fields = {"trace_id": trace_id, "span_id": span_id}
        self._span = span

    def active(self) -> AbstractContextManager[None]:
        """While it lasts, log lines carry `trace_id` and `span_id`, and so do those of tasks that are
        created in it. May be entered more than once.
        """
        return bound_fields(**self._fields)

    def end(self, code: int) -> None:
        """The request was answered: with a result (0) or an error of this code."""
        if self._span is not None:
            self._span.end(code)


_UNTRACED: Final[AbstractContextManager[None]] = nullcontext()
_recorder: SpanRecorder | None = None


def begin(method: str, trace: Mapping[str, Any] | None, dialect: str, transport: str) -> RequestTrace | None:
    """The trace of a request that has just arrived; None when it has none.

    Args:
        method: a name of the method table, or `unknown`: it names the span.
        trace: the request's `trace` member as decoded.
        dialect: `lean` or `standard`.
        transport: a word of `measures.TRANSPORT_KINDS`.
    """
    if trace is None and _recorder is None:
        return None
    header = trace.get("traceparent") if trace is not None else None
    parent = parse_traceparent(header) if isinstance(header, str) else None
    if _recorder is None:
        return None if parent is None else RequestTrace(parent.trace_id, parent.span_id, None)
    state = trace.get("tracestate") if trace is not None and parent is not None else None
    span = _recorder.start(method, parent, state if isinstance(state, str) else "", dialect, transport)
    return RequestTrace(span.trace_id, span.span_id, span)


def recording() -> bool:
    """Whether every request has a trace, also one that says nothing of its own."""
    return _recorder is not None


def active(trace: RequestTrace | None) -> AbstractContextManager[None]:
    """`trace.active()`, or nothing for None."""
    return _UNTRACED if trace is None else trace.active()


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Record spans from now on if OpenTelemetry's own variables ask for it: an OTLP endpoint, or
    `OTEL_TRACES_EXPORTER=otlp`, and no `OTEL_SDK_DISABLED=true`. Loads OpenTelemetry (0.15 s) only then.
    """
    global _recorder  # one a process, like the log
    if not spans_wanted(environment):
        return
    from importlib.util import find_spec

    if find_spec("opentelemetry") is None or not _exporter_is_installed():
        log.warning("OTEL_* variables ask for spans: install execserver[otel] to send them")
        return
    from execserver.telemetry.spans import SpanRecorder

    _recorder = SpanRecorder()
    log.info("spans are recorded")


def shut_down(seconds: float) -> None:
    """Send what is recorded, for at most `seconds`. Blocks; for the end of the daemon."""
    if _recorder is not None:
        _recorder.close(seconds)


def spans_wanted(environment: Mapping[str, str]) -> bool:
    """Whether these variables ask for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = {name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "").split(",")} - {""}
    if exporters:
        return "otlp" in exporters
    return any(environment.get(name) for name in _ENDPOINTS)


def _exporter_is_installed() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
