"""Search on the executor's machine: lines by their text, files by their name.

    from execclient.search import find, search

    async with connect() as executor:
        found = await search(executor, "TODO", glob="*.py", ignore_rules=True)
        for path, line, text in found.matches:
            print(path, line, text)
        print((await find(executor, "*.toml")).paths)

The daemon searches, with ripgrep (`docs/protocol.md`, "Search"). Both functions see what a read in the same
sandbox sees. Links are not followed, except for `path` itself, and are not found. Each function stops at the
first budget that is used up, and says which; what it has found until then is valid.

By default hidden files and files that rules ignore are searched, too: `hidden=False` leaves out names that
begin with a dot, `ignore_rules=True` what .gitignore, .ignore, .rgignore and .git/info/exclude name.

Globs have `*`, `?`, `[…]`, `{a,b}`, and `**` for any number of folders. A glob without `/` applies to the
names of files at any depth; one with `/`, also at its beginning, applies to paths below the searched folder.
A name that begins with a dot needs a glob with the dot, and `**` enters no folder with such a name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

from pybase64 import b64decode

from execclient import arguments
from execclient.arguments import AnyPath, Sandbox
from execclient.client import Executor
from execclient.connection.connection import Json
from execclient.errors import CallFailed, CommandNotRun, ExecServerError, InvalidParams, Unsupported
from execclient.file_session import ConfinedCalls
from execprotocol.limits import MAX_FOUND, MAX_OPEN_SEARCHES, MAX_SEARCH_MS
from execprotocol.path_uri import parse_path_uri

__all__ = ["Found", "Match", "Matches", "Truncated", "find", "search"]

MAX_MATCHES = 1000
MAX_FILES = 10_000
MAX_BYTES = 1 << 20
SECONDS = 15.0

PAGE_BYTES = 1 << 20
"""The largest page that is requested: some tens of milliseconds of work here."""

_LEAST_PAGE_BYTES, _ENCODED = 1 << 16, 4
"""A page is larger than the budget of bytes, which counts no JSON."""

_ANSWER_SECONDS = 60.0
"""For the answer to a request, recovery of a lost connection included, beyond the time of its page."""

_END_SECONDS = 2.0
"""For the request that ends a search. The daemon itself ends one that is not continued for a minute."""

UNKNOWN_CURSOR = "unknown_cursor"
_NOT_VALID = ("pattern_refused", "glob_refused")
_NOT_RUN = ("search_unavailable", "search_failed")
"""Names of errors (`CallFailed.wire_name`)."""

Truncated = Literal["matches", "bytes", "time"]
"""The budget that was used up."""


class _Match(NamedTuple):
    path: str
    line: int
    text: str


class Match(_Match):
    """A line that has the text: a tuple of `path`, `line` and `text`, with further attributes.

    The path is absolute, at the executor; bytes that are not UTF-8 are surrogate escapes, as in all paths.
    Lines are counted from 1. The text is the line without its end, or several lines if one match spans them;
    bytes that are not UTF-8 are U+FFFD.
    """

    ranges: Sequence[tuple[int, int]] = ()
    """Where the matches begin and end, in bytes of the line at the executor."""
    before: Sequence[tuple[int, str]] = ()
    """The numbers and texts of `context_lines` before, without those that an earlier match has."""
    after: Sequence[tuple[int, str]] = ()
    """The numbers and texts of `context_lines` after, up to the next match."""
    cut: bool = False
    """Whether the line is too long, and `text` is only its beginning."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The result of `search`."""

    matches: list[Match]
    """Sorted by path and line."""
    truncated: Truncated | None
    """The budget that ended the search; None if it is complete."""
    unread: list[str]
    """What could not be read, also because the sandbox denies it, with the reason; at most 20 messages."""
    program: str = "rg"
    """The program that has searched: `rg`."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of `find`."""

    paths: list[str]
    """Absolute, sorted. Regular files only."""
    truncated: Truncated | None
    """The budget that ended the search; None if it is complete."""
    unread: list[str]
    """Folders that could not be read, each with the reason; at most 20."""


async def search(
    executor: Executor,
    pattern: str,
    path: AnyPath = ".",
    *,
    regex: bool = False,
    ignore_case: bool = False,
    multiline: bool = False,
    glob: str | Iterable[str] | None = None,
    exclude_dirs: Iterable[str] = (".git",),
    hidden: bool = True,
    ignore_rules: bool = False,
    context_lines: int = 0,
    sandbox: Sandbox | None = None,
    workspace: AnyPath | None = None,
    max_matches: int = MAX_MATCHES,
    max_bytes: int = MAX_BYTES,
    timeout: float = SECONDS,  # noqa: ASYNC109 - the search ends, with a result
) -> Matches:
    """Search files for lines with a text.

    Files with a NUL byte are not searched, but for those in UTF-16 with a byte order mark. Lines end with LF
    or CR LF. Regular expressions are those of Rust's crate `regex`, without look-around and back-references.

    Args:
        executor: where to search.
        pattern: the text, without a newline unless it is `multiline`; all lines have the empty one.
        path: a folder or a file; relative to `executor.cwd`.
        regex: whether `pattern` is a regular expression.
        ignore_case: whether case does not matter.
        multiline: whether a match may span lines; only with `regex`.
        glob: of the files to search, or several of which one has to match; all files by default.
        exclude_dirs: names of folders below `path` that are not entered.
        hidden: whether to search files and folders whose names begin with a dot.
        ignore_rules: whether to leave out what the rules of .gitignore and the like name.
        context_lines: how many lines before and after each match are in the result; at most 20.
        sandbox: as for `executor.run`.
        workspace: the folder of the policy's workspace; `executor.cwd` by default.
        max_matches: lines in the result.
        max_bytes: of all lines and their paths in the result.
        timeout: seconds.

    Raises:
        NotFound: there is no such path.
        Refused: it is neither a folder nor a regular file, or the sandbox cannot be made.
        ValueError: the pattern or a glob is not valid.
        CommandNotRun: the executor has no ripgrep, or the sandbox does not let it run.
        Unsupported: the daemon is of an earlier version.
    """
    params = {
        "pattern": _pattern(pattern, regex=regex, multiline=multiline),
        "regex": regex or not pattern,
        "ignoreCase": ignore_case,
        "multiline": multiline,
        **_selection(() if glob is None else glob, exclude_dirs, hidden=hidden, ignore_rules=ignore_rules),
        "contextLines": arguments.count(context_lines, "context_lines"),
    }
    request = Request("fs/search", path, params, sandbox, workspace)
    collected = await _collect(executor, request, _Collected(max_matches, max_bytes), timeout)
    return Matches(sorted(collected.matches), collected.truncated, collected.unread)


async def find(
    executor: Executor,
    glob: str | Iterable[str],
    path: AnyPath = ".",
    *,
    exclude_dirs: Iterable[str] = (),
    hidden: bool = True,
    ignore_rules: bool = False,
    sandbox: Sandbox | None = None,
    workspace: AnyPath | None = None,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    timeout: float = SECONDS,  # noqa: ASYNC109 - the search ends, with a result
) -> Found:
    """Find files by name.

    Args:
        executor: where to search.
        glob: of the files, or several of which one has to match; the description of the module has the rules.
        path: the folder; relative to `executor.cwd`.
        exclude_dirs: names of folders below `path` that are not entered.
        hidden: whether to find files and enter folders whose names begin with a dot, if a glob has the dot.
        ignore_rules: whether to leave out what the rules of .gitignore and the like name.
        sandbox: as for `executor.fs.confined`.
        workspace: the folder of the policy's workspace; `executor.cwd` by default.
        max_files: files in the result.
        max_bytes: of all paths in the result.
        timeout: seconds.

    Raises:
        NotFound: there is no such folder.
        NotADirectoryError: `path` is no folder.
        Refused: the sandbox cannot be made.
        ValueError: a glob is not valid.
        CommandNotRun: the executor has no ripgrep, or the sandbox does not let it run.
        Unsupported: the daemon is of an earlier version.
    """
    params = _selection(glob, exclude_dirs, hidden=hidden, ignore_rules=ignore_rules)
    request = Request("fs/glob", path, params, sandbox, workspace)
    collected = await _collect(executor, request, _Collected(max_files, max_bytes), timeout)
    return Found(sorted(match.path for match in collected.matches), collected.truncated, collected.unread)


# -- pages


_TURNS: WeakKeyDictionary[Executor, asyncio.Semaphore] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Request:
    """A search, as the wire has it."""

    method: Literal["fs/search", "fs/glob"]
    path: AnyPath
    params: Mapping[str, Json]
    """The parameters, without `path`, `sandbox`, and what is different for each page."""
    sandbox: Sandbox | None
    workspace: AnyPath | None = None


class Pages:
    """The pages of a search, in an `async with` block; leaving it ends the search at the daemon.

    Entering waits while the session has as many searches as the daemon allows. A lost connection changes
    nothing: each page can be requested again.
    """

    def __init__(self, executor: Executor, request: Request) -> None:
        if request.method not in executor.capabilities:
            raise Unsupported(request.method, "update the daemon")
        workspace = parse_path_uri(executor.fs.uri(request.workspace or "."))
        context = arguments.sandbox(request.sandbox, workspace, "workspace")
        self.folder = parse_path_uri(executor.fs.uri(request.path))
        """The searched path, absolute."""
        self.complete = False
        self._executor = executor
        self._calls = ConfinedCalls(executor, context)
        self._method = request.method
        self._search_id = arguments.new_id()
        self._params = {**request.params, "path": executor.fs.uri(request.path), "searchId": self._search_id}
        self._limit = "maxMatches" if request.method == "fs/search" else "maxFiles"
        self._cursor: str | None = None
        self._turn = _TURNS.setdefault(executor, asyncio.Semaphore(MAX_OPEN_SEARCHES))

    async def next(self, entries: int, size: int, seconds: float) -> Mapping[str, Json]:
        """The next page, as the wire has it (`docs/protocol.md`, "Search").

        Args:
            entries: the most matches or files.
            size: the most bytes.
            seconds: the longest time; the page may have no entries then.

        Raises:
            ValueError: a parameter is not valid.
            CommandNotRun: the executor has no ripgrep, or it failed.
            CallFailed: the path cannot be searched; also if the search has ended (`UNKNOWN_CURSOR`), as when
                the server was replaced.
        """
        milliseconds = max(1, min(round(seconds * 1000), MAX_SEARCH_MS))
        page = {
            self._limit: max(1, min(entries, MAX_FOUND)),
            "maxBytes": max(_LEAST_PAGE_BYTES, min(_ENCODED * size, PAGE_BYTES)),
            "timeMs": milliseconds,
            "cursor": self._cursor,
        }
        limit = milliseconds / 1000 + _ANSWER_SECONDS
        try:
            result: Mapping[str, Json] = await self._calls.call(
                self._method, {**self._params, **page}, limit=limit
            )
        except CallFailed as error:
            if isinstance(error, InvalidParams) or error.wire_name in _NOT_VALID:
                raise ValueError(error.message) from error
            if error.wire_name in _NOT_RUN:
                raise CommandNotRun(error.message) from error
            raise
        self._cursor = result["cursor"]
        self.complete = self._cursor is None
        return result

    async def __aenter__(self) -> Self:
        await self._turn.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self.complete:
                with suppress(ExecServerError):
                    end = {"searchId": self._search_id}
                    await self._executor.call("fs/endSearch", end, limit=_END_SECONDS)
        finally:
            self._turn.release()


class _Collected:
    """The entries of a search, up to its budgets."""

    def __init__(self, entries: int, size: int) -> None:
        self._budget = (
            arguments.count(entries, "the largest number of entries") or 0,
            arguments.count(size, "max_bytes") or 0,
        )
        self.begin()

    def begin(self) -> None:
        """Forget everything, for a search that begins anew."""
        self.matches: list[Match] = []
        self.unread: list[str] = []
        self.truncated: Truncated | None = None
        self.entries_left, self.bytes_left = self._budget

    def add(self, page: Mapping[str, Json], folder: str) -> None:
        """Take the entries of a page that fit."""
        self.unread = page["unread"]
        for uri in page.get("paths", ()):
            path = parse_path_uri(uri)
            if not self._take(Match(path, 0, ""), _size(path)):
                return
        for file in page.get("files", ()):
            path = parse_path_uri(file["path"])
            size = _size(path.removeprefix(folder).lstrip("/"))
            if not all(self._take(_match(path, line), size) for line in file["matches"]):
                return
            if file.get("binary"):  # as ripgrep noticed after these matches
                self.matches = [match for match in self.matches if match.path != path]

    def _take(self, match: Match, size: int) -> bool:
        size += _size(match.text)
        if not self.entries_left or self.bytes_left < size:
            self.truncated = "bytes" if self.entries_left else "matches"
            return False
        self.matches.append(match)
        self.entries_left -= 1
        self.bytes_left -= size
        return True


async def _collect(executor: Executor, request: Request, collected: _Collected, timeout: float) -> _Collected:  # noqa: ASYNC109 - as of `search`
    clock = asyncio.get_running_loop().time
    end = clock() + arguments.seconds(timeout, "timeout", instead="pass a large number for a long search")
    while True:
        collected.begin()
        try:
            async with Pages(executor, request) as pages:
                while not (pages.complete or collected.truncated):
                    left = end - clock()
                    if left <= 0:
                        collected.truncated = "time"
                        break
                    # One entry more tells whether there are more.
                    page = await pages.next(collected.entries_left + 1, collected.bytes_left, left)
                    collected.add(page, pages.folder)
            return collected
        except CallFailed as error:
            if error.wire_name != UNKNOWN_CURSOR:
                raise


def _match(path: str, line: Mapping[str, Json]) -> Match:
    match = Match(path, line["line"], _text(line))
    match.ranges = [(begin, end) for begin, end in line["ranges"]]
    if "cut" in line:
        match.cut = line["cut"]
    if "before" in line:
        match.before = [(each["line"], _text(each)) for each in line["before"]]
    if "after" in line:
        match.after = [(each["line"], _text(each)) for each in line["after"]]
    return match


def bytes_of(line: Mapping[str, Json]) -> bytes:
    """The bytes of a line of the wire, without its end."""
    return line["text"].encode() if "text" in line else b64decode(line["textBase64"])


def _text(line: Mapping[str, Json]) -> str:
    return line["text"] if "text" in line else bytes_of(line).decode("utf-8", "replace")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


# -- arguments


def _pattern(pattern: str, *, regex: bool, multiline: bool) -> str:
    if multiline and not regex:
        raise ValueError("multiline needs a regular expression: pass regex=True")
    if "\n" in arguments.text(pattern, "pattern") and not multiline:
        raise ValueError("pattern has a newline, and lines are searched one by one: pass multiline=True")
    return pattern or "^"


def _selection(
    glob: str | Iterable[str], exclude_dirs: Iterable[str], *, hidden: bool, ignore_rules: bool
) -> dict[str, Json]:
    """The parameters for which files are looked at."""
    return {
        "globs": _texts(glob, "glob"),
        "excludeDirs": _folders(exclude_dirs),
        "hidden": hidden,
        "ignoreRules": ignore_rules,
    }


def _texts(values: str | Iterable[str], name: str) -> list[str]:
    return [arguments.text(each, name) for each in ([values] if isinstance(values, str) else values)]


def _folders(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise TypeError(f"exclude_dirs are several names: [{names!r}]")
    folders = _texts(names, "exclude_dirs")
    for folder in folders:
        if not folder or "/" in folder:
            raise ValueError(f"exclude_dirs are names of folders, not {folder!r}")
    return folders
