"""The plain WebSocket: `GET BASE/exec/ENVIRONMENT`, JSON-RPC for clients without the relay protocol.

- Only environments that the operator named (`--plain-door`) have one, because the relay can read its
  messages: the relay is the harness, with keys from its state folder. An executor may leave that key off its
  list of allowed clients.
- A client needs a token. Before the token is checked, no answer depends on the environment.
- The upgrade is answered once the executor has answered the handshake; until then every refusal is an HTTP
  status with a reason.
- Each WebSocket is one stream, with a ticket like any harness, and ends with it.

`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, MutableMapping
from http import HTTPStatus
from typing import Protocol
from uuid import uuid4

from aiohttp import WSMsgType, hdrs, web

from execprotocol.limits import MAX_MESSAGE_BYTES
from execprotocol.relay import frames
from execprotocol.relay.contract import ENVIRONMENT_OFFLINE, check_environment_id
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import Binding, Initiator, NoiseError
from execprotocol.relay.records import HEADER_BYTES, RecordError
from execprotocol.relay.sealed_stream import InitiatorStream, StreamBroken, StreamRejected, StreamReset
from execserver.relay.service.errors import HttpError, peer_of
from execserver.relay.service.queues import RelayPeer
from execserver.relay.service.registry import (
    ConnectResult,
    ExecutorOffline,
    Harness,
    RelayRegistry,
    TicketRefused,
    TooManyTickets,
)
from execserver.relay.service.registry_http import DRAINING, bearer_of
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.sockets import WebSocketPeer, new_socket
from execserver.relay.service.tokens import Tokens
from execserver.telemetry.logs import Logger
from execserver.transports.websocket import CONTINUED, FIRST_TEXT, LAST, header

HANDSHAKE_SECONDS = 10.0
"""For the executor's answer, which includes its request to the registry. As clients wait."""

MAX_CLIENTS = 32
"""Clients with one token at a time. A message is assembled in memory, and may have 64 MiB: one token must not
use up the relay's memory."""

CLIENT_GONE = 1001

STREAM_OVER, PROTOCOL_BROKEN = 1001, 1011
"""Close codes for the client: the executor ended the stream; the executor violated the protocol."""

REJECTED = "the executor does not accept the key of the relay's plain WebSocket"

log = Logger()


class PlainWebSocket:
    """The HTTP handler of plain WebSockets.

    Args:
        environments: the ids of environments that have a plain WebSocket.
        keys: the relay's key pair as a harness.
        registry: for tickets of the environments.
        tokens: authorizes clients.
        rendezvous: forwards the frames.
        admitted: the peer of each admitted harness, so that it ends with its token.
        is_draining: whether the relay is draining.
    """

    def __init__(
        self,
        environments: Collection[str],
        keys: KeyPair,
        registry: RelayRegistry,
        tokens: Tokens,
        rendezvous: Rendezvous,
        admitted: MutableMapping[Harness, RelayPeer],
        is_draining: Callable[[], bool],
    ) -> None:
        self._environments = environments
        self._keys = keys
        self._registry = registry
        self._tokens = tokens
        self._rendezvous = rendezvous
        self._admitted = admitted
        self._is_draining = is_draining
        self._clients: Counter[str] = Counter()  # by token

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """The routes, below a prefix."""
        return [web.get(f"{prefix}/exec/{{environment}}", self.handle, allow_head=False)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one client until its WebSocket ends.

        Raises:
            HttpError: with status 404, 426, 429, 502, 503 or 504, before the upgrade.
            TokenRefused: with status 401 or 403.
            ContractError: the environment id is invalid.
        """
        environment_id = check_environment_id(request.match_info["environment"])
        token = self._tokens.check(bearer_of(request), "client", environment_id)
        if environment_id not in self._environments:
            raise HttpError(
                HTTPStatus.NOT_FOUND,
                f"the environment {environment_id} has no plain WebSocket here: use a relay+https URL, or "
                f"start the relay with --plain-door {environment_id}",
            )
        if not new_socket().can_prepare(request).ok:
            raise HttpError(
                HTTPStatus.UPGRADE_REQUIRED,
                "only WebSocket upgrades here",
                headers={hdrs.UPGRADE: "websocket"},
            )
        if self._is_draining():
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, DRAINING)
        if self._clients[token.id] >= MAX_CLIENTS:
            raise HttpError(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{MAX_CLIENTS} clients are connected with this token; give others tokens of their own",
            )
        self._clients[token.id] += 1
        try:
            return await self._admit(request, environment_id, token.id)
        finally:
            self._clients[token.id] -= 1
            if not self._clients[token.id]:
                del self._clients[token.id]

    async def _admit(self, request: web.Request, environment_id: str, token_id: str) -> web.StreamResponse:
        granted, harness = await self._connect(environment_id, token_id)
        stream = self._stream(environment_id, harness.registration.id, granted)
        self._admitted[harness] = stream
        self._rendezvous.harness_joined(harness.registration.id, harness.executor_address, stream)
        try:
            await self._shake_hands(stream, granted.authorization)
            return await self._serve(request, environment_id, stream)
        finally:
            stream.close(CLIENT_GONE, "the client is gone")
            self._rendezvous.harness_left(stream)
            self._registry.harness_closed(harness)
            self._admitted.pop(harness, None)

    async def _connect(self, environment_id: str, token_id: str) -> tuple[ConnectResult, Harness]:
        try:
            granted = await self._registry.connect(environment_id, self._keys.public, token_id)
            return granted, await self._registry.redeem_harness(environment_id, granted.ticket)
        except ExecutorOffline as error:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), ENVIRONMENT_OFFLINE) from None
        except TicketRefused as error:  # in the last millisecond
            raise HttpError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the executor of the environment {environment_id} is gone; try again ({error.reason})",
                ENVIRONMENT_OFFLINE,
            ) from None
        except TooManyTickets as error:
            raise HttpError(HTTPStatus.TOO_MANY_REQUESTS, str(error)) from None

    def _stream(self, environment_id: str, registration_id: str, granted: ConnectResult) -> PlainStream:
        stream_id = str(uuid4())
        binding = Binding(environment_id, registration_id, stream_id)
        initiator = Initiator(self._keys, granted.registration.key, binding)

        def forward(frame: bytes) -> None:
            self._rendezvous.from_harness(stream, frame)

        stream = PlainStream(stream_id, initiator, forward)
        return stream

    async def _shake_hands(self, stream: PlainStream, authorization: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await stream.open(authorization)
        except TimeoutError:
            raise HttpError(
                HTTPStatus.GATEWAY_TIMEOUT, f"the executor did not answer within {HANDSHAKE_SECONDS:.0f} s"
            ) from None
        except NoiseError as error:
            raise HttpError(HTTPStatus.BAD_GATEWAY, str(error)) from None
        except StreamRefused as error:
            hint = f"; its fingerprint is {self._keys.public.fingerprint}" if error.rejected else ""
            raise HttpError(HTTPStatus.BAD_GATEWAY, f"{error}{hint}") from None

    async def _serve(
        self, request: web.Request, environment_id: str, stream: PlainStream
    ) -> web.WebSocketResponse[bool]:
        socket = new_socket(MAX_MESSAGE_BYTES)
        client = PlainWebSocketPeer(socket, request, stream.id, lambda _: self._rendezvous.drained(stream))
        await client.upgrade()
        bound = log.bind(environment=environment_id, peer=peer_of(request), socket=stream.id)
        bound.info("plain client connected")
        stream.attach(client)
        reason = await client.serve(stream.message, lambda: None)
        bound.info("plain client disconnected", reason=reason)
        return socket


class PlainWebSocketPeer(WebSocketPeer):
    """The WebSocket of a plain client: takes text and binary messages, and sends ready-made frames."""

    def write(self, data: bytes) -> None:
        """Queue whole WebSocket frames. A no-op if the socket is ending."""
        if self._ending is None and not self._transport.is_closing():
            self._transport.write(data)
            self._wrote(len(data))

    async def _read(self, received: Callable[[bytes], None], dropped: Callable[[], None]) -> str:
        while self._ending is None:
            while self._may_read is not None:
                await self._may_read.wait()
            message = await self._socket.receive()
            self._heard = True
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                received(message.data)
            elif message.type is WSMsgType.PING:
                self._answer(message.data)
            elif message.type is not WSMsgType.PONG:
                return self._end_reason(message.data)
            # The cost of a message is up to its client, so other peers get their turn after each.
            await asyncio.sleep(0)
        return ""


class PlainClient(Protocol):
    """The client's WebSocket, as the stream uses it."""

    @property
    def queued(self) -> int:
        """Bytes that the system has not taken yet."""

    def write(self, data: bytes) -> None:
        """Queue whole WebSocket frames."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read again."""

    def close(self, code: int, reason: str) -> None:
        """End the socket (idempotent)."""


class StreamRefused(Exception):
    """The stream was not opened.

    Attributes:
        rejected: whether the executor rejected the relay's key or authorization.
    """

    def __init__(self, message: str, *, rejected: bool = False) -> None:
        super().__init__(message)
        self.rejected = rejected


class PlainStream:
    """One stream to an executor, as a harness of the rendezvous.

    1. No sockets here. Frames for the executor go to `forward`, WebSocket frames for the client to its
       `PlainClient`.
    2. Memory is bounded both ways. One message of the client is in work: while the rendezvous takes no more,
       the client is not read from. Towards the client no message is gathered: its records become fragments
       as they come, and the bytes that the client does not take are `queued`, which the rendezvous limits.
    3. The rendezvous is never called back from within its calls: what follows from them waits for the next
       turn of the loop.
    4. A stream ends once, and closes its client's WebSocket with a code and a reason.

    Args:
        stream_id: a new UUID.
        initiator: bound to that stream.
        forward: takes each frame for the executor; the rendezvous may answer from within.
    """

    def __init__(self, stream_id: str, initiator: Initiator, forward: Callable[[bytes], None]) -> None:
        self.id = stream_id
        self._forward = forward
        self._client: PlainClient | None = None
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: tuple[int, str] | None = None
        self._paused = False
        self._cutter = FragmentCutter()
        self._stream = InitiatorStream(stream_id, self._record_received, initiator)
        self._early: list[bytes] = []  # until the client's WebSocket is open

    # -- called by `PlainWebSocket`

    async def open(self, authorization: str) -> None:
        """Claim the stream and shake hands with the executor.

        Args:
            authorization: of the registry, for this stream.

        Raises:
            NoiseError: the executor's public keys are invalid.
            StreamRefused: the executor or the rendezvous refused the stream.
        """
        for frame in self._stream.opening_frames(authorization):
            if self._ended is None:
                self._forward(frame)
        await self._opened

    def attach(self, client: PlainClient) -> None:
        """Connect the stream to the client's WebSocket."""
        self._client = client
        early, self._early = self._early, []
        for data in early:
            client.write(data)
        if self._ended is not None:
            client.close(*self._ended)

    def message(self, message: bytes) -> None:
        """Send a message of the client to the executor."""
        self._stream.outgoing.put((message,))
        self._pump()
        if self._stream.outgoing.unsent and self._client is not None:
            self._client.pause()

    # -- called by the rendezvous: queues.Peer

    @property
    def queued(self) -> int:
        """Bytes that wait for the client."""
        return self._client.queued if self._client is not None else sum(map(len, self._early))

    def send(self, frame: bytes) -> None:
        """Process a frame of the executor, or a reset by the relay."""
        if self._ended is not None:
            return
        try:
            opened = self._stream.frame_received(frame)
        except StreamBroken as error:
            self._break(str(error))
        except StreamRejected:
            self.close(STREAM_OVER, REJECTED)
        except StreamReset as reset:
            self.close(STREAM_OVER, f"the executor reset the stream: {reset.reason or 'no reason'}")
        else:
            if opened and not self._opened.done():
                self._opened.set_result(None)

    def close(self, code: int, reason: str) -> None:
        """End the stream and the client's WebSocket (idempotent)."""
        if self._ended is None:
            self._ended = (code, reason)
            self._stream.outgoing.clear()
            if not self._opened.done():
                self._opened.set_exception(StreamRefused(reason, rejected=reason == REJECTED))
            if self._client is not None:
                self._client.close(code, reason)

    def pause(self) -> None:
        """Stop sending: the executor's queue is full."""
        self._paused = True

    def resume(self) -> None:
        """Send again, from the next turn of the loop on."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._go_on)

    # -- within

    def _go_on(self) -> None:
        self._pump()
        if not self._stream.outgoing.unsent and self._client is not None:
            self._client.resume()

    def _pump(self) -> None:
        try:
            while not self._paused and self._ended is None:
                frame = self._stream.next_frame()
                if frame is None:
                    return
                self._forward(frame)
        except StreamBroken as error:
            self._break(str(error))

    def _record_received(self, record: bytes) -> None:
        data = self._cutter.cut(record)
        if not data:
            return
        if self._client is not None:
            self._client.write(data)
        else:
            self._early.append(data)

    def _break(self, reason: str) -> None:
        self._loop.call_soon(self._forward, frames.reset(self.id, frames.PROTOCOL_ERROR))
        self.close(PROTOCOL_BROKEN, reason)


class FragmentCutter:
    """Makes WebSocket frames of records: one text frame for a message within one record; fragments for a
    longer one, each as soon as its record is there.

    Args:
        limit: of a message, in bytes.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._head = b""  # less than the length of the next message
        self._missing = 0  # of a message that has begun
        self._opcode = FIRST_TEXT

    def cut(self, record: bytes) -> bytes:
        """The frames for a record; none while a message's length is incomplete.

        Raises:
            RecordError: a message of more than `limit` bytes is announced.
        """
        parts: list[bytes | memoryview] = []
        if self._head:
            record, self._head = self._head + record, b""
        view, place = memoryview(record), 0
        while place < len(record):
            if not self._missing:
                if len(record) - place < HEADER_BYTES:
                    self._head = record[place:]
                    break
                size = int.from_bytes(view[place : place + HEADER_BYTES])
                if size > self._limit:
                    raise RecordError(f"the executor announced a message of {size} bytes")
                place += HEADER_BYTES
                self._missing = size
                if not size:
                    parts.append(header(LAST | FIRST_TEXT, 0))
                    continue
            piece = view[place : place + self._missing]
            if not piece:
                break
            place += len(piece)
            self._missing -= len(piece)
            parts += (header(self._opcode | (0 if self._missing else LAST), len(piece)), piece)
            self._opcode = CONTINUED if self._missing else FIRST_TEXT
        return b"".join(parts)
