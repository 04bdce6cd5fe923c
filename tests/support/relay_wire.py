"""Peers of a real relay that send and get single frames: an executor and harnesses without an executor's or
a client's rules, on a WebSocket library of its own kind.

    async with Wire(relay.url, executor_token, client_token) as wire:
        executor = await wire.executor("box")
        harness = await wire.harness("box")
        await harness.send(frames.resume("a"))
        assert await executor.message() == frames.resume("a")
        assert await harness.closed() == (1013, "executor_gone")
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import WSMsgType

from execprotocol.relay import contract, frames
from execprotocol.relay.contract import ConnectAnswer, RegisterAnswer, ValidateRequest
from execprotocol.relay.frames import Frame
from execprotocol.relay.keys import KeyPair
from tests.support.wire import PATIENCE

ABNORMAL = 1006
"""What a socket without a close frame ended with."""


class UpgradeRefused(Exception):
    """The relay answered an upgrade with something else."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason
        """The word in its header."""


class SocketEnded(Exception):
    """Nothing more comes on a socket."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        """Of the close frame, or `ABNORMAL`."""
        self.reason = reason


class RawPeer:
    """One WebSocket to a relay. What is not asked for waits: in the kernel, and then in the relay."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, *messages: bytes) -> None:
        """Send messages, and wait while the relay takes no more."""
        for message in messages:
            await self._socket.send_bytes(message)

    async def send_text(self, message: str) -> None:
        """Send an invalid message."""
        await self._socket.send_str(message)

    async def message(self) -> bytes:
        """The next message.

        Raises:
            SocketEnded: there is none.
        """
        async with asyncio.timeout(PATIENCE):
            message = await self._socket.receive()
        if message.type is WSMsgType.CLOSE:
            raise SocketEnded(int(message.data), str(message.extra or ""))
        if message.type is not WSMsgType.BINARY:
            raise SocketEnded(int(self._socket.close_code or ABNORMAL), "")
        data: bytes = message.data
        return data

    async def frame(self) -> Frame:
        """The next message, read."""
        return frames.decode(await self.message())

    async def closed(self) -> tuple[int, str]:
        """Wait for the end, whatever comes before; the code and the reason of the close frame."""
        try:
            while True:
                await self.message()
        except SocketEnded as ended:
            return ended.code, ended.reason

    async def close(self) -> None:
        """Say good-bye."""
        await self._socket.close()

    def abort(self) -> None:
        """Be gone, without a word."""
        connection = self._socket._response.connection
        assert connection is not None, "it is open"
        assert connection.transport is not None, "it is open"
        connection.transport.abort()


class Wire:
    """A relay as a tenant of it sees it.

    Args:
        url: its base URL.
        executor_token: for registrations.
        client_token: for `connect`.
    """

    def __init__(self, url: str, executor_token: str, client_token: str) -> None:
        self.url = url
        self.executor_token = executor_token
        self.client_token = client_token
        self._session: aiohttp.ClientSession
        self._peers: list[RawPeer] = []  # a socket without a reference is closed by its library

    async def __aenter__(self) -> Self:
        # A connection for each request: a load balancer may send it to another relay.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=PATIENCE), connector=aiohttp.TCPConnector(force_close=True)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Else each is closed by the collector of garbage, if it comes to the response before the connection.
        await asyncio.gather(*(peer.close() for peer in self._peers))
        await self._session.close()

    # -- the registry

    async def post(
        self, environment: str, action: str, token: str, body: Mapping[str, object]
    ) -> tuple[int, bytes]:
        """A request of the registry; the status and the body of its answer."""
        url = self.url + contract.path(environment, action)
        headers = {"Authorization": f"Bearer {token}"}
        async with self._session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def register(self, environment: str, key: KeyPair) -> RegisterAnswer:
        """Register; the answer, which must be a yes."""
        asked = contract.RegisterRequest(key.public).to_json()
        status, body = await self.post(environment, "register", self.executor_token, asked)
        assert status == 200, body
        return RegisterAnswer.parse(body)

    async def connect(self, environment: str, key: KeyPair) -> ConnectAnswer:
        """Be introduced; the answer, which must be a yes."""
        asked = contract.ConnectRequest(key.public).to_json()
        status, body = await self.post(environment, "connect", self.client_token, asked)
        assert status == 200, body
        return ConnectAnswer.parse(body)

    async def is_valid(self, environment: str, asked: ValidateRequest) -> bool:
        """Ask as an executor asks; the answer must be one."""
        status, body = await self.post(environment, "validate", self.executor_token, asked.to_json())
        assert status == 200, body
        return contract.parse_validity(body)

    # -- the rendezvous

    async def dial(self, url: str) -> RawPeer:
        """Open a WebSocket at a URL that was handed out.

        Raises:
            UpgradeRefused: it was not to be.
        """
        try:
            socket = await self._session.ws_connect(url, max_msg_size=0, compress=0)
        except aiohttp.WSServerHandshakeError as error:
            headers = error.headers
            word = headers.get(contract.REJECTION_REASON_HEADER, "") if headers is not None else ""
            raise UpgradeRefused(error.status, word) from None
        peer = RawPeer(socket)
        self._peers.append(peer)
        return peer

    async def refusal(self, url: str) -> tuple[int, str]:
        """How an upgrade is refused: the status, and the word for why."""
        try:
            peer = await self.dial(url)
        except UpgradeRefused as refused:
            return refused.status, refused.reason
        await peer.close()
        raise AssertionError("it was let in")

    async def executor(self, environment: str, key: KeyPair | None = None) -> RawPeer:
        """Register and dial."""
        return await self.dial((await self.register(environment, key or KeyPair.generate())).url)

    async def harness(self, environment: str, key: KeyPair | None = None) -> RawPeer:
        """Be introduced, and dial."""
        return await self.dial((await self.connect(environment, key or KeyPair.generate())).url)
