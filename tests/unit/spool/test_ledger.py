"""The ledger against a model, cut at every byte, and killed while it is written."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.spool.forgotten import KEPT_MS, KEPT_OF_A_REASON, ForgettingReason, ForgottenProcess
from execserver.spool.ledger import COMPACTION_BYTES, Ledger
from execserver.spool.records import (
    KEPT_SIZES,
    REMEMBERED_WRITES,
    AnyRecord,
    Closed,
    Ending,
    Exited,
    Forgotten,
    Numbered,
    Resized,
    Service,
    SessionEnded,
    SessionEnding,
    SessionOpened,
    SessionState,
    SessionTtl,
    Started,
    State,
    StdinClosed,
    Written,
    stored_write_id,
)


def started(number: int, session: str = "s") -> Started:
    return Started(number, session, f"p{number}", 100 + number, False, True, 1.5)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger.create()
    yield ledger
    ledger.close()


def content(ledger: Ledger) -> bytes:
    return os.pread(ledger.fd, 1 << 24, 0)


def reopened(content: bytes) -> Ledger:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(fd, content)
    return Ledger(fd)


def replayed(content: bytes) -> State:
    ledger = reopened(content)
    try:
        return ledger.replay()
    finally:
        ledger.close()


# -- what records say

numbers = st.integers(1, 4)
names = st.sampled_from(["a", "b", "c", "two\nlines", "ü\x00"])
times = st.floats(0, 1e9)
reasons: st.SearchStrategy[ForgettingReason] = st.sampled_from(
    ["sessionExpired", "sessionEnded", "processExpired"]
)
records: st.SearchStrategy[AnyRecord] = st.one_of(
    st.builds(SessionOpened, names),
    st.builds(SessionEnded, names),
    st.builds(
        Started,
        numbers,
        names,
        names,
        st.integers(1, 1 << 22),
        st.booleans(),
        st.booleans(),
        times,
        st.none() | times,
        st.none() | times,
        st.none() | st.dictionaries(names, names),
        st.none() | st.dictionaries(names, st.lists(names) | st.integers(0, 9) | st.none()),
    ),
    st.builds(Written, numbers, names, st.integers(0, 1 << 50)),
    st.builds(StdinClosed, numbers),
    st.builds(Ending, numbers, names),
    st.builds(Exited, numbers, st.integers(0, 255), names, st.none() | names),
    st.builds(Closed, numbers, times),
    st.builds(Forgotten, numbers),
    st.builds(Service, names, names),
    st.builds(SessionTtl, names, st.none() | times),
    st.builds(SessionEnding, names, st.integers(0, 1 << 50), reasons, st.none() | st.integers(1, 1 << 50)),
    st.builds(
        ForgottenProcess,
        names,
        names,
        st.integers(0, 1 << 50),
        st.integers(0, 1 << 50),
        reasons,
        st.none() | st.integers(1, 1 << 50),
        st.none() | st.integers(0, 255),
        st.none() | names,
    ),
    st.builds(Numbered, names, st.lists(numbers, max_size=4)),
)


def folded(history: list[AnyRecord]) -> State:
    """What the records say, without any file."""
    state = State()
    for record in history:
        state.apply(record)
    return state


def assert_same(found: State, expected: State) -> None:
    assert found == expected
    assert list(found.sessions) == list(expected.sessions)
    assert list(found.processes) == list(expected.processes)
    for number, process in found.processes.items():
        assert list(process.write_ids) == list(expected.processes[number].write_ids)


@given(st.lists(records, max_size=30))
def test_a_replay_gives_what_was_appended(history: list[AnyRecord]) -> None:
    ledger = Ledger.create()
    try:
        for record in history:
            ledger.append(record)
        assert_same(ledger.replay(), folded(history))
    finally:
        ledger.close()


@given(st.lists(records, max_size=30), st.lists(records, max_size=10))
def test_a_compacted_ledger_says_the_same_and_takes_what_follows(
    history: list[AnyRecord], later: list[AnyRecord]
) -> None:
    ledger = Ledger.create()
    for record in history:
        ledger.append(record)
    compacted = Ledger.compacted(ledger.replay().records())
    ledger.close()
    try:
        assert_same(compacted.replay(), folded(history))
        for record in later:
            compacted.append(record)
        assert_same(compacted.replay(), folded(history + later))
    finally:
        compacted.close()


@given(st.lists(records, max_size=5), records, records)
def test_a_torn_last_record_is_cut_and_nothing_else(
    history: list[AnyRecord], last: AnyRecord, next_one: AnyRecord
) -> None:
    ledger = Ledger.create()
    for record in history:
        ledger.append(record)
    before = len(content(ledger))
    ledger.append(last)
    whole = content(ledger)
    ledger.close()
    for length in range(before, len(whole)):
        torn = reopened(whole[:length])
        assert content(torn) == whole[:before]
        assert_same(torn.replay(), folded(history))
        torn.append(next_one)
        assert_same(torn.replay(), folded([*history, next_one]))
        torn.close()
    assert_same(replayed(whole), folded([*history, last]))


def test_the_newest_write_ids_are_remembered_and_every_end(ledger: Ledger) -> None:
    ledger.append(started(1))
    for index in range(REMEMBERED_WRITES + 3):
        ledger.append(Written(1, f"w{index}", index + 1))
    process = ledger.replay().processes[1]
    assert list(process.write_ids) == [f"w{index}" for index in range(3, REMEMBERED_WRITES + 3)]
    assert process.accepted_end == REMEMBERED_WRITES + 3


def test_the_newest_sizes_of_a_terminal_are_remembered() -> None:
    sizes = [Resized(1, seq, 1000 + seq, 24, 80) for seq in range(KEPT_SIZES + 3)]
    process = folded([started(1), *sizes]).processes[1]
    assert process.sizes == sizes[3:]
    assert_same(folded(list(folded([started(1), *sizes]).records())), folded([started(1), *sizes]))


def test_the_last_record_of_a_process_says_where_its_input_ends_and_the_first_why_it_ended() -> None:
    history: list[AnyRecord] = [
        started(1),
        Written(1, "a", 10),
        Written(1, "b", 25),
        Ending(1, "timeout", False, 12.5),
        Ending(1, "terminated", True),
        Exited(1, 137, "timeout"),
        Exited(1, 137, "unknown"),
        Closed(1, 9.5),
        StdinClosed(1),
    ]
    process = folded(history).processes[1]
    assert (process.write_ids, process.accepted_end) == (OrderedDict(a=10, b=25), 25)
    assert (process.ending, process.exited) == ("timeout", Exited(1, 137, "timeout"))
    assert process.tree_ending, "whatever the reason"
    assert not folded(history[:4]).processes[1].tree_ending
    assert process.kill_at == 12.5
    assert_same(folded(list(folded(history).records())), folded(history))
    assert (process.closed_at, process.stdin_closed) == (9.5, True)
    assert not folded([*history, Forgotten(1), Written(1, "c", 30)]).processes


def test_a_session_is_there_until_it_has_ended_with_all_numbers_it_ever_gave() -> None:
    history: list[AnyRecord] = [SessionOpened("s"), started(1), started(2), Forgotten(1), SessionEnding("s")]
    assert folded(history).sessions == {"s": SessionState([1, 2], ending=True)}
    assert not folded([*history, SessionEnded("s")]).sessions


def test_a_session_has_the_time_that_was_set_last() -> None:
    history: list[AnyRecord] = [SessionOpened("s"), SessionTtl("s", 5.0), SessionTtl("s", 7.5)]
    assert folded(history).sessions["s"].ttl == 7.5
    assert folded([*history, SessionTtl("s", None)]).sessions["s"].ttl is None


def test_the_end_of_a_session_is_remembered_with_the_state_of_its_processes_before_they_are_killed() -> None:
    history: list[AnyRecord] = [
        *(SessionOpened("s"), SessionOpened("other"), started(1), started(2), started(3, "other")),
        *(Exited(1, 3, "normal", at=2.5), SessionEnding("s", 1000, "sessionExpired", 80_000)),
        *(Exited(2, 137, "sessionExpired"), Forgotten(1), Forgotten(2), SessionEnded("s")),
    ]
    expected = [
        ForgottenProcess("p1", "s", 0, 1000, "sessionExpired", 80_000, 3, "normal"),
        ForgottenProcess("p2", "s", 0, 1000, "sessionExpired", 80_000),
    ]
    assert list(folded(history).forgotten) == expected
    assert list(folded(list(folded(history[:7]).records())).forgotten) == expected, "compacted meanwhile"


def test_a_process_that_is_forgotten_before_its_session_ends_is_remembered_with_its_end() -> None:
    began = msgspec.structs.replace(started(1), began_at_ms=10_000)
    history: list[AnyRecord] = [SessionOpened("s"), began, Exited(1, 0, "normal", at=4.0), Forgotten(1)]
    assert list(folded(history).forgotten) == [
        ForgottenProcess("p1", "s", 10_000, 12_500, "processExpired", None, 0, "normal")
    ]
    never_ran: list[AnyRecord] = [SessionOpened("s"), started(2), Forgotten(2)]
    assert not list(folded(never_ran).forgotten)


def test_many_processes_of_one_reason_displace_none_of_another() -> None:
    state = folded([ForgottenProcess("detached", "s", 1, 2, "sessionExpired", 80_000)])
    for number in range(KEPT_OF_A_REASON + 5):
        state.apply(ForgottenProcess(str(number), "s", 1, 2, "sessionEnded", 80_000))
    kept = [each.process_id for each in state.forgotten]
    assert kept == ["detached", *(str(number) for number in range(5, KEPT_OF_A_REASON + 5))]


def test_after_a_day_a_forgotten_process_is_not_listed() -> None:
    now = time.time_ns() // 1_000_000
    state = folded(
        [
            ForgottenProcess("old", "s", 1, now - KEPT_MS - 1000, "sessionExpired"),
            ForgottenProcess("new", "s", 1, now - KEPT_MS + 60_000, "sessionExpired"),
        ]
    )
    assert [each.process_id for each in state.forgotten.recent()] == ["new"]


def test_a_process_outlives_the_record_of_its_sessions_end() -> None:
    state = folded([SessionOpened("s"), started(1), SessionEnded("s")])
    assert list(state.processes) == [1], "it still has to be killed"


def test_numbers_ascend_past_a_process_that_is_forgotten_and_compacted_away(ledger: Ledger) -> None:
    ledger.append(started(41))
    ledger.append(Forgotten(41))
    compacted = Ledger.compacted(ledger.replay().records())
    state = compacted.replay()
    compacted.close()
    assert (state.processes, state.highest) == ({}, 41)


# -- what is not understood


@pytest.mark.parametrize(
    "line",
    [
        b'["of-a-newer-server",1,"x"]',
        b'["written",1]',
        b'["written","one","w",5]',
        b"{",
        b'["written",1,"\xff\xfe",5]',
        b"[" * 100_000,
        b"\x00" * 50,
    ],
)
def test_a_line_that_is_not_understood_is_skipped_and_counted(line: bytes) -> None:
    first = Ledger.create()
    first.append(started(1))
    second = Ledger.create()
    second.append(Written(1, "w", 7))
    state = replayed(content(first) + line + b"\n" + content(second))
    first.close()
    second.close()
    assert state.skipped == 1
    assert state.processes[1].accepted_end == 7


def test_members_that_a_newer_server_added_are_ignored() -> None:
    state = replayed(
        b'["started",3,"s","p",9,false,true,1.0,null,null,null,null,null,null,0,null,null,false,null,"added"]\n["written",3,"w",5,{}]\n'
    )
    assert (state.skipped, state.processes[3].write_ids) == (0, {"w": 5})


# -- faults


def test_a_record_that_finds_no_room_is_not_there_at_all(ledger: Ledger) -> None:
    ledger.append(started(1))
    before = content(ledger)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, hard))
    try:
        with pytest.raises(OSError):
            ledger.append(Written(1, "w", 7))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(ledger) == before
    ledger.append(Written(1, "v", 7))
    assert ledger.replay().processes[1].write_ids == {"v": 7}


def killed_after(records: int, told: int, pid: int) -> int:
    """Kill the writer when it has told of so many records. Returns how many it told of in the end."""
    count = 0
    while count < records:
        count += len(os.read(told, records - count))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while piece := os.read(told, 1 << 16):
        count += len(piece)
    return count


def test_every_record_whose_append_returned_outlives_a_kill() -> None:
    random_source = random.Random(5)
    for _ in range(25):
        ledger = Ledger.create()
        told_read, told_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _write_until_killed(ledger, told_write)
        os.close(told_write)
        told = killed_after(random_source.randrange(1, 200), told_read, pid)
        os.close(told_read)
        new_server = Ledger(os.dup(ledger.fd))
        state = new_server.replay()
        assert state.skipped == 0
        assert state.processes[1].accepted_end in (told, told + 1)
        new_server.close()
        ledger.close()


def _write_until_killed(ledger: Ledger, told: int) -> None:
    try:
        ledger.append(started(1))
        # An id is larger than a page: a kill can tear its record.
        for end in range(1, 1_000_000):
            ledger.append(Written(1, f"{end}".rjust(6000), end))
            os.write(told, b".")
    finally:
        os._exit(1)


def test_a_kill_during_a_compaction_leaves_one_that_says_everything() -> None:
    random_source = random.Random(6)
    switched = 0
    for _ in range(25):
        # The test is the supervisor: it has the first ledger, and whatever is sent to it later.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ledger = Ledger.create()
        told_read, told_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _write_and_compact(ledger, theirs, told_write)
        theirs.close()
        os.close(told_write)
        told = killed_after(random_source.randrange(20, 400), told_read, pid)
        kept = os.dup(ledger.fd)
        while True:
            message, fds, _, _ = socket.recv_fds(ours, 1, 1)
            if not message:
                break
            os.close(kept)
            kept = fds[0]
            switched += 1
        new_server = Ledger(kept)
        state = new_server.replay()
        assert state.skipped == 0
        assert state.processes[1].accepted_end in (told, told + 1)
        assert len(state.processes[1].write_ids) in (told, told + 1)
        new_server.close()
        ledger.close()
        os.close(told_read)
        ours.close()
    assert switched >= 50


def _write_and_compact(ledger: Ledger, supervisor: socket.socket, told: int) -> None:
    try:
        ledger.append(started(1))
        for end in range(1, REMEMBERED_WRITES):
            ledger.append(Written(1, f"w{end}", end))
            os.write(told, b".")
            if end % 10 == 0:
                compacted = Ledger.compacted(ledger.replay().records())
                socket.send_fds(supervisor, [b"k"], [compacted.fd])
                ledger.close()
                ledger = compacted
        time.sleep(60)
    finally:
        os._exit(1)


def is_due(ledger: Ledger) -> bool:
    return ledger.should_compact


def test_a_compaction_is_due_when_most_is_history(ledger: Ledger) -> None:
    assert not is_due(ledger)
    ledger.append(started(1))
    long_id = "w" * 65_536
    for index in range(COMPACTION_BYTES // 65_536):
        assert not is_due(ledger)
        ledger.append(Written(1, long_id, index))
    assert is_due(ledger)
    new_server = Ledger(os.dup(ledger.fd))
    assert is_due(new_server), "a new server does not know what is outdated"
    new_server.close()
    compacted = Ledger.compacted(ledger.replay().records())
    assert not is_due(compacted)
    assert len(content(compacted)) < 70_000
    compacted.close()


def test_write_ids_of_other_sessions_are_a_space_of_their_own() -> None:
    state = State()
    state.apply(started(1))
    own, foreign = "w", stored_write_id("w", "other")
    state.apply(Written(1, own, 5))
    for number in range(REMEMBERED_WRITES):
        state.apply(Written(1, stored_write_id(f"w{number}", "other"), 6 + number))
    state.apply(Written(1, foreign, 9000))
    process = state.processes[1]
    assert list(process.write_ids) == [own], "others do not make the owner's be forgotten"
    assert len(process.others_write_ids) == REMEMBERED_WRITES
    again = State()
    for record in state.records():
        again.apply(record)
    assert again.processes[1] == process
    assert again.processes[1].accepted_end == 9000


@pytest.mark.parametrize("write_id", ["\0other\0w", "\0\0w", "\0"])
def test_no_id_of_the_owner_is_another_sessions(write_id: str) -> None:
    state = State()
    state.apply(started(1))
    state.apply(Written(1, stored_write_id(write_id, None), 5))
    state.apply(Written(1, stored_write_id("w", "other"), 6))
    process = state.processes[1]
    assert (len(process.write_ids), len(process.others_write_ids)) == (1, 1)
