"""Processes: spawning one after another, many at once, on a terminal; writing to one and hearing back."""

import json
import time

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, percentile, start

COMMAND = ["/bin/true"]
IN_FLIGHT = 64
WARM_UP = 20
# Terminates sent at once: with several hundred unanswered requests the reference stops for good over ws.
KILLS_AT_ONCE = 50
# The reply, process/exited and process/closed.
MESSAGES_PER_KILL = 3


def _sequential(connection: Connection, count: int, *, tty: bool) -> list[float]:
    times = []
    for turn in range(count + WARM_UP):
        frame = connection.frame(start(fresh_id(), COMMAND, tty=tty))
        began = time.perf_counter()
        connection.send(frame)
        connection.count_closed(1)
        if turn >= WARM_UP:
            times.append(time.perf_counter() - began)
    return times


def _spawn(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    times = _sequential(connection, sizes.sequential_spawns, tty=False)
    return {"spawn_p50": percentile(times, 0.5) * 1e6, "spawn_p99": percentile(times, 0.99) * 1e6}


def _spawn_terminal(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    return {"spawn_pty_p50": percentile(_sequential(connection, sizes.terminal_spawns, tty=True), 0.5) * 1e6}


def _spawn_concurrent(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    _sequential(connection, 0, tty=False)
    frames = [connection.frame(start(fresh_id(), COMMAND)) for _ in range(sizes.concurrent_spawns)]
    sent = IN_FLIGHT

    def refill(closed: int) -> bytes:
        nonlocal sent
        more = frames[sent : sent + closed]
        sent += len(more)
        return b"".join(more)

    began = time.perf_counter()
    connection.send(b"".join(frames[:IN_FLIGHT]))
    connection.count_closed(len(frames), refill)
    return {"spawn_64": len(frames) / (time.perf_counter() - began)}


def _long_lived(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    ids = [fresh_id() for _ in range(sizes.long_lived)]
    frames = [connection.frame(start(process, ["/bin/sleep", "300"])) for process in ids]
    began = time.perf_counter()
    connection.exchange(frames, window=IN_FLIGHT)
    started = time.perf_counter() - began
    resident = server.memory().resident
    kills = [connection.frame(_terminate(process)) for process in ids]
    began = time.perf_counter()
    for first in range(0, len(kills), KILLS_AT_ONCE):
        batch = kills[first : first + KILLS_AT_ONCE]
        connection.exchange(batch, answers=len(batch) * MESSAGES_PER_KILL)
    killed = time.perf_counter() - began
    return {"processes_start": started * 1e3, "processes_rss": resident, "processes_kill": killed * 1e3}


def _terminate(process: str) -> bytes:
    return json.dumps({"id": 9, "method": "process/terminate", "params": {"processId": process}}).encode()


def _write(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    return {
        "write_pipe": _write_round_trip(connection, sizes.writes, tty=False),
        "write_pty": _write_round_trip(connection, sizes.writes, tty=True),
    }


def _write_round_trip(connection: Connection, count: int, *, tty: bool) -> float:
    process = fresh_id()
    argv = ["/bin/sh", "-c", "stty -echo raw; echo ready; exec cat"] if tty else ["/bin/cat"]
    connection.send(connection.frame(start(process, argv, tty=tty, pipe_stdin=not tty)))
    # Reply and output may come in either order, here and below.
    connection.expect(b'"id":7', *([b'"process/output"'] if tty else []))
    times = []
    for turn in range(count + WARM_UP):
        params = {"processId": process, "chunk": "aGVsbG8K", "writeId": str(turn)}
        frame = connection.frame(json.dumps({"id": 8, "method": "process/write", "params": params}).encode())
        began = time.perf_counter()
        connection.send(frame)
        connection.expect(b'"id":8', b'"process/output"')
        if turn >= WARM_UP:
            times.append(time.perf_counter() - began)
    connection.send(connection.frame(_terminate(process)))
    connection.count_closed(1)
    return percentile(times, 0.5) * 1e6


WORKLOADS = (
    Workload(
        "spawn",
        _spawn,
        (
            Row("spawn_p50", "spawn /bin/true, start→closed, p50", "µs"),
            Row("spawn_p99", "spawn /bin/true, start→closed, p99", "µs"),
        ),
    ),
    Workload(
        "spawn_64",
        _spawn_concurrent,
        (Row("spawn_64", "spawn /bin/true, 64 in flight", "proc/s", "higher"),),
    ),
    Workload(
        "spawn_pty",
        _spawn_terminal,
        (Row("spawn_pty_p50", "spawn on a PTY, start→closed, p50", "µs"),),
    ),
    Workload(
        "write",
        _write,
        (
            Row("write_pipe", "process/write→cat→output, pipe, p50", "µs"),
            Row("write_pty", "process/write→cat→output, PTY, p50", "µs"),
        ),
    ),
    Workload(
        "processes",
        _long_lived,
        (
            Row("processes_start", "1,000 processes: start all", "ms"),
            Row("processes_rss", "1,000 processes: RSS", "MiB"),
            Row("processes_kill", "1,000 processes: terminate all", "ms"),
        ),
    ),
)
