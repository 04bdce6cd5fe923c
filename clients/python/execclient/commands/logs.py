"""`execserver logs`: print the retained output of a process."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from execclient import Executor, Refused
from execclient.commands.daemon import DaemonOptions, Listed, Processes
from execclient.commands.failures import CommandExit, print_message
from execclient.commands.signals import Signals
from execclient.commands.streams import OutputWriter
from execclient.connection.connection import Json
from execprotocol.command_line import OUTPUT_CLOSED

PAGE_BYTES = 1 << 20
"""The size of one request: large enough for full speed, small enough to begin printing at once."""

WAIT_SECONDS = 20.0
"""How long one request waits for new output. A new request also finds out whether the daemon is reachable."""

FIRST_TAIL_CHUNKS, TAIL_GROWTH = 64, 8
"""`--tail` reads so many chunks from the end, and so many times as many again until it has enough lines: most
processes write lines, and the spool may hold gigabytes."""


@dataclass(frozen=True, slots=True)
class LogsOptions:
    """The options of the command."""

    follow: bool
    since_seq: int
    """Print only output after this number."""
    tail: int | None
    """Print only so many of the last lines; None for all."""
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Chunk:
    seq: int
    stream: str
    data: bytes


async def logs(daemon: DaemonOptions, process_id: str, session_id: str | None, options: LogsOptions) -> int:
    """Print the retained output of a process, and with `follow` new output until the process ends."""
    async with AsyncExitStack() as stack:
        executor, process = await Processes(daemon, stack).find(process_id, session_id)
        output = OutputWriter()
        with Signals() as signals:
            await signals.unless_signalled(_print(executor, process, output, options))
        if output.is_closed:
            return OUTPUT_CLOSED
        if output.failure is not None:
            raise CommandExit(f"output cannot be written: {output.failure.strerror}")
        return 0


async def _print(executor: Executor, process: Listed, output: OutputWriter, options: LogsOptions) -> None:
    after = options.since_seq
    if options.tail is not None:
        chunks, after = await _last_lines(executor, process, after, options.tail)
        for chunk in chunks:
            _show(output, chunk, as_json=options.as_json)
    while not output.failed.is_set():
        page = await _page(executor, process, after, wait=options.follow)
        _report_loss(page)
        for chunk in _chunks(page):
            _show(output, chunk, as_json=options.as_json)
        # Ask for the next page when this one is written: the daemon stores output better than this program.
        await output.settled()
        is_last = page["closed"] if options.follow else not page["chunks"]
        if is_last and page["nextSeq"] - 1 == after:
            return
        after = page["nextSeq"] - 1


async def _last_lines(
    executor: Executor, process: Listed, since_seq: int, lines: int
) -> tuple[Sequence[_Chunk], int]:
    """The chunks with the last lines of the output so far, and the number of the event before the rest."""
    end = max(process["lastSeq"], since_seq)
    distance = FIRST_TAIL_CHUNKS if lines else 0
    while True:
        begin = after = max(since_seq, end - distance)
        read: list[_Chunk] = []
        is_whole = lines > 0
        first: Json = {}
        while after < end:
            page = await _page(executor, process, after, wait=False)
            first = first or page
            read, had_less = tail([*read, *_chunks(page)], lines)
            is_whole &= had_less
            after = page["nextSeq"] - 1
            if not page["chunks"]:
                break
        if not is_whole or begin == since_seq:
            if is_whole:
                _report_loss(first)
            return read, after
        distance *= TAIL_GROWTH


def tail(chunks: Sequence[_Chunk], lines: int) -> tuple[list[_Chunk], bool]:
    """The last lines of output, those of all streams together, and whether that is all of it.

    Output after the last line end counts as a line.
    """
    ends = lines + (bool(chunks) and chunks[-1].data.endswith(b"\n"))
    for index in range(len(chunks) - 1, -1, -1):
        chunk = chunks[index]
        found = chunk.data.count(b"\n")
        if found >= ends:
            rest = chunk.data.split(b"\n", found - ends + 1)[-1]
            first = [_Chunk(chunk.seq, chunk.stream, rest)] if rest else []
            return [*first, *chunks[index + 1 :]], False
        ends -= found
    return list(chunks), True


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


def _chunks(page: Json) -> Iterator[_Chunk]:
    for chunk in page["chunks"]:
        yield _Chunk(chunk["seq"], chunk["stream"], base64.b64decode(chunk["chunk"]))


def _report_loss(page: Json) -> None:
    if page.get("lostBytes"):
        print_message(f"{page['lostBytes']} bytes of output before this were discarded")


def _show(output: OutputWriter, chunk: _Chunk, *, as_json: bool) -> None:
    if as_json:
        data = base64.b64encode(chunk.data).decode()
        output.put(1, json.dumps({"seq": chunk.seq, "stream": chunk.stream, "chunk": data}).encode() + b"\n")
    else:
        output.put(2 if chunk.stream == "stderr" else 1, chunk.data)
