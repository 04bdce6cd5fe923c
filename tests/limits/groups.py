"""Control groups as the tests see them: of a process, and what a service has left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from execserver import descendants
from execserver.limits import hierarchies
from tests.support.wire import Client, Json, Process

MIB = 1 << 20

PYTHON = f"{sys.executable} -I -S"
HOG = f"{PYTHON} -c 'x = bytearray(400 << 20)'"


def may_make_groups() -> bool:
    """Whether this account may make control groups below its own."""
    folders = [each.folder for each in hierarchies.find_hierarchies()]
    return any(os.access(folder, os.W_OK) for folder in folders)


needs_groups = pytest.mark.skipif(not may_make_groups(), reason="this account may make no control groups")


def leaves_of_service(server: int) -> set[Path]:
    """The leaves of the service with this server or supervisor. Other tests have services, too."""
    instances = {
        descendants.split_tag(descendants.tag_of(pid) or 0)
        for pid in (server, *descendants.children_of(server))
    }
    names = {f"{hierarchies.PREFIX}{instance[0]}" for instance in instances if instance is not None}
    groups = [Path(group) for group in hierarchies.groups_of_services()]
    return {leaf for group in groups if group.name in names for leaf in _subfolders(group)}


def abandoned_groups() -> set[Path]:
    """The groups of services that do not live any more: those whose lock is free."""
    # FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE, each with a number before it; looking must not lock.
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    locked = {int(line[5].rpartition(":")[2]) for line in lines if line[1] == "FLOCK"}
    found = set()
    for group in map(Path, hierarchies.groups_of_services()):
        with suppress(FileNotFoundError):  # it was removed meanwhile
            if group.stat().st_ino not in locked:
                found.add(group)
    return found


def _subfolders(folder: Path) -> Iterator[Path]:
    try:
        yield from (each for each in folder.iterdir() if each.is_dir())
    except FileNotFoundError:
        return  # it was removed meanwhile


def leaves_of(pid: int) -> set[str]:
    """The groups of services that a process is in, as `/proc` names them."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    paths = (line.split(":", 2)[2] for line in lines)
    return {path for path in paths if "/execserver." in path and path.rsplit("/", 1)[1].isdigit()}


def wait_for(condition: object, seconds: float = 20.0) -> None:
    """Wait until a condition holds."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def start(client: Client, script: str, limits: Json, **members: Json) -> Process:
    """Start a shell script with limits."""
    params = client.start_params(["/bin/sh", "-c", script], limits=limits, **members)
    result = client.call("process/start", params)
    return Process(client, params["processId"], result)


def exited(process: Process) -> Json:
    """The event of its end, once it is closed."""
    process.wait_closed()
    return next(params for method, params in process.log.events if method == "process/exited")
