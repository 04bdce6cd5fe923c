"""Which daemon a command talks to, and which of its processes it means."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from execclient import Executor, Refused, UnknownMethod, connect
from execclient.commands.failures import Failure
from execclient.connection.connection import Json

Listed = Mapping[str, Json]
"""An entry of the result of `process/list` (`docs/reference/messages.md`)."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon, as the options name it."""

    url: str | None
    """None for `EXECSERVER_URL`, else the daemon's own default."""
    token_file: Path | None

    def connect(self, *, keep: bool = False) -> AbstractAsyncContextManager[Executor]:
        """A session with it. Raises as `execclient.connect` does."""
        return connect(self.url, token_file=self.token_file, keep=keep, client_name="execserver-cli")


async def listing(executor: Executor, *, argv: bool = False) -> list[Listed]:
    """The processes of all sessions, the oldest first.

    Raises:
        Failure: this daemon tells nobody, or not us.
    """
    try:
        result = await executor.call("process/list", {"allSessions": True, "argv": argv})
    except UnknownMethod as error:
        raise Failure("this server cannot list its processes: it has no process/list") from error
    except Refused as error:
        raise Failure(error.message) from error
    processes: list[Listed] = result["processes"]
    return processes


async def find(executor: Executor, process_id: str, session_id: str | None) -> Listed:
    """The process that an id stands for.

    Args:
        executor: where to look.
        process_id: as `ps` shows it.
        session_id: in which session; by default in whichever.

    Raises:
        Failure: there is none, or more than one.
    """
    found = matching(await listing(executor), process_id, session_id)
    if not found:
        where = "" if session_id is None else f" in session {session_id}"
        raise Failure(f"no process {process_id}{where}; see: execserver ps --all")
    if len(found) > 1:
        raise Failure(ambiguous(process_id, found))
    return found[0]


def matching(processes: list[Listed], process_id: str, session_id: str | None) -> list[Listed]:
    """Those with that id, in that session if one is given."""
    return [
        each
        for each in processes
        if each["processId"] == process_id and session_id in (None, each["sessionId"])
    ]


def ambiguous(process_id: str, found: list[Listed]) -> str:
    """What to say when an id is not enough."""
    sessions = ", ".join(str(each["sessionId"]) for each in found)
    return f"process {process_id} is in more than one session; choose with --session: {sessions}"
