"""Trace contexts through a real daemon: into its log, and as spans to a collector."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.conftest import StartServer
from tests.support.span_collector import SpanCollector
from tests.support.wire import PATIENCE, Client, Server

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=value"}


def log_lines(server: Server, event: str) -> list[dict[str, Any]]:
    """What was logged, by its event; waits for one line at least."""
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = [json.loads(line) for line in server.stderr.splitlines() if line.startswith("{")]
        found = [line for line in lines if line["event"] == event]
        if found:
            return found
        assert time.monotonic() < deadline, f"nothing was logged of {event!r}"
        time.sleep(0.01)


def initialize(client: Client, **members: Any) -> None:
    client.result(client.request("initialize", {"clientName": "tests"}, **members))
    client.notify("initialized", {})


# -- logs


def test_log_lines_of_a_traced_request_carry_its_ids(start_server: StartServer) -> None:
    server = start_server("ws://127.0.0.1:0", "--log-level", "debug")
    with server.connect(handshake=False) as client:
        initialize(client, trace=CONTEXT)
        client.shell("true").wait_closed()

        (opened,) = log_lines(server, "session opened")
        (started,) = log_lines(server, "process started")

    assert (opened["trace_id"], opened["span_id"]) == (TRACE, PARENT)
    assert "trace_id" not in started


def test_each_request_has_the_ids_of_its_own_trace(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(f"unix://{tmp_path}/s", "--log-level", "debug")
    wanted = {f"p{n}": f"{n:032x}" for n in range(1, 9)}
    with server.connect() as client:
        for name, trace_id in wanted.items():
            trace = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
            params = client.start_params(["/bin/true"], processId=name)
            client.send({"id": name, "method": "process/start", "params": params, "trace": trace})
        for name in wanted:
            client.result(name)
            client.process(name).wait_closed()
        deadline = time.monotonic() + PATIENCE
        while len(log_lines(server, "process started")) < len(wanted):
            assert time.monotonic() < deadline
        lines = log_lines(server, "process started")

    assert {line["process"]: line.get("trace_id") for line in lines} == wanted


def test_a_context_that_is_not_valid_is_treated_as_absent(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(f"unix://{tmp_path}/s", "--log-level", "debug")
    with server.connect(handshake=False) as client:
        initialize(client, trace={"traceparent": f"00-{'0' * 32}-{PARENT}-01", "tracestate": "x"})

        (opened,) = log_lines(server, "session opened")

    assert "trace_id" not in opened


# -- spans


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    collector = SpanCollector()
    yield collector
    collector.close()


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_a_request_is_a_span_below_the_clients(start_server: StartServer, collector: SpanCollector) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    server = start_server("ws://127.0.0.1:0", "--log-level", "debug", env=env)
    with server.connect(handshake=False) as client:
        initialize(client, trace=CONTEXT)
        client.failure(client.request("fs/readFile", {"path": "file:///no/such"}, trace=CONTEXT))
        spans = collector.wait_for(2)
        (opened,) = log_lines(server, "session opened")

    good, bad = spans["initialize"], spans["fs/readFile"]
    assert [span.trace_id.hex() for span in (good, bad)] == [TRACE, TRACE]
    assert [span.parent_span_id.hex() for span in (good, bad)] == [PARENT, PARENT]
    assert good.trace_state == "vendor=value"
    assert good.kind == bad.kind == Span.SPAN_KIND_SERVER
    assert good.end_time_unix_nano > good.start_time_unix_nano
    assert (good.status.code, bad.status.code) == (Status.STATUS_CODE_UNSET, Status.STATUS_CODE_ERROR)
    assert (opened["trace_id"], opened["span_id"]) == (TRACE, good.span_id.hex())
    common = {"rpc.system": "jsonrpc", "execserver.dialect": "lean", "execserver.transport": "websocket"}
    assert attributes(good) == {**common, "rpc.method": "initialize"}
    assert attributes(bad) == {**common, "rpc.method": "fs/readFile", "rpc.jsonrpc.error_code": -32004}
    assert collector.resources[0]["service.name"] == "execserver"
    assert set(collector.requests) == {("/v1/traces", "application/x-protobuf")}


def test_a_request_without_a_context_begins_a_trace(
    start_server: StartServer, collector: SpanCollector
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "OTEL_SERVICE_NAME": "our executor",
    }
    server = start_server("ws://127.0.0.1:0", env=env)
    with server.connect() as client:
        client.refused("Xq7-never-to-be-shown")
        spans = collector.wait_for(2)

    assert set(spans) == {"initialize", "unknown"}
    assert len({span.trace_id for span in spans.values()}) == 2
    assert not any(span.parent_span_id for span in spans.values())
    assert collector.resources[0]["service.name"] == "our executor"
    assert "Xq7" not in repr(collector.spans)


def test_the_last_spans_leave_with_the_service(start_server: StartServer, collector: SpanCollector) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    server = start_server("ws://127.0.0.1:0", env=env)
    with server.connect() as client:
        client.call("environment/status")
        assert not collector.spans

    assert server.stop() == 0

    assert set(collector.wait_for(2)) == {"initialize", "environment/status"}


def test_a_client_that_does_not_sample_is_obeyed(start_server: StartServer, collector: SpanCollector) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    server = start_server("ws://127.0.0.1:0", "--log-level", "debug", env=env)
    with server.connect(handshake=False) as client:
        initialize(client, trace={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        client.call("environment/status")
        spans = collector.wait_for(1)
        (opened,) = log_lines(server, "session opened")

    assert server.stop() == 0
    assert set(spans) == {"environment/status"}
    assert opened["trace_id"] == TRACE


def test_a_collector_that_is_gone_holds_nothing_up(
    start_server: StartServer, collector: SpanCollector
) -> None:
    collector.close()
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Xq7-never-to-be-shown,broken header Xq7",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    server = start_server("ws://127.0.0.1:0", env=env)
    with server.connect() as client:
        client.call("environment/status")
        assert log_lines(server, "sending spans")
        client.call("environment/status")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0

    text = server.stderr
    assert all(line.startswith("{") for line in text.splitlines())
    assert "Xq7" not in text
