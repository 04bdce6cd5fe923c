"""A reviewer with a queue of questions, for a host with its own user interface.

    async for pending in approver:
        pending.answer(await my_dialog(pending.request))

Rules kept in this file:

1. A question is in the queue until it is answered or withdrawn, and the iteration returns it once.
2. The first answer counts. A later answer changes nothing, and `answer` returns False.
3. After `close`, every question is refused: a host without its interface approves nothing.

Not thread-safe: all calls must come from one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Self

from execclient.govern.approvals import ApprovalRequest, Review

__all__ = ["CLOSED", "PendingApproval", "QueueApprover"]

CLOSED = Review("denied", "the user interface was closed")
"""The answer to questions that are open at `close` or asked after it."""


class PendingApproval:
    """One question that waits for its answer."""

    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request
        self._answer: asyncio.Future[Review] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()

    @property
    def open(self) -> bool:
        """Whether the question still waits for an answer."""
        return not self._answer.done()

    def answer(self, review: Review) -> bool:
        """Answer the question. False if it was answered or withdrawn before: the answer does not count."""
        if not self.open:
            return False
        self._answer.set_result(review)
        self._settled.set()
        return True

    async def settled(self) -> None:
        """Wait until the question is answered or withdrawn: then an open dialog can be closed."""
        await self._settled.wait()

    async def answered(self) -> Review:
        """Wait for the answer.

        Raises:
            CancelledError: the question was withdrawn.
        """
        return await self._answer

    def withdraw(self) -> None:
        """Withdraw the question."""
        self._answer.cancel()
        self._settled.set()


class QueueApprover:
    """A `Reviewer` whose questions are read by iterating over it."""

    def __init__(self) -> None:
        self._pending: list[PendingApproval] = []
        self._new: deque[PendingApproval] = deque()
        self._changed = asyncio.Condition()
        self._closed = False

    @property
    def pending(self) -> tuple[PendingApproval, ...]:
        """The questions that are open, the oldest first."""
        return tuple(pending for pending in self._pending if pending.open)

    async def review(self, request: ApprovalRequest) -> Review | None:
        """Queue the question and wait for its answer.

        Raises:
            CancelledError: the caller was cancelled; the question is withdrawn.
        """
        if self._closed:
            return CLOSED
        pending = PendingApproval(request)
        self._pending.append(pending)
        self._new.append(pending)
        try:
            async with self._changed:
                self._changed.notify()
            return await pending.answered()
        finally:
            self._pending.remove(pending)
            with suppress(ValueError):  # usually returned by the iteration already
                self._new.remove(pending)
            pending.withdraw()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PendingApproval:
        """The next question, which the iteration has not returned yet; waits for one. Ends after `close`."""
        async with self._changed:
            while True:
                while self._new:
                    pending = self._new.popleft()
                    if pending.open:
                        return pending
                if self._closed:
                    raise StopAsyncIteration
                await self._changed.wait()

    async def close(self) -> None:
        """Refuse open and future questions, and end the iteration. May be called again."""
        self._closed = True
        for pending in self.pending:
            pending.answer(CLOSED)
        async with self._changed:
            self._changed.notify_all()
