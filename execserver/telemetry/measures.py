"""The daemon's counters: plain integers on one object, so that counting costs next to nothing.

Rules kept in this file:

1. No method reads a clock, allocates or uses Prometheus: `telemetry/definitions.py` reads the numbers for a
   page.
2. No key comes from a client. Methods are counted by the names of the method table, everything else by the
   words in this file; other names count as `unknown`.
3. All counting happens on the loop's thread.

A process has one daemon, so there is one instance, `measures`, as there is one log.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal

from execprotocol.methods import METHODS

TransportKind = Literal["stdio", "unix", "unix-websocket", "websocket", "relay"]
"""The transport of a connection: newline JSON on stdio or a Unix socket, WebSocket on a Unix or TCP socket,
or a stream through a relay."""

DialectName = Literal["lean", "standard"]
ExitKind = Literal["success", "failure", "signal"]
SignalKind = Literal["interrupt", "kill", "tree", "other"]

TRANSPORT_KINDS: Final[tuple[TransportKind, ...]] = (
    "stdio", "unix", "unix-websocket", "websocket", "relay",
)  # fmt: skip
DIALECTS: Final[tuple[DialectName, ...]] = ("lean", "standard")
EXIT_KINDS: Final[tuple[ExitKind, ...]] = ("success", "failure", "signal")
DECISION_KINDS: Final = ("allow", "deny", "ask")
SIGNAL_KINDS: Final[tuple[SignalKind, ...]] = ("interrupt", "kill", "tree", "other")

UNKNOWN_METHOD: Final = "unknown"
"""The name for methods that are not in the table."""

LATENCY_BUCKETS: Final = (
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0,
)  # fmt: skip
"""Upper bounds in seconds. A round trip without waiting takes some 50 us; long polls last a minute."""


class RequestCounts:
    """The finished requests of one method."""

    __slots__ = ("buckets", "codes", "seconds")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        """Requests by the error code of the wire; 0 is success."""
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        """Requests by latency bucket, each in one bucket; the last is for all above."""
        self.seconds = 0.0
        """The sum of their durations."""

    def add(self, seconds: float, code: int) -> None:
        """Count a request that was answered after so many seconds with this code."""
        self.codes[code] = self.codes.get(code, 0) + 1
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.seconds += seconds


class Measures:
    """All counters since the start of the daemon.

    They only grow. Frequent callers add to them directly (`measures.output_bytes += size`).
    """

    def __init__(self) -> None:
        self.requests = {name: RequestCounts() for name in (*METHODS, UNKNOWN_METHOD)}
        self._unknown = self.requests[UNKNOWN_METHOD]
        self.connections_opened: dict[str, int] = dict.fromkeys(TRANSPORT_KINDS, 0)
        self.connections_closed: dict[str, int] = dict.fromkeys(TRANSPORT_KINDS, 0)
        self.dialects: dict[str, int] = dict.fromkeys(DIALECTS, 0)
        self.refusals: dict[str, int] = {}
        """Refused connections, by the reasons of `connection_refused`."""
        self.parse_errors = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.sessions_opened = 0
        self.sessions_resumed = 0
        self.sessions_ended = 0
        self.processes_started = 0
        self.failed_starts = 0
        self.exits: dict[str, int] = dict.fromkeys(EXIT_KINDS, 0)
        self.signals: dict[str, int] = dict.fromkeys(SIGNAL_KINDS, 0)
        self.survivors = 0
        self.network_proxies_started = 0
        self.network_proxies_lost = 0
        self.network_decisions: dict[str, int] = dict.fromkeys(DECISION_KINDS, 0)
        """Processes that a kill did not end in time."""
        self.output_bytes = 0
        """Output taken from processes."""
        self.gaps = 0
        """Reports to clients that output is lost."""
        self.gap_bytes = 0
        self.stdin_bytes = 0
        """Input accepted for processes."""

    def request_done(self, method: str, seconds: float, code: int) -> None:
        """Count an answered request. A request whose connection ended before is not counted.

        Args:
            method: a name of the method table; anything else counts as `unknown`.
            seconds: from the arrival of the message to its answer.
            code: the error code of the answer; 0 for a result.
        """
        self.requests.get(method, self._unknown).add(seconds, code)

    def connection_opened(self, kind: TransportKind) -> None:
        """Count a new channel."""
        self.connections_opened[kind] += 1

    def connection_closed(self, kind: TransportKind) -> None:
        """Count the end of a channel, once for each `connection_opened`."""
        self.connections_closed[kind] += 1

    def connection_refused(self, reason: str) -> None:
        """Count a refused peer, by HTTP status or `other-user`, `confined`, `ended`, `relay`."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def dialect_chosen(self, dialect: DialectName) -> None:
        """Count the dialect that the first message of a connection has chosen."""
        self.dialects[dialect] += 1

    def parse_error(self) -> None:
        """Count a message that could not be parsed."""
        self.parse_errors += 1

    def received(self, bytes_: int) -> None:
        """Count the bytes of one read of a channel."""
        self.received_bytes += bytes_

    def sent(self, bytes_: int) -> None:
        """Count the bytes of one write of a channel."""
        self.sent_bytes += bytes_

    def process_exited(self, exit_code: int, *, by_signal: bool) -> None:
        """Count a process whose leader was reaped."""
        self.exits["signal" if by_signal else "failure" if exit_code else "success"] += 1

    def gap(self, bytes_: int) -> None:
        """Count a report to a client that so many bytes of output are lost."""
        self.gaps += 1
        self.gap_bytes += bytes_


measures: Final = Measures()
"""The counters of this daemon."""
