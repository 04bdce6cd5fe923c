"""What helps to repair a chunk that fits nowhere: the places of the file that come near, and what differs.

A place is near when lines of the chunk are there, blanks and typography aside, at the same distances; if no
line of it is anywhere in the file, when a line reads alike. It is looked for within fixed limits, so that
an error takes no longer than a success.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Sequence

from execclient.patch.match import exact, folded
from execclient.patch.model import Candidate, Difference, Reason

MAX_CANDIDATES = 3
"""Who has to repair by hand looks at no more."""

_MAX_LINES = 200
"""Of the chunk; a longer one is recognized by these."""

_MAX_PLACES = 50
"""Of one line. A line that is everywhere, as an empty one, tells nothing."""

_MAX_COMPARED = 2000
"""Lines that are compared letter by letter, at about 20 µs each."""

_MAX_COMPARED_LENGTH = 300
"""Of such a line: the time grows with the square."""

_ALIKE = 0.6
"""Of two lines; what `difflib` recommends."""


def nearest(lines: Sequence[str], expected: Sequence[str], searched_from: int) -> tuple[Candidate, ...]:
    """The places of a file that come nearest to some lines.

    Args:
        lines: those of the file.
        expected: those of the chunk.
        searched_from: where the search began, from 0.
    """
    head = expected[:_MAX_LINES]
    starts = _by_equal_lines(lines, head) or _by_alike_lines(lines, head)
    places = [_candidate(lines, expected, start, searched_from) for start in starts]
    places.sort(key=lambda place: (-place.matching, place.too_early, abs(place.line - 1 - searched_from)))
    return tuple(places[:MAX_CANDIDATES])


def _by_equal_lines(lines: Sequence[str], expected: Sequence[str]) -> list[int]:
    offsets: dict[str, list[int]] = defaultdict(list)
    for offset, line in enumerate(expected):
        if key := folded(line):
            offsets[key].append(offset)
    places: dict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        key = folded(line)
        if key in offsets and len(places[key]) <= _MAX_PLACES:
            places[key].append(number)
    votes: Counter[int] = Counter()
    for key, found in places.items():
        if len(found) <= _MAX_PLACES:
            votes.update(max(number - offset, 0) for number in found for offset in offsets[key])
    return [start for start, _ in votes.most_common(MAX_CANDIDATES)]


def _by_alike_lines(lines: Sequence[str], expected: Sequence[str]) -> list[int]:
    telling = [(len(key), offset, key) for offset, line in enumerate(expected) if (key := folded(line))]
    if not telling:
        return []
    _, offset, key = max(telling)
    first: dict[str, int] = {}
    for number, line in enumerate(lines[:_MAX_COMPARED]):
        first.setdefault(folded(line)[:_MAX_COMPARED_LENGTH], number)
    alike = difflib.get_close_matches(
        key[:_MAX_COMPARED_LENGTH], first.keys(), n=MAX_CANDIDATES, cutoff=_ALIKE
    )
    return [max(first[each] - offset, 0) for each in alike]


def _candidate(lines: Sequence[str], expected: Sequence[str], start: int, searched_from: int) -> Candidate:
    there = tuple(lines[start : start + len(expected)])
    differences = [
        Difference(start + offset + 1, wanted, found, reason)
        for offset, wanted in enumerate(expected)
        if (reason := _reason(wanted, found := there[offset] if offset < len(there) else None)) is not None
    ]
    matching = len(expected) - sum(each.reason != "blanks" for each in differences)
    return Candidate(start + 1, matching, there, tuple(differences), too_early=start < searched_from)


def _reason(wanted: str, found: str | None) -> Reason | None:
    if found is None:
        return "missing"
    if exact(wanted) == found:
        return None
    return "blanks" if folded(wanted) == folded(found) else "text"
