"""Looking for what a child says to its input before the write is answered.

What a child answers at once (an interpreter its prompt, a terminal its echo) is there within some fifty
microseconds. A server that went to sleep meanwhile has to be woken, which takes as long again, and its client
is woken twice, for the reply to the write and for the output. So the reply waits for a moment, and leaves
together with the answer.

Rules kept in this file:

1. A look is bounded. Of writes that come together only the first is followed by one.
2. A child that does not answer is looked at ever more seldom, down to one write of 256: one that only takes
   input, and one that thinks for longer, costs next to nothing. The same holds where every processor is
   busy: then nobody answers in time.
3. With a single processor nobody looks: the child needs it.
4. Nothing here touches a byte. What is found is taken as if the loop had found it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from execserver.backoff import ALONE, Backoff
from execserver.processes.poller import READABLE, Watch
from execserver.spool.system_calls import unread_bytes

WAIT_SECONDS: Final = 150e-6
"""How long a look takes at the most. Of the answers of `cat` nine in ten come within 50 us, on a terminal
within 115 us."""

TOGETHER_SECONDS: Final = 50e-6
"""Writes that follow each other faster came together: a client that waits for replies needs longer."""


class PromptPredictor:
    """Whether a child answers its input at once, by what it did before.

    Args:
        terminal: whether its input comes from a terminal.
    """

    __slots__ = ("_backoff", "_last", "terminal")

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self._last = 0.0
        """When the last write was, or the look that followed it ended."""
        self._backoff = Backoff()

    def is_prompt(self) -> bool:
        """Whether to look after this write. To be asked once for each."""
        if ALONE:
            return False
        if not self._backoff.is_due():
            return False
        now = perf_counter()
        last, self._last = self._last, now
        return now - last > TOGETHER_SECONDS

    def observed(self, *, answered: bool) -> None:
        """What a look brought."""
        self._last = perf_counter()
        self._backoff.tried(in_vain=not answered)


def wait_for_output(predictor: PromptPredictor, outputs: Sequence[Watch]) -> None:
    """Wait for a moment until there is output, and let it be taken.

    Args:
        predictor: of the child that was given input.
        outputs: pipes or a terminal, as far as they are read now.
    """
    now = perf_counter()
    end = now + WAIT_SECONDS
    answered = False
    while now < end and not answered:
        if predictor.terminal:
            # What passes a terminal's bytes on is a worker of the kernel, which may be waiting for the very
            # processor that we are on.
            os.sched_yield()
        answered = _take(outputs)
        now = perf_counter()
    # Whoever else wants the processor may have got it for long: that is no answer in time either.
    predictor.observed(answered=answered and now < end + WAIT_SECONDS)


def _take(outputs: Sequence[Watch]) -> bool:
    """Whether there was something. To count is cheaper than to poll, and polling a terminal can sleep until
    that worker is done.
    """
    found = False
    for watch in outputs:
        # A callback may have ended the interest in another one.
        if watch.events & READABLE and unread_bytes(watch.fd):
            watch.callback(READABLE)
            found = True
    return found
