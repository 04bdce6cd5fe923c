"""The harness's end that the relay itself holds for a plain client, against an executor of a few lines."""

from __future__ import annotations

import asyncio
import struct
from collections import deque

import pytest

from execprotocol.limits import MAX_MESSAGE_BYTES
from execprotocol.relay import frames
from execprotocol.relay.keys import KeyPair, PublicKeys
from execprotocol.relay.noise import (
    MAX_RECORD_BYTES,
    MAX_RECORDS,
    REJECTION,
    Binding,
    Initiator,
    NoiseTransport,
    Responder,
)
from execprotocol.relay.records import MessageAssembler, RecordError, RecordQueue
from execserver.relay.service.plain_websocket import (
    PROTOCOL_BROKEN,
    REJECTED,
    STREAM_OVER,
    FragmentCutter,
    PlainStream,
    StreamRefused,
)

RELAY, EXECUTOR = KeyPair.generate(), KeyPair.generate()
STREAM = "0e8a2f9c-5f0b-4b43-9a39-0b6a4b6f9a11"
BINDING = Binding("box", "registration", STREAM)
AUTHORIZATION = "a word of the registry"


class FakeExecutor:
    """Takes what the stream forwards, and shakes hands when told to."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.shown: tuple[PublicKeys, bytes] | None = None
        self.messages: list[bytes] = []
        self.records = 0
        self.transport: NoiseTransport | None = None
        self.stop_after = 0
        """Says "no more" to the stream after so many records."""
        self._responder = Responder(EXECUTOR, BINDING)
        self._assembler = MessageAssembler(lambda message: self.messages.append(bytes(message)))
        self._sent = 0
        self.stream: PlainStream

    def forward(self, frame: bytes) -> None:
        decoded = frames.decode(frame)
        assert decoded.stream_id == STREAM
        self.kinds.append(decoded.kind)
        if decoded.kind == "handshake":
            self.shown = self._responder.read_first(decoded.payload)
        elif decoded.kind == "data":
            assert self.transport is not None
            assert decoded.seq == self.records
            self.records += 1
            self._assembler.feed(self.transport.open(decoded.payload))
            if self.records == self.stop_after:
                self.stream.pause()

    def answer(self, payload: bytes = b"") -> bytes:
        message, self.transport = self._responder.write_second(payload)
        return frames.handshake(STREAM, message)

    def seal(self, *records: bytes) -> list[bytes]:
        assert self.transport is not None
        sealed = []
        for record in records:
            sealed.append(frames.data(STREAM, self._sent, self.transport.seal(record)))
            self._sent += 1
        return sealed

    def say(self, *messages: bytes) -> None:
        queue = RecordQueue()
        for message in messages:
            queue.put((message,))
        while (record := queue.take()) is not None:
            for frame in self.seal(bytes(record)):
                self.stream.send(frame)


class FakeClient:
    """The plain socket: what was written, taken apart."""

    def __init__(self) -> None:
        self.frames: deque[tuple[int, bool, bytes]] = deque()
        self.queued = 0
        self.paused = False
        self.closed: tuple[int, str] | None = None

    def write(self, data: bytes) -> None:
        self.queued += len(data)
        self.frames.extend(taken_apart(data))

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    @property
    def messages(self) -> list[bytes]:
        return messages_of(list(self.frames))


def taken_apart(data: bytes) -> list[tuple[int, bool, bytes]]:
    """Opcode, final bit and payload of each frame of a server."""
    found = []
    while data:
        opcode, final, size, place = data[0] & 15, data[0] >= 0x80, data[1], 2
        if size == 126:
            (size,), place = struct.unpack_from(">H", data, 2), 4
        elif size == 127:
            (size,), place = struct.unpack_from(">Q", data, 2), 10
        assert len(data) >= place + size, "a frame is whole"
        found.append((opcode, final, data[place : place + size]))
        data = data[place + size :]
    return found


def messages_of(parts: list[tuple[int, bool, bytes]]) -> list[bytes]:
    """What a client makes of frames; their opcodes have to be right."""
    messages, begun = [], b""
    within = False
    for opcode, final, payload in parts:
        assert opcode == (0 if within else 1)
        begun += payload
        within = not final
        if final:
            messages.append(begun)
            begun = b""
    return messages


def make() -> tuple[PlainStream, FakeExecutor]:
    executor = FakeExecutor()
    stream = PlainStream(STREAM, Initiator(RELAY, EXECUTOR.public, BINDING), executor.forward)
    executor.stream = stream
    return stream, executor


async def opened() -> tuple[PlainStream, FakeExecutor, FakeClient]:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)
    stream.send(executor.answer())
    await opening
    client = FakeClient()
    stream.attach(client)
    return stream, executor, client


async def a_turn() -> None:
    """What was put off to the next turn of the loop has happened then."""
    await asyncio.sleep(0)


# -- the handshake


async def test_it_claims_the_stream_and_shows_its_key_and_the_authorization() -> None:
    _, executor, _ = await opened()

    assert executor.kinds == ["resume", "handshake"]
    assert executor.shown == (RELAY.public, AUTHORIZATION.encode())


async def test_a_reset_instead_of_an_answer_refuses_the_stream() -> None:
    stream, _ = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)

    stream.send(frames.reset(STREAM, "noise_relay_protocol_error"))

    with pytest.raises(StreamRefused, match="noise_relay_protocol_error") as refusal:
        await opening
    assert not refusal.value.rejected


async def test_a_rejection_refuses_the_stream_and_says_so() -> None:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)

    stream.send(executor.answer(REJECTION))

    with pytest.raises(StreamRefused, match=REJECTED) as refusal:
        await opening
    assert refusal.value.rejected


async def test_an_answer_of_another_executor_refuses_the_stream_and_resets_it() -> None:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)
    answer = bytearray(executor.answer())
    answer[-1] ^= 1

    stream.send(bytes(answer))

    with pytest.raises(StreamRefused, match="does not open"):
        await opening
    await a_turn()
    assert executor.kinds[-1] == "reset"


async def test_an_answer_with_an_unknown_payload_refuses_the_stream() -> None:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)

    stream.send(executor.answer(b"something else"))

    with pytest.raises(StreamRefused, match="something unknown"):
        await opening


async def test_data_before_the_answer_refuses_the_stream() -> None:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)

    stream.send(frames.data(STREAM, 0, b"sealed"))

    with pytest.raises(StreamRefused, match="before its answer"):
        await opening
    await a_turn()
    assert executor.kinds[-1] == "reset"


async def test_a_rendezvous_that_refuses_at_the_first_frame_is_heard() -> None:
    executor = FakeExecutor()

    def refuse(frame: bytes) -> None:
        executor.kinds.append(frames.decode(frame).kind)
        stream.send(frames.reset(STREAM, "too_many_streams"))

    stream = PlainStream(STREAM, Initiator(RELAY, EXECUTOR.public, BINDING), refuse)

    with pytest.raises(StreamRefused, match="too_many_streams"):
        await stream.open(AUTHORIZATION)
    assert executor.kinds == ["resume"]


async def test_a_second_answer_ends_the_stream() -> None:
    stream, executor, client = await opened()

    stream.send(frames.handshake(STREAM, bytes(4000)))

    await a_turn()
    assert client.closed is not None
    assert client.closed[0] == PROTOCOL_BROKEN
    assert executor.kinds[-1] == "reset"


# -- from the client to the executor


async def test_messages_of_the_client_reach_the_executor_whole_and_in_order() -> None:
    stream, executor, client = await opened()
    sent = [b'{"id":1}', b"", b"x" * 200_000, b'{"id":2}']

    for message in sent:
        stream.message(message)

    assert executor.messages == sent
    assert not client.paused


async def test_a_full_executor_stops_the_client_until_all_has_gone() -> None:
    stream, executor, client = await opened()
    executor.stop_after = 2

    stream.message(b"y" * 300_000)
    assert (executor.records, client.paused) == (2, True)
    executor.stop_after = 4
    stream.resume()
    await a_turn()
    assert (executor.records, client.paused) == (4, True)
    stream.resume()
    await a_turn()

    assert executor.messages == [b"y" * 300_000]
    assert not client.paused


async def test_what_a_client_sent_into_an_ended_stream_goes_nowhere() -> None:
    stream, executor, client = await opened()
    stream.send(frames.reset(STREAM, "gone"))

    stream.message(b"late")

    assert executor.messages == []
    assert client.closed == (STREAM_OVER, "the executor reset the stream: gone")


async def test_a_channel_that_is_used_up_ends_the_stream() -> None:
    stream, executor, client = await opened()
    assert stream._stream._transport is not None
    stream._stream._transport._sent = MAX_RECORDS

    stream.message(b"one more")

    await a_turn()
    assert client.closed is not None
    assert client.closed[0] == PROTOCOL_BROKEN
    assert executor.kinds[-1] == "reset"


# -- from the executor to the client


async def test_small_messages_are_text_frames_and_large_ones_come_in_fragments_before_their_end() -> None:
    _, executor, client = await opened()

    executor.say(b"small", b"", b"z" * 150_000)
    executor.say(b"after")

    assert client.messages == [b"small", b"", b"z" * 150_000, b"after"]
    assert client.frames[0] == (1, True, b"small")
    assert max(len(payload) for _, _, payload in client.frames) <= MAX_RECORD_BYTES


async def test_an_unfinished_message_is_passed_on_and_not_gathered() -> None:
    stream, executor, client = await opened()

    for frame in executor.seal((1000).to_bytes(4) + b"begun"):
        stream.send(frame)

    assert list(client.frames) == [(1, False, b"begun")]


async def test_records_that_come_twice_or_too_early_are_put_right() -> None:
    stream, executor, client = await opened()
    first, second, third = executor.seal(*((1).to_bytes(4) + letter for letter in (b"a", b"b", b"c")))

    for frame in (third, first, first, second):
        stream.send(frame)

    assert client.messages == [b"a", b"b", b"c"]
    assert client.closed is None


async def test_frames_that_are_none_or_of_another_stream_are_dropped() -> None:
    stream, _, client = await opened()

    stream.send(b"\xff\xff")
    stream.send(frames.reset("another", "not ours"))
    stream.send(frames.resume(STREAM))

    assert client.closed is None


@pytest.mark.parametrize("fault", ["changed", "too far ahead", "too long a message"])
async def test_records_that_cannot_be_right_end_the_stream_and_reset_it(fault: str) -> None:
    stream, executor, client = await opened()
    length = MAX_MESSAGE_BYTES + 1 if fault == "too long a message" else 1
    (frame,) = executor.seal(length.to_bytes(4) + b"a")
    decoded = frames.decode(frame)
    payload = bytearray(decoded.payload)
    payload[0] ^= fault == "changed"

    stream.send(frames.data(STREAM, 65 if fault == "too far ahead" else 0, bytes(payload)))

    assert executor.kinds[-1] == "handshake", "the rendezvous is not called back from within its call"
    await a_turn()
    assert client.closed is not None
    assert client.closed[0] == PROTOCOL_BROKEN
    assert executor.kinds[-1] == "reset"
    assert client.messages == []


async def test_what_comes_before_the_client_is_there_waits_for_it_and_counts() -> None:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)
    stream.send(executor.answer())
    await opening
    executor.say(b"early")
    assert stream.queued == len(b"early") + 2

    client = FakeClient()
    stream.attach(client)

    assert client.messages == [b"early"]
    assert stream.queued == client.queued


async def test_a_stream_that_ended_before_its_client_came_closes_it() -> None:
    stream, executor = make()
    opening = asyncio.ensure_future(stream.open(AUTHORIZATION))
    await asyncio.sleep(0)
    stream.send(executor.answer())
    await opening
    stream.close(1013, "executor gone")

    client = FakeClient()
    stream.attach(client)

    assert client.closed == (1013, "executor gone")


async def test_a_stream_ends_once() -> None:
    stream, executor, client = await opened()

    stream.close(1008, "slow_consumer")
    client.closed = None
    stream.close(1013, "executor gone")
    stream.send(frames.reset(STREAM, "again"))
    executor.say(b"late")

    assert client.closed is None
    assert not client.frames


# -- records into frames


def test_frames_do_not_depend_on_where_records_were_cut() -> None:
    messages = [b"", b"a", b"bc" * 300, b"", b"d" * 70_000, b"e"]
    whole = b"".join(len(message).to_bytes(4) + message for message in messages)

    for size in (1, 2, 3, 5, 7, 604, 4096, MAX_RECORD_BYTES):
        cutter = FragmentCutter()
        cut = [cutter.cut(whole[place : place + size]) for place in range(0, len(whole), size)]
        assert messages_of([part for data in cut for part in taken_apart(data)]) == messages, size


def test_a_message_of_just_the_limit_passes_and_a_longer_one_does_not() -> None:
    cutter = FragmentCutter(limit=10)

    assert taken_apart(cutter.cut((10).to_bytes(4) + b"x" * 10)) == [(1, True, b"x" * 10)]
    with pytest.raises(RecordError, match="11 bytes"):
        cutter.cut((11).to_bytes(4))
