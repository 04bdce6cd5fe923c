"""`execserver kill`: send signals to processes of any session."""

from __future__ import annotations

import json
from collections.abc import Sequence

from execclient import ExecServerError, Executor
from execclient.commands.daemon import DaemonOptions, Listed, ambiguous, listing, matching
from execclient.commands.failures import INCOMPLETE, print_message

_STATUS_TEXTS = {"alreadyExited": "has already exited", "unknownProcess": "no such process"}


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
    async with daemon.connect() as executor:
        processes = await listing(executor)
        for process_id in process_ids:
            found = matching(processes, process_id, session_id)
            results.append(await _kill(executor, process_id, found, name, scope))
    missed = [each for each in results if each["status"] != "delivered"]
    if as_json:
        print(json.dumps(results, indent=2), flush=True)
    else:
        for each in missed:
            print_message(f"{each['processId']}: {each['message']}")
    return INCOMPLETE if missed else 0


async def _kill(
    executor: Executor, process_id: str, found: Sequence[Listed], name: str, scope: str
) -> dict[str, str | None]:
    if not found:
        return _result(process_id, None, "unknownProcess")
    if len(found) > 1:
        return _result(process_id, None, "ambiguous", ambiguous(process_id, list(found)))
    session_id = str(found[0]["sessionId"])
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
