"""`execserver cp`: files and directories to the daemon's machine and back.

A path that begins with `:` is at the daemon; `-` is our standard input or output. A destination that
is a directory gets the source's name in it, as with cp(1).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from execclient import CallFailed, Executor, FileSystem, NotFound, Progress, Stat
from execclient.commands.copy_streams import standard_stream
from execclient.commands.daemon import Daemon
from execclient.commands.failures import INCOMPLETE, Failure, complain
from execclient.commands.signals import Signals

REMOTE = ":"
STREAM = "-"

Advance = Callable[[int], None]
"""Told how many more bytes were copied."""


class Copier(Protocol):
    """A way to copy, by which of both ends are where."""

    async def __call__(
        self, executor: Executor, source: str, destination: str, *, recursive: bool, quiet: bool
    ) -> Plan:
        """Copy; what was copied."""


@dataclass(frozen=True, slots=True)
class File:
    """One file to copy; both paths are ready to be used."""

    source: str
    destination: str
    size: int


@dataclass(slots=True)
class Plan:
    """What is to be copied: directories first, each behind its parent."""

    directories: list[str]
    files: list[File]
    left_out: list[str]
    """What is neither file nor directory, and why it stays behind."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)


async def cp(
    daemon: Daemon, source: str, destination: str, *, recursive: bool, quiet: bool, as_json: bool
) -> int:
    """Copy; 1 if something was left out, which was said."""
    copier = _copier(source, destination)
    async with daemon.connect() as executor:
        with Signals() as signals:
            plan = await signals.unless_signalled(
                copier(executor, source, destination, recursive=recursive, quiet=quiet or as_json)
            )
    for each in plan.left_out:
        complain(each)
    if as_json:
        members = {"source": source, "destination": destination, "files": len(plan.files), "bytes": plan.size}
        print(json.dumps({**members, "leftOut": plan.left_out}), flush=True)
    return INCOMPLETE if plan.left_out else 0


def _copier(source: str, destination: str) -> Copier:
    match source.startswith(REMOTE), destination.startswith(REMOTE):
        case True, True:
            return _copy_there
        case True, False:
            return _write_out if destination == STREAM else _download
        case False, True:
            return _read_in if source == STREAM else _upload
    raise Failure("one of both paths must be at the daemon, and begin with ':'", 2)


# -- from here to there


async def _upload(executor: Executor, source: str, destination: str, *, recursive: bool, quiet: bool) -> Plan:
    fs = executor.fs
    local = Path(source)
    target = await _inside(fs, _remote(destination), local.resolve().name if local.is_dir() else local.name)
    if local.is_dir():
        _must_be(recursive, source)
        plan = _plan_upload(local, target)
    else:
        plan = Plan([], [File(source, target, local.stat().st_size)], [])
    for directory in plan.directories:
        await fs.mkdir(directory, parents=True)
    with _progress(plan, quiet=quiet) as advance:
        for file in plan.files:
            with _named(REMOTE + file.destination):
                await fs.upload(file.source, file.destination, progress=_Size(advance))
    return plan


def _plan_upload(source: Path, destination: str) -> Plan:
    plan = Plan([], [], [])
    for folder, names, files in os.walk(source, onerror=_raise):
        there = str(PurePosixPath(destination, Path(folder).relative_to(source)))
        plan.directories.append(there)
        for name in sorted(names):
            if os.path.islink(os.path.join(folder, name)):
                plan.left_out.append(f"{os.path.join(folder, name)}: a link to a directory is not copied")
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file():
                plan.files.append(File(str(path), f"{there}/{name}", path.stat().st_size))
            else:
                plan.left_out.append(f"{path}: neither a file nor a directory")
    return plan


async def _read_in(
    executor: Executor, source: str, destination: str, *, recursive: bool, quiet: bool
) -> Plan:
    path = _remote(destination)
    plan = Plan([], [], [])
    with standard_stream(0) as stream, _progress(plan, quiet=quiet) as advance:
        size = _Size(advance)
        await executor.fs.upload(stream, path, progress=size)
    plan.files.append(File(source, path, size.done))
    return plan


# -- from there to here


async def _download(
    executor: Executor, source: str, destination: str, *, recursive: bool, quiet: bool
) -> Plan:
    fs = executor.fs
    remote = _remote(source)
    stat = await _stat(fs, remote)
    name = PurePosixPath(remote if PurePosixPath(remote).name else await fs.resolve(remote)).name
    target = Path(destination)
    if target.is_dir():
        target /= name
    elif destination.endswith("/"):
        raise Failure(f"{destination}: no such directory")
    if stat.is_dir:
        _must_be(recursive, source)
        plan = await _plan_download(fs, remote, str(target))
    else:
        plan = Plan([], [File(remote, str(target), stat.size)], [])
    for directory in plan.directories:
        Path(directory).mkdir(parents=True, exist_ok=True)
    with _progress(plan, quiet=quiet) as advance:
        for file in plan.files:
            with _named(REMOTE + file.source):
                await fs.download(file.source, file.destination, progress=_Size(advance))
    return plan


async def _plan_download(fs: FileSystem, source: str, destination: str) -> Plan:
    plan = Plan([destination], [], [])
    waiting = [(source, destination)]
    while waiting:
        folder, folder_here = waiting.pop()
        with _named(REMOTE + folder):
            names = sorted(entry.name for entry in await fs.iterdir(folder))
        for name in names:
            path, here = str(PurePosixPath(folder, name)), str(Path(folder_here, name))
            try:
                with _named(REMOTE + path):
                    stat = await fs.stat(path)
            except NotFound:
                # The wire's lists of names are text (F25), and do not show the bytes of what is none.
                plan.left_out.append(f"{REMOTE}{path}: it has gone, or its name is no UTF-8")
                continue
            if stat.is_dir and stat.is_symlink:
                plan.left_out.append(f"{REMOTE}{path}: a link to a directory is not copied")
            elif stat.is_dir:
                plan.directories.append(here)
                waiting.append((path, here))
            elif stat.is_file:
                plan.files.append(File(path, here, stat.size))
            else:
                plan.left_out.append(f"{REMOTE}{path}: neither a file nor a directory")
    return plan


async def _write_out(
    executor: Executor, source: str, destination: str, *, recursive: bool, quiet: bool
) -> Plan:
    path = _remote(source)
    plan = Plan([], [File(path, destination, (await _stat(executor.fs, path)).size)], [])
    with standard_stream(1) as stream, _progress(plan, quiet=quiet) as advance:
        await executor.fs.download(path, stream, progress=_Size(advance))
    return plan


# -- within the daemon's machine


async def _copy_there(
    executor: Executor, source: str, destination: str, *, recursive: bool, quiet: bool
) -> Plan:
    fs = executor.fs
    remote = _remote(source)
    stat = await _stat(fs, remote)
    if stat.is_dir:
        _must_be(recursive, source)
    target = await _inside(fs, _remote(destination), PurePosixPath(remote).name)
    await fs.copy(remote, target, recursive=stat.is_dir)
    return Plan([], [File(remote, target, stat.size)], [])


# -- paths


def _remote(path: str) -> str:
    return path.removeprefix(REMOTE) or "."


async def _stat(fs: FileSystem, path: str) -> Stat:
    try:
        with _named(REMOTE + path):
            return await fs.stat(path)
    except NotFound as error:
        raise Failure(f"{REMOTE}{path}: {error.message}") from error


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Put the path before what the daemon says of it; what is not there is for the caller."""
    try:
        yield
    except NotFound:
        raise
    except CallFailed as error:
        raise Failure(f"{path}: {error.message}") from error


async def _inside(fs: FileSystem, path: str, name: str) -> str:
    """The path, or the name in it where it is a directory."""
    try:
        is_dir = (await fs.stat(path)).is_dir
    except NotFound:
        is_dir = False
        if path.endswith("/"):
            raise Failure(f"{REMOTE}{path}: no such directory") from None
    return str(PurePosixPath(path, name)) if is_dir else path


def _must_be(recursive: bool, path: str) -> None:
    if not recursive:
        raise Failure(f"{path}: is a directory; copy it with -r")


def _raise(error: OSError) -> None:
    raise error


# -- progress


class _Size:
    """How much of one file was copied."""

    def __init__(self, advance: Advance) -> None:
        self.done = 0
        self._advance = advance

    def __call__(self, progress: Progress) -> None:
        self._advance(progress.done - self.done)
        self.done = progress.done


def _progress(plan: Plan, *, quiet: bool) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _: None) if quiet or not os.isatty(2) else _bar(plan)


@contextmanager
def _bar(plan: Plan) -> Iterator[Advance]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True)
    with Bars(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        what = Path(plan.files[0].source).name if len(plan.files) == 1 else f"{len(plan.files)} files"
        task = bars.add_task(escape(what) if plan.files else STREAM, total=plan.size or None)
        yield lambda count: bars.advance(task, count)
