"""`execserver logs`: print the retained output of a process."""

from __future__ import annotations

import base64
import codecs
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import Enum

from execclient import Executor, Refused
from execclient.commands.daemon import DaemonOptions, Listed, Processes
from execclient.commands.failures import CommandExit, print_message
from execclient.commands.signals import Signals
from execclient.commands.streams import OutputWriter
from execclient.commands.values import exact_time
from execclient.connection.connection import Json
from execprotocol.command_line import OUTPUT_CLOSED

PAGE_BYTES = 1 << 20
"""The size of one request: large enough for full speed, small enough to begin printing at once."""

WAIT_SECONDS = 20.0
"""How long one request waits for new output. A new request also finds out whether the daemon is reachable."""

FIRST_TAIL_CHUNKS, TAIL_GROWTH = 64, 8
"""`--tail` reads so many chunks from the end, and so many times as many again until it has enough lines: most
processes write lines, and the spool may hold gigabytes."""


_TOO_OLD = "the daemon does not report it, or an earlier version of it has started the process"
_NO_TIMES = f"the time of this output is not known ({_TOO_OLD}): leave out --since, --timestamps and --cast"
_NO_SIZES = f"the size of this terminal is not known ({_TOO_OLD}): leave out --cast"


class Form(Enum):
    """How output is printed."""

    PLAIN = "as it is"
    JSON = "a JSON object for each chunk"
    TIMESTAMPS = "with the time of each line before it"
    CAST = "an asciicast (version 2)"


@dataclass(frozen=True, slots=True)
class LogsOptions:
    """The options of the command."""

    follow: bool
    since_seq: int
    """Print only output after this number."""
    since: float | None
    """Print only output that was taken since then, in seconds since 1970; None for all."""
    tail: int | None
    """Print only so many of the last lines; None for all."""
    form: Form


@dataclass(frozen=True, slots=True)
class _Chunk:
    seq: int
    stream: str
    data: bytes
    at_ms: int | None
    """Milliseconds since 1970; None if the daemon does not report the time."""

    @property
    def at(self) -> float:
        """Seconds since 1970.

        Raises:
            CommandExit: the daemon does not report the time.
        """
        if self.at_ms is None:
            raise CommandExit(_NO_TIMES)
        return self.at_ms / 1000


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
    if options.since is not None:
        after = await _seq_before(executor, process, after, options.since)
    printer = _PRINTERS[options.form](output, process, whole=not after and options.tail is None)
    if options.tail is not None:
        chunks, after = await _last_lines(executor, process, after, options.tail)
        for chunk in chunks:
            printer.show(chunk)
    while not output.failed.is_set():
        page = await _page(executor, process, after, wait=options.follow, sizes=options.form is Form.CAST)
        printer.print(page)
        # Ask for the next page when this one is written: the daemon stores output better than this program.
        await output.settled()
        is_last = page["closed"] if options.follow else not page["chunks"]
        if is_last and page["nextSeq"] - 1 == after:
            printer.finish()
            return
        after = page["nextSeq"] - 1


async def _seq_before(executor: Executor, process: Listed, after: int, since: float) -> int:
    """The number after `after` behind which the output was taken since a time.

    Found by halving: the spool may hold gigabytes. If the daemon's clock was set back meanwhile, there are
    several such numbers, and it is any of them.
    """
    low, high = after, process["lastSeq"]
    while low < high:
        middle = (low + high) // 2
        page = await _page(executor, process, middle, wait=False, max_bytes=1)
        chunk = next(_chunks(page), None)
        if chunk is not None and chunk.at < since:
            low = chunk.seq
        elif chunk is not None and page.get("lostBytes"):
            return low  # what was discarded may be of that time: the next page reports it
        else:
            high = middle
    return low


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
            first = [replace(chunk, data=rest)] if rest else []
            return [*first, *chunks[index + 1 :]], False
        ends -= found
    return list(chunks), True


async def _page(
    executor: Executor,
    process: Listed,
    after: int,
    *,
    wait: bool,
    max_bytes: int = PAGE_BYTES,
    sizes: bool = False,
) -> Json:
    params = {
        "processId": process["processId"],
        "sessionId": process["sessionId"],
        "afterSeq": after,
        "maxBytes": max_bytes,
        "waitMs": round(WAIT_SECONDS * 1000) if wait else 0,
    }
    if sizes:
        params["sizes"] = True
    try:
        return await executor.call("process/read", params, limit=WAIT_SECONDS + 60)
    except Refused as error:
        raise CommandExit(error.message) from error


def _chunks(page: Json) -> Iterator[_Chunk]:
    for chunk in page["chunks"]:
        yield _Chunk(chunk["seq"], chunk["stream"], base64.b64decode(chunk["chunk"]), chunk.get("at"))


def _report_loss(page: Json) -> None:
    if page.get("lostBytes"):
        print_message(f"{page['lostBytes']} bytes of output before this were discarded")


class _Plain:
    """Prints output as it is, standard error to standard error.

    Args:
        output: where to.
        process: the process.
        whole: whether the output is printed from its beginning.
    """

    def __init__(self, output: OutputWriter, process: Listed, *, whole: bool) -> None:
        self._output = output

    def print(self, page: Json) -> None:
        """Print a page."""
        _report_loss(page)
        for chunk in _chunks(page):
            self.show(chunk)

    def show(self, chunk: _Chunk) -> None:
        """Print a chunk."""
        self._output.put(_descriptor(chunk), chunk.data)

    def finish(self) -> None:
        """Print what is to follow the last chunk."""


class _Json(_Plain):
    def show(self, chunk: _Chunk) -> None:
        members: dict[str, Json] = {"seq": chunk.seq, "stream": chunk.stream}
        if chunk.at_ms is not None:
            members["at"] = chunk.at_ms
        members["chunk"] = base64.b64encode(chunk.data).decode()
        self._output.put(1, json.dumps(members).encode() + b"\n")


class _Timestamped(_Plain):
    """The time of a line is that of the chunk that begins it."""

    def __init__(self, output: OutputWriter, process: Listed, *, whole: bool) -> None:
        super().__init__(output, process, whole=whole)
        self._begun: set[str] = set()
        """The streams whose last line has not ended."""

    def show(self, chunk: _Chunk) -> None:
        time = f"{exact_time(chunk.at)} ".encode()
        ended = chunk.data.endswith(b"\n")
        lines = chunk.data.removesuffix(b"\n").replace(b"\n", b"\n" + time)
        first = b"" if chunk.stream in self._begun else time
        self._output.put(_descriptor(chunk), first + lines + b"\n" * ended)
        if ended:
            self._begun.discard(chunk.stream)
        else:
            self._begun.add(chunk.stream)


class _Cast(_Plain):
    """An asciicast of version 2 (https://docs.asciinema.org/manual/asciicast/v2/).

    Its time begins with the process, or if earlier output is left out, with the first chunk. Where output was
    discarded, there is a marker. Time never runs backwards, even if the clock of the daemon was set back.
    """

    def __init__(self, output: OutputWriter, process: Listed, *, whole: bool) -> None:
        super().__init__(output, process, whole=whole)
        if not process["tty"]:
            raise CommandExit(
                f"process {process['processId']} has no terminal, which --cast needs (run --tty); "
                "see its output with --timestamps"
            )
        self._title = process["processId"]
        self._started = process["startedAtMs"] / 1000
        self._begin = self._started if whole else None
        self._now = 0.0
        self._has_header = False
        self._size: tuple[int, int] | None = None
        """Columns and rows."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lost = 0
        """Bytes that were discarded before the next chunk."""

    def print(self, page: Json) -> None:
        self._lost += page.get("lostBytes", 0)
        sizes = deque(page.get("sizes", ()))
        if self._size is None:
            if not sizes:
                raise CommandExit(_NO_SIZES)
            # Also if it is newer than the first chunk, and older ones were dropped.
            self._resize(sizes.popleft())
        for chunk in _chunks(page):
            while sizes and sizes[0]["seq"] < chunk.seq:
                self._resize(sizes.popleft())
            self.show(chunk)
        for size in sizes:
            self._resize(size)

    def show(self, chunk: _Chunk) -> None:
        self._mark_loss(chunk.at)
        text = self._decoder.decode(chunk.data)
        if text:
            self._event(chunk.at, "o", text)

    def finish(self) -> None:
        at = self._started if self._begin is None else self._begin + self._now
        self._mark_loss(at)
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._event(at, "o", rest)
        self._header(at)

    def _resize(self, change: Json) -> None:
        size = change["cols"], change["rows"]
        if self._size is None or (self._begin is None and not self._has_header):
            self._size = size  # of the header
        elif size != self._size:
            self._event(change["at"] / 1000, "r", f"{size[0]}x{size[1]}")
            self._size = size

    def _mark_loss(self, at: float) -> None:
        if self._lost:
            self._event(at, "m", f"{self._lost} bytes of output before this were discarded")
            self._lost = 0

    def _event(self, at: float, code: str, text: str) -> None:
        begin = self._header(at)
        self._now = max(self._now, at - begin)
        self._line([round(self._now, 3), code, text])

    def _header(self, at: float) -> float:
        """Print the header if it is not printed; the time at which the cast begins."""
        if self._begin is None:
            self._begin = at
        if not self._has_header:
            self._has_header = True
            assert self._size is not None  # the first page had it
            columns, rows = self._size
            members = {"version": 2, "width": columns, "height": rows, "timestamp": int(self._begin)}
            self._line({**members, "title": self._title})
        return self._begin

    def _line(self, value: Json) -> None:
        self._output.put(1, json.dumps(value).encode() + b"\n")


_PRINTERS: dict[Form, type[_Plain]] = {
    Form.PLAIN: _Plain,
    Form.JSON: _Json,
    Form.TIMESTAMPS: _Timestamped,
    Form.CAST: _Cast,
}


def _descriptor(chunk: _Chunk) -> int:
    return 2 if chunk.stream == "stderr" else 1
