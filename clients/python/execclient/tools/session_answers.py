"""The answers of `exec_command` and `write_stdin` about a session.

A session keeps its number until an answer has reported the end of its process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from execclient.session.session import to_end
from execclient.tools import exec_text
from execclient.tools.command_record import ended_record, new_chunk_id
from execclient.tools.context import CallContext, ToolSession
from execclient.tools.notes import network_notes, notes
from execclient.tools.result import CallRecord
from execclient.tools.session_table import Commit
from execclient.tools.terminal_text import TerminalText
from execclient.tools.truncation import Budget

AT_ONCE_BYTES = 1 << 14
"""Terminal output up to this size is cleaned at once, more in a thread. A megabyte of cursor movements takes
a second and would block the event loop."""

PRUNED = "pruned"
"""The reason of a session that was ended to make room for another one."""


def session_number(name: str) -> int | None:
    """The number of a session from its name; None if it is no number."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 11 else None


async def open_session(context: CallContext, number: int, session: ToolSession) -> None:
    """Open a session. May end the least recently used one."""
    services = context.services
    commit: Commit[ToolSession] = services.sessions.commit(number, session)
    if commit.near_limit:
        context.warnings.append(exec_text.session_warning(commit.count, services.sessions.limit))
    if commit.pruned is not None:
        pruned, its = commit.pruned
        services.closed_session(str(pruned), PRUNED)
        await its.exec.end("another one took its place")


async def session_answer(
    context: CallContext,
    session: ToolSession,
    record: CallRecord,
    *,
    number: int,
    budget: Budget,
) -> CallRecord:
    """The answer about a session, with its output since the last answer.

    Args:
        context: the context of the call.
        session: the session.
        record: the facts so far; its duration is shown to the model.
        number: the number of the session.
        budget: the limit of the text.
    """
    async with session.turn:
        return await _answer(context, session, record, number=number, budget=budget)


async def _answer(
    context: CallContext,
    session: ToolSession,
    record: CallRecord,
    *,
    number: int,
    budget: Budget,
) -> CallRecord:
    process = session.exec
    finished = process.finished.is_set()
    output, lost = process.take(), process.take_lost()
    if any(lost):
        context.warnings.append(exec_text.lost_output(lost.size, more=lost.more))
    if finished:
        context.services.sessions.release(number, session)
        record = ended_record(record, process, confined=session.confined)
        denied = record.failure is not None and record.failure.kind == "denied"
        context.warnings.extend(notes(context, session.call, process, output.text(), denied=denied))
    else:
        own = process.process
        record = replace(record, process_id=own.id, audit=own.audit, session=str(number))
        context.warnings.extend(network_notes(context, session.call))
    text, aggregated = exec_text.show(output, budget), output.text()
    if session.terminal is not None:
        marker = f"\n{exec_text.omission_marker(output.omitted_bytes)}\n"
        aggregated = await _cleaned(session.terminal, output.data(marker), ended=finished)
        text = exec_text.show_text(aggregated, budget)
    shown = text.text
    if finished and record.failure is not None and record.failure.kind in ("io", "cancelled"):
        shown = f"{shown}\n{record.failure.message}" if shown else record.failure.message
    body = "\n".join([*context.warnings, shown]) if context.warnings else shown
    envelope = exec_text.session_envelope(
        body,
        wall_seconds=record.duration,
        chunk_id=new_chunk_id(),
        exit_code=record.exit_code if finished else None,
        session_id=None if finished else number,
        output_bytes=output.total_bytes,
    )
    return replace(
        record,
        text=envelope,
        truncated=text.truncated or any(lost),
        lost_bytes=lost.size,
        aggregated=aggregated,
        stdout=aggregated,
        total_bytes=output.total_bytes,
        omitted_bytes=output.omitted_bytes,
        warnings=tuple(context.warnings),
    )


async def _cleaned(terminal: TerminalText, data: bytes, *, ended: bool) -> str:
    """The cleaned text of a terminal's output."""
    if len(data) <= AT_ONCE_BYTES:
        return terminal.clean(data, ended=ended)
    return await to_end(partial(terminal.clean, data, ended=ended))
