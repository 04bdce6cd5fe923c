"""Control groups as the tests see them: of a process, and what a service has left."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from execserver import descendants
from execserver.limits import hierarchies
from tests.support.wire import PATIENCE, Client, Json, Process

MIB = 1 << 20

PYTHON = f"{sys.executable} -I -S"
HOG = f"{PYTHON} -c 'x = bytearray(400 << 20)'"


DELEGATED = os.environ.get("EXECSERVER_TEST_GROUP")
"""A group in which each daemon gets one of its own, as a systemd unit has; None where it can be in ours."""

PREFIX = (
    ()
    if DELEGATED is None
    else ("/bin/sh", "-c", 'mkdir "$0/$$" && echo $$ > "$0/$$/cgroup.procs" && exec "$@"', DELEGATED)
)
"""A command that becomes a daemon in a group of its own."""


def may_make_groups() -> bool:
    """Whether this account may make control groups below its own."""
    folders = [each.folder for each in hierarchies.find_hierarchies()]
    return DELEGATED is not None or any(os.access(folder, os.W_OK) for folder in folders)


needs_groups = pytest.mark.skipif(not may_make_groups(), reason="this account may make no control groups")


def remove_group(pid: int) -> None:
    """Remove the group of a daemon that has ended, which must be empty."""
    if DELEGATED is not None:
        os.rmdir(f"{DELEGATED}/{pid}")


def leaves_of_service(server: int) -> set[Path]:
    """The leaves of the service with this server or supervisor. Other tests have services, too."""
    tags = (descendants.tag_of(pid) for pid in (server, *descendants.children_of(server)))
    instances = {parts[0] for tag in tags if tag is not None and (parts := descendants.split_tag(tag))}
    names = {f"{hierarchies.PREFIX}{instance}" for instance in instances}
    return {each for each in _groups_and_leaves() if each.name.isdigit() and each.parent.name in names}


def abandoned_groups() -> set[Path]:
    """The groups of services that do not live any more: those whose lock is free."""
    # FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE, each with a number before it; looking must not lock.
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    locked = {int(line[5].rpartition(":")[2]) for line in lines if line[1] == "FLOCK"}
    found = set()
    for group in _groups_and_leaves():
        with suppress(FileNotFoundError):  # it was removed meanwhile
            if not group.name.isdigit() and group.stat().st_ino not in locked:
                found.add(group)
    return found


def _groups_and_leaves() -> set[Path]:
    """Those of all services below ours."""
    roots = [each.folder for each in hierarchies.find_hierarchies()] if DELEGATED is None else [DELEGATED]
    found: set[Path] = set()
    for root in roots:
        for folder, _, _ in os.walk(root):
            if re.search(r"/execserver\.[0-9]+(/|$)", folder):
                found.add(Path(folder))
    return found


def leaves_of(pid: int) -> set[str]:
    """The groups of services that a process is in, as `/proc` names them."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    paths = (line.split(":", 2)[2] for line in lines)
    return {path for path in paths if "/execserver." in path and path.rsplit("/", 1)[1].isdigit()}


def wait_for(condition: object, seconds: float = PATIENCE) -> None:
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
