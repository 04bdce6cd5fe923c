"""`fs/watchMissing`: tell once that a set of absent paths changed (`docs/protocol.md`, section of that name).

inotify tells at once. Where it does not see everything (a network mount, a link on the way, a
user who has used up his watches) the paths are looked at again every two seconds. All looking
is done in threads; only events are read on the loop's thread.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from functools import partial

from execprotocol.limits import MAX_WATCHED_PATHS
from execserver import inotify
from execserver.filesystem.blocking import BlockingCalls, run_in_background
from execserver.filesystem.descriptors import Descriptor
from execserver.filesystem.survey import APPEARED, LEFT, Survey, survey

LOOK_AGAIN_SECONDS = 2.0
"""Short enough for a user who made a file and waits, long enough to cost nothing."""

_STALE = inotify.QUEUE_OVERFLOW | inotify.UNMOUNT | inotify.IGNORED


class _Verdict(enum.Enum):
    """What events mean for a watch."""

    NOTHING = enum.auto()
    CHANGED = enum.auto()
    """It fires."""
    STALE = enum.auto()
    """Its inotify watches no longer stand for the paths."""


class MissingWatch:
    """The one watch of a connection. All methods are called on the loop's thread.

    Args:
        calls: the connection's calls in threads.
        inotify_suffices: whether inotify sees all changes on all mounts.
        fire: called with the watch's id, once for each watch that fires.
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
        """End the watch that is, and begin another one.

        Args:
            watch_id: greater than all before it, from 0; else nothing changes.
            missing: 1 to 64 native paths, none of which may be there.
            present: a native path that must be there.

        Returns:
            Whether the new watch stands.
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
        """End the watch, if there is one, in silence."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None


class _Watch:
    """One watch, from `begin` to `end`; it ends itself when it fires."""

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
        self._seen = Survey()
        self._instance: Descriptor | None = None
        self._next_instance: Descriptor | None = None
        self._looking = False
        self._look_once_more = False
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> bool:
        """Take the first look; False when it shows that there is nothing to wait for."""
        self._next_instance = _open_instance()
        try:
            seen = await self._calls.run(survey, self._missing, self._present, self._next_instance)
        except BaseException:
            self.end()
            raise
        if self._ended or not seen.stands:
            self.end()
            return False
        self._stand(seen)
        return True

    def end(self) -> None:
        """Let go of everything; more than once is no error."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._drop_instance()
        _close_instance(self._next_instance)
        self._next_instance = None

    def _stand(self, seen: Survey) -> None:
        """Wait for what a survey has prepared."""
        self._drop_instance()
        self._instance, self._next_instance = self._next_instance, None
        # What cannot be looked at just now is where it was.
        seen.absent = self._seen.absent | seen.absent
        self._seen = seen
        loop = asyncio.get_running_loop()
        if self._instance is not None:
            with self._instance.borrow() as number:
                loop.add_reader(number, self._read_events)
        if not seen.covered or not self._inotify_suffices():
            self._timer = loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _drop_instance(self) -> None:
        if self._instance is not None:
            with self._instance.borrow() as number:
                asyncio.get_running_loop().remove_reader(number)
            _close_instance(self._instance)
            self._instance = None

    def _read_events(self) -> None:
        verdict = self._judge_events()
        if verdict is _Verdict.CHANGED:
            self._end_and_fire()
        elif verdict is _Verdict.STALE:
            self._look_again()

    def _judge_events(self) -> _Verdict:
        """Read the events that are there."""
        verdict = _Verdict.NOTHING
        if self._instance is None:
            return verdict
        with self._instance.borrow() as number:
            events = inotify.read_events(number)
        for event in events:
            key = (event.watch, event.name)
            appeared = event.mask & APPEARED and key in self._seen.appearing
            left = event.mask & LEFT and key in self._seen.leaving
            if appeared or left:
                return _Verdict.CHANGED
            if event.mask & _STALE or (event.mask & LEFT and key in self._seen.appearing):
                verdict = _Verdict.STALE
        return verdict

    def _look_again(self) -> None:
        """Survey anew, with a new instance; the old one goes on telling until then."""
        if self._looking:
            self._look_once_more = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._looking = True
        self._next_instance = _open_instance()
        look = self._calls.run(survey, self._missing, self._present, self._next_instance)
        look.add_done_callback(self._looked_again)

    def _looked_again(self, look: asyncio.Future[Survey]) -> None:
        self._looking = False
        if self._ended or look.cancelled():
            return
        seen = look.result()
        if self._judge_events() is _Verdict.CHANGED or seen.shows_change_since(self._seen):
            self._end_and_fire()
            return
        self._stand(seen)
        if self._look_once_more:
            self._look_once_more = False
            self._look_again()

    def _end_and_fire(self) -> None:
        self.end()
        self._fire()


def _open_instance() -> Descriptor | None:
    try:
        return Descriptor(inotify.open_inotify())
    except OSError:
        # The user has too many instances; the next look tries again.
        return None


def _close_instance(instance: Descriptor | None) -> None:
    # The kernel waits for its readers of the watches, for some milliseconds.
    if instance is not None:
        run_in_background(instance.close)
