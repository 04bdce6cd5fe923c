"""Confined commands and confined writing of files, under the policy that agents use most."""

import base64
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.server import ServerUnderTest
from benchmarks.wire import CLOSED, Connection
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, percentile

COMMAND = ["/bin/true"]
WARM_UP = 5
# A source file, as an edit of an agent's writes it.
CONTENT = os.urandom(4096)


@contextmanager
def _workspace() -> Iterator[tuple[Path, Path]]:
    """A workspace, and a folder beside it. Not below /tmp, which the policy lets be written."""
    with tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp") as folder:
        inside, outside = Path(folder, "workspace"), Path(folder, "outside")
        inside.mkdir()
        outside.mkdir()
        yield inside, outside


def _context(workspace: Path) -> dict[str, object]:
    """Everything may be read, the workspace and temporary folders written, and no network used."""

    def entry(kind: str, access: str) -> dict[str, object]:
        return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}

    entries = [
        entry("root", "read"),
        entry("project_roots", "write"),
        entry("slash_tmp", "write"),
        entry("tmpdir", "write"),
    ]
    return {
        "permissions": {
            "type": "managed",
            "network": "restricted",
            "file_system": {"type": "restricted", "entries": entries},
        },
        "cwd": workspace.as_uri(),
        "workspaceRoots": [workspace.as_uri()],
        "windowsSandboxLevel": "disabled",
    }


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
        sandbox = _context(workspace)
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


def _write(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    times = []
    with _workspace() as (workspace, outside):
        sandbox = _context(workspace)

        def request(path: Path) -> bytes:
            content = base64.b64encode(CONTENT).decode()
            params = {"path": path.as_uri(), "dataBase64": content, "sandbox": sandbox}
            return json.dumps({"id": 5, "method": "fs/writeFile", "params": params}).encode()

        if b'"error"' not in connection.call(request(outside / "file")):
            raise AssertionError("fs/writeFile was not confined to its workspace")
        target = workspace / "file"
        frame = connection.frame(request(target))
        for turn in range(sizes.confined_writes + WARM_UP):
            began = time.perf_counter()
            connection.exchange([frame])
            if turn >= WARM_UP:
                times.append(time.perf_counter() - began)
        if target.read_bytes() != CONTENT:
            raise AssertionError("fs/writeFile wrote something else")
    return {"confined_write": percentile(times, 0.5) * 1e3}


WORKLOADS = (
    Workload(
        "confined",
        _spawn,
        (
            Row("confined_p50", "sandboxed /bin/true, start→closed, p50", "ms"),
            Row("confined_extra", "… more than without a sandbox", "ms"),
        ),
    ),
    Workload(
        "confined_files",
        _write,
        (Row("confined_write", "sandboxed fs/writeFile 4 KiB, p50", "ms"),),
    ),
)
