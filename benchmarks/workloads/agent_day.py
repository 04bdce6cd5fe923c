"""The small requests of an agent's day: no two of a row ask for the same, word for word."""

import base64
import json
import os
import tempfile
import time
from functools import cache
from pathlib import Path

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection, StalledError
from benchmarks.workloads.model import Measured, Row, Sizes, Workload, fresh_id, percentile, workspace_write

WINDOW = 64
WARM_UP = 20
# Start-up has rows of its own: what a server loads a moment after its start is loaded by then.
SETTLE_SECONDS = 1.0
# A server that deadlocks is given up after this long without progress.
FLOOD_STALL_SECONDS = 4.0
FOLDERS, FILES_EACH, FLAT_FILES = 100, 20, 10_000
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/root", **{f"VARIABLE_{i}": "v" * 30 for i in range(40)}}


class Tree:
    """A project: folders of source files, and one flat folder of many small files.

    One serves the whole run, and nothing of it is removed before the end: ext4 passes over inodes that were
    freed in the last minutes one by one, and the next file to be made takes a millisecond instead of 20 µs.
    """

    def __init__(self) -> None:
        # Not below /tmp, which a sandbox's policy lets be written.
        self._folder = tempfile.TemporaryDirectory(prefix="execserver-bench-", dir="/var/tmp")
        self.root = Path(self._folder.name, "project")
        self.folders = [self.root / f"package{number}" for number in range(FOLDERS)]
        self.sources = [
            folder / f"module{number}.py" for number in range(FILES_EACH) for folder in self.folders
        ]
        self.flat = [self.root / "flat" / f"file{number}" for number in range(FLAT_FILES)]
        for folder in (*self.folders, self.root / "flat"):
            folder.mkdir(parents=True)
        for number, path in enumerate(self.sources):
            path.write_text("x = 1\n" * (20 + number % 400))
        for number, path in enumerate(self.flat):
            path.write_text(f"file {number}\n")

    def new_folder(self) -> Path:
        """An empty folder beside the project, to write to."""
        return Path(tempfile.mkdtemp(dir=self._folder.name))


@cache
def tree() -> Tree:
    """The tree of this run."""
    return Tree()


def request(number: int, method: str, path: Path, **params: object) -> bytes:
    """A request of the file system."""
    message = {"id": number, "method": method, "params": {"path": path.as_uri(), "sandbox": None, **params}}
    return json.dumps(message, separators=(",", ":")).encode()


def requests(method: str, paths: list[Path], **params: object) -> list[bytes]:
    """One request a path."""
    return [request(100 + number, method, path, **params) for number, path in enumerate(paths)]


def one_by_one(connection: Connection, messages: list[bytes]) -> list[float]:
    """The round trips, in seconds, without those that warm up."""
    times = []
    for frame in [connection.frame(message) for message in messages]:
        began = time.perf_counter()
        connection.send(frame)
        answer = connection.receive()
        times.append(time.perf_counter() - began)
        if b'"error"' in answer[:300]:
            raise AssertionError(f"answered with {answer[:300]!r}")
    return times[WARM_UP:]


def writes(paths: list[Path], **params: object) -> list[bytes]:
    """A write of 4 KiB each."""
    return [
        request(100 + number, "fs/writeFile", path, dataBase64=content(), **params)
        for number, path in enumerate(paths)
    ]


def content() -> str:
    """A source file, as an edit of an agent's writes it."""
    return base64.b64encode(os.urandom(4096)).decode()


def _pipelined(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    measured = {}
    paths = tree().flat[: sizes.pipelined]
    time.sleep(SETTLE_SECONDS)
    before = server.cpu_seconds()
    for row, method in (("distinct_metadata", "fs/getMetadata"), ("distinct_read", "fs/readFile")):
        frames = [connection.frame(message) for message in requests(method, paths)]
        began = time.perf_counter()
        connection.exchange(frames, window=WINDOW)
        measured[row] = len(paths) / (time.perf_counter() - began)
    measured["distinct_cpu"] = (server.cpu_seconds() - before) / (2 * len(paths)) * 1e6
    frames = [connection.frame(message) for message in requests("fs/getMetadata", paths)]
    began = time.perf_counter()
    try:
        connection.exchange(frames, stalled_after=FLOOD_STALL_SECONDS)
        measured["flood"] = len(paths) / (time.perf_counter() - began)
    except StalledError:
        measured["flood"] = 0.0
    return measured


def _small(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    measured = {}
    project = tree()
    folder = project.new_folder()
    new = [folder / f"new{number}" for number in range(sizes.small_writes + WARM_UP)]
    half = len(project.sources) // 2
    time.sleep(SETTLE_SECONDS)
    times = one_by_one(connection, requests("fs/getMetadata", project.flat[: sizes.round_trips]))
    measured["metadata_p50"] = percentile(times, 0.5) * 1e6
    measured["metadata_p99"] = percentile(times, 0.99) * 1e6
    for row, messages in (
        ("read_p50", requests("fs/readFile", project.sources[:half])),
        ("list_p50", requests("fs/readDirectory", project.folders)),
        ("canonicalize_p50", requests("fs/canonicalize", project.sources[half:])),
        ("write_p50", writes(new)),
    ):
        measured[row] = percentile(one_by_one(connection, messages), 0.5) * 1e6
    return measured


def _walk(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    times = []
    root = tree().root
    time.sleep(SETTLE_SECONDS)
    for most in range(19_990, 20_000, 2):
        options = {
            "maxDepth": 5,
            "maxDirectories": 10_000,
            "maxEntries": most,
            "followDirectorySymlinks": False,
        }
        frame = connection.frame(request(most, "fs/walk", root, options=options))
        began = time.perf_counter()
        connection.exchange([frame])
        times.append(time.perf_counter() - began)
    return {"walk": percentile(times, 0.5) * 1e3}


def _shell(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    times = []
    time.sleep(SETTLE_SECONDS)
    for number in range(sizes.sequential_spawns):
        script = f"head -c {2000 + number} /dev/zero | tr '\\0' x; echo; echo {number} >&2"
        params = {
            "processId": fresh_id(),
            "argv": ["/bin/sh", "-c", script],
            "cwd": "file:///tmp",
            "env": ENVIRONMENT,
            "tty": False,
            "pipeStdin": False,
            "arg0": None,
        }
        frame = connection.frame(json.dumps({"id": 7, "method": "process/start", "params": params}).encode())
        began = time.perf_counter()
        connection.send(frame)
        connection.count_closed(1)
        times.append(time.perf_counter() - began)
    return {"shell_p50": percentile(times, 0.5) * 1e3}


def _confined(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    measured = {}
    project = tree()
    workspace, outside = project.new_folder(), project.new_folder()
    sandbox = workspace_write(workspace)
    refused = request(1, "fs/writeFile", outside / "file", dataBase64="", sandbox=sandbox)
    if b'"error"' not in connection.call(refused):
        raise AssertionError("fs/writeFile was not confined to its workspace")
    count = sizes.confined_requests + WARM_UP
    new = [workspace / f"new{number}" for number in range(count)]
    time.sleep(SETTLE_SECONDS)
    for row, messages in (
        ("confined_metadata", requests("fs/getMetadata", project.sources[:count], sandbox=sandbox)),
        ("confined_read", requests("fs/readFile", project.sources[-count:], sandbox=sandbox)),
        ("confined_list", requests("fs/readDirectory", project.folders[:count], sandbox=sandbox)),
        ("confined_write", writes(new, sandbox=sandbox)),
    ):
        measured[row] = percentile(one_by_one(connection, messages), 0.5) * 1e6
    if not all(path.stat().st_size == 4096 for path in new):
        raise AssertionError("fs/writeFile wrote something else")
    return measured


WORKLOADS = (
    Workload(
        "distinct",
        _pipelined,
        (
            Row("distinct_metadata", "fs/getMetadata, 64 in flight", "req/s", "higher"),
            Row("distinct_read", "fs/readFile of a few bytes, 64 in flight", "req/s", "higher"),
            Row("distinct_cpu", "processor time of each of these", "µs"),
            Row("flood", "flood of 10,000 fs/getMetadata without a window", "req/s", "higher"),
        ),
    ),
    Workload(
        "small",
        _small,
        (
            Row("metadata_p50", "fs/getMetadata, one by one, p50", "µs"),
            Row("metadata_p99", "fs/getMetadata, one by one, p99", "µs"),
            Row("read_p50", "fs/readFile of 0.1 to 2.5 KB, p50", "µs"),
            Row("list_p50", "fs/readDirectory of 20 names, p50", "µs"),
            Row("canonicalize_p50", "fs/canonicalize, p50", "µs"),
            Row("write_p50", "fs/writeFile of 4 KiB, p50", "µs"),
        ),
    ),
    Workload("walk", _walk, (Row("walk", "fs/walk of 12,000 names", "ms"),)),
    Workload("shell", _shell, (Row("shell_p50", "sh -c, a pipe, 40 variables, 2 KB out, p50", "ms"),)),
    Workload(
        "confined_files",
        _confined,
        (
            Row("confined_metadata", "sandboxed fs/getMetadata, p50", "µs"),
            Row("confined_read", "sandboxed fs/readFile of 0.1 to 2.5 KB, p50", "µs"),
            Row("confined_list", "sandboxed fs/readDirectory of 20 names, p50", "µs"),
            Row("confined_write", "sandboxed fs/writeFile of 4 KiB, p50", "µs"),
        ),
    ),
)
