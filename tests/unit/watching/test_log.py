"""The log of a watch."""

from __future__ import annotations

import pytest

from execprotocol.limits import MAX_WATCH_LOG_BYTES, MAX_WATCH_LOG_CHANGES
from execserver.watching.log import ChangeLog


def filled(count: int, size: int = 3) -> ChangeLog:
    log = ChangeLog(b"gap")
    for number in range(1, count + 1):
        log.append(b"%d" % number + b" " * (size - len(str(number))))
    return log


def test_changes_are_read_after_a_cursor_in_pages() -> None:
    log = filled(9)
    assert log.read(0, 2, 1000) == (1, [b"1  ", b"2  "])
    assert log.read(7, 5, 1000) == (8, [b"8  ", b"9  "])
    assert log.read(9, 5, 1000) == (10, [])
    assert log.read(0, 100, 8) == (1, [b"1  ", b"2  "])
    assert log.read(0, 100, 1) == (1, [b"1  "])


def test_dropped_changes_are_one_gap_with_the_number_of_the_last_one() -> None:
    log = filled(MAX_WATCH_LOG_CHANGES + 10)
    assert log.first_kept == 11
    assert log.read(0, 3, 1000) == (10, [b"gap", b"11 ", b"12 "])
    assert log.read(9, 2, 1000) == (10, [b"gap", b"11 "])
    assert log.read(10, 2, 1000) == (11, [b"11 ", b"12 "])
    assert log.read(0, 1, 1) == (10, [b"gap"])


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_million_changes_are_bounded(size: int) -> None:
    log = ChangeLog(b"gap")
    change = b"x" * size
    for _ in range(1_000_000):
        log.append(change)
    kept = log.next_seq - log.first_kept
    assert log.next_seq == 1_000_001
    assert kept <= MAX_WATCH_LOG_CHANGES
    assert kept * size <= MAX_WATCH_LOG_BYTES
