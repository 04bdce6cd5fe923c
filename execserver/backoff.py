"""How often to try what is often in vain."""

from __future__ import annotations

import os
from typing import Final

ALONE: Final = len(os.sched_getaffinity(0)) == 1
"""Whether there is one processor only: who waits awake keeps the other from doing what is waited for."""

_MOST_MISSES: Final = 8
"""Tries in vain in a row after which the pauses do not grow any more."""


class Backoff:
    """Whether an occasion is taken: each one while tries are worth it, and ever fewer while they are in vain,
    down to one of 256.
    """

    __slots__ = ("_misses", "_pause")

    def __init__(self) -> None:
        self._misses = 0
        self._pause = 0
        """Occasions that are let pass."""

    def is_due(self) -> bool:
        """Whether to try on this occasion. To be asked once on each."""
        if self._pause:
            self._pause -= 1
            return False
        return True

    def tried(self, *, in_vain: bool) -> None:
        """What a try brought."""
        self._misses = min(self._misses + 1, _MOST_MISSES) if in_vain else 0
        self._pause = (1 << self._misses) - 1
