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
        self.ends = 0
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
        self.ends += 1


class FakeLink:
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


class Ends:
    """A channel and the client's end of its stream."""

    def __init__(self) -> None:
        self.link = FakeLink()
        one, other = b"1" * 32, b"2" * 32
        self.channel = RelayChannel(self.link, "stream-of-a-client", NoiseTransport(one, other), FINGERPRINT)
        self.channel.start(self._make)
        self.client = NoiseTransport(other, one)
        self.said: list[bytes] = []
        self._assembler = MessageAssembler(lambda message: self.said.append(bytes(message)))
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
        for message in self.link.sent:
            self._assembler.feed(self.client.open(frames.decode(message).payload))
        self.link.sent.clear()
        return self.said


@pytest.fixture
async def ends() -> Ends:
    return Ends()


async def turn() -> None:
    """Let the loop do what is due."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_messages_come_whole_and_records_are_batches(ends: Ends) -> None:
    ends.deliver(b"one", b"", b"two")
    assert ends.handler.messages == [b"one", b"", b"two"]
    assert ends.handler.batches == 1
    large = bytes(200_000)
    ends.deliver(large)
    assert ends.handler.messages[-1] == large


async def test_messages_of_one_turn_share_a_record(ends: Ends) -> None:
    ends.channel.send((b"a", b"b"))
    ends.channel.send((b"c",))
    ends.link.take(ends.channel)
    assert len(ends.link.sent) == 1
    assert ends.replies() == [b"ab", b"c"]
    assert ends.channel.unsent == 0
    assert ends.channel.progress == len(b"abc") + 8


async def test_records_out_of_order_are_put_right(ends: Ends) -> None:
    first, second = *ends.records(b"1"), *ends.records(b"2")
    ends.channel.record_received(1, second)
    assert ends.handler.messages == []
    ends.channel.record_received(0, first)
    ends.channel.record_received(0, first)
    assert ends.handler.messages == [b"1", b"2"]
    assert not ends.link.left


@pytest.mark.parametrize("fault", ["changed", "too far ahead", "too large a message"])
async def test_a_fault_ends_the_stream_with_the_protocol_error(ends: Ends, fault: str) -> None:
    (record,) = ends.records(b"x")
    if fault == "changed":
        ends.deliver_record(record[:-1] + bytes((record[-1] ^ 1,)))
    elif fault == "too far ahead":
        ends.channel.record_received(65, record)
    else:
        announced = ends.client.seal((MAX_MESSAGE_BYTES + 1).to_bytes(4))
        ends.channel.record_received(1, announced)
        ends.channel.record_received(0, record)
    await turn()
    assert ends.link.left == [frames.PROTOCOL_ERROR]
    assert ends.handler.ends == 1
    ends.channel.send((b"too late",))
    assert ends.channel.unsent == 0


async def test_drained_is_told_once_below_the_mark(ends: Ends) -> None:
    ends.channel.send((b"small",))
    ends.link.take(ends.channel)
    assert ends.handler.drains == 0
    ends.channel.send((bytes(3 * LOW_WATER_BYTES),))
    assert ends.link.take(ends.channel, most=1)
    assert ends.handler.drains == 0
    ends.link.take(ends.channel)
    assert ends.handler.drains == 1


async def test_what_is_sent_from_drained_gets_its_turn(ends: Ends) -> None:
    ends.channel.send((bytes(2 * LOW_WATER_BYTES),))
    ends.handler.drained = lambda: ends.channel.send((b"more",))  # type: ignore[method-assign]
    ends.link.take(ends.channel)
    assert ends.replies()[-1] == b"more"


async def test_a_paused_stream_delivers_nothing_and_loses_nothing(ends: Ends) -> None:
    ends.channel.pause_reading()
    for number in range(40):
        ends.deliver(b"%d" % number)
    assert ends.handler.messages == []
    assert ends.link.held > 0
    ends.channel.resume_reading()
    ends.deliver(b"40")  # which must not overtake
    assert ends.handler.messages == []
    while len(ends.handler.messages) < 41:
        await turn()
    assert ends.handler.messages == [b"%d" % number for number in range(41)]
    assert ends.link.held == 0
    ends.deliver(b"at once")
    assert ends.handler.messages[-1] == b"at once"


async def test_a_pause_in_the_middle_of_what_was_kept_holds(ends: Ends) -> None:
    ends.channel.pause_reading()
    ends.deliver(b"1")
    ends.deliver(b"2")
    ends.handler.on_message = lambda _: ends.channel.pause_reading()
    ends.channel.resume_reading()
    await turn()
    assert ends.handler.messages == [b"1"]
    ends.channel.resume_reading()
    await turn()
    assert ends.handler.messages == [b"1", b"2"]


@pytest.mark.parametrize("whose", ["its own", "of all"])
async def test_who_sends_too_much_unread_is_dropped(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setattr(channel, "MAX_HELD_BYTES", 2000 if whose == "its own" else 1 << 30)
    ends.link.most = 2000 if whose == "of all" else 1 << 30
    ends.channel.pause_reading()
    ends.deliver(bytes(500))
    assert not ends.link.left
    ends.deliver(bytes(500))
    assert ends.link.left == [frames.PROTOCOL_ERROR]
    assert ends.link.held == 0


async def test_the_smallest_records_are_counted_with_what_keeping_them_costs(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_HELD_BYTES", 100 << 10)
    ends.channel.pause_reading()
    kept = 0
    while not ends.link.left:
        ends.deliver(b"")
        kept += 1
    assert kept < 250
    assert ends.link.held == 0


async def test_a_streamed_message_keeps_others_behind_it(ends: Ends) -> None:
    stream = ends.channel.open_stream(10)
    await stream.write(b"01234")
    ends.channel.send((b"behind",))
    assert ends.channel.unsent == 4 + 5 + len(b"behind")
    await stream.close(b"56789")
    ends.link.take(ends.channel)
    assert ends.replies() == [b"0123456789", b"behind"]


async def test_a_streamed_message_that_turns_out_shorter_is_filled_up(ends: Ends) -> None:
    size = 3 * LOW_WATER_BYTES
    stream = ends.channel.open_stream(size)
    writing = asyncio.create_task(stream.close(b"[]"))
    while not writing.done():
        await turn()
        ends.link.take(ends.channel)
    ends.link.take(ends.channel)
    assert ends.replies() == [b"[]".ljust(size)]


async def test_a_piece_waits_for_room_and_for_the_end(ends: Ends) -> None:
    stream = ends.channel.open_stream(1 << 30)
    writing = asyncio.create_task(stream.write(bytes(2 * LOW_WATER_BYTES)))
    await turn()
    assert not writing.done()
    ends.link.take(ends.channel)
    await writing
    writing = asyncio.create_task(stream.write(bytes(2 * LOW_WATER_BYTES)))
    await turn()
    ends.channel.abort()
    with pytest.raises(ConnectionResetError):
        await writing


async def test_abort_offers_what_was_sent_in_this_turn_and_tells_the_peer(ends: Ends) -> None:
    ends.channel.send((b"last words",))
    ends.channel.abort()
    ends.channel.abort()
    assert ends.handler.ends == 0  # not from inside the call
    await turn()
    assert ends.handler.ends == 1
    assert ends.link.left == [CLOSED]
    assert ends.replies() == [b"last words"]


async def test_finish_waits_until_everything_was_taken(ends: Ends) -> None:
    ends.channel.send((bytes(100_000),))
    ends.channel.finish()
    ends.deliver(b"unheard")
    await turn()
    assert (ends.handler.ends, ends.handler.messages, ends.link.left) == (1, [], [])
    ends.link.take(ends.channel)
    assert ends.link.left == [CLOSED]
    assert ends.replies() == [bytes(100_000)]


async def test_finish_does_not_wait_for_ever(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LINGER_SECONDS", 0.001)
    ends.channel.send((b"never taken",))
    ends.channel.finish()
    await asyncio.sleep(0.01)
    assert ends.link.left == [CLOSED]
    assert ends.channel.unsent == 0


async def test_a_stream_that_the_peer_left_is_not_told_so(ends: Ends) -> None:
    ends.channel.send((b"unsent",))
    ends.channel.lost()
    ends.channel.lost()
    await turn()
    assert ends.link.left == [""]
    assert ends.handler.ends == 1


async def test_messages_behind_the_one_that_dropped_the_connection_are_not_delivered(ends: Ends) -> None:
    ends.handler.on_message = lambda _: ends.channel.abort()
    ends.deliver(b"fatal", b"never")
    assert ends.handler.messages == [b"fatal"]
    assert ends.handler.batches == 0


async def test_a_client_that_has_moved_on_is_dropped_by_a_probe(ends: Ends) -> None:
    ends.channel.probe(0)
    assert not ends.link.left
    ends.link.newer = True
    ends.channel.probe(0)
    assert ends.link.left == [CLOSED]


async def test_a_client_that_says_something_is_not_taken_for_one_that_has_moved_on(ends: Ends) -> None:
    ends.link.newer = True
    await asyncio.sleep(0.05)
    ends.deliver(b"here")
    ends.channel.probe(0.05)
    assert not ends.link.left
    await asyncio.sleep(0.05)
    ends.channel.probe(0.05)
    assert ends.link.left == [CLOSED]


async def test_nothing_is_known_of_the_peer(ends: Ends) -> None:
    assert ends.channel.peer_proof is None
    assert ends.channel.peer == "relay:stream-o:ffffffff"
    assert ends.channel.max_reply_bytes == 64 << 20
