from __future__ import annotations

import asyncio

import pytest

from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.approvals import ACCEPT, DECLINE, ApprovalRequest, Approvals
from execclient.govern.queue_approver import QueueApprover


def request(call_id: str = "c1") -> ApprovalRequest:
    return ApprovalRequest(call_id, "command", "ls", ("ls",), "/w", None, None, (), False, "exec_command")


def ask(approver: QueueApprover, call_id: str = "c1") -> asyncio.Task[object]:
    return asyncio.create_task(approver.review(request(call_id)))


async def test_a_question_is_handed_out_and_answered() -> None:
    approver = QueueApprover()
    asking = ask(approver)

    pending = await anext(approver)

    assert (pending.request, pending.open, approver.pending) == (request(), True, (pending,))
    assert pending.answer(DECLINE)
    assert await asking == DECLINE
    assert approver.pending == ()


async def test_questions_come_in_order_and_are_answered_in_any() -> None:
    approver = QueueApprover()
    asking = [ask(approver, name) for name in "abc"]
    handed = [await anext(approver) for _ in "abc"]

    assert [pending.request.call_id for pending in handed] == ["a", "b", "c"]
    handed[2].answer(ACCEPT)
    handed[0].answer(DECLINE)
    handed[1].answer(DECLINE)

    assert await asyncio.gather(*asking) == [DECLINE, DECLINE, ACCEPT]


async def test_a_question_that_was_withdrawn_disappears() -> None:
    approver = QueueApprover()
    seen, unseen = ask(approver, "seen"), ask(approver, "unseen")
    pending = await anext(approver)

    seen.cancel()
    unseen.cancel()
    await asyncio.wait({seen, unseen})

    await asyncio.wait_for(pending.settled(), 5)  # a dialog closes by this
    assert not pending.open
    assert not pending.answer(ACCEPT)
    assert approver.pending == ()
    third = ask(approver, "third")
    assert (await anext(approver)).request.call_id == "third"
    third.cancel()


async def test_a_timeout_of_the_caller_withdraws_the_question() -> None:
    approver = QueueApprover()
    approvals = Approvals(user=approver, policy=ON_REQUEST)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await approvals.ask(request(), ("{}",))

    assert approver.pending == ()


async def test_the_first_answer_counts() -> None:
    approver = QueueApprover()
    asking = ask(approver)
    pending = await anext(approver)

    assert pending.answer(DECLINE)
    assert not pending.answer(ACCEPT)
    assert await asking == DECLINE


async def test_a_question_can_be_answered_without_iterating() -> None:
    approver = QueueApprover()
    asking = ask(approver)
    while not approver.pending:
        await asyncio.sleep(0)

    approver.pending[0].answer(ACCEPT)

    assert await asking == ACCEPT
    later = ask(approver, "later")
    assert (await anext(approver)).request.call_id == "later"
    later.cancel()


async def test_an_interface_that_closes_refuses_what_is_open_and_what_comes() -> None:
    approver = QueueApprover()
    asking = ask(approver)
    pending = await anext(approver)
    iterating = asyncio.create_task(anext(approver, None))
    await asyncio.sleep(0)

    await approver.close()
    await approver.close()

    review = await asking
    assert getattr(review, "answer", None) == "denied"
    assert not pending.answer(ACCEPT)
    assert await iterating is None
    assert getattr(await approver.review(request("late")), "answer", None) == "denied"


async def test_two_dialogs_share_the_questions() -> None:
    approver = QueueApprover()
    dialogs = [asyncio.create_task(anext(approver)) for _ in range(2)]
    await asyncio.sleep(0)

    asking = [ask(approver, name) for name in "ab"]
    handed = await asyncio.wait_for(asyncio.gather(*dialogs), 5)

    assert sorted(pending.request.call_id for pending in handed) == ["a", "b"]
    for pending in handed:
        pending.answer(ACCEPT)
    await asyncio.gather(*asking)
