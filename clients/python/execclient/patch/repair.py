"""Finds the places of a file that are most similar to a chunk that does not fit.

A place is similar if lines of the chunk are there at the same distances, except for blanks and typography; if
the file has no line of the chunk, a place with a similar line counts. Fixed limits bound the search, so that
an error takes no longer than a success.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Sequence

from execclient.patch.match import exact, folded
from execclient.patch.model import Candidate, Difference, Reason

MAX_CANDIDATES = 3
"""More would not help to repair the patch."""

_MAX_LINES = 200
"""Lines of the chunk that are searched for."""

_MAX_PLACES = 50
"""Occurrences of one line. A line that occurs more often, such as an empty one, is not significant."""

_MAX_COMPARED = 2000
"""Lines that are compared by characters, at about 20 µs each."""

_MAX_COMPARED_LENGTH = 300
"""Characters of such a line: the time grows with the square."""

_ALIKE = 0.6
"""The similarity of two lines that `difflib` recommends."""


def nearest(lines: Sequence[str], expected: Sequence[str], searched_from: int) -> tuple[Candidate, ...]:
    """The places of a file that are most similar to some lines.

    Args:
        lines: the lines of the file.
        expected: the lines of the chunk.
        searched_from: the first line of the search, from 0.
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
