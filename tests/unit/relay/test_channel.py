"""One stream as a channel: records in and out, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from execprotocol.limits import MAX_MESSAGE_BYTES
from execprotocol.relay import frames
from execprotocol.relay.noise import NoiseTransport
from execprotocol.relay.records import MessageAssembler, RecordQueue
from execserver.relay.executor import channel
from execserver.relay.executor.channel import CLOSED, LOW_WATER_BYTES, RelayChannel
from execserver.rpc.channel import Channel

FINGERPRINT = "f" * 64


class Handler:
    """Notes what it is told."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.messages: list[bytes] = []
        self.batches = 0
        self.drains = 0
        self.losses = 0
        self.on_message: Callable[[bytes], None] = lambda message: None

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        for message in messages:
            self.messages.append(bytes(message))
            self.on_message(bytes(message))

    def framing_failed(self, reason: str) -> None:
        raise AssertionError(reason)

    def batch_ended(self) -> None:
        self.batches += 1

    def drained(self) -> None:
        self.drains += 1

    def connection_lost(self) -> None:
        self.losses += 1


class FakeOwner:
    """A carrier that sends when the test says so."""

    def __init__(self) -> None:
        self.held = 0
        self.most = 1 << 40
        self.wanted = 0
        self.newer = False
        self.sent: list[bytes] = []
        self.left: list[str] = []

    def wants_turn(self, channel: RelayChannel) -> None:
        self.wanted += 1

    def send_now(self, channel: RelayChannel) -> None:
        while (frame := channel.next_frame()) is not None:
            self.sent.append(frame)

    def leave(self, channel: RelayChannel, reason: str) -> None:
        self.left.append(reason)

    def has_newer(self, channel: RelayChannel) -> bool:
        return self.newer

    def may_hold(self, size: int) -> bool:
        return self.held + size <= self.most

    def take(self, channel: RelayChannel, most: int = 1 << 30) -> bool:
        """Give it so many turns as it wants; whether it wants more."""
        more = True
        while more and most and (frame := channel.next_frame()) is not None:
            self.sent.append(frame)
            more = channel.frame_sent()
            most -= 1
        return more


class Pair:
    """A channel and the client's end of its stream."""

    def __init__(self) -> None:
        self.owner = FakeOwner()
        one, other = b"1" * 32, b"2" * 32
        self.channel = RelayChannel(self.owner, "stream-of-a-client", NoiseTransport(one, other), FINGERPRINT)
        self.channel.start(self._make)
        self.client = NoiseTransport(other, one)
        self.replied: list[bytes] = []
        self._assembler = MessageAssembler(lambda message: self.replied.append(bytes(message)))
        self._seq = 0

    def _make(self, channel: Channel) -> Handler:
        self.handler = Handler(channel)
        return self.handler

    def records(self, *messages: bytes) -> list[bytes]:
        """Sealed records with these messages."""
        queue = RecordQueue()
        for message in messages:
            queue.put((message,))
        records = []
        while (record := queue.take()) is not None:
            records.append(self.client.seal(record))
        return records

    def deliver(self, *messages: bytes) -> None:
        for record in self.records(*messages):
            self.deliver_record(record)

    def deliver_record(self, record: bytes) -> None:
        self.channel.record_received(self._seq, record)
        self._seq += 1

    def replies(self) -> list[bytes]:
        """The messages in all that was sent."""
        for message in self.owner.sent:
            self._assembler.feed(self.client.open(frames.decode(message).payload))
        self.owner.sent.clear()
        return self.replied


@pytest.fixture
async def pair() -> Pair:
    return Pair()


async def turn() -> None:
    """Let the loop do what is due."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_messages_come_whole_and_records_are_batches(pair: Pair) -> None:
    pair.deliver(b"one", b"", b"two")
    assert pair.handler.messages == [b"one", b"", b"two"]
    assert pair.handler.batches == 1
    large = bytes(200_000)
    pair.deliver(large)
    assert pair.handler.messages[-1] == large


async def test_messages_of_one_turn_share_a_record(pair: Pair) -> None:
    pair.channel.send((b"a", b"b"))
    pair.channel.send((b"c",))
    pair.owner.take(pair.channel)
    assert len(pair.owner.sent) == 1
    assert pair.replies() == [b"ab", b"c"]
    assert pair.channel.unsent == 0
    assert pair.channel.progress == len(b"abc") + 8


async def test_records_out_of_order_are_put_right(pair: Pair) -> None:
    first, second = *pair.records(b"1"), *pair.records(b"2")
    pair.channel.record_received(1, second)
    assert pair.handler.messages == []
    pair.channel.record_received(0, first)
    pair.channel.record_received(0, first)
    assert pair.handler.messages == [b"1", b"2"]
    assert not pair.owner.left


@pytest.mark.parametrize("fault", ["changed", "too far ahead", "too large a message"])
async def test_a_fault_ends_the_stream_with_the_protocol_error(pair: Pair, fault: str) -> None:
    (record,) = pair.records(b"x")
    if fault == "changed":
        pair.deliver_record(record[:-1] + bytes((record[-1] ^ 1,)))
    elif fault == "too far ahead":
        pair.channel.record_received(65, record)
    else:
        announced = pair.client.seal((MAX_MESSAGE_BYTES + 1).to_bytes(4))
        pair.channel.record_received(1, announced)
        pair.channel.record_received(0, record)
    await turn()
    assert pair.owner.left == [frames.PROTOCOL_ERROR]
    assert pair.handler.losses == 1
    pair.channel.send((b"too late",))
    assert pair.channel.unsent == 0


async def test_drained_is_told_once_below_the_mark(pair: Pair) -> None:
    pair.channel.send((b"small",))
    pair.owner.take(pair.channel)
    assert pair.handler.drains == 0
    pair.channel.send((bytes(3 * LOW_WATER_BYTES),))
    assert pair.owner.take(pair.channel, most=1)
    assert pair.handler.drains == 0
    pair.owner.take(pair.channel)
    assert pair.handler.drains == 1


async def test_what_is_sent_from_drained_gets_its_turn(pair: Pair) -> None:
    pair.channel.send((bytes(2 * LOW_WATER_BYTES),))
    pair.handler.drained = lambda: pair.channel.send((b"more",))  # type: ignore[method-assign]
    pair.owner.take(pair.channel)
    assert pair.replies()[-1] == b"more"


async def test_a_paused_stream_delivers_nothing_and_loses_nothing(pair: Pair) -> None:
    pair.channel.pause_reading()
    for number in range(40):
        pair.deliver(b"%d" % number)
    assert pair.handler.messages == []
    assert pair.owner.held > 0
    pair.channel.resume_reading()
    pair.deliver(b"40")  # which must not overtake
    assert pair.handler.messages == []
    while len(pair.handler.messages) < 41:
        await turn()
    assert pair.handler.messages == [b"%d" % number for number in range(41)]
    assert pair.owner.held == 0
    pair.deliver(b"at once")
    assert pair.handler.messages[-1] == b"at once"


async def test_a_pause_in_the_middle_of_what_was_kept_holds(pair: Pair) -> None:
    pair.channel.pause_reading()
    pair.deliver(b"1")
    pair.deliver(b"2")
    pair.handler.on_message = lambda _: pair.channel.pause_reading()
    pair.channel.resume_reading()
    await turn()
    assert pair.handler.messages == [b"1"]
    pair.channel.resume_reading()
    await turn()
    assert pair.handler.messages == [b"1", b"2"]


@pytest.mark.parametrize("whose", ["its own", "of all"])
async def test_who_sends_too_much_unread_is_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setattr(channel, "MAX_HELD_BYTES", 2000 if whose == "its own" else 1 << 30)
    pair.owner.most = 2000 if whose == "of all" else 1 << 30
    pair.channel.pause_reading()
    pair.deliver(bytes(500))
    assert not pair.owner.left
    pair.deliver(bytes(500))
    assert pair.owner.left == [frames.PROTOCOL_ERROR]
    assert pair.owner.held == 0


async def test_the_smallest_records_are_counted_with_what_keeping_them_costs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_HELD_BYTES", 100 << 10)
    pair.channel.pause_reading()
    kept = 0
    while not pair.owner.left:
        pair.deliver(b"")
        kept += 1
    assert kept < 250
    assert pair.owner.held == 0


async def test_a_streamed_message_keeps_others_behind_it(pair: Pair) -> None:
    stream = pair.channel.open_stream(10)
    await stream.write(b"01234")
    pair.channel.send((b"behind",))
    assert pair.channel.unsent == 4 + 5 + len(b"behind")
    await stream.close(b"56789")
    pair.owner.take(pair.channel)
    assert pair.replies() == [b"0123456789", b"behind"]


async def test_a_streamed_message_that_turns_out_shorter_is_filled_up(pair: Pair) -> None:
    size = 3 * LOW_WATER_BYTES
    stream = pair.channel.open_stream(size)
    writing = asyncio.create_task(stream.close(b"[]"))
    while not writing.done():
        await turn()
        pair.owner.take(pair.channel)
    pair.owner.take(pair.channel)
    assert pair.replies() == [b"[]".ljust(size)]


async def test_a_piece_waits_for_room_and_for_the_end(pair: Pair) -> None:
    stream = pair.channel.open_stream(1 << 30)
    writing = asyncio.create_task(stream.write(bytes(2 * LOW_WATER_BYTES)))
    await turn()
    assert not writing.done()
    pair.owner.take(pair.channel)
    await writing
    writing = asyncio.create_task(stream.write(bytes(2 * LOW_WATER_BYTES)))
    await turn()
    pair.channel.abort()
    with pytest.raises(ConnectionResetError):
        await writing


async def test_abort_offers_what_was_sent_in_this_turn_and_tells_the_peer(pair: Pair) -> None:
    pair.channel.send((b"last words",))
    pair.channel.abort()
    pair.channel.abort()
    assert pair.handler.losses == 0  # not from inside the call
    await turn()
    assert pair.handler.losses == 1
    assert pair.owner.left == [CLOSED]
    assert pair.replies() == [b"last words"]


async def test_finish_waits_until_everything_was_taken(pair: Pair) -> None:
    pair.channel.send((bytes(100_000),))
    pair.channel.finish()
    pair.deliver(b"unheard")
    await turn()
    assert (pair.handler.losses, pair.handler.messages, pair.owner.left) == (1, [], [])
    pair.owner.take(pair.channel)
    assert pair.owner.left == [CLOSED]
    assert pair.replies() == [bytes(100_000)]


async def test_finish_does_not_wait_for_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LINGER_SECONDS", 0.001)
    pair.channel.send((b"never taken",))
    pair.channel.finish()
    await asyncio.sleep(0.01)
    assert pair.owner.left == [CLOSED]
    assert pair.channel.unsent == 0


async def test_a_stream_that_the_peer_left_is_not_told_so(pair: Pair) -> None:
    pair.channel.send((b"unsent",))
    pair.channel.lost()
    pair.channel.lost()
    await turn()
    assert pair.owner.left == [""]
    assert pair.handler.losses == 1


async def test_messages_behind_the_one_that_dropped_the_connection_are_not_delivered(pair: Pair) -> None:
    pair.handler.on_message = lambda _: pair.channel.abort()
    pair.deliver(b"fatal", b"never")
    assert pair.handler.messages == [b"fatal"]
    assert pair.handler.batches == 0


async def test_a_client_that_has_moved_on_is_dropped_by_a_probe(pair: Pair) -> None:
    pair.channel.probe(0)
    assert not pair.owner.left
    pair.owner.newer = True
    pair.channel.probe(0)
    assert pair.owner.left == [CLOSED]


async def test_a_client_that_says_something_is_not_taken_for_one_that_has_moved_on(pair: Pair) -> None:
    pair.owner.newer = True
    pair.channel._heard -= 60
    pair.deliver(b"here")
    pair.channel.probe(60)
    assert not pair.owner.left
    pair.channel._heard -= 60
    pair.channel.probe(60)
    assert pair.owner.left == [CLOSED]


async def test_nothing_is_known_of_the_peer(pair: Pair) -> None:
    assert pair.channel.peer_proof is None
    assert pair.channel.peer == "relay:stream-o:ffffffff"
    assert pair.channel.max_reply_bytes == 64 << 20
