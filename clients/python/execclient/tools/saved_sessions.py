"""The running commands of a toolset, as data with which a toolset of another process resumes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

from execclient.connection.connection import Json
from execclient.govern.sandbox import sandbox_policy
from execclient.tools.context import CallContext, ToolSession
from execclient.tools.exec_params import ExecParams
from execclient.tools.exec_session import ExecSession
from execclient.tools.session_answers import open_session
from execclient.tools.session_table import SessionTable
from execclient.tools.terminal_text import TerminalText

__all__ = ["SavedSession"]

TOOL = "exec_command"
"""The only tool that starts such commands."""


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A command that was running. From `Toolset.sessions`, for `Toolset.resume`."""

    number: int | None
    """The model's number of the session; None for any that is free."""
    process_id: str
    command: tuple[str, ...]
    cwd: str
    tty: bool
    sandbox: Mapping[str, Json]
    """The policy under which it runs."""
    position: int
    """Bytes of its output that answers have returned, or reported as lost."""

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """A session from the result of `to_json`."""
        return cls(**{**value, "command": tuple(value["command"])})


def saved_sessions(context: CallContext, sessions: SessionTable[ToolSession]) -> Iterator[SavedSession]:
    """The sessions at the executor of a context, the least recently used first."""
    for number, session in sessions:
        params, process = session.call.params, session.exec.process
        if session.call.executor is context.executor:
            yield SavedSession(
                number=number,
                process_id=process.id,
                command=params.command,
                cwd=params.cwd,
                tty=params.tty,
                sandbox=session.policy.to_json(),
                position=session.exec.position,
            )


async def resume_session(context: CallContext, saved: SavedSession) -> None:
    """Open a session again. Raises as `Toolset.resume`."""
    policy = sandbox_policy(saved.sandbox)
    params = ExecParams(command=saved.command, cwd=saved.cwd, tty=saved.tty)
    sessions = context.services.sessions
    number = sessions.reserve(saved.number)
    try:
        # All retained output: only the daemon knows where its chunks begin.
        call = replace(context, sandbox=policy).command_call("", TOOL, params)
        process = await context.executor.attach(saved.process_id, network=call.network, buffer_bytes=None)
        if call.network is not None:
            call.network.started(process)
        clean = saved.tty and context.services.config.clean_terminal
        session = ToolSession(
            ExecSession(process, begin=saved.position), call, policy, TerminalText() if clean else None
        )
        await open_session(context, number, session)
    finally:
        if not sessions.is_open(number):
            sessions.release(number)
