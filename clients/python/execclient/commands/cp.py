"""`execserver cp`: copy files and directories to the daemon's machine and back.

A path that begins with `:` is on the daemon's machine; `-` is stdin or stdout. If the destination is a
directory, the copies get the names of their sources in it, as with cp(1).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Self

from execclient import (
    CallFailed,
    Copied,
    Executor,
    FileSystem,
    LeftOut,
    NotFound,
    Progress,
    SandboxRequired,
    Stat,
    TreeCopied,
    TreeProgress,
)
from execclient.commands.daemon import DaemonOptions
from execclient.commands.failures import INCOMPLETE, CommandExit, print_message, system_error
from execclient.commands.sandboxes import file_sandbox
from execclient.commands.signals import Signals
from execclient.commands.terminal import screen_size
from execclient.commands.values import amount
from execclient.local_files import standard_stream
from execclient.trees import ignore_function
from execprotocol.command_line import printable

if TYPE_CHECKING:
    from execclient.govern.sandbox import SandboxPolicy

REMOTE = ":"
STREAM = "-"

_NO_NAMES = ("", ".", "..")
"""Last parts of paths that cannot name the copy in another directory."""

_REDRAW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of the command."""

    recursive: bool
    preserve: bool
    """Keep times, and set modes of existing files, too, as `cp -p` does."""
    quiet: bool
    exclude: tuple[str, ...] = ()
    """Patterns as in a .gitignore file, of what is left out of directories."""
    sandbox: SandboxPolicy | None = None
    """The limits on the daemon's machine; the daemon's working directory is the workspace."""


@dataclass(slots=True)
class CopyReport:
    """What was copied, and what was not."""

    files: int = 0
    size: int = 0
    """Bytes of these files."""
    left_out: list[str] = field(default_factory=list)
    """What is not copied, with the reason."""
    in_place: list[str] = field(default_factory=list)
    """Files that could not be replaced, such as mount points, and were written in place."""
    modes_kept: bool = True
    """False with an earlier version of the server, which neither reports nor sets modes."""

    def add(self, path: str, copied: Copied) -> None:
        """Record the copy of one file."""
        self.files += 1
        self.size += copied.size or 0
        self.modes_kept &= copied.mode_kept
        if copied.in_place:
            self.in_place.append(path)

    def add_tree(self, copied: TreeCopied, prefix: str) -> None:
        """Record the copy of a tree, whose paths get a prefix for messages."""
        self.files += copied.files
        self.size += copied.size
        self.left_out += [_left_out(each) for each in copied.left_out]
        self.in_place += [prefix + path for path in copied.in_place]
        self.modes_kept &= copied.modes_kept

    def print(self) -> None:
        """Print a message for each thing that users should know of."""
        for each in self.left_out:
            print_message(each)
        for each in self.in_place:
            print_message(f"{each}: written in place, it cannot be replaced")
        if not self.modes_kept:
            print_message("this version of the server keeps no modes: new files have the default ones")


def _left_out(each: LeftOut) -> str:
    return f"{REMOTE if each.remote else ''}{each.path}: {each.reason}"


async def cp(
    daemon: DaemonOptions, sources: Sequence[str], destination: str, options: CopyOptions, *, as_json: bool
) -> int:
    """Copy and report; returns 1 if something was not copied."""
    _check_directions(sources, destination)
    if options.exclude and sources[0].startswith(REMOTE) and destination.startswith(REMOTE):
        raise CommandExit("--exclude is not available for a copy within the daemon's machine", 2)
    report = CopyReport()
    async with daemon.connect() as executor:
        with Signals() as signals:
            await signals.unless_signalled(_copy(executor, sources, destination, options, report))
    report.print()
    if as_json:
        which = {"source": sources[0]} if len(sources) == 1 else {"sources": [*sources]}
        counts = {"destination": destination, "files": report.files, "bytes": report.size}
        print(
            json.dumps({**which, **counts, "leftOut": report.left_out, "inPlace": report.in_place}),
            flush=True,
        )
    return INCOMPLETE if report.left_out else 0


async def _copy(
    executor: Executor, sources: Sequence[str], destination: str, options: CopyOptions, report: CopyReport
) -> None:
    sandbox = await file_sandbox(executor, options.sandbox, executor.cwd)
    files = executor.files(sandbox)
    await _Copier(files, executor, destination, options, report).copy(sources)


def _check_directions(sources: Sequence[str], destination: str) -> None:
    remote = {source.startswith(REMOTE) for source in sources}
    if len(remote) > 1:
        raise CommandExit("the sources must be all on this machine, or all on the daemon's", 2)
    if remote == {False} and not destination.startswith(REMOTE):
        raise CommandExit("one of the two paths must be on the daemon's machine and begin with ':'", 2)
    if len(sources) > 1 and STREAM in (*sources, destination):
        raise CommandExit(f"'{STREAM}' cannot be copied together with other files", 2)


class _Copier:
    """The copies of one command."""

    def __init__(
        self,
        files: FileSystem,
        executor: Executor,
        destination: str,
        options: CopyOptions,
        report: CopyReport,
    ) -> None:
        self._fs = files
        self._capabilities = executor.capabilities
        self._cwd = executor.cwd
        self._destination = destination
        self._options = options
        self._report = report
        try:
            self._ignore = ignore_function(options.exclude or None)
        except (ImportError, ValueError) as error:
            raise CommandExit(str(error), 2) from error

    async def copy(self, sources: Sequence[str]) -> None:
        """Copy the sources, one after the other; of several, those that are missing are left out.

        Raises:
            CommandExit, CallFailed, OSError: a copy failed.
        """
        copy = self._way(sources[0])
        if len(sources) == 1:
            await copy(sources[0])
            return
        if not await self._is_directory():
            raise CommandExit(f"{self._destination}: not a directory, for several sources")
        for source in sources:
            try:
                await copy(source)
            except (CommandExit, FileNotFoundError) as error:
                text = str(error) if isinstance(error, CommandExit) else system_error(error)
                self._report.left_out.append(text)

    def _way(self, source: str) -> Callable[[str], Awaitable[None]]:
        match source.startswith(REMOTE), self._destination.startswith(REMOTE):
            case True, True:
                return self._copy_remote
            case True, False:
                return self._download_to_stdout if self._destination == STREAM else self._download
        return self._upload_stdin if source == STREAM else self._upload

    # -- to the daemon's machine

    async def _upload(self, source: str) -> None:
        local = Path(source)
        target = await self._remote_target(local.resolve().name if local.name in _NO_NAMES else local.name)
        with self._progress(local.name) as progress:
            if local.is_dir():
                self._require_recursive(source)
                with self._in_errors(REMOTE + target, tree=True):
                    await self._require_parent(target)
                    tree = await self._fs.upload_tree(
                        local,
                        target,
                        ignore=self._ignore,
                        preserve_times=self._options.preserve,
                        progress=progress.show_tree,
                    )
                self._report.add_tree(tree, REMOTE)
                return
            with self._in_errors(REMOTE + target):
                copied = await self._fs.upload(
                    local, target, progress=progress.show, preserve_times=self._options.preserve
                )
        self._report.add(REMOTE + target, copied)

    async def _upload_stdin(self, source: str) -> None:
        path = _remote_path(self._destination)
        with (
            standard_stream(0) as stream,
            self._progress(source) as progress,
            self._in_errors(REMOTE + path),
        ):
            copied = await self._fs.upload(stream, path, progress=progress.show)
        self._report.add(REMOTE + path, copied)

    # -- from the daemon's machine

    async def _download(self, source: str) -> None:
        remote = _remote_path(source)
        stat = await self._stat(remote)
        target = Path(self._destination)
        if target.is_dir():
            target /= await self._remote_name(remote)
        elif self._destination.endswith("/"):
            raise CommandExit(f"{self._destination}: no such directory")
        with self._progress(PurePosixPath(remote).name) as progress:
            if stat.is_dir:
                self._require_recursive(source)
                if not target.parent.is_dir():
                    raise CommandExit(f"{target}: {target.parent} is no directory")
                with self._in_errors(source, tree=True):
                    tree = await self._fs.download_tree(
                        remote,
                        target,
                        ignore=self._ignore,
                        preserve_times=self._options.preserve,
                        progress=progress.show_tree,
                    )
                self._report.add_tree(tree, "")
                return
            with self._in_errors(REMOTE + remote):
                copied = await self._fs.download(
                    remote, target, progress=progress.show, preserve_times=self._options.preserve
                )
        self._report.add(str(target), copied)

    async def _download_to_stdout(self, source: str) -> None:
        path = _remote_path(source)
        await self._stat(path)
        with standard_stream(1) as stream, self._progress(PurePosixPath(path).name) as progress:
            copied = await self._fs.download(path, stream, progress=progress.show)
        self._report.add(self._destination, copied)

    # -- within the daemon's machine

    async def _copy_remote(self, source: str) -> None:
        remote = _remote_path(source)
        stat = await self._stat(remote)
        if stat.is_dir:
            self._require_recursive(source)
        target = await self._remote_target(await self._remote_name(remote))
        with self._in_errors(REMOTE + target):
            if stat.is_dir:
                await self._require_parent(target)
            copied = await self._fs.copy(
                remote,
                target,
                recursive=stat.is_dir,
                keep_mode=not self._options.preserve and "fs/copy.keepMode" in self._capabilities,
                preserve_times=self._options.preserve,
            )
        self._report.add(REMOTE + target, copied._replace(size=stat.size))

    # -- paths

    async def _is_directory(self) -> bool:
        """Whether the destination is a directory."""
        if self._destination.startswith(REMOTE):
            return await self._fs.is_dir(_remote_path(self._destination))
        return Path(self._destination).is_dir()

    async def _remote_target(self, name: str) -> str:
        """The destination, or the name in it if it is a directory."""
        path = _remote_path(self._destination)
        if await self._is_directory():
            return str(PurePosixPath(path, name))
        if path.endswith("/"):
            raise CommandExit(f"{REMOTE}{path}: no such directory")
        return path

    async def _remote_name(self, path: str) -> str:
        """The name of a copy in another directory; empty for the root, whose content is copied."""
        name = PurePosixPath(path).name
        if name in _NO_NAMES:
            name = PurePosixPath(await self._fs.resolve(path)).name
            if name in _NO_NAMES[1:] or "\0" in name:
                raise CommandExit(f"{REMOTE}{path}: the server returned no name for it")
        return name

    async def _stat(self, path: str) -> Stat:
        with self._in_errors(REMOTE + path):
            return await self._fs.stat(path)

    @contextmanager
    def _in_errors(self, path: str, *, tree: bool = False) -> Iterator[None]:
        """Put the path in front of the daemon's error text. `SandboxRequired` passes through.

        Args:
            path: the path.
            tree: whether it is the top of a tree, and the error may be about a path below it.
        """
        try:
            yield
        except SandboxRequired:
            raise
        except CallFailed as error:
            where = REMOTE + error.path if tree and error.path else path
            reason = f": {error.reason}" if error.reason else ""
            hint = self._home_hint(path.removeprefix(REMOTE)) if isinstance(error, NotFound) else ""
            raise CommandExit(f"{where}: {error.message}{reason}{hint}") from error

    def _home_hint(self, path: str) -> str:
        return f"; ~ is not expanded there: relative paths begin in {self._cwd}" if path[:1] == "~" else ""

    async def _require_parent(self, target: str) -> None:
        """Trees are copied with their parents otherwise; cp(1) makes none."""
        parent = str(PurePosixPath(target).parent)
        if not await self._fs.is_dir(parent):
            raise CommandExit(f"{REMOTE}{target}: {parent} is no directory{self._home_hint(target)}")

    def _require_recursive(self, path: str) -> None:
        if not self._options.recursive:
            raise CommandExit(f"{path}: is a directory; use -r")

    def _progress(self, name: str) -> _ProgressLine:
        return _ProgressLine(name, shown=not self._options.quiet and os.isatty(2))


def _remote_path(path: str) -> str:
    return path.removeprefix(REMOTE) or "."


# -- progress


class _ProgressLine:
    """A line on stderr with the progress of a copy, in a `with` block.

        notes.txt  45%  1.2 of 2.7 MiB  3.1 MiB/s  0:12 left

    Args:
        name: of the source.
        shown: whether to print it.
    """

    def __init__(self, name: str, *, shown: bool) -> None:
        self._name = name or STREAM
        self._shown = shown
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._last: tuple[int, int | None, str] | None = None

    def show(self, progress: Progress) -> None:
        """The progress of a file."""
        self._update(progress.done, progress.total, "")

    def show_tree(self, progress: TreeProgress) -> None:
        """The progress of a tree."""
        of = "" if progress.total_files is None else f" of {progress.total_files}"
        self._update(progress.done, progress.total, f"{progress.files}{of} files")

    def _update(self, done: int, total: int | None, files: str) -> None:
        self._last = done, total, files
        now = time.monotonic()
        if self._shown and now - self._drawn > _REDRAW_SECONDS:
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        if self._last is None:
            return
        size = screen_size()
        columns = 80 if size is None else size[1]
        seconds = time.monotonic() - self._begun
        line = printable("  ".join([self._name, *progress_parts(*self._last, seconds)]))[: columns - 1]
        try:
            os.write(2, f"\r{line}\x1b[K".encode("utf-8", "replace"))
        except OSError:
            self._shown = False  # stderr is closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._last is not None:
            self._draw()
            os.write(2, b"\n")


def progress_parts(done: int, total: int | None, files: str, seconds: float) -> list[str]:
    """The parts of a progress line.

    Args:
        done: bytes that were copied.
        total: all bytes; None if that is not known.
        files: how many files were copied; empty for a single file.
        seconds: since the beginning.
    """
    parts = [files] if files else []
    if total:
        parts.append(f"{min(100, done * 100 // total)}%")
    parts.append(amount(done) if total is None else f"{amount(done)} of {amount(total)}")
    rate = done / seconds if seconds > 0 else 0.0
    if rate:
        parts.append(f"{amount(rate)}/s")
    if total is not None and rate and done < total:
        left = round((total - done) / rate)
        parts.append(
            f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
            if left >= 3600
            else f"{left // 60}:{left % 60:02} left"
        )
    return parts
