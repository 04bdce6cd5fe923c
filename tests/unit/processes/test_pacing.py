"""Output that is held back until its client was sent it. Real logs in memory, and no process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from execserver.processes.pacing import Pacing
from execserver.spool.spool import SpoolLimits
from tests.unit.processes.log_rig import Rig, take_bytes

RETAINED = 1000
"""So 500 bytes may be unsent."""


class Paced:
    """A log, its pacing, and whether it is held back now."""

    def __init__(self, rig: Rig, retained: int = RETAINED, *, restored: bool = False) -> None:
        self.log = rig.restored(retained) if restored else rig.log(retained)
        self._held = False
        self.pacing = Pacing(self.log, self._hold)
        self.pacing.taken()

    def _hold(self, held: bool) -> None:
        self._held = held

    def held(self) -> bool:
        return self._held

    def take(self, size: int) -> int:
        """Take a chunk; its number."""
        take_bytes(self.log, b"x" * size)
        self.pacing.taken()
        return self.log.next_seq - 1


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_output_is_held_back_while_too_much_is_not_sent(rig: Rig) -> None:
    paced = Paced(rig)
    first, second = paced.take(400), paced.take(400)
    assert paced.held()
    paced.pacing.event_sent(first)
    assert not paced.held()
    third = paced.take(200)
    assert paced.held()
    paced.pacing.event_sent(second)
    paced.pacing.event_sent(third)
    assert not paced.held()


def test_what_is_not_sent_is_not_dropped(rig: Rig) -> None:
    paced = Paced(rig)
    numbers = [paced.take(400) for _ in range(4)]
    assert paced.log.evicted_through == 0
    assert paced.log.held == 1600
    paced.pacing.event_sent(numbers[0])
    paced.pacing.event_sent(numbers[1])
    assert paced.log.evicted_through == numbers[1], "what was sent gives way"
    assert paced.held()
    for number in numbers[2:]:
        paced.pacing.event_sent(number)
    assert not paced.held()


def test_events_behind_a_gap_count_once_a_read_has_filled_it(rig: Rig) -> None:
    paced = Paced(rig)
    numbers = [paced.take(300) for _ in range(3)]
    paced.pacing.event_sent(numbers[2])
    assert paced.held(), "a connection that resumed gets the newest events only"
    paced.pacing.read(0, numbers[1])
    assert not paced.held()
    assert paced.log.sent_through == numbers[2]


def test_a_cursor_confirms_what_is_before_it(rig: Rig) -> None:
    paced = Paced(rig)
    numbers = [paced.take(300) for _ in range(3)]
    paced.pacing.read(numbers[1], numbers[1])
    assert paced.log.sent_through == numbers[1]
    assert not paced.held()
    paced.pacing.read(0, numbers[0])
    assert paced.log.sent_through == numbers[1], "reading again takes nothing back"


def test_a_new_server_waits_for_the_cursor_of_the_client(rig: Rig) -> None:
    before = Paced(rig)
    numbers = [before.take(300) for _ in range(3)]
    for number in numbers:
        before.pacing.event_sent(number)
    after = Paced(rig, restored=True)
    assert after.held()
    after.pacing.read(numbers[2], numbers[2])
    assert not after.held()


def test_with_no_room_for_output_one_chunk_after_the_other_is_taken(rig: Rig) -> None:
    paced = Paced(rig, retained=0)
    for _ in range(3):
        number = paced.take(10)
        assert paced.held()
        paced.pacing.event_sent(number)
        assert not paced.held()


def test_when_all_logs_have_too_much_the_others_give_way() -> None:
    rig = Rig(SpoolLimits(disk=0, memory=1000, small=0))
    paced, other = Paced(rig, 10_000), rig.log(10_000)
    paced.take(600)
    assert not paced.held()
    take_bytes(other, b"y" * 300)
    take_bytes(other, b"y" * 300)
    assert other.evicted_through > 0, "although it holds less"
    assert paced.log.evicted_through == 0
    paced.take(600)
    assert paced.held(), "all together are above the limit"
    rig.close()
