"""Finds the mounted hierarchies of control groups, and the daemon's own group in each."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Literal

import msgspec

INNER = "execserver.daemon"
"""The group of supervisor and server in cgroup v2, where a group with processes cannot have controllers."""

PREFIX = "execserver."
"""Of the name of a service's group; the number of the service follows."""

_GROUP = re.compile(rf"{re.escape(PREFIX)}[0-9]+")

WANTED = ("memory", "pids", "cpu", "cpuacct", "io", "blkio")
"""The controllers that a leaf uses. `cpuacct` and `blkio` are in cgroup v1 only, `io` in v2 only."""


class Hierarchy(msgspec.Struct, frozen=True):
    """The daemon's own group in one hierarchy."""

    mount_point: str
    folder: str
    version: Literal[1, 2]
    controllers: frozenset[str]
    """Those of `WANTED` that it has."""
    may_hold_processes: bool
    """Whether processes and controllers may be in it together."""


def find_hierarchies(proc: str = "/proc") -> list[Hierarchy]:
    """The hierarchies that have one of the wanted controllers; blocking for a moment.

    Raises:
        OSError: `proc` cannot be read.
    """
    with open(f"{proc}/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        own = {names: path for _, names, path in (line.rstrip("\n").split(":", 2) for line in file)}
    with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.rstrip("\n").split(" - ", 1) for line in file]
    found: dict[str, Hierarchy] = {}
    for left, right in mounts:
        root, point = map(_unescaped, left.split()[3:5])
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" and "" in own:
            hierarchy = _version_2(point, _folder(own[""], root, point))
        elif kind == "cgroup":
            names = next((names for names in own if names and set(names.split(",")) <= _words(options)), None)
            hierarchy = None if names is None else _version_1(point, _folder(own[names], root, point), names)
        else:
            continue
        if hierarchy is not None:
            # The same hierarchy may be mounted twice.
            found.setdefault(",".join(sorted(hierarchy.controllers)), hierarchy)
    return list(found.values())


def obstacle(hierarchy: Hierarchy) -> str | None:
    """Why a daemon in this group could make no groups below it; None if it could. Makes none."""
    folder = hierarchy.folder
    needed = [folder]
    if hierarchy.version == 2:
        needed += [f"{folder}/cgroup.procs", f"{folder}/cgroup.subtree_control"]
    if not all(os.access(path, os.W_OK) for path in needed):
        return f"{folder} is not delegated to this user"
    if hierarchy.version == 1 or hierarchy.may_hold_processes:
        return None
    with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
        others = {int(pid) for pid in file.read().split()} - {os.getpid()}
    return f"{folder} holds other processes, such as {min(others)}" if others else None


def mount_points() -> tuple[str, ...]:
    """Where control groups are mounted, each hierarchy perhaps several times."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" - ", 1) for line in file]
    found = (
        _unescaped(left.split()[4]) for left, right in mounts if right.split()[0] in ("cgroup", "cgroup2")
    )
    return tuple(dict.fromkeys(found))


def groups_of_services() -> list[str]:
    """The groups of all services below the daemon's own one, also of services that are gone."""
    found: list[str] = []
    for hierarchy in find_hierarchies():
        with suppress(OSError):
            names = filter(_GROUP.fullmatch, os.listdir(hierarchy.folder))
            found += [f"{hierarchy.folder}/{name}" for name in names]
    return found


def _version_1(point: str, folder: str | None, names: str) -> Hierarchy | None:
    controllers = frozenset(names.split(",")) & frozenset(WANTED)
    if folder is None or not controllers:
        return None
    return Hierarchy(point, folder, 1, controllers, may_hold_processes=True)


def _version_2(point: str, folder: str | None) -> Hierarchy | None:
    if folder is None:
        return None
    if os.path.basename(folder) == INNER:
        folder = os.path.dirname(folder)
    try:
        with open(f"{folder}/cgroup.controllers", encoding="ascii") as file:
            controllers = frozenset(file.read().split()) & frozenset(WANTED)
    except OSError:
        return None
    # Only the real root has no type.
    is_root = not os.path.exists(f"{folder}/cgroup.type")
    return Hierarchy(point, folder, 2, controllers, is_root) if controllers else None


def _folder(own: str, root: str, point: str) -> str | None:
    """The folder of a group; None if the mount does not show it."""
    below = os.path.relpath(own, root)
    if below == ".." or below.startswith("../"):
        return None
    return os.path.normpath(os.path.join(point, below))


def _words(options: str) -> set[str]:
    return set(options.split(" ")[-1].split(","))


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
