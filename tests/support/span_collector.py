"""A collector of spans for tests: what a daemon with `OTEL_EXPORTER_OTLP_ENDPOINT` sends to it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.wire import PATIENCE


class SpanCollector:
    """An OTLP collector on a port of its own. `close` it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.requests: list[tuple[str, str]] = []
        self._news = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, self.headers.get("content-type", ""), body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def wait_for_span(self, name: str) -> Span:
        """Wait until a span of this name has come."""
        with self._news:
            assert self._news.wait_for(lambda: any(span.name == name for span in self.spans), PATIENCE), name
            return next(span for span in self.spans if span.name == name)

    def take(self, path: str, content_type: str, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        with self._news:
            self.requests.append((path, content_type))
            for group in message.resource_spans:
                self.resources.append({a.key: a.value.string_value for a in group.resource.attributes})
                for scope in group.scope_spans:
                    self.spans.extend(scope.spans)
            self._news.notify_all()

    def wait_for(self, count: int) -> dict[str, Span]:
        """Wait until so many spans have come; the newest of each name."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.spans) >= count, PATIENCE), len(self.spans)
            return {span.name: span for span in self.spans}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.server_close()
