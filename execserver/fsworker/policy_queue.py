"""The queue of one policy in the pool of fs workers: its requests, its worker, and what its view depends on.

Requests wait by connection, and the connections take turns.

A view covers names by mounts. The kernel uncovers a name when the file there is removed or replaced from
outside the sandbox. So a worker's view is valid only while all covered files are the same
(`ViewDependencies`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from execprotocol.errors import InvalidRequest
from execserver.fsworker.client import Adopt, Answer, WorkerClient
from execserver.sandbox.disk import resolve_path
from execserver.sandbox.mount_points.held import is_empty
from execserver.sandbox.policy import PROTECTED_NAMES, Access, Policy
from execserver.sandbox.protected import protect
from execserver.sandbox.tree import Tree

_Check = tuple[str, Callable[[str], os.stat_result], int | None, int | None, int | None]
"""A path, the function that looks it up, its device and inode, and its last write time where that matters."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that do not depend on the path."""


class FileRequest(msgspec.Struct, eq=False):
    """A request for a worker."""

    payload: bytes
    adopt: Adopt | None
    answer: asyncio.Future[Answer]
    newest: bool
    """If the policy has patterns, a worker that started before the request is not used."""

    made_at: float


class PolicyQueue:
    """The queue of one policy. Only the pool changes the attributes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.waiting: OrderedDict[object, deque[FileRequest]] = OrderedDict()
        self.worker: WorkerClient | None = None
        self.preparing: asyncio.Task[None] | None = None
        """Starts a worker, or checks in a thread whether it may be used. Nothing else runs meanwhile."""
        self.has_slot = False
        self.dependencies: ViewDependencies | None = None
        """Of its worker's view; set as long as there is a worker."""
        self.unsuccessful_starts = 0
        """How many starts in a row were outdated by a change meanwhile."""
        self.started_at = 0.0
        """When the start of its worker's sandbox began."""
        self.turn_began = 0.0
        self.used_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether its worker is idle."""
        return self.worker is not None and not self.worker.busy and self.preparing is None

    def drop_dependencies(self) -> None:
        """Close the dependencies of a worker that is no longer used (idempotent)."""
        if self.dependencies is not None:
            self.dependencies.close()
            self.dependencies = None

    def add(self, owner: object, request: FileRequest) -> None:
        """Append a request to those of its connection."""
        self.waiting.setdefault(owner, deque()).append(request)

    def next_request(self) -> FileRequest | None:
        """The request whose turn it is. Cancelled ones are dropped."""
        while self.waiting:
            owner, requests = next(iter(self.waiting.items()))
            while requests and requests[0].answer.done():
                requests.popleft()
            if requests:
                return requests[0]
            del self.waiting[owner]
        return None

    def pop_request(self) -> FileRequest:
        """Remove the next request; its connection moves to the end."""
        owner, requests = next(iter(self.waiting.items()))
        request = requests.popleft()
        self.waiting.move_to_end(owner)
        if not requests:
            del self.waiting[owner]
        return request

    def fail_all(self, error: Exception) -> None:
        """Answer all requests with an error."""
        waiting, self.waiting = self.waiting, OrderedDict()
        for requests in waiting.values():
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
                    request.answer.exception()


class WatchedPath(msgspec.Struct, frozen=True):
    """A path that a view depends on."""

    path: str
    follow: bool
    """Whether a link is followed, as in the path of a rule."""

    protected: bool
    """Whether it is a protected name."""

    guarded: bool
    """Whether an empty folder that appears here while the view is made is a mount point, and covered."""


class ViewDependencies:
    """The files at the paths that a view depends on: paths of rules, protected names, and all that is covered
    for them.

    They are held open until `close`, so that their inodes are not reused. ext4 gives the inode of a removed
    folder to the next new one: a `.git` that is removed and made anew would look like the old one.
    """

    def __init__(self, watched: Iterable[WatchedPath]) -> None:
        """Open and look up all paths. May block.

        Raises:
            OSError: the process is out of descriptors or memory.
        """
        self._descriptors: list[int] = []
        self._found: list[tuple[WatchedPath, os.stat_result | None]] = []
        self._empty: set[str] = set()
        """Guarded paths of empty folders. From outside, a mount point is empty."""
        try:
            for each in watched:
                # Checked before it is opened and through the descriptor: it may be removed in between.
                empty = each.guarded and is_empty(each.path)
                status = self._hold(each)
                self._found.append((each, status))
                if empty and status is not None and is_empty(f"/proc/self/fd/{self._descriptors[-1]}"):
                    self._empty.add(each.path)
        except BaseException:
            self.close()
            raise
        self._checks = [_check(each, status) for each, status in self._found]

    def _hold(self, watched: WatchedPath) -> os.stat_result | None:
        flags = os.O_PATH | os.O_CLOEXEC | (0 if watched.follow else os.O_NOFOLLOW)
        try:
            descriptor = os.open(watched.path, flags)
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                raise
            return None
        self._descriptors.append(descriptor)
        return os.fstat(descriptor)

    def holds(self) -> bool:
        """Whether all files are the same. May block.

        Called before each request: one system call and some 1.3 µs for each path.
        """
        for path, stat_of, device, inode, written in self._checks:
            try:
                status = stat_of(path)
            except OSError:
                if inode is not None:
                    return False
                continue
            # An open file keeps its type.
            if status.st_ino != inode or status.st_dev != device:
                return False
            if written is not None and status.st_mtime_ns != written:
                return False
        return True

    def renewed(self) -> ViewDependencies | None:
        """Look up all paths again after a view was made. May block.

        Returns:
            The new dependencies; None if a file has changed, so that the view may be wrong. New mount points,
            and those made anew because another daemon removed its own, are no such change: they belong to the
            view.

        Raises:
            OSError: as for the constructor.
        """
        now = ViewDependencies(watched for watched, _ in self._found)
        changed = [
            (watched, status)
            for (watched, status), old, new in zip(self._found, self._checks, now._checks, strict=True)
            if old != new
        ]
        if all(self._is_mount_point(watched, status) for watched, status in changed):
            return now
        now.close()
        return None

    def _is_mount_point(self, watched: WatchedPath, before: os.stat_result | None) -> bool:
        """Whether the view is right with either state of a path that has changed."""
        # A folder with content was no mount point; the view may cover the old folder.
        if not watched.guarded or (before is not None and watched.path not in self._empty):
            return False
        # Missing or empty before, and empty now: the view covers it.
        return is_empty(watched.path)

    def close(self) -> None:
        """Close all files (idempotent)."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def view_dependencies(policy: Policy) -> ViewDependencies:
    """The dependencies of a view for a policy. May block.

    Raises:
        OSError: as for `ViewDependencies`, or a file was moved meanwhile.
    """
    return ViewDependencies(_watched_paths(policy))


def _watched_paths(policy: Policy) -> Iterable[WatchedPath]:
    tree = Tree(Access.DENY)
    guarded: set[str] = set()
    for rule in policy.rules:
        place = resolve_path(rule.path)
        if place is not None and place.exists:
            tree.set(place, rule.access)
        if rule.access is not Access.WRITE and not rule.skip_missing:
            guarded.add(rule.path)
            if place is not None and not place.exists:
                guarded.add(place.missing or place.path)
    names = {f"{root.rstrip('/')}/{name}" for root in tree.writable_folders() for name in PROTECTED_NAMES}
    # A name that cannot be protected is reported by the code that makes the sandbox.
    with suppress(InvalidRequest):
        protect(tree)
    guarded.update(names, tree.guards)
    covered = (mount.target for mount in tree.mounts(base_visible=False, hold=False))
    rules = {rule.path for rule in policy.rules}
    for path in sorted({*rules, *guarded, *covered}):
        yield WatchedPath(path, path in rules, path in names, path in guarded)


def _check(watched: WatchedPath, status: os.stat_result | None) -> _Check:
    stat_of = os.stat if watched.follow else os.lstat
    if status is None:
        return watched.path, stat_of, None, None, None
    # The content of a file `.git` names further covered paths (`protected.py`). The worker cannot write to
    # it.
    matters = watched.protected and stat.S_ISREG(status.st_mode)
    return watched.path, stat_of, status.st_dev, status.st_ino, status.st_mtime_ns if matters else None
