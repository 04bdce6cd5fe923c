"""What becomes of the changes of one batch."""

from __future__ import annotations

from execserver.watching.program.changes import Batch


def taken(batch: Batch) -> list[str]:
    return [
        f"{letter} {earlier or ''}{'>' if earlier else ''}{path}" for letter, _, path, earlier in batch.take()
    ]


def test_modified_after_created_or_modified_is_left_out() -> None:
    batch = Batch()
    batch.created("a", False)
    batch.modified("a", False)
    batch.modified("b", False)
    batch.modified("b", False)
    assert taken(batch) == ["c a", "m b"]
    assert taken(batch) == []


def test_removed_takes_the_place_of_both_and_is_never_left_out() -> None:
    batch = Batch()
    batch.created("a", False)
    batch.removed("a", False)
    batch.modified("b", False)
    batch.removed("b", False)
    batch.created("b", False)
    batch.modified("b", False)
    assert taken(batch) == ["r a", "r b", "c b"]


def test_nothing_is_coalesced_over_a_directory_that_was_moved_or_removed() -> None:
    batch = Batch()
    batch.created("d/x", False)
    place = batch.reserve("d", True)
    batch.created("d", True)
    batch.created("d/x", False)
    batch.settle(place, "d", True, None)
    assert taken(batch) == ["c d/x", "r d", "c d", "c d/x"]
    batch.created("d/x", False)
    batch.removed("d", True)
    batch.created("d", True)
    batch.created("d/x", False)
    assert taken(batch) == ["c d/x", "r d", "c d", "c d/x"]


def test_a_rename_stands_where_it_began() -> None:
    batch = Batch()
    place = batch.reserve("a", False)
    batch.created("a", False)
    batch.settle(place, "a", False, "b")
    batch.modified("b", False)
    assert taken(batch) == ["n a>b", "c a", "m b"]


def test_a_gap_of_the_root_takes_the_place_of_all_and_of_what_is_settled_later() -> None:
    batch = Batch()
    batch.created("a", False)
    place = batch.reserve("b", False)
    batch.gap("")
    batch.settle(place, "b", False, "c")
    batch.gap("")
    batch.gap("d")
    batch.gap("d")
    assert taken(batch) == ["g ", "g d"]
