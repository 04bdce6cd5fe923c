"""`Console`: the web server of the page, on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from picows import (
    WSCloseCode,
    WSListener,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from execclient.commands.daemon import DaemonOptions
from execclient.connection.address import target
from execclient.connection.connection import Json
from execclient.console.access import Access
from execclient.console.approvals import ApprovalsView
from execclient.console.connection import MAX_MESSAGE_BYTES, Invalid, PageConnection
from execclient.console.controls import Controls
from execclient.console.files import Folder
from execclient.console.pages import Pages, headers_for, refusal
from execclient.console.view import DaemonView
from execclient.govern.queue_approver import QueueApprover
from execclient.session.session import cancel
from execprotocol import __version__

log = logging.getLogger("execclient.console")

ADDRESS = "127.0.0.1"

MAX_UNOPENED = 16
"""Connections at a time that have not presented a token: above it, new ones are refused."""

MAX_PAGE_BYTES = 256 << 10
"""Of output in one answer: the page asks for more when it has drawn that."""

MAX_WAIT_MS = 20_000

READ_SECONDS = 60.0
"""Beyond the wait, for the answer to a read."""

_CONTROLS = frozenset({"input", "closeInput", "resize", "signal", "kill"})
"""The methods of a console that was started with `write`."""

_FORBIDDEN, _UNAVAILABLE = 403, 503

_Name = Annotated[str, Meta(min_length=1, max_length=4096)]
_Size = Annotated[int, Meta(ge=1, le=65535)]


class _Process(msgspec.Struct):
    sessionId: _Name
    processId: _Name


class _Read(_Process):
    afterSeq: Annotated[int, Meta(ge=0)]
    maxBytes: Annotated[int, Meta(ge=1, le=MAX_PAGE_BYTES)] = MAX_PAGE_BYTES
    waitMs: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    sizes: bool = False


class _File(_Process):
    path: Annotated[str, Meta(max_length=4096)]


class _Input(_Process):
    data: str


class _Resize(_Process):
    rows: _Size
    cols: _Size


class _Signal(_Process):
    signal: Annotated[str, Meta(pattern=r"^SIG[A-Z0-9+-]{1,12}$")]


class _Answer(msgspec.Struct):
    id: int
    decision: str | dict[str, Any]
    reason: Annotated[str, Meta(max_length=4096)] | None = None


class Console:
    """A page in the browser that shows the processes of a daemon.

    While a page is open, it has a session with the daemon, or through a relay the recorded sessions of
    `execserver run --detach`. All calls must come from one event loop.

    Args:
        url: the daemon, as for `connect`; None for `EXECSERVER_URL`, else the default socket.
        token_file: the file with its bearer token.
        approver: the questions that can be answered in the page.
        write: whether the page may type into processes, signal and kill them.
        port: of this machine; 0 for any.

    Raises:
        ConsoleNotBuilt: the page is missing in a checkout of the source: `make console`.
        UnsupportedUrl, InsecureToken: as `connect`. The daemon itself need not run yet.
        OSError: on entering: the port is in use.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token_file: Path | None = None,
        approver: QueueApprover | None = None,
        write: bool = False,
        port: int = 0,
    ) -> None:
        self.write = write
        self._port = port
        self._pages = Pages()
        self._access = Access()
        self._daemon_url = target(url, token_file=token_file).url
        daemon = DaemonOptions(self._daemon_url, token_file)
        self._view = DaemonView(daemon, lambda: self._push("processes"))
        self._approvals = (
            None if approver is None else ApprovalsView(approver, lambda: self._push("approvals"))
        )
        self._server: asyncio.Server | None = None
        self._connections: dict[PageConnection, Controls] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that run while a page is open."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._methods: Mapping[str, tuple[type[msgspec.Struct], Callable[..., Awaitable[Json]]]] = {
            "read": (_Read, self._read),
            "listFiles": (_File, self._list_files),
            "readFile": (_File, self._read_file),
            "answer": (_Answer, self._answer),
            "input": (_Input, self._input),
            "closeInput": (_Process, self._close_input),
            "resize": (_Resize, self._resize),
            "signal": (_Signal, self._signal),
            "kill": (_Process, self._kill),
        }

    async def __aenter__(self) -> Self:
        # uvloop, picows' own choice of a server and a second console of the same port: all take this socket.
        listening = socket.create_server((ADDRESS, self._port))
        self._port = listening.getsockname()[1]
        self._server = await ws_create_server(
            self._accept, sock=listening, max_frame_size=MAX_MESSAGE_BYTES, logger_name=log
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.close(WSCloseCode.GOING_AWAY, "the console has ended")
        await cancel(self._tasks)
        if self._leaving:
            await asyncio.wait(self._leaving)

    @property
    def url(self) -> str:
        """The link that opens the page. It counts once; then there is another one."""
        return self._link(self._access.token)

    async def next_url(self, used: str) -> str:
        """Wait until this link was used; the link that counts then."""
        return self._link(await self._access.next_token(used.rpartition("=")[2]))

    def _link(self, token: str) -> str:
        # Behind the `#`: browsers send that part to no server, and to no other page.
        return f"http://{ADDRESS}:{self._port}/#token={token}"

    # -- connections

    def _accept(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        """The response to a request: a file of the page, its WebSocket, or a refusal."""
        hosts = request.headers.getall("Host", [])
        host = hosts[0] if len(hosts) == 1 else ""
        # A name of another server that was made to resolve to this machine (DNS rebinding) is refused.
        if host not in (f"{ADDRESS}:{self._port}", f"localhost:{self._port}"):
            return refusal(_FORBIDDEN, "the Host header is of another server")
        if request.path != b"/api":
            return self._pages.answer(request, host)
        if request.headers.getall("Origin", []) != [f"http://{host}"]:
            log.warning("a connection from a page of another origin was refused")
            return refusal(_FORBIDDEN, "the Origin header is of another page", host)
        if sum(not each.is_open for each in self._connections) >= MAX_UNOPENED:
            return refusal(_UNAVAILABLE, "too many connections wait", host)
        upgrade = WSUpgradeResponse.create_101_response(headers_for(host))
        return WSUpgradeResponseWithListener(upgrade, PageConnection(self))

    def page_connected(self, connection: PageConnection) -> None:
        """As `Host.page_connected`."""
        self._connections[connection] = Controls(self._view)

    async def open_page(self, params: Mapping[str, Json]) -> Json | None:
        """As `Host.open_page`."""
        token, key = params.get("token"), params.get("key")
        if isinstance(token, str):
            key = await self._access.redeem(token)
        elif not isinstance(key, str) or not self._access.knows(key):
            key = None
        if key is None:
            return None
        return {
            "key": key,
            "write": self.write,
            "approvals": self._approvals is not None,
            "daemon": self._daemon_url,
            "version": __version__,
        }

    def page_opened(self) -> None:
        """As `Host.page_opened`."""
        if not self._tasks:
            self._tasks.add(asyncio.create_task(self._view.run()))
            if self._approvals is not None:
                self._tasks.add(asyncio.create_task(self._approvals.run()))
        self._push("processes")
        self._push("approvals")

    def page_closed(self, connection: PageConnection) -> None:
        """As `Host.page_closed`."""
        controls = self._connections.pop(connection)
        leaving = asyncio.ensure_future(controls.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if not any(each.is_open for each in self._connections):
            # A session that another client may need is held no longer than a page shows it.
            for task in self._tasks:
                task.cancel()
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
            self._tasks = set()

    def _push(self, topic: str) -> None:
        for connection in self._connections:
            if connection.is_open:
                if topic == "processes":
                    connection.push(topic, self._view.snapshot())
                elif self._approvals is not None:
                    connection.push(topic, self._approvals.snapshot())

    # -- requests

    async def perform(self, connection: PageConnection, method: str, params: Mapping[str, Json]) -> Json:
        """As `Host.perform`."""
        if method not in self._methods:
            raise Invalid(f"there is no method {method}")
        kind, call = self._methods[method]
        try:
            given = msgspec.convert(params, kind)
        except msgspec.ValidationError as error:
            raise Invalid(f"{method}: {error}") from None
        if method in _CONTROLS and not self.write:
            raise Invalid("this console only shows processes: start it with --write to type, signal and kill")
        return await call(given, self._connections[connection])

    async def _read(self, params: _Read, _: Controls) -> Json:
        asked: dict[str, Json] = {
            "sessionId": params.sessionId,
            "processId": params.processId,
            "afterSeq": params.afterSeq,
            "maxBytes": params.maxBytes,
            "waitMs": params.waitMs,
        }
        if params.sizes:
            executor = await self._view.executor(params.sessionId)
            if "process/read.sizes" in executor.capabilities:
                asked["sizes"] = True
        limit = READ_SECONDS + params.waitMs / 1000
        return await self._view.call(params.sessionId, "process/read", asked, limit=limit)

    async def _folder(self, params: _File) -> Folder:
        executor = await self._view.executor(params.sessionId)
        entry = self._view.find(params.sessionId, params.processId)
        if entry is None or not entry.get("cwd"):
            raise Invalid(f"process {params.processId} is not known, or its folder is not")
        return Folder(executor, entry["cwd"])

    async def _list_files(self, params: _File, _: Controls) -> Json:
        return await (await self._folder(params)).list(params.path)

    async def _read_file(self, params: _File, _: Controls) -> Json:
        return await (await self._folder(params)).read(params.path)

    async def _answer(self, params: _Answer, _: Controls) -> Json:
        if self._approvals is None:
            raise Invalid("this console has no approvals")
        return {"counts": self._approvals.answer(params.id, params.decision, params.reason)}

    async def _input(self, params: _Input, controls: Controls) -> Json:
        await controls.write(params.sessionId, params.processId, params.data)
        return {}

    async def _close_input(self, params: _Process, controls: Controls) -> Json:
        await controls.close_stdin(params.sessionId, params.processId)
        return {}

    async def _resize(self, params: _Resize, controls: Controls) -> Json:
        await controls.resize(params.sessionId, params.processId, params.rows, params.cols)
        return {}

    async def _signal(self, params: _Signal, controls: Controls) -> Json:
        await controls.signal(params.sessionId, params.processId, params.signal)
        return {}

    async def _kill(self, params: _Process, controls: Controls) -> Json:
        await controls.kill(params.sessionId, params.processId)
        return {}
