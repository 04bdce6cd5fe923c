"""Ports at the executor: which processes listen, and connections to them from this machine.

    local program ── TCP, loopback ── Forward ── port/open, process/write, process/output ── listener

Rules kept in this file:

1. A connection is a byte stream of the session (`port/open`), so that a lost connection to the daemon delays
   its bytes, and neither loses nor doubles any.
2. Each direction is paced. While the local program does not read, the stream's process at the executor is
   stopped (SIGSTOP), which stops reading from the listener, too; while the listener does not read,
   `process/write` waits.
3. The end of each direction is forwarded by itself. An error of either side resets the other.

`docs/protocol.md`, "Ports".
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from execclient import arguments
from execclient.connection.connection import Json
from execclient.errors import (
    CallTimeout,
    ExecServerError,
    NoSuchProcess,
    OutcomeUnknown,
    OutputGap,
    StdinUnavailable,
    StreamFailed,
)
from execclient.process import Process
from execclient.results import ListeningPort, PortEvent
from execclient.session.inbox import Inbox, Piece
from execclient.session.session import Session, cancel

LOOPBACK = "127.0.0.1"

READ_BYTES = 1 << 20
"""A piece of what a local program sends."""

STOP_BYTES, GO_ON_BYTES = 8 << 20, 1 << 20
"""Bytes that wait for the local program, above which the stream is stopped, and below which it goes on."""

LINGER_SECONDS = 1.0
"""How long what a local program still sends is read after the end of the stream."""

BACKLOG = 128

END_OF_LISTENER = b"eof\n"
"""What a stream writes to its `stderr` when the listener has ended its direction."""

LISTENING = "port/listening"

OnError = Callable[[ExecServerError], object]
"""Called with the error of a connection; may be asynchronous."""

log = logging.getLogger(__name__)


class Route(NamedTuple):
    """The listener of a forwarded port."""

    session: Session
    """The session that opens streams."""
    process_id: str | None
    """The process whose descendants listen; None for any."""
    session_id: str | None
    """The session of that process; None for `session`."""


class PortMethods:
    """The methods of an executor for ports."""

    _session: Session

    async def ports(
        self, *, session_id: str | None = None, all_sessions: bool = False
    ) -> list[ListeningPort]:
        """The TCP ports on which processes of this session and their descendants listen, by number.

        Args:
            session_id: the ports of another session.
            all_sessions: the ports of all sessions.

        Raises:
            Refused: other sessions are not accessible from here; the message says what would help.
            Unsupported: the server does not serve `port/list`.
        """
        self._session.require("port/list")
        params = {"sessionId": session_id, "allSessions": all_sessions}
        result = await self._session.call("port/list", params)
        return [ListeningPort.decode(item) for item in result["ports"]]

    def watch_ports(self, *, all_sessions: bool = False) -> PortEvents:
        """Watch on which ports processes begin and stop to listen, within `async with`.

        Args:
            all_sessions: the ports of all sessions, not only of this one.

        Raises:
            Refused, Unsupported: on entering, as `ports`.
            ValueError: on entering, there is a watch of this session already.
        """
        return PortEvents(self._session, all_sessions=all_sessions)

    def forward(
        self,
        port: int,
        *,
        local_port: int | None = None,
        process: Process | str | None = None,
        session_id: str | None = None,
        on_error: OnError | None = None,
    ) -> Forward:
        """Forward a port of this machine to a port at the executor, within `async with`.

        Programs of this machine connect to 127.0.0.1. Connections outlast a lost connection to the daemon:
        they stand still until it is replaced. Each end of a direction is forwarded by itself.

        Args:
            port: a TCP port on which a process of the session, or a descendant, listens, also in a sandbox
                with a network of its own. Until a process listens, connections are reset.
            local_port: the port of this machine; 0 for a free one. By default the same number, or a free one
                if that is in use: see `Forward.port`.
            process: the process, if several listen on this port.
            session_id: the session of the process, if it is another one; that of `process` by default.
            on_error: called with the error of each connection that fails, such as `Refused` while no process
                listens; may be asynchronous. By default errors are logged.

        Raises:
            OSError: on entering, the local port is in use, or not permitted.
            Unsupported: on entering, the server does not serve `port/open`.
        """
        if isinstance(process, Process):
            session_id, process = session_id or process.session_id, process.id
        own = session_id == self._session.id
        route = Route(self._session, process, None if own else session_id)
        return Forward(route, port, local_port, on_error)


class Forward:
    """A port of this machine that leads to a port at the executor. Get one from `Executor.forward`.

    It begins to listen on entering `async with`, on 127.0.0.1 alone. Leaving the block closes it and its
    connections.
    """

    def __init__(
        self, route: Route, remote_port: int, local_port: int | None, on_error: OnError | None
    ) -> None:
        arguments.port(remote_port, "port")
        if local_port is not None:
            arguments.port(local_port, "local_port", least=0)
        arguments.check_handler(on_error, "on_error")
        self.remote_port = remote_port
        """The port at the executor."""
        self.route = route
        """Where the next connections lead. Internal: it may change between versions."""
        self._session = route.session
        self._local_port = local_port
        self._port = 0
        self._on_error = on_error
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port of this machine; 0 before the block is entered."""
        return self._port

    @property
    def url(self) -> str:
        """The URL of a web server behind the port."""
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        self._session.require("port/open")
        listener = _bound(self.remote_port if self._local_port is None else self._local_port)
        if listener is None:
            if self._local_port is not None:
                text = f"port {self._local_port} of {LOOPBACK} is in use; choose another, or 0 for a free one"
                raise OSError(errno.EADDRINUSE, text)
            listener = _bound(0)
            assert listener is not None
        self._port = listener.getsockname()[1]
        self._server = None  # not that of an earlier block
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=READ_BYTES, backlog=BACKLOG
        )
        self._session.inboxes.watches[repr(self)] = self._session_changed
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening, and end all connections. May be called again."""
        self._session.inboxes.watches.pop(repr(self), None)
        if self._server is not None:
            self._server.close()
            await cancel(self._connections)

    def _session_changed(self, _: Json | None) -> None:
        if self._session.is_closed and self._server is not None:
            self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is not None and not self._server.is_serving():
            _reset(writer)  # it was accepted just before the end
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(partial(self._served, writer))

    def _served(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not writer.is_closing():  # also where the task was cancelled before its first step
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await Tunnel(self.route, self.remote_port, reader, writer).run()
            writer.close()
        except ExecServerError as error:
            _reset(writer)
            await self._report(error)
        except OSError:
            pass  # the local program has reset its connection

    async def _report(self, error: ExecServerError) -> None:
        if self._on_error is None:
            log.warning("a connection to port %d has failed: %s", self.remote_port, error)
            return
        try:
            reported = self._on_error(error)
            if inspect.isawaitable(reported):
                await reported
        except Exception:
            log.exception("the handler of errors of a forwarded port failed")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {LOOPBACK}:{self.port} to port {self.remote_port}>"


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection: its end tells the local program that something may be missing."""
    connection = writer.get_extra_info("socket")
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _bound(port: int) -> socket.socket | None:
    """A socket that is bound to a port of the loopback address; None if the port is in use.

    Raises:
        OSError: it cannot be bound, such as one below 1024.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((LOOPBACK, port))
        bound.listen(BACKLOG)  # of two sockets that are bound, only one may listen
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return bound


class Tunnel:
    """One connection of a local program.

    Args:
        route: the listener.
        port: the port at the executor.
        reader: the local connection.
        writer: the same.
    """

    def __init__(
        self, route: Route, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._route = route
        self._port = port
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._process: Process
        self._pacing: asyncio.Task[None] | None = None
        self._report = b""
        """What the stream writes to its `stderr`: `END_OF_LISTENER`, then an error if there is one."""
        self._gap: OutputGap | None = None
        self._transport.set_write_buffer_limits(STOP_BYTES, GO_ON_BYTES)

    async def run(self) -> None:
        """Forward both directions until both have ended.

        Raises:
            ExecServerError: the stream could not be opened, or has failed.
            OSError: the local connection has failed.
        """
        self._process = await self._open()
        inbox = self._process.output
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(inbox.until_closed())
        losing = asyncio.create_task(self._writer.wait_closed())
        try:
            running = {sending, receiving, losing}
            while not (receiving.done() or losing.done()):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if self._gap is not None:
                raise self._gap
            if receiving.done():
                self._check_end(await inbox.until_exited())
                await cancel({sending})
                await self._end_locally()
        finally:
            # First what may not be left out: the wait may be cancelled.
            if not inbox.closed:
                self._route.session.terminate_soon(inbox.id)
            self._route.session.inboxes.forget(inbox)
            pacing = () if self._pacing is None else (self._pacing,)
            await cancel((sending, receiving, losing, *pacing))

    async def _open(self) -> Process:
        """The stream, which is connected."""
        session, process_id, session_id = self._route
        params: dict[str, Json] = {"port": self._port}
        params |= {} if process_id is None else {"ofProcess": process_id}
        params |= {} if session_id is None else {"sessionId": session_id}
        while True:
            inbox = Inbox(f"port-{arguments.new_id()}", None, sink=self._received)
            session.add(inbox)
            try:
                await session.call("port/open", {**params, "processId": inbox.id})
            except BaseException as error:
                session.inboxes.forget(inbox)
                if isinstance(error, OutcomeUnknown | CallTimeout | asyncio.CancelledError):
                    session.terminate_soon(inbox.id)
                if isinstance(error, OutcomeUnknown):
                    continue  # nothing has been sent to it: another one takes its place
                raise
            inbox.started = True
            return Process(session, inbox, stdin=True)

    async def _send(self) -> None:
        """Forward what the local program sends, and its end."""
        with suppress(StdinUnavailable, NoSuchProcess):  # the listener takes no more
            while data := await self._reader.read(READ_BYTES):
                await self._process.write(data)
            await self._process.close_stdin()

    def _received(self, piece: Piece) -> None:
        """Forward what the listener sends."""
        if isinstance(piece, OutputGap):
            self._gap = piece
            self._transport.abort()
            return
        if piece.stream == "stderr":
            self._report += piece.data
            if self._report.startswith(END_OF_LISTENER):
                self._end_output()
        elif not self._transport.is_closing():
            self._writer.write(piece.data)
            if self._pacing is None and self._transport.get_write_buffer_size() > STOP_BYTES:
                self._pacing = asyncio.create_task(self._pace())

    def _end_output(self) -> None:
        """Tell the local program that the listener sends no more. May be called again."""
        if not self._transport.is_closing():
            with suppress(OSError):  # it has reset the connection
                self._writer.write_eof()

    async def _pace(self) -> None:
        """Stop the stream until the local program has read most of what waits for it."""
        with suppress(NoSuchProcess, OSError):
            while self._transport.get_write_buffer_size() > STOP_BYTES:
                await self._signal("SIGSTOP")
                await self._writer.drain()
                await self._signal("SIGCONT")
        self._pacing = None

    async def _signal(self, name: str) -> None:
        while True:
            with suppress(OutcomeUnknown):  # either signal may be sent twice
                await self._process.signal(name, "leader")
                return

    def _check_end(self, code: int) -> None:
        if code:
            report = self._report.removeprefix(END_OF_LISTENER)
            reason = report.decode(errors="replace").strip() or f"its program has exited with {code}"
            raise StreamFailed(f"the connection to port {self._port} of the executor has failed: {reason}")

    async def _end_locally(self) -> None:
        """End the local connection once all is sent.

        Data of the local program that nothing reads would make the kernel discard what was sent last.
        """
        self._end_output()
        self._transport.set_write_buffer_limits(0)
        await self._writer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._reader.read(READ_BYTES):
                    pass


class PortEvents:
    """What begins and stops to listen at the executor. Get one from `Executor.watch_ports`.

    Iterating yields a `PortEvent` for each port on which a process listens already, then for each change,
    within about a second; by one task at a time. It has no end. After a lost connection it yields what has
    changed meanwhile.
    """

    def __init__(self, session: Session, *, all_sessions: bool) -> None:
        self._session = session
        self._params = {"allSessions": all_sessions, "watch": True}
        self._known: dict[tuple[str, str | None, str, int], ListeningPort] = {}
        self._waiting: deque[PortEvent] = deque()
        self._news = asyncio.Event()
        self._asked = False
        """Whether the connection was asked for events."""

    async def __aenter__(self) -> Self:
        self._session.require("port/list")
        watches = self._session.inboxes.watches
        if LISTENING in watches:
            raise ValueError("this session has a port watch already: end it first, or share its events")
        watches[LISTENING] = self._received
        try:
            await self._list()
        except BaseException:
            del watches[LISTENING]
            # It may have begun all the same.
            self._session.soon(partial(self._session.call, "port/list", {"watch": False}))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session.inboxes.watches.pop(LISTENING, None) is not None:
            with suppress(ExecServerError):
                await self._session.call("port/list", {"watch": False})

    def __aiter__(self) -> AsyncIterator[PortEvent]:
        return self

    async def __anext__(self) -> PortEvent:
        """The next event.

        Raises:
            SessionLost, ExecutorClosed: no more events will arrive.
        """
        while not self._waiting:
            if self._asked:
                self._news.clear()
                await self._news.wait()
            else:
                await self._list()
        return self._waiting.popleft()

    async def _list(self) -> None:
        self._asked = True
        try:
            result = await self._session.call("port/list", self._params)
        except BaseException:
            self._asked = False
            raise
        listed = {port.key: port for port in map(ListeningPort.decode, result["ports"])}
        for port in [port for key, port in self._known.items() if key not in listed]:
            self._change(port, listening=False)
        for port in listed.values():
            self._change(port, listening=True)

    def _received(self, params: Json | None) -> None:
        if params is None:
            self._asked = False
            self._news.set()
        else:
            self._change(ListeningPort.decode(params), listening=bool(params["listening"]))

    def _change(self, port: ListeningPort, *, listening: bool) -> None:
        if listening == (port.key in self._known):
            return
        if listening:
            self._known[port.key] = port
        else:
            del self._known[port.key]
        self._waiting.append(PortEvent(port, listening))
        self._news.set()
