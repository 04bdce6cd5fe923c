"""The pauses between connections."""

from __future__ import annotations

import pytest

from execclient.session.recovery import Pace


@pytest.fixture
def pace() -> Pace:
    return Pace(longest=0.05)


def test_after_the_first_connection_there_is_no_pause(pace: Pace) -> None:
    assert pace.lost(now=0.0, progress=0) == 0


def test_connections_that_bring_nothing_are_followed_ever_more_slowly(pace: Pace) -> None:
    pauses = []
    for number in range(6):
        pace.connected(now=float(number), progress=3)
        pauses.append(pace.lost(now=number + 0.1, progress=3))
    assert pauses == [0.005, 0.01, 0.02, 0.04, 0.05, 0.05]


@pytest.mark.parametrize(("lasted", "reached"), [(1.0, 3), (0.1, 4)], ids=["lasted", "brought something"])
def test_one_that_was_good_for_something_is_followed_at_once(pace: Pace, lasted: float, reached: int) -> None:
    pace.connected(now=0.0, progress=3)
    assert pace.lost(now=0.1, progress=3) > 0
    pace.connected(now=10.0, progress=3)
    assert pace.lost(now=10.0 + lasted, progress=reached) == 0
    pace.connected(now=20.0, progress=9)
    assert pace.lost(now=20.1, progress=9) == 0.005
