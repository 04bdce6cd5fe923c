"""Runs a command to its end, for `shell`, `shell_command` and `run_shell_command`."""

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
from execclient.results import TIMED_OUT
from execclient.tools.command_call import CommandCall, RunToEndRuntime
from execclient.tools.command_record import (
    NO_SUCH_FILE,
    NOT_FOUND,
    NOT_RUN,
    begun_record,
    ended_record,
    text_of,
)
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
from execclient.tools.notes import notes, start_note
from execclient.tools.result import CallRecord, failed

NOT_STARTED = (CallFailed, CallTimeout, ConnectionLost, Unsupported)
"""Errors of a start that are reported to the model."""


async def run_to_end(context: CallContext, call: CommandCall, *, gently: bool = False) -> CallRecord:
    """Decide on a command and run it to its end.

    Args:
        context: the context of the call.
        call: the command.
        gently: whether to send SIGTERM first at the time limit.

    Raises:
        TurnAborted: a reviewer ended the turn.
    """
    context.events.begin(call.params.command, call.params.cwd)
    taken = await intercept_call(context, call)
    if taken is not None:
        return taken
    loop = asyncio.get_running_loop()
    trace, began = Trace(), loop.time()
    runtime = RunToEndRuntime(call, context.events.delta, gently=gently)
    try:
        done = await context.orchestrator().run(runtime, context.events, trace)
    except Rejected as refusal:
        record = begun_record(call, trace, runtime.env, loop.time() - began)
        return failed(record, "rejected", str(refusal), terminal=True)
    except NOT_STARTED as error:
        start = start_failure(error, trace, call, context)
        record = replace(
            begun_record(call, trace, runtime.env, loop.time() - began), exit_code=start.exit_code
        )
        text = start.text or f"failed to start: {start.message}"
        return failed(record, "io", start.with_reason(text, ": "))
    session = done.output
    if done.retry_refused is not None:
        context.warnings.append(retry_refused(done.retry_refused))
    record = begun_record(call, trace, runtime.env, loop.time() - began)
    record = ended_record(
        record,
        session,
        confined=trace.attempts[-1].policy.confines,
        timed_out=runtime.timed_out,
        cancelled=runtime.cancelled,
    )
    return _shown(record, session, runtime, context)


class StartFailure(NamedTuple):
    """The report on a start that failed."""

    message: str
    text: str | None
    """The text for the model; None if the tool words the message itself."""
    exit_code: int | None
    """None if the command may have run."""
    reason: str
    """The cause; empty if it is unknown or not reported."""

    def with_reason(self, text: str, separator: str = "\n") -> str:
        """A text for the model, followed by the cause."""
        return separator.join(filter(None, (text, self.reason)))


def start_failure(
    error: ExecServerError, trace: Trace, call: CommandCall, context: CallContext
) -> StartFailure:
    """The report on one of `NOT_STARTED`. It does not deny that the command has run if that is unknown.

    With parity it has only the reference's text, without the cause.
    """
    message = error.message if isinstance(error, CallFailed) else str(error)
    code: int | None = NOT_FOUND if message.endswith(NO_SUCH_FILE) else NOT_RUN
    text = None
    if isinstance(error, OutcomeUnknown | CallTimeout):
        text, code = may_have_run(message, tool=call.tool), None
    if len(trace.attempts) > 1:
        text, code = ran_within_sandbox(text or f"failed to start: {message}"), None
    reasons: list[str] = []
    if isinstance(error, CallFailed) and not context.services.policy.parity:
        reasons += filter(None, [error.reason, start_note(context, call, error)])
    return StartFailure(message, text, code, "\n".join(reasons))


async def intercept_call(context: CallContext, call: CommandCall) -> CallRecord | None:
    """The result of the first interceptor that carries out the command; None if the command is to run."""
    for interceptor in context.services.interceptors:
        params = call.params
        taken = await interceptor(
            InterceptedCall(call.call_id, call.tool, params.command, params.cwd, context)
        )
        if taken is not None:
            return taken
    return None


def _shown(
    record: CallRecord, session: ExecSession, runtime: RunToEndRuntime, context: CallContext
) -> CallRecord:
    output, lost = session.take(), session.take_lost()
    seconds = None if runtime.env is None else runtime.env.expiration.seconds
    text = output.text(f"\n{omission_marker(output.omitted_bytes)}\n")
    if session.failure is not None or session.process.failure is not None:
        parts = [text, record.failure.message] if record.failure is not None else [text]
        text = "\n".join(filter(None, parts))
    denied = record.failure is not None and record.failure.kind == "denied"
    context.warnings.extend(notes(context, runtime.call, session, text, denied=denied))
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
        stdout=text_of(session.streams.get("stdout")) or text_of(session.streams.get("pty")),
        stderr=text_of(session.streams.get("stderr")),
        aggregated=output.text(),
        total_bytes=output.total_bytes,
        omitted_bytes=output.omitted_bytes,
        warnings=tuple(context.warnings),
    )
