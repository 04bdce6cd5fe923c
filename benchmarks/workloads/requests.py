"""Small requests: round trips, pipelining, flood, head of line, many connections."""

import statistics
import time

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection, StalledError
from benchmarks.workloads.model import (
    INFO,
    METADATA,
    Measured,
    Row,
    Sizes,
    Workload,
    fresh_id,
    percentile,
    read,
    start,
)

WINDOW = 64
WARM_UP = 300
# Start-up has rows of its own: a server that first answers still loads, and this row is of one that runs.
SETTLE_SECONDS = 0.5
LONG_POLL_MS = 300
# A server that deadlocks is given up after this long without progress.
FLOOD_STALL_SECONDS = 4.0


def _round_trip(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    frame = connection.frame(METADATA)
    time.sleep(SETTLE_SECONDS)
    for _ in range(WARM_UP):
        connection.send(frame)
        connection.receive()
    times = []
    for _ in range(sizes.round_trips):
        began = time.perf_counter()
        connection.send(frame)
        connection.receive()
        times.append(time.perf_counter() - began)
    return {"rtt_p50": percentile(times, 0.5) * 1e6, "rtt_p99": percentile(times, 0.99) * 1e6}


def _numbered(connection: Connection, request: bytes, count: int) -> list[bytes]:
    """The same request under `count` ids."""
    return [connection.frame(request.replace(b'"id":5', b'"id":%d' % (100 + i), 1)) for i in range(count)]


def _pipelined(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    measured = {}
    for row, request in (("pipelined_metadata", METADATA), ("pipelined_info", INFO)):
        frames = _numbered(connection, request, sizes.pipelined)
        connection.exchange(frames[:500], window=WINDOW)
        began = time.perf_counter()
        connection.exchange(frames, window=WINDOW)
        measured[row] = sizes.pipelined / (time.perf_counter() - began)
    return measured


def _flood(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    frames = _numbered(connection, INFO, sizes.pipelined)
    began = time.perf_counter()
    try:
        connection.exchange(frames, stalled_after=FLOOD_STALL_SECONDS)
    except StalledError:
        return {"flood": 0.0}
    return {"flood": sizes.pipelined / (time.perf_counter() - began)}


def _long_poll(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> float:
    process = fresh_id()
    connection.send(connection.frame(start(process, ["/bin/sleep", "100"])))
    connection.expect(b'"id":7')
    poll = connection.frame(read(process, max_bytes=1, wait_ms=LONG_POLL_MS))
    small = connection.frame(b'{"id":32,"method":"environment/info"}')
    times = []
    for _ in range(5):
        began = time.perf_counter()
        connection.send(poll + small)
        overtaken = connection.expect(b'"id":32') == 1
        times.append(time.perf_counter() - began)
        if overtaken:
            connection.expect(b'"id":31')
    return statistics.median(times) * 1e3


def _behind_long_poll(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    return {"behind_long_poll": _long_poll(server, connection, sizes)}


def _behind_long_poll_concurrent(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    return {"behind_long_poll_64": _long_poll(server, connection, sizes)}


def _connections(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    began = time.perf_counter()
    peers = [server.connect() for _ in range(sizes.connections)]
    connected = time.perf_counter() - began
    frame = connection.frame(METADATA)
    times = []
    for turn in range(6):
        for peer in peers:
            sent = time.perf_counter()
            peer.send(frame)
            peer.receive()
            if turn:
                times.append(time.perf_counter() - sent)
    turns, burst = 10, 10
    frames = frame * burst
    began = time.perf_counter()
    for _ in range(turns):
        for peer in peers:
            peer.send(frames)
        for peer in peers:
            peer.skip(burst)
    rate = turns * burst * len(peers) / (time.perf_counter() - began)
    resident = server.memory().resident
    for peer in peers:
        peer.close()
    return {
        "connections_open": connected * 1e3,
        "connections_rtt": percentile(times, 0.5) * 1e6,
        "connections_rate": rate,
        "connections_rss": resident,
    }


WORKLOADS = (
    Workload(
        "rtt",
        _round_trip,
        (
            Row("rtt_p50", "small RTT, fs/getMetadata, p50", "µs"),
            Row("rtt_p99", "small RTT, fs/getMetadata, p99", "µs"),
        ),
    ),
    Workload(
        "pipelined",
        _pipelined,
        (
            Row("pipelined_metadata", "pipelined fs/getMetadata, window 64", "req/s", "higher"),
            Row("pipelined_info", "pipelined environment/info, window 64", "req/s", "higher"),
        ),
    ),
    Workload("flood", _flood, (Row("flood", "flood of 10,000 without a window", "req/s", "higher"),)),
    Workload(
        "long_poll",
        _behind_long_poll,
        (Row("behind_long_poll", "small RTT behind a 300 ms long poll", "ms"),),
    ),
    Workload(
        "long_poll_64",
        _behind_long_poll_concurrent,
        (Row("behind_long_poll_64", "… reference with --concurrent-requests 64", "ms"),),
        reference_options="--concurrent-requests 64",
    ),
    Workload(
        "connections",
        _connections,
        (
            Row("connections_open", "200 connections: open all", "ms"),
            Row("connections_rtt", "200 connections: RTT p50", "µs"),
            Row("connections_rate", "200 connections: rate", "req/s", "higher"),
            Row("connections_rss", "200 connections: RSS", "MiB"),
        ),
        frozenset({"ws", "unix"}),
    ),
)
