"""The lines that differ between two texts.

Lines that are unique in both texts are aligned first (patience diff). The gaps are filled by the shortest
edit (Myers) as long as that is cheap; else their lines count as replaced. The time is bounded, and the result
is always correct, if not always the shortest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

MAX_STEPS = 2_000_000
"""The limit for one gap: about a second."""

_MAX_EDITS = 400
"""The limit for one shortest edit: the memory grows with the square, up to about 16 MiB."""


class Block(NamedTuple):
    """Lines `start:end` of the old text that become `new_start:new_end` of the new one."""

    start: int
    end: int
    new_start: int
    new_end: int


def changed_blocks(old: Sequence[str], new: Sequence[str]) -> list[Block]:
    """The differences between two texts, in order; adjacent blocks are joined."""
    result: list[Block] = []
    at = new_at = 0
    for anchor, new_anchor in [*_anchors(old, new), (len(old), len(new))]:
        for block in _gap(old, new, Block(at, anchor, new_at, new_anchor)):
            if result and (result[-1].end, result[-1].new_end) == (block.start, block.new_start):
                first = result.pop()
                block = Block(first.start, block.end, first.new_start, block.new_end)
            result.append(block)
        at, new_at = anchor + 1, new_anchor + 1
    return result


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """The longest sequence of pairs of equal lines that are unique in both texts and in the same order."""
    old_counts, new_counts = Counter(old), Counter(new)
    places = {line: number for number, line in enumerate(new) if new_counts[line] == 1}
    pairs = [
        (number, places[line]) for number, line in enumerate(old) if line in places and old_counts[line] == 1
    ]
    tails: list[int] = []
    tail_pairs: list[int] = []
    previous: list[int] = []
    for number, (_, place) in enumerate(pairs):
        rank = bisect_left(tails, place)
        previous.append(tail_pairs[rank - 1] if rank else -1)
        tails[rank : rank + 1] = [place]
        tail_pairs[rank : rank + 1] = [number]
    chain: list[tuple[int, int]] = []
    number = tail_pairs[-1] if tail_pairs else -1
    while number >= 0:
        chain.append(pairs[number])
        number = previous[number]
    return chain[::-1]


def _gap(old: Sequence[str], new: Sequence[str], gap: Block) -> list[Block]:
    start, end, new_start, new_end = gap
    while start < end and new_start < new_end and old[start] == new[new_start]:
        start, new_start = start + 1, new_start + 1
    while start < end and new_start < new_end and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    if start == end and new_start == new_end:
        return []
    rest = Block(start, end, new_start, new_end)
    if start == end or new_start == new_end:
        return [rest]
    blocks = _shortest_edit(old[start:end], new[new_start:new_end])
    if blocks is None:
        return [rest]
    return [
        Block(start + each.start, start + each.end, new_start + each.new_start, new_start + each.new_end)
        for each in blocks
    ]


def _shortest_edit(old: Sequence[str], new: Sequence[str]) -> list[Block] | None:
    """Myers' greedy search; None if it takes too many edits or steps."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    steps = 0
    for edits in range(min(len(old) + len(new), _MAX_EDITS) + 1):
        trace.append({diagonal: furthest[diagonal] for diagonal in furthest if abs(diagonal) <= edits + 1})
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = begin = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _walked_back(trace, len(old), len(new))
            steps += y - begin + 1
        if steps > MAX_STEPS:
            return None
    return None


def _walked_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[Block]:
    blocks: list[Block] = []
    for edits in range(len(trace) - 1, 0, -1):
        furthest = trace[edits]
        diagonal = x - y
        down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
        came = diagonal + 1 if down else diagonal - 1
        from_x = furthest[came]
        from_y = from_x - came
        step = Block(from_x, from_x + (not down), from_y, from_y + down)
        if blocks and (step.end, step.new_end) == (blocks[-1].start, blocks[-1].new_start):
            last = blocks.pop()
            step = Block(step.start, last.end, step.new_start, last.new_end)
        blocks.append(step)
        x, y = from_x, from_y
    return blocks[::-1]
