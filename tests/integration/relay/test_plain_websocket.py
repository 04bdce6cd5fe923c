"""The plain door on a real port: plain clients before it, behind it an executor made here or a real one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import WSMsgType, web

import execclient
from execprotocol.relay import frames
from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import REJECTION, Binding, NoiseTransport, Responder
from execprotocol.relay.records import MessageAssembler, RecordQueue
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.errors import Guard
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.plain_websocket import PlainWebSocket
from execserver.relay.service.queues import Limits, RelayPeer
from execserver.relay.service.registry import Harness, RelayRegistry
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.token_file import TokenStore
from tests.support.relay_service import RelayService, environment
from tests.support.wire import PATIENCE, UpgradeRefusedError, connect_ws, decode

DOOR = KeyPair.generate()

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Executor:
    """Registers and joins in this process; answers each message by what a test made `answer`."""

    id = "the-executor"

    def __init__(self, relay: Relay, *, admits: bool = True, silent: bool = False) -> None:
        self.queued = 0
        self.kinds: list[str] = []
        self.paused = False
        self.answer: Callable[[bytes], bytes | None] = lambda message: message
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self._relay = relay
        self._admits = admits
        self._silent = silent
        self._unanswered: list[frames.Frame] = []
        self._handshakes: list[asyncio.Task[None]] = []
        self._keys = KeyPair.generate()
        self._streams: dict[str, tuple[NoiseTransport, MessageAssembler]] = {}
        self._sent: dict[str, int] = {}

    async def join(self) -> Self:
        """Register, and join."""
        registry, rendezvous = self._relay.registry, self._relay.rendezvous
        registered = await registry.register("box", self._keys.public, "token-of-executor")
        self.registration = registered.registration
        rendezvous.executor_joined(self.registration.id, self)
        await registry.socket_opened(self.registration, rendezvous.address(self), lambda _why: None)
        return self

    def send(self, frame: bytes) -> None:
        self.kinds.append(frames.decode(frame).kind)
        asyncio.get_running_loop().call_soon(self._came, frames.decode(frame))

    def close(self, code: int, reason: str) -> None:
        pass

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def leave(self) -> None:
        self._relay.rendezvous.executor_left(self)
        await self._relay.registry.socket_closed("box", self._relay.rendezvous.address(self))

    def say(self, stream_id: str, message: bytes) -> None:
        queue = RecordQueue()
        queue.put((message,))
        transport, _ = self._streams[stream_id]
        while (record := queue.take()) is not None:
            number = self._sent.get(stream_id, 0)
            self._sent[stream_id] = number + 1
            self._forward(frames.data(stream_id, number, transport.seal(record)))

    def speak(self) -> None:
        """Answer the handshakes after all, and those that come."""
        self._silent = False
        for frame in self._unanswered:
            self._came(frame)

    @property
    def streams(self) -> list[str]:
        return list(self._streams)

    def _forward(self, frame: bytes) -> None:
        self._relay.rendezvous.from_executor(self, frame)

    def _came(self, frame: frames.Frame) -> None:
        stream = frame.stream_id
        if frame.kind == "handshake" and self._silent:
            self._unanswered.append(frame)
        elif frame.kind == "handshake":
            self._handshakes.append(asyncio.create_task(self._shake_hands(frame)))
        elif frame.kind == "data":
            transport, assembler = self._streams[stream]
            assembler.feed(transport.open(frame.payload))

    async def _shake_hands(self, frame: frames.Frame) -> None:
        stream = frame.stream_id
        responder = Responder(self._keys, Binding("box", self.registration.id, stream))
        harness, authorization = responder.read_first(frame.payload)
        asked = ValidateRequest(self.registration.id, harness, authorization.decode())
        assert await self._relay.registry.validate("box", asked)
        answer, transport = responder.write_second(b"" if self._admits else REJECTION)
        self._streams[stream] = (transport, MessageAssembler(lambda message: self._said(stream, message)))
        self._forward(frames.handshake(stream, answer))

    def _said(self, stream: str, message: bytes | bytearray) -> None:
        self.received.put_nowait(bytes(message))
        answer = self.answer(bytes(message))
        if answer is not None:
            self.say(stream, answer)


class Relay:
    """The parts of a relay that the door needs, served on a port of their own."""

    def __init__(self, folder: Path, limits: Limits | None) -> None:
        loop = asyncio.get_running_loop()
        bus = MemoryBus()
        self.tokens = TokenStore(folder, create=True)
        self.registry = RelayRegistry(MemoryStore(), bus, time.time, lambda _token: True)
        self.rendezvous = Rendezvous(bus, time.monotonic, loop.call_later, limits)
        self.admitted: dict[Harness, RelayPeer] = {}
        self.draining = False
        self.door = PlainWebSocket(
            frozenset({"box"}),
            DOOR,
            self.registry,
            self.tokens,
            self.rendezvous,
            self.admitted,
            lambda: self.draining,
        )
        self.token_id, token = self.token("client", "box")
        self.headers = {"Authorization": f"Bearer {token}"}
        self.url = ""

    def token(self, role: str, *environments: str) -> tuple[str, str]:
        token, secret = self.tokens.create(role, environments)
        return token.id, secret


Opened = aiohttp.ClientWebSocketResponse[bool]


@asynccontextmanager
async def served(
    folder: Path, limits: Limits | None = None
) -> AsyncIterator[tuple[Relay, aiohttp.ClientSession]]:
    """A relay, and a session for its clients."""
    relay = Relay(folder / "state", limits)
    app = web.Application(middlewares=[Guard().middleware()])
    app.add_routes(relay.door.routes("/base"))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    relay.url = f"http://{host}:{port}/base"
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE):
            yield relay, session
    finally:
        relay.rendezvous.drain()
        await runner.cleanup()


async def refusal(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Status, code and message of a refused upgrade."""
    async with session.get(url, headers=UPGRADE | headers) as response:
        error = (await response.json())["error"]
        return response.status, error["code"], error["message"]


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# -- who gets in


@pytest.mark.statement("R60")
async def test_a_client_speaks_through_the_door(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay).join()
        async with session.ws_connect(f"{relay.url}/exec/box", headers=relay.headers) as socket:
            await socket.send_str("as text")
            assert await socket.receive_str() == "as text"
            await socket.send_bytes(b"as binary")
            assert await socket.receive_str() == "as binary"

        await until(lambda: executor.kinds[-1] == "reset")
        assert executor.kinds[:2] == ["resume", "handshake"]
        assert relay.rendezvous.counters.harnesses == 0
        assert not relay.admitted


async def test_each_client_has_a_stream_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay).join()
        url = f"{relay.url}/exec/box"
        async with (
            session.ws_connect(url, headers=relay.headers) as one,
            session.ws_connect(url, headers=relay.headers) as two,
        ):
            await one.send_str("one")
            await two.send_str("two")
            assert (await one.receive_str(), await two.receive_str()) == ("one", "two")
            assert len(set(executor.streams)) == 2


async def test_one_token_does_not_take_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("execserver.relay.service.plain_websocket.MAX_CLIENTS", 1)
    async with served(tmp_path) as (relay, session):
        await Executor(relay).join()
        url = f"{relay.url}/exec/box"
        _, other = relay.token("client", "box")
        async with session.ws_connect(url, headers=relay.headers):
            status, code, message = await refusal(session, url, relay.headers)
            assert (status, code) == (429, "too_many_requests")
            assert "tokens of their own" in message
            async with session.ws_connect(url, headers={"Authorization": f"Bearer {other}"}):
                pass

        await until(lambda: not relay.admitted)
        async with session.ws_connect(url, headers=relay.headers) as socket:
            await socket.send_str("again")
            assert await socket.receive_str() == "again"


@pytest.mark.statement("R60")
async def test_who_may_not_come_in_is_told_why_before_there_is_a_websocket(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        await Executor(relay).join()
        url = f"{relay.url}/exec/box"
        _, both = relay.token("client", "box", "closed")
        _, other = relay.token("client", "other")
        _, executors = relay.token("executor", "box")

        def bearer(token: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {token}"}

        assert (await refusal(session, url, {}))[0] == 401
        assert (await refusal(session, url, bearer("xrt_unknown")))[0] == 401
        assert (await refusal(session, url, bearer(other)))[0] == 403
        assert (await refusal(session, url, bearer(executors)))[0] == 403
        assert (await refusal(session, f"{url}%2f", relay.headers))[0] == 400
        status, _, text = await refusal(session, f"{relay.url}/exec/closed", bearer(both))
        assert (status, "--plain-door closed" in text) == (404, True)
        assert (await refusal(session, url, relay.headers | {"Origin": "http://127.0.0.1"}))[0] == 403
        async with session.get(url, headers=relay.headers) as response:
            assert (response.status, response.headers["Upgrade"]) == (426, "websocket")
        assert not relay.admitted


@pytest.mark.statement("R60")
async def test_without_an_executor_the_door_says_so(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        status, code, text = await refusal(session, f"{relay.url}/exec/box", relay.headers)

    assert (status, code) == (503, "environment_offline")
    assert "box" in text


async def test_an_executor_that_does_not_list_the_door_is_named_with_the_key_that_is_missing(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (relay, session):
        await Executor(relay, admits=False).join()
        status, _, text = await refusal(session, f"{relay.url}/exec/box", relay.headers)

    assert status == 502
    assert DOOR.public.fingerprint in text


async def test_an_executor_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execserver.relay.service.plain_websocket.HANDSHAKE_SECONDS", 0.05)
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay, silent=True).join()
        status, _, _ = await refusal(session, f"{relay.url}/exec/box", relay.headers)
        await until(lambda: executor.kinds[-1] == "reset")

    assert status == 504
    assert not relay.admitted


async def test_a_client_that_leaves_before_the_executor_has_answered_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay, silent=True).join()
        parts = urlsplit(relay.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        upgrade = "\r\n".join(f"{name}: {value}" for name, value in (UPGRADE | relay.headers).items())
        writer.write(
            f"GET {parts.path}/exec/box HTTP/1.1\r\nHost: {parts.netloc}\r\n{upgrade}\r\n\r\n".encode()
        )
        await until(lambda: "handshake" in executor.kinds)
        writer.close()
        await writer.wait_closed()

        executor.speak()

        await until(lambda: executor.kinds[-1] == "reset")
        await until(lambda: not relay.admitted)
        assert relay.rendezvous.counters.harnesses == 0
        async with session.ws_connect(f"{relay.url}/exec/box", headers=relay.headers) as socket:
            await socket.send_str("the next")
            assert await socket.receive_str() == "the next"


async def test_no_client_is_admitted_while_the_relay_drains(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        await Executor(relay).join()
        relay.draining = True
        assert (await refusal(session, f"{relay.url}/exec/box", relay.headers))[0] == 503


# -- how it ends


@pytest.mark.parametrize(
    ("event", "code"),
    [("executor gone", 1013), ("stream reset", 1001), ("relay ends", 1012), ("token", 1008)],
)
async def test_the_socket_ends_with_its_stream_and_says_why(tmp_path: Path, event: str, code: int) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay).join()
        async with session.ws_connect(f"{relay.url}/exec/box", headers=relay.headers) as socket:
            if event == "executor gone":
                await executor.leave()
            elif event == "stream reset":
                executor._forward(frames.reset(executor.streams[0], "enough"))
            elif event == "relay ends":
                relay.rendezvous.drain()
            else:
                for harness in relay.registry.revoked({relay.token_id}):
                    relay.rendezvous.retire(relay.admitted[harness], 1008, "token_revoked")

            message = await socket.receive()

        assert (message.type, message.data) == (WSMsgType.CLOSE, code)
        assert message.extra


# -- large and slow


async def test_large_messages_pass_in_both_directions_and_come_in_fragments(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay).join()
        large = bytes(range(128)) * (12 << 13)  # 12 MiB
        executor.answer = lambda message: message[::-1]
        async with session.ws_connect(
            f"{relay.url}/exec/box", headers=relay.headers, max_msg_size=0
        ) as socket:
            await socket.send_str(large.decode())
            assert await socket.receive_str() == large[::-1].decode()


async def test_a_message_of_more_than_64_mib_ends_the_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, _):
        executor = await Executor(relay).join()
        client = await asyncio.to_thread(
            connect_ws, relay.url.replace("http", "ws") + "/exec/box", relay.headers
        )
        try:
            # The head alone says it.
            head = bytes((0x82, 0x80 | 127)) + ((64 << 20) + 1).to_bytes(8) + bytes(4)
            await asyncio.to_thread(client.transport.send_bytes, head)
            await asyncio.to_thread(client.wait_end)
            assert client.websocket.close_code == 1009
        finally:
            client.close()
        await until(lambda: executor.kinds[-1] == "reset")


async def test_a_full_executor_stops_the_client_that_fills_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay).join()
        executor.answer = lambda message: None
        async with session.ws_connect(f"{relay.url}/exec/box", headers=relay.headers) as socket:
            executor.queued = relay.rendezvous.limits.high + 1
            await socket.send_bytes(b"x" * 500_000)
            await until(lambda: executor.kinds.count("data") == 1)
            await asyncio.sleep(0.05)  # nothing more comes: there is no event for that
            assert executor.kinds.count("data") == 1

            executor.queued = 0
            relay.rendezvous.drained(executor)
            assert await executor.received.get() == b"x" * 500_000


async def test_a_client_that_does_not_read_is_cut_and_another_goes_on(tmp_path: Path) -> None:
    limits = Limits(most=8 << 20)
    async with served(tmp_path, limits) as (relay, session):
        executor = await Executor(relay).join()
        executor.answer = lambda message: message
        url = f"{relay.url}/exec/box"
        slow = await asyncio.to_thread(connect_ws, url.replace("http", "ws"), relay.headers)
        try:
            await asyncio.to_thread(slow.pause)
            async with session.ws_connect(url, headers=relay.headers) as other:
                first, second = executor.streams
                for _ in range(64):
                    executor.say(first, b"y" * (1 << 20))
                    await asyncio.sleep(0)
                    if relay.rendezvous.counters.closed["slow_consumer"]:
                        break
                executor.say(second, b"still here")

                assert await other.receive_str() == "still here"
                assert relay.rendezvous.counters.closed["slow_consumer"] == 1
                await until(lambda: len(relay.admitted) == 1)
        finally:
            slow.close()


async def test_the_executor_is_held_up_for_a_client_only_until_that_has_caught_up(tmp_path: Path) -> None:
    async with served(tmp_path) as (relay, session):
        executor = await Executor(relay).join()
        async with session.ws_connect(
            f"{relay.url}/exec/box", headers=relay.headers, max_msg_size=0
        ) as socket:
            said = 0
            while not executor.paused:
                executor.say(executor.streams[0], b"y" * (1 << 20))
                said += 1
                await asyncio.sleep(0)

            for _ in range(said):
                assert len(await socket.receive_str()) == 1 << 20

            await until(lambda: not executor.paused)
            assert relay.rendezvous.counters.failed_holds == 0


# -- with everything real


@pytest.mark.statement("R60")
def test_a_plain_client_runs_commands_on_an_executor_behind_the_relay(tmp_path: Path) -> None:
    with RelayService(tmp_path / "relay", "--plain-door", "box", listen="http://127.0.0.1:0/base") as relay:
        url = f"{relay.url}/exec/box".replace("http", "ws", 1)
        token = relay.token("client", "box")
        headers = {"Authorization": f"Bearer {token}"}
        with pytest.raises(UpgradeRefusedError) as offline:
            connect_ws(url, headers)
        assert json.loads(offline.value.body)["error"]["code"] == "environment_offline"

        executor = subprocess.Popen(
            [sys.executable, "-m", "execserver", "serve", "--remote", relay.url, "--environment-id", "box"],
            env=environment() | {"EXECSERVER_REMOTE_TOKEN": relay.token("executor", "box")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            relay.wait_online("box")
            with connect_ws(url, headers) as client:
                session: Any = client.handshake()
                process = session.shell("head -c 3000000 /dev/zero; exit 3").wait_closed()
                assert (len(process.output), process.exit_code) == (3_000_000, 3)
                file = tmp_path / "file"
                file.write_bytes(b"z" * 5_000_000)
                read = client.call("fs/readFile", {"path": file.as_uri()})
                assert decode(read["dataBase64"]) == file.read_bytes()
            asyncio.run(count_over_a_loss(url, token))
        finally:
            executor.terminate()
            assert executor.wait(PATIENCE) == 0


async def count_over_a_loss(url: str, token: str) -> None:
    """A session is resumed through the door, and loses nothing."""
    async with execclient.connect(url, token=token) as executor:
        counting = "for i in $(seq 1 400); do echo $i; sleep 0.001; done"
        async with await executor.start(["/bin/sh", "-c", counting]) as process:
            output = (await anext(process)).data
            executor.drop_connection()
            async for chunk in process:
                output += chunk.data
        async with asyncio.timeout(PATIENCE):  # all may have come before the loss
            while not executor.recoveries:
                await asyncio.sleep(0.01)
        assert output.split() == [str(number).encode() for number in range(1, 401)]
        assert executor.recoveries == 1
