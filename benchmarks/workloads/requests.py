"""Small requests: behind a long poll, and over many connections."""

import statistics
import time
from itertools import islice
from pathlib import Path

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.agent_day import SETTLE_SECONDS, request, requests, tree
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, percentile, read, start

EIGHT_WINDOW = 16
LONG_POLL_MS = 300


def _long_poll(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> float:
    process = fresh_id()
    connection.send(connection.frame(start(process, ["/bin/sleep", "100"])))
    connection.expect(b'"id":7')
    poll = connection.frame(read(process, max_bytes=1, wait_ms=LONG_POLL_MS))
    times = []
    for folder in ("/bin", "/etc", "/tmp", "/usr", "/var"):
        small = connection.frame(request(32, "fs/getMetadata", Path(folder)))
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


def _eight(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    project = tree()
    time.sleep(SETTLE_SECONDS)
    peers = [server.connect() for _ in range(8)]
    shares = [
        [peer.frame(message) for message in requests("fs/readFile", project.sources[number::8])]
        for number, peer in enumerate(peers)
    ]
    began = time.perf_counter()
    for start_at in range(0, len(shares[0]), EIGHT_WINDOW):
        for peer, frames in zip(peers, shares, strict=True):
            peer.send(b"".join(frames[start_at : start_at + EIGHT_WINDOW]))
        for peer, frames in zip(peers, shares, strict=True):
            peer.skip(len(frames[start_at : start_at + EIGHT_WINDOW]))
    rate = len(project.sources) / (time.perf_counter() - began)
    for peer in peers:
        peer.close()
    return {"eight_read": rate}


def _connections(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    began = time.perf_counter()
    peers = [server.connect() for _ in range(sizes.connections)]
    connected = time.perf_counter() - began
    paths = tree().flat[: sizes.pipelined]
    frames = iter(
        [connection.frame(message) for message in requests("fs/getMetadata", paths)]
        + [connection.frame(message) for message in requests("fs/readFile", paths)]
    )
    times = []
    for turn in range(6):
        for peer in peers:
            frame = next(frames)
            sent = time.perf_counter()
            peer.send(frame)
            peer.receive()
            if turn:
                times.append(time.perf_counter() - sent)
    turns, burst = sizes.pipelined // len(peers) // 8, 8
    began = time.perf_counter()
    for _ in range(turns):
        for peer in peers:
            peer.send(b"".join(islice(frames, burst)))
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
        "eight",
        _eight,
        (Row("eight_read", "fs/readFile of 0.1 to 2.5 KB over 8 connections", "req/s", "higher"),),
        frozenset({"ws", "unix"}),
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
