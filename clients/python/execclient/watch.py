"""A watch of files at the executor: each change once and in order, also over lost connections.

    fs/watch ──> fs/changed … ──connection lost, or too many wait──> fs/watchRead ──> fs/changed …
                                     │ the server was replaced
                                     └──> fs/watch anew, and a gap for the root

Rules kept in this file:

1. The numbers of changes are dense. An event that does not follow the last one is dropped, and read later.
2. Few changes wait here. While they do, further events are dropped; the daemon keeps them, up to a limit of
   its own, beyond which there is a gap.
3. A change is handed out once, and counts as handed out only when the caller has it: a cancelled wait loses
   none.

`docs/protocol.md`, "Watches".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from execclient import arguments
from execclient.connection.connection import Json
from execclient.errors import ExecServerError, Refused
from execclient.file_session import repeated
from execclient.results import Change
from execclient.session.session import KILL_SECONDS, Session
from execprotocol.path_uri import parse_path_uri

MAX_WAITING = 4096
"""Changes that wait for the caller, and those that one request reads."""

BEGIN_SECONDS = 600.0
"""For `fs/watch`, which looks at every directory before it answers."""

_UNKNOWN = "unknown_watch"
"""The error's name if the server does not know the watch, as it is another one by now."""


class Watch:
    """The changes below a path, from the moment when the block is entered. Get one from `Executor.watch`.

    Iteration ends when the watch has ended; `ended` has the reason. One task at a time gets a change.
    """

    def __init__(self, session: Session, params: Mapping[str, Json]) -> None:
        self.path: str = parse_path_uri(params["path"])
        """The root, absolute."""
        self._session = session
        self._id = arguments.new_id()
        self._params = {**params, "watchId": self._id, "ifExists": "attach"}
        self._active = False
        """Whether the daemon is known to have the watch."""
        self._closed = False
        self._mode: Literal["inotify", "polling"] | None = None
        self._ended: str | None = None
        self._message: str | None = None
        self._last_seq = 0
        """The number of the newest change that is here."""
        self._waiting: deque[Change] = deque()
        self._behind = False
        """Whether the daemon may have changes that it does not send, or did not."""
        self._news = asyncio.Event()
        self._taking = asyncio.Lock()

    @property
    def mode(self) -> Literal["inotify", "polling"] | None:
        """How the daemon notices changes; None before the block. `polling`, on network mounts and FUSE, lists
        the tree every two seconds: what lasts shorter is not noticed.
        """
        return self._mode

    @property
    def ended(self) -> str | None:
        """Why the watch has ended: `rootRemoved`, `watchLimit`, `tooManyEntries` or `failed`
        (`docs/reference/messages.md`); None while it is active.
        """
        return self._ended

    @property
    def message(self) -> str | None:
        """For people: why it has ended, and the way out."""
        return self._message

    async def __aenter__(self) -> Self:
        self._session.require("fs/watch")
        self._session.inboxes.watches[self._id] = self._receive
        try:
            await self._begin()
        except BaseException:
            self._session.soon(self.close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the watch, as leaving the block does. May be called again. Raises no error."""
        if self._closed:
            return
        self._closed = True
        self._session.inboxes.watches.pop(self._id, None)
        self._news.set()
        with suppress(ExecServerError):  # the daemon ends it with the session
            await self._session.call("fs/unwatch", {"watchId": self._id}, limit=KILL_SECONDS)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """The next change.

        Raises:
            SessionLost, ExecutorClosed: no more changes will arrive.
            NotFound: the server was replaced, and the path does not exist any more.
            CallTimeout: the daemon does not answer; iterate again to continue.
        """
        async with self._taking:
            if not await self._arrived():
                raise StopAsyncIteration
            return self._waiting.popleft()

    async def batch(self, timeout: float | None = None) -> list[Change]:  # noqa: ASYNC109 - none is an answer
        """All changes that have arrived; waits for the first. Empty after the end of the watch.

        Args:
            timeout: seconds to wait at most; the list is empty after them. With 0 it asks for none.

        Raises:
            SessionLost, ExecutorClosed, NotFound, CallTimeout: as for the iteration.
        """
        try:
            async with asyncio.timeout(arguments.waiting(timeout)), self._taking:
                await self._arrived()
        except ExecServerError:
            raise
        except TimeoutError:
            pass
        changes = list(self._waiting)
        self._waiting.clear()
        return changes

    async def _arrived(self) -> bool:
        """Wait until a change is here; whether one is, else the watch has ended."""
        while not self._waiting:
            if self._closed or self._ended is not None:
                return False
            if self._behind:
                await self._read()
            else:
                self._news.clear()
                await self._news.wait()
        return True

    async def _begin(self) -> None:
        params = self._params
        limit = max(BEGIN_SECONDS, self._session.call_timeout)
        result = await repeated(lambda: self._session.call("fs/watch", params, limit=limit))
        self._mode = result["mode"]
        self._last_seq = result["nextSeq"] - 1
        self._active = True

    async def _read(self) -> None:
        """Read what the daemon has after the last change that is here; watch anew if it knows no watch."""
        self._behind = False  # what arrives from here on says so again
        try:
            if not self._active:
                await self._begin()
                self._behind = True
                self._waiting.append(Change("gap", self.path, None, True))
                return
            params = {"watchId": self._id, "afterSeq": self._last_seq, "maxChanges": MAX_WAITING}
            page = await self._session.call("fs/watchRead", params)
        except BaseException as error:
            self._behind = True
            if not (isinstance(error, Refused) and self._active and error.wire_name == _UNKNOWN):
                raise
            self._active = False
            return
        self._take(page)
        # A full page is followed by another one, and an empty one tells that this was the last.
        self._behind |= bool(page["changes"]) and page["ended"] is None

    def _receive(self, event: Mapping[str, Json] | None) -> None:
        """Process an event of the watch; None: some may have been lost."""
        takes = self._active and len(self._waiting) < MAX_WAITING
        if event is not None and takes and event["firstSeq"] <= self._last_seq + 1:
            self._take(event)
        else:
            self._behind = True
        self._news.set()

    def _take(self, message: Mapping[str, Json]) -> None:
        """Keep the changes of an event or a page that are not here yet."""
        first, changes = message["firstSeq"], message["changes"]
        self._waiting.extend(map(_decoded, changes[max(0, self._last_seq + 1 - first) :]))
        self._last_seq = max(self._last_seq, first + len(changes) - 1)
        if message.get("ended") is not None:
            self._ended, self._message = message["ended"], message.get("message")

    def __repr__(self) -> str:
        state = f" ended={self._ended}" if self._ended else " closed" if self._closed else ""
        return f"<{type(self).__name__} {self.path}{state}>"


def _decoded(change: Mapping[str, Json]) -> Change:
    previous = change.get("from")
    return Change(
        change["kind"],
        parse_path_uri(change["path"]),
        None if previous is None else parse_path_uri(previous),
        change["isDirectory"],
    )
