"""All leaves of a service, and the groups of the service that they are in."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from execserver.limits.hierarchies import INNER, PREFIX, WANTED, Hierarchy, find_hierarchies, mount_points
from execserver.limits.leaf import CONTROLLERS, GROUPS_HELP, Folder, Leaf, LimitRefused
from execserver.private_folder import leads_to, lock
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execprotocol.process import ResourceLimits

log = Logger()

_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 2.0
"""Between attempts to remove a leaf: the kernel does not report in both versions that one is empty."""

_SWEEP_SECONDS = 2.0
"""A sweep locks an empty group for less than a millisecond."""

_MOVES = 100
"""Rounds of moving processes out of a group: one that forks meanwhile has its child in the old group."""

_CONTROL_FILES = {
    "memory.limit_in_bytes": "memory",
    "pids.max": "pids",
    "cpu.cfs_quota_us": "cpu",
    "cpuacct.usage": "cpuacct",
    "blkio.reset_stats": "blkio",
}
"""What tells a controller of cgroup v1 by its folder."""


class Obstacle(Exception):
    """Why a hierarchy cannot be used; `fix` is half a sentence."""

    def __init__(self, cause: str, fix: str = GROUPS_HELP) -> None:
        super().__init__(cause)
        self.cause = cause
        self.fix = fix


class Leaves:
    """The leaves of one service.

    Args:
        instance: its number in ownership tags, for the name of its groups.
        own_pids: finds the processes of the service, with the daemon's own; blocking.
    """

    def __init__(self, instance: int, own_pids: Callable[[], Collection[int]]) -> None:
        self._name = f"{PREFIX}{instance}"
        self._own_pids = own_pids
        self._folders: list[Folder] = []
        self._kept = False
        self._leaves: dict[int, Leaf] = {}
        self._removals: dict[int, asyncio.Task[None]] = {}
        self._lock = threading.Lock()
        self._obstacles: dict[str, Obstacle] = {}
        """Why a controller cannot be used, by its name."""
        self._undo: list[Callable[[], None]] = []
        """Puts the daemon's own group back as it was, first entry last."""

    # -- in a thread

    def make(self, number: int, limits: ResourceLimits, extra_pids: int) -> Leaf:
        """Make the leaf of a process that is about to start; blocking.

        Args:
            number: of the process.
            limits: what to enforce.
            extra_pids: processes that a sandbox adds to those of the command.

        Raises:
            LimitRefused: a limit cannot be enforced.
            OSError: no descriptor or no memory is available.
        """
        with self._lock:
            if not self._folders:
                self._open()
            self._require(limits)
            leaf = Leaf(self._folders, number, extra_pids)
            leaf.make(limits)
            self._add(leaf)
        return leaf

    def kill(self, numbers: Collection[int]) -> None:
        """SIGKILL everything in the leaves of these processes; blocking."""
        for leaf in [leaf for number, leaf in self._leaves.copy().items() if number in numbers]:
            if not leaf.kill():
                log.error("processes in a leaf could not be killed", number=leaf.number)

    def close(self) -> None:
        """Remove the groups of the service, whose processes are dead; blocking. What cannot be removed is
        left to the next start.
        """
        with self._lock:
            for leaf in self._leaves.values():
                leaf.kill()
                _remove_soon(leaf)
            self._leaves.clear()
            for folder in self._folders:
                path = os.readlink(f"/proc/self/fd/{folder.fd}")
                with suppress(OSError):
                    os.rmdir(path)
                os.close(folder.fd)
            self._folders.clear()
            for undo in reversed(self._undo):
                with suppress(OSError):
                    undo()

    @property
    def mount_points(self) -> tuple[str, ...]:
        """Where the hierarchies are mounted. A process that may write there can leave its leaf."""
        return mount_points()

    # -- on the loop

    def unkept_descriptors(self) -> list[int]:
        """The folders of the service, for `adopt`, once after they are opened; else none. They still belong
        to this object.
        """
        kept, self._kept = self._kept, True
        return [] if kept else [folder.fd for folder in self._folders]

    def adopt(self, descriptors: Iterable[int]) -> None:
        """Continue with the groups of a previous server, whose descriptors belong to this object now."""
        self._folders = [_adopted(fd) for fd in descriptors]
        self._kept = bool(self._folders)
        for folder in self._folders:
            own = os.path.dirname(os.readlink(f"/proc/self/fd/{folder.fd}"))
            if folder.version == 2 and os.path.isdir(f"{own}/{INNER}"):
                self._undo += [partial(_move_back, own), partial(_disable, own, folder.controllers)]
        for number in {
            int(name) for folder in self._folders for name in os.listdir(folder.fd) if name.isdigit()
        }:
            self._add(Leaf(self._folders, number))

    def find(self, number: int) -> Leaf | None:
        """The leaf of a process; None once it is removed."""
        return self._leaves.get(number)

    def leave(self, number: int) -> None:
        """Remove the leaf of a process, if it has one, as soon as it is empty."""
        if number in self._leaves:
            self._leave(self._leaves[number])

    def leave_all_but(self, numbers: Collection[int]) -> None:
        """Remove the leaves of all other processes, each as soon as it is empty."""
        for number, leaf in self._leaves.copy().items():
            if number not in numbers:
                leaf.leave()

    def _add(self, leaf: Leaf) -> None:
        self._leaves[leaf.number] = leaf
        leaf.leave = lambda: self._leave(leaf)

    def _leave(self, leaf: Leaf) -> None:
        if leaf.number in self._leaves and leaf.number not in self._removals:
            task = asyncio.get_running_loop().create_task(self._remove(leaf))
            self._removals[leaf.number] = task

    async def _remove(self, leaf: Leaf) -> None:
        loop = asyncio.get_running_loop()
        pause = _FIRST_PAUSE_SECONDS
        while not await loop.run_in_executor(None, leaf.remove):
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        leaf.on_removed()
        del self._leaves[leaf.number], self._removals[leaf.number]

    # -- the groups of the service

    def _open(self) -> None:
        """Make the groups, in each hierarchy where that is possible."""
        self._obstacles.clear()
        for hierarchy in find_hierarchies():
            try:
                self._folders.append(self._make_group(hierarchy))
            except Obstacle as obstacle:
                found = obstacle
            except OSError as error:
                found = Obstacle(f"{error.filename or hierarchy.folder}: {error.strerror}")
            else:
                continue
            self._obstacles.update(dict.fromkeys(hierarchy.controllers, found))

    def _require(self, limits: ResourceLimits) -> None:
        """Raise LimitRefused for the first limit without a group that can have it."""
        for member in limits.values():
            names = CONTROLLERS.get(member, ())
            if names and not any(folder.controllers.intersection(names) for folder in self._folders):
                known = next((self._obstacles[name] for name in names if name in self._obstacles), None)
                obstacle = known or Obstacle(f"the daemon has no {names[0]} controller of control groups")
                raise LimitRefused(member, obstacle.cause, obstacle.fix)

    def _make_group(self, hierarchy: Hierarchy) -> Folder:
        controllers = hierarchy.controllers
        if hierarchy.version == 2:
            controllers = self._enable(hierarchy)
        path = f"{hierarchy.folder}/{self._name}"
        fd = _make_locked(path)
        try:
            if hierarchy.version == 2:
                _write(f"{path}/cgroup.subtree_control", _enabling(controllers))
        except BaseException:
            os.rmdir(path)
            os.close(fd)
            raise
        return Folder(fd, hierarchy.version, controllers)

    def _enable(self, hierarchy: Hierarchy) -> frozenset[str]:
        """Enable the controllers of cgroup v2 for the groups below the daemon's own one. Unless that is the
        root, it must not hold processes itself, so they are moved into another group below.
        """
        folder = hierarchy.folder
        control = f"{folder}/cgroup.subtree_control"
        missing = hierarchy.controllers - set(_read(control).split())
        if missing:
            if not hierarchy.may_hold_processes:
                self._undo.append(partial(_move_back, folder))
                self._move_inside(folder)
            _write(control, _enabling(missing))
            self._undo.append(partial(_disable, folder, missing))
        return hierarchy.controllers

    def _move_inside(self, folder: str) -> None:
        inner = f"{folder}/{INNER}"
        own: Collection[int] = ()
        for _ in range(_MOVES):
            pids = [int(pid) for pid in _read(f"{folder}/cgroup.procs").split()]
            if not pids:
                return
            own = own if set(pids) <= set(own) else self._own_pids()
            if foreign := [pid for pid in pids if pid not in own]:
                raise Obstacle(
                    f"the control group {folder} holds processes of others (such as pid {foreign[0]})",
                    "give the daemon a group of its own: a systemd unit with Delegate=yes, or "
                    "`systemd-run --user --scope -p Delegate=yes execserver serve`",
                )
            with suppress(FileExistsError):
                os.mkdir(inner)
            for pid in pids:
                with suppress(ProcessLookupError):
                    _write(f"{inner}/cgroup.procs", str(pid))
        raise Obstacle(f"the processes in {folder} fork faster than they can be moved")


def sweep(groups: Iterable[str]) -> None:
    """Remove those of these groups whose service is dead, with everything in them; blocking. A group whose
    lock is held belongs to a service that lives.
    """
    for path in groups:
        with suppress(OSError):
            _sweep_group(path)
            log.info("the control group of a dead service was removed", group=path)


def _sweep_group(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = _adopted(fd)
        for name in os.listdir(fd):
            if name.isdigit():
                leaf = Leaf([folder], int(name))
                leaf.kill()
                _remove_soon(leaf)
        os.rmdir(path)
    finally:
        os.close(fd)


def _remove_soon(leaf: Leaf) -> None:
    """Remove a leaf whose processes were killed: the kernel takes a moment to notice the end of the last."""
    until = time.monotonic() + _LONGEST_PAUSE_SECONDS
    while not leaf.remove() and time.monotonic() < until:
        time.sleep(_FIRST_PAUSE_SECONDS)


def _make_locked(path: str) -> int:
    """Make a group, or take the one that is there, and lock it for as long as a copy of the descriptor is
    open.

    Raises:
        OSError: it cannot be made, or belongs to a service that lives.
    """
    # Until it is locked, each sweep may lock and remove it: of another daemon, or our own.
    until = time.monotonic() + _SWEEP_SECONDS
    while True:
        with suppress(FileExistsError):
            os.mkdir(path)
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if lock(fd) and leads_to(path, fd):
                return fd
            os.close(fd)
        if time.monotonic() >= until:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        time.sleep(_FIRST_PAUSE_SECONDS)


def _adopted(fd: int) -> Folder:
    names = set(os.listdir(fd))
    if "cgroup.subtree_control" in names:
        control = os.open("cgroup.subtree_control", os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
        try:
            enabled = os.read(control, 4096).decode("ascii").split()
        finally:
            os.close(control)
        return Folder(fd, 2, frozenset(enabled) & frozenset(WANTED))
    return Folder(fd, 1, frozenset(_CONTROL_FILES[name] for name in names & _CONTROL_FILES.keys()))


def _disable(folder: str, controllers: Collection[str]) -> None:
    _write(f"{folder}/cgroup.subtree_control", _enabling(controllers, "-"))


def _move_back(folder: str) -> None:
    inner = f"{folder}/{INNER}"
    for _ in range(_MOVES):
        pids = _read(f"{inner}/cgroup.procs").split()
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError):
                _write(f"{folder}/cgroup.procs", pid)
    os.rmdir(inner)


def _enabling(controllers: Collection[str], sign: str = "+") -> str:
    return " ".join(f"{sign}{name}" for name in sorted(controllers))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)
