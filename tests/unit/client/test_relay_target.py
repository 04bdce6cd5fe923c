"""The client's end of a relayed stream, with a registry, a relay and an executor of the test."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from execclient import (
    AccessDenied,
    ConnectionFailed,
    EnvironmentOffline,
    InsecureToken,
    SessionLost,
    UnsupportedUrl,
    UntrustedServer,
    WrongExecutor,
    connect,
)
from execclient.connection import relay_channel
from execclient.connection.address import target
from execclient.connection.connection import Connection
from execclient.connection.relay import POOL_WAIT_SECONDS, relay_address
from execclient.connection.target import Target
from execclient.errors import ConnectionLost, ExecServerError
from execprotocol.relay import frames, noise
from execprotocol.relay.contract import ConnectAnswer, ConnectRequest, error_body
from execprotocol.relay.frames import Frame
from execprotocol.relay.key_files import load_key_pair
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.noise import REJECTION, Binding, NoiseTransport, Responder
from execprotocol.relay.records import MessageAssembler, RecordQueue
from tests.support.wire import PATIENCE

EXECUTOR, OTHER = KeyPair.generate(), KeyPair.generate()


@pytest.fixture(autouse=True)
def nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "EXECUTOR_KEY_SHA256", "CLIENT_KEY_FILE"):
        monkeypatch.delenv(f"EXECSERVER_{name}", raising=False)


class Stream:
    """The executor's end of one stream, and the relay's of its socket."""

    def __init__(self, socket: web.WebSocketResponse, key: KeyPair, registration: str) -> None:
        self.socket = socket
        self.key = key
        self.registration = registration
        self.id = ""
        self.harness: PublicKeys
        self.authorization = b""
        self.noise: NoiseTransport
        self.record_sizes: list[int] = []
        self.ending: Frame | None = None
        self.over = asyncio.Event()
        self._sequence = 0
        self._expected = 0
        self._messages: list[bytes] = []
        self._assembler = MessageAssembler(lambda message: self._messages.append(bytes(message)))

    async def frame(self) -> Frame:
        """The next frame of the client."""
        message = await self.socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise EOFError
        return frames.decode(message.data)

    async def knock(self) -> Responder:
        """Take the client's first two frames."""
        resume = await self.frame()
        first = await self.frame()
        assert (resume.kind, first.kind) == ("resume", "handshake")
        assert resume.stream_id == first.stream_id
        self.id = first.stream_id
        responder = Responder(self.key, Binding("box", self.registration, self.id))
        self.harness, self.authorization = responder.read_first(first.payload)
        return responder

    async def answer(self, payload: bytes = b"") -> None:
        """The whole handshake."""
        responder = await self.knock()
        message, self.noise = responder.write_second(payload)
        await self.put(frames.handshake(self.id, message))

    async def put(self, frame: bytes) -> None:
        await self.socket.send_bytes(frame)

    def sealed(self, value: object) -> list[bytes]:
        """The data frames of a message."""
        queue = RecordQueue()
        queue.put((json.dumps(value).encode(),))
        made = []
        while (record := queue.take()) is not None:
            made.append(frames.data(self.id, self._sequence, self.noise.seal(record)))
            self._sequence += 1
        return made

    async def send(self, value: object) -> None:
        for frame in self.sealed(value):
            await self.put(frame)

    async def receive(self) -> Any:
        """The next message of the client."""
        while not self._messages:
            frame = await self.frame()
            if frame.kind == "reset":
                self.ending = frame
                raise EOFError
            assert (frame.kind, frame.seq, frame.stream_id) == ("data", self._expected, self.id)
            self._expected += 1
            record = self.noise.open(frame.payload)
            self.record_sizes.append(len(record))
            self._assembler.feed(record)
        return json.loads(self._messages.pop(0))

    async def serve(self) -> None:
        """Answer every request with its own parameters, as a daemon would the first."""
        while True:
            request = await self.receive()
            if "id" in request:
                result = {"sessionId": "s1"} if request["method"] == "initialize" else request["params"]
                await self.send({"id": request["id"], "result": result})


Serve = Callable[[Stream], Awaitable[None]]


async def daemon(stream: Stream) -> None:
    await stream.answer()
    await stream.serve()


class FakeRelay:
    """Answers each connect with what `refusals` holds, else with a way to `serve`."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.key = EXECUTOR
        self.environment_id = "box"
        self.refusals: list[tuple[int, str]] = []
        self.asked: list[tuple[str, PublicKeys]] = []
        self.streams: list[Stream] = []
        self.failures: list[BaseException] = []
        self.upgrade_status = 101
        self.base = ""

    @property
    def url(self) -> str:
        return f"relay+{self.base}?environment=box"

    async def connect(self, request: web.Request) -> web.Response:
        assert request.path == "/some/base/cloud/environment/box/connect"
        key = ConnectRequest.parse(await request.read()).key
        self.asked.append((request.headers["authorization"], key))
        if self.refusals:
            status, code = self.refusals.pop(0)
            return web.json_response(error_body(code, "no"), status=status)
        number = len(self.asked)
        way = self.base.replace("http", "ws") + f"/harness?ticket=t{number}"
        answer = ConnectAnswer(self.environment_id, way, f"r{number}", self.key.public, f"sealed {number}")
        return web.json_response(answer.to_json())

    async def harness(self, request: web.Request) -> web.StreamResponse:
        if self.upgrade_status != 101:
            return web.Response(
                status=self.upgrade_status, headers={"x-codex-rendezvous-rejection-reason": "expired"}
            )
        socket = web.WebSocketResponse(max_msg_size=256 << 10, compress=False)
        await socket.prepare(request)
        stream = Stream(socket, self.key, "r" + request.query["ticket"][1:])
        self.streams.append(stream)
        try:
            await self.serve(stream)
        except (EOFError, ConnectionError):
            pass
        except Exception as error:  # shown at the end of the test
            self.failures.append(error)
        stream.over.set()
        await socket.close()
        return socket


@asynccontextmanager
async def fake_relay(serve: Serve = daemon) -> AsyncIterator[FakeRelay]:
    relay = FakeRelay(serve)
    application = web.Application()
    application.router.add_post("/{path:.*}", relay.connect)
    application.router.add_get("/some/base/harness", relay.harness)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    relay.base = f"http://127.0.0.1:{runner.addresses[0][1]}/some/base"
    try:
        yield relay
    finally:
        await runner.cleanup()
    assert relay.failures == []


class Ends:
    """A connection, and how it ended."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.lost: asyncio.Future[ExecServerError] = asyncio.get_running_loop().create_future()

    async def open(self, found: Target) -> Connection:
        return await found.open(
            lambda method, params: self.events.put_nowait((method, params)),
            lambda connection, error: self.lost.set_result(error),
            resuming=False,
        )

    async def reason(self) -> str:
        error = await asyncio.wait_for(self.lost, PATIENCE)
        assert isinstance(error, ConnectionLost)
        return str(error)


@asynccontextmanager
async def opened(relay: FakeRelay, **arguments: Any) -> AsyncIterator[tuple[Connection, Ends]]:
    ends = Ends()
    connection = await ends.open(target(relay.url, token="t", **arguments))
    try:
        yield connection, ends
    finally:
        await connection.abort()


# -- the way there


async def test_a_session_goes_over_a_relay_as_over_anything_else() -> None:
    async with fake_relay() as relay, connect(relay.url, token="sesame") as executor:
        assert executor.session_id == "s1"
        assert executor.url == relay.url

    [(authorization, key)] = relay.asked
    [stream] = relay.streams
    assert authorization == "Bearer sesame"
    assert (stream.harness, stream.authorization) == (key, b"sealed 1")
    assert stream.ending is not None
    assert stream.ending.reason == "client_closed"


async def test_messages_of_many_records_go_both_ways_whole() -> None:
    async with fake_relay() as relay, opened(relay) as (connection, _):
        text = "0123456789" * 500_000
        assert await connection.request("m", {"text": text}) == {"text": text}

    assert max(relay.streams[0].record_sizes) == noise.MAX_RECORD_BYTES
    assert len(relay.streams[0].record_sizes) == -(-len(json.dumps(text)) // noise.MAX_RECORD_BYTES)


async def test_requests_wait_while_the_relay_takes_nothing_and_all_arrive() -> None:
    reading = asyncio.Event()

    async def slow(stream: Stream) -> None:
        await stream.answer()
        await reading.wait()
        await stream.serve()

    async with fake_relay(slow) as relay, opened(relay) as (connection, _):
        text = "x" * (1 << 20)
        calls = [asyncio.create_task(connection.request("m", {"n": n, "t": text})) for n in range(24)]
        while not (paused := not connection._writable.is_set()):
            await asyncio.sleep(0)
        late = asyncio.create_task(connection.request("m", {"n": "late"}))
        await asyncio.sleep(0)
        assert paused
        reading.set()
        assert [answer["n"] for answer in await asyncio.gather(*calls, late)] == [*range(24), "late"]


async def test_each_reconnect_shows_the_same_key_and_asks_for_another_way() -> None:
    async with fake_relay() as relay, connect(relay.url, token="t") as executor:
        executor.drop_connection()
        assert await executor._session.call("process/list", {"n": 1}) == {"n": 1}

    assert [key for _, key in relay.asked] == [relay.asked[0][1]] * 2
    assert [stream.authorization for stream in relay.streams] == [b"sealed 1", b"sealed 2"]
    assert relay.streams[0].id != relay.streams[1].id


@pytest.mark.parametrize("how", ["argument", "variable", "both"])
async def test_the_key_of_a_file_is_the_one_that_is_shown(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load_key_pair(tmp_path / "key", create=True)
    if how != "argument":
        monkeypatch.setenv(
            "EXECSERVER_CLIENT_KEY_FILE", str(tmp_path / ("key" if how == "variable" else "x"))
        )

    async with (
        fake_relay() as relay,
        opened(relay, key_file=None if how == "variable" else tmp_path / "key"),
    ):
        assert relay.asked[0][1] == own.public


async def test_a_key_file_that_is_not_there_is_an_error_before_anything_is_asked(tmp_path: Path) -> None:
    async with fake_relay() as relay:
        with pytest.raises(ConnectionFailed, match="execserver relay key"):
            async with opened(relay, key_file=tmp_path / "key"):
                pass

    assert relay.asked == []


async def test_a_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")

    async with fake_relay() as relay, connect(relay.url, token_file=tmp_path / "token") as executor:
        (tmp_path / "token").write_text("second\n")
        executor.drop_connection()
        await executor._session.call("process/list", {})

    assert [authorization for authorization, _ in relay.asked] == ["Bearer first", "Bearer second"]


# -- who is there


@pytest.mark.parametrize("variable", [False, True])
async def test_a_pin_lets_its_executor_pass_and_no_other(
    variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_relay() as relay:

        def pinned(key: KeyPair) -> dict[str, str]:
            if variable:
                monkeypatch.setenv("EXECSERVER_EXECUTOR_KEY_SHA256", key.public.fingerprint.upper())
                return {}
            return {"executor_key_sha256": key.public.fingerprint}

        async with opened(relay, **pinned(EXECUTOR)) as (connection, _):
            assert await connection.request("m", {}) == {}
        with pytest.raises(WrongExecutor, match=OTHER.public.fingerprint) as raised:
            async with opened(relay, **pinned(OTHER)):
                pass

    assert isinstance(raised.value, UntrustedServer)
    assert len(relay.streams) == 1


async def test_a_registry_that_gives_out_another_key_than_the_executors_gets_no_connection() -> None:
    async def true_executor(stream: Stream) -> None:
        stream.key = OTHER
        with pytest.raises(noise.NoiseError):
            await stream.knock()
        await stream.put(frames.reset(stream.id, frames.PROTOCOL_ERROR))

    async with fake_relay(true_executor) as relay:
        with pytest.raises(ConnectionFailed, match="reset the stream: noise_relay_protocol_error"):
            async with opened(relay):
                pass


@pytest.mark.statement("R48")
async def test_an_executor_that_was_replaced_ends_the_session_at_once() -> None:
    async with fake_relay() as relay, connect(relay.url, token="t") as executor:
        relay.key = OTHER
        executor.drop_connection()
        with pytest.raises(SessionLost, match="replaced by another one"):
            await executor.run(["true"])

    assert len(relay.streams) == 1


async def test_an_offline_environment_is_an_error_with_its_name_at_first() -> None:
    async with fake_relay() as relay:
        relay.refusals = [(409, "environment_offline")]
        with pytest.raises(
            EnvironmentOffline, match="no executor is connected for the environment box"
        ) as raised:
            async with connect(relay.url, token="t"):
                pass

    assert raised.value.environment_id == "box"
    assert len(relay.asked) == 1


@pytest.mark.parametrize(
    "refusal", [(409, "environment_offline"), (503, ""), (401, ""), (403, ""), (404, "")], ids=str
)
async def test_whatever_the_registry_says_while_a_session_recovers_is_asked_again(
    refusal: tuple[int, str],
) -> None:
    async with fake_relay() as relay, connect(relay.url, token="t") as executor:
        relay.refusals = [refusal] * 3
        executor.drop_connection()
        assert await executor._session.call("process/list", {"n": 1}) == {"n": 1}

    assert len(relay.asked) == 5


@pytest.mark.parametrize(("status", "way_out"), [(401, "token_file="), (403, "for the environment box")])
async def test_a_token_that_is_not_wanted_is_access_denied(status: int, way_out: str) -> None:
    async with fake_relay() as relay:
        relay.refusals = [(status, "")]
        with pytest.raises(AccessDenied, match=way_out) as raised:
            async with opened(relay):
                pass

    assert raised.value.status == status


async def test_without_a_token_nothing_is_asked() -> None:
    async with fake_relay() as relay:
        with pytest.raises(AccessDenied, match=r"wants a token.*EXECSERVER_TOKEN_FILE"):
            await Ends().open(target(relay.url))

    assert relay.asked == []


async def test_an_executor_that_refuses_us_is_access_denied() -> None:
    async def refusing(stream: Stream) -> None:
        await stream.answer(REJECTION)
        await stream.frame()

    async with fake_relay(refusing) as relay:
        with pytest.raises(AccessDenied, match="list of clients does not have our key") as raised:
            async with opened(relay):
                pass

    assert raised.value.status == 401


async def test_an_answer_for_another_environment_is_refused() -> None:
    async with fake_relay() as relay:
        relay.environment_id = "other"
        with pytest.raises(ConnectionFailed, match="another environment than box"):
            async with opened(relay):
                pass

    assert relay.streams == []


async def test_a_way_that_is_closed_is_an_error_without_its_ticket() -> None:
    async with fake_relay() as relay:
        relay.upgrade_status = 410
        with pytest.raises(ConnectionFailed, match=r"with 410 \(expired\)") as raised:
            async with opened(relay):
                pass

    assert "ticket" not in str(raised.value)


async def test_a_relay_that_is_not_there_is_a_failed_connection_that_may_come_back() -> None:
    async with fake_relay() as relay:
        url = relay.url

    with pytest.raises(ConnectionFailed, match="cannot reach http") as raised:
        await Ends().open(target(url, token="t"))

    assert type(raised.value) is ConnectionFailed  # `DaemonNotRunning` would give up after 2 s


# -- the handshake


async def refuses_to_answer(stream: Stream) -> None:
    await stream.knock()
    await stream.frame()


async def hangs_up(stream: Stream) -> None:
    await stream.knock()
    await stream.socket.close(code=1013, message=b"executor gone")


async def resets(stream: Stream) -> None:
    await stream.knock()
    await stream.put(frames.reset(stream.id, "why\x1b[1m not"))
    await stream.frame()


async def sends_data_first(stream: Stream) -> None:
    await stream.knock()
    await stream.put(frames.data(stream.id, 0, b"x"))
    await stream.frame()


async def answers_nonsense(stream: Stream) -> None:
    await stream.knock()
    await stream.put(frames.handshake(stream.id, bytes(noise.MESSAGE_2_BYTES)))
    await stream.frame()


async def answers_with_something_else(stream: Stream) -> None:
    await stream.answer(b"something else")
    await stream.frame()


@pytest.mark.statement("R48")
@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (refuses_to_answer, r"did not answer the handshake within 2 s"),
        (hangs_up, r"executor gone \(1013\)"),
        (resets, r"the executor reset the stream: why\[1m not"),
        (sends_data_first, "data before its answer"),
        (answers_nonsense, "handshake failed"),
        (answers_with_something_else, "something unknown"),
    ],
)
async def test_a_handshake_that_does_not_come_about_fails_with_its_reason(
    serve: Serve, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 2.0 if serve is refuses_to_answer else PATIENCE
    monkeypatch.setattr("execclient.connection.relay.CONNECT_SECONDS", seconds)

    async with fake_relay(serve) as relay:
        with pytest.raises(ConnectionFailed, match=reason):
            await Ends().open(target(relay.url, token="t"))


async def test_an_opening_that_is_cancelled_leaves_no_socket_behind() -> None:
    knocked, ended = asyncio.Event(), asyncio.Event()

    async def serve(stream: Stream) -> None:
        await stream.knock()
        knocked.set()
        try:
            await stream.frame()
        finally:
            ended.set()

    async with fake_relay(serve) as relay:
        opening = asyncio.create_task(Ends().open(target(relay.url, token="t")))
        await asyncio.wait_for(knocked.wait(), PATIENCE)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(ended.wait(), PATIENCE)


# -- the stream


async def test_frames_of_others_and_what_is_no_frame_are_ignored() -> None:
    async def serve(stream: Stream) -> None:
        responder = await stream.knock()
        message, stream.noise = responder.write_second()
        await stream.put(b"\xff\xff")
        await stream.put(b"")
        await stream.put(frames.data("another", 0, b"x"))
        await stream.put(frames.handshake("another", message))
        await stream.put(frames.handshake(stream.id, message))
        await stream.put(frames.reset("another", "x"))
        await stream.put(frames.resume(stream.id))
        await stream.socket.send_str("text")
        await stream.serve()

    async with fake_relay(serve) as relay, opened(relay) as (connection, _):
        assert await connection.request("m", {"n": 1}) == {"n": 1}


@pytest.mark.statement("R42")
async def test_records_that_come_twice_or_early_are_put_right() -> None:
    async def serve(stream: Stream) -> None:
        await stream.answer()
        made = [frame for n in range(4) for frame in stream.sealed({"method": "e", "params": n})]
        for place in (2, 0, 0, 3, 2, 1, 1):
            await stream.put(made[place])
        await stream.serve()

    async with fake_relay(serve) as relay, opened(relay) as (_, ends):
        assert [(await ends.events.get())[1] for _ in range(4)] == [0, 1, 2, 3]
        assert ends.events.empty()


async def ends_it(stream: Stream) -> None:
    await stream.put(frames.reset(stream.id, "enough"))


async def answers_twice(stream: Stream) -> None:
    await stream.put(frames.handshake(stream.id, b"x"))


async def changes_a_record(stream: Stream) -> None:
    [frame] = stream.sealed({"method": "e"})
    await stream.put(frame[:-1] + bytes((frame[-1] ^ 1,)))


async def loses_a_record(stream: Stream) -> None:
    stream.sealed({"method": "e"})
    for number in range(65):
        await stream.send({"method": "e", "params": number})


async def announces_too_much(stream: Stream) -> None:
    sealed = stream.noise.seal(((64 << 20) + 1).to_bytes(4))
    await stream.put(frames.data(stream.id, 0, sealed))


async def closes_the_socket(stream: Stream) -> None:
    await stream.socket.close(code=1012, message=b"restarting")


@pytest.mark.statement("R48")
@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (ends_it, "the executor reset the stream: enough"),
        (answers_twice, "answered the handshake twice"),
        (changes_a_record, "does not open"),
        (loses_a_record, "while 0 is missing"),
        (announces_too_much, "67108865 bytes is announced"),
        (closes_the_socket, r"restarting \(1012\)"),
    ],
)
async def test_what_ends_a_stream_is_told_and_calls_under_way_end_with_it(ending: Serve, reason: str) -> None:
    async def serve(stream: Stream) -> None:
        await stream.answer()
        await stream.receive()
        await ending(stream)
        while True:
            await stream.frame()

    async with fake_relay(serve) as relay, opened(relay) as (connection, ends):
        with pytest.raises(ConnectionLost, match=reason):
            await connection.request("m", {})
        assert ends.lost.done()
        assert ends.events.empty()


async def test_closing_sends_everything_first_however_much_it_is() -> None:
    received: list[Any] = []

    async def serve(stream: Stream) -> None:
        await stream.answer()
        while True:
            received.append(await stream.receive())

    async with fake_relay(serve) as relay:
        connection = await Ends().open(target(relay.url, token="t"))
        call = asyncio.create_task(connection.request("m", {"t": "x" * 12_000_000}))
        await asyncio.sleep(0)
        connection.notify("last")
        await connection.close()
        with pytest.raises(ConnectionLost, match="we closed it"):
            await call
        await asyncio.wait_for(relay.streams[0].over.wait(), PATIENCE)

    assert [message["method"] for message in received] == ["m", "last"]
    assert relay.streams[0].ending is not None
    assert relay.streams[0].ending.reason == relay_channel.CLOSED


# -- URLs and arguments


@pytest.mark.parametrize(
    "url",
    [
        "relay+https://?environment=box",
        "relay+https://h:0?environment=box",
        "relay+https://h:x?environment=box",
        "relay+https://a b?environment=box",
        "relay+https://ü?environment=box",
        "relay+https://h",
        "relay+https://h?environment=",
        "relay+https://h?environment=a/b",
        "relay+https://h?environment=box&environment=other",
        "relay+https://h?environment=box&x=y",
        "relay+https://h?x=y",
        "relay+https://h?environment",
        "relay+https:environment=box",
        "relay+https://h?environment=box&pool=gpu",
        "relay+https://h?environment=box&label=gpu",
        "relay+https://h?environment=box&wait=soon",
        "relay+https://h?label=gpu",
        "relay+https://h?pool=",
        "relay+https://h?pool=a/b",
        "relay+https://h?pool=gpu--0123456789abcdef",
        "relay+https://h?pool=gpu&pool=cpu",
        "relay+https://h?pool=gpu&label=",
        "relay+https://h?pool=gpu&label=a=b=c",
        "relay+https://h?pool=gpu&wait=-1",
        "relay+https://h?pool=gpu&wait=nan",
        "relay+https://h?pool=gpu&wait=1&wait=2",
    ],
)
def test_a_relays_url_has_a_host_and_names_one_environment_or_one_pool(url: str) -> None:
    with pytest.raises(UnsupportedUrl, match=r"relay\+https://HOST|environment_id|`(pool|label|wait)` must"):
        target(url, token="t")


def test_a_pools_url_has_labels_and_a_wait() -> None:
    found = relay_address("relay+https://h/base/?pool=gpu&label=ssd&label=zone=eu&label=none=&wait=1.5")

    assert (found.base_url, found.environment_id, found.pool) == ("https://h/base", None, "gpu")
    assert found.labels == {"ssd": None, "zone": "eu", "none": ""}
    assert found.wait == 1.5
    assert relay_address("relay+https://h?pool=gpu").wait == POOL_WAIT_SECONDS
    assert relay_address("relay+https://h?environment=box").wait == 0
    assert relay_address("relay+https://h?environment=box&wait=3").wait == 3


@pytest.mark.parametrize(
    "url", ["relay+https://me:hidden@h?environment=b", "relay+https://h?environment=b#hidden"]
)
def test_a_user_or_a_fragment_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UnsupportedUrl, match="token=") as raised:
        target(url)

    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("pin", ["", " ", "abc", "g" * 64, "a" * 65])
@pytest.mark.parametrize("by_variable", [False, True])
def test_a_pin_is_64_hexadecimal_digits_and_never_empty(
    pin: str, by_variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `VARIABLE=$(cat FILE)` with no such file must not leave a client without a pin.
    if by_variable:
        monkeypatch.setenv("EXECSERVER_EXECUTOR_KEY_SHA256", pin)
    with pytest.raises(UnsupportedUrl, match="64 hexadecimal digits"):
        target("relay+https://h?environment=box", token="t", executor_key_sha256=None if by_variable else pin)


def test_a_token_for_another_machine_wants_tls_or_a_word() -> None:
    url = "relay+http://relay.example?environment=box"

    with pytest.raises(InsecureToken, match=r"relay\.example unencrypted.*use relay\+https://"):
        target(url, token="t")
    assert target(url, token="t", allow_insecure_token=True)
    assert target("relay+http://127.0.0.1:1/x?environment=box", token="t")
    assert target("relay+https://relay.example?environment=box", token="t").recoverable


@pytest.mark.parametrize("name", ["executor_key_sha256", "key_file"])
@pytest.mark.parametrize("url", ["unix:///s", "wss://h", "stdio:"])
def test_what_is_for_relays_does_not_go_with_anything_else(name: str, url: str) -> None:
    with pytest.raises(UnsupportedUrl, match=f"{name}= does not go with {url}"):
        target(url, **{name: "a" * 64})  # type: ignore[arg-type]


def test_without_cryptography_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("execclient.connection.relay", "execclient.connection.relay_channel"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "execprotocol.relay.keys", None)

    with pytest.raises(UnsupportedUrl, match=r'pip install "execclient\[relay\]"'):
        target("relay+https://h?environment=box", token="t")


def test_cryptography_is_loaded_only_for_a_relay() -> None:
    program = (
        "import sys; from execclient.connection.address import target; target({!r}); print(*sys.modules)"
    )

    def loaded(url: str) -> set[str]:
        environment = {**os.environ, "EXECSERVER_TOKEN": ""}
        listing = subprocess.run(
            [sys.executable, "-c", program.format(url)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return set(listing.stdout.split())

    assert not loaded("wss://h") & {"cryptography", "httpcore", "picows", "execserver.relay"}
    found = loaded("relay+https://h?environment=box")
    assert "cryptography" in found
    assert not found & {"aiohttp", "pydantic", "structlog", "uvloop", "argparse"}
