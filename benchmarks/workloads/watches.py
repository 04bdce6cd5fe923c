"""Changes in a large tree, until they are reported."""

import time

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, percentile
from benchmarks.workloads.searches import tree, whole

SETTLE_SECONDS = 0.1
"""Between two changes: longer than they are collected for one event."""
EVENT_SECONDS = 5.0


def _watch(server: ServerUnderTest, basic: Connection, sizes: Sizes) -> Measured:
    """A watch of the whole tree: how long until it is active, and until a change is reported."""
    place = tree(sizes.searched_files)
    connection = server.connect(extensions=True)
    name = fresh_id()
    began = time.perf_counter()
    whole(connection, "fs/watch", {"path": place.root.as_uri(), "watchId": name, "recursive": True})
    started = time.perf_counter() - began
    changed = place.root / "src" / "package0" / "part0" / "changed"
    marker = changed.as_uri().encode()
    times = []
    for number in range(sizes.watched_changes):
        time.sleep(SETTLE_SECONDS)
        while connection.ready(0):
            connection.receive()
        began = time.perf_counter()
        changed.write_text(str(number))
        while connection.ready(EVENT_SECONDS):
            if marker in connection.receive():
                break
        else:
            raise AssertionError(f"no event within {EVENT_SECONDS:g} s of a change")
        times.append(time.perf_counter() - began)
    whole(connection, "fs/unwatch", {"watchId": name})
    changed.unlink()
    connection.close()
    return {"watch": started * 1e3, "first_event": percentile(times, 0.5) * 1e3}


WORKLOADS = (
    Workload(
        "watches",
        _watch,
        (
            Row("watch", "fs/watch of 1,100 folders, until it is active", "ms"),
            Row("first_event", "first event after a change, p50", "ms"),
        ),
        frozenset({"unix"}),
        generator=lambda *_: {},
        beside="programs",
    ),
)
