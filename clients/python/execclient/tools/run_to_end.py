"""What `shell`, `shell_command` and `run_shell_command` have in common: a command that is run to its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

from execclient.errors import (
    CallFailed,
    CallTimeout,
    ConnectionLost,
    ExecServerError,
    OutcomeUnknown,
    Unsupported,
)
from execclient.govern.orchestrator import Trace
from execclient.run import TIMED_OUT
from execclient.tools.command_call import CommandCall, ToTheEnd
from execclient.tools.command_record import NO_SUCH_FILE, NOT_FOUND, NOT_RUN, begun, ended, kept
from execclient.tools.context import CallContext, InterceptedCall
from execclient.tools.errors import Rejected
from execclient.tools.exec_session import ExecSession
from execclient.tools.exec_text import (
    command_envelope,
    lost_output,
    may_have_run,
    omission_marker,
    ran_within_sandbox,
    retry_refused,
)
from execclient.tools.result import CallRecord, failed

NOT_STARTED = (CallFailed, CallTimeout, ConnectionLost, Unsupported)
"""What a start fails with that the model is told of."""


async def run_to_end(context: CallContext, call: CommandCall, *, gently: bool = False) -> CallRecord:
    """Govern a command and run it to its end, whatever the sandbox and the policy make of it.

    Args:
        context: of the call.
        call: the command.
        gently: end it with SIGTERM first, when its time is up.

    Raises:
        TurnAborted: somebody wants the turn to end.
    """
    context.events.begin(call.params.command, call.params.cwd)
    taken = await intercepted(context, call)
    if taken is not None:
        return taken
    loop = asyncio.get_running_loop()
    trace, began = Trace(), loop.time()
    runtime = ToTheEnd(call, context.events.delta, gently=gently)
    try:
        done = await context.orchestrator().run(runtime, context.events, trace)
    except Rejected as refusal:
        record = begun(call, trace, runtime.env, loop.time() - began)
        return failed(record, "rejected", str(refusal), terminal=True)
    except NOT_STARTED as error:
        start = start_failure(error, trace, call.tool, context)
        record = replace(begun(call, trace, runtime.env, loop.time() - began), exit_code=start.exit_code)
        text = start.text or f"failed to start: {start.message}"
        return failed(record, "io", start.with_reason(text, ": "))
    session = done.output
    if done.retry_refused is not None:
        context.warnings.append(retry_refused(done.retry_refused))
    record = begun(call, trace, runtime.env, loop.time() - began)
    record = ended(
        record,
        session,
        confined=trace.attempts[-1].policy.confines,
        timed_out=runtime.timed_out,
        cancelled=runtime.cancelled,
    )
    return _shown(record, session, runtime, context)


class StartFailure(NamedTuple):
    """What is told of a start that failed."""

    message: str
    text: str | None
    """For the model; None for the tool's own words around the message."""
    exit_code: int | None
    """None if it may have run."""
    reason: str
    """What is missing or in the way; empty where that is not known, or not told."""

    def with_reason(self, text: str, separator: str = "\n") -> str:
        """A text for the model, and behind it what is missing."""
        return separator.join(filter(None, (text, self.reason)))


def start_failure(error: ExecServerError, trace: Trace, tool: str, context: CallContext) -> StartFailure:
    """What to tell of one of `NOT_STARTED`: not that nothing has run when that is not known.

    With parity only what the reference says, which does not name what is missing.
    """
    message = error.message if isinstance(error, CallFailed) else str(error)
    code: int | None = NOT_FOUND if message.endswith(NO_SUCH_FILE) else NOT_RUN
    text = None
    if isinstance(error, OutcomeUnknown | CallTimeout):
        text, code = may_have_run(message, tool=tool), None
    if len(trace.attempts) > 1:
        text, code = ran_within_sandbox(text or f"failed to start: {message}"), None
    reason = error.reason if isinstance(error, CallFailed) and not context.services.policy.parity else None
    return StartFailure(message, text, code, reason or "")


async def intercepted(context: CallContext, call: CommandCall) -> CallRecord | None:
    """What came of a command that is none, as a patch in a shell's clothes; None for a command."""
    for interceptor in context.services.interceptors:
        params = call.params
        taken = await interceptor(
            InterceptedCall(call.call_id, call.tool, params.command, params.cwd, context)
        )
        if taken is not None:
            return taken
    return None


def _shown(record: CallRecord, session: ExecSession, runtime: ToTheEnd, context: CallContext) -> CallRecord:
    output, lost = session.take(), session.take_lost()
    seconds = None if runtime.env is None else runtime.env.expiration.seconds
    text = output.text(f"\n{omission_marker(output.omitted_bytes)}\n")
    if session.failure is not None or session.process.failure is not None:
        told = [text, record.failure.message] if record.failure is not None else [text]
        text = "\n".join(filter(None, told))
    if any(lost):
        context.warnings.append(lost_output(lost.size, more=lost.more))
    text = "\n".join([*context.warnings, text])
    shown = command_envelope(
        text,
        exit_code=TIMED_OUT
        if record.timed_out
        else NOT_RUN
        if record.exit_code is None
        else record.exit_code,
        wall_seconds=record.duration,
        budget=context.budget(None),
        timed_out_after=seconds if record.timed_out else None,
    )
    return replace(
        record,
        text=shown.text,
        truncated=shown.truncated or any(lost),
        lost_bytes=lost.size,
        stdout=kept(session.streams.get("stdout")) or kept(session.streams.get("pty")),
        stderr=kept(session.streams.get("stderr")),
        aggregated=output.text(),
        total_bytes=output.total_bytes,
        omitted_bytes=output.omitted_bytes,
        warnings=tuple(context.warnings),
    )
