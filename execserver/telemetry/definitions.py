"""The daemon's metrics: the table of all of them with name, help text and source, and the gauges they read.

Reading all numbers takes 0.1 ms and happens on the loop's thread, which writes them. The text of the page
takes milliseconds, and the first one 50 ms for loading a library: a thread makes it (`exposition.py`).
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable, Iterable
from itertools import accumulate

import msgspec

from execserver import __version__
from execserver.telemetry.exposition import Distribution, Labels, MetricKind, Number, Reading, Readings
from execserver.telemetry.measures import LATENCY_BUCKETS, Measures, RequestCounts


class Gauges(msgspec.Struct, frozen=True):
    """Live values of the daemon, each a cheap call on the loop's thread."""

    stopping: Callable[[], bool]
    """Whether the service has begun to end."""
    draining: Callable[[], bool]
    """Whether no new sessions are opened."""
    sessions: Callable[[], int]
    """Sessions, attached or detached."""
    connections: Callable[[], int]
    processes: Callable[[], int]
    """Processes that are not closed."""
    retained_output_bytes: Callable[[], int]
    """Output kept in memory for all processes."""
    retained_output_limit_bytes: int
    """The limit of that, above which the oldest output is dropped."""
    queued_input_bytes: Callable[[], int]
    """Input accepted for processes that have not read it yet."""
    started: float = msgspec.field(default_factory=time.monotonic)
    """When the server began, on the monotonic clock."""

    @property
    def uptime_seconds(self) -> float:
        """How long the server has run."""
        return time.monotonic() - self.started


def filesystem_threads() -> int:
    """The number of threads for blocking calls. A thread is added only when all others are busy, so this is
    the largest number of calls that ever ran at once.
    """
    return sum(thread.name.startswith("filesystem") for thread in threading.enumerate())


class Definition(msgspec.Struct, frozen=True):
    """One metric. The name of a counter ends in `_total`, and units are Prometheus' base units."""

    name: str
    kind: MetricKind
    help: str
    read: Callable[[Measures, Gauges], Iterable[Reading]]
    labels: Labels = ()


# -- how each is read


def _measured(name: str) -> Callable[[Measures, Gauges], Iterable[Number]]:
    """A number of `Measures`, or one for each key of a dictionary."""

    def read(measures: Measures, gauges: Gauges) -> Iterable[Number]:
        found = getattr(measures, name)
        if isinstance(found, dict):
            return [Number((key,), value) for key, value in found.items()]
        return [Number((), found)]

    return read


def _held(read: Callable[[Gauges], float]) -> Callable[[Measures, Gauges], Iterable[Number]]:
    return lambda measures, gauges: [Number((), read(gauges))]


def _requests(measures: Measures, gauges: Gauges) -> Iterable[Number]:
    for method, counts in measures.requests.items():
        for code, count in counts.codes.items():
            yield Number((method, str(code) if code else "ok"), count)


def _durations(measures: Measures, gauges: Gauges) -> Iterable[Distribution]:
    return [distribution((method,), counts) for method, counts in measures.requests.items() if counts.codes]


def _open_connections(measures: Measures, gauges: Gauges) -> Iterable[Number]:
    for kind, opened in measures.connections_opened.items():
        yield Number((kind,), opened - measures.connections_closed[kind])


def _build(measures: Measures, gauges: Gauges) -> Iterable[Number]:
    return [Number((__version__, platform.python_version()), 1)]


def _threads(measures: Measures, gauges: Gauges) -> Iterable[Number]:
    return [Number((), filesystem_threads())]


def distribution(labels: Labels, counts: RequestCounts) -> Distribution:
    """The histogram of requests of one kind."""
    bounds = [*map(bucket_bound, LATENCY_BUCKETS), "+Inf"]
    return Distribution(labels, tuple(zip(bounds, accumulate(counts.buckets), strict=True)), counts.seconds)


def bucket_bound(seconds: float) -> str:
    """The upper bound of a bucket, as text for the page."""
    return f"{seconds:.5f}".rstrip("0").rstrip(".")


DEFINITIONS: tuple[Definition, ...] = (
    Definition("execserver_build_info", "gauge", "Always 1.", _build, ("version", "python")),
    Definition(
        "execserver_uptime_seconds",
        "gauge",
        "Seconds since the server process began.",
        _held(lambda gauges: gauges.uptime_seconds),
    ),
    Definition(
        "execserver_stopping",
        "gauge",
        "1 once the service is stopping.",
        _held(lambda gauges: gauges.stopping()),
    ),
    Definition(
        "execserver_draining",
        "gauge",
        "1 while the service drains: it opens no new sessions.",
        _held(lambda gauges: gauges.draining()),
    ),
    Definition(
        "execserver_requests_total",
        "counter",
        "Requests answered. The code is `ok` or the error code of the wire.",
        _requests,
        ("method", "code"),
    ),
    Definition(
        "execserver_request_duration_seconds",
        "histogram",
        "From the arrival of a request to its answer. A waiting `process/read` takes as long as it waits.",
        _durations,
        ("method",),
    ),
    Definition(
        "execserver_parse_errors_total",
        "counter",
        "Messages that could not be parsed.",
        _measured("parse_errors"),
    ),
    Definition(
        "execserver_received_bytes_total",
        "counter",
        "Bytes read from connections, framing included.",
        _measured("received_bytes"),
    ),
    Definition(
        "execserver_sent_bytes_total",
        "counter",
        "Bytes written to connections, framing included.",
        _measured("sent_bytes"),
    ),
    Definition(
        "execserver_connections_opened_total",
        "counter",
        "Connections opened, once their protocol is known.",
        _measured("connections_opened"),
        ("transport",),
    ),
    Definition(
        "execserver_connections", "gauge", "Connections that are open.", _open_connections, ("transport",)
    ),
    Definition(
        "execserver_connections_refused_total",
        "counter",
        "Peers refused: the HTTP status of the answer; for a local process `other-user`, `confined` (in a "
        "sandbox or a container) or `ended`; `relay` for a client behind a relay that was not admitted.",
        _measured("refusals"),
        ("reason",),
    ),
    Definition(
        "execserver_dialects_total",
        "counter",
        "Connections by the dialect of their first message: `lean` (Codex) or `standard` (JSON-RPC 2.0).",
        _measured("dialects"),
        ("dialect",),
    ),
    Definition(
        "execserver_sessions",
        "gauge",
        "Sessions, attached or detached.",
        _held(lambda gauges: gauges.sessions()),
    ),
    Definition(
        "execserver_sessions_opened_total", "counter", "Sessions opened.", _measured("sessions_opened")
    ),
    Definition(
        "execserver_sessions_resumed_total",
        "counter",
        "Detached sessions that a client resumed.",
        _measured("sessions_resumed"),
    ),
    Definition(
        "execserver_sessions_ended_total",
        "counter",
        "Sessions ended by their client or expired.",
        _measured("sessions_ended"),
    ),
    Definition(
        "execserver_processes",
        "gauge",
        "Processes that run, or whose output is still held open.",
        _held(lambda gauges: gauges.processes()),
    ),
    Definition(
        "execserver_processes_started_total",
        "counter",
        "Processes started.",
        _measured("processes_started"),
    ),
    Definition(
        "execserver_process_start_failures_total",
        "counter",
        "Starts refused by the operating system.",
        _measured("failed_starts"),
    ),
    Definition(
        "execserver_process_exits_total",
        "counter",
        "Processes that ended: with exit code 0 (`success`), another (`failure`), or by a `signal`.",
        _measured("exits"),
        ("kind",),
    ),
    Definition(
        "execserver_process_signals_total",
        "counter",
        "Process groups or leaders interrupted (`interrupt`), killed (`kill`) or sent another signal "
        "(`other`, also any but SIGKILL to all descendants of a process), and kills of all descendants of a "
        "process or a session (`tree`).",
        _measured("signals"),
        ("kind",),
    ),
    Definition(
        "execserver_kill_survivors_total",
        "counter",
        "Processes that a kill did not end within two seconds.",
        _measured("survivors"),
    ),
    Definition(
        "execserver_network_proxies_started_total",
        "counter",
        "Network proxies that were started, one a process with `networkProxy`.",
        _measured("network_proxies_started"),
    ),
    Definition(
        "execserver_network_proxies_lost_total",
        "counter",
        "Network proxies that ended before their process, which has no network since.",
        _measured("network_proxies_lost"),
    ),
    Definition(
        "execserver_network_decisions_total",
        "counter",
        "Decisions of network proxies about a host or a method.",
        _measured("network_decisions"),
        ("decision",),
    ),
    Definition(
        "execserver_output_bytes_total",
        "counter",
        "Output taken from processes.",
        _measured("output_bytes"),
    ),
    Definition(
        "execserver_output_gaps_total",
        "counter",
        "Reports to clients that output is lost (`lostBytes`).",
        _measured("gaps"),
    ),
    Definition("execserver_output_gap_bytes_total", "counter", "The same, in bytes.", _measured("gap_bytes")),
    Definition(
        "execserver_retained_output_bytes",
        "gauge",
        "Output kept for all processes.",
        _held(lambda gauges: gauges.retained_output_bytes()),
    ),
    Definition(
        "execserver_retained_output_limit_bytes",
        "gauge",
        "The limit of that.",
        _held(lambda gauges: gauges.retained_output_limit_bytes),
    ),
    Definition(
        "execserver_stdin_bytes_total",
        "counter",
        "Input accepted for processes.",
        _measured("stdin_bytes"),
    ),
    Definition(
        "execserver_stdin_queued_bytes",
        "gauge",
        "Input accepted for processes that have not read it yet.",
        _held(lambda gauges: gauges.queued_input_bytes()),
    ),
    Definition(
        "execserver_filesystem_threads",
        "gauge",
        "Threads for file-system calls, at most 128. One is added when all are busy; none ever ends.",
        _threads,
    ),
)


def take(measures: Measures, gauges: Gauges) -> list[Readings]:
    """Read every metric, on the loop's thread."""
    return [Readings(each, list(each.read(measures, gauges))) for each in DEFINITIONS]
