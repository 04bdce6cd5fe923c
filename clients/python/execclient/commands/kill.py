"""`execserver kill`: send signals to processes of any session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

from execclient import ExecServerError
from execclient.commands.daemon import DaemonOptions, ProcessAmbiguous, Processes, ProcessMissing
from execclient.commands.failures import INCOMPLETE, print_message

_STATUS_TEXTS = {"alreadyExited": "has already exited", "unknownProcess": "it has just ended"}


async def kill(
    daemon: DaemonOptions,
    process_ids: Sequence[str],
    session_id: str | None,
    *,
    name: str,
    scope: str,
    as_json: bool,
) -> int:
    """Send a signal to each process; returns 1 if one of them did not get it."""
    results = []
    async with AsyncExitStack() as stack:
        processes = Processes(daemon, stack)
        for process_id in process_ids:
            results.append(await _kill(processes, process_id, session_id, name, scope))
    missed = [each for each in results if each["status"] != "delivered"]
    if as_json:
        print(json.dumps(results, indent=2), flush=True)
    else:
        for each in missed:
            # Without a session the message is why there is no such process, and names it.
            named = each["sessionId"] is None
            print_message(str(each["message"]) if named else f"{each['processId']}: {each['message']}")
    return INCOMPLETE if missed else 0


async def _kill(
    processes: Processes, process_id: str, session_id: str | None, name: str, scope: str
) -> dict[str, str | None]:
    try:
        executor, found = await processes.find(process_id, session_id)
    except ProcessMissing as error:
        return _result(process_id, None, "unknownProcess", str(error))
    except ProcessAmbiguous as error:
        return _result(process_id, None, "ambiguous", str(error))
    session_id = str(found["sessionId"])
    params = {"processId": process_id, "sessionId": session_id, "signal": name, "scope": scope}
    try:
        result = await executor.call("process/signal", params)
    except ExecServerError as error:
        return _result(process_id, session_id, "failed", str(error))
    return _result(process_id, session_id, str(result["status"]))


def _result(
    process_id: str, session_id: str | None, status: str, message: str | None = None
) -> dict[str, str | None]:
    return {
        "processId": process_id,
        "sessionId": session_id,
        "status": status,
        "message": message or _STATUS_TEXTS.get(status),
    }
