"""Staying awake for a moment after the answer to a long poll, because the next poll follows.

A client that follows a process with `process/read` asks again as soon as it has an answer, and often
something else with it. It has slept until then, as we have, so it needs longer for that than a client that
is awake (`busy_poll.py`): a tenth of a millisecond or two. A server that goes to sleep meanwhile
has to be woken again, from the depth into which processors fall when nothing happens.

Rules kept in this file:

1. A moment is bounded, ends with the next message, and holds up nobody: the loop serves whatever comes from
   wherever, it only does not sleep meanwhile. Each of its turns begins with a look at this client, whose
   next message has often come by the time that the system call is over which sent it the answer.
2. A client that does not ask again in time is waited for ever more seldom, down to after one answer of 256.
3. With a single processor nobody is waited for: the client needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from execserver.backoff import ALONE, Backoff

AWAKE_SECONDS: Final = 500e-6
"""How long a moment is. Of clients that slept for 300 ms nearly all have asked again by then; with half of it
the gain was gone on a busy day, with twice as much it was the same."""


class NextPoll:
    """Whether one client's next poll is waited for, by how soon those before followed.

    Args:
        look: sends the answer if it has not left, and reads what has come from the client.
        heard: a number that grows with whatever comes from the client.
    """

    __slots__ = ("_awake", "_backoff", "_heard", "_look", "_loop", "_seen", "_until")

    def __init__(self, look: Callable[[], None], heard: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._look = look
        self._heard = heard
        self._backoff = Backoff()
        self._awake = False
        self._seen = 0
        self._until = 0.0

    def answered(self) -> None:
        """A poll is being answered that was waited for."""
        if ALONE or self._awake or not self._backoff.is_due():
            return
        self._awake = True
        self._seen = self._heard()
        self._until = perf_counter() + AWAKE_SECONDS
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        goes_on = False
        try:
            self._look()
            in_vain = self._heard() == self._seen
            goes_on = in_vain and perf_counter() < self._until
        finally:
            self._awake = goes_on
        if goes_on:
            self._loop.call_soon(self._turn)
        else:
            self._backoff.tried(in_vain=in_vain)
