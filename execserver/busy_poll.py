"""Staying awake for a moment after a message, because the next one often follows at once.

A client that waits for one answer before it asks the next thing pays for two wake-ups each time, of the
server and of itself, some 50 us each on a virtual machine: more than the work. So the loop goes on turning
for a moment, which spares it one of them.

Rules kept in this file:

1. A moment is bounded, and holds up nobody: the loop serves whatever comes from wherever, it only does not
   sleep meanwhile.
2. A client whose next message does not come in time is waited for ever more seldom, down to after one message
   of 256. So one that asks now and then costs next to nothing, and where every processor is busy, which makes
   every client slow, nobody is waited for.
3. With a single processor nobody is waited for: the client needs it. Nor is who sends several messages at
   once: it does not wait for each answer, and the longer the loop sleeps, the more come together.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

from execserver.backoff import ALONE, Backoff

AWAKE_SECONDS: Final = 60e-6
"""How long a moment is: a client that only looks at an answer and asks again needs 10 to 40 us."""


class Attention:
    """Whether one connection's next message is waited for, by how soon those before followed."""

    __slots__ = ("_awake", "_backoff", "_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._backoff = Backoff()
        self._until = 0.0
        """When the current moment ends; 0 when there was none after the last message."""
        self._awake = False
        """Whether the loop is kept from sleeping."""

    def served(self, began: float) -> None:
        """The one message that was read is answered, as far as that could be done at once.

        Args:
            began: when it was read, on the clock of `perf_counter`.
        """
        if ALONE:
            return
        if self._until:
            self._backoff.tried(in_vain=began > self._until)
            self._until = 0.0
        if not self._backoff.is_due():
            return
        self._until = perf_counter() + AWAKE_SECONDS
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._awake = perf_counter() < self._until
        if self._awake:
            self._loop.call_soon(self._turn)
