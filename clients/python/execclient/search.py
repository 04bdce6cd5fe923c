"""Search on the executor's machine: lines by their text, files by their name.

    from execclient.search import find, search

    async with connect() as executor:
        found = await search(executor, "TODO", glob="*.py")
        for path, line, text in found.matches:
            print(path, line, text)
        print((await find(executor, "*.toml")).paths)

Both see what a read in the same sandbox sees. Links are not followed, except for `path` itself. Each stops at
the first budget that is used up, and says which; what it has found until then is valid.

Globs have `*`, `?`, `[…]`, `{a,b}`, and `**` for any number of folders. A glob without `/` applies to the
names of files at any depth; one with `/`, also at its beginning, applies to paths below the searched folder.
A name that begins with a dot needs a glob with the dot, and `**` enters no folder with such a name. Globs
need the extra `execclient[search]`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from execclient import arguments
from execclient.arguments import AnyPath, Sandbox
from execclient.client import Executor
from execclient.errors import CommandNotRun, ExecServerError, WalkIncomplete
from execclient.filesystem import FileSystem
from execclient.process import Process
from execclient.results import WalkEntry
from execclient.search_program import NO_PROGRAM, NOT_VALID, SOME_UNREAD, SearchOutput, search_script
from execprotocol.path_uri import parse_path_uri

__all__ = ["Found", "Match", "Matches", "Truncated", "find", "search"]

MAX_MATCHES = 1000
MAX_FILES = 10_000
MAX_BYTES = 1 << 20
SECONDS = 15.0
MAX_UNREAD = 20
"""Messages in `unread`."""

Truncated = Literal["matches", "bytes", "time", "names"]
"""The budget that was used up. `names`: a folder has more names than a walk returns, 50,000."""

_STDERR_BYTES = 1 << 16

_ENCODED, _OVERHEAD = 6, 1 << 16
"""A byte of a line takes at most six in rg's output, and a line some more for its path and its matches."""

_MAX_ALTERNATIVES = 1000
"""Of the braces in a glob."""

_NameMatcher = Callable[[str], bool] | None
"""A part of a glob between slashes; None is `**`."""

_NO_TIMEOUT = "pass a large number for a long search"


class Match(NamedTuple):
    """A line that has the text."""

    path: str
    """Absolute, at the executor. Bytes that are not UTF-8 are surrogate escapes, as in all paths."""
    line: int
    """Counted from 1."""
    text: str
    """The line without its end. Bytes that are not UTF-8 are U+FFFD."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The result of `search`."""

    matches: list[Match]
    """Sorted by path and line."""
    truncated: Truncated | None
    """The budget that ended the search; None if it is complete."""
    unread: list[str]
    """What could not be read, as the program reports it; at most 20 messages."""
    program: str
    """The program that has searched: `rg` or `grep`."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of `find`."""

    paths: list[str]
    """Absolute, sorted. Files only."""
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
    glob: str | None = None,
    exclude_dirs: Iterable[str] = (".git",),
    sandbox: Sandbox | None = None,
    workspace: AnyPath | None = None,
    max_matches: int = MAX_MATCHES,
    max_bytes: int = MAX_BYTES,
    timeout: float = SECONDS,  # noqa: ASYNC109 - the search ends, with a result
) -> Matches:
    """Search files for lines with a text. Runs ripgrep (`rg`) at the executor, else GNU grep.

    Hidden and ignored files are searched, too. Files with a NUL byte are not, but grep may report lines that
    precede it. Lines end with LF or CR LF. `ignore_case` applies to ASCII letters, and `.` is one byte.

    Regular expressions are those of the program: of Rust (rg), or extended ones of POSIX (grep -E). Both have
    `.`, `[…]` with `[[:alpha:]]`, `*`, `+`, `?`, `{m,n}`, `(…)`, `|`, `^`, `$`, `\\b`, `\\w`, `\\s`. Only
    rg has `\\d`, `*?` and `(?i)`; only grep has back-references.

    Args:
        executor: where to search.
        pattern: the text, without a newline; all lines have the empty one.
        path: a folder or a file; relative to `executor.cwd`.
        regex: whether `pattern` is a regular expression.
        ignore_case: whether case does not matter.
        glob: of the files to search; all by default.
        exclude_dirs: names of folders below `path` that are not entered.
        sandbox: as for `executor.run`.
        workspace: the folder of the policy's workspace; `executor.cwd` by default.
        max_matches: lines in the result.
        max_bytes: of all lines and their paths in the result.
        timeout: seconds.

    Raises:
        NotFound, Refused: there is no such path, or the sandbox or the permissions deny to read it.
        ValueError: the pattern or the glob is not valid; `path` is a device or the like.
        CommandNotRun: the executor has neither program, or the sandbox does not let it run one.
        ImportError: `glob` needs the package `wcmatch`, which is not installed.
    """
    collected = _Collected(None if glob is None else _matcher(glob), _Budget(max_matches, max_bytes))
    files = executor.files(sandbox, workspace=workspace)
    folder, name = await _place(files, path)
    script = search_script(pattern, name, glob, exclude_dirs, regex=regex, ignore_case=ignore_case)
    process = await executor.start(
        ["sh", "-c", script],
        cwd=folder,
        env={"LC_ALL": "C"},
        timeout=arguments.seconds(timeout, "timeout", instead=_NO_TIMEOUT),
        sandbox=arguments.sandbox(sandbox, parse_path_uri(files.uri(workspace or ".")), "workspace"),
        buffer_bytes=None,
    )
    async with process:
        await collected.read(process, folder)
        await collected.end(process, regex=regex)
    return collected.result()


async def find(
    executor: Executor,
    glob: str,
    path: AnyPath = ".",
    *,
    sandbox: Sandbox | None = None,
    workspace: AnyPath | None = None,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    timeout: float = SECONDS,  # noqa: ASYNC109 - the search ends, with a result
) -> Found:
    """Find files by name, up to 64 levels below a folder. Hidden and ignored files are looked at, too.

    Args:
        executor: where to search.
        glob: of the files; the description of the module has its rules.
        path: the folder; relative to `executor.cwd`.
        sandbox: as for `executor.fs.confined`.
        workspace: the folder of the policy's workspace; `executor.cwd` by default.
        max_files: files in the result.
        max_bytes: of all paths in the result.
        timeout: seconds.

    Raises:
        NotFound: there is no such folder.
        NotADirectoryError: `path` is no folder.
        Refused: the sandbox or the permissions deny to read it.
        ValueError: the glob is not valid.
        ImportError: the package `wcmatch` is not installed.
    """
    matches, budget = _matcher(glob), _Budget(max_files, max_bytes)
    seconds = arguments.seconds(timeout, "timeout", instead=_NO_TIMEOUT)
    files = executor.files(sandbox, workspace=workspace)
    top = parse_path_uri(files.uri(path))
    prefix = top.rstrip("/") + "/"
    paths: list[str] = []
    unread: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            if not (await files.stat(path)).is_dir:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), top)
            async for entry in _entries(files, top, budget):
                if entry.error is not None:
                    unread.append(f"{entry.path}: {entry.error}")
                if not entry.is_dir and matches(entry.path.removeprefix(prefix)):
                    if not budget.take(len(entry.path)):
                        break
                    paths.append(entry.path)
    except TimeoutError as error:
        if isinstance(error, ExecServerError):  # of a single call
            raise
        budget.used_up = "time"
    return Found(sorted(paths), budget.used_up, unread[:MAX_UNREAD])


class _Budget:
    """How much a result may still grow."""

    def __init__(self, matches: int, size: int) -> None:
        self.used_up: Truncated | None = None
        self.matches = arguments.count(matches, "the largest number of matches") or 0
        self.bytes = arguments.count(size, "max_bytes") or 0

    def take(self, size: int) -> bool:
        """Whether there is room for a match of so many bytes, which is then taken."""
        if not self.matches or self.bytes < size:
            self.used_up = "bytes" if self.matches else "matches"
            return False
        self.matches -= 1
        self.bytes -= size
        return True


class _Collected:
    """The matches of a search, as its output arrives."""

    def __init__(self, wanted: Callable[[str], bool] | None, budget: _Budget) -> None:
        self.matches: list[Match] = []
        self.output = SearchOutput()
        self.stderr = b""
        self.budget = budget
        self._wanted = wanted

    async def read(self, process: Process, folder: str) -> None:
        """Read to the end, or until a budget is used up."""
        async for stream, data in process:
            if stream == "stderr":
                self.stderr += data[: _STDERR_BYTES - len(self.stderr)]
                continue
            for name, line, text in self.output.add(data):
                relative = os.fsdecode(name).removeprefix("./")
                if self._wanted is not None and not self._wanted(relative):
                    continue
                path = posixpath.join(folder, relative)
                if text is None:  # binary, as its program has noticed late
                    self.matches = [match for match in self.matches if match.path != path]
                elif self.budget.take(len(name) + len(text)):
                    self.matches.append(Match(path, line, text.decode("utf-8", "replace")))
                else:
                    return
            if self.output.begun > _ENCODED * self.budget.bytes + _OVERHEAD:
                self.budget.used_up = "bytes"  # by a line that has not ended
                return

    async def end(self, process: Process, *, regex: bool) -> None:
        """Wait for the exit of the program, unless a budget is used up. Raises as `search`."""
        if self.budget.used_up is not None:
            return
        code = await process.wait()
        program, stderr = self.output.program, self.stderr.decode("utf-8", "replace").strip()
        if process.cause == "timeout":
            self.budget.used_up = "time"
        elif process.failure:
            raise CommandNotRun(process.failure)
        elif code == NO_PROGRAM and not program:
            raise CommandNotRun("the executor has neither rg nor grep on its PATH: install ripgrep there")
        elif code == NOT_VALID and regex:
            raise ValueError(f"pattern is not valid for {program}: {stderr}")
        elif code > SOME_UNREAD:
            raise CommandNotRun(f"{program or 'the search'} failed with exit code {code}: {stderr}")

    def result(self) -> Matches:
        """What was found."""
        messages = self.stderr.decode("utf-8", "replace").splitlines()[:MAX_UNREAD]
        return Matches(sorted(self.matches), self.budget.used_up, messages, self.output.program)


async def _place(files: FileSystem, path: AnyPath) -> tuple[str, str]:
    """The working directory of a search, and the name in it that is searched."""
    status, place = await files.stat(path), parse_path_uri(files.uri(path))
    if not (status.is_dir or status.is_file):
        raise ValueError(f"path is neither a folder nor a regular file: {place}")
    return (place, ".") if status.is_dir else posixpath.split(place)


async def _entries(files: FileSystem, top: str, budget: _Budget) -> AsyncIterator[WalkEntry]:
    """All names below a folder: by one walk, or folder by folder where that is too much for one."""
    folders = deque([top])
    while folders:
        folder = folders.popleft()
        try:
            entries = await files.walk(folder)
            if not entries and folder == top:
                await files.iterdir(top)  # raises the error that hides the names
        except WalkIncomplete:
            try:
                entries = await files.walk(folder, max_depth=0)
            except WalkIncomplete as error:
                entries, budget.used_up = error.entries, "names"
            folders.extend(entry.path for entry in entries if entry.is_dir)
        for entry in entries:
            yield entry


def _matcher(glob: str) -> Callable[[str], bool]:
    """Whether a path, relative to the searched folder, is matched."""
    try:
        import bracex
        from wcmatch import glob as globs
    except ImportError as error:
        raise ImportError('globs need the package wcmatch: pip install "execclient[search]"') from error
    text = arguments.text(glob, "glob")
    if ".." in text.split("/"):
        raise ValueError(f"glob has '..', which leads out of the searched folder: {text!r}")

    def compiled(name: str) -> _NameMatcher:
        return None if name == "**" else globs.compile(name, flags=globs.FORCEUNIX).match

    try:
        alternatives = [
            [compiled(name) for name in re.split("/+", each)]
            for each in bracex.expand(text.lstrip("/"), keep_escapes=True, limit=_MAX_ALTERNATIVES)
        ]
    except Exception as error:  # its class is not public
        raise ValueError(f"glob {text!r} is not valid: {error}") from error
    if "/" in text:
        return lambda path: any(_matches(path.split("/"), each) for each in alternatives)
    return lambda path: any(_matches([path.rpartition("/")[2]], each) for each in alternatives)


def _matches(path: Sequence[str], glob: Sequence[_NameMatcher]) -> bool:
    """Whether the names of a path are matched, in a time that grows with both lengths, and no faster.

    A regular expression for several `**` can take hours for one path.
    """
    places = _past_folders({0}, glob)
    for name in path:
        following = set()
        for place in places:
            matcher = glob[place] if place < len(glob) else _no_name
            if matcher is None:
                if not name.startswith("."):
                    following |= {place, place + 1}
            elif matcher(name):
                following.add(place + 1)
        places = _past_folders(following, glob)
    return len(glob) in places


def _past_folders(places: set[int], glob: Sequence[_NameMatcher]) -> set[int]:
    """Places in a glob, with those after a `**`, which may stand for no folder unless it is the last part."""
    for place in sorted(places):
        while place < len(glob) - 1 and glob[place] is None:
            place += 1
            places.add(place)
    return places


def _no_name(name: str) -> bool:
    return False
