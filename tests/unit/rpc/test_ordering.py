"""The order of requests against a simple model."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execprotocol.filesystem import GetFilesParams, PutEntry, PutFilesParams
from execserver.rpc.ordering import MAX_LEVELS, AccessTable, Mode, RequestOrder, ResourceAccess, Ticket

PATHS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/b"]
KEYS = ["p", "q"]

access = st.one_of(
    st.builds(ResourceAccess, st.sampled_from([Mode.READ, Mode.WRITE]), st.sampled_from(PATHS)),
    st.builds(ResourceAccess, st.sampled_from([Mode.SHARED, Mode.EXCLUSIVE]), st.sampled_from(KEYS)),
    st.just(ResourceAccess(Mode.SNAPSHOT, None)),
)
requests = st.lists(st.lists(access, max_size=3).map(tuple), min_size=1, max_size=14)


def overlap(one: str, other: str) -> bool:
    def inside(path: str, folder: str) -> bool:
        return path == folder or path.startswith(folder.rstrip("/") + "/")

    return inside(one, other) or inside(other, one)


def conflict(earlier: ResourceAccess, later: ResourceAccess) -> bool:
    """The rule, said once more in the plainest way."""
    if later.mode is Mode.SNAPSHOT:
        return earlier.mode is Mode.WRITE
    keys, paths = {Mode.SHARED, Mode.EXCLUSIVE}, {Mode.READ, Mode.WRITE}
    modes = {earlier.mode, later.mode}
    if modes <= keys:
        return earlier.target == later.target and Mode.EXCLUSIVE in modes
    if modes <= paths:
        return Mode.WRITE in modes and overlap(str(earlier.target), str(later.target))
    return False


@given(requests, st.data())
@settings(max_examples=200, deadline=None)
def test_a_request_runs_exactly_when_no_earlier_unfinished_one_conflicts(
    batch: list[tuple[ResourceAccess, ...]], data: st.DataObject
) -> None:
    order = RequestOrder()
    tickets: list[Ticket] = []
    unfinished: list[Ticket] = []

    def should_run(ticket: Ticket) -> bool:
        earlier = unfinished[: unfinished.index(ticket)]
        return not any(conflict(a, b) for other in earlier for a in other.accesses for b in ticket.accesses)

    for accesses in batch:
        ticket = order.add(accesses)
        tickets.append(ticket)
        unfinished.append(ticket)
        assert ticket.ready == should_run(ticket)
    while unfinished:
        runnable = [ticket for ticket in unfinished if ticket.ready]
        assert runnable, "something can always run"
        # Now and then one is finished before its turn: a start that is cancelled.
        done = data.draw(st.sampled_from(runnable) | st.sampled_from(unfinished))
        before = {id(ticket) for ticket in unfinished if ticket.ready}
        unfinished.remove(done)
        # One that was finished before its turn may be among those that are freed later: nobody knows it then.
        freed = [ticket for ticket in order.finish(done) if ticket in unfinished]
        for ticket in unfinished:
            assert ticket.ready == should_run(ticket)
        now = {id(ticket) for ticket in unfinished if ticket.ready}
        assert {id(ticket) for ticket in freed} == now - before
        positions = [tickets.index(ticket) for ticket in freed]
        assert positions == sorted(positions), "those that are freed run in the order of arrival"
    assert order.empty


def test_nothing_is_remembered_of_finished_requests() -> None:
    order = RequestOrder()
    for path in PATHS:
        order.finish(order.add((ResourceAccess(Mode.WRITE, path), ResourceAccess(Mode.EXCLUSIVE, path))))
    assert vars(order) | {"_admitted": 0} == vars(RequestOrder())


def test_ten_thousand_reads_of_one_path_are_not_compared_with_each_other() -> None:
    order = RequestOrder()
    tickets = [order.add((ResourceAccess(Mode.READ, "/a/b"),)) for _ in range(10_000)]
    assert all(ticket.ready for ticket in tickets)
    write = order.add((ResourceAccess(Mode.WRITE, "/a"),))
    assert write.blockers == 10_000
    for ticket in tickets[:-1]:
        assert not order.finish(ticket)
    assert order.finish(tickets[-1]) == [write]


def test_ten_thousand_writes_of_one_thing_are_a_chain() -> None:
    order = RequestOrder()
    accesses = (ResourceAccess(Mode.SHARED, "p"), ResourceAccess(Mode.EXCLUSIVE, "stdin"))
    tickets = [order.add(accesses) for _ in range(10_000)]
    assert [ticket.blockers for ticket in tickets] == [0] + [1] * 9_999
    for ticket, following in itertools.pairwise(tickets):
        assert order.must_wait(accesses)
        assert order.finish(ticket) == [following]


@pytest.mark.parametrize(
    ("paths", "above"),
    [
        (["/a/x", "/a/y"], "/a"),
        (["/a/x/1", "/a/x/2", "/a/xy"], "/a"),
        (["/a", "/a-b", "/a/b"], "/"),
        (["/a", "/b"], "/"),
        (["/a/b", "/a/b"], "/a"),
        (["/a/b", "file://host/a/b"], "/"),
    ],
)
def test_many_paths_with_many_levels_count_as_the_folder_above_all(paths: list[str], above: str) -> None:
    def of(count: int) -> list[set[ResourceAccess]]:
        get = GetFilesParams(paths=paths * count)
        put = PutFilesParams(entries=[PutEntry(path=path, permissions=0) for path in paths * count])
        table = AccessTable()
        return [set(table.of("fs/getFiles", get)), set(table.of("fs/putFiles", put))]

    modes = (Mode.READ, Mode.WRITE)
    assert of(10) == [{ResourceAccess(mode, path) for path in paths} for mode in modes]
    assert of(MAX_LEVELS) == [{ResourceAccess(mode, above)} for mode in modes]


def test_a_batch_of_deep_paths_is_ordered_in_a_moment() -> None:
    deep = [PutEntry(path=f"/{number}" + "/d" * 70, permissions=0) for number in range(1000)]
    accesses = AccessTable().of("fs/putFiles", PutFilesParams(entries=deep))
    assert accesses == (ResourceAccess(Mode.WRITE, "/"),)
    flat = [PutEntry(path=f"/a/b/c/d/{number}", permissions=0) for number in range(1000)]
    assert len(AccessTable().of("fs/putFiles", PutFilesParams(entries=flat))) == 1000
