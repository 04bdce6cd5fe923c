"""One socket's streams: handshakes, turns, and what does not concern the others. Without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from execprotocol.relay import frames
from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.dial import FrameSocket
from execprotocol.relay.frames import PROTOCOL_ERROR, Frame
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import (
    MAX_RECORD_BYTES,
    MAX_RECORDS,
    REJECTION,
    Binding,
    Initiator,
    NoiseTransport,
)
from execprotocol.relay.records import RecordQueue
from execprotocol.relay.registry_client import RegistryRefused, RegistryUnreachable
from execserver.relay.executor import admission as admission_module
from execserver.relay.executor import multiplexer as multiplexer_module
from execserver.relay.executor.admission import FAILURES, ClientAdmission
from execserver.relay.executor.channel import CLOSED, RelayChannel
from execserver.relay.executor.identity import Identity, TokenSource
from execserver.relay.executor.multiplexer import MAX_HANDSHAKES, MAX_STREAMS, Multiplexer
from execserver.rpc.channel import Channel
from tests.support.echo import Echo

EXECUTOR = KeyPair.generate()
CLIENT = KeyPair.generate()
RESET = ("reset", PROTOCOL_ERROR)


class FakeSocket:
    """Takes frames while the test gives it room."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.room = 1 << 30
        self.unsent = 0
        self.closed: tuple[int, str] | None = None

    @property
    def is_full(self) -> bool:
        return self.room <= 0

    def send(self, frame: bytes) -> None:
        self.sent.append(frames.decode(frame))
        self.room -= 1

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)


class FakeRegistry:
    """Says yes, or what the test says."""

    def __init__(self) -> None:
        self.answer: bool | Exception = True
        self.asked: list[ValidateRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def validate(self, environment_id: str, request: ValidateRequest, stream_id: str) -> bool:
        assert environment_id == "box"
        self.asked.append(request)
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class World:
    """A multiplexer with everything around it."""

    def __init__(self) -> None:
        self.socket = FakeSocket()
        self.registry = FakeRegistry()
        self.handlers: list[Echo] = []
        self.open = True
        token = TokenSource("t", None)
        self.admission = ClientAdmission(
            Identity("http://r", "box", EXECUTOR, token, None), "registration", self.registry
        )
        self.multiplexer = Multiplexer(self.admission, self._make, lambda: self.open)
        self.multiplexer.socket_opened(cast("FrameSocket", self.socket))

    def _make(self, channel: Channel) -> Echo:
        self.handlers.append(Echo(channel))
        return self.handlers[-1]

    def is_paused(self) -> bool:
        """Whether no handshake is looked at."""
        return self.admission.is_paused

    def of(self, stream_id: str) -> list[tuple[str, str]]:
        """What was sent on a stream."""
        return [(frame.kind, frame.reason) for frame in self.socket.sent if frame.stream_id == stream_id]

    def knock(self, stream_id: str, authorization: bytes = b"yes", key: KeyPair = CLIENT) -> Initiator:
        """Send message 1."""
        initiator = Initiator(key, EXECUTOR.public, Binding("box", "registration", stream_id))
        self.multiplexer.frame_received(frames.resume(stream_id))
        self.multiplexer.frame_received(frames.handshake(stream_id, initiator.write_first(authorization)))
        return initiator

    async def settle(self, stream_id: str) -> None:
        """Wait until something was sent on a stream."""
        async with asyncio.timeout(10):
            while not self.of(stream_id):
                await asyncio.sleep(0)

    async def enter(self, stream_id: str, key: KeyPair = CLIENT) -> NoiseTransport:
        """The whole handshake."""
        initiator = self.knock(stream_id, key=key)
        await self.settle(stream_id)
        answer = next(frame for frame in self.socket.sent if frame.stream_id == stream_id)
        payload, transport = initiator.read_second(bytes(answer.payload))
        assert payload == b""
        return transport


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    world.multiplexer.socket_lost("the end of the test")
    await asyncio.sleep(0)


def say(transport: NoiseTransport, stream_id: str, seq: int, message: bytes) -> bytes:
    """A data frame with a message."""
    queue = RecordQueue()
    queue.put((message,))
    record = queue.take()
    assert record is not None
    return frames.data(stream_id, seq, transport.seal(record))


@pytest.mark.statement("R43")
async def test_a_client_that_the_registry_sent_gets_a_stream(world: World) -> None:
    transport = await world.enter("a")
    (asked,) = world.registry.asked
    assert asked == ValidateRequest("registration", CLIENT.public, "yes")
    world.multiplexer.frame_received(say(transport, "a", 0, b"hello"))
    assert transport.open(world.socket.sent[-1].payload) == b"\0\0\0\x05hello"
    assert world.handlers[0].channel.peer == f"relay:a:{CLIENT.public.fingerprint[:8]}"


@pytest.mark.statement("R43")
@pytest.mark.parametrize(
    "answer", [False, RegistryUnreachable("no answer"), RegistryRefused("r", 500, "", "")], ids=str
)
async def test_a_client_of_whom_the_registry_does_not_say_yes_is_reset(
    world: World, answer: bool | Exception
) -> None:
    world.registry.answer = answer
    world.knock("a")
    await world.settle("a")
    assert world.of("a") == [RESET]
    assert len(world.multiplexer) == 0


@pytest.mark.statement("R43")
async def test_a_client_that_the_registry_does_not_know_is_told_so(world: World) -> None:
    world.registry.answer = RegistryRefused("r", 401, "unauthorized", "")
    initiator = world.knock("a")
    await world.settle("a")
    payload, transport = initiator.read_second(bytes(world.socket.sent[-1].payload))
    assert payload == REJECTION
    world.multiplexer.frame_received(say(transport, "a", 0, b"all the same"))
    assert world.of("a") == [("handshake", ""), RESET]
    assert not world.handlers


@pytest.mark.parametrize("authorization", [b"", b"\xff"], ids=["none", "no text"])
async def test_an_authorization_that_is_none_is_not_asked_about(world: World, authorization: bytes) -> None:
    world.knock("a", authorization)
    await world.settle("a")
    assert world.of("a") == [RESET]
    assert not world.registry.asked


@pytest.mark.statement("R40")
async def test_what_is_no_handshake_message_is_reset(world: World) -> None:
    world.multiplexer.frame_received(frames.handshake("a", bytes(4000)))
    await world.settle("a")
    assert world.of("a") == [RESET]
    assert not world.registry.asked


@pytest.mark.statement("R40")
async def test_data_of_an_unknown_stream_is_reset_and_a_second_handshake_ends_the_stream(
    world: World,
) -> None:
    world.multiplexer.frame_received(frames.data("nobody", 0, b"x" * 40))
    assert world.of("nobody") == [RESET]
    await world.enter("a")
    await world.enter("b")
    world.knock("a")
    assert world.of("a") == [("handshake", ""), RESET]
    await asyncio.sleep(0)
    assert [handler.ends for handler in world.handlers] == [1, 0]


@pytest.mark.parametrize("at_once", [False, True], ids=["in its turn", "at an abort"])
async def test_a_stream_whose_keys_are_used_up_is_reset(world: World, at_once: bool) -> None:
    await world.enter("a")
    channel = world.handlers[0].channel
    assert isinstance(channel, RelayChannel)
    transport = channel._stream._transport
    assert transport is not None
    transport._sent = MAX_RECORDS
    channel.send((b"one more",))
    if at_once:
        channel.abort()
    await asyncio.sleep(0)
    assert world.of("a") == [("handshake", ""), RESET]
    await asyncio.sleep(0)
    assert world.handlers[0].ends == 1


@pytest.mark.statement("R40")
async def test_a_broken_stream_does_not_touch_the_others(world: World) -> None:
    await world.enter("a")
    transport = await world.enter("b")
    world.multiplexer.frame_received(frames.data("a", 0, bytes(100)))
    world.multiplexer.frame_received(b"no frame at all")
    world.multiplexer.frame_received(frames.reset("unknown", "why"))
    world.multiplexer.frame_received(say(transport, "b", 0, b"still here"))
    assert world.of("a")[-1] == RESET
    assert world.of("b")[-1] == ("data", "")


async def test_a_client_that_leaves_is_not_answered(world: World) -> None:
    await world.enter("a")
    world.multiplexer.frame_received(frames.reset("a", "bye"))
    await asyncio.sleep(0)
    assert world.handlers[0].ends == 1
    assert world.of("a") == [("handshake", "")]
    assert len(world.multiplexer) == 0


async def test_a_client_that_leaves_before_it_is_let_in_gets_no_stream(world: World) -> None:
    world.registry.gate.clear()
    world.knock("a")
    while not world.registry.asked:
        await asyncio.sleep(0)
    world.multiplexer.frame_received(frames.reset("a", "bye"))
    world.registry.gate.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.of("a") == []
    assert not world.handlers
    await world.enter("a")


@pytest.mark.statement("R44")
async def test_more_streams_than_fit_are_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiplexer_module, "MAX_STREAMS", 2)
    await world.enter("a")
    await world.enter("b")
    world.knock("c")
    assert world.of("c") == [RESET]
    world.multiplexer.frame_received(frames.reset("a", "bye"))
    await world.enter("d")
    assert MAX_STREAMS == 128


@pytest.mark.statement("R44")
async def test_more_handshakes_than_may_be_asked_about_wait_for_their_turn(world: World) -> None:
    world.registry.gate.clear()
    names = [f"{number}" for number in range(MAX_HANDSHAKES + 8)]
    for name in names:
        world.knock(name)
    while len(world.registry.asked) < MAX_HANDSHAKES:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(world.registry.asked) == MAX_HANDSHAKES == 32
    assert not world.socket.sent

    world.multiplexer.frame_received(frames.reset(names[-1], "gone"))
    world.registry.gate.set()
    for name in names[:-1]:
        await world.settle(name)

    assert {world.of(name)[0][0] for name in names[:-1]} == {"handshake"}
    assert len(world.handlers) == len(names) - 1


@pytest.mark.statement("R44")
async def test_handshakes_that_wait_for_their_turn_are_reset_once_too_many_failed(world: World) -> None:
    world.registry.answer = False
    names = [f"{number}" for number in range(MAX_HANDSHAKES + 8)]
    for name in names:
        world.knock(name)
    for name in names:
        await world.settle(name)

    assert {tuple(world.of(name)) for name in names} == {(RESET,)}
    assert len(world.registry.asked) == FAILURES


@pytest.mark.statement("R44")
async def test_after_eight_refusals_no_handshake_is_decrypted_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.registry.answer = False
    for number in range(FAILURES):
        world.knock(f"{number}")
        await world.settle(f"{number}")
    assert world.is_paused()
    world.registry.answer = True
    world.knock("early")
    assert world.of("early") == [RESET]
    assert len(world.registry.asked) == FAILURES == 8
    loop = asyncio.get_running_loop()
    ends = loop.time() + admission_module.PAUSE_SECONDS
    monkeypatch.setattr(loop, "time", lambda: ends)  # without waiting for it
    assert not world.is_paused()
    await world.enter("late")


async def test_streams_send_in_turns_and_only_while_there_is_room(world: World) -> None:
    transports = {name: await world.enter(name) for name in ("bulk", "small")}
    bulk, small = (handler.channel for handler in world.handlers)
    world.socket.sent.clear()
    world.socket.room = 2
    bulk.send((bytes(10 * MAX_RECORD_BYTES),))
    small.send((b"quick",))
    await asyncio.sleep(0)
    assert [frame.stream_id for frame in world.socket.sent] == ["bulk", "small"]
    assert transports["small"].open(world.socket.sent[1].payload)[4:] == b"quick"
    assert bulk.unsent > 8 * MAX_RECORD_BYTES
    world.socket.room = 1 << 30
    world.multiplexer.room()
    assert bulk.unsent == 0
    assert sum(frame.stream_id == "bulk" for frame in world.socket.sent) == 11


async def test_the_newest_stream_of_a_client_is_where_it_lives(world: World) -> None:
    other = KeyPair.generate()
    await world.enter("old")
    await world.enter("other", key=other)
    await world.enter("new")
    old, others, new = (handler.channel for handler in world.handlers)
    new.probe(0)
    others.probe(0)
    old.probe(60)
    assert len(world.multiplexer) == 3
    old.probe(0)
    assert world.of("old")[-1] == ("reset", CLOSED)
    assert len(world.multiplexer) == 2


async def test_the_end_of_the_socket_is_the_end_of_all_streams(world: World) -> None:
    await world.enter("a")
    await world.enter("b")
    world.registry.gate.clear()
    world.knock("c")
    world.multiplexer.socket_lost("gone")
    await asyncio.sleep(0)
    assert [handler.ends for handler in world.handlers] == [1, 1]
    assert await world.multiplexer.lost == "gone"
    assert len(world.multiplexer) == 0


async def test_a_link_that_closes_waits_for_its_last_stream(world: World) -> None:
    await world.enter("a")
    world.registry.gate.clear()
    world.knock("waiting")
    world.multiplexer.close_when_idle()
    assert world.of("waiting") == [RESET]
    world.knock("late")
    assert world.of("late") == [RESET]
    assert world.socket.closed is None
    world.handlers[0].channel.abort()
    assert world.of("a")[-1] == ("reset", CLOSED)
    assert world.socket.closed == (1001, "the executor stops")


async def test_no_stream_is_opened_while_there_is_no_room_for_one(world: World) -> None:
    world.open = False
    world.knock("a")
    assert world.of("a") == [RESET]


async def test_resets_of_unknown_streams_are_omitted_while_the_socket_is_stuck(world: World) -> None:
    world.socket.unsent = 2 << 20
    world.multiplexer.frame_received(frames.data("nobody", 0, b"x" * 40))
    assert world.socket.sent == []
