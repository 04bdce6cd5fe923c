"""Both ends of a sealed stream, joined by lists of frames instead of sockets."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from execprotocol.relay import frames
from execprotocol.relay.keys import KeyPair
from execprotocol.relay.noise import (
    MAX_RECORD_BYTES,
    MAX_RECORDS,
    REJECTION,
    Binding,
    Initiator,
    NoiseError,
    NoiseTransport,
    Responder,
)
from execprotocol.relay.records import REORDER_AHEAD, MessageAssembler, RecordError
from execprotocol.relay.sealed_stream import (
    InitiatorStream,
    SealedStream,
    StreamBroken,
    StreamRejected,
    StreamReset,
)

CLIENT, EXECUTOR = KeyPair.generate(), KeyPair.generate()
STREAM = "0e8a2f9c-5f0b-4b43-9a39-0b6a4b6f9a11"
BINDING = Binding("box", "registration", STREAM)
AUTHORIZATION = "from the registry"


class Pair:
    """A client's end, and an executor's that answers the handshake when the test says so."""

    def __init__(self) -> None:
        self.to_client: list[bytes] = []
        self.to_executor: list[bytes] = []
        self.client = InitiatorStream(
            STREAM, collecting(self.to_client), Initiator(CLIENT, EXECUTOR.public, BINDING)
        )
        self.responder = Responder(EXECUTOR, BINDING)
        self.opening = self.client.opening_frames(AUTHORIZATION)

    def answer(self, payload: bytes = b"") -> bytes:
        """The executor's frame in answer to the handshake; its end of the stream is there from now on."""
        self.shown = self.responder.read_first(frames.decode(self.opening[1]).payload)
        message, transport = self.responder.write_second(payload)
        self.executor = SealedStream(STREAM, collecting(self.to_executor), transport)
        return frames.handshake(STREAM, message)


def collecting(messages: list[bytes]) -> Callable[[bytes], None]:
    return MessageAssembler(lambda message: messages.append(bytes(message))).feed


def opened() -> Pair:
    pair = Pair()
    assert pair.client.frame_received(pair.answer())
    return pair


def sent(stream: SealedStream, *messages: bytes) -> list[bytes]:
    """The frames that messages make, each message in records of its own."""
    made = []
    for message in messages:
        stream.outgoing.put((message,))
        while (frame := stream.next_frame()) is not None:
            made.append(frame)
    return made


def receive(stream: SealedStream, frame: bytes) -> None:
    decoded = frames.decode(frame)
    stream.data_received(decoded.seq, decoded.payload)


# -- the handshake


def test_the_first_frames_claim_the_stream_and_show_key_and_authorization() -> None:
    pair = Pair()
    assert [frames.decode(frame).kind for frame in pair.opening] == ["resume", "handshake"]
    pair.answer()
    assert pair.shown == (CLIENT.public, AUTHORIZATION.encode())


def test_the_answer_opens_the_stream_and_nothing_is_sealed_before() -> None:
    pair = Pair()
    pair.client.outgoing.put((b"early",))
    assert pair.client.next_frame() is None

    assert pair.client.frame_received(pair.answer())

    assert pair.client.is_open
    frame = pair.client.next_frame()
    assert frame is not None
    receive(pair.executor, frame)
    assert pair.to_executor == [b"early"]


def test_a_rejection_is_told_from_other_failures() -> None:
    pair = Pair()
    with pytest.raises(StreamRejected):
        pair.client.frame_received(pair.answer(REJECTION))
    assert not pair.client.is_open


def test_an_answer_with_an_unknown_payload_breaks_the_stream() -> None:
    pair = Pair()
    with pytest.raises(StreamBroken, match="something unknown"):
        pair.client.frame_received(pair.answer(b"what is this"))
    assert not pair.client.is_open


def test_an_answer_that_was_changed_breaks_the_stream() -> None:
    pair = Pair()
    answer = bytearray(pair.answer())
    answer[-1] ^= 1
    with pytest.raises(StreamBroken, match="handshake failed"):
        pair.client.frame_received(bytes(answer))


def test_a_second_answer_breaks_the_stream() -> None:
    pair = Pair()
    answer = pair.answer()
    assert pair.client.frame_received(answer)
    with pytest.raises(StreamBroken, match="twice"):
        pair.client.frame_received(answer)


def test_data_before_the_answer_breaks_the_stream() -> None:
    pair = Pair()
    with pytest.raises(StreamBroken, match="before its answer"):
        pair.client.frame_received(frames.data(STREAM, 0, b"sealed"))


def test_an_authorization_that_is_too_long_is_an_error_of_the_handshake() -> None:
    stream = InitiatorStream(STREAM, lambda record: None, Initiator(CLIENT, EXECUTOR.public, BINDING))
    with pytest.raises(NoiseError, match="at most"):
        stream.opening_frames("x" * 5000)


# -- messages


@pytest.mark.parametrize("size", [0, 1, MAX_RECORD_BYTES - 4, MAX_RECORD_BYTES - 3, 300_000])
def test_messages_of_any_size_arrive_both_ways(size: int) -> None:
    pair = opened()
    message = os.urandom(size)
    for frame in sent(pair.client, message, b"after"):
        receive(pair.executor, frame)
    for frame in sent(pair.executor, message, b"after"):
        assert not pair.client.frame_received(frame)
    assert pair.to_executor == pair.to_client == [message, b"after"]


def test_records_are_numbered_from_0_and_counted_without_their_seals() -> None:
    pair = opened()
    made = sent(pair.client, b"one", b"two", b"x" * (2 * MAX_RECORD_BYTES - 4))
    assert [frames.decode(frame).seq for frame in made] == [0, 1, 2, 3]
    assert pair.client.sent_bytes == 7 + 7 + 2 * MAX_RECORD_BYTES


def test_records_are_read_in_their_order_and_once() -> None:
    pair = opened()
    first, second, third = sent(pair.client, b"1", b"2", b"3")
    for frame in (third, second, third, first, first, second):
        receive(pair.executor, frame)
    (fourth,) = sent(pair.client, b"4")
    receive(pair.executor, fourth)
    assert pair.to_executor == [b"1", b"2", b"3", b"4"]


def test_an_early_record_survives_the_message_that_it_came_in() -> None:
    pair = opened()
    first, second = sent(pair.client, b"1", b"2")
    decoded = frames.decode(second)
    buffer = bytearray(decoded.payload)
    pair.executor.data_received(decoded.seq, memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    receive(pair.executor, first)
    assert pair.to_executor == [b"1", b"2"]


def test_frames_of_other_streams_and_undecodable_ones_are_ignored() -> None:
    pair = opened()
    for frame in (b"", b"no frame", frames.reset("another", "x"), frames.data("another", 0, b"sealed")):
        assert not pair.client.frame_received(frame)
    (frame,) = sent(pair.executor, b"still here")
    pair.client.frame_received(frame)
    assert pair.to_client == [b"still here"]


# -- the end


def test_a_reset_is_told_with_its_reason() -> None:
    pair = opened()
    with pytest.raises(StreamReset) as reset:
        pair.client.frame_received(frames.reset(STREAM, "why \x1b not"))
    assert reset.value.reason == "why \x1b not"


def test_a_record_that_was_changed_breaks_the_stream_for_good() -> None:
    pair = opened()
    first, second = sent(pair.client, b"1", b"2")
    changed = bytearray(first)
    changed[-1] ^= 1
    for frame in (bytes(changed), second):
        with pytest.raises(StreamBroken):
            receive(pair.executor, frame)
    assert pair.to_executor == []


def test_a_record_that_is_too_far_ahead_breaks_the_stream() -> None:
    pair = opened()
    with pytest.raises(StreamBroken, match="is missing"):
        pair.executor.data_received(REORDER_AHEAD + 1, b"sealed")


def test_an_announced_message_that_is_too_long_breaks_the_stream() -> None:
    pair = opened()
    pair.client.outgoing.put_raw((1 << 30).to_bytes(4))
    frame = pair.client.next_frame()
    assert frame is not None
    with pytest.raises(StreamBroken, match="bytes is announced"):
        receive(pair.executor, frame)


def test_keys_that_are_used_up_break_the_stream() -> None:
    pair = opened()
    assert pair.client._transport is not None
    pair.client._transport._sent = MAX_RECORDS
    pair.client.outgoing.put((b"one more",))
    with pytest.raises(StreamBroken, match="as many records"):
        pair.client.next_frame()


def test_nothing_is_delivered_after_the_owner_stopped_receiving_within_a_record() -> None:
    taken = []

    def take(record: bytes) -> None:
        taken.append(record[4:])
        if len(taken) == 2:
            stream.stop_receiving()

    one, other = b"1" * 32, b"2" * 32
    stream = SealedStream(STREAM, take, NoiseTransport(one, other))
    sender = SealedStream(STREAM, take, NoiseTransport(other, one))
    first, second, third, fourth = sent(sender, b"1", b"2", b"3", b"4")
    for frame in (second, third, first, fourth):
        receive(stream, frame)
    assert taken == [b"1", b"2"]


def test_a_receiver_that_finds_a_fault_breaks_the_stream() -> None:
    def refuse(record: bytes) -> None:
        raise RecordError("not this one")

    one, other = b"1" * 32, b"2" * 32
    stream = SealedStream(STREAM, refuse, NoiseTransport(one, other))
    (frame,) = sent(SealedStream(STREAM, refuse, NoiseTransport(other, one)), b"1")
    with pytest.raises(StreamBroken, match="not this one"):
        receive(stream, frame)
