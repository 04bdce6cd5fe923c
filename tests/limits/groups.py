"""Control groups as the tests see them: of a process, and what a service has left."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

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


def groups_of_services() -> set[Path]:
    """All groups of services below ours, and their leaves. Other tests, too, run services at this time."""
    roots = [each.folder for each in hierarchies.find_hierarchies()] if DELEGATED is None else [DELEGATED]
    found: set[Path] = set()
    for root in roots:
        for folder, _, _ in os.walk(root):
            if re.search(r"/execserver\.[0-9]+(/|$)", folder):
                found.add(Path(folder))
    return found


def groups_held_by(pid: int) -> set[Path]:
    """The groups of a service, by the descriptors of its server or supervisor."""
    held: set[Path] = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed just now
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
            if re.search(r"/execserver\.[0-9]+$", path):
                held.add(Path(path))
    return held


def leaves_in(groups: Iterable[Path]) -> list[Path]:
    """The leaves in groups of a service."""
    return [each for group in groups if group.exists() for each in group.iterdir() if each.is_dir()]


def abandoned_groups() -> set[Path]:
    """The groups of services that are dead: a living one has them locked."""
    locked = set(re.findall(r"[0-9a-f]+:[0-9a-f]+:[0-9]+", Path("/proc/locks").read_text()))
    found: set[Path] = set()
    for group in groups_of_services():
        with suppress(FileNotFoundError):  # its service ends just now
            if not group.name.isdigit() and _name_in_locks(group) not in locked:
                found.add(group)
    return found


def _name_in_locks(path: Path) -> str:
    status = path.stat()
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"


def wait_for_clean_groups(before: set[Path]) -> None:
    """Wait until no more groups of dead services exist than before. A service that starts makes a group just
    before it locks it.
    """
    wait_for(lambda: abandoned_groups() <= before, 1)


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
