from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execclient.tools.session_table import FIRST_ID, LAST_ID, SessionIdTaken, SessionTable


class Session:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.exited = False


def store(limit: int = 64, warn_from: int = 60, protected: int = 8) -> SessionTable[Session]:
    return SessionTable(
        lambda session: session.exited,
        limit=limit,
        warn_from=warn_from,
        protected=protected,
        choose=random.Random(1),
    )


def fill(sessions: SessionTable[Session], ids: Iterable[int]) -> dict[int, Session]:
    opened = {}
    for each in ids:
        opened[each] = Session(str(each))
        sessions.commit(sessions.reserve(each), opened[each])
    return opened


def test_numbers_are_random_and_have_four_or_five_digits() -> None:
    sessions = store()

    chosen = [sessions.reserve() for _ in range(500)]

    assert len(set(chosen)) == 500
    assert all(FIRST_ID <= each <= LAST_ID for each in chosen)
    assert chosen != sorted(chosen)


def test_a_number_that_is_drawn_twice_is_drawn_again() -> None:
    class Stuck(random.Random):
        drawn = iter([5000, 5000, 5000, 6000])

        def randint(self, a: int, b: int) -> int:
            return next(self.drawn)

    sessions: SessionTable[Session] = SessionTable(lambda session: session.exited, choose=Stuck())

    assert (sessions.reserve(), sessions.reserve()) == (5000, 6000)


async def test_of_two_concurrent_starts_with_one_number_exactly_one_wins() -> None:
    sessions = store()

    async def start(name: str) -> str:
        session_id = sessions.reserve(1001)
        await asyncio.sleep(0)
        sessions.commit(session_id, Session(name))
        return name

    outcomes = await asyncio.gather(start("a"), start("b"), return_exceptions=True)

    assert [each for each in outcomes if isinstance(each, str)] == ["a"]
    assert [type(each) for each in outcomes] == [str, SessionIdTaken]
    session = sessions.use(1001)
    assert session is not None
    assert session.name == "a"


def test_a_number_is_free_again_after_a_failed_start_and_after_an_end() -> None:
    sessions = store()

    sessions.reserve(1001)
    assert sessions.release(1001) is None
    opened = fill(sessions, [1001])
    with pytest.raises(SessionIdTaken, match="session id 1001 is in use"):
        sessions.reserve(1001)
    assert sessions.release(1001) is opened[1001]
    assert sessions.release(1001) is None
    assert sessions.reserve(1001) == 1001


@pytest.mark.parametrize("session_id", [0, -5, 2**31])
def test_a_number_out_of_range_is_refused(session_id: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        store().reserve(session_id)


def test_only_what_was_reserved_is_opened() -> None:
    sessions = store()

    with pytest.raises(ValueError, match="not reserved"):
        sessions.commit(1001, Session())
    assert len(sessions) == 0


def test_an_unknown_number_is_no_session_and_neither_is_a_reserved_one() -> None:
    sessions = store()
    sessions.reserve(1001)

    assert sessions.use(1001) is None
    assert sessions.use(1002) is None


def test_from_the_sixtieth_start_on_there_is_a_warning() -> None:
    sessions = store()
    commits = [sessions.commit(sessions.reserve(), Session()) for _ in range(65)]

    assert [commit.near_limit for commit in commits] == [False] * 59 + [True] * 6
    assert [commit.count for commit in commits] == [*range(1, 65), 64]


def test_the_sixty_fifth_ends_the_one_that_was_left_alone_longest() -> None:
    sessions = store()
    opened = fill(sessions, range(1, 65))
    sessions.use(1)

    commit = sessions.commit(sessions.reserve(65), Session())

    assert commit.pruned == (2, opened[2])
    assert sessions.use(2) is None
    assert len(sessions) == 64


def test_one_that_has_exited_goes_before_older_ones_that_run() -> None:
    sessions = store()
    opened = fill(sessions, range(1, 65))
    opened[40].exited = opened[50].exited = True

    assert sessions.commit(sessions.reserve(65), Session()).pruned == (40, opened[40])
    assert sessions.commit(sessions.reserve(66), Session()).pruned == (50, opened[50])
    assert sessions.commit(sessions.reserve(67), Session()).pruned == (1, opened[1])


def test_the_eight_that_were_used_last_are_safe_even_if_they_have_exited() -> None:
    sessions = store()
    opened = fill(sessions, range(1, 65))
    for each in range(57, 65):
        opened[each].exited = True

    assert sessions.commit(sessions.reserve(65), Session()).pruned == (1, opened[1])


def test_listing_is_no_use() -> None:
    sessions = store(limit=3, protected=1)
    fill(sessions, [1, 2, 3])

    assert [each for each, _ in sessions] == [1, 2, 3]
    assert sessions.commit(sessions.reserve(4), Session()).pruned is not None
    assert [each for each, _ in sessions] == [2, 3, 4]


@pytest.mark.parametrize(("limit", "protected"), [(8, 8), (0, 0), (5, -1)])
def test_a_limit_must_leave_something_to_prune(limit: int, protected: int) -> None:
    with pytest.raises(ValueError, match="limit is"):
        store(limit=limit, protected=protected)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "use", "exit", "release"]), st.integers(1, 12)), max_size=60
)


@given(ACTIONS, st.integers(1, 8), st.integers(0, 7))
def test_any_order_of_use_prunes_as_the_rule_says(
    actions: list[tuple[str, int]], limit: int, protected: int
) -> None:
    protected = min(protected, limit - 1)
    sessions = store(limit=limit, warn_from=limit, protected=protected)
    last_used: dict[int, int] = {}
    exited: set[int] = set()
    for time, (action, number) in enumerate(actions):
        if action == "use":
            assert (sessions.use(number) is not None) == (number in last_used)
            if number in last_used:
                last_used[number] = time
        elif action == "exit" and number in last_used:
            next(session for each, session in sessions if each == number).exited = True
            exited.add(number)
        elif action == "release":
            assert (sessions.release(number) is not None) == (number in last_used)
            last_used.pop(number, None)
            exited.discard(number)
        elif action == "start" and number not in last_used:
            pruned = sessions.commit(sessions.reserve(number), Session()).pruned
            expected = None
            if len(last_used) == limit:
                by_age = sorted(last_used, key=last_used.__getitem__)
                unprotected = by_age[: limit - protected]
                expected = next((each for each in unprotected if each in exited), unprotected[0])
                del last_used[expected]
                exited.discard(expected)
            assert (pruned[0] if pruned else None) == expected
            last_used[number] = time
    assert {each for each, _ in sessions} == set(last_used)


def test_a_session_that_is_gone_does_not_give_back_the_number_of_the_next_one() -> None:
    sessions = store()
    first = fill(sessions, [1001])[1001]
    assert sessions.release(1001, first) is first
    second = fill(sessions, [1001])[1001]

    assert sessions.release(1001, first) is None
    assert sessions.is_open(1001)
    assert sessions.use(1001) is second


def test_a_number_that_is_reserved_stays_so_when_its_former_session_is_released() -> None:
    sessions = store()
    first = fill(sessions, [1001])[1001]
    sessions.release(1001)
    sessions.reserve(1001)

    sessions.release(1001, first)

    with pytest.raises(SessionIdTaken):
        sessions.reserve(1001)
