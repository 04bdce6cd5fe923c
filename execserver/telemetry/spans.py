"""OpenTelemetry: a span for each request, of a client or to a relay, sent in batches by a thread of the SDK.

The only module that imports OpenTelemetry; `telemetry/tracing.py` loads it if it is configured. A span has
method, dialect, transport and outcome, and never parameters, paths, ids of sessions or processes, or output.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from execprotocol.trace_context import TraceParent
from execserver import __version__
from execserver.telemetry.logs import Logger

_LIBRARIES = ("opentelemetry", "urllib3")

log = Logger()


class RequestSpan:
    """The span of one request."""

    __slots__ = ("_span", "span_id", "trace_id")

    def __init__(self, span: trace.Span) -> None:
        context = span.get_span_context()
        self._span = span
        self.trace_id = trace.format_trace_id(context.trace_id)
        self.span_id = trace.format_span_id(context.span_id)

    def end(self, code: int) -> None:
        """End the span with the code of the answer; 0 for a result."""
        if code:
            self._span.set_attribute("rpc.jsonrpc.error_code", code)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


class SpanRecorder:
    """Records spans and sends them to the collector that the `OTEL_*` variables name."""

    def __init__(self) -> None:
        _redirect_library_logs()
        attributes = {SERVICE_VERSION: __version__}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            attributes[SERVICE_NAME] = "execserver"
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("execserver", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def start(self, method: str, parent: TraceParent | None, dialect: str, transport: str) -> RequestSpan:
        """Begin the span of a request, below the client's span if there is one."""
        context = None if parent is None else self._propagator.extract(parent.headers)
        attributes = {
            "rpc.system": "jsonrpc",
            "rpc.method": method,
            "execserver.dialect": dialect,
            "execserver.transport": transport,
        }
        span = self._tracer.start_span(method, context, trace.SpanKind.SERVER, attributes)
        return RequestSpan(span)

    @contextmanager
    def outgoing(self, name: str) -> Iterator[None]:
        """A span of a request to another service, active inside. It has no text of an exception."""
        with self._tracer.start_as_current_span(
            name, kind=trace.SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except Exception:
                span.set_status(trace.StatusCode.ERROR)
                raise

    def close(self, seconds: float) -> None:
        """Send the remaining spans, for at most `seconds`."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(seconds)


class _LogHandler(logging.Handler):
    """Passes the libraries' log records to our log: the library's name and the text without its arguments,
    which may be a header with a token.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        log.warning("sending spans", library=record.name, text=str(record.msg))


def _redirect_library_logs() -> None:
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers = [_LogHandler(logging.WARNING)]
        logger.propagate = False
