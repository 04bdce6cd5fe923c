"""One watch: its program, the log of its changes, and the cursor of its events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from execprotocol.errors import InvalidRequest, file_error
from execprotocol.limits import MAX_WATCH_PAGE_BYTES
from execprotocol.path_uri import path_to_uri
from execserver.watching import frames
from execserver.watching.client import ProgramClient
from execserver.watching.log import ChangeLog

if TYPE_CHECKING:
    from execprotocol.watch import WatchParams
    from execserver.fsworker.process import WorkerProcess
    from execserver.watching.visibility import Visibility

EVENT_BYTES = 64 << 10
"""Of the changes in one event. An event takes its turn with the output of processes."""

EVENT_CHANGES = 500


class EventSink(Protocol):
    """The connection's side of events."""

    def send_event(self, parts: Sequence[bytes]) -> None:
        """Queue a notification."""


class Watch:
    """A watch of a session.

    Args:
        params: of its `fs/watch`.
        visibility: what its sandbox shows; None without one.
        has_news: called when there are changes to send, or when the watch has ended.
    """

    def __init__(
        self, params: WatchParams, visibility: Visibility | None, has_news: Callable[[Watch], None]
    ) -> None:
        self.params = params
        self.mode = ""
        """`inotify` or `polling`, once it has begun."""
        self.end_reason: str | None = None
        """Why it has ended (`EndReason`)."""
        self.message = ""
        self.released = False
        """Whether the session has forgotten it."""
        self._root = params.path.rstrip("/")
        self._real = ""
        self._visibility = visibility
        self._has_news = has_news
        self._log = ChangeLog(self._json(("g", True, "", "")))
        self._sent = 0
        """The last number that was sent as an event."""
        self._sent_end = False
        self._may_send = False
        self._client: ProgramClient | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def next_seq(self) -> int:
        """The number of the next change."""
        return self._log.next_seq

    @property
    def announced_seq(self) -> int:
        """The `nextSeq` of an answer to `fs/watch`: 1 for the first one, although a gap may be logged."""
        return self.next_seq if self._may_send else 1

    async def begin(self, process: WorkerProcess, order: frames.Order) -> None:
        """Wait until every folder is watched.

        Raises:
            RpcError: the path cannot be watched; the program is gone.
        """
        self._client = ProgramClient(process, order, self)
        await self._client.ready
        if self._visibility is not None and not self._visibility.shows(self._real or "/", self._root or "/"):
            raise file_error(PermissionError(13, os.strerror(13)))

    def send_events(self) -> None:
        """The answer is sent: events may follow it."""
        self._may_send = True
        self._has_news(self)

    def release(self) -> asyncio.Future[None] | None:
        """Forget the watch, and kill its program (idempotent). Done when that has ended."""
        self.released = True
        if self._client is not None:
            self._client.end()
        self._wake()
        return None if self._client is None else self._client.exited

    # -- what the program reports

    def begun(self, mode: str, real: str) -> None:
        """Every folder is watched. Changes are judged by the real path from the first one on."""
        self.mode, self._real = mode, real.rstrip("/")

    def changed(self, members: list[bytes]) -> None:
        """Log the changes of a frame."""
        for kind, path, earlier in zip(members[::3], members[1::3], members[2::3], strict=False):
            letter, is_directory = kind[:1].decode("ascii", "replace"), kind[1:] == b"d"
            if letter in frames.KINDS:
                self._add(letter, is_directory, os.fsdecode(path), os.fsdecode(earlier))
        self._wake()
        self._has_news(self)

    def ended(self, reason: str, text: str) -> None:
        """The watch is over; its log stays."""
        self.end_reason, self.message = reason, text
        self._wake()
        self._has_news(self)

    def _add(self, letter: str, is_directory: bool, path: str, earlier: str) -> None:
        """Log a change as far as it may be seen."""
        if letter == "n" and not self._shows(earlier):
            letter, earlier = "c", ""
        if not self._shows(path):
            if letter != "n":
                return
            letter, path, earlier = "r", earlier, ""
        self._log.append(self._json((letter, is_directory, path, earlier)))

    def _shows(self, path: str) -> bool:
        if self._visibility is None:
            return True
        return self._visibility.shows(_joined(self._real, path), _joined(self._root, path))

    def _json(self, change: tuple[str, bool, str, str]) -> bytes:
        letter, is_directory, path, earlier = change
        wire: dict[str, object] = {
            "kind": frames.KINDS[letter],
            "path": path_to_uri(_joined(self._root, path)),
        }
        if letter == "n":
            wire["from"] = path_to_uri(_joined(self._root, earlier))
        wire["isDirectory"] = is_directory
        return msgspec.json.encode(wire)

    # -- reads

    def has_news(self, after_seq: int) -> bool:
        """Whether a read is answered at once."""
        # A cursor beyond the newest change is refused at once.
        return self.next_seq != after_seq + 1 or self.end_reason is not None or self.released

    async def wait_for_news(self, after_seq: int, seconds: float) -> None:
        """Wait until there are changes after a cursor, or the watch has ended, or the time is over."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.has_news(after_seq):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=left)
            finally:
                self._waiting.discard(waiter)

    def page(self, after_seq: int, max_changes: int) -> bytes:
        """The result of an `fs/watchRead`, as JSON.

        Raises:
            InvalidRequest: the cursor is beyond the newest change: it is that of another watch.
        """
        if after_seq >= self.next_seq:
            raise InvalidRequest(
                f"`afterSeq` is {after_seq}, and the newest change of this watch has the number "
                f"{self.next_seq - 1}: the cursor is that of another watch; read from 0",
                name="unknown_cursor",
                field="afterSeq",
            )
        seq, changes = self._log.read(after_seq, max_changes, MAX_WATCH_PAGE_BYTES)
        next_seq = seq + len(changes)
        ended, message = b"null", b""
        if self.end_reason is not None and next_seq == self.next_seq:
            ended, message = msgspec.json.encode(self.end_reason), self._message()
        return b'{"firstSeq":%d,"changes":[%b],"nextSeq":%d,"ended":%b%b}' % (
            *(seq, b",".join(changes), next_seq, ended, message),
        )

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    # -- events

    @property
    def has_event(self) -> bool:
        """Whether an event is to be sent."""
        if self.released or not self._may_send:
            return False
        return self._sent < self.next_seq - 1 or (self.end_reason is not None and not self._sent_end)

    def send_one(self, sink: EventSink) -> bool:
        """Send one event, if there is any; return whether there is no further one."""
        if not self.has_event:
            return True
        seq, changes = self._log.read(self._sent, EVENT_CHANGES, EVENT_BYTES)
        self._sent = seq + len(changes) - 1
        ended = b""
        if self.end_reason is not None and self._sent == self.next_seq - 1:
            self._sent_end = True
            ended = b',"ended":' + msgspec.json.encode(self.end_reason) + self._message()
        head = b'{"method":"fs/changed","params":{"watchId":%b,"firstSeq":%d,"changes":[' % (
            msgspec.json.encode(self.params.watch_id),
            seq,
        )
        sink.send_event((head, b",".join(changes), b"]%b}}" % ended))
        return not self.has_event

    def _message(self) -> bytes:
        return b',"message":' + msgspec.json.encode(self.message)


def _joined(root: str, path: str) -> str:
    return f"{root}/{path}" if path else root or "/"
