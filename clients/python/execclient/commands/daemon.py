"""The daemon of a command, and the processes that the command names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from execclient import Executor, Refused, UnknownMethod, connect
from execclient.commands.failures import CommandExit
from execclient.connection.connection import Json

Listed = Mapping[str, Json]
"""An entry of the result of `process/list` (`docs/reference/messages.md`)."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The options that name a daemon."""

    url: str | None
    """None for `EXECSERVER_URL`, else the default socket."""
    token_file: Path | None

    def connect(self, *, keep: bool = False) -> AbstractAsyncContextManager[Executor]:
        """Open a session. Raises as `execclient.connect` does."""
        return connect(self.url, token_file=self.token_file, keep=keep, client_name="execserver-cli")


async def listing(executor: Executor, *, argv: bool = False) -> list[Listed]:
    """The processes of all sessions, the oldest first.

    Raises:
        CommandExit: the daemon does not list its processes, or not for this client.
    """
    try:
        result = await executor.call("process/list", {"allSessions": True, "argv": argv})
    except UnknownMethod as error:
        raise CommandExit("this server has no process/list, so it cannot list its processes") from error
    except Refused as error:
        raise CommandExit(error.message) from error
    processes: list[Listed] = result["processes"]
    return processes


async def find(executor: Executor, process_id: str, session_id: str | None) -> Listed:
    """The process with an id.

    Args:
        executor: the session with the daemon.
        process_id: the id, from `ps`.
        session_id: the session of the process; by default any.

    Raises:
        CommandExit: there is no such process, or more than one.
    """
    found = matching(await listing(executor), process_id, session_id)
    if not found:
        where = "" if session_id is None else f" in session {session_id}"
        raise CommandExit(f"no process {process_id}{where}; see: execserver ps --all")
    if len(found) > 1:
        raise CommandExit(ambiguous(process_id, found))
    return found[0]


def matching(processes: list[Listed], process_id: str, session_id: str | None) -> list[Listed]:
    """The processes with an id, of one session if it is given."""
    return [
        each
        for each in processes
        if each["processId"] == process_id and session_id in (None, each["sessionId"])
    ]


def ambiguous(process_id: str, found: list[Listed]) -> str:
    """The message for an id that several sessions have."""
    sessions = ", ".join(str(each["sessionId"]) for each in found)
    return f"process {process_id} is in more than one session; choose with --session: {sessions}"
