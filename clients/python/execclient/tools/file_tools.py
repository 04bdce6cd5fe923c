"""`read_file`, `list_dir`, `grep` and `glob`: what a model reads without a command, within the same sandbox.

Rules kept in this file:

1. An answer has as many whole lines as its budget holds, from the first one on. Only a first line that is
   larger than the budget is cut. A last line in brackets says that there is more, and how to get it.
2. A line ends with LF, so that `read_file`, `grep` and `sed` number lines alike.
3. A name takes one line: its invisible characters are escaped.
4. Reading needs no approval: a command in the same sandbox could read the same files.
"""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from execclient.errors import WalkIncomplete
from execclient.filesystem import FileSystem
from execclient.govern.sandbox import ReadOnly, WorkspaceWrite
from execclient.results import WalkEntry
from execclient.search import PAGE_BYTES, Match, Pages, Request, Truncated, find, search
from execclient.tools.arguments import GlobArguments, GrepArguments, ListDirArguments, ReadFileArguments
from execclient.tools.context import CallContext
from execclient.tools.errors import RespondToModel
from execclient.tools.function_handler import FunctionHandler
from execclient.tools.registry import ToolHandler, ToolInvocation
from execclient.tools.result import CallRecord
from execclient.tools.truncation import Budget
from execprotocol.command_line import printable
from execprotocol.path_uri import parse_path_uri

MAX_FILE_BYTES = 16 << 20
"""From the beginning of a file. A command reads what is behind it without sending what precedes it."""

PART_BYTES = 1 << 20
"""A larger file is read in parts, and only as far as the answer needs it."""

MAX_ENTRIES = 1000
"""Lines that match, or files that are found, in one answer."""

MAX_LINE_CHARACTERS = 500
"""Of a line that `grep` has found: lines of minified files have thousands."""

GIT_FOLDER = ".git"
"""Not searched: its files are no text of the project."""

SEARCH_SECONDS = 15.0
"""The time limit of `grep` and `glob`."""

FileArguments = TypeVar("FileArguments", ReadFileArguments, ListDirArguments, GrepArguments, GlobArguments)


@dataclass(frozen=True, slots=True)
class Answer:
    """The text for the model, and whether there is more."""

    text: str
    truncated: bool


class FileHandler(FunctionHandler[FileArguments]):
    """The base of the tools that read files.

    Args:
        limit: the limit of an answer, whatever a call asks for; None for that of the toolset.
        beside_others: whether a call also runs beside one that may change something.
    """

    def __init__(self, limit: Budget | None = None, *, beside_others: bool = False) -> None:
        self._limit = limit
        self.beside_others = beside_others

    async def mutates(self, context: CallContext, arguments: FileArguments) -> bool:
        """False."""
        return False

    async def call(
        self, context: CallContext, arguments: FileArguments, invocation: ToolInvocation
    ) -> CallRecord:
        """Read what the call asks for."""
        context = context.in_environment(context, arguments.environment_id)
        path, config = context.resolve(arguments.path), context.services.config
        context.events.begin((invocation.tool_name, path), context.cwd)
        asked = arguments.max_output_tokens
        budget = (self._limit or config.model_budget).at_most(
            config.max_output_tokens if asked is None else asked
        )
        answer = await self.answer(context, path, arguments, budget)
        return CallRecord(
            invocation.call_id,
            invocation.tool_name,
            cwd=context.cwd,
            text=answer.text,
            aggregated=answer.text,
            truncated=answer.truncated,
        )

    @abstractmethod
    async def answer(
        self, context: CallContext, path: str, arguments: FileArguments, budget: Budget
    ) -> Answer:
        """The answer to a call. `path` is absolute."""


class ReadFileHandler(FileHandler[ReadFileArguments]):
    """Reads lines of a text file."""

    model = ReadFileArguments

    async def answer(
        self, context: CallContext, path: str, arguments: ReadFileArguments, budget: Budget
    ) -> Answer:
        """The lines, with a note if there are more."""
        found = _Lines(arguments.offset, arguments.limit, budget.bytes)
        await found.read(_files(context), path)
        offset = arguments.offset
        if found.ended and offset > max(found.total, 1):
            raise RespondToModel(f"offset: {path} has {found.total} lines")
        lines = found.lines if arguments.limit is None else found.lines[: arguments.limit]
        shown, cut = fitting([line.decode("utf-8", "replace") for line in lines], budget)
        end = offset - 1 + len(shown)
        note = ""
        if not found.ended or end < found.total:
            of = f" of {found.total}" if found.ended else ""
            note = f"\n[lines {offset} to {end}{of}; go on with offset {end + 1}]"
        if cut:
            size = len(shown[0].encode())
            command = f"sed -n {offset}p {shlex.quote(path)} | cut -b {size + 1}-{2 * size}"
            note = f"\n[line {offset} has more than these {size} bytes: use exec_command: {command}]{note}"
        less = cut or (bool(note) and (arguments.limit is None or len(shown) < arguments.limit))
        return Answer("".join(shown) + note or "[the file is empty]", less)


class _Lines:
    """The lines of a file from an offset on: as many as are wanted, or more than fit into an answer.

    Args:
        offset: the first line, from 1.
        limit: the number of lines; None for all.
        size: the size of an answer in bytes.
    """

    def __init__(self, offset: int, limit: int | None, size: int) -> None:
        self._skip = offset - 1
        self._limit = limit
        self._room = size
        self._rest = b""
        self.lines: list[bytes] = []
        """With their ends. The last one may lack a part if the file has not ended."""
        self.total = 0
        """Lines read, also those before the offset: all lines of the file if it has ended."""
        self.ended = False

    async def read(self, files: FileSystem, path: str) -> None:
        """Read as far as needed. Raises `RespondToModel` if that is no text, or too far."""
        size = (await files.stat(path)).size
        for start in range(0, max(size, 1), PART_BYTES):
            if self._enough():
                self.lines += [self._rest] if self._rest and self.total >= self._skip else []
                return
            if start >= MAX_FILE_BYTES:
                command = f"sed -n '{self._skip + 1},{self._skip + 200}p' {shlex.quote(path)}"
                raise RespondToModel(
                    f"the lines are not in the first {MAX_FILE_BYTES} bytes of {path}, which has {size}: "
                    f"read them with exec_command: {command}"
                )
            whole = size <= PART_BYTES  # also a file that does not report its size, such as those of /proc
            part = await (
                files.read_bytes(path)
                if whole
                else files.read_bytes(path, start, min(start + PART_BYTES, size))
            )
            if b"\0" in part:
                raise RespondToModel(f"{path} is no text: it has {size} bytes, with NUL among them")
            self._add(part)
        self.ended = True
        if self._rest:
            self._add_line(self._rest)

    def _enough(self) -> bool:
        if self._limit is not None and len(self.lines) > self._limit:
            return True
        return self._room < (len(self._rest) if self.total >= self._skip else 0)

    def _add(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._add_line(line + b"\n")

    def _add_line(self, line: bytes) -> None:
        if self.total >= self._skip and self._room >= 0:
            self.lines.append(line)
            self._room -= len(line)
        self.total += 1


class ListDirHandler(FileHandler[ListDirArguments]):
    """Lists a folder, and folders below it."""

    model = ListDirArguments

    async def answer(
        self, context: CallContext, path: str, arguments: ListDirArguments, budget: Budget
    ) -> Answer:
        """The names, those of folders with a slash."""
        names, complete = await _names(_files(context), path, arguments.depth)
        offset = arguments.offset
        if offset > max(len(names), 1):
            raise RespondToModel(f"offset: {path} has {len(names)} entries")
        shown, cut = fitting([f"{name}\n" for name in names[offset - 1 :]], budget)
        end = offset - 1 + len(shown)
        note = ""
        if end < len(names):
            note = f"\n[entries {offset} to {end} of {len(names)}; go on with offset {end + 1}]"
        if not complete:
            note += "\n[there are more than one listing has: list the folders below on their own]"
        return Answer("".join(shown) + note or "[the folder is empty]", bool(note) or cut)


async def _names(files: FileSystem, path: str, depth: int) -> tuple[list[str], bool]:
    """The names below a folder, relative to it and sorted, and whether these are all."""
    complete, entries = True, list[WalkEntry]()
    if depth > 1:
        try:
            entries = await files.walk(path, max_depth=depth - 1, hidden=False)
        except WalkIncomplete as error:
            complete, entries = False, error.entries
    if not entries:  # for a folder that cannot be read, this raises the reason
        listed = await files.iterdir(path)
        return sorted(f"{printable(each.name)}{'/' * each.is_dir}" for each in listed), True
    top = path.rstrip("/") + "/"
    lines = []
    for entry in sorted(entries, key=lambda each: each.path.split("/")):
        reason = "" if entry.error is None else f" [not read: {printable(entry.error)}]"
        lines.append(f"{printable(entry.path.removeprefix(top))}{'/' * entry.is_dir}{reason}")
    return lines, complete


class GrepHandler(FileHandler[GrepArguments]):
    """Finds lines by their text."""

    model = GrepArguments

    async def answer(
        self, context: CallContext, path: str, arguments: GrepArguments, budget: Budget
    ) -> Answer:
        """The lines, each as `PATH:LINE:TEXT`, those around them as `PATH-LINE-TEXT`, or only the paths."""
        try:
            if arguments.output == "files":
                return await self._paths(context, path, arguments, budget)
            found = await search(
                context.executor,
                arguments.pattern,
                path,
                regex=arguments.regex,
                ignore_case=arguments.ignore_case,
                multiline=arguments.multiline,
                glob=arguments.glob,
                exclude_dirs=(GIT_FOLDER,),
                ignore_rules=not arguments.ignored,
                context_lines=arguments.context_lines,
                sandbox=context.sandbox,
                workspace=context.cwd,
                max_matches=MAX_ENTRIES,
                timeout=SEARCH_SECONDS,
            )
        except ValueError as error:
            raise RespondToModel(str(error)) from error
        lines = _matches(context, found.matches, in_groups=arguments.context_lines > 0)
        return _found(lines, found.unread, found.truncated, budget, "no line matches")

    async def _paths(
        self, context: CallContext, path: str, arguments: GrepArguments, budget: Budget
    ) -> Answer:
        """The paths of the files that have a match."""
        params = {
            "pattern": arguments.pattern,
            "regex": arguments.regex,
            "ignoreCase": arguments.ignore_case,
            "multiline": arguments.multiline,
            "globs": [] if arguments.glob is None else [arguments.glob],
            "excludeDirs": [GIT_FOLDER],
            "hidden": True,
            "ignoreRules": not arguments.ignored,
            "output": "files",
        }
        request = Request("fs/search", path, params, context.sandbox, context.cwd)
        async with Pages(context.executor, request) as pages:
            page = await pages.next(MAX_ENTRIES, PAGE_BYTES, SEARCH_SECONDS)
        paths = sorted(parse_path_uri(file["path"]) for file in page["files"])
        shown = [_shown(context, each) for each in paths]
        return _found(shown, page["unread"], page["truncated"], budget, "no file matches")


class GlobHandler(FileHandler[GlobArguments]):
    """Finds files by their names."""

    model = GlobArguments

    async def answer(
        self, context: CallContext, path: str, arguments: GlobArguments, budget: Budget
    ) -> Answer:
        """The paths."""
        try:
            found = await find(
                context.executor,
                arguments.glob,
                path,
                exclude_dirs=(GIT_FOLDER,),
                ignore_rules=not arguments.ignored,
                sandbox=context.sandbox,
                workspace=context.cwd,
                max_files=MAX_ENTRIES,
                timeout=SEARCH_SECONDS,
            )
        except (ValueError, NotADirectoryError) as error:
            raise RespondToModel(str(error)) from error
        paths = [_shown(context, path) for path in found.paths]
        return _found(paths, found.unread, found.truncated, budget, "no file matches")


FILE_TOOLS: Mapping[str, Callable[[], ToolHandler[CallRecord]]] = {
    "read_file": ReadFileHandler,
    "list_dir": ListDirHandler,
    "grep": GrepHandler,
    "glob": GlobHandler,
}
"""The handlers by the names of their tools."""


def fitting(lines: Sequence[str], budget: Budget) -> tuple[list[str], bool]:
    """The first lines that fit into a budget, and whether only a part of the first one does."""
    room = budget.bytes
    for count, line in enumerate(lines):
        data = line.encode()
        if len(data) > room:
            return (list(lines[:count]), False) if count else ([data[:room].decode("utf-8", "ignore")], True)
        room -= len(data)
    return list(lines), False


def _found(
    lines: Sequence[str], unread: Sequence[str], truncated: Truncated | None, budget: Budget, nothing: str
) -> Answer:
    """The answer of a search."""
    every = [f"{each}\n" for each in (*lines, *(f"[not read: {printable(message)}]" for message in unread))]
    shown, cut = fitting(every, budget)
    notes = []
    if truncated == "time":
        notes.append(f"[the search was ended after {SEARCH_SECONDS:.0f} s: narrow the call down]")
    elif truncated is not None or cut or len(shown) < len(every):
        notes.append("[there are more: narrow the call down]")
    elif not lines:
        notes.append(f"[{nothing}]")
    blank = "\n" if shown and notes else ""
    complete = truncated is None and not cut and len(shown) == len(every)
    return Answer("".join(shown) + blank + "\n".join(notes), not complete)


def _matches(context: CallContext, matches: Sequence[Match], *, in_groups: bool) -> list[str]:
    """The lines of matches, in the form of ripgrep; groups of adjacent lines are separated by `--`."""
    lines: list[str] = []
    last: tuple[str, int] | None = None
    for match in matches:
        path = _shown(context, match.path)
        first, *others = match.text.split("\n")  # several if a match spans them
        numbered = [
            *((number, "-", _line(text)) for number, text in match.before),
            (match.line, ":", _line(first, _place(match))),
            *((match.line + count, ":", _line(text)) for count, text in enumerate(others, 1)),
            *((number, "-", _line(text)) for number, text in match.after),
        ]
        for number, mark, text in numbered:
            if in_groups and last not in (None, (path, number - 1)):
                lines.append("--")
            lines.append(f"{path}{mark}{number}{mark}{text}")
            last = path, number
    return lines


def _place(match: Match) -> int:
    """The character of a match's text where the first range begins."""
    begin = match.ranges[0][0] if match.ranges else 0
    return len(match.text.encode()[:begin].decode("utf-8", "ignore"))


def _line(text: str, place: int = 0) -> str:
    """A line without its end; of a long one the part that has a place, with `[…]` for the rest."""
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    begin = max(0, min(place - MAX_LINE_CHARACTERS // 2, len(text) - MAX_LINE_CHARACTERS))
    end = begin + MAX_LINE_CHARACTERS
    return f"{'[…]' if begin else ''}{text[begin:end]}{'[…]' if end < len(text) else ''}"


def _shown(context: CallContext, path: str) -> str:
    """A path below the working directory without it, as other calls take it."""
    return printable(path.removeprefix(context.cwd.rstrip("/") + "/"))


def _files(context: CallContext) -> FileSystem:
    sandbox = context.sandbox
    if isinstance(sandbox, WorkspaceWrite):
        # The same may be read, and no folder is listed that only protects its name (`docs/protocol.md`, C18).
        sandbox = ReadOnly(deny_read=sandbox.deny_read)
    return context.executor.fs.confined(sandbox, workspace=context.cwd)
