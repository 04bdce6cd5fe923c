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
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from execserver.processes.output_log import Page
from execserver.processes.process import ManagedProcess
from execserver.processes.recovery_state import RecoveryState
from execserver.processes.store import ProcessStore
from execserver.sessions.event_stream import HOLD_SECONDS, EventStream, Hold, Sink
from execserver.spool.records import NetworkAnswer, NetworkTarget

if TYPE_CHECKING:
    from execserver.search.searches import Searches
    from execserver.sessions.network_decisions import Client, NetworkDecisions
    from execserver.watching.watch import Watch
    from execserver.watching.watches import SessionWatches


class Session:
    """The processes of one client and, while a connection is attached, their event streams.

    Args:
        session_id: its id.
        store: its processes.
        recovery: records the client's decisions about hosts.
        kept_decisions: those that an earlier server kept.
    """

    def __init__(
        self,
        session_id: str,
        store: ProcessStore,
        recovery: RecoveryState,
        kept_decisions: Mapping[NetworkTarget, NetworkAnswer] | None = None,
    ) -> None:
        self.id = session_id
        self.processes = store
        self.ttl: float | None = None
        """Seconds for which it is kept without a connection; None for the setting of the daemon."""
        self.attachment: Attachment | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.ending: asyncio.Task[None] | None = None
        """Kills the remaining processes; None while the session can be resumed."""
        self.searches: Searches | None = None
        self.watches: SessionWatches | None = None
        """Both are made at the first use: few sessions need them."""
        self._recovery = recovery
        self._kept_decisions = kept_decisions or {}
        self._client: Client | None = None
        self._network: NetworkDecisions | None = None

    @property
    def network(self) -> NetworkDecisions:
        """The client's decisions about hosts, made at the first use: few sessions need them."""
        if self._network is None:
            from execserver.sessions.network_decisions import NetworkDecisions

            record = partial(self._recovery.network_decided, self.id)
            self._network = NetworkDecisions(record, self._kept_decisions)
            self._network.set_client(self._client)
        return self._network

    def set_client(self, client: Client | None) -> None:
        """Ask this connection from now on, because its handshake is complete; None when it takes no more
        questions.
        """
        self._client = client
        if self._network is not None:
            self._network.set_client(client)
        if self.watches is not None and client is not None:
            self.watches.push_all()

    def end_programs(self) -> list[asyncio.Future[Any]]:
        """End the searches and the watches. The futures are done once their programs have ended."""
        users = [each for each in (self.searches, self.watches) if each is not None]
        return [program for each in users for program in each.close()]

    def push(self, watch: Watch) -> None:
        """Send the events of a watch, if there is a connection whose handshake is complete."""
        if self._client is not None and self.attachment is not None:
            self.attachment.push(watch)

    def _drained(self) -> None:
        if self._network is not None:
            self._network.send_events()

    def attach(self, sink: Sink, *, resumed: bool, extensions: bool = False) -> Attachment:
        """Send events to this connection from now on."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        self.attachment = Attachment(
            self.processes, sink, self._drained, resumed=resumed, extensions=extensions
        )
        return self.attachment

    def follow(self, process: ManagedProcess, asked: Attachment) -> Callable[[], None]:
        """Follow a process that has just started.

        If the connection that asked for it is gone, its events are for the one that has resumed the session
        meanwhile: at its resume there was no such process.

        Args:
            process: of this session.
            asked: of the connection that has asked for the start.

        Returns:
            What sends the events, once that connection has its answer.
        """
        if not asked.closed:
            return asked.follow(process)
        if self.attachment is not None and not self.attachment.closed:
            self.attachment.follow_late(process)
        return _nothing


class Attachment:
    """The event streams of one connection.

    At the attachment, the cursor of every process is at its newest event: older ones are sent only in answer
    to a read.

    A connection may also observe the processes of other sessions; these event streams end with the
    connection.

    Args:
        processes: of the session.
        sink: the connection.
        on_drained: called when events may be queued again, before the streams take turns.
        resumed: whether the session had a connection before.
        extensions: whether the connection asked for extension members.
    """

    def __init__(
        self,
        processes: ProcessStore,
        sink: Sink,
        on_drained: Callable[[], None],
        *,
        resumed: bool,
        extensions: bool = False,
    ) -> None:
        self._sink = sink
        self._on_drained = on_drained
        self._extensions = extensions
        self._streams: dict[int, EventStream] = {}
        self._behind: dict[Hashable, Callable[[], bool]] = {}
        """What sends the next event of each stream that is behind; it returns whether that has caught up."""
        self._observed: dict[tuple[str, str], EventStream] = {}
        """Event streams of other sessions' processes, by session and process id."""
        self.closed = False
        """Whether it sends no event any more."""
        self._hold: asyncio.TimerHandle | None = None
        for process in processes:
            self._follow(process, process.log.next_seq - 1, Hold.RESUME if resumed else None)
        if resumed and self._streams:
            self._release_all_later()

    def follow(self, process: ManagedProcess) -> Callable[[], None]:
        """Hold the events of a process that has just started. The returned function sends them."""
        return self._follow(process, 0, Hold.START).release

    def follow_late(self, process: ManagedProcess) -> None:
        """Follow a process whose start an earlier connection has asked for, as the others at a resume."""
        self._follow(process, process.log.next_seq - 1, Hold.RESUME)
        if self._hold is None:
            self._release_all_later()

    def observe(
        self, process: ManagedProcess, after_seq: int, follower: str, *, interactive: bool
    ) -> Callable[[], None]:
        """Follow the process of another session, from the event after `after_seq` on. The returned function
        starts sending. A second call moves the cursor.

        Args:
            process: of another session.
            after_seq: the last number that the connection has.
            follower: the connection's own session.
            interactive: whether the size of the terminal is left to this connection.
        """
        key = (process.started.session, process.process_id)
        self.unobserve(*key)
        over = process.closed_seq is not None and after_seq >= process.closed_seq
        if self.closed or over:
            return _nothing
        stream = self._observed[key] = EventStream(
            process,
            self._sink,
            after_seq,
            partial(self._forget_observed, key, process.number),
            Hold.START,
            extensions=self._extensions,
            follower=follower,
            interactive=interactive,
        )
        return partial(self._release_observed, key, stream)

    def _release_observed(self, key: tuple[str, str], stream: EventStream) -> None:
        if self._observed.get(key) is stream:
            stream.release()

    def observes(self, session_id: str, process_id: str) -> EventStream | None:
        """The event stream of another session's process, or None."""
        return self._observed.get((session_id, process_id))

    @property
    def observes_any_end(self) -> bool:
        """Whether the end of another session's process is still to come."""
        return any(not stream.process.closed for stream in self._observed.values())

    def unobserve(self, session_id: str, process_id: str) -> None:
        """Stop following another session's process (idempotent)."""
        stream = self._observed.get((session_id, process_id))
        if stream is not None:
            stream.close()
            self._forget_observed((session_id, process_id), stream.process.number)

    def _forget_observed(self, key: tuple[str, str], number: int) -> None:
        self._observed.pop(key, None)
        self._behind.pop(number, None)

    def answered(self, process: ManagedProcess, page: Page, next_seq: int) -> None:
        """A read without `maxBytes` was answered."""
        stream = self._streams.get(process.number)
        if stream is not None:
            stream.answered(page, next_seq)

    def fell_behind(self, stream: EventStream) -> None:
        """Remember a stream that has more events to send."""
        self._behind[stream.process.number] = stream.send_one

    def push(self, watch: Watch) -> None:
        """Send the events of a watch of the session, in its turns. Only for connections with extensions."""
        if self.closed or not self._extensions or watch in self._behind:
            return
        caught_up = not watch.has_event
        while not caught_up and self._sink.may_queue_event():
            caught_up = watch.send_one(self._sink)
        if not caught_up:
            self._behind[watch] = partial(watch.send_one, self._sink)

    def drained(self) -> None:
        """Events may be queued again: the streams that are behind take turns."""
        self._on_drained()
        turns = deque(self._behind.items())
        while turns and self._sink.may_queue_event():
            key, send_one = turns.popleft()
            if send_one():
                self._behind.pop(key, None)
            else:
                turns.append((key, send_one))

    def close(self) -> None:
        """The connection is gone."""
        self.closed = True
        if self._hold is not None:
            self._hold.cancel()
        for stream in [*self._streams.values(), *self._observed.values()]:
            stream.close()
        self._streams.clear()
        self._observed.clear()
        self._behind.clear()

    def _follow(self, process: ManagedProcess, cursor: int, hold: Hold | None) -> EventStream:
        number = process.number
        finished = partial(self._streams.pop, number, None)
        stream = self._streams[number] = EventStream(
            process, self._sink, cursor, finished, hold, extensions=self._extensions
        )
        return stream

    def _release_all_later(self) -> None:
        self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release_all)

    def _release_all(self) -> None:
        self._hold = None
        for stream in list(self._streams.values()):
            if stream.hold is Hold.RESUME:
                stream.release()


def _nothing() -> None:
    """Do nothing: there is no event to send."""
