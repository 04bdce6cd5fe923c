"""Traces of requests: the ids in each log line of a request and, with OpenTelemetry, a span for the request.

Without a trace context (`execprotocol/trace_context.py`) and without OpenTelemetry, `begin` returns None at
no cost.

    trace = tracing.begin(method, message.trace, dialect, transport)
    with tracing.active(trace):      # around the handler, and around the creation of its task
        ...
    if trace is not None:            # once, with the code of the answer
        trace.end(code)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from execprotocol.trace_context import trace_parent
from execserver.telemetry.logs import Logger, bound_fields

if TYPE_CHECKING:
    from execserver.telemetry.spans import RequestSpan, SpanRecorder

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

log = Logger()


class RequestTrace:
    """The trace of one request."""

    __slots__ = ("_fields", "_span")

    def __init__(self, trace_id: str, span_id: str, span: RequestSpan | None) -> None:
        self._fields = {"trace_id": trace_id, "span_id": span_id}
        self._span = span

    def active(self) -> AbstractContextManager[None]:
        """Add `trace_id` and `span_id` to all log lines inside, also to those of tasks created inside. May be
        entered more than once.
        """
        return bound_fields(**self._fields)

    def end(self, code: int) -> None:
        """The request was answered with a result (0) or an error of this code."""
        if self._span is not None:
            self._span.end(code)


_UNTRACED: Final[AbstractContextManager[Any]] = nullcontext()
_recorder: SpanRecorder | None = None


def begin(method: str, trace: Mapping[str, Any] | None, dialect: str, transport: str) -> RequestTrace | None:
    """Begin the trace of a request that has just arrived; None if it has none.

    Args:
        method: a name of the method table, or `unknown`; the name of the span.
        trace: the decoded `trace` member of the request.
        dialect: `lean` or `standard`.
        transport: one of `measures.TRANSPORT_KINDS`.
    """
    if trace is None and _recorder is None:
        return None
    parent = None if trace is None else trace_parent(trace)
    if _recorder is None:
        return None if parent is None else RequestTrace(parent.trace_id, parent.span_id, None)
    span = _recorder.start(method, parent, dialect, transport)
    return RequestTrace(span.trace_id, span.span_id, span)


def recording() -> bool:
    """Whether every request has a trace, also one without a trace context."""
    return _recorder is not None


def named(headers: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Add the ids of the trace that an HTTP request names, if any, to all log lines inside."""
    parent = trace_parent(headers)
    return active(None if parent is None else RequestTrace(parent.trace_id, parent.span_id, None))


def outgoing(name: str) -> AbstractContextManager[object]:
    """A span of a request of ours to another service. Inside, `trace_context.active_headers` names it.

    Args:
        name: of the span. Without OpenTelemetry there is none.
    """
    return _UNTRACED if _recorder is None else _recorder.outgoing(name)


def active(trace: RequestTrace | None) -> AbstractContextManager[None]:
    """`trace.active()`, or nothing for None."""
    return _UNTRACED if trace is None else trace.active()


def configure(environment: Mapping[str, str] = os.environ) -> None:
    """Record spans if OpenTelemetry's own variables ask for it: an OTLP endpoint, or
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
    """Send the recorded spans, for at most `seconds`. Blocks; call it at the end of the daemon."""
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
