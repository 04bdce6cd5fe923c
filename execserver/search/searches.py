"""The open searches of a session, and their pages.

Rules kept in this file:

1. A page ends when one of its limits is reached. Then the program waits, because its pipe is full, and the
   next page continues with its output. Nothing is read that no request waits for.
2. The newest page can be repeated until the next one is requested. A request that is cancelled leaves what
   it has read: the same request continues the page.
3. A session has at most `MAX_OPEN_SEARCHES` searches: a further one ends a complete one, else one that no
   request waits for, else any; of several the one that was used longest ago. A search without a request ends
   after `IDLE_SECONDS`, and with its session.
4. The loop is never held for more than `SLICE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter

import msgspec

from execprotocol.errors import InternalError, InvalidRequest, RpcError, search_ended
from execprotocol.limits import MAX_OPEN_SEARCHES
from execserver.search.pages import GlobPages, PageLimits, SearchPages
from execserver.search.program import SearchProgram

IDLE_SECONDS = 60.0
SLICE_SECONDS = 0.002

LOOK_AHEAD_SECONDS = 0.1
"""How long a full page waits for the end of the program, to find out that the search is complete."""

_GATHERED_PART, _MOST_GATHERED_SECONDS = 0.03, 0.02
"""How long output is gathered before it is read: a part of the time since the page was begun."""

_GATHERED_BYTES = 1 << 15
"""A program that has printed so much since the last wait is read at once."""

_MAX_DIGITS = 18
"""Of the number of a page."""

END_SECONDS = 5.0
"""From the end of the output to the end of the program."""


class Search:
    """An open search.

    Args:
        name: the client's name for it.
        request: its parameters but the limits of pages, to compare those of later requests.
        program: it is killed when the search ends.
        pages: builds its pages.
        launch_failed: called if the program ended before it began.
    """

    def __init__(
        self,
        name: str | None,
        request: msgspec.Struct,
        program: SearchProgram,
        pages: SearchPages | GlobPages,
        launch_failed: Callable[[], None],
    ) -> None:
        self.id = secrets.token_hex(8)
        self.name = name
        self.request = request
        self.error: RpcError | None = None
        """Why it has ended, if it has no further page."""
        self.over = False
        """Whether no page follows the newest one."""
        self.program = program
        self.expiry: asyncio.TimerHandle | None = None
        self.requests = 0
        """How many requests wait for a page of it."""
        self._pages = pages
        self._launch_failed = launch_failed
        self._number = -1
        self._page = b""
        self._items: Iterator[object] = iter(())
        self._next: object | None = None
        """An item that had no room in the page before."""
        self._begun = False
        """Whether the program has printed something."""
        self._began = self._slice_end = 0.0
        self._burst = 0
        """Bytes that were read without a wait."""
        self._turn = asyncio.Lock()
        """Held while a page is made."""
        self._woken = asyncio.Event()

    def end(self, error: RpcError) -> None:
        """End it, also a page that is being made (idempotent)."""
        if self.error is None:
            self.error = error
        self.program.kill()
        self._woken.set()
        if self.expiry is not None:
            self.expiry.cancel()

    async def page(self, number: int, limits: PageLimits) -> bytes:
        """The page of this number, counted from 0: the newest one, or the next.

        Raises:
            InvalidRequest: it is another page; or the search was ended, or is not valid.
            InternalError: the program has failed.
        """
        async with self._turn:
            if number == self._number and self.error is None:
                return self._page
            if self.error is not None:
                raise self.error
            if number != self._number + 1 or self.over:
                raise unknown_cursor()
            self._page = b""
            truncated = await self._fill(limits)
            self._number = number
            self.over = truncated is None
            cursor = None if self.over else f"{self.id}:{number + 1}"
            self._page = self._pages.finish(truncated, cursor, self.program.messages)
            return self._page

    async def _fill(self, limits: PageLimits) -> str | None:
        """Read until the page is full, or there is no more; the limit that ended it."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        deadline = self._began + limits.seconds
        reason = "time"
        self._slice_end = perf_counter() + SLICE_SECONDS
        while True:
            truncated = await self._take_items(limits)
            if truncated is not None:
                return truncated
            if loop.time() > deadline:
                return reason
            if reason == "time" and self._pages.found >= limits.found:
                reason = self._pages.full
                deadline = min(deadline, loop.time() + LOOK_AHEAD_SECONDS)
            data = self.program.read()
            if data is None:
                if not await self._readable(deadline - loop.time()):
                    return reason
            elif data:
                self._begun = True
                self._burst += len(data)
                self._items = self._pages.items(data)
            else:
                await self._completed()
                return None

    async def _take_items(self, limits: PageLimits) -> str | None:
        """Add what was read to the page; the limit that it is beyond, if it is."""
        while (item := self._next_item()) is not None:
            truncated = self._pages.take(item, limits)  # type: ignore[arg-type]
            if truncated is not None:
                self._next = item
                return truncated
            await self._yield_to_others()
        await self._yield_to_others()
        return None

    async def _yield_to_others(self) -> None:
        if perf_counter() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = perf_counter() + SLICE_SECONDS
            if self.error is not None:
                raise self.error

    def _next_item(self) -> object | None:
        if self._next is not None:
            item, self._next = self._next, None
            return item
        return next(self._items, None)

    async def _readable(self, seconds: float) -> bool:
        """Wait for output; False if there is none in this time. Raises the error of a search that ends."""
        self._woken.clear()
        stop = self.program.call_when_readable(self._woken.set)
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._woken.wait()
        except TimeoutError:
            return False
        finally:
            stop()
        if self._burst < _GATHERED_BYTES:
            # A program that prints little by little must not wake the loop for each match.
            passed = asyncio.get_running_loop().time() - self._began
            await asyncio.sleep(min(passed * _GATHERED_PART, _MOST_GATHERED_SECONDS))
        self._burst = 0
        if self.error is not None:
            raise self.error
        self._slice_end = perf_counter() + SLICE_SECONDS
        return True

    async def _completed(self) -> None:
        """The output has ended: wait for the program, and check that its search is complete."""
        program = self.program
        done, _ = await asyncio.wait([program.ended], timeout=END_SECONDS)
        if self.error is not None:
            raise self.error
        program.kill()
        code = program.ended.result() if done else 0
        if self._pages.complete or (isinstance(self._pages, GlobPages) and done and code in (0, 1)):
            return
        text = "\n".join(program.messages)
        if code == 2 and isinstance(self._pages, GlobPages) and program.has_own_message:
            return  # some folders could not be read
        if code == 2 and program.has_own_message and not self._begun:
            self.error = InvalidRequest(
                f"the pattern is not valid: {text}", name="pattern_refused", field="pattern"
            )
        else:
            if not self._begun:
                self._launch_failed()
            how = (
                f"was ended by signal {-code if code < 0 else code - 128}"
                if code < 0 or code > 128
                else (f"has failed with exit code {code}")
            )
            self.error = InternalError(
                f"the search is not complete, because its program {how}{': ' if text else ''}{text}; "
                "search again, or a smaller folder",
                name="search_failed",
            )
        raise self.error


class Searches:
    """The open searches of a session."""

    def __init__(self) -> None:
        self._open: list[Search] = []
        """The one that was used longest ago first."""
        self._closed = False

    def add(self, search: Search, *, ended: bool) -> None:
        """Open a search; another one may end.

        Args:
            search: whose program has begun.
            ended: whether it was ended before.

        Raises:
            InvalidRequest: it was, or the session has ended; the program is killed.
        """
        if self._closed or ended:
            error = search_ended("the session has ended") if self._closed else search_ended()
            search.end(error)
            raise error
        while len(self._open) >= MAX_OPEN_SEARCHES:
            other = min(self._open, key=lambda each: (each.requests > 0, not each.over))
            self._end(other, search_ended("the session has begun newer ones"))
        self._open.append(search)
        self._expire_later(search)

    def find(
        self, cursor: str | None, name: str | None, request: msgspec.Struct
    ) -> tuple[Search, int] | None:
        """The open search of a request, and the number of its page; None if the request begins a search.

        Raises:
            InvalidRequest: the search is unknown, or has other parameters.
        """
        if cursor is None:
            search = next((each for each in self._open if name is not None and each.name == name), None)
            number = 0
        else:
            search_id, _, text = cursor.partition(":")
            search = next((each for each in self._open if each.id == search_id), None)
            if search is None or not (text.isascii() and text.isdecimal()) or len(text) > _MAX_DIGITS:
                raise unknown_cursor()
            number = int(text)
        if search is None:
            return None
        _require_same(search.request, request)
        return search, number

    async def page(self, search: Search, number: int, limits: PageLimits) -> bytes:
        """A page of an open search, which may end with it.

        Raises:
            RpcError: as for `Search.page`.
        """
        if search.error is not None:
            raise search.error
        self._open.remove(search)
        self._open.append(search)
        if search.expiry is not None:
            search.expiry.cancel()
            search.expiry = None
        search.requests += 1
        try:
            page = await search.page(number, limits)
        except asyncio.CancelledError:
            if number == 0 and search.name is None:
                self._end(search, unknown_cursor())  # no other request can ask for this page
            raise
        finally:
            search.requests -= 1
            if search.error is not None or (search.over and number == 0 and search.name is None):
                self._end(search, unknown_cursor())
            elif not search.requests:
                self._expire_later(search)
        return page

    def end(self, name: str) -> None:
        """End the search of this name, if it is open."""
        for search in [each for each in self._open if each.name == name]:
            self._end(search, search_ended())

    def close(self) -> list[asyncio.Future[int]]:
        """End all searches. The futures are done once their programs have ended."""
        self._closed = True
        searches = list(self._open)
        for search in searches:
            self._end(search, search_ended("the session has ended"))
        return [search.program.ended for search in searches]

    def _expire_later(self, search: Search) -> None:
        loop = asyncio.get_running_loop()
        search.expiry = loop.call_later(IDLE_SECONDS, self._end, search, unknown_cursor())

    def _end(self, search: Search, error: RpcError) -> None:
        with suppress(ValueError):
            self._open.remove(search)
        search.end(error)


def unknown_cursor() -> InvalidRequest:
    """The error for a page that cannot be had any more."""
    return InvalidRequest(
        "the search of this cursor has ended, or a later page was requested: search again",
        name="unknown_cursor",
        field="cursor",
    )


def _require_same(request: msgspec.Struct, other: msgspec.Struct) -> None:
    if type(request) is not type(other):
        raise _differs("cursor")
    fields: Sequence[msgspec.structs.FieldInfo] = msgspec.structs.fields(request)
    for field in fields:
        if getattr(request, field.name) != getattr(other, field.name):
            raise _differs(field.encode_name)


def _differs(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"the search was begun with another `{field}`: repeat its parameters, or "
        "search again without a cursor and under another `searchId`",
        name="search_differs",
        field=field,
    )
