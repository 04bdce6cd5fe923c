"""What a workload and a row of its results are, and the requests they share."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection, Transport

INFO = b'{"id":5,"method":"environment/info"}'

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """How much a workload does. Every count is bounded, so every workload ends."""

    round_trips: int = 2_000
    pipelined: int = 10_000
    sequential_spawns: int = 150
    terminal_spawns: int = 100
    concurrent_spawns: int = 512
    output_mib: int = 256
    long_lived: int = 1_000
    connections: int = 200
    writes: int = 450
    confined_spawns: int = 60
    confined_requests: int = 60
    small_writes: int = 500
    large_file_mib: int = 32
    library_runs: int = 300
    searched_files: int = 100_000
    watched_changes: int = 20
    forwarded_mib: int = 256
    forwarded_connections: int = 50


FULL = Sizes()
# For trying things out: same shapes, seconds instead of minutes; not to be quoted.
QUICK = Sizes(
    round_trips=300,
    pipelined=2_000,
    sequential_spawns=30,
    terminal_spawns=20,
    concurrent_spawns=128,
    output_mib=32,
    long_lived=100,
    connections=20,
    writes=50,
    confined_spawns=15,
    confined_requests=15,
    small_writes=50,
    large_file_mib=8,
    library_runs=50,
    searched_files=2_000,
    watched_changes=5,
    forwarded_mib=16,
    forwarded_connections=10,
)


@dataclass(frozen=True)
class Row:
    """One measured quantity."""

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher"] = "lower"


Measured = Mapping[str, float]


@dataclass(frozen=True)
class Workload:
    """Something a fresh server is made to do, and the rows that come out of it.

    `reference_options` is appended to the reference's command line for this workload.

    With a `generator` the reference is no server, and all of it is over a Unix socket: `run` is given our
    server, and so is the generator in the reference's place. It measures the load generator at that server
    (`beside` is `library`), or another program that does the same (`programs`) in the rows that it has.
    """

    name: str
    run: Callable[[ServerUnderTest, Connection, Sizes], Measured]
    rows: tuple[Row, ...]
    transports: frozenset[Transport] = frozenset({"stdio", "ws", "unix"})
    reference_options: str = ""
    generator: Callable[[ServerUnderTest, Connection, Sizes], Measured] | None = None
    beside: Literal["library", "programs"] = "library"


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def fresh_id() -> str:
    """A process id that no earlier start on this server used."""
    return os.urandom(6).hex()


def start(process: str, argv: list[str], *, tty: bool = False, pipe_stdin: bool = False) -> bytes:
    """A `process/start` request with id 7."""
    request = {
        "id": 7,
        "method": "process/start",
        "params": {
            "processId": process,
            "argv": argv,
            "cwd": "file:///tmp",
            "env": {"PATH": "/usr/bin:/bin"},
            "tty": tty,
            "pipeStdin": pipe_stdin,
            "arg0": None,
        },
    }
    return json.dumps(request, separators=(",", ":")).encode()


def read(process: str, *, after: int | None = None, max_bytes: int | None = None, wait_ms: int = 0) -> bytes:
    """A `process/read` request with id 31."""
    params = {"processId": process, "afterSeq": after, "maxBytes": max_bytes, "waitMs": wait_ms}
    return json.dumps({"id": 31, "method": "process/read", "params": params}, separators=(",", ":")).encode()


def workspace_write(workspace: Path) -> dict[str, object]:
    """The sandbox of Codex's mode `workspace-write`: everything may be read, the workspace and temporary
    folders may be written, and no network may be used.
    """

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
