"""The handlers of `fs/search`, `fs/glob` and `fs/endSearch`. `docs/protocol.md`, "Search"."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakSet

from msgspec.structs import replace

from execprotocol.errors import InvalidRequest, file_error
from execprotocol.path_uri import ForeignPath
from execserver.api.confinement import file_policy
from execserver.api.filesystem import FileConfinement, request_files
from execserver.filesystem import operations
from execserver.loading import LOADER
from execserver.rpc.handlers import Caller, Encoded, Handlers

if TYPE_CHECKING:
    from execprotocol.search import EndSearchParams, GlobParams, SearchParams
    from execserver.sandbox.sandboxes import Sandboxes
    from execserver.search.program import SearchLauncher
    from execserver.search.searches import Search, Searches

_NOTHING = Encoded(b"{}")


class SearchHandlers:
    """The methods of searches. Their modules are loaded by the first request: few daemons need them.

    Args:
        sandboxes: confine the programs.
        confinement: of requests for files.
        tag: makes the ownership tag of a number; None without tags.
        path: the daemon's PATH.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        confinement: FileConfinement,
        tag: Callable[[int], int | None],
        path: str,
    ) -> None:
        self._sandboxes = sandboxes
        self._confinement = confinement
        self._tag = tag
        self._path = path
        self._launcher: SearchLauncher | None = None
        self._requests: WeakSet[_PageRequest] = WeakSet()
        """Those that are being served: their searches may not be open yet."""

    def table(self) -> Handlers:
        """Method name → handler."""
        return {"fs/search": self.search, "fs/glob": self.glob, "fs/endSearch": self.end}

    def search(self, caller: Caller, params: SearchParams) -> Awaitable[Encoded]:
        """Answer with a page of matches."""
        # Equal limits, since those of pages may differ.
        request = replace(params, max_matches=1, max_bytes=1, time_ms=1, cursor=None, search_id=None)
        return self._page(caller, params, request, params.max_matches, self._asked(caller, params))

    def glob(self, caller: Caller, params: GlobParams) -> Awaitable[Encoded]:
        """Answer with a page of files."""
        request = replace(params, max_files=1, max_bytes=1, time_ms=1, cursor=None, search_id=None)
        return self._page(caller, params, request, params.max_files, self._asked(caller, params))

    def end(self, caller: Caller, params: EndSearchParams) -> Encoded:
        """End a search."""
        for each in self._requests:
            if (each.session_id, each.name) == (caller.session.id, params.search_id):
                each.ended = True
        if caller.session.searches is not None:
            caller.session.searches.end(params.search_id)
        return _NOTHING

    def _asked(self, caller: Caller, params: SearchParams | GlobParams) -> _PageRequest:
        asked = _PageRequest(caller.session.id, params.search_id)
        self._requests.add(asked)
        return asked

    async def _page(
        self,
        caller: Caller,
        params: SearchParams | GlobParams,
        request: SearchParams | GlobParams,
        found: int,
        asked: _PageRequest,
    ) -> Encoded:
        if self._launcher is None:
            await asyncio.to_thread(LOADER.load, _load)
        from execserver.search.pages import PageLimits

        searches = self._searches(caller)
        known = searches.find(params.cursor, params.search_id, request)
        if known is None:
            search, number = await self._begin(caller, params, request), 0
            searches.add(search, ended=asked.ended)
        else:
            search, number = known
        await caller.wait_to_reply()
        limits = PageLimits(found, params.max_bytes, params.time_ms / 1000)
        return Encoded(await searches.page(search, number, limits))

    async def _begin(
        self, caller: Caller, params: SearchParams | GlobParams, request: SearchParams | GlobParams
    ) -> Search:
        from execprotocol.search import SearchParams
        from execserver.search.program import TAG_NUMBER, SearchLauncher
        from execserver.search.requests import prepare
        from execserver.search.searches import Search

        if type(params.path) is ForeignPath:
            raise InvalidRequest(f"'{params.path}' is invalid on 'linux'")
        policy = file_policy(params.sandbox, self._confinement.tmpdir)
        arguments, pages = await asyncio.to_thread(LOADER.load, lambda: prepare(params, policy))
        files = request_files(self._confinement, caller, params.sandbox)
        status = await files.run(operations.metadata, params.path, False)
        if isinstance(params, SearchParams):
            if not (status["isDirectory"] or status["isFile"]):
                raise InvalidRequest("`path` is neither a folder nor a regular file", field="path")
        elif not status["isDirectory"]:
            raise file_error(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
        if self._launcher is None:
            self._launcher = SearchLauncher(self._sandboxes, self._tag(TAG_NUMBER), self._path)
        try:
            program = await self._launcher.start(policy, arguments)
        except OSError as error:
            raise file_error(error) from None
        return Search(params.search_id, request, program, pages, self._launcher.launch_failed)

    def _searches(self, caller: Caller) -> Searches:
        """The searches of the caller's session."""
        from execserver.search.searches import Searches

        session = caller.session
        if session.searches is None:
            session.searches = Searches()
            if session.ending is not None:
                session.searches.close()
        return session.searches


class _PageRequest:
    """A request for a page, and whether `fs/endSearch` came after it."""

    def __init__(self, session_id: str, name: str | None) -> None:
        self.session_id = session_id
        self.name = name
        self.ended = False


def _load() -> None:
    import_module("execserver.search.requests")
    import_module("execserver.search.program")
