"""Takes the immediate output of a child after a write, so that it is sent together with the reply.

An interpreter's prompt or a terminal's echo arrives within some fifty microseconds. If the server sleeps
meanwhile, waking it takes as long again, and the client wakes up twice: for the reply to the write, and for
the output. So the server waits for a moment before it replies.

Rules kept in this file:

1. The wait is bounded. Of writes that come together, only the first is followed by one.
2. After unsuccessful waits the server tries less often, down to one write of 256: a child that only takes
   input, or computes for longer, costs next to nothing. So does a machine whose processors are all busy.
3. With a single processor the server never waits: the child needs that processor.
4. Nothing here reads output. The callback of the watch does, as if the loop had found it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from execserver.busy_poll import SINGLE_PROCESSOR, Backoff
from execserver.processes.poller import READABLE, Watch
from execserver.spool.system_calls import unread_bytes

WAIT_SECONDS: Final = 150e-6
"""How long to wait at most. Nine in ten answers of `cat` arrive within 50 us, on a terminal within 115 us."""

TOGETHER_SECONDS: Final = 50e-6
"""Writes in faster succession came together: a client that waits for replies needs longer."""


class PromptPredictor:
    """Predicts from earlier writes whether a child answers its input at once.

    Args:
        terminal: whether its input comes from a terminal.
    """

    __slots__ = ("_backoff", "_last", "terminal")

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self._last = 0.0
        """When the last write was, or the wait after it ended."""
        self._backoff = Backoff()

    def is_prompt(self) -> bool:
        """Whether to wait after this write. To be called once for each write."""
        if SINGLE_PROCESSOR:
            return False
        if not self._backoff.is_due():
            return False
        now = perf_counter()
        last, self._last = self._last, now
        return now - last > TOGETHER_SECONDS

    def observed(self, *, answered: bool) -> None:
        """Record the result of a wait."""
        self._last = perf_counter()
        self._backoff.tried(unsuccessful=not answered)


def wait_for_output(predictor: PromptPredictor, outputs: Sequence[Watch]) -> None:
    """Wait for a moment until there is output, and take it.

    Args:
        predictor: of the child that got input.
        outputs: the pipes or the terminal, as far as they are read now.
    """
    now = perf_counter()
    end = now + WAIT_SECONDS
    answered = False
    while now < end and not answered:
        if predictor.terminal:
            # A worker of the kernel forwards a terminal's bytes. It may be waiting for this processor.
            os.sched_yield()
        answered = _take(outputs)
        now = perf_counter()
    # Another process may have had the processor for long: then the answer was not in time either.
    predictor.observed(answered=answered and now < end + WAIT_SECONDS)


def _take(outputs: Sequence[Watch]) -> bool:
    """Take what there is. Counting bytes is cheaper than polling, and polling a terminal can sleep until
    that worker is done.
    """
    found = False
    for watch in outputs:
        # An earlier callback may have stopped this watch.
        if watch.events & READABLE and unread_bytes(watch.fd):
            watch.callback(READABLE)
            found = True
    return found
