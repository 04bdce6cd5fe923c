"""`exec_command`: start a command, wait for a while, and leave it running if it has not ended by then."""

from __future__ import annotations

import asyncio

from execclient.client import Executor
from execclient.errors import CallFailed
from execclient.govern.orchestrator import Trace
from execclient.shells import Shell, candidates
from execclient.tools import exec_text
from execclient.tools.arguments import ExecCommandArguments
from execclient.tools.command_call import CommandCall, YieldingRuntime
from execclient.tools.command_record import begun_record
from execclient.tools.context import CallContext, ToolSession
from execclient.tools.errors import ArgumentError, Rejected, RespondToModel
from execclient.tools.exec_params import ExecParams
from execclient.tools.function_handler import CommandHandler
from execclient.tools.registry import ToolInvocation
from execclient.tools.result import CallRecord, failed
from execclient.tools.run_to_end import NOT_STARTED, intercept_call, start_failure
from execclient.tools.session_answers import open_session, session_answer, session_number
from execclient.tools.session_table import MAX_CHOSEN_ID, SessionIdTaken
from execclient.tools.terminal_text import TerminalText

MIN_YIELD_MS, MAX_YIELD_MS = 250, 30_000
"""With a shorter wait, a model gets only a session number; with a longer one, it waits without output."""


class ExecCommandHandler(CommandHandler[ExecCommandArguments]):
    """Starts commands that a model can come back to."""

    model = ExecCommandArguments

    async def mutates(self, context: CallContext, arguments: ExecCommandArguments) -> bool:
        """True unless the command is known to only read."""
        return not context.reads_only(arguments.argv or context.shell.exec_args(arguments.script or ""))

    async def prepare(
        self, context: CallContext, arguments: ExecCommandArguments, invocation: ToolInvocation
    ) -> CommandCall:
        """The command to run."""
        context = context.in_environment(context, arguments.environment_id)
        params = ExecParams(
            command=await _argv(context, arguments),
            cwd=context.resolve(arguments.workdir),
            env=context.env(invocation.call_id),
            sandbox_permissions=context.permissions(arguments.sandbox_permissions),
            justification=arguments.justification,
            tty=arguments.tty,
        )
        return context.command_call(
            invocation.call_id, invocation.tool_name, params, prefix_rule=arguments.prefix_rule
        )

    async def call(
        self, context: CallContext, arguments: ExecCommandArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Start the command and wait for a while."""
        call = await self.prepare(context, arguments, invocation)
        context = context.in_environment(context, arguments.environment_id)
        context.events.begin(call.params.command, call.params.cwd)
        taken = await intercept_call(context, call)
        if taken is not None:
            return taken
        number = _reserve(context, arguments.process_id)
        try:
            return await _run(context, call, arguments, number)
        finally:
            if not context.services.sessions.is_open(number):
                context.services.sessions.release(number)


async def _run(
    context: CallContext, call: CommandCall, arguments: ExecCommandArguments, number: int
) -> CallRecord:
    loop = asyncio.get_running_loop()
    trace, began = Trace(), loop.time()
    seconds = context.wait_seconds(arguments.yield_time_ms, MIN_YIELD_MS, MAX_YIELD_MS)
    runtime = YieldingRuntime(call, context.events.delta, seconds)
    try:
        done = await context.orchestrator().run(runtime, context.events, trace)
    except Rejected as refusal:
        record = failed(
            begun_record(call, trace, None, loop.time() - began), "rejected", str(refusal), terminal=True
        )
        return record if refusal.before else record.with_text(exec_text.rejected(str(refusal)))
    except NOT_STARTED as error:
        start = start_failure(error, trace, call, context)
        record = failed(begun_record(call, trace, runtime.env, loop.time() - began), "io", start.message)
        return record.with_text(start.with_reason(start.text or exec_text.not_started(start.message)))
    record = begun_record(call, trace, runtime.env, runtime.seconds)
    clean = call.params.tty and context.services.config.clean_terminal
    session = ToolSession(done.output, call, trace.attempts[-1].policy, TerminalText() if clean else None)
    if done.retry_refused is not None:
        if context.services.policy.parity:
            refused = failed(record, "rejected", done.retry_refused, terminal=True)
            return refused.with_text(exec_text.rejected(done.retry_refused))
        context.warnings.append(exec_text.retry_refused(done.retry_refused))
    budget = context.budget(arguments.max_output_tokens)
    try:
        if not done.output.finished.is_set():
            await open_session(context, number, session)
        return await session_answer(context, session, record, number=number, budget=budget)
    except BaseException:
        # The model would not get the session's number.
        context.services.sessions.release(number, session)
        await done.output.end("cancelled")
        raise
    finally:
        done.output.unlisten(runtime.listener)


def _reserve(context: CallContext, wanted: str | None) -> int:
    sessions = context.services.sessions
    if wanted is None:
        return sessions.reserve()
    number = session_number(wanted)
    if number is None:
        raise ArgumentError(f"`process_id` {wanted!r} is no number from 1 to {MAX_CHOSEN_ID}")
    try:
        return sessions.reserve(number)
    except SessionIdTaken as error:
        raise RespondToModel(f"exec_command failed: {error}") from None
    except ValueError as error:
        raise ArgumentError(f"`process_id`: {error}") from None


async def _argv(context: CallContext, arguments: ExecCommandArguments) -> tuple[str, ...]:
    if arguments.argv is not None:
        return arguments.argv
    shell = context.shell
    if arguments.shell is not None:
        shell = await _found(arguments.shell, context.executor, shell) or shell
    return shell.exec_args(arguments.script or "", login=arguments.login)


async def _found(wanted: str, executor: Executor, user: Shell) -> Shell | None:
    """The shell that a model asks for, if the executor has it."""
    for candidate in candidates(wanted, user):
        try:
            if (await executor.fs.stat(candidate.path)).is_file:
                return candidate
        except CallFailed:
            continue
    return None
