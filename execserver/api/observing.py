"""`process/list`, `process/listForgotten`, `process/subscribe`, `process/unsubscribe`: the processes of all
sessions.

`docs/protocol.md`, "Processes of other sessions".
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

from execprotocol.errors import InvalidParams, InvalidRequest
from execserver.processes.executor import Executor
from execserver.processes.process import ManagedProcess
from execserver.processes.usage import Meter, Usage
from execserver.rpc.codec import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers
from execserver.sessions.access import reach, require_proof
from execserver.sessions.registry import SessionRegistry

if TYPE_CHECKING:
    from execprotocol.filesystem import Empty
    from execprotocol.process import (
        ExitCause,
        ListForgottenParams,
        ListForgottenResult,
        ListParams,
        ProcessEntry,
        SubscribeParams,
        SubscribeResult,
        UnsubscribeParams,
        WrittenSize,
    )


_ENTRIES_A_TURN = 256
"""Processes that are listed in one turn of the loop, within 2 ms; tens of thousands may be kept."""


class ObservingHandlers:
    """The handlers of these methods."""

    def __init__(self, executor: Executor, sessions: SessionRegistry) -> None:
        self._sessions = sessions
        self._executor = executor
        self._meter = Meter(executor.usage)

    def table(self) -> Handlers:
        """Method name → handler."""
        return {
            "process/list": self.list,
            "process/listForgotten": self.list_forgotten,
            "process/subscribe": self.subscribe,
            "process/unsubscribe": self.unsubscribe,
        }

    async def list(self, caller: Caller, params: ListParams) -> Encoded:
        """List processes, oldest first: a `ListResult`."""
        if params.all_sessions:
            if params.session_id is not None:
                raise InvalidParams("give `sessionId` or `allSessions`, not both", field="sessionId")
            require_proof(caller, "allSessions")
            sessions = list(self._sessions)
        else:
            sessions = [reach(caller, self._sessions, params.session_id)]
        processes = [process for session in sessions for process in session.processes]
        processes.sort(key=lambda process: process.number)
        # After the choice of processes, so that each of them is measured.
        usage = await self._meter.measured() if any(not process.closed for process in processes) else {}
        entries = []
        for count, process in enumerate(processes):
            if count % _ENTRIES_A_TURN == _ENTRIES_A_TURN - 1:
                await asyncio.sleep(0)
            if not process.released:
                entry = _entry(process, usage.get(process.number), with_argv=params.argv)
                entries.append(encode_json(entry))
        return Encoded(b'{"processes":[%b]}' % b",".join(entries))

    def list_forgotten(self, caller: Caller, params: ListForgottenParams) -> ListForgottenResult:
        """List processes that are no longer kept."""
        # The same access as to processes that are still kept (`sessions/access.py`).
        session = None if caller.peer_proof is not None else caller.session.id
        now = time.time_ns() // 1_000_000
        wanted = params.process_id
        return {
            "processes": [
                {
                    "processId": each.process_id,
                    "sessionId": each.session,
                    "reason": each.reason,
                    "startedAtMs": each.started_at_ms,
                    "atMs": each.at_ms,
                    "agoMs": max(0, now - each.at_ms),
                    "sessionTtlMs": each.session_ttl_ms,
                    "exitCode": each.exit_code,
                    "cause": cast("ExitCause | None", each.cause),
                }
                for each in self._executor.forgotten.recent()
                if wanted in (None, each.process_id) and session in (None, each.session)
            ]
        }

    def subscribe(self, caller: Caller, params: SubscribeParams) -> Encoded:
        """Send the events of another session's process to this connection."""
        if params.session_id == caller.session.id:
            raise InvalidRequest(
                "the process is of this connection's own session: its events come without a subscription",
                name="own_process",
                field="sessionId",
            )
        session = reach(caller, self._sessions, params.session_id)
        process = session.processes.get(params.process_id)
        last = process.log.next_seq - 1
        if params.after_seq > last:
            raise InvalidRequest(
                f"`afterSeq` is {params.after_seq}, and the newest number of process {params.process_id} is "
                f"{last}: this is another process than the one that was seen before",
                name="unknown_seq",
                field="afterSeq",
            )
        result: SubscribeResult = {
            "nextSeq": process.log.next_seq,
            "exited": process.exit_code is not None,
            "exitCode": process.exit_code,
            "closed": process.closed,
            "tty": process.tty,
            "pid": process.pid,
        }
        size = _size(process)
        if size is not None:
            result["size"] = size
        release = caller.attachment.observe(
            process, params.after_seq, caller.session.id, interactive=params.interactive
        )
        # The reply comes first, then events.
        return Encoded(encode_json(result), after=release, begun=True)

    def unsubscribe(self, caller: Caller, params: UnsubscribeParams) -> Empty:
        """Send no further events of a process."""
        caller.attachment.unobserve(params.session_id, params.process_id)
        return {}


def _entry(process: ManagedProcess, usage: Usage | None, *, with_argv: bool) -> ProcessEntry:
    started = process.started
    age = time.monotonic() - started.started_at
    running = process.running
    entry: ProcessEntry = {
        "processId": process.process_id,
        "sessionId": started.session,
        "pid": process.pid,
        "state": "running" if running else "closed" if process.closed else "exited",
        "tty": process.tty,
        "startedAtMs": started.began_at_ms or int((time.time() - age) * 1000),
        "ageMs": int(age * 1000),
        "exitCode": process.exit_code,
        "cause": None if running else process.cause or "unknown",
        "lastSeq": process.log.next_seq - 1,
        "retainedBytes": process.log.held,
        "cpuSeconds": None if usage is None else round(usage.cpu_seconds, 3),
        "rssBytes": None if usage is None else usage.rss_bytes,
        "processCount": None if usage is None else usage.count,
        "argv": started.argv if with_argv else None,
        "cwd": started.cwd if with_argv else None,
    }
    size = _size(process)
    if size is not None:
        entry["size"] = size
    limits = process.limits
    if limits is not None:
        entry["limits"] = limits.limits.values()
        at_end = None if running else limits.usage_at_end
        of_leaf = at_end if usage is None else at_end or usage.of_leaf
        if of_leaf is not None:
            entry["usage"] = of_leaf
    return entry


def _size(process: ManagedProcess) -> WrittenSize | None:
    size = process.output.terminal_size
    return None if size is None else {"rows": size[0], "cols": size[1]}
