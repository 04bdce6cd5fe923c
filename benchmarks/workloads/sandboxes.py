"""Confined commands, under the policy that agents use most."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.server import ServerUnderTest
from benchmarks.wire import CLOSED, Connection
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, percentile, workspace_write

COMMAND = ["/bin/true"]
WARM_UP = 5


@contextmanager
def _workspace() -> Iterator[tuple[Path, Path]]:
    """A workspace, and a folder beside it. Not below /tmp, which the policy lets be written."""
    with tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as folder:
        inside, outside = Path(folder, "workspace"), Path(folder, "outside")
        inside.mkdir()
        outside.mkdir()
        yield inside, outside


def _start(
    connection: Connection, argv: list[str], workspace: Path, sandbox: dict[str, object] | None
) -> bytes:
    params = {
        "processId": fresh_id(),
        "argv": argv,
        "cwd": workspace.as_uri(),
        "env": {"PATH": "/usr/bin:/bin"},
        "tty": False,
        "pipeStdin": False,
        "arg0": None,
        "sandbox": sandbox,
    }
    return connection.frame(json.dumps({"id": 7, "method": "process/start", "params": params}).encode())


def _spawn(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    confined: list[float] = []
    plain: list[float] = []
    with _workspace() as (workspace, outside):
        sandbox = workspace_write(workspace)
        # A sandbox that lets this pass, or a start that fails, must not count as a fast one.
        script = f"echo x > {workspace}/made; echo x > {outside}/made; exit 9"
        connection.send(_start(connection, ["/bin/sh", "-c", script], workspace, sandbox))
        connection.expect(b'"exitCode":9', CLOSED)
        if os.listdir(outside) or not (workspace / "made").exists():
            raise AssertionError("the command was not confined to its workspace")
        for turn in range(sizes.confined_spawns + WARM_UP):
            # In turns, so that a slow moment of the machine counts for both.
            for times, context in ((plain, None), (confined, sandbox)):
                frame = _start(connection, COMMAND, workspace, context)
                began = time.perf_counter()
                connection.send(frame)
                connection.count_closed(1)
                if turn >= WARM_UP:
                    times.append(time.perf_counter() - began)
    median = percentile(confined, 0.5)
    return {"confined_p50": median * 1e3, "confined_extra": (median - percentile(plain, 0.5)) * 1e3}


WORKLOADS = (
    Workload(
        "confined",
        _spawn,
        (
            Row("confined_p50", "sandboxed /bin/true, start→closed, p50", "ms"),
            Row("confined_extra", "… more than without a sandbox", "ms"),
        ),
    ),
)
