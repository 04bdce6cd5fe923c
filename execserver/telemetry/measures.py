"""What the daemon counts. Plain integers on one object, so that counting costs next to nothing.

Rules kept in this file:

1. Nothing here reads a clock, allocates per call or knows Prometheus: `telemetry/definitions.py` turns
   the numbers into a page when somebody asks for it.
2. No key comes from a client. Methods are counted by the names of the method table, everything else
   by the words written down here; what is not among them is `unknown`.
3. All counting happens on the loop's thread.

There is one daemon a process, so there is one instance, `measures`, as there is one log. Passing it
through every constructor down to the output logs would say nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal

from execprotocol.methods import METHODS

TransportKind = Literal["stdio", "unix", "unix-websocket", "websocket", "relay"]
"""How a connection reaches us: newline JSON on stdio or a Unix socket, WebSocket on either socket, or a
stream through a relay."""

Dialect = Literal["lean", "standard"]
ExitKind = Literal["success", "failure", "signal"]
SignalKind = Literal["interrupt", "kill", "tree", "other"]

TRANSPORT_KINDS: Final[tuple[TransportKind, ...]] = (
    "stdio", "unix", "unix-websocket", "websocket", "relay",
)  # fmt: skip
DIALECTS: Final[tuple[Dialect, ...]] = ("lean", "standard")
EXIT_KINDS: Final[tuple[ExitKind, ...]] = ("success", "failure", "signal")
SIGNAL_KINDS: Final[tuple[SignalKind, ...]] = ("interrupt", "kill", "tree", "other")

UNKNOWN_METHOD: Final = "unknown"
"""The method of a request whose method is not in the table."""

LATENCY_BUCKETS: Final = (
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0,
)  # fmt: skip
"""Upper bounds, in seconds. A round trip without waiting takes some 50 us; long polls last a minute."""


class RequestCounts:
    """The finished requests of one method."""

    __slots__ = ("buckets", "codes", "seconds")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        """How many ended with each code of the wire; 0 is success."""
        self.buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        """How many took at most so long, each request in one bucket; the last is for the rest."""
        self.seconds = 0.0
        """What they took together."""

    def add(self, seconds: float, code: int) -> None:
        """One was answered, so long after its arrival, with that code."""
        self.codes[code] = self.codes.get(code, 0) + 1
        self.buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.seconds += seconds


class Measures:
    """Everything that is counted, from the start of the daemon.

    The public numbers are counters: they only grow. Where a place counts often, it adds to them
    directly (`measures.output_bytes += size`).
    """

    def __init__(self) -> None:
        self.requests = {name: RequestCounts() for name in (*METHODS, UNKNOWN_METHOD)}
        self._unknown = self.requests[UNKNOWN_METHOD]
        self.connections_opened: dict[str, int] = dict.fromkeys(TRANSPORT_KINDS, 0)
        self.connections_closed: dict[str, int] = dict.fromkeys(TRANSPORT_KINDS, 0)
        self.dialects: dict[str, int] = dict.fromkeys(DIALECTS, 0)
        self.refusals: dict[str, int] = {}
        """Connections that were refused, by HTTP status, or as in `connection_refused`."""
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
        """Processes that a kill did not end within its time."""
        self.output_bytes = 0
        """Output taken from processes."""
        self.gaps = 0
        """Times that a client was told of output it can no longer get."""
        self.gap_bytes = 0
        self.stdin_bytes = 0
        """Input accepted for processes."""

    def request_done(self, method: str, seconds: float, code: int) -> None:
        """A request was answered. One whose connection ended before is not counted.

        Args:
            method: a name of the method table; anything else counts as `unknown`.
            seconds: from the arrival of the message to its answer.
            code: the error code of the answer; 0 for a result.
        """
        self.requests.get(method, self._unknown).add(seconds, code)

    def connection_opened(self, kind: TransportKind) -> None:
        """A peer has a channel."""
        self.connections_opened[kind] += 1

    def connection_closed(self, kind: TransportKind) -> None:
        """A channel has ended; once for each `connection_opened`."""
        self.connections_closed[kind] += 1

    def connection_refused(self, reason: str) -> None:
        """A peer was sent away: the HTTP status of our answer, `other-user`, `confined`, `ended`, `relay`."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def dialect_chosen(self, dialect: Dialect) -> None:
        """The first message of a connection fixed its dialect."""
        self.dialects[dialect] += 1

    def parse_error(self) -> None:
        """A message could not be read."""
        self.parse_errors += 1

    def received(self, bytes_: int) -> None:
        """One read of a channel brought so many bytes."""
        self.received_bytes += bytes_

    def sent(self, bytes_: int) -> None:
        """One write of a channel took so many bytes."""
        self.sent_bytes += bytes_

    def process_exited(self, exit_code: int, *, by_signal: bool) -> None:
        """The leader of a process was reaped."""
        self.exits["signal" if by_signal else "failure" if exit_code else "success"] += 1

    def gap(self, bytes_: int) -> None:
        """A client was told that so many bytes of output are lost to it."""
        self.gaps += 1
        self.gap_bytes += bytes_


measures: Final = Measures()
"""The daemon's."""
