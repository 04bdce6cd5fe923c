"""`write_stdin`: write to a running command, or get its output since the last answer.

No rule judges the input: a running shell accepts any command, within the sandbox under which it was started.
A host whose rules must hold for each command should ask about shells and interpreters, too. In a later turn
that permits less, `approve_input` asks for an approval or refuses. Reading output and interrupting need no
approval.
"""

from __future__ import annotations

import asyncio

from execclient.errors import ConnectionLost, ExecutorClosed, LineTooLong, NoSuchProcess, StdinUnavailable
from execclient.govern.approvals import ApprovalCache, ApprovalRequest
from execclient.govern.orchestrator import ask
from execclient.govern.policy.decision import command_line
from execclient.process_control import LINGER_SECONDS
from execclient.tools import exec_text
from execclient.tools.arguments import WriteStdinArguments
from execclient.tools.command_call import approval_scope
from execclient.tools.context import CallContext, ToolSession
from execclient.tools.errors import Rejected, RespondToModel
from execclient.tools.function_handler import FunctionHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.session_answers import session_answer, session_number

MIN_WRITE_YIELD_MS, MAX_WRITE_YIELD_MS = 250, 30_000
"""As for `exec_command`."""
MIN_POLL_MS, MAX_POLL_MS = 5_000, 300_000
"""A model that only waits should not wait in many small steps."""

REACTION_SECONDS = 0.1
"""After a write: the output in response to the input belongs to the answer."""

ENDING_SECONDS = LINGER_SECONDS + REACTION_SECONDS
"""For the end of a command that takes no more input."""

INTERRUPT = "\x03"


async def write_stdin(context: CallContext, arguments: WriteStdinArguments, call_id: str) -> CallRecord:
    """Carry out a call.

    Raises:
        RespondToModel: there is no such session, or it takes no input, at least not in this turn.
        TurnAborted: a reviewer ended the turn.
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
        await approve_input(context, session, arguments.data, name=arguments.session, call_id=call_id)
    listener = context.events.delta
    session.exec.listen(listener)
    try:
        if arguments.data:
            low, high = MIN_WRITE_YIELD_MS, MAX_WRITE_YIELD_MS
            await _write(session, arguments.data)
        else:
            low, high = MIN_POLL_MS, MAX_POLL_MS
        end = loop.time() + context.wait_seconds(arguments.yield_time_ms, low, high)
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
    return await session_answer(context, session, record, number=number, budget=budget)


class WriteStdinHandler(FunctionHandler[WriteStdinArguments]):
    """Handles calls of `write_stdin`."""

    model = WriteStdinArguments
    beside_others = True  # may wait for minutes, and starts nothing

    async def mutates(self, context: CallContext, arguments: WriteStdinArguments) -> bool:
        """True for input, which may do anything; False for waiting."""
        return bool(arguments.data)

    async def call(
        self, context: CallContext, arguments: WriteStdinArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Carry out the call."""
        return await write_stdin(context, arguments, invocation.call_id)


async def _write(session: ToolSession, data: str) -> None:
    process, parity = session.exec.process, session.call.policy.parity
    if not session.call.params.tty:
        if data != INTERRUPT:
            raise RespondToModel(exec_text.STDIN_CLOSED)
    elif session.terminal is not None:
        async with session.turn:
            session.terminal.typed(data)
    try:
        tty = session.call.params.tty
        await (process.write(data, whole_lines=not parity) if tty else process.interrupt())
    except LineTooLong as error:
        if session.terminal is not None:
            session.terminal.take_back()
        raise RespondToModel(exec_text.line_too_long(error.message)) from error
    except (StdinUnavailable, NoSuchProcess):
        # The command has just ended: the answer has its exit code.
        if not await session.exec.collect(ENDING_SECONDS):
            raise RespondToModel(exec_text.STDIN_CLOSED) from None
    except (ConnectionLost, ExecutorClosed):
        # If the process is lost for good, the answer reports it. Otherwise only this call fails.
        if not await session.exec.collect(REACTION_SECONDS):
            raise


# -- questions

TOOL = "write_stdin"

REASON = "input for {command}, which was started under other permissions than those of this turn"

SESSION_WIDE = "if for the whole session: all input for this process from now on"
"""The key of the answer does not contain the input: a program gets many lines."""

NO_QUESTIONS = (
    "write_stdin failed: session {session} was started under other permissions than those of this turn, "
    "and the approval policy {policy} allows no questions; start another session with exec_command"
)


async def approve_input(
    context: CallContext, session: ToolSession, data: str, *, name: str, call_id: str
) -> None:
    """Return if a model may write input to a session that an earlier turn may have started.

    Rules do not judge input: only the program knows whether it is a command. The sandbox of the process and
    the approval of its start limit it. In a turn that would not have started the process like this without a
    question, the input needs an approval.

    Args:
        context: the context of the call.
        session: the session.
        data: the input.
        name: the model's name of the session.
        call_id: the id of the call.

    Raises:
        RespondToModel: the input was refused.
        TurnAborted: a reviewer ended the turn.
    """
    if not _is_less_confined(context, session):
        return
    approval, call = context.approval, session.call
    if not approval.asks_for_sandbox:
        reason = NO_QUESTIONS.format(session=name, policy=approval.name)
        context.events.decided("refuse", "approval_policy", None, sandboxed=session.confined, reason=reason)
        raise RespondToModel(reason)
    request = ApprovalRequest(
        call_id=call_id,
        tool=TOOL,
        kind="command",
        command=data,
        argv=call.params.command,
        cwd=call.params.cwd,
        reason=REASON.format(command=command_line(call.params.command)),
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
    """Whether this turn would not have started the process like this without a question."""
    call = session.call
    # At another executor than the turn's own, the workspace is always the same.
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
