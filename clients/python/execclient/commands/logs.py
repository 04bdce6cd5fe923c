"""`execserver logs`: print the retained output of a process."""

from __future__ import annotations

import base64
import json
from contextlib import AsyncExitStack

from execclient import Executor, Refused
from execclient.commands.daemon import DaemonOptions, Listed, Processes
from execclient.commands.failures import OUTPUT_CLOSED, CommandExit, print_message
from execclient.commands.signals import Signals
from execclient.commands.streams import OutputWriter
from execclient.connection.connection import Json

PAGE_BYTES = 1 << 20
"""The size of one request: large enough for full speed, small enough to begin printing at once."""

WAIT_SECONDS = 20.0
"""How long one request waits for new output. A new request also finds out whether the daemon is reachable."""


async def logs(
    daemon: DaemonOptions,
    process_id: str,
    session_id: str | None,
    *,
    follow: bool,
    since_seq: int,
    as_json: bool,
) -> int:
    """Print the retained output of a process, and with `follow` new output until the process ends."""
    async with AsyncExitStack() as stack:
        executor, process = await Processes(daemon, stack).find(process_id, session_id)
        output = OutputWriter()
        with Signals() as signals:
            printing = _print(executor, process, output, follow=follow, since_seq=since_seq, as_json=as_json)
            await signals.unless_signalled(printing)
        if output.is_closed:
            return OUTPUT_CLOSED
        if output.failure is not None:
            raise CommandExit(f"output cannot be written: {output.failure.strerror}")
        return 0


async def _print(
    executor: Executor, process: Listed, output: OutputWriter, *, follow: bool, since_seq: int, as_json: bool
) -> None:
    after = since_seq
    while not output.failed.is_set():
        page = await _page(executor, process, after, wait=follow)
        if page.get("lostBytes"):
            print_message(f"{page['lostBytes']} bytes of output before this were discarded")
        for chunk in page["chunks"]:
            _show(output, chunk, as_json=as_json)
        # Ask for the next page when this one is written: the daemon stores output better than this program.
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
        raise CommandExit(error.message) from error


def _show(output: OutputWriter, chunk: Json, *, as_json: bool) -> None:
    if as_json:
        line = json.dumps({"seq": chunk["seq"], "stream": chunk["stream"], "chunk": chunk["chunk"]})
        output.put(1, line.encode() + b"\n")
    else:
        output.put(2 if chunk["stream"] == "stderr" else 1, base64.b64decode(chunk["chunk"]))
