"""From the log to events: order, gaps, windows and what a resume holds back."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from execprotocol.limits import MAX_FILLED_GAP
from execserver.processes.output_log import OutputLog
from execserver.processes.process import ManagedProcess
from execserver.sessions.event_stream import GRACE_SECONDS, HOLD_SECONDS, WINDOW_BYTES, EventStream, Hold
from execserver.sessions.session import Attachment, Session
from execserver.spool.arena import IndexArena
from execserver.spool.spool import Spool, SpoolBudget, SpoolLimits


def log_in_memory(retained: int) -> OutputLog:
    limits = SpoolLimits()
    return OutputLog(
        IndexArena.create().open(1),
        Spool(None, limits),
        SpoolBudget(limits),
        retained,
        lambda _slot, _fd: None,
    )


class FakeProcess:
    """The part of a process that a stream reads, without a process."""

    def __init__(self, retained: int = 1 << 20) -> None:
        self.log = log_in_memory(retained)
        self.wire_id = b'"p"'
        self.number = 1
        self.streams = ("stdout", "stderr")
        self.exit_code: int | None = None
        self.sandbox_denied = False
        self.sandbox = None
        self.limits = None
        self.cause: str | None = None
        self.exited_seq: int | None = None
        self.closed_seq: int | None = None
        self.subscribers: list[EventStream] = []
        self.paused = False
        self.output = SimpleNamespace(pacing=None)

    def write(self, data: bytes) -> None:
        read, write = os.pipe()
        os.write(write, data)
        self.log.take("stdout", read)
        os.close(read)
        os.close(write)
        self.wake()
        self.log.trim()

    def denial(self) -> dict[str, object] | None:
        return {"likely": self.sandbox_denied, "evidence": []} if self.sandbox_denied else None

    def finish(self, code: int = 0) -> None:
        self.exit_code = code
        self.exited_seq = self.log.number_event("exited")
        self.closed_seq = self.log.number_event("closed")
        self.wake()

    def wake(self) -> None:
        for subscriber in tuple(self.subscribers):
            subscriber.wake()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.output = SimpleNamespace(pacing=None)


class RecordingSink:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.room = True
        self.behind: list[EventStream] = []

    def may_queue_event(self) -> bool:
        return self.room

    def progress(self) -> int:
        return 0

    def send_event(self, parts: Sequence[bytes]) -> None:
        self.events.append(json.loads(b"".join(parts)))

    def fell_behind(self, stream: EventStream) -> None:
        self.behind.append(stream)

    def numbers(self) -> list[int]:
        return [event["params"]["seq"] for event in self.events]

    def output(self) -> bytes:
        chunks = (event["params"].get("chunk", "") for event in self.events)
        return b"".join(base64.b64decode(chunk) for chunk in chunks)


def stream_of(
    process: FakeProcess, sink: RecordingSink, cursor: int = 0, hold: Hold | None = None
) -> EventStream:
    return EventStream(cast("ManagedProcess", process), sink, cursor, lambda: None, hold)


def test_every_number_is_sent_once_in_order() -> None:
    process, sink = FakeProcess(), RecordingSink()
    stream_of(process, sink)
    process.write(b"a")
    process.write(b"b")
    process.finish(3)
    assert [event["method"] for event in sink.events] == [
        "process/output",
        "process/output",
        "process/exited",
        "process/closed",
    ]
    assert sink.numbers() == [1, 2, 3, 4]
    assert sink.events[2]["params"] == {"processId": "p", "seq": 3, "exitCode": 3, "sandboxDenied": False}
    assert not process.subscribers, "after the last event nobody follows"


@pytest.mark.parametrize("extensions", [False, True])
def test_evidence_of_a_denial_goes_to_those_who_asked_for_extensions(extensions: bool) -> None:
    process, sink = FakeProcess(), RecordingSink()
    EventStream(cast("ManagedProcess", process), sink, 0, lambda: None, extensions=extensions)
    process.sandbox_denied = True
    process.finish(1)
    exited = sink.events[0]["params"]
    assert exited["sandboxDenied"] is True
    assert ("denial" in exited) is extensions


async def test_without_room_nothing_is_sent_and_the_child_is_paced() -> None:
    process, sink = FakeProcess(), RecordingSink()
    stream = stream_of(process, sink)
    sink.room = False
    process.write(b"a")
    assert (sink.events, process.paused, sink.behind) == ([], True, [stream])
    sink.room = True
    assert stream.pump()
    assert (sink.output(), process.paused) == (b"a", False)


async def test_a_reader_that_makes_no_progress_does_not_hold_the_child() -> None:
    process, sink = FakeProcess(retained=10), RecordingSink()
    stream = stream_of(process, sink)
    sink.room = False
    process.write(b"aaaa")
    await asyncio.sleep(GRACE_SECONDS + 0.1)
    process.write(b"bbbb")
    assert not process.paused, "a stalled reader paces nobody until it has caught up"
    sink.room = True
    stream.pump()
    sink.room = False
    process.write(b"c")
    paused: bool = process.paused
    assert paused, "having caught up it paces again"
    stream.close()


async def test_what_was_dropped_is_stated_number_by_number_and_in_bytes() -> None:
    process, sink = FakeProcess(retained=4), RecordingSink()
    stream = stream_of(process, sink)
    sink.room = False
    for letter in (b"aaa", b"bbb", b"cc"):
        process.write(letter)
    process.finish()
    sink.room = True
    stream.pump()
    assert sink.numbers() == [1, 2, 3, 4, 5]
    first = next(event["params"] for event in sink.events if event["params"].get("chunk"))
    assert (first["seq"], first["lostBytes"], first["firstSeq"]) == (3, 6, 3)
    assert [event["params"].get("lostBytes") for event in sink.events] == [None, None, 6, None, None]
    assert sink.output() == b"cc"


async def test_when_nothing_is_left_the_loss_is_stated_with_the_end() -> None:
    process, sink = FakeProcess(retained=0), RecordingSink()
    stream = stream_of(process, sink)
    sink.room = False
    process.write(b"gone")
    process.finish()
    sink.room = True
    stream.pump()
    assert [event["params"].get("lostBytes") for event in sink.events] == [None, 4, None]


async def test_a_very_large_gap_is_stated_once() -> None:
    process, sink = FakeProcess(retained=1), RecordingSink()
    stream = stream_of(process, sink)
    sink.room = False
    for _ in range(MAX_FILLED_GAP + 5):
        process.write(b"x")
    sink.room = True
    stream.pump()
    assert sink.numbers() == [MAX_FILLED_GAP + 5]
    assert sink.events[0]["params"]["lostBytes"] == MAX_FILLED_GAP + 4


def test_a_stream_that_begins_at_the_head_says_nothing_of_what_was_before() -> None:
    process, sink = FakeProcess(), RecordingSink()
    process.write(b"before")
    stream_of(process, sink, process.log.next_seq - 1)
    process.write(b"after")
    assert (sink.numbers(), sink.output()) == ([2], b"after")


async def test_after_a_resume_events_wait_for_the_first_read() -> None:
    process, sink = FakeProcess(), RecordingSink()
    process.write(b"before")
    stream = stream_of(process, sink, process.log.next_seq - 1, Hold.RESUME)
    process.write(b"between")
    assert sink.events == []
    page = process.log.read(0, None, 1 << 20)
    stream.answered(page, process.log.next_seq)
    process.write(b"after")
    assert (sink.numbers(), sink.output()) == ([3], b"after"), "what the read covered is not sent again"


async def test_what_a_cut_page_did_not_cover_is_pushed() -> None:
    process, sink = FakeProcess(), RecordingSink()
    for piece in (b"one", b"two", b"three"):
        process.write(piece)
    stream = stream_of(process, sink, process.log.next_seq - 1, Hold.RESUME)
    page = process.log.read(0, None, 3)
    stream.answered(page, page.chunks[-1].seq + 1)
    assert (sink.numbers(), sink.output()) == ([2, 3], b"twothree")


async def test_without_a_read_events_are_held_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    process, sink = FakeProcess(), RecordingSink()
    attachment = Attachment(cast("Any", [process]), sink, lambda: None, resumed=True)
    process.write(b"held")
    assert sink.events == []
    await asyncio.sleep(HOLD_SECONDS + 0.1)
    assert sink.output() == b"held"
    attachment.close()


async def test_processes_that_are_behind_take_turns() -> None:
    processes = [FakeProcess(), FakeProcess()]
    processes[1].number, processes[1].wire_id = 2, b'"q"'
    sink = RecordingSink()
    attachment = Attachment(cast("Any", []), sink, lambda: None, resumed=False)

    def fell_behind(stream: EventStream) -> None:
        attachment.fell_behind(stream)

    sink.fell_behind = fell_behind  # type: ignore[method-assign]
    for process in processes:
        attachment.follow(cast("ManagedProcess", process))()
    sink.room = False
    for process in processes:
        for _ in range(3):
            process.write(b"x")
    sink.room = True
    attachment.drained()
    assert [event["params"]["processId"] for event in sink.events] == ["p", "q"] * 3
    attachment.close()


async def test_until_its_start_is_answered_a_process_is_followed_in_silence() -> None:
    process, sink = FakeProcess(), RecordingSink()
    attachment = Attachment(cast("Any", []), sink, lambda: None, resumed=False)
    release = attachment.follow(cast("ManagedProcess", process))
    process.write(b"early")
    assert (sink.events, process.paused) == ([], False)
    for _ in range(WINDOW_BYTES // 32768):
        process.write(bytes(32768))
    assert process.paused, "more than a window waits: the child does too, for a while"
    release()
    assert (len(sink.output()), process.paused) == (len(b"early") + WINDOW_BYTES, False)


class ForeignProcess(FakeProcess):
    """One of another session."""

    def __init__(self, retained: int = 1 << 20) -> None:
        super().__init__(retained)
        self.process_id = "p"
        self.started = SimpleNamespace(session="theirs")


def observing(process: ForeignProcess, sink: RecordingSink, after_seq: int = 0) -> Attachment:
    attachment = Attachment(cast("Any", []), sink, lambda: None, resumed=False)

    def fell_behind(stream: EventStream) -> None:
        attachment.fell_behind(stream)

    sink.fell_behind = fell_behind  # type: ignore[method-assign]
    attachment.observe(cast("ManagedProcess", process), after_seq, "mine", interactive=False)()
    return attachment


@pytest.mark.parametrize("read", [True, False])
async def test_a_process_that_starts_without_its_connection_is_followed_by_the_one_that_resumed(
    read: bool,
) -> None:
    session = Session("s", cast("Any", []), cast("Any", None))
    asked = session.attach(RecordingSink(), resumed=False)
    asked.close()
    sink, process = RecordingSink(), FakeProcess()
    resumed = session.attach(sink, resumed=True)
    session.follow(cast("ManagedProcess", process), asked)()
    process.write(b"a")
    assert not sink.events
    if read:
        resumed.answered(cast("ManagedProcess", process), process.log.read(0, None, 1 << 20), 2)
    process.write(b"b")
    process.finish()
    await asyncio.sleep(HOLD_SECONDS + 0.1)
    assert sink.output() == (b"b" if read else b"ab")
    assert sink.events[-1]["method"] == "process/closed"


async def test_a_process_that_starts_in_a_detached_session_is_followed_by_none() -> None:
    session, process = Session("s", cast("Any", []), cast("Any", None)), FakeProcess()
    asked = session.attach(RecordingSink(), resumed=False)
    asked.close()
    session.follow(cast("ManagedProcess", process), asked)()
    assert process.subscribers == []


async def test_an_observer_never_holds_the_child_back() -> None:
    process, sink = ForeignProcess(retained=10), RecordingSink()
    sink.room = False
    attachment = observing(process, sink)
    for _ in range(3):
        process.write(b"aaaa")
    assert not process.paused
    sink.room = True
    attachment.drained()
    assert [event["params"].get("lostBytes") for event in sink.events] == [None, 4, None]
    sink.room = False
    process.write(b"b")
    assert not process.paused, "not even after it had caught up"
    attachment.close()
    assert not process.subscribers


async def test_an_observed_child_that_runs_free_takes_its_turn_like_others() -> None:
    free, other, sink = ForeignProcess(), ForeignProcess(), RecordingSink()
    other.process_id, other.number, other.wire_id = "other", 2, b'"other"'
    attachment = observing(free, sink)
    attachment.observe(cast("ManagedProcess", other), 0, "mine", interactive=False)()
    sink.room = False
    free.write(b"1")
    other.write(b"2")
    sink.room = True
    for _ in range(3):
        free.write(b"3")
    assert not sink.events, "there is some room, but the turn of nobody"
    attachment.drained()
    assert [event["params"]["processId"] for event in sink.events] == ["p", "other", "p", "p", "p"]
    free.write(b"4")
    assert sink.output() == b"123334"


async def test_a_cursor_behind_a_gap_knows_what_it_lacks() -> None:
    process, sink = ForeignProcess(retained=4), RecordingSink()
    for letter in (b"aaa", b"bbb", b"cc", b"dd"):
        process.write(letter)
    observing(process, sink, 1)
    assert sink.numbers() == [2, 3, 4]
    assert [event["params"].get("lostBytes") for event in sink.events] == [None, 3, None]
    assert all(event["params"]["sessionId"] == "theirs" for event in sink.events)


async def test_ten_thousand_subscriptions_leave_nothing() -> None:
    process, sink = ForeignProcess(), RecordingSink()
    attachment = observing(process, sink)
    for round_number in range(10_000):
        # Some fall behind, some are replaced, some are closed before they send anything.
        sink.room = round_number % 3 > 0
        release = attachment.observe(
            cast("ManagedProcess", process), 0, "mine", interactive=round_number % 2 > 0
        )
        if round_number % 100 == 0:
            process.write(b"x")
        if round_number % 5:
            release()
        if round_number % 7:
            attachment.unobserve("theirs", "p")
            release()
        assert len(process.subscribers) <= 1
    attachment.unobserve("theirs", "p")
    assert not process.subscribers
    del release
    gc.collect()
    streams = [each for each in gc.get_objects() if isinstance(each, EventStream)]
    assert not [each for each in streams if cast("Any", each.process) is process]
    sent = len(sink.events)
    process.write(b"y")
    assert len(sink.events) == sent
    attachment.close()


async def test_a_subscription_in_a_batch_that_is_withdrawn_sends_nothing() -> None:
    process, sink = ForeignProcess(), RecordingSink()
    process.write(b"x")
    attachment = Attachment(cast("Any", []), sink, lambda: None, resumed=False)
    release = attachment.observe(cast("ManagedProcess", process), 0, "mine", interactive=False)
    attachment.unobserve("theirs", "p")
    release()
    assert not sink.events
    attachment.close()
    release = attachment.observe(cast("ManagedProcess", process), 0, "mine", interactive=False)
    release()
    assert not sink.events, "nor does one on a connection that is gone"
    assert not process.subscribers
