"""`execserver logs`: the output that the daemon keeps."""

from __future__ import annotations

import base64
import json

from execclient import Executor, Refused
from execclient.commands.daemon import Daemon, Listed, find
from execclient.commands.failures import OUTPUT_CLOSED, Failure, complain
from execclient.commands.signals import Signals
from execclient.commands.streams import Output
from execclient.connection.connection import Json

PAGE_BYTES = 1 << 20
"""Asked for at a time: enough for full speed, little enough to begin at once."""

WAIT_SECONDS = 20.0
"""For news, then it is asked again: whether somebody is still there should be noticed some time."""


async def logs(
    daemon: Daemon,
    process_id: str,
    session_id: str | None,
    *,
    follow: bool,
    since_seq: int,
    as_json: bool,
) -> int:
    """Print what is kept of a process's output, and with `follow` what comes, until it ends."""
    async with daemon.connect() as executor:
        process = await find(executor, process_id, session_id)
        output = Output()
        with Signals() as signals:
            printing = _print(executor, process, output, follow=follow, since_seq=since_seq, as_json=as_json)
            await signals.unless_signalled(printing)
        if output.is_closed:
            return OUTPUT_CLOSED
        if output.failure is not None:
            raise Failure(f"output cannot be written: {output.failure.strerror}")
        return 0


async def _print(
    executor: Executor, process: Listed, output: Output, *, follow: bool, since_seq: int, as_json: bool
) -> None:
    after = since_seq
    while not output.failed.is_set():
        page = await _page(executor, process, after, wait=follow)
        if page.get("lostBytes"):
            complain(f"{page['lostBytes']} bytes of output before this are not kept any more")
        for chunk in page["chunks"]:
            _show(output, chunk, as_json=as_json)
        # Pages are asked for as they are taken: the daemon keeps better than we do.
        await output.settled()
        is_last = page["closed"] if follow else not page["chunks"]
        if is_last and page["nextSeq"] - 1 == after:
            return
        after = page["nextSeq"] - 1


async def _page(executor: Executor, process: Listed, after: int, *, wait: bool) -> Json:
    params = {
        "processId": process["processId"],
        "sessionId": process["sessionId"],
        "afterSeq": after,
        "maxBytes": PAGE_BYTES,
        "waitMs": round(WAIT_SECONDS * 1000) if wait else 0,
    }
    try:
        return await executor.call("process/read", params, limit=WAIT_SECONDS + 60)
    except Refused as error:
        raise Failure(error.message) from error


def _show(output: Output, chunk: Json, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"seq": chunk["seq"], "stream": chunk["stream"], "chunk": chunk["chunk"]})
        output.put(1, line.encode() + b"\n")
    else:
        output.put(2 if chunk["stream"] == "stderr" else 1, base64.b64decode(chunk["chunk"]))
