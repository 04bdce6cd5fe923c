"""The metrics page, read by Prometheus' own parsers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from execserver.telemetry.definitions import DEFINITIONS, Gauges, take
from execserver.telemetry.exposition import render
from execserver.telemetry.measures import LATENCY_BUCKETS, Measures
from tools.wire_docs.metrics_reference import reference

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def gauges(sessions: int = 2, stopping: bool = False) -> Gauges:
    return Gauges(
        stopping=lambda: stopping,
        draining=lambda: False,
        sessions=lambda: sessions,
        connections=lambda: 3,
        processes=lambda: 4,
        retained_output_bytes=lambda: 5,
        retained_output_limit_bytes=6,
        queued_input_bytes=lambda: 7,
    )


def text(measures: Measures, accept: str = "", held: Gauges | None = None) -> tuple[str, str]:
    content_type, body = render(take(measures, held or gauges()), accept)
    return content_type, body.decode()


def page(measures: Measures, held: Gauges | None = None) -> dict[str, Metric]:
    return {family.name: family for family in parse_text(text(measures, held=held)[1])}


def value(families: dict[str, Metric], family: str, **labels: str) -> float:
    (found,) = [sample.value for sample in families[family].samples if sample.labels == labels]
    return found


def test_what_is_counted_and_held_is_on_the_page() -> None:
    measures = Measures()
    measures.request_done("fs/walk", 0.2, -32004)
    measures.connection_opened("unix")
    measures.connection_opened("unix")
    measures.connection_closed("unix")
    measures.connection_refused("401")
    measures.gap(1000)
    measures.received(11)

    families = page(measures, gauges(sessions=9, stopping=True))

    assert value(families, "execserver_requests", method="fs/walk", code="-32004") == 1
    assert value(families, "execserver_connections", transport="unix") == 1
    assert value(families, "execserver_connections_opened", transport="unix") == 2
    assert value(families, "execserver_connections_refused", reason="401") == 1
    assert value(families, "execserver_output_gaps") == 1
    assert value(families, "execserver_output_gap_bytes") == 1000
    assert value(families, "execserver_received_bytes") == 11
    assert value(families, "execserver_sessions") == 9
    assert value(families, "execserver_stopping") == 1
    assert value(families, "process_open_fds") > 0


def test_a_histogram_counts_upwards_to_all_requests() -> None:
    measures = Measures()
    for seconds in (0.000_01, 0.2, 1000.0):
        measures.request_done("fs/walk", seconds, 0)

    samples = page(measures)["execserver_request_duration_seconds"].samples
    buckets = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    rest = {sample.name.rpartition("_")[2]: sample.value for sample in samples if "le" not in sample.labels}

    assert buckets == sorted(buckets)
    assert len(buckets) == len(LATENCY_BUCKETS) + 1
    assert (buckets[0], buckets[-2], buckets[-1]) == (1, 2, 3)
    assert rest == {"count": 3, "sum": pytest.approx(1000.200_01)}


def test_the_format_is_what_accept_asks_for() -> None:
    plain_type, plain = text(Measures())
    other_type, other = text(Measures(), "application/openmetrics-text; version=1.0.0, text/plain;q=0.5")

    assert plain_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in plain
    assert other_type.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in parse_openmetrics(other)}  # type: ignore[no-untyped-call]
    assert names >= {"execserver_requests", "process_open_fds"}


def test_what_is_read_is_not_changed_by_what_is_counted_later() -> None:
    measures = Measures()
    measures.request_done("fs/walk", 0.1, 0)
    readings = take(measures, gauges())

    measures.request_done("fs/walk", 0.1, -32004)
    measures.connection_opened("unix")

    assert b'code="-32004"' not in render(readings, "").body
    assert b'execserver_connections{transport="unix"} 0.0' in render(readings, "").body


def test_names_follow_the_conventions() -> None:
    names = [each.name for each in DEFINITIONS]

    assert len(set(names)) == len(names)
    for each in DEFINITIONS:
        assert re.fullmatch(r"execserver_[a-z]+(_[a-z]+)*", each.name)
        assert each.name.endswith("_total") == (each.kind == "counter"), each.name
        assert each.help.endswith(".")
        assert "|" not in each.help  # it stands in a table


def test_the_reference_page_is_what_the_definitions_say() -> None:
    assert REFERENCE.read_text() == reference(), "run `make schemas`"


def test_neither_prometheus_nor_opentelemetry_is_loaded_by_the_server() -> None:
    check = (
        "import sys, execserver.server; from execserver.telemetry import tracing; tracing.configure({}); "
        "print([name for name in ('prometheus_client', 'opentelemetry', 'requests') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_making_the_page_starts_no_thread_and_opens_nothing() -> None:
    script = """
import os, threading
from execserver.telemetry.definitions import take
from execserver.telemetry.exposition import render
from execserver.telemetry.measures import measures
from tests.unit.telemetry.test_metrics import gauges
before = len(os.listdir("/proc/self/fd"))
render(take(measures, gauges()), "")
print(threading.active_count(), len(os.listdir("/proc/self/fd")) - before)
"""
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )

    assert done.stdout == "1 0\n"
