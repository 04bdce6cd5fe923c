"""The Grafana dashboards ask for metrics and labels that exist, and real pages have each of their series."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggModifierType, AggregateExpr, Expr, MatchOp, MatrixSelector, VectorSelector

from execclient import AccessDenied
from execclient.sync import connect
from execserver.relay.service.control_socket import ask_relay
from execserver.telemetry.definitions import DEFINITIONS
from execserver.telemetry.exposition import Described
from execserver.telemetry.relay_definitions import RELAY_DEFINITIONS
from tests.conftest import StartServer
from tests.integration.test_health_pages import ask
from tests.interop.relay_peers import Peer
from tests.support.nats_servers import NatsServers
from tests.support.relay_service import RelayService
from tests.support.relayed_server import RelayedServer
from tests.support.wire import UpgradeRefusedError, server_command

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
TABLES: Mapping[str, Sequence[Described]] = {"daemon": DEFINITIONS, "relay-fleet": RELAY_DEFINITIONS}

OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus adds to each series of a page."""

OF_PROCESSES = (
    "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds",
)  # fmt: skip

VARIABLES = {"$__rate_interval": "1m", "$job": ".+", "$instance": ".+"}


class Query(NamedTuple):
    panel: str
    text: str
    expression: Expr


def dashboard(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def queries(name: str) -> Iterator[Query]:
    """Each query of a panel, and each selector that gives a variable its values, as Grafana sends them."""
    board = dashboard(name)
    asked = [(panel["title"], each["expr"]) for panel in board["panels"] for each in panel.get("targets", ())]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert found[2] in OF_TARGETS
            asked.append((variable["name"], found[1]))
    for panel, text in asked:
        for variable, value in VARIABLES.items():
            text = text.replace(variable, value)
        assert "$" not in text, panel
        yield Query(panel, text, promql_parser.parse(text))


def selectors(expression: Expr) -> list[VectorSelector]:
    found: list[VectorSelector] = []

    def visit(node: Expr) -> None:
        if isinstance(node, VectorSelector):
            found.append(node)
        elif isinstance(node, MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(expression, visit)
    return found


def aggregations(expression: Expr) -> list[AggregateExpr]:
    found: list[AggregateExpr] = []

    def visit(node: Expr) -> None:
        if isinstance(node, AggregateExpr):
            found.append(node)

    promql_parser.walk(expression, visit)
    return found


def series_of(name: str) -> dict[str, set[str]]:
    """Every name that a page can have, with its labels."""
    series: dict[str, set[str]] = {each: set() for each in OF_PROCESSES}
    for each in TABLES[name]:
        if each.kind == "histogram":
            series[f"{each.name}_bucket"] = {*each.labels, "le"}
            series[f"{each.name}_sum"] = series[f"{each.name}_count"] = set(each.labels)
        else:
            series[each.name] = set(each.labels)
    return {each: labels | OF_TARGETS for each, labels in series.items()}


@pytest.mark.parametrize("name", TABLES)
def test_each_query_names_metrics_and_labels_that_exist(name: str) -> None:
    known = series_of(name)

    for query in queries(name):
        found = selectors(query.expression)
        assert found, query
        for selector in found:
            assert selector.name in known, query
            assert {each.name for each in selector.matchers.matchers} <= known[selector.name], query
        for aggregation in aggregations(query.expression):
            if aggregation.modifier is not None:
                assert aggregation.modifier.type == AggModifierType.By
                grouped = set(aggregation.modifier.labels)
                assert all(grouped <= known[each.name or ""] for each in selectors(aggregation.expr)), query


@pytest.mark.parametrize("name", TABLES)
def test_each_label_of_a_legend_is_one_that_the_query_keeps(name: str) -> None:
    for panel in dashboard(name)["panels"]:
        for target in panel.get("targets", ()):
            kept = set(re.findall(r"by \(([^)]*)\)", target["expr"]))
            labels = {label.strip() for each in kept for label in each.split(",")} or OF_TARGETS
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, target


@pytest.mark.parametrize("name", TABLES)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard(name)["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


# -- against real pages


Samples = list[tuple[str, Mapping[str, str]]]


def samples_of(page: str) -> Samples:
    return [
        (sample.name, {**sample.labels, "job": "test", "instance": "here"})
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def selected(selector: VectorSelector, samples: Samples) -> bool:
    """Whether a series of the page is one that the selector asks for."""

    def matches(labels: Mapping[str, str]) -> bool:
        for each in selector.matchers.matchers:
            value = labels.get(each.name, "")
            found = value == each.value
            if each.op in (MatchOp.Re, MatchOp.NotRe):
                found = re.fullmatch(each.value, value) is not None
            if found == (each.op in (MatchOp.NotEqual, MatchOp.NotRe)):
                return False
        return True

    return any(name == selector.name and matches(labels) for name, labels in samples)


def missing(name: str, page: str) -> set[str]:
    samples = samples_of(page)
    return {
        str(selector.name)
        for query in queries(name)
        for selector in selectors(query.expression)
        if not selected(selector, samples)
    }


def test_a_daemon_has_each_series_of_its_dashboard(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("ws://127.0.0.1:0")
    with pytest.raises(UpgradeRefusedError):
        server.connect({"Origin": "https://elsewhere.example"})
    with server.connect() as client:
        client.shell("echo").wait_closed()
        client.failure(client.request("fs/readFile", {"path": f"file://{tmp_path}/none"}))
        page = ask(server, "/metrics").body.decode()

    assert missing("daemon", page) == set()


def test_a_relay_without_nats_has_each_series_but_those_of_a_fleet(tmp_path: Path) -> None:
    with RelayedServer(tmp_path / "relay") as server:
        with pytest.raises(AccessDenied), connect(server.client_url, token="wrong"):
            pass
        with connect(server.client_url, token=server.client_token) as executor:
            executor.run(["true"])
            page = ask_relay(server.relay.state, "/metrics").decode()

    of_a_fleet = re.compile(r"execserver_relay_(fleet|nats|bus|link|store|health|pool)_")
    assert [name for name in missing("relay-fleet", page) if not of_a_fleet.match(name)] == []


def test_a_relay_of_a_fleet_has_each_series_of_its_dashboard(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nats = stack.enter_context(NatsServers(tmp_path / "nats"))
        far, near = (
            stack.enter_context(RelayService(tmp_path / name, nats=("--nats", nats.url)))
            for name in ("far", "near")
        )
        pool = ("--pool", "gpu")
        variables = {"EXECSERVER_REMOTE_TOKEN": far.token("executor", flags=pool)}
        flags = ("--remote", far.url, *pool, "--capacity", "4")
        stack.enter_context(Peer([*server_command(), *flags], tmp_path / "executor", env=variables))
        url, token = f"relay+{near.url}?pool=gpu", near.token("client", flags=pool)
        with pytest.raises(AccessDenied), connect(url, token="wrong"):
            pass
        with connect(url, token=token) as executor:
            assert executor.run(["echo", "hello"]).text == "hello\n"
            samples = near.metrics()
            page = ask_relay(near.state, "/metrics").decode()

    assert missing("relay-fleet", page) == set()
    assert samples["execserver_relay_fleet_nodes"] == 2
    assert samples["execserver_relay_nats_connected"] == 1
    assert samples['execserver_relay_pool_executors{pool="gpu",state="online"}'] == 1
    assert samples['execserver_relay_pool_capacity{pool="gpu"}'] == 4
    for direction in ("in", "out"):
        frames = samples[f'execserver_relay_bus_frames_total{{direction="{direction}"}}']
        assert frames > 2
        assert samples[f'execserver_relay_bus_bytes_total{{direction="{direction}"}}'] > frames
    assert samples['execserver_relay_store_duration_seconds_count{operation="grant"}'] > 0
    assert samples['execserver_relay_store_errors_total{operation="grant"}'] == 0
    assert samples["execserver_relay_health_write_age_seconds"] < 6
