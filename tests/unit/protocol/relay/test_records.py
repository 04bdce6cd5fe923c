"""Messages cut into records and put together again, and records put into their order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execprotocol.relay.noise import MAX_RECORD_BYTES
from execprotocol.relay.records import MessageAssembler, RecordError, RecordQueue, Reorder

MIB = 1 << 20


def drained(queue: RecordQueue) -> list[bytes]:
    """Every record that a queue has."""
    records = []
    while (record := queue.take()) is not None:
        records.append(bytes(record))
    return records


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def assembled(records: Sequence[bytes], limit: int = 64 * MIB) -> list[bytes]:
    messages: list[bytes] = []
    assembler = MessageAssembler(lambda message: messages.append(bytes(message)), limit)
    for record in records:
        assembler.feed(record)
    return messages


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces."""
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(borders)]


messages_of_any_size = st.lists(st.binary(max_size=40), max_size=12)


# -- a queue of records


def test_a_small_message_is_one_record_with_its_length_before_it() -> None:
    queue = RecordQueue()
    queue.put([b"mess", b"age"])
    assert queue.unsent == 11
    assert drained(queue) == [b"\0\0\0\x07message"]
    assert queue.unsent == 0


def test_an_empty_queue_has_no_record() -> None:
    queue = RecordQueue()
    assert queue.take() is None
    queue.put([b"message"])
    queue.take()
    assert queue.take() is None


def test_messages_that_wait_share_a_record() -> None:
    queue = RecordQueue()
    for message in (b"one", b"", b"three"):
        queue.put([message])
    assert drained(queue) == [framed(b"one", b"", b"three")]


def test_a_message_without_parts_or_content_is_just_its_length() -> None:
    queue = RecordQueue()
    queue.put([])
    queue.put([b"", b""])
    assert drained(queue) == [bytes(8)]


@pytest.mark.parametrize("beyond", [-5, -4, -3, -1, 0, 1])
def test_a_message_around_the_size_of_a_record_is_cut_where_it_must_be(beyond: int) -> None:
    message = os.urandom(MAX_RECORD_BYTES + beyond)
    queue = RecordQueue()
    queue.put([message])
    records = drained(queue)
    assert [len(record) for record in records[:-1]] == [MAX_RECORD_BYTES] * (len(records) - 1)
    assert len(records) == (1 if beyond <= -4 else 2)
    assert b"".join(records) == framed(message)


def test_a_large_message_fills_every_record_but_the_last() -> None:
    message = os.urandom(3 * MIB)
    queue = RecordQueue()
    queue.put([message[:MIB], b"", message[MIB : MIB + 1], message[MIB + 1 :]])
    assert queue.unsent == 3 * MIB + 4
    records = drained(queue)
    assert {len(record) for record in records[:-1]} == {MAX_RECORD_BYTES}
    assert b"".join(records) == framed(message)


def test_a_message_may_come_in_pieces_behind_its_length() -> None:
    queue = RecordQueue()
    queue.put_head(6)
    assert bytes(queue.take() or b"") == b"\0\0\0\x06"
    queue.put_raw(b"mess")
    queue.put_raw(b"")
    assert drained(queue) == [b"mess"]
    queue.put_raw(b"ag")
    queue.put([b"next"])
    assert drained(queue) == [b"ag" + framed(b"next")]


def test_a_queue_that_was_cleared_has_nothing() -> None:
    queue = RecordQueue()
    queue.put([bytes(2 * MAX_RECORD_BYTES)])
    queue.take()
    queue.clear()
    assert (queue.take(), queue.unsent) == (None, 0)


@given(st.lists(st.one_of(st.just(-1), st.integers(0, 150)), max_size=30))
def test_putting_and_taking_in_any_order_loses_nothing(steps: list[int]) -> None:
    queue, records, wanted = RecordQueue(), [], b""
    for number, step in enumerate(steps):
        if step < 0:
            record = queue.take()
            records += [] if record is None else [bytes(record)]
            continue
        message = bytes([number]) * step * 1000
        queue.put([message[: step * 300], message[step * 300 :]])
        wanted += framed(message)
        assert queue.unsent == len(wanted) - sum(map(len, records))
    records += drained(queue)
    assert b"".join(records) == wanted
    assert all(0 < len(record) <= MAX_RECORD_BYTES for record in records)


# -- messages put together


@given(messages_of_any_size, st.lists(st.integers(0, 1000), max_size=20))
def test_messages_come_back_wherever_their_bytes_are_cut(messages: list[bytes], places: list[int]) -> None:
    assert assembled(cut(framed(*messages), places)) == messages


@given(messages_of_any_size)
def test_messages_come_back_byte_by_byte(messages: list[bytes]) -> None:
    assert assembled([bytes([byte]) for byte in framed(*messages)]) == messages


@given(st.lists(st.binary(max_size=300_000), max_size=4))
@settings(max_examples=20)
def test_what_a_queue_cuts_is_put_together_again(messages: list[bytes]) -> None:
    queue = RecordQueue()
    for message in messages:
        queue.put([message])
    assert assembled(drained(queue)) == messages


def test_a_message_is_delivered_with_its_last_byte_and_not_before() -> None:
    got: list[bytes] = []
    assembler = MessageAssembler(lambda message: got.append(bytes(message)))
    stream = framed(b"one", b"", b"two")
    seen = []
    for byte in stream:
        assembler.feed(bytes([byte]))
        seen.append(len(got))
    assert seen == [0] * 6 + [1] * 4 + [2] + [2] * 6 + [3]


def test_a_message_of_no_bytes_is_a_message() -> None:
    assert assembled([bytes(4)]) == [b""]
    assert assembled([bytes(2), bytes(6)]) == [b"", b""]


def test_a_record_of_no_bytes_changes_nothing() -> None:
    stream = framed(b"one", b"two")
    assert assembled([b"", stream[:3], b"", stream[3:6], b"", stream[6:], b""]) == [b"one", b"two"]


def test_a_message_as_large_as_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    assert assembled([framed(bytes(100))], limit=100) == [bytes(100)]
    with pytest.raises(RecordError, match=r"101 bytes.*100"):
        assembled([framed(bytes(101))], limit=100)


def test_a_message_too_large_is_refused_by_its_length_alone() -> None:
    with pytest.raises(RecordError):
        assembled([b"\0\0", b"\0\x65"], limit=100)


@pytest.mark.statement("R45")
def test_without_another_limit_a_message_has_64_mib() -> None:
    with pytest.raises(RecordError, match=str(64 * MIB)):
        MessageAssembler(lambda _: None).feed((64 * MIB + 1).to_bytes(4, "big"))
    assembler = MessageAssembler(lambda _: None)
    assembler.feed((64 * MIB).to_bytes(4, "big") + b"begun")
    assert assembler.held == 5


def test_a_length_announced_does_not_take_its_memory() -> None:
    assembler = MessageAssembler(lambda _: None)
    assembler.feed((64 * MIB).to_bytes(4, "big"))
    assert assembler.held == 0


def test_what_is_before_a_message_too_large_is_delivered() -> None:
    got: list[bytes] = []
    assembler = MessageAssembler(lambda message: got.append(bytes(message)), 100)
    with pytest.raises(RecordError):
        assembler.feed(framed(b"one", bytes(101)))
    assert got == [b"one"]


def test_a_message_that_is_kept_does_not_change_when_more_comes() -> None:
    kept: list[bytes | bytearray] = []
    assembler = MessageAssembler(kept.append)
    stream = framed(b"a" * 50, b"b" * 50, b"c")
    for record in cut(stream, [20, 60, 100]):
        assembler.feed(record)
    assert [bytes(message) for message in kept] == [b"a" * 50, b"b" * 50, b"c"]


def test_a_giant_message_arrives_whole() -> None:
    message = os.urandom(MIB) * 8
    queue = RecordQueue()
    queue.put([message])
    assert assembled(drained(queue)) == [message]


# -- records in their order


def numbered(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, str(number).encode()) for number in numbers]


def accepted(reorder: Reorder, *numbers: int) -> list[int]:
    return [int(bytes(one)) for seq, text in numbered(*numbers) for one in reorder.accept(seq, text)]


def test_records_in_order_go_through_at_once() -> None:
    reorder = Reorder()
    for number in range(200):
        assert accepted(reorder, number) == [number]


@pytest.mark.statement("R42")
def test_a_record_that_comes_again_is_ignored() -> None:
    reorder = Reorder()
    assert accepted(reorder, 0, 0, 1, 0, 1, 2) == [0, 1, 2]
    assert accepted(reorder, 4, 4) == []
    assert accepted(reorder, 3, 4, 3) == [3, 4]


def test_of_two_records_with_one_number_the_first_counts() -> None:
    reorder = Reorder()
    assert list(reorder.accept(1, b"first")) == []
    assert list(reorder.accept(1, b"second")) == []
    assert [bytes(one) for one in reorder.accept(0, b"zero")] == [b"zero", b"first"]


@given(st.permutations(range(20)), st.lists(st.integers(0, 19), max_size=10))
def test_records_in_any_order_come_out_in_theirs(order: list[int], again: list[int]) -> None:
    reorder = Reorder()
    mixed = list(order)
    for place, number in enumerate(again):
        mixed.insert(place * 2, number)
    assert accepted(reorder, *mixed) == list(range(20))


@pytest.mark.statement("R42")
def test_a_record_64_ahead_waits_and_one_65_ahead_ends_the_stream() -> None:
    reorder = Reorder()
    assert accepted(reorder, *range(10)) == list(range(10))
    assert accepted(reorder, 10 + 64) == []
    with pytest.raises(RecordError, match=r"75.*10"):
        accepted(reorder, 10 + 65)


def test_a_whole_window_waits_for_one_record() -> None:
    reorder = Reorder()
    assert accepted(reorder, *range(64, 0, -1)) == []
    assert accepted(reorder, 0) == list(range(65))
    assert accepted(reorder, 65 + 64) == []


def test_the_largest_number_of_the_wire_ends_the_stream() -> None:
    with pytest.raises(RecordError):
        Reorder().accept(2**32 - 1, b"x")


@pytest.mark.statement("R42")
def test_one_mib_may_wait_and_not_a_byte_more() -> None:
    reorder = Reorder()
    for seq in range(1, 17):
        assert list(reorder.accept(seq, bytes(MIB // 16))) == []
    assert list(reorder.accept(8, bytes(MIB))) == []
    with pytest.raises(RecordError, match="wait for record 0"):
        reorder.accept(17, b"x")


def test_what_was_delivered_waits_no_more() -> None:
    reorder = Reorder()
    for begin in range(0, 30, 2):
        assert list(reorder.accept(begin + 1, bytes(MIB))) == []
        assert [len(one) for one in reorder.accept(begin, b"x")] == [1, MIB]


def test_a_record_that_waits_does_not_hold_on_to_the_buffer_that_it_came_in() -> None:
    reorder = Reorder()
    message = bytearray(b"early")
    reorder.accept(1, memoryview(message))
    message[:] = b"other"
    assert [bytes(one) for one in reorder.accept(0, b"zero")] == [b"zero", b"early"]
