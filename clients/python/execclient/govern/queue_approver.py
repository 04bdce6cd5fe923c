"""Questions in a queue, for a host that has a user interface of its own.

    async for pending in approver:
        pending.answer(await my_dialog(pending.request))

Rules kept in this file:

1. A question stands in the queue from the moment it is asked until it is answered or withdrawn, and is handed
   out once.
2. The first answer counts. One that comes too late changes nothing, and says so.
3. After `close` every question is refused: a host without its interface approves nothing.

One event loop; nothing here is safe to call from other threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Self

from execclient.govern.approvals import ApprovalRequest, Review

__all__ = ["CLOSED", "PendingApproval", "QueueApprover"]

CLOSED = Review("denied", "the user interface was closed")
"""The answer to what is asked after the end, or was still open then."""


class PendingApproval:
    """One question that waits for its answer."""

    def __init__(self, request: ApprovalRequest) -> None:
        self.request = request
        self._answer: asyncio.Future[Review] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()

    @property
    def open(self) -> bool:
        """Whether an answer is still wanted."""
        return not self._answer.done()

    def answer(self, review: Review) -> bool:
        """Answer it. False if it was answered or withdrawn before, and this answer does not count."""
        if not self.open:
            return False
        self._answer.set_result(review)
        self._settled.set()
        return True

    async def settled(self) -> None:
        """Wait until no answer is wanted any more: a dialog that is still open can be closed."""
        await self._settled.wait()

    async def answered(self) -> Review:
        """Wait for the answer.

        Raises:
            CancelledError: the question was withdrawn.
        """
        return await self._answer

    def withdraw(self) -> None:
        """Want no answer any more."""
        self._answer.cancel()
        self._settled.set()


class QueueApprover:
    """Asks whoever iterates over it. A `Reviewer`."""

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
        """Put the question into the queue, and wait for its answer.

        Raises:
            CancelledError: the caller gave up; the question is withdrawn.
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
            with suppress(ValueError):  # handed out, as a rule
                self._new.remove(pending)
            pending.withdraw()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PendingApproval:
        """The next question that nobody has been handed; waits for one. Ends after `close`."""
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
        """Refuse what is open and what is asked from now on, and end the iteration. May be called again."""
        self._closed = True
        for pending in self.pending:
            pending.answer(CLOSED)
        async with self._changed:
            self._changed.notify_all()
