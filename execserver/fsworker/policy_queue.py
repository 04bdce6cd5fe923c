"""One policy in the pool of fs workers: its worker, what the view of that rests on, and who waits for it.

Requests wait by connection, and the connections take turns.

The kernel uncovers a name when what stood there is removed or replaced from outside the sandbox. So the view
of a worker is good only as long as everything that it covers is still the same (`ViewDependencies`).
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
from execserver.sandbox.disk import locate
from execserver.sandbox.mount_points.held import is_empty
from execserver.sandbox.policy import PROTECTED_NAMES, Access, Policy
from execserver.sandbox.protected import protect
from execserver.sandbox.tree import Tree

_Check = tuple[str, Callable[[str], os.stat_result], int | None, int | None, int | None]
"""A path, what looks at it, device and inode that it had, and when it was written last where that matters."""

_OUT_OF_SOMETHING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about the path."""


class Request(msgspec.Struct, eq=False):
    """What a worker is to be asked."""

    payload: bytes
    adopt: Adopt | None
    answer: asyncio.Future[Answer]
    newest: bool
    """Whether it takes a worker that was started after the request was made, if there are patterns."""

    made_at: float


class PolicyQueue:
    """One policy. Only the pool changes the attributes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.waiting: OrderedDict[object, deque[Request]] = OrderedDict()
        self.worker: WorkerClient | None = None
        self.preparing: asyncio.Task[None] | None = None
        """Starts a worker, or looks in a thread whether it may be used; nothing else happens then."""
        self.has_slot = False
        self.dependencies: ViewDependencies | None = None
        """Of its worker's view; there is one as long as there is a worker."""
        self.unsuccessful_starts = 0
        """How many workers in a row were too late for what changed while they started."""
        self.started_at = 0.0
        """When the making of its worker's sandbox began."""
        self.turn_began = 0.0
        self.used_at = 0.0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether it has a worker that does nothing."""
        return self.worker is not None and not self.worker.busy and self.preparing is None

    def drop_dependencies(self) -> None:
        """Its worker is of no more use (idempotent)."""
        if self.dependencies is not None:
            self.dependencies.close()
            self.dependencies = None

    def add(self, owner: object, request: Request) -> None:
        """Put a request behind the others of its connection."""
        self.waiting.setdefault(owner, deque()).append(request)

    def next_request(self) -> Request | None:
        """The request whose turn it is; those that nobody wants any more are forgotten."""
        while self.waiting:
            owner, requests = next(iter(self.waiting.items()))
            while requests and requests[0].answer.done():
                requests.popleft()
            if requests:
                return requests[0]
            del self.waiting[owner]
        return None

    def pop_request(self) -> Request:
        """Remove the first request; its connection goes behind the others."""
        owner, requests = next(iter(self.waiting.items()))
        request = requests.popleft()
        self.waiting.move_to_end(owner)
        if not requests:
            del self.waiting[owner]
        return request

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with an error."""
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
    """Whether it is about what a link leads to, as with the path of a rule."""

    protected: bool
    """Whether it is one of the protected names."""

    guarded: bool
    """Whether the view covers an empty folder that appears here while it is made: a mount point."""


class ViewDependencies:
    """What was found at the paths that a view depends on: rules' paths, protected names, and what is covered
    because of either.

    All of it is held open until `close`. As long as it is, nothing else can get its inode, which ext4 would
    give to the very next folder: a `.git` that is removed and made anew would look like the old one.
    """

    def __init__(self, watched: Iterable[WatchedPath]) -> None:
        """Look. May block.

        Raises:
            OSError: there are not enough descriptors, or there is not enough memory.
        """
        self._descriptors: list[int] = []
        self._found: list[tuple[WatchedPath, os.stat_result | None]] = []
        self._empty: set[str] = set()
        """Guarded paths of folders with nothing in them, as mount points are from outside."""
        try:
            for each in watched:
                # Before it is held and through the descriptor: a mount point may be removed in between.
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
            if error.errno in _OUT_OF_SOMETHING:
                raise
            return None
        self._descriptors.append(descriptor)
        return os.fstat(descriptor)

    def holds(self) -> bool:
        """Whether everything is still the same. May block.

        Before each request: one system call and some 1.3 µs for each path.
        """
        for path, stat_of, device, inode, written in self._checks:
            try:
                status = stat_of(path)
            except OSError:
                if inode is not None:
                    return False
                continue
            # What is held open keeps its type.
            if status.st_ino != inode or status.st_dev != device:
                return False
            if written is not None and status.st_mtime_ns != written:
                return False
        return True

    def renewed(self) -> ViewDependencies | None:
        """What is there now, when a view is being made for which this was looked at before. May block.

        None: something changed, and the view may be right or not. That mount points appeared, or were made
        anew because those of somebody else went away, is no such change: they are there for the view.

        Raises:
            OSError: as for the first look.
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
        """Whether what changed at a path is right for the view, whichever of the two was seen for it."""
        # A folder with something in it was none; the view may cover what is no longer there.
        if not watched.guarded or (before is not None and watched.path not in self._empty):
            return False
        # Nothing or an empty folder, and then an empty folder: it is covered, with what is there now.
        return is_empty(watched.path)

    def close(self) -> None:
        """Let go of what is held (idempotent)."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def look(policy: Policy) -> ViewDependencies:
    """Find out what a view for a policy would depend on, and what is there. May block.

    Raises:
        OSError: as for a `ViewDependencies`, or something moved just now.
    """
    return ViewDependencies(_watched_paths(policy))


def _watched_paths(policy: Policy) -> Iterable[WatchedPath]:
    tree = Tree(Access.DENY)
    guarded: set[str] = set()
    for rule in policy.rules:
        place = locate(rule.path)
        if place is not None and place.exists:
            tree.set(place, rule.access)
        if rule.access is not Access.WRITE and not rule.skip_missing:
            guarded.add(rule.path)
            if place is not None and not place.exists:
                guarded.add(place.missing or place.path)
    names = {f"{root.rstrip('/')}/{name}" for root in tree.writable_folders() for name in PROTECTED_NAMES}
    # What cannot be protected is told by whoever makes the sandbox.
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
    # A file `.git` says what else is covered (`protected.py`); only others than the worker write to it.
    matters = watched.protected and stat.S_ISREG(status.st_mode)
    return watched.path, stat_of, status.st_dev, status.st_ino, status.st_mtime_ns if matters else None
