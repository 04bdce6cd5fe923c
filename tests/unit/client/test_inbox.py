from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from execclient import Chunk, OutputGap, SessionLost
from execclient.session.inbox import Inbox


def output(seq: int, data: bytes, **members: Any) -> tuple[str, dict[str, Any]]:
    chunk = base64.b64encode(data).decode()
    return "process/output", {"processId": "p", "seq": seq, "stream": "stdout", "chunk": chunk, **members}


def exited(seq: int, code: int = 0) -> tuple[str, dict[str, Any]]:
    return "process/exited", {"processId": "p", "seq": seq, "exitCode": code, "sandboxDenied": False}


def closed(seq: int) -> tuple[str, dict[str, Any]]:
    return "process/closed", {"processId": "p", "seq": seq}


def page(
    *chunks: tuple[int, bytes], next_seq: int, code: int | None = None, **members: Any
) -> dict[str, Any]:
    return {
        "chunks": [
            {"seq": seq, "stream": "stdout", "chunk": base64.b64encode(data).decode()} for seq, data in chunks
        ],
        "nextSeq": next_seq,
        "exited": code is not None,
        "exitCode": code,
        "closed": False,
        **members,
    }


def inbox(limit: int | None = None) -> Inbox:
    made = Inbox("p", limit)
    made.started = True
    return made


def data(box: Inbox) -> list[bytes | int | None]:
    """All that waits: data of chunks, and the sizes of gaps."""
    return [piece.data if isinstance(piece, Chunk) else piece.lost_bytes for piece in box.take_all()]


def test_events_in_order_are_delivered_at_once() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.push(*exited(2, 7))
    box.push(*output(3, b"b"))
    box.push(*closed(4))

    assert data(box) == [b"a", b"b"]
    assert (box.exit_code, box.closed, box.last_seq) == (7, True, 4)


def test_an_event_that_was_seen_is_dropped() -> None:
    box = inbox()
    for event in (output(1, b"a"), output(1, b"a"), output(2, b"b"), output(1, b"a")):
        box.push(*event)

    assert data(box) == [b"a", b"b"]


def test_what_is_pushed_after_a_cut_waits_for_the_page_before_it() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.hold()
    box.push(*output(4, b"d"))
    box.push(*output(5, b"e"))
    assert data(box) == [b"a"]

    box.fill(page((2, b"b"), (3, b"c"), (4, b"d"), next_seq=5))
    box.release()

    assert data(box) == [b"b", b"c", b"d", b"e"]


def test_the_page_after_a_cut_may_hold_the_end() -> None:
    box = inbox()
    box.hold()
    box.fill(page((1, b"a"), (3, b"b"), next_seq=5, code=3, closed=True))
    box.release()

    assert data(box) == [b"a", b"b"]
    assert (box.exit_code, box.closed, box.last_seq) == (3, True, 4)


def test_a_cut_in_the_middle_of_a_recovery_keeps_what_the_page_gave() -> None:
    box = inbox()
    box.hold()
    box.fill(page((1, b"a"), next_seq=2))
    box.hold()
    box.push(*output(2, b"b"))
    box.fill(page((2, b"b"), (3, b"c"), next_seq=4))
    box.release()

    assert data(box) == [b"a", b"b", b"c"]


def test_output_that_a_page_states_as_lost_is_a_gap_before_the_rest() -> None:
    box = inbox()
    box.hold()
    box.fill(page((1, b""), (2, b""), (3, b"c"), next_seq=4, lostBytes=70, firstSeq=3))
    box.release()

    assert data(box) == [70, b"c"]


def test_output_that_an_event_states_as_lost_is_a_gap_at_its_place() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.push(*output(2, b""))
    box.push(*output(3, b"c", lostBytes=9, firstSeq=3))

    assert data(box) == [b"a", 9, b"c"]


def test_a_large_gap_is_a_jump_of_the_numbers_and_stated_once() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.push(*output(20_000, b"z", lostBytes=9, firstSeq=20_000))

    assert data(box) == [b"a", 9, b"z"]


def test_what_a_jump_of_the_numbers_left_out_is_asked_for_once() -> None:
    box = inbox()
    asked = [box.push(*event) for event in (output(1, b"a"), output(3, b"c"), output(5, b"e"))]
    assert asked == [False, True, False]
    assert not box.push(*output(2, b"b"))  # it was only late
    assert data(box) == [b"a"]

    box.fill(page((2, b"b"), (3, b"c"), next_seq=4))
    box.release()
    assert data(box) == [b"b", b"c", None, b"e"]
    assert not box.push(*output(4, b"d"))
    assert not box.push(*output(6, b"f"))
    assert data(box) == [b"f"]


def test_a_jump_that_is_explained_is_not_asked_about() -> None:
    box = inbox()
    assert not box.push(*output(9, b"z", lostBytes=70, firstSeq=9))
    assert data(box) == [70, b"z"]


def test_an_end_that_comes_before_the_last_output_is_told_behind_it() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    assert box.push(*closed(4))
    assert not box.push(*exited(3, 7))
    assert not box.push(*output(2, b"b"))
    assert (data(box), box.exit_code, box.closed) == ([b"a"], None, False)

    box.fill(page((2, b"b"), next_seq=5, code=7, closed=True))
    box.release()
    assert (data(box), box.exit_code, box.closed) == ([b"b"], 7, True)


def test_what_a_page_begins_behind_is_a_gap_though_it_does_not_say_so() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.hold()
    box.fill(page((5, b"e"), next_seq=6))
    box.release()
    assert data(box) == [b"a", None, b"e"]


@pytest.mark.parametrize("told_by", ["the page", "an earlier page", "no page yet"])
def test_the_number_of_the_exit_is_no_gap(told_by: str) -> None:
    box = inbox()
    box.reports_losses = told_by == "no page yet"  # a long page of execserver does not report it
    box.push(*output(1, b"a"))
    box.hold()
    if told_by == "an earlier page":
        box.fill(page(next_seq=2, code=0))
    box.fill(page((3, b"c"), next_seq=4, code=None if told_by == "no page yet" else 0))
    box.release()
    assert data(box) == [b"a", b"c"]


def test_the_exit_has_one_number_and_no_more() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.hold()
    box.fill(page((3, b"c"), next_seq=4, code=0))
    box.fill(page((5, b"e"), next_seq=6, code=0))
    assert data(box) == [b"a", b"c", None, b"e"]


def test_an_exit_that_only_a_page_told_of_is_no_gap_in_front_of_an_event() -> None:
    box = inbox()
    box.hold()
    box.fill(page((1, b"a"), next_seq=2, code=0))
    box.release()
    assert not box.push(*output(3, b"c"))  # 2 was the exit, sent to a connection that was lost
    assert data(box) == [b"a", b"c"]
    assert box.push(*output(5, b"e"))


def test_what_was_pushed_out_of_order_meanwhile_is_known_to_lack_something() -> None:
    box = inbox()
    box.hold()
    box.push(*output(2, b"b"))
    assert box.has_gaps()
    box.fill(page((1, b"a"), next_seq=2))
    assert not box.has_gaps()
    box.push(*output(4, b"d"))
    assert box.has_gaps()
    box.push(*output(3, b"c"))
    assert not box.has_gaps()
    box.push(*output(9, b"i", lostBytes=5, firstSeq=9))
    assert not box.has_gaps()
    box.push(*exited(11))
    assert box.has_gaps()
    box.push(*output(10, b"j"))
    assert not box.has_gaps()
    box.release()
    assert data(box) == [b"a", b"b", b"c", b"d", 5, b"i", b"j"]


def test_what_was_only_late_is_not_taken_for_lost_where_the_server_has_dropped_it() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    for event in (exited(3), output(2, b"b"), output(4, b"d"), output(5, b"e")):
        box.push(*event)
    box.fill(page((5, b"e"), (6, b"f"), next_seq=7, code=0))
    box.release()
    assert data(box) == [b"a", b"b", b"d", b"e", b"f"]

    box = inbox()
    for event in (output(2, b"b"), output(1, b"a"), output(3, b"c")):
        box.push(*event)
    box.fill(page((3, b"c"), next_seq=4))
    box.release()
    assert data(box) == [b"a", b"b", b"c"]


def test_nothing_comes_behind_the_end() -> None:
    box = inbox()
    box.hold()
    box.push(*closed(9))
    box.fill(page((6, b"f"), (7, b"g"), next_seq=8, code=0, closed=True))
    box.release()
    assert (data(box), box.closed) == ([None, b"f", b"g"], True)


def test_a_page_that_comes_late_brings_nothing_twice() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.fill(page((1, b"a"), (2, b"b"), next_seq=3))
    assert data(box) == [b"a", b"b"]


def test_beyond_its_limit_an_inbox_drops_the_oldest_and_says_how_much() -> None:
    box = inbox(limit=4)
    for seq, piece in enumerate((b"aa", b"bb", b"c", b"ddd"), start=1):
        box.push(*output(seq, piece))

    assert data(box) == [4, b"c", b"ddd"]


async def test_iteration_goes_on_after_a_gap() -> None:
    box = inbox()
    box.push(*output(1, b"a", lostBytes=5))
    box.push(*closed(2))

    with pytest.raises(OutputGap) as raised:
        await box.take()
    assert raised.value.lost_bytes == 5
    assert await box.take() == Chunk("stdout", b"a")
    with pytest.raises(StopAsyncIteration):
        await box.take()


async def test_what_arrived_can_be_taken_before_the_failure_is_told() -> None:
    box = inbox()
    box.push(*output(1, b"a"))
    box.fail(SessionLost("gone"))

    assert await box.take() == Chunk("stdout", b"a")
    with pytest.raises(SessionLost):
        await box.take()
    with pytest.raises(SessionLost):
        await box.until_exited()


def test_a_state_tells_the_end_at_once_but_the_closing_only_behind_all_events() -> None:
    box = inbox()
    box.update_state({"nextSeq": 4, "exited": True, "exitCode": 3, "closed": True, "cause": "normal"})
    assert (box.exit_code, box.cause, box.closed) == (3, "normal", False)

    box.push(*output(1, b"a"))
    box.push(*exited(2, 3))
    box.push(*closed(3))
    assert (data(box), box.closed) == ([b"a"], True)


def test_one_that_begins_behind_all_events_is_closed_by_the_state() -> None:
    box = Inbox("p", None, after_seq=3)
    box.update_state({"nextSeq": 4, "exited": True, "exitCode": 0, "closed": True})

    assert (box.exit_code, box.closed) == (0, True)


def test_why_we_killed_a_process_is_its_cause_unless_it_had_ended_well() -> None:
    killed, ended = inbox(), inbox()
    for box, code in ((killed, 137), (ended, 0)):
        box.forced_cause = "timeout"
        box.push(*exited(1, code))

    assert (killed.cause, ended.cause) == ("timeout", None)
    assert (killed.exit_code, ended.exit_code) == (124, 0)


def test_every_end_of_a_process_that_was_warned_is_for_the_limit() -> None:
    for code in (0, 3, 143):
        box = inbox()
        box.forced_cause, box.warned = "idleTimeout", True
        box.push(*exited(1, code))
        assert (box.cause, box.exit_code) == ("idleTimeout", 124)


def test_a_sink_gets_every_piece_at_once_and_nothing_waits() -> None:
    pieces: list[Chunk | OutputGap] = []
    box = Inbox("p", 1, sink=pieces.append)
    box.push(*output(1, b"abc"))
    box.push(*output(3, b"d", lostBytes=7))

    assert [type(piece) for piece in pieces] == [Chunk, OutputGap, Chunk]
    assert box.take_all() == []


async def test_every_waiter_is_woken_and_a_cancelled_one_harms_no_other() -> None:
    box = inbox()
    waiting = [asyncio.create_task(box.until_exited()) for _ in range(3)]
    assert not await box.exits_within(0.01)
    waiting[0].cancel()
    await asyncio.sleep(0)
    box.push(*exited(1, 5))

    assert await asyncio.gather(*waiting[1:]) == [5, 5]
    assert await box.exits_within(0.01)
