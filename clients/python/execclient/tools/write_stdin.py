"""`write_stdin`: write to a command that still runs, or look what it has printed since.

No rule judges what is written: a shell that was started may be typed any command, within the sandbox that it
was started under. Hosts whose rules are to hold for each command ask about shells and interpreters, too. In a
turn that permits less, `session_input` has somebody asked, or refuses. Looking and interrupting are free.
"""

from __future__ import annotations

import asyncio

from execclient.errors import ConnectionLost, ExecutorClosed, NoSuchProcess, StdinUnavailable
from execclient.govern.approvals import ApprovalCache, ApprovalRequest
from execclient.govern.orchestrator import ask
from execclient.govern.policy.decision import shown
from execclient.process import LINGER_SECONDS
from execclient.tools import exec_text
from execclient.tools.arguments import WriteStdinArguments
from execclient.tools.command_call import approval_scope
from execclient.tools.context import CallContext, ToolSession
from execclient.tools.errors import Rejected, RespondToModel
from execclient.tools.function_handler import FunctionHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.sessions import answer, session_number

MIN_WRITE_YIELD_MS, MAX_WRITE_YIELD_MS = 250, 30_000
"""As of `exec_command`."""
MIN_POLL_MS, MAX_POLL_MS = 5_000, 300_000
"""A model that only waits should not do so in many small steps."""

REACTION_SECONDS = 0.1
"""After a write, before the end of the command counts: what it prints in answer is part of the answer."""

ENDING_SECONDS = LINGER_SECONDS + REACTION_SECONDS
"""For the end of one that takes no input any more."""

INTERRUPT = "\x03"


async def write_stdin(context: CallContext, arguments: WriteStdinArguments, call_id: str) -> CallRecord:
    """Carry out a call.

    Raises:
        RespondToModel: there is no such session, it takes no input, or none of this turn's.
        TurnAborted: somebody wants the turn to end.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    number = session_number(arguments.session)
    session = None if number is None else context.services.sessions.use(number)
    if number is None or session is None:
        raise RespondToModel(exec_text.unknown_session(arguments.session))
    params = session.call.params
    context.events.begin(params.command, params.cwd)
    if arguments.data and arguments.data != INTERRUPT:
        await ask_to_type(context, session, arguments.data, name=arguments.session, call_id=call_id)
    listener = context.events.delta
    session.exec.listen(listener)
    try:
        if arguments.data:
            low, high = MIN_WRITE_YIELD_MS, MAX_WRITE_YIELD_MS
            await _write(session, arguments.data)
        else:
            low, high = MIN_POLL_MS, MAX_POLL_MS
        end = loop.time() + min(max(arguments.yield_time_ms, low), high) / 1000
        if arguments.data:
            await asyncio.sleep(REACTION_SECONDS)
        await session.exec.collect(max(end - loop.time(), 0))
    finally:
        session.exec.unlisten(listener)
    record = CallRecord(
        call_id=call_id,
        tool="write_stdin",
        command=params.command,
        cwd=params.cwd,
        duration=loop.time() - began,
    )
    budget = context.budget(arguments.max_output_tokens)
    return await answer(context, session, record, number=number, budget=budget)


class WriteStdinHandler(FunctionHandler[WriteStdinArguments]):
    """As a tool."""

    model = WriteStdinArguments

    async def mutates(self, context: CallContext, arguments: WriteStdinArguments) -> bool:
        """What is typed may do anything; looking does nothing."""
        return bool(arguments.data)

    async def call(
        self, context: CallContext, arguments: WriteStdinArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Carry it out."""
        return await write_stdin(context, arguments, invocation.call_id)


async def _write(session: ToolSession, data: str) -> None:
    process = session.exec.process
    if not session.call.params.tty:
        if data != INTERRUPT:
            raise RespondToModel(exec_text.STDIN_CLOSED)
    elif session.terminal is not None:
        async with session.turn:
            session.terminal.typed(data)
    try:
        await (process.write(data) if session.call.params.tty else process.interrupt())
    except (StdinUnavailable, NoSuchProcess):
        # It has just ended: the answer says so, with its exit code.
        if not await session.exec.collect(ENDING_SECONDS):
            raise RespondToModel(exec_text.STDIN_CLOSED) from None
    except (ConnectionLost, ExecutorClosed):
        # For good: the answer says so. What may be had again is an error of this call alone.
        if not await session.exec.collect(REACTION_SECONDS):
            raise


# -- questions

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
