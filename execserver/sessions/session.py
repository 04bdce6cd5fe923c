"""A session: the processes of one client, which outlive any of its connections.

    attached ──connection lost──▶ detached ──TTL──▶ ended
     │ ▲                              │               ▲
     │ └──────────── resume ──────────┘               │
     └───────────────── session/end ──────────────────┘

`docs/protocol.md`, "Handshake and sessions".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from execserver.processes.output_log import Page
from execserver.processes.process import ManagedProcess
from execserver.processes.store import ProcessStore
from execserver.sessions.event_stream import HOLD_SECONDS, EventStream, Hold, Sink


class Session:
    """One client's processes and, while a connection is attached, their feeds to it."""

    def __init__(self, session_id: str, store: ProcessStore) -> None:
        self.id = session_id
        self.processes = store
        self.attachment: Attachment | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.ending: asyncio.Task[None] | None = None
        """Kills what is left of it; None while it can be resumed."""

    def attach(self, sink: Sink, *, resumed: bool, extensions: bool = False) -> Attachment:
        """Bring events to a connection from now on."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        self.attachment = Attachment(self.processes, sink, resumed=resumed, extensions=extensions)
        return self.attachment


class Attachment:
    """The feeds of one connection.

    At the moment of the attachment the cursor of every process stands at its head: what is
    older is sent only as the answer to a read.

    A connection may observe the processes of other sessions, too; their feeds end with it.
    """

    def __init__(
        self, processes: ProcessStore, sink: Sink, *, resumed: bool, extensions: bool = False
    ) -> None:
        self._sink = sink
        self._extensions = extensions
        self._feeds: dict[int, EventStream] = {}
        self._behind: dict[int, EventStream] = {}
        self._observed: dict[tuple[str, str], EventStream] = {}
        """Feeds of other sessions' processes, by session and the name there."""
        self._closed = False
        self._hold: asyncio.TimerHandle | None = None
        for process in processes:
            self._follow(process, process.log.next_seq - 1, Hold.RESUME if resumed else None)
        if resumed and self._feeds:
            self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release_all)

    def follow(self, process: ManagedProcess) -> Callable[[], None]:
        """Keep the events of a process that was just started, to send them from when the function
        that this gives is called.
        """
        return self._follow(process, 0, Hold.START).release

    def observe(
        self, process: ManagedProcess, after_seq: int, follower: str, *, interactive: bool
    ) -> Callable[[], None]:
        """Follow the process of another session, from the event behind `after_seq` on. Events are sent from
        when the function that this gives is called. Following a second time moves the cursor.

        Args:
            process: of another session.
            after_seq: the last number that the connection has.
            follower: the connection's own session.
            interactive: whether the size of the terminal is left to this connection.
        """
        key = (process.started.session, process.process_id)
        self.unobserve(*key)
        over = process.closed_seq is not None and after_seq >= process.closed_seq
        if self._closed or over:
            return _nothing
        feed = self._observed[key] = EventStream(
            process,
            self._sink,
            after_seq,
            partial(self._forget_observed, key, process.number),
            Hold.START,
            extensions=self._extensions,
            follower=follower,
            interactive=interactive,
        )
        return partial(self._release_observed, key, feed)

    def _release_observed(self, key: tuple[str, str], feed: EventStream) -> None:
        if self._observed.get(key) is feed:
            feed.release()

    def observes(self, session_id: str, process_id: str) -> EventStream | None:
        """The feed of another session's process, if there is one."""
        return self._observed.get((session_id, process_id))

    @property
    def observes_any_end(self) -> bool:
        """Whether the end of another session's process is still to come."""
        return any(not feed.process.closed for feed in self._observed.values())

    def unobserve(self, session_id: str, process_id: str) -> None:
        """Follow another session's process no longer (idempotent)."""
        feed = self._observed.get((session_id, process_id))
        if feed is not None:
            feed.close()
            self._forget_observed((session_id, process_id), feed.process.number)

    def _forget_observed(self, key: tuple[str, str], number: int) -> None:
        self._observed.pop(key, None)
        self._behind.pop(number, None)

    def answered(self, process: ManagedProcess, page: Page, next_seq: int) -> None:
        """A read without `maxBytes` was answered."""
        feed = self._feeds.get(process.number)
        if feed is not None:
            feed.answered(page, next_seq)

    def fell_behind(self, feed: EventStream) -> None:
        """Remember a feed that has more to send."""
        self._behind[feed.process.number] = feed

    def drained(self) -> None:
        """There is room again: the feeds that are behind take turns."""
        turns = deque(self._behind.values())
        while turns and self._sink.may_queue_event():
            feed = turns.popleft()
            if feed.send_one():
                self._behind.pop(feed.process.number, None)
            else:
                turns.append(feed)

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        if self._hold is not None:
            self._hold.cancel()
        for feed in [*self._feeds.values(), *self._observed.values()]:
            feed.close()
        self._feeds.clear()
        self._observed.clear()
        self._behind.clear()

    def _follow(self, process: ManagedProcess, cursor: int, hold: Hold | None) -> EventStream:
        number = process.number
        finished = partial(self._feeds.pop, number, None)
        feed = self._feeds[number] = EventStream(
            process, self._sink, cursor, finished, hold, extensions=self._extensions
        )
        return feed

    def _release_all(self) -> None:
        self._hold = None
        for feed in list(self._feeds.values()):
            if feed.hold is Hold.RESUME:
                feed.release()


def _nothing() -> None:
    """There is nothing to send."""
