"""`fs/watchMissing`: report once that a missing path has appeared (`docs/protocol.md`, section of that name).

inotify reports a change at once. Where it may miss one (on a network mount, behind a link, or when the user
has no inotify watches left), the paths are surveyed again every two seconds. Surveys run in threads; only
events are read on the loop's thread.

A survey goes from the root down, and watches each directory *before* it looks up the next name: an earlier
change is seen, a later one is an event. A directory that is renamed away and back is noticed too.
"""

from __future__ import annotations

import asyncio
import enum
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from execprotocol.limits import MAX_WATCHED_PATHS
from execserver import inotify
from execserver.filesystem.blocking import BlockingCalls, run_in_background
from execserver.filesystem.descriptors import Descriptor

SURVEY_SECONDS = 2.0
"""Short enough for a user who waits for an effect, long enough to cost nothing."""

_APPEARED = inotify.CREATE | inotify.MOVED_TO
_LEFT = inotify.DELETE | inotify.MOVED_FROM
_MASK = _APPEARED | _LEFT | inotify.ONLY_DIRECTORY
_STALE = inotify.QUEUE_OVERFLOW | inotify.UNMOUNT | inotify.IGNORED


class _Verdict(enum.Enum):
    """The effect of events on a watch."""

    NOTHING = enum.auto()
    CHANGED = enum.auto()
    """The watch fires."""
    STALE = enum.auto()
    """Its inotify watches no longer match the paths."""


class MissingWatch:
    """The one watch of a connection. All methods are called on the loop's thread.

    Args:
        calls: the connection's calls in threads.
        inotify_suffices: whether inotify reports all changes on all mounts.
        fire: called once for each watch that fires, with its id.
    """

    def __init__(
        self, calls: BlockingCalls, inotify_suffices: Callable[[], bool], fire: Callable[[int], None]
    ) -> None:
        self._calls = calls
        self._inotify_suffices = inotify_suffices
        self._fire = fire
        self._latest_id = 0
        self._watch: _Watch | None = None

    async def replace(self, watch_id: int, missing: Sequence[str], present: str | None) -> bool:
        """End the current watch, and begin a new one.

        Args:
            watch_id: greater than all earlier ones, which begin at 0; otherwise nothing changes.
            missing: 1 to 64 native paths, which must be missing.
            present: a native path that must exist.

        Returns:
            Whether the new watch has begun.
        """
        if watch_id <= self._latest_id:
            return False
        self._latest_id = watch_id
        self.close()
        if not 1 <= len(missing) <= MAX_WATCHED_PATHS:
            return False
        watch = _Watch(self._calls, missing, present, self._inotify_suffices, partial(self._fire, watch_id))
        self._watch = watch
        return await watch.begin()

    def close(self) -> None:
        """End the current watch, if any; it does not fire."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None


class _Watch:
    """One watch. It ends when it fires."""

    def __init__(
        self,
        calls: BlockingCalls,
        missing: Sequence[str],
        present: str | None,
        inotify_suffices: Callable[[], bool],
        fire: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._missing = missing
        self._present = present
        self._inotify_suffices = inotify_suffices
        self._fire = fire
        self._ended = False
        self._seen = _Survey()
        self._instance: Descriptor | None = None
        self._next_instance: Descriptor | None = None
        self._surveying = False
        self._survey_once_more = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> bool:
        """Make the first survey; False if the paths are not as the watch requires."""
        self._next_instance = _open_instance()
        try:
            seen = await self._calls.run(_survey, self._missing, self._present, self._next_instance)
        except BaseException:
            self.end()
            raise
        if self._ended or not seen.stands:
            self.end()
            return False
        self._stand(seen)
        return True

    def end(self) -> None:
        """End the watch (idempotent)."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._drop_instance()
        _close_instance(self._next_instance)
        self._next_instance = None

    def _stand(self, seen: _Survey) -> None:
        """Wait for the events that a survey has set up."""
        self._drop_instance()
        self._instance, self._next_instance = self._next_instance, None
        # A path that could not be looked up keeps its earlier result.
        seen.absent = self._seen.absent | seen.absent
        self._seen = seen
        loop = asyncio.get_running_loop()
        if self._instance is not None:
            with self._instance.borrow() as fd:
                loop.add_reader(fd, self._read_events)
        if not seen.covered or not self._inotify_suffices():
            self._timer = loop.call_later(SURVEY_SECONDS, self._survey_again)

    def _drop_instance(self) -> None:
        if self._instance is not None:
            with self._instance.borrow() as fd:
                asyncio.get_running_loop().remove_reader(fd)
            _close_instance(self._instance)
            self._instance = None

    def _read_events(self) -> None:
        verdict = self._judge_events()
        if verdict is _Verdict.CHANGED:
            self._end_and_fire()
        elif verdict is _Verdict.STALE:
            self._survey_again()

    def _judge_events(self) -> _Verdict:
        """Read the pending events."""
        verdict = _Verdict.NOTHING
        if self._instance is None:
            return verdict
        with self._instance.borrow() as fd:
            events = inotify.read_events(fd)
        for event in events:
            key = (event.watch, event.name)
            appeared = event.mask & _APPEARED and key in self._seen.appearing
            left = event.mask & _LEFT and key in self._seen.leaving
            if appeared or left:
                return _Verdict.CHANGED
            if event.mask & _STALE or (event.mask & _LEFT and key in self._seen.appearing):
                verdict = _Verdict.STALE
        return verdict

    def _survey_again(self) -> None:
        """Survey again, with a new inotify instance; the old one reports events until then."""
        if self._surveying:
            self._survey_once_more = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._surveying = True
        self._next_instance = _open_instance()
        call = self._calls.run(_survey, self._missing, self._present, self._next_instance)
        call.add_done_callback(self._surveyed_again)

    def _surveyed_again(self, call: asyncio.Future[_Survey]) -> None:
        self._surveying = False
        if self._ended or call.cancelled():
            return
        seen = call.result()
        if self._judge_events() is _Verdict.CHANGED or seen.shows_change_since(self._seen):
            self._end_and_fire()
            return
        self._stand(seen)
        if self._survey_once_more:
            self._survey_once_more = False
            self._survey_again()

    def _end_and_fire(self) -> None:
        self.end()
        self._fire()


def _open_instance() -> Descriptor | None:
    try:
        return Descriptor(inotify.open_inotify())
    except OSError:
        # The user has too many instances; the next survey tries again.
        return None


def _close_instance(instance: Descriptor | None) -> None:
    # The kernel waits some milliseconds for readers of the watches.
    if instance is not None:
        run_in_background(instance.close)


# -- surveys


class _Survey(msgspec.Struct):
    """The state of the paths, and the events that report a change of it."""

    absent: dict[str, str] = msgspec.field(default_factory=dict)
    """Missing path → its shortest prefix that is missing."""

    found: bool = False
    """One of the missing paths exists."""

    unclear: bool = False
    """One of the paths could not be looked up."""

    present_left: bool = False
    """The present path is missing."""

    covered: bool = True
    """inotify reports every change; otherwise further surveys are needed."""

    appearing: set[tuple[int, str]] = msgspec.field(default_factory=set)
    """Watch and name: its appearance fires, its removal makes the watches below it stale."""

    leaving: set[tuple[int, str]] = msgspec.field(default_factory=set)
    """Watch and name: its removal fires."""

    @property
    def stands(self) -> bool:
        """Whether a watch can begin with this state."""
        return not (self.found or self.unclear or self.present_left)

    def shows_change_since(self, earlier: _Survey) -> bool:
        """Whether the watch fires, even if no event reported the change."""
        if self.found or self.present_left:
            return True
        # The missing prefix gets longer when a directory appears, shorter when one vanishes.
        return any(len(part) > len(earlier.absent.get(path, path)) for path, part in self.absent.items())


def _survey(missing: Sequence[str], present: str | None, descriptor: Descriptor | None) -> _Survey:
    """Look up all paths, and watch the directories above them.

    Args:
        missing: native paths that should be missing.
        present: one that should exist.
        descriptor: an inotify instance; None adds no watches.
    """
    surveyor = _Surveyor(descriptor)
    for path in missing:
        surveyor.look_for_missing(path)
    if present is not None:
        surveyor.look_for_present(present)
    return surveyor.seen


class _Surveyor:
    def __init__(self, descriptor: Descriptor | None) -> None:
        self.seen = _Survey(covered=descriptor is not None)
        self._descriptor = descriptor
        self._watches: dict[str, int | None] = {}

    def look_for_missing(self, path: str) -> None:
        part = self._descend(path, self.seen.appearing)
        if part is None:
            return
        if part == "":
            self.seen.found = True
        else:
            self.seen.absent[path] = part

    def look_for_present(self, path: str) -> None:
        part = self._descend(path, self.seen.leaving)
        if part:
            self.seen.present_left = True

    def _descend(self, path: str, keys: set[tuple[int, str]]) -> str | None:
        """The shortest missing prefix of a path; "" if the path exists; None if it cannot be looked up."""
        directory = ""
        for name in path.split("/")[1:] if path != "/" else []:
            watch = self._watch(directory or "/")
            if watch is not None:
                keys.add((watch, name))
            directory = f"{directory}/{name}"
            try:
                status = os.lstat(directory)
            except FileNotFoundError:
                return directory
            except OSError:
                self.seen.unclear = True
                self.seen.covered = False
                return None
            if stat.S_ISLNK(status.st_mode):
                # Its target may change in a directory without a watch.
                self.seen.covered = False
        return ""

    def _watch(self, directory: str) -> int | None:
        if self._descriptor is None:
            return None
        if directory not in self._watches:
            try:
                with self._descriptor.borrow() as fd:
                    self._watches[directory] = inotify.add_watch(fd, directory, _MASK)
            except OSError:
                # Removed, not readable, no directory, or the user has no watches left.
                self._watches[directory] = None
                self.seen.covered = False
        return self._watches[directory]
