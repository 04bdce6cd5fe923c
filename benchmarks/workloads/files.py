"""Whole files: `fs/readFile` and `fs/writeFile`."""

import base64
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.model import MIB, Measured, Row, Sizes, Workload

# Memory, where there is one: the disk is not what is measured.
_MEMORY = Path("/dev/shm")


def _files(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    measured = {}
    with tempfile.TemporaryDirectory(
        prefix="execserver-bench-", dir=_MEMORY if _MEMORY.is_dir() else None
    ) as folder:
        for name, size, turns in (("small", MIB, 15), ("large", sizes.large_file_mib * MIB, 3)):
            path = Path(folder) / name
            data = os.urandom(size)
            path.write_bytes(data)
            measured[f"read_file_{name}"] = _read(connection, path, turns)
            target = path.with_suffix(".written")
            measured[f"write_file_{name}"] = _write(connection, target, data, turns)
            if target.read_bytes() != data:
                raise AssertionError("fs/writeFile wrote something else")
            path.unlink()
            target.unlink()
    return measured


def _request(method: str, params: dict[str, str | None]) -> bytes:
    return json.dumps({"id": 5, "method": method, "params": params}).encode()


def _read(connection: Connection, path: Path, turns: int) -> float:
    frame = connection.frame(_request("fs/readFile", {"path": path.as_uri(), "sandbox": None}))
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        wire = connection.exchange([frame])
        times.append(time.perf_counter() - began)
        if wire < path.stat().st_size * 4 // 3:
            raise AssertionError(f"fs/readFile answered with {wire} bytes")
    return statistics.median(times) * 1e3


def _write(connection: Connection, path: Path, data: bytes, turns: int) -> float:
    encoded = base64.b64encode(data).decode()
    params = {"path": path.as_uri(), "dataBase64": encoded, "sandbox": None}
    frame = connection.large_frame(_request("fs/writeFile", params))
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        connection.exchange([frame])
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


WORKLOADS = (
    Workload(
        "files",
        _files,
        (
            Row("read_file_small", "fs/readFile 1 MiB", "ms"),
            Row("read_file_large", "fs/readFile 32 MiB", "ms"),
            Row("write_file_small", "fs/writeFile 1 MiB", "ms"),
            Row("write_file_large", "fs/writeFile 32 MiB", "ms"),
        ),
    ),
)
