"""A registry and a rendezvous in the test's own process, that do what the test says; and the client's end of
a stream, made of the pure core.

    async with FakeRelay() as relay:
        executor = ...                              # dials relay.url, environment "box"
        await relay.online()                        # until its socket is there
        client = relay.client()
        await client.open()                         # the handshake
        await client.initialize()
        assert await client.call("environment/info", {})

Scripts: `relay.register_answers`, `relay.dial_answers` and `relay.status_answers` are taken one a request,
before everything is fine; `relay.validate_answer` is for all. It copies frames and knows no limits: the real
one has tests of its own.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from aiohttp import WSMsgType, web

from execprotocol.relay import contract, frames
from execprotocol.relay.frames import Frame
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.noise import Binding, Initiator, NoiseTransport
from execprotocol.relay.records import MessageAssembler, RecordQueue

PATIENCE = 20.0
"""Seconds for something that must happen. Long, because it only matters in a failure."""

ENVIRONMENT = "box"
AUTHORIZATION = "the registry sent me"

Answer = tuple[int, dict[str, object]]


def refusal(status: int, code: str) -> Answer:
    """An answer that refuses."""
    return status, contract.error_body(code, "by the test")


class StreamEnded(Exception):
    """The executor reset the stream, or its socket is gone."""


class FakeRelay:
    """One environment's registry and rendezvous."""

    def __init__(self, environment_id: str = ENVIRONMENT) -> None:
        self.environment_id = environment_id
        self.url = ""
        self.tokens: list[str] = []
        """The Authorization headers of all requests."""
        self.executor_keys: list[PublicKeys] = []
        """One for each registration that was accepted."""
        self.register_requests = 0
        self.register_answers: deque[Answer] = deque()
        self.dials: list[str] = []
        """The paths of all upgrades, refused ones too."""
        self.dial_answers: deque[int] = deque()
        self.rejection_reason = ""
        """The word with each of them."""
        self.validate_answer: Answer = (200, {"valid": True})
        self.validations: list[dict[str, Any]] = []
        self.validate_gate: asyncio.Event | None = None
        """Set it to hold answers back until the event is set."""
        self.statuses: list[contract.StatusRequest] = []
        """The reports of a member of a pool, refused ones too."""
        self.status_answers: deque[Answer] = deque()
        self.entries: list[contract.PoolEntry | None] = []
        """What each accepted registration said of itself."""
        self.orphans: list[Frame] = []
        """Frames of the executor for unknown streams."""
        self._streams: dict[str, RelayClient] = {}
        self._socket: web.WebSocketResponse | None = None
        self._runner: web.AppRunner
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/cloud/environment/{id}/register", self._register)
        app.router.add_post("/cloud/environment/{id}/validate", self._validate)
        app.router.add_post("/cloud/environment/{id}/status", self._status)
        app.router.add_get("/executor/{number}", self._executor)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._runner.cleanup()

    @property
    def registration_id(self) -> str:
        """Of the last registration."""
        return f"registration-{len(self.executor_keys)}"

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that this relay sees is so."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(condition)

    async def online(self, dials: int = 1) -> None:
        """Wait until the executor has dialed so often and its socket is there."""
        await self.until(lambda: self._socket is not None and len(self.dials) >= dials)

    def cut(self) -> None:
        """Drop the executor's socket without a word."""
        if self._socket is not None and (transport := self._socket._req.transport) is not None:  # type: ignore[union-attr]
            transport.abort()

    def client(self, key: KeyPair | None = None, stream_id: str | None = None) -> RelayClient:
        """A client's end of a new stream."""
        client = RelayClient(self, key or KeyPair.generate(), stream_id or str(uuid.uuid4()))
        self._streams[client.stream_id] = client
        return client

    async def send(self, message: bytes) -> None:
        """Send the executor a message, whatever is in it."""
        assert self._socket is not None, "the executor is not there"
        await self._socket.send_bytes(message)

    async def send_text(self, message: str) -> None:
        """Send the executor what it does not want."""
        assert self._socket is not None, "the executor is not there"
        await self._socket.send_str(message)

    # -- handlers

    async def _register(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers["authorization"])
        asked = contract.RegisterRequest.parse(await request.read())
        async with self._changed:
            self.register_requests += 1
            if self.register_answers:
                status, body = self.register_answers.popleft()
            else:
                self.executor_keys.append(asked.key)
                self.entries.append(asked.pool)
                number = len(self.executor_keys)
                url = f"ws{self.url.removeprefix('http')}/executor/{number}?ticket=secret-{number}"
                answer = contract.RegisterAnswer(request.match_info["id"], url, f"registration-{number}")
                status, body = 200, answer.to_json()
            self._changed.notify_all()
        return web.json_response(body, status=status)

    async def _validate(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers["authorization"])
        body = await request.read()
        contract.ValidateRequest.parse(body)
        async with self._changed:
            self.validations.append(json.loads(body))
            self._changed.notify_all()
        if self.validate_gate is not None:
            await self.validate_gate.wait()
        status, answer = self.validate_answer
        return web.json_response(answer, status=status)

    async def _status(self, request: web.Request) -> web.Response:
        reported = contract.StatusRequest.parse(await request.read())
        async with self._changed:
            self.statuses.append(reported)
            status, body = self.status_answers.popleft() if self.status_answers else (200, {})
            self._changed.notify_all()
        return web.json_response(body, status=status)

    async def _executor(self, request: web.Request) -> web.StreamResponse:
        async with self._changed:
            self.dials.append(request.path)
            self._changed.notify_all()
            if self.dial_answers:
                headers = {contract.REJECTION_REASON_HEADER: self.rejection_reason}
                return web.Response(status=self.dial_answers.popleft(), headers=headers)
        socket = web.WebSocketResponse(compress=False, max_msg_size=frames.MAX_FRAME_BYTES)
        await socket.prepare(request)
        async with self._changed:
            self._socket = socket
            self._changed.notify_all()
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                self._forward(message.data)
        if self._socket is socket:
            self._socket = None
        for client in self._streams.values():
            client.came.put_nowait(None)
        async with self._changed:
            self._changed.notify_all()
        return socket

    def _forward(self, message: bytes) -> None:
        frame = frames.decode(message)
        client = self._streams.get(frame.stream_id)
        if client is None:
            self.orphans.append(frame)
        else:
            client.came.put_nowait(frame)


class RelayClient:
    """The client's end of a stream."""

    def __init__(self, relay: FakeRelay, key: KeyPair, stream_id: str) -> None:
        self.relay = relay
        self.key = key
        self.stream_id = stream_id
        self.came: asyncio.Queue[Frame | None] = asyncio.Queue()
        """Frames of the executor; None when its socket is gone."""
        self.notifications: deque[dict[str, Any]] = deque()
        self.transport: NoiseTransport
        self._queue = RecordQueue()
        self._sent = 0
        self._messages: deque[bytes | bytearray] = deque()
        self._assembler = MessageAssembler(self._messages.append)
        self._numbers = itertools.count(1)

    async def open(self, authorization: str = AUTHORIZATION) -> bytes:
        """The handshake; the payload of its answer.

        Raises:
            StreamEnded: the executor does not want it.
        """
        initiator = self.initiator()
        await self.relay.send(frames.resume(self.stream_id))
        await self.relay.send(frames.handshake(self.stream_id, initiator.write_first(authorization.encode())))
        frame = await self.frame()
        assert frame.kind == "handshake"
        payload, self.transport = initiator.read_second(bytes(frame.payload))
        return payload

    def initiator(self) -> Initiator:
        """Our half of a handshake with the executor of the last registration."""
        binding = Binding(self.relay.environment_id, self.relay.registration_id, self.stream_id)
        return Initiator(self.key, self.relay.executor_keys[-1], binding)

    async def frame(self) -> Frame:
        """The next frame.

        Raises:
            StreamEnded: it is the end.
        """
        async with asyncio.timeout(PATIENCE):
            frame = await self.came.get()
        if frame is None:
            raise StreamEnded("the executor's socket is gone")
        if frame.kind == "reset":
            raise StreamEnded(frame.reason)
        return frame

    async def send(self, *messages: object) -> None:
        """Send JSON values, as few records as can be."""
        for message in messages:
            self._queue.put((message if isinstance(message, bytes) else json.dumps(message).encode(),))
        while (record := self._queue.take()) is not None:
            await self.send_record(record)

    async def send_record(self, record: bytes | memoryview) -> None:
        """Seal and send one record."""
        await self.relay.send(frames.data(self.stream_id, self._sent, self.transport.seal(record)))
        self._sent += 1

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        while not self._messages:
            frame = await self.frame()
            assert frame.kind == "data"
            self._assembler.feed(self.transport.open(frame.payload))
        message: dict[str, Any] = json.loads(self._messages.popleft())
        return message

    async def call(self, method: str, params: object) -> Any:
        """A request; its result. What comes meanwhile goes to `notifications`."""
        reply = await self.reply(method, params)
        assert "error" not in reply, reply
        return reply["result"]

    async def reply(self, method: str, params: object) -> dict[str, Any]:
        """A request; the message that answers it."""
        number = next(self._numbers)
        await self.send({"id": number, "method": method, "params": params})
        while (message := await self.receive()).get("id") != number:
            self.notifications.append(message)
        return message

    async def initialize(self, resume: str | None = None) -> str:
        """The session's handshake; its id."""
        params = {"clientName": "test", **({"resumeSessionId": resume} if resume else {})}
        session: str = (await self.call("initialize", params))["sessionId"]
        await self.send({"method": "initialized", "params": {}})
        return session

    async def shell(self, script: str, process_id: str = "p") -> None:
        """Start a process."""
        params = {
            "processId": process_id,
            "argv": ["/bin/sh", "-c", script],
            "cwd": "file:///",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "tty": False,
        }
        await self.call("process/start", params)

    async def output_until_closed(self, process_id: str = "p") -> bytes:
        """What a process says by notifications, to its end."""
        output = b""
        while True:
            message = self.notifications.popleft() if self.notifications else await self.receive()
            params = message.get("params", {})
            if params.get("processId") != process_id:
                continue
            if message["method"] == "process/output":
                output += base64.b64decode(params["chunk"])
            elif message["method"] == "process/closed":
                return output

    async def ended(self) -> str:
        """Wait for the end of the stream; its reason."""
        try:
            while True:
                await self.frame()
        except StreamEnded as ended:
            return str(ended)

    async def reset(self, reason: str = "test") -> None:
        """Leave."""
        await self.relay.send(frames.reset(self.stream_id, reason))


def kinds(came: Sequence[Frame]) -> list[str]:
    """What kinds of frames they are."""
    return [frame.kind for frame in came]
