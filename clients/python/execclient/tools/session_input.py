"""Whether a model may type into a process that was started in another turn.

What is typed into a process is not judged by rules: only the program there knows whether it is a command.
What guards it is what the process was started under, its sandbox and the approval of its start. So that
this still says something in a later turn, it has to be asked about there if the turn would not have let the
process be started like that without a question.
"""

from __future__ import annotations

from execclient.govern.approvals import ApprovalCache, ApprovalRequest
from execclient.govern.orchestrator import ask
from execclient.govern.policy.decision import shown
from execclient.tools.command_call import approval_scope
from execclient.tools.context import CallContext, ToolSession
from execclient.tools.errors import Rejected, RespondToModel

TOOL = "write_stdin"

REASON = "input for {command}, which was started when other things were permitted than in this turn"

SESSION_WIDE = "if for the whole session: whatever is typed into this process from now on"
"""The key of the answer has no text in it: a program is talked to in many lines."""

NOBODY_TO_ASK = (
    "write_stdin failed: session {session} was started when other things were permitted than in this turn, "
    "and the approval policy {policy} lets nobody be asked; start another session with exec_command"
)


async def ask_to_type(
    context: CallContext, session: ToolSession, data: str, *, name: str, call_id: str
) -> None:
    """Return if it may be typed.

    Args:
        context: of the call that would type it.
        session: where.
        data: what.
        name: of the session, as the model knows it.
        call_id: the call.

    Raises:
        RespondToModel: it may not.
        TurnAborted: somebody wants the turn to end.
    """
    if not _is_less_confined(context, session):
        return
    approval, call = context.approval, session.call
    if not approval.asks_for_sandbox:
        reason = NOBODY_TO_ASK.format(session=name, policy=approval.name)
        context.events.decided("refuse", "approval_policy", None, sandboxed=session.confined, reason=reason)
        raise RespondToModel(reason)
    request = ApprovalRequest(
        call_id=call_id,
        tool=TOOL,
        kind="command",
        command=data,
        argv=call.params.command,
        cwd=call.params.cwd,
        reason=REASON.format(command=shown(call.params.command)),
        amendment=None,
        permits=(*session.policy.describe(), SESSION_WIDE),
        retry=False,
    )
    scope = approval_scope(call.executor, context.sandbox, context.workspace_roots)
    key = ApprovalCache.key_of_input(session.exec.process.id, scope=scope)
    confined = session.confined
    try:
        reviewed = await ask(
            context.approvals, request, (key,), context.events, source="approval_policy", sandboxed=confined
        )
    except Rejected as refusal:
        raise RespondToModel(f"write_stdin failed: {refusal}") from refusal
    context.events.decided("run", "approval_policy", reviewed.decided_by, sandboxed=confined)


def _is_less_confined(context: CallContext, session: ToolSession) -> bool:
    """Whether the turn is another one, and would not have let the process be started without a question."""
    call = session.call
    # At another executor than the turn's own its workspace is always the same.
    is_here = call.executor is context.executor
    same_place = not is_here or (call.workspace_roots, call.turn_cwd) == (
        context.workspace_roots,
        context.cwd,
    )
    if context.services.policy.parity:
        return False
    if call.sandbox == context.sandbox and call.approval == context.approval and same_place:
        return False
    if context.approval.unmatched != "allow":
        return True
    return context.sandbox.confines and not (session.policy == context.sandbox and same_place)
