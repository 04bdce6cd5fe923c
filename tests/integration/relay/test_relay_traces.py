"""A trace goes through a relay: into its log lines, and from the client's span to that of the executor."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from execclient import connect
from execclient.sync import connect as connect_blocking
from tests.support.relay_service import wait_until
from tests.support.relayed_server import RelayedServer
from tests.support.span_collector import SpanCollector
from tests.support.wire import PATIENCE

tracer = TracerProvider().get_tracer("a host of an agent")


@pytest.fixture(scope="module")
def collector() -> Iterator[SpanCollector]:
    collector = SpanCollector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def server(collector: SpanCollector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedServer]:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with RelayedServer(tmp_path_factory.mktemp("relay") / "state", env=variables) as server:
        yield server


def lines_of(server: RelayedServer, trace_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.relay.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("trace_id") == trace_id]


def requests_of(server: RelayedServer, trace_id: str) -> list[str]:
    return [
        line["path"].rpartition("/")[2] for line in lines_of(server, trace_id) if line["event"] == "request"
    ]


def ended(server: RelayedServer, trace_id: str) -> bool:
    return any(line["event"] == "client disconnected" for line in lines_of(server, trace_id))


@pytest.mark.statement("R30")
async def test_the_relay_logs_the_trace_of_a_client_and_the_executor_continues_it(
    server: RelayedServer, collector: SpanCollector
) -> None:
    with tracer.start_as_current_span("turn") as turn:
        async with connect(server.client_url, token=server.client_token) as executor:
            await executor.fs.write_bytes("/dev/null", b"")
    context = turn.get_span_context()
    trace_id, span_id = format_trace_id(context.trace_id), format_span_id(context.span_id)
    await asyncio.to_thread(wait_until, lambda: ended(server, trace_id))

    written = await asyncio.to_thread(collector.wait_for_span, "fs/writeFile")

    assert (written.trace_id.hex(), written.parent_span_id.hex()) == (trace_id, span_id)
    assert requests_of(server, trace_id)[0] == "connect"
    lines = lines_of(server, trace_id)
    assert [line["event"] for line in lines if line["event"].startswith("client")] == [
        "client connected",
        "client disconnected",
    ]
    assert {line["span_id"] for line in lines} == {span_id}


def test_a_blocking_client_sends_the_trace_of_its_thread(server: RelayedServer) -> None:
    with (
        tracer.start_as_current_span("turn") as turn,
        connect_blocking(server.client_url, token=server.client_token) as executor,
    ):
        executor.run(["true"])
    trace_id = format_trace_id(turn.get_span_context().trace_id)

    wait_until(lambda: ended(server, trace_id))

    assert "connect" in requests_of(server, trace_id)


def test_requests_of_the_executor_are_spans_that_the_relay_logs(
    server: RelayedServer, collector: SpanCollector
) -> None:
    with connect_blocking(server.client_url, token=server.client_token) as executor:
        executor.run(["true"])

    registered, validated = map(collector.wait_for_span, ("relay/register", "relay/validate"))

    assert registered.kind == validated.kind == Span.SPAN_KIND_CLIENT
    wait_until(lambda: requests_of(server, registered.trace_id.hex()) == ["register"])
    wait_until(lambda: requests_of(server, validated.trace_id.hex()) == ["validate"])
    (connected,) = [
        line for line in lines_of(server, registered.trace_id.hex()) if line["event"] == "executor connected"
    ]
    assert connected["span_id"] == registered.span_id.hex()


@pytest.mark.statement("R30")
@pytest.mark.parametrize("header", ["", "00-0af7651916cd43dd8448eb211c80319c", "x\\u00e9 traceparent"])
def test_a_header_that_is_not_valid_is_treated_as_absent(server: RelayedServer, header: str) -> None:
    before = server.relay.log
    request = urllib.request.Request(f"{server.relay.url}/nowhere", headers={"traceparent": header})

    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(request, timeout=PATIENCE)

    wait_until(lambda: "/nowhere" in server.relay.log[len(before) :])
    (line,) = [line for line in server.relay.log[len(before) :].splitlines() if "/nowhere" in line]
    assert "trace_id" not in json.loads(line)


def test_a_client_without_a_trace_leaves_none(server: RelayedServer) -> None:
    before = server.relay.log

    with connect_blocking(server.client_url, token=server.client_token) as executor:
        executor.run(["true"])

    wait_until(lambda: "client disconnected" in server.relay.log[len(before) :])
    lines = [json.loads(line) for line in server.relay.log[len(before) :].splitlines()]
    assert [line for line in lines if line["event"].startswith("client")]
    assert not [line for line in lines if "trace_id" in line and line["event"].startswith("client")]
