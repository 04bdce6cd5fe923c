"""Output: throughput, its cost, what is retained, what it does to others, and a reader that does not read."""

import time

from benchmarks.server import ServerUnderTest
from benchmarks.wire import CLOSED, Connection
from benchmarks.workloads.agent_day import request, tree
from benchmarks.workloads.model import (
    INFO,
    MIB,
    Measured,
    Row,
    Sizes,
    Workload,
    fresh_id,
    percentile,
    read,
    start,
)

# Small requests are sent at a steady pace, not one upon the other: a server that is quick in pauses of the
# stream and stuck in between would otherwise be asked mostly in its pauses.
LOADED_ROUND_TRIPS = 400
LOADED_INTERVAL_SECONDS = 0.005
RETAINED_READS = 30
SLOW_READER_SECONDS = 3.0
# By then a server is through with its start. Ours tries after 2 s whether sandboxes work: for a moment there
# is another interpreter of 10 MiB, which would be taken for growth because of the reader.
STARTED_SECONDS = 3.0


def _throughput(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    size = sizes.output_mib
    measured = {}
    for row, argv in (
        ("output_head", ["/usr/bin/head", "-c", f"{size}M", "/dev/zero"]),
        ("output_dd", ["/bin/dd", "if=/dev/zero", "bs=1M", f"count={size}", "status=none"]),
        ("output_yes", ["/bin/sh", "-c", f"yes | head -c {size}M"]),
    ):
        used = server.cpu_seconds()
        began = time.perf_counter()
        connection.send(connection.frame(start(fresh_id(), argv)))
        wire = connection.read_until_closed()
        elapsed = time.perf_counter() - began
        if wire < size * MIB * 4 // 3:
            raise AssertionError(f"{row}: only {wire} bytes on the wire")
        measured[row] = size * MIB / 1e6 / elapsed
        if row == "output_dd":
            measured["output_cpu"] = (server.cpu_seconds() - used) * 1024 / size
    return measured


def _retained(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    process = fresh_id()
    argv = ["/bin/dd", "if=/dev/zero", "bs=64k", "count=32", "status=none"]
    connection.send(connection.frame(start(process, argv)))
    connection.count_closed(1)
    frame = connection.frame(read(process))
    connection.exchange([frame])
    began = time.perf_counter()
    wire = sum(connection.exchange([frame]) for _ in range(RETAINED_READS))
    elapsed = time.perf_counter() - began
    return {"retained_read": wire * 0.75 / 1e6 / elapsed}


def _loaded(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    argv = ["/bin/sh", "-c", f"yes | head -c {sizes.output_mib * 4}M"]
    times: list[float] = []
    paths = tree().flat[:LOADED_ROUND_TRIPS]
    frames = [connection.frame(request(5, "fs/getMetadata", path)) for path in paths]
    connection.send(connection.frame(start(fresh_id(), argv)))
    # The reference answers the start some milliseconds before its child runs: not yet a load.
    connection.expect(b'"id":7', b'"process/output"')
    closed = False
    began = time.perf_counter()
    for frame in frames:
        due = began + LOADED_INTERVAL_SECONDS
        while (wait := due - time.perf_counter()) > 0:
            if connection.ready(wait):
                closed = closed or CLOSED in connection.receive()[:40]
        if closed:
            break
        began = time.perf_counter()
        connection.send(frame)
        while True:
            message = connection.receive()
            # Only the ends are looked at: in between is up to a mebibyte of base64.
            if b'"id":5' in message[:10] or b'"id":5' in message[-12:]:
                break
            closed = closed or CLOSED in message[:40]
        times.append(time.perf_counter() - began)
    return {"loaded_p50": percentile(times, 0.5) * 1e6, "loaded_p99": percentile(times, 0.99) * 1e6}


def _slow_reader(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    connection.exchange([connection.frame(INFO)])
    time.sleep(max(0.4, server.started_at + STARTED_SECONDS - time.perf_counter()))
    before = server.memory().resident
    connection.send(connection.frame(start(fresh_id(), ["/bin/sh", "-c", "yes | head -c 2000M"])))
    peak = before
    end = time.perf_counter() + SLOW_READER_SECONDS
    while time.perf_counter() < end:
        time.sleep(0.2)
        peak = max(peak, server.memory().resident)
    # Not zero, so that a ratio exists.
    return {"slow_reader": max(0.1, peak - before)}


WORKLOADS = (
    Workload(
        "output",
        _throughput,
        (
            Row("output_dd", "output of dd bs=1M", "MB/s", "higher"),
            Row("output_yes", "output of yes | head -c", "MB/s", "higher"),
            Row("output_head", "output of head -c (8 KiB writes)", "MB/s", "higher"),
            Row("output_cpu", "server CPU per GiB of output (dd)", "s"),
        ),
    ),
    Workload(
        "retained",
        _retained,
        (Row("retained_read", "process/read of retained output", "MB/s", "higher"),),
    ),
    Workload(
        "loaded",
        _loaded,
        (
            Row("loaded_p50", "small RTT while output streams, p50", "µs"),
            Row("loaded_p99", "small RTT while output streams, p99", "µs"),
        ),
    ),
    Workload("slow_reader", _slow_reader, (Row("slow_reader", "slow reader, RSS growth in 3 s", "MiB"),)),
)
