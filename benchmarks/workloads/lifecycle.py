"""Start-up and idle cost of a server."""

import time

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.model import INFO, Measured, Row, Sizes, Workload, fresh_id, start

SETTLE_SECONDS = 0.4


def _start_up(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    connection.send(connection.frame(start(fresh_id(), ["/bin/true"])))
    connection.count_closed(1)
    closed = time.perf_counter()
    return {"first_closed": (closed - server.started_at) * 1e3}


def _idle(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    connection.call(INFO)
    time.sleep(SETTLE_SECONDS)
    memory = server.memory()
    return {"idle_rss": memory.resident, "idle_anonymous": memory.anonymous}


WORKLOADS = (
    Workload(
        "start_up",
        _start_up,
        (Row("first_closed", "start-up to the first process closed", "ms"),),
    ),
    Workload(
        "idle",
        _idle,
        (
            Row("idle_rss", "idle RSS, supervisor included", "MiB"),
            Row("idle_anonymous", "idle anonymous memory", "MiB"),
        ),
    ),
)
