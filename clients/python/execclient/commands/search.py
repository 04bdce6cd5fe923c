"""`execserver search` and `execserver glob`: find lines and files on the daemon's machine.

The output is that of rg(1): `PATH:LINE:TEXT`, or names of files. Each page of the daemon's answer is printed
when it arrives.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from execclient import CallFailed, Executor, SandboxRequired
from execclient.commands.daemon import DaemonOptions
from execclient.commands.failures import CommandExit, print_message
from execclient.commands.sandboxes import file_sandbox
from execclient.commands.signals import Signals
from execclient.commands.streams import OutputWriter
from execclient.commands.terminal import When, is_colored, is_for_people, visible
from execclient.connection.connection import Json
from execclient.search import PAGE_BYTES, Pages, Request, bytes_of
from execprotocol.command_line import OUTPUT_CLOSED, printable
from execprotocol.limits import MAX_FOUND
from execprotocol.path_uri import parse_path_uri

if TYPE_CHECKING:
    from execclient.govern.sandbox import SandboxPolicy

NOTHING_FOUND = 1
"""As rg(1) and grep(1)."""

PAGE_SECONDS = 0.5
"""How long a match waits for others before it is printed."""

_RESET = b"\x1b[0m"
_PATH, _NUMBER, _MATCH = (f"\x1b[{code}m".encode() for code in ("35", "32", "1;31"))
"""The colors of rg."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The options of both commands."""

    method: Literal["fs/search", "fs/glob"]
    params: Mapping[str, Json]
    """The parameters of the method, without the path."""
    path: str | None
    """On the daemon's machine; None for the daemon's working directory."""
    limit: int | None
    """The most matches or files; None for all."""
    timeout: float | None
    """Seconds; None for no limit."""
    color: When
    null: bool
    """Whether a path that is alone in its line ends with NUL in place of a line end."""
    as_json: bool
    sandbox: SandboxPolicy | None
    """The limits on the daemon's machine; the daemon's working directory is the workspace."""


async def search(daemon: DaemonOptions, options: SearchOptions) -> int:
    """Print what is found; returns 1 if nothing is."""
    async with daemon.connect() as executor:
        writer = OutputWriter()
        with Signals() as signals:
            found = await signals.unless_signalled(_search(executor, writer, options))
    if writer.is_closed:
        return OUTPUT_CLOSED
    if writer.failure is not None:
        raise CommandExit(f"output cannot be written: {writer.failure.strerror}")
    return 0 if found else NOTHING_FOUND


async def _search(executor: Executor, writer: OutputWriter, options: SearchOptions) -> int:
    sandbox = await file_sandbox(executor, options.sandbox, executor.cwd)
    request = Request(options.method, options.path or ".", options.params, sandbox)
    output = _Output(options)
    clock = asyncio.get_running_loop().time
    end = math.inf if options.timeout is None else clock() + options.timeout
    messages: list[str] = []
    async with Pages(executor, request) as pages:
        # Not at the pace of the reader: the daemon ends a search that is not continued for a minute.
        while not (pages.complete or writer.failed.is_set()):
            left = MAX_FOUND if options.limit is None else options.limit - output.printed
            seconds = min(PAGE_SECONDS, end - clock())
            if left <= 0 or seconds <= 0:
                messages.append(f"ended by {'--timeout' if left else '--max-count'}: there may be more")
                break
            page = await _page(pages, left, seconds, options)
            messages[:] = page["unread"]
            writer.put(1, b"".join(output.lines(page, pages.folder)))
    await writer.settled()
    for message in messages:
        print_message(message)
    return output.printed


async def _page(pages: Pages, left: int, seconds: float, options: SearchOptions) -> Mapping[str, Json]:
    try:
        return await pages.next(left, PAGE_BYTES, seconds)
    except ValueError as error:
        raise CommandExit(str(error), 2) from error
    except SandboxRequired:
        raise
    except CallFailed as error:
        raise CommandExit(f"{options.path or pages.folder}: {error.message}") from error


class _Output:
    """Formats pages for stdout.

    In bytes, since lines and names of files have any encoding. Nothing is escaped unless a person reads it.
    """

    def __init__(self, options: SearchOptions) -> None:
        self.printed = 0
        """Matches or files."""
        self._options = options
        self._for_people = is_for_people(options.color)
        self._colored = is_colored(options.color)
        self._last: tuple[str, int] | None = None
        """The line that was printed last."""

    def lines(self, page: Mapping[str, Json], folder: str) -> Iterator[bytes]:
        """The lines of a page, with their ends."""
        for file in page["files"] if "files" in page else ({"path": path} for path in page["paths"]):
            path = parse_path_uri(file["path"])
            matches = file.get("matches")
            self.printed += len(matches) if matches else 1
            if self._options.as_json:
                members = matches or [{}]
                yield from (json.dumps({"path": path} | each).encode() + b"\n" for each in members)
            elif matches:
                yield from self._matches(self._shown(path, folder), matches)
            elif not file.get("binary"):
                name = self._in_color(_PATH, self._text(self._shown(path, folder)))
                yield name + (b"\0" if self._options.null else b"\n")

    def _matches(self, path: str, matches: Iterable[Mapping[str, Json]]) -> Iterator[bytes]:
        for match in matches:
            for each in match.get("before", ()):
                yield from self._line(path, each, b"-", bytes_of(each))
            yield from self._line(path, match, b":", self._marked(match))
            for each in match.get("after", ()):
                yield from self._line(path, each, b"-", bytes_of(each))

    def _line(self, path: str, line: Mapping[str, Json], mark: bytes, text: bytes) -> Iterator[bytes]:
        number = line["line"]
        if self._options.params.get("contextLines") and self._last not in (None, (path, number - 1)):
            yield b"--\n"
        first, *others = text.split(b"\n")  # several if a match spans them
        for place, each in enumerate([first, *others]):
            name = self._in_color(_PATH, self._text(path))
            count = self._in_color(_NUMBER, str(number + place).encode())
            yield b"".join([name, mark, count, mark, each, b" [...]" if line.get("cut") else b"", b"\n"])
        self._last = path, number + len(others)

    def _marked(self, match: Mapping[str, Json]) -> bytes:
        """The text of a match, with its parts in color."""
        text, parts, done = bytes_of(match), [], 0
        if not self._colored:
            return self._escaped(text)
        for begin, end in match["ranges"]:
            parts += [self._escaped(text[done:begin]), self._in_color(_MATCH, self._escaped(text[begin:end]))]
            done = max(done, end)
        return b"".join([*parts, self._escaped(text[done:])])

    def _shown(self, path: str, folder: str) -> str:
        """The path as the user named the place: below `--path`, or relative to the working directory."""
        relative = path.removeprefix(folder.rstrip("/") + "/")
        given = self._options.path
        if relative == path:  # the searched file itself
            return given or path
        return relative if given is None else posixpath.join(given, relative)

    def _in_color(self, color: bytes, text: bytes) -> bytes:
        return color + text + _RESET if self._colored and text else text

    def _text(self, path: str) -> bytes:
        # With its line ends, or the name of a file could look like matches of others.
        return self._escaped(os.fsencode(path), printable)

    def _escaped(self, text: bytes, escape: Callable[[str], str] = visible) -> bytes:
        if not self._for_people:
            return text
        return escape(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
