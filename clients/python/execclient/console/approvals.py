"""The questions of a `QueueApprover`, shown in the pages of a console and answered there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from execclient.connection.connection import Json
from execclient.govern.approvals import ApprovalRequest, Review
from execclient.govern.queue_approver import PendingApproval, QueueApprover

POLL_SECONDS = 0.2
"""Between two looks at the queue, while a page is open. The queue's iteration belongs to the host, and
returns each question once."""

ALWAYS_VALID = ("acceptForSession", "decline")
"""Besides the decisions that a request offers."""


class ApprovalsView:
    """The open questions of a queue.

    Args:
        approver: the queue.
        changed: called when questions came, were answered or withdrawn.
    """

    def __init__(self, approver: QueueApprover, changed: Callable[[], None]) -> None:
        self._approver = approver
        self._changed = changed
        self._numbers: dict[PendingApproval, int] = {}
        self._last = 0

    def snapshot(self) -> list[Json]:
        """The open questions, the oldest first, for the page."""
        pending = self._approver.pending
        for each in pending:
            if each not in self._numbers:
                self._last += 1
                self._numbers[each] = self._last
        self._numbers = {each: self._numbers[each] for each in pending}
        return [_shown(number, each.request) for each, number in self._numbers.items()]

    async def run(self) -> None:
        """Report changes, until cancelled."""
        before: list[int] = []
        while True:
            self.snapshot()
            numbers = list(self._numbers.values())
            if numbers != before:
                before = numbers
                self._changed()
            await asyncio.sleep(POLL_SECONDS)

    def answer(self, number: int, decision: Json, reason: str | None) -> bool:
        """Answer a question. False if it was answered or withdrawn before: the first answer counts.

        Args:
            number: of the question.
            decision: one of those that the question offers, in the reference's form.
            reason: of a refusal, for the model.

        Raises:
            ValueError: the question does not offer this decision.
        """
        pending = next((each for each, known in self._numbers.items() if known == number), None)
        if pending is None:
            return False
        if decision not in (*pending.request.available_decisions, *ALWAYS_VALID):
            raise ValueError(f"decision: {decision!r} is not offered by this question")
        review = Review.parse(decision, pending.request.rule)
        if reason and not review.approves:
            review = replace(review, reason=reason)
        counts = pending.answer(review)
        self._changed()
        return counts


def _shown(number: int, request: ApprovalRequest) -> Json:
    return {
        "id": number,
        "kind": request.kind,
        "tool": request.tool,
        "command": request.command,
        "cwd": request.cwd,
        "reason": request.reason,
        "retry": request.retry,
        "prompt": request.prompt,
        "permits": list(request.permits),
        "paths": list(request.paths),
        "diff": request.diff,
        "network": None if request.network is None else request.to_json()["networkApprovalContext"],
        "decisions": [*request.available_decisions, *ALWAYS_VALID],
    }
