"""Builds the records of commands: the decision, the output, and the exit.

Pure functions, except for reading a process that has ended.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

from execclient.govern.orchestrator import Trace
from execclient.govern.sandbox import SandboxPolicy
from execclient.process import Process
from execclient.results import TIMED_OUT
from execclient.tools.command_call import CommandCall
from execclient.tools.exec_params import ExecEnv
from execclient.tools.exec_session import ExecSession
from execclient.tools.result import SIGNAL_BASE, CallRecord, Decided, FailureKind, failed
from execclient.tools.truncation import HeadTailBuffer

NOT_RUN = 126
"""The exit code of a command that could not be run, as in a shell."""

NOT_FOUND = 127
"""The exit code for a program that does not exist, as in a shell."""

NO_SUCH_FILE = "(os error 2)"
"""The end of the daemon's message for such a program (`docs/protocol.md`, "Error codes")."""


def decision_of(trace: Trace, sandbox: SandboxPolicy, sandbox_type: str) -> Decided | None:
    """The decision on a call; None if there is none yet.

    Args:
        trace: the trace of its phases.
        sandbox: the sandbox of the turn.
        sandbox_type: the mechanism that confined the last attempt.
    """
    requirement = trace.requirement
    if requirement is None:
        return None
    reviewed = trace.retry_reviewed or trace.reviewed
    last = trace.attempts[-1] if trace.attempts else None
    policy = sandbox if last is None else last.policy
    return Decided(
        requirement=requirement.kind,
        source=requirement.source,
        decided_by=None if reviewed is None else reviewed.decided_by,
        sandbox_policy=policy.to_json(),
        sandbox_type=sandbox_type,
        bypassed=last is not None and last.bypassed,
        attempts=len(trace.attempts),
        revision=requirement.revision,
        rules=tuple(
            " ".join(
                (*(() if match.source is None else (f"{match.source}:",)), *match.prefix, match.decision)
            )
            for match in requirement.matches
        ),
    )


def begun_record(call: CommandCall, trace: Trace, env: ExecEnv | None, duration: float) -> CallRecord:
    """The facts that are known before there is output."""
    return CallRecord(
        call_id=call.call_id,
        tool=call.tool,
        command=call.params.command,
        cwd=call.params.cwd,
        phases=tuple(trace.phases),
        decided=decision_of(trace, call.sandbox, "none" if env is None else env.sandbox),
        duration=duration,
    )


def ended_record(
    record: CallRecord,
    session: ExecSession,
    *,
    confined: bool,
    timed_out: bool = False,
    cancelled: bool = False,
) -> CallRecord:
    """The facts of a process that ended or was lost, without a text for the model."""
    process = session.process
    record = replace(
        record,
        process_id=process.id,
        audit=process.audit,
        exit_code=TIMED_OUT if timed_out else process.exit_code,
        cause=process.cause,
        timed_out=timed_out,
    )
    failure = _failure(process, session, confined=confined, timed_out=timed_out, cancelled=cancelled)
    return record if failure is None else replace(failed(record, *failure), text="")


def _failure(
    process: Process, session: ExecSession, *, confined: bool, timed_out: bool, cancelled: bool
) -> tuple[FailureKind, str] | None:
    code = process.exit_code
    if session.failure is not None:
        return "io", f"the process was lost: {session.failure}"
    if cancelled:
        return "cancelled", "the command was cancelled"
    if timed_out:
        return "timeout", "the command ran into its time limit"
    if session.ended is not None:
        return "cancelled", f"the command was ended: {session.ended}"
    if process.failure is not None:
        return "io", process.failure
    if not code:
        return None
    denial = process.denial
    if confined and denial is not None and denial.get("likely"):
        return "denied", _denial_text(denial.get("evidence") or [])
    if process.cause == "signal":
        return "signal", f"the command was ended by signal {code - SIGNAL_BASE}"
    return "exit", f"the command exited with code {code}"


def _denial_text(evidence: list[dict[str, str]]) -> str:
    found = dict.fromkeys(
        f"{item['protectedPath']} is protected"
        if "protectedPath" in item
        else str(item.get("path") or item.get("text") or item.get("kind"))
        for item in evidence
    )
    shown = "; ".join(found)
    what = f"the sandbox was in its way: {shown}" if shown else "the sandbox was in its way"
    return f"{what}; its policy can permit more, or a call that asks for require_escalated be approved"


def new_chunk_id() -> str:
    """A new id for an answer: six hexadecimal digits that a model can refer to."""
    return secrets.token_hex(3)


def text_of(buffer: HeadTailBuffer | None) -> str:
    """The text of a buffer; empty without a buffer."""
    return "" if buffer is None else buffer.text()
