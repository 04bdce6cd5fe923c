"""`execserver cp`: files and directories to the daemon's machine and back.

A path that begins with `:` is at the daemon; `-` is our standard input or output. A destination that
is a directory gets the source's name in it, as with cp(1).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from execclient import CallFailed, Copied, Executor, FileSystem, NotFound, Progress, Stat, SystemFailure
from execclient.commands.daemon import Daemon
from execclient.commands.failures import INCOMPLETE, Failure, complain
from execclient.commands.signals import Signals
from execclient.commands.terminal import printable
from execclient.local_files import Attributes, set_attributes, standard_stream

REMOTE = ":"
STREAM = "-"

_NO_NAMES = ("", ".", "..")
"""Last parts of paths that name nothing in another directory."""

_MOST_PATH_BYTES = 4096
"""What the kernel takes, with the NUL: a server could list directories without end."""

Advance = Callable[[int], None]
"""Told how many more bytes were copied."""


class Copier(Protocol):
    """A way to copy, by which of both ends are where."""

    async def __call__(self, executor: Executor, source: str, destination: str, wish: Wish) -> Plan:
        """Copy; what was copied."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the options ask for."""

    recursive: bool
    preserve: bool
    """Times and modes, also those of files that are there, as cp -p."""
    quiet: bool


@dataclass(frozen=True, slots=True)
class File:
    """One file to copy; both paths are ready to be used."""

    source: str
    destination: str
    size: int


@dataclass(frozen=True, slots=True)
class Folder:
    """One directory to make."""

    destination: str
    attributes: Attributes
    """Of its source."""


@dataclass(slots=True)
class Plan:
    """What is to be copied: directories first, each behind its parent."""

    directories: list[Folder] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What is neither file nor directory, and why it stays behind."""
    in_place: list[str] = field(default_factory=list)
    """Files that could not be replaced, such as mount points, and were written in place."""
    modes_kept: bool = True
    """False when the server is of an earlier version, which does not tell or set them."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    def note(self, path: str, copied: Copied) -> None:
        """Note what came of a file."""
        self.modes_kept &= copied.mode_kept
        if copied.in_place:
            self.in_place.append(path)


async def cp(daemon: Daemon, source: str, destination: str, wish: Wish, *, as_json: bool) -> int:
    """Copy; 1 if something was left out, which was said."""
    copier = _copier(source, destination)
    async with daemon.connect() as executor:
        with Signals() as signals:
            plan = await signals.unless_signalled(copier(executor, source, destination, wish))
    for each in plan.left_out:
        complain(each)
    for each in plan.in_place:
        complain(f"{each}: written in place, it cannot be replaced")
    if not plan.modes_kept:
        complain("the server keeps no modes, it is of an earlier version: new files have the usual ones")
    if as_json:
        members = {"source": source, "destination": destination, "files": len(plan.files), "bytes": plan.size}
        print(
            json.dumps({**members, "leftOut": plan.left_out, "inPlace": plan.in_place}),
            flush=True,
        )
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


async def _upload(executor: Executor, source: str, destination: str, wish: Wish) -> Plan:
    fs = executor.fs
    local = Path(source)
    name = local.resolve().name if local.name in _NO_NAMES else local.name
    target = await _inside(fs, _remote(destination), name)
    if local.is_dir():
        _must_be(wish.recursive, source)
        plan = _plan_upload(local, target)
    else:
        plan = Plan(files=[File(source, target, local.stat().st_size)])
    keeps = "fs/createDirectory.permissions" in executor.capabilities
    made = await _make_there(fs, plan, keeps=keeps)
    with _progress(plan, quiet=wish.quiet) as advance:
        for file in plan.files:
            with _named(REMOTE + file.destination):
                copied = await fs.upload(
                    file.source, file.destination, progress=_Size(advance), preserve_times=wish.preserve
                )
            plan.note(REMOTE + file.destination, copied)
    if keeps:
        # When all is in it: a directory may forbid writing, and its time is that of its last new name.
        for folder in reversed(plan.directories):
            await _set_there(fs, folder, new=folder.destination in made, preserve=wish.preserve)
    return plan


def _plan_upload(source: Path, destination: str) -> Plan:
    plan = Plan()
    for path, names, files in os.walk(source, onerror=_raise):
        there = str(PurePosixPath(destination, Path(path).relative_to(source)))
        plan.directories.append(Folder(there, Attributes.of(os.stat(path))))
        for name in sorted(names):
            if os.path.islink(os.path.join(path, name)):
                plan.left_out.append(f"{os.path.join(path, name)}: a link to a directory is not copied")
        for name in sorted(files):
            file = Path(path, name)
            if file.is_file():
                plan.files.append(File(str(file), f"{there}/{name}", file.stat().st_size))
            else:
                plan.left_out.append(f"{file}: neither a file nor a directory")
    return plan


async def _make_there(fs: FileSystem, plan: Plan, *, keeps: bool) -> set[str]:
    """Make the directories, readable by their owner only until all is in them; those that were not there."""
    made = set()
    for number, folder in enumerate(plan.directories):
        path = folder.destination
        with _named(REMOTE + path):
            if not keeps:
                await fs.mkdir(path, parents=True)
                continue
            if not number:
                await fs.mkdir(str(PurePosixPath(path).parent), parents=True)
            try:
                await fs.mkdir(path, mode=0o700)
            except SystemFailure:
                if not await fs.is_dir(path):
                    raise
            else:
                made.add(path)
    plan.modes_kept &= keeps or not plan.directories
    return made


async def _set_there(fs: FileSystem, folder: Folder, *, new: bool, preserve: bool) -> None:
    mode, modified, accessed = folder.attributes
    with _named(REMOTE + folder.destination):
        if mode is not None and (new or preserve):
            await fs.chmod(folder.destination, mode)
        if preserve and modified is not None and accessed is not None:
            await fs.utime(folder.destination, ns=(accessed, modified))


async def _read_in(executor: Executor, source: str, destination: str, wish: Wish) -> Plan:
    path = _remote(destination)
    plan = Plan()
    with standard_stream(0) as stream, _progress(plan, quiet=wish.quiet) as advance:
        size = _Size(advance)
        plan.note(REMOTE + path, await executor.fs.upload(stream, path, progress=size))
    plan.files.append(File(source, path, size.done))
    return plan


# -- from there to here


async def _download(executor: Executor, source: str, destination: str, wish: Wish) -> Plan:
    fs = executor.fs
    remote = _remote(source)
    stat = await _stat(fs, remote)
    target = Path(destination)
    if target.is_dir():
        target /= await _name_there(fs, remote)
    elif destination.endswith("/"):
        raise Failure(f"{destination}: no such directory")
    if stat.is_dir:
        _must_be(wish.recursive, source)
        plan = await _plan_download(fs, remote, str(target), stat)
    else:
        plan = Plan(files=[File(remote, str(target), stat.size)])
    made = _make_here(plan)
    with _progress(plan, quiet=wish.quiet) as advance:
        for file in plan.files:
            with _named(REMOTE + file.source):
                copied = await fs.download(
                    file.source, file.destination, progress=_Size(advance), preserve_times=wish.preserve
                )
            plan.note(file.destination, copied)
    for folder in reversed(plan.directories):
        if wish.preserve:
            set_attributes(folder.destination, folder.attributes)
        elif folder.destination in made:
            set_attributes(folder.destination, Attributes(folder.attributes.mode))
    return plan


async def _plan_download(fs: FileSystem, source: str, destination: str, status: Stat) -> Plan:
    plan = Plan([_folder(destination, status)])
    waiting = [(source, destination)]
    while waiting:
        folder, folder_here = waiting.pop()
        with _named(REMOTE + folder):
            names = sorted(entry.name for entry in await fs.iterdir(folder))
        for name in names:
            path, here = str(PurePosixPath(folder, name)), str(Path(folder_here, name))
            if len(os.fsencode(os.path.abspath(here))) >= _MOST_PATH_BYTES:
                raise Failure(f"{REMOTE}{path}: the path is too long for a copy here")
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
                plan.directories.append(_folder(here, stat))
                waiting.append((path, here))
            elif stat.is_file:
                plan.files.append(File(path, here, stat.size))
            else:
                plan.left_out.append(f"{REMOTE}{path}: neither a file nor a directory")
    return plan


def _folder(destination: str, stat: Stat) -> Folder:
    mode = None if stat.mode is None else stat.mode & 0o777
    return Folder(destination, Attributes(mode, stat.modified_ns, stat.accessed_ns))


def _make_here(plan: Plan) -> set[str]:
    """As `_make_there`."""
    made = set()
    for number, folder in enumerate(plan.directories):
        path = Path(folder.destination)
        if not number:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(0o777 if folder.attributes.mode is None else 0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
        else:
            made.add(folder.destination)
    return made


async def _write_out(executor: Executor, source: str, destination: str, wish: Wish) -> Plan:
    path = _remote(source)
    plan = Plan(files=[File(path, destination, (await _stat(executor.fs, path)).size)])
    with standard_stream(1) as stream, _progress(plan, quiet=wish.quiet) as advance:
        await executor.fs.download(path, stream, progress=_Size(advance))
    return plan


# -- within the daemon's machine


async def _copy_there(executor: Executor, source: str, destination: str, wish: Wish) -> Plan:
    fs = executor.fs
    remote = _remote(source)
    stat = await _stat(fs, remote)
    if stat.is_dir:
        _must_be(wish.recursive, source)
    target = await _inside(fs, _remote(destination), await _name_there(fs, remote))
    plan = Plan(files=[File(remote, target, stat.size)])
    with _named(REMOTE + target):
        copied = await fs.copy(
            remote,
            target,
            recursive=stat.is_dir,
            keep_mode=not wish.preserve and "fs/copy.keepMode" in executor.capabilities,
            preserve_times=wish.preserve,
        )
    plan.note(REMOTE + target, copied)
    return plan


# -- paths


async def _name_there(fs: FileSystem, path: str) -> str:
    """The name that a copy of a path has in a directory; empty for the root, which is copied into it."""
    name = PurePosixPath(path).name
    if name in _NO_NAMES:
        name = PurePosixPath(await fs.resolve(path)).name
        if name in _NO_NAMES[1:] or "\0" in name:
            raise Failure(f"{REMOTE}{path}: the server gives it no name")
    return name


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
        task = bars.add_task(escape(printable(what)) if plan.files else STREAM, total=plan.size or None)
        yield lambda count: bars.advance(task, count)
