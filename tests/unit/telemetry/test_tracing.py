"""Trace contexts: what is one, and which log lines carry it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import LogCapture

from execprotocol.trace_context import TraceParent, parse_traceparent
from execserver.telemetry import tracing
from execserver.telemetry.logs import Logger
from execserver.telemetry.tracing import RequestTrace, spans_wanted

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{SPAN}-01"


def test_a_traceparent_says_trace_span_and_whether_it_is_sampled() -> None:
    assert parse_traceparent(HEADER) == TraceParent(TRACE, SPAN, True)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == TraceParent(TRACE, SPAN, False)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-fe") == TraceParent(TRACE, SPAN, False)


def test_a_later_version_may_say_more() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01") == TraceParent(TRACE, SPAN, True)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01-what the future brings") == TraceParent(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" {HEADER}",
        f"ff-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}0-01",
        f"00-{TRACE}-{SPAN}-0g",
        "00-\u0660af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_what_is_no_traceparent_is_treated_as_absent(value: str) -> None:
    assert parse_traceparent(value) is None
    assert tracing.begin("initialize", {"traceparent": value}, "lean", "unix") is None


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"))
def test_no_text_makes_the_parser_fail(value: str) -> None:
    parent = parse_traceparent(value)

    assert parent is None or f"-{parent.trace_id}-{parent.span_id}-" in value


@pytest.mark.parametrize("trace", [None, {}, {"traceparent": None}, {"tracestate": "a=b"}])
def test_a_request_without_a_context_has_no_trace(trace: Mapping[str, Any] | None) -> None:
    assert tracing.begin("initialize", trace, "lean", "unix") is None


@pytest.fixture
def captured() -> Iterator[LogCapture]:
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[capture])
    yield capture
    structlog.configure(**before)


def begin(trace_id: str) -> RequestTrace:
    trace = tracing.begin("initialize", {"traceparent": f"00-{trace_id}-{SPAN}-01"}, "lean", "unix")
    assert trace is not None
    return trace


def test_log_lines_of_a_traced_request_carry_its_ids_and_others_do_not(captured: LogCapture) -> None:
    log = Logger(connection=1)

    log.warning("before")
    with tracing.active(begin(TRACE)):
        log.warning("within")
    with tracing.active(None):
        log.warning("after")

    before, within, after = captured.entries
    assert (within["trace_id"], within["span_id"], within["connection"]) == (TRACE, SPAN, 1)
    assert not {"trace_id", "span_id"} & {*before, *after}


async def test_a_task_created_within_keeps_its_own_context_beside_others(captured: LogCapture) -> None:
    log = Logger()
    go_on = asyncio.Event()

    async def work(name: str) -> None:
        await go_on.wait()
        log.warning(name)

    tasks = []
    for name, trace_id in (("one", "1" * 32), ("two", "2" * 32)):
        with tracing.active(begin(trace_id)):
            tasks.append(asyncio.get_running_loop().create_task(work(name)))
    tasks.append(asyncio.get_running_loop().create_task(work("none")))
    go_on.set()
    await asyncio.gather(*tasks)

    told = {entry["event"]: entry.get("trace_id") for entry in captured.entries}
    assert told == {"one": "1" * 32, "two": "2" * 32, "none": None}


def test_a_trace_may_be_active_again_later(captured: LogCapture) -> None:
    log, trace = Logger(), begin(TRACE)

    for _ in range(2):
        with tracing.active(trace):
            log.warning("again")
    trace.end(0)

    assert [entry["trace_id"] for entry in captured.entries] == [TRACE, TRACE]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_opentelemetrys_own_variables_decide_about_spans(environment: dict[str, str], wanted: bool) -> None:
    assert spans_wanted(environment) is wanted
