"""The daemon of a command, and the processes that the command names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from execclient import (
    EnvironmentOffline,
    Executor,
    Refused,
    SessionAttached,
    SessionLost,
    UnknownMethod,
    connect,
)
from execclient.client import CALL_SECONDS
from execclient.commands.detached import DetachedSession, recorded
from execclient.commands.failures import CommandExit, print_message
from execclient.commands.values import chosen_duration, clock_time, rough_duration
from execclient.connection.connection import Json

SESSIONS_AT_A_TIME = 16
"""Recorded sessions that `ps` resumes together: a relay's executor takes 128 streams, of all clients."""

_OF_ONE_COMMAND = "a daemon at stdio: is started for one command, and has no other sessions"

Listed = Mapping[str, Json]
"""An entry of the result of `process/list` (`docs/reference/messages.md`)."""


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The options that name a daemon."""

    url: str | None
    """None for `EXECSERVER_URL`, else the default socket."""
    token_file: Path | None

    def connect(
        self,
        *,
        keep: bool = False,
        ttl: float | None = None,
        session_id: str | None = None,
        patience: float | None = None,
    ) -> AbstractAsyncContextManager[Executor]:
        """Open or resume a session. Raises as `execclient.connect` does.

        Args:
            keep: as there.
            ttl: as there.
            session_id: as there.
            patience: seconds in which a lost connection must be replaced, while calls wait.
        """
        return connect(
            self.url,
            token_file=self.token_file,
            session_id=session_id,
            keep=keep,
            ttl=ttl,
            call_timeout=CALL_SECONDS + (patience or 0),
            recovery_timeout=patience,
            client_name="execserver-cli",
        )


class ProcessMissing(CommandExit):
    """There is no process of that id, or no longer, or it cannot be reached."""


class ProcessAmbiguous(CommandExit):
    """More than one session has a process of that id."""


async def listing(executor: Executor, *, every: bool = True, argv: bool = False) -> list[Listed]:
    """The processes of all sessions, or of the executor's own, the oldest first.

    Raises:
        Refused: the daemon does not show the processes of other sessions to this client.
        CommandExit: the server lists no processes.
    """
    try:
        result = await executor.call("process/list", {"allSessions": every, "argv": argv})
    except UnknownMethod as error:
        raise CommandExit("this server has no process/list, so it cannot list its processes") from error
    processes: list[Listed] = result["processes"]
    return processes


class Processes:
    """The processes of a daemon that commands list, or name by their ids.

    Where the daemon shows the processes of all sessions, they are reached through a session of the command.
    Elsewhere, as through a relay, the sessions that `run --detach` recorded are resumed, and left again. Such
    a session has one client at a time.

    Args:
        daemon: the daemon.
        stack: closes the sessions.
        patience: seconds in which a lost connection must be replaced.
        report: called with a line for each recorded session that is left out.
    """

    def __init__(
        self,
        daemon: DaemonOptions,
        stack: AsyncExitStack,
        *,
        patience: float | None = None,
        report: Callable[[str], None] = print_message,
    ) -> None:
        self._daemon = daemon
        self._patience = patience
        self._report = report
        self._stack = stack
        self._own: Executor | None = None
        self._listed: list[Listed] = []
        self._refusal: Refused | None = None
        """Why the daemon does not show the processes of other sessions."""
        self._resumed: dict[str, Executor | None] = {}
        """By session id; None for a session that has ended."""

    async def all(self, *, argv: bool) -> list[Listed]:
        """The processes of all sessions, or of the recorded ones, the oldest first.

        Raises:
            CommandExit: the daemon shows none, and there is no recorded session.
        """
        own = await self._connect(argv=argv)
        if self._refusal is None:
            return self._listed
        records = recorded(own.url)
        if own.url.startswith("stdio:"):
            raise CommandExit(_OF_ONE_COMMAND)
        if not records:
            raise CommandExit(self._refusal.message)
        turns = asyncio.Semaphore(SESSIONS_AT_A_TIME)
        lists = await asyncio.gather(
            *(self._all_of(*session, turns, argv=argv) for session in _by_session(records).items())
        )
        return sorted((each for listed in lists for each in listed), key=lambda each: each["startedAtMs"])

    async def _all_of(
        self, session_id: str, records: list[DetachedSession], turns: asyncio.Semaphore, *, argv: bool
    ) -> list[Listed]:
        """The processes of a recorded session; a message, and none, if it cannot be reached."""
        async with turns, AsyncExitStack() as stack:
            try:
                resumed = await self._resume(session_id, records, stack)
            except ProcessMissing as attached:
                self._report(f"not listed: {attached}")
                return []
            if resumed is not None:
                return await listing(resumed, every=False, argv=argv)
        _drop(records)
        for each in records:
            self._report(_record_text(each))
        return []

    @property
    def shows_all(self) -> bool:
        """Whether the session of the command shows the processes of all sessions, once it is open."""
        return self._refusal is None

    async def sessions(self, session_id: str | None = None) -> list[Executor]:
        """The sessions that show all processes between them: that of the command, or the recorded ones.

        A further call resumes only the sessions that were recorded, or became free, since the call before.

        Args:
            session_id: the only session to resume, if that of the command does not show it.

        Raises:
            CommandExit: there is none, or it cannot be reached.
        """
        own = await self._connect()
        if self._refusal is None:
            return [own]
        sessions = _by_session(recorded(own.url))
        if session_id is not None:
            sessions = {session_id: sessions.get(session_id, [])}
        found = []
        for each, records in sessions.items():
            try:
                resumed = await self._resume_once(each, records)
            except ProcessMissing as attached:
                if session_id is not None:
                    raise
                self._report(f"left out: {attached}")
                continue
            if resumed is None:
                _drop(records)
            else:
                found.append(resumed)
        if not found:
            raise CommandExit(_OF_ONE_COMMAND if own.url.startswith("stdio:") else self._refusal.message)
        return found

    async def find(self, process_id: str, session_id: str | None = None) -> tuple[Executor, Listed]:
        """The process with an id, and the session to reach it through.

        Args:
            process_id: the id, from `ps` or `run --detach`.
            session_id: the session of the process; by default any.

        Raises:
            ProcessMissing: there is no such process, or it cannot be reached; the message has the reason.
            ProcessAmbiguous: there is more than one.
        """
        own = await self._connect()
        found = [(own, each) for each in matching(self._listed, process_id, session_id)]
        records = [] if found else _records_of(own.url, process_id, session_id)
        if self._refusal is not None:
            by_session = _by_session(records)
            if session_id is not None:
                by_session.setdefault(session_id, [])
            for each, of_session in by_session.items():
                resumed = await self._resume_once(each, of_session)
                if resumed is not None:
                    entries = await listing(resumed, every=False)
                    found += [(resumed, entry) for entry in matching(entries, process_id, each)]
        if len(found) > 1:
            raise ProcessAmbiguous(ambiguous(process_id, [each for _, each in found]))
        if found:
            return found[0]
        raise ProcessMissing(await self._reason(own, process_id, session_id, records))

    async def _connect(self, *, argv: bool = False) -> Executor:
        if self._own is None:
            connecting = self._daemon.connect(patience=self._patience)
            self._own = await self._stack.enter_async_context(connecting)
            try:
                self._listed = await listing(self._own, argv=argv)
            except Refused as refusal:
                self._refusal = refusal
        return self._own

    async def _resume_once(self, session_id: str, records: list[DetachedSession]) -> Executor | None:
        """As `_resume`, until the stack of the processes is closed."""
        held = self._resumed.get(session_id)
        if session_id not in self._resumed or (held is not None and held.closed):
            self._resumed[session_id] = await self._resume(session_id, records, self._stack)
        return self._resumed[session_id]

    async def _resume(
        self, session_id: str, records: list[DetachedSession], stack: AsyncExitStack
    ) -> Executor | None:
        """Resume a session until the stack is closed; None if it has ended.

        Raises:
            ProcessMissing: another client is connected to the session, or its executor is not connected.
        """
        # Of a pool, another executor than that of the command's own session may have it.
        daemon = replace(self._daemon, url=records[0].url) if records else self._daemon
        names = ", ".join(each.process_id for each in records) or session_id
        try:
            connecting = daemon.connect(session_id=session_id, keep=True, patience=self._patience)
            resumed = await stack.enter_async_context(connecting)
        except EnvironmentOffline as error:
            raise ProcessMissing(f"the executor of {names} cannot be reached: {error}") from error
        except SessionAttached as error:
            raise ProcessMissing(
                f"another client is connected to the session of {names}, such as `logs -f` or `attach`; here "
                "a session has one client at a time: end that one first"
            ) from error
        except SessionLost as error:
            if "unknown session id" not in str(error):
                raise
            return None
        for each in records:
            stack.callback(each.seen)
        return resumed

    async def _reason(
        self, own: Executor, process_id: str, session_id: str | None, records: list[DetachedSession]
    ) -> str:
        """Why there is no such process."""
        resumed = [each for each in self._resumed.values() if each is not None]
        for executor in (own, *resumed):
            if "process/listForgotten" in executor.capabilities:
                result = await executor.call("process/listForgotten", {"processId": process_id})
                known = matching(result["processes"], process_id, session_id)
                if known:
                    return _forgotten_text(known[-1])
        ended = [each for each in records if self._resumed.get(each.session_id) is None]
        if ended:
            _drop(ended)
            return _record_text(ended[-1])
        where = "" if session_id is None else f" in session {session_id}"
        if own.url.startswith("stdio:"):
            return f"no process {process_id}{where}: {_OF_ONE_COMMAND}"
        if self._refusal is None:
            return f"no process {process_id}{where}; see: execserver ps --all"
        return (
            f"no process {process_id}{where} that `run --detach` has recorded here; other processes are not "
            "shown to this client, unless you name their session with --session: see execserver ps"
        )


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


def _records_of(url: str, process_id: str, session_id: str | None) -> list[DetachedSession]:
    return [
        each
        for each in recorded(url)
        if each.process_id == process_id and session_id in (None, each.session_id)
    ]


def _by_session(records: list[DetachedSession]) -> dict[str, list[DetachedSession]]:
    sessions: dict[str, list[DetachedSession]] = {}
    for each in records:
        sessions.setdefault(each.session_id, []).append(each)
    return sessions


def _drop(records: list[DetachedSession]) -> None:
    for each in records:
        each.drop()


def _record_text(record: DetachedSession) -> str:
    """The end of a session of which only the record is left."""
    begin = f"process {record.process_id} was started {_when(record.started_at)}, and its session has ended"
    if record.ttl is None:
        return begin
    return (
        f"{begin}: the daemon keeps it for {chosen_duration(record.ttl)} without a client "
        "(`run --detach --ttl`), and not beyond its own restart"
    )


def _forgotten_text(entry: Listed) -> str:
    """What became of a process, from an entry of the result of `process/listForgotten`."""
    process_id, code = entry["processId"], entry["exitCode"]
    when = _when(time.time() - entry["agoMs"] / 1000)
    if entry["reason"] == "processExpired":
        return f"{process_id} exited with {code} {when}, and its output is no longer kept (--process-ttl)"
    end = "it was killed then" if code is None else f"it had exited with {code} before"
    if entry["reason"] == "sessionEnded":
        return f"the session of {process_id} was ended by its client {when}; {end}"
    return (
        f"the session of {process_id} ended {when}, after {chosen_duration(entry['sessionTtlMs'] / 1000)} "
        f"without a client; {end}. For a longer time: execserver run --detach --ttl"
    )


def _when(seconds: float) -> str:
    """A time since 1970: how long ago, and by the clock."""
    return f"{rough_duration(max(0.0, time.time() - seconds))} ago (at {clock_time(seconds)})"
