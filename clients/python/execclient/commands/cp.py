"""`execserver cp`: copy files and directories to the daemon's machine and back.

A path that begins with `:` is on the daemon's machine; `-` is stdin or stdout. If the destination is a
directory, the copy gets the source's name in it, as with cp(1).
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
from execclient.commands.daemon import DaemonOptions
from execclient.commands.failures import INCOMPLETE, CommandExit, print_message
from execclient.commands.signals import Signals
from execclient.local_files import Attributes, set_attributes, standard_stream

REMOTE = ":"
STREAM = "-"

_NO_NAMES = ("", ".", "..")
"""Last parts of paths that cannot name the copy in another directory."""

_MOST_PATH_BYTES = 4096
"""The kernel's limit, with the NUL. It also bounds the depth of the tree that a server lists."""

Advance = Callable[[int], None]
"""Called with the number of bytes that were copied since the last call."""


class CopyFunction(Protocol):
    """A copy in one direction."""

    async def __call__(
        self, executor: Executor, source: str, destination: str, options: CopyOptions
    ) -> CopyPlan:
        """CopyFunction; returns what was copied."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of the command."""

    recursive: bool
    preserve: bool
    """Keep times, and set modes of existing files, too, as `cp -p` does."""
    quiet: bool


@dataclass(frozen=True, slots=True)
class FileCopy:
    """One file to copy, with resolved paths."""

    source: str
    destination: str
    size: int


@dataclass(frozen=True, slots=True)
class DirectoryCopy:
    """One directory to create."""

    destination: str
    attributes: Attributes
    """The attributes of the source."""


@dataclass(slots=True)
class CopyPlan:
    """The files and directories to copy; each directory comes after its parent."""

    directories: list[DirectoryCopy] = field(default_factory=list)
    files: list[FileCopy] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What is not copied, with the reason."""
    in_place: list[str] = field(default_factory=list)
    """Files that could not be replaced, such as mount points, and were written in place."""
    modes_kept: bool = True
    """False with an earlier version of the server, which neither reports nor sets modes."""

    @property
    def size(self) -> int:
        """The total in bytes."""
        return sum(file.size for file in self.files)

    def note(self, path: str, copied: Copied) -> None:
        """Record the result of one file."""
        self.modes_kept &= copied.mode_kept
        if copied.in_place:
            self.in_place.append(path)


async def cp(
    daemon: DaemonOptions, source: str, destination: str, options: CopyOptions, *, as_json: bool
) -> int:
    """CopyFunction and report; returns 1 if something was not copied."""
    copier = _copier(source, destination)
    async with daemon.connect() as executor:
        with Signals() as signals:
            plan = await signals.unless_signalled(copier(executor, source, destination, options))
    for each in plan.left_out:
        print_message(each)
    for each in plan.in_place:
        print_message(f"{each}: written in place, it cannot be replaced")
    if not plan.modes_kept:
        print_message("this version of the server keeps no modes: new files have the default ones")
    if as_json:
        members = {"source": source, "destination": destination, "files": len(plan.files), "bytes": plan.size}
        print(
            json.dumps({**members, "leftOut": plan.left_out, "inPlace": plan.in_place}),
            flush=True,
        )
    return INCOMPLETE if plan.left_out else 0


def _copier(source: str, destination: str) -> CopyFunction:
    match source.startswith(REMOTE), destination.startswith(REMOTE):
        case True, True:
            return _copy_remote
        case True, False:
            return _download_to_stdout if destination == STREAM else _download
        case False, True:
            return _upload_stdin if source == STREAM else _upload
    raise CommandExit("one of the two paths must be on the daemon's machine and begin with ':'", 2)


# -- to the daemon's machine


async def _upload(executor: Executor, source: str, destination: str, options: CopyOptions) -> CopyPlan:
    fs = executor.fs
    local = Path(source)
    name = local.resolve().name if local.name in _NO_NAMES else local.name
    target = await _target(fs, _remote_path(destination), name)
    if local.is_dir():
        _require_recursive(options.recursive, source)
        plan = _plan_upload(local, target)
    else:
        plan = CopyPlan(files=[FileCopy(source, target, local.stat().st_size)])
    keeps = "fs/createDirectory.permissions" in executor.capabilities
    made = await _create_remote(fs, plan, keeps=keeps)
    with _progress(plan, quiet=options.quiet) as advance:
        for file in plan.files:
            with _in_errors(REMOTE + file.destination):
                copied = await fs.upload(
                    file.source,
                    file.destination,
                    progress=_FileProgress(advance),
                    preserve_times=options.preserve,
                )
            plan.note(REMOTE + file.destination, copied)
    if keeps:
        # After its files: a directory may forbid writing, and each new name in it changes its time.
        for folder in reversed(plan.directories):
            await _set_remote_attributes(
                fs, folder, new=folder.destination in made, preserve=options.preserve
            )
    return plan


def _plan_upload(source: Path, destination: str) -> CopyPlan:
    plan = CopyPlan()
    for path, names, files in os.walk(source, onerror=_raise):
        there = str(PurePosixPath(destination, Path(path).relative_to(source)))
        plan.directories.append(DirectoryCopy(there, Attributes.of(os.stat(path))))
        for name in sorted(names):
            if os.path.islink(os.path.join(path, name)):
                plan.left_out.append(f"{os.path.join(path, name)}: a link to a directory is not copied")
        for name in sorted(files):
            file = Path(path, name)
            if file.is_file():
                plan.files.append(FileCopy(str(file), f"{there}/{name}", file.stat().st_size))
            else:
                plan.left_out.append(f"{file}: neither a file nor a directory")
    return plan


async def _create_remote(fs: FileSystem, plan: CopyPlan, *, keeps: bool) -> set[str]:
    """Create the directories, readable by their owner only until their files are copied.

    Returns:
        Those that did not exist before.
    """
    made = set()
    for number, folder in enumerate(plan.directories):
        path = folder.destination
        with _in_errors(REMOTE + path):
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


async def _set_remote_attributes(fs: FileSystem, folder: DirectoryCopy, *, new: bool, preserve: bool) -> None:
    mode, modified, accessed = folder.attributes
    with _in_errors(REMOTE + folder.destination):
        if mode is not None and (new or preserve):
            await fs.chmod(folder.destination, mode)
        if preserve and modified is not None and accessed is not None:
            await fs.utime(folder.destination, ns=(accessed, modified))


async def _upload_stdin(executor: Executor, source: str, destination: str, options: CopyOptions) -> CopyPlan:
    path = _remote_path(destination)
    plan = CopyPlan()
    with standard_stream(0) as stream, _progress(plan, quiet=options.quiet) as advance:
        size = _FileProgress(advance)
        plan.note(REMOTE + path, await executor.fs.upload(stream, path, progress=size))
    plan.files.append(FileCopy(source, path, size.done))
    return plan


# -- from the daemon's machine


async def _download(executor: Executor, source: str, destination: str, options: CopyOptions) -> CopyPlan:
    fs = executor.fs
    remote = _remote_path(source)
    stat = await _stat(fs, remote)
    target = Path(destination)
    if target.is_dir():
        target /= await _remote_name(fs, remote)
    elif destination.endswith("/"):
        raise CommandExit(f"{destination}: no such directory")
    if stat.is_dir:
        _require_recursive(options.recursive, source)
        plan = await _plan_download(fs, remote, str(target), stat)
    else:
        plan = CopyPlan(files=[FileCopy(remote, str(target), stat.size)])
    made = _create_local(plan)
    with _progress(plan, quiet=options.quiet) as advance:
        for file in plan.files:
            with _in_errors(REMOTE + file.source):
                copied = await fs.download(
                    file.source,
                    file.destination,
                    progress=_FileProgress(advance),
                    preserve_times=options.preserve,
                )
            plan.note(file.destination, copied)
    for folder in reversed(plan.directories):
        if options.preserve:
            set_attributes(folder.destination, folder.attributes)
        elif folder.destination in made:
            set_attributes(folder.destination, Attributes(folder.attributes.mode))
    return plan


async def _plan_download(fs: FileSystem, source: str, destination: str, status: Stat) -> CopyPlan:
    plan = CopyPlan([_folder(destination, status)])
    waiting = [(source, destination)]
    while waiting:
        folder, folder_here = waiting.pop()
        with _in_errors(REMOTE + folder):
            names = sorted(entry.name for entry in await fs.iterdir(folder))
        for name in names:
            path, here = str(PurePosixPath(folder, name)), str(Path(folder_here, name))
            if len(os.fsencode(os.path.abspath(here))) >= _MOST_PATH_BYTES:
                raise CommandExit(f"{REMOTE}{path}: the path is too long for a copy here")
            try:
                with _in_errors(REMOTE + path):
                    stat = await fs.stat(path)
            except NotFound:
                # Names on the wire are text (F25): the bytes of a name that is not UTF-8 are lost.
                plan.left_out.append(f"{REMOTE}{path}: it is gone, or its name is not UTF-8")
                continue
            if stat.is_dir and stat.is_symlink:
                plan.left_out.append(f"{REMOTE}{path}: a link to a directory is not copied")
            elif stat.is_dir:
                plan.directories.append(_folder(here, stat))
                waiting.append((path, here))
            elif stat.is_file:
                plan.files.append(FileCopy(path, here, stat.size))
            else:
                plan.left_out.append(f"{REMOTE}{path}: neither a file nor a directory")
    return plan


def _folder(destination: str, stat: Stat) -> DirectoryCopy:
    mode = None if stat.mode is None else stat.mode & 0o777
    return DirectoryCopy(destination, Attributes(mode, stat.modified_ns, stat.accessed_ns))


def _create_local(plan: CopyPlan) -> set[str]:
    """`_create_remote` for this machine."""
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


async def _download_to_stdout(
    executor: Executor, source: str, destination: str, options: CopyOptions
) -> CopyPlan:
    path = _remote_path(source)
    plan = CopyPlan(files=[FileCopy(path, destination, (await _stat(executor.fs, path)).size)])
    with standard_stream(1) as stream, _progress(plan, quiet=options.quiet) as advance:
        await executor.fs.download(path, stream, progress=_FileProgress(advance))
    return plan


# -- within the daemon's machine


async def _copy_remote(executor: Executor, source: str, destination: str, options: CopyOptions) -> CopyPlan:
    fs = executor.fs
    remote = _remote_path(source)
    stat = await _stat(fs, remote)
    if stat.is_dir:
        _require_recursive(options.recursive, source)
    target = await _target(fs, _remote_path(destination), await _remote_name(fs, remote))
    plan = CopyPlan(files=[FileCopy(remote, target, stat.size)])
    with _in_errors(REMOTE + target):
        copied = await fs.copy(
            remote,
            target,
            recursive=stat.is_dir,
            keep_mode=not options.preserve and "fs/copy.keepMode" in executor.capabilities,
            preserve_times=options.preserve,
        )
    plan.note(REMOTE + target, copied)
    return plan


# -- paths


async def _remote_name(fs: FileSystem, path: str) -> str:
    """The name of a copy in another directory; empty for the root, whose content is copied."""
    name = PurePosixPath(path).name
    if name in _NO_NAMES:
        name = PurePosixPath(await fs.resolve(path)).name
        if name in _NO_NAMES[1:] or "\0" in name:
            raise CommandExit(f"{REMOTE}{path}: the server returned no name for it")
    return name


def _remote_path(path: str) -> str:
    return path.removeprefix(REMOTE) or "."


async def _stat(fs: FileSystem, path: str) -> Stat:
    try:
        with _in_errors(REMOTE + path):
            return await fs.stat(path)
    except NotFound as error:
        raise CommandExit(f"{REMOTE}{path}: {error.message}") from error


@contextmanager
def _in_errors(path: str) -> Iterator[None]:
    """Put the path in front of the daemon's error text. `NotFound` passes through."""
    try:
        yield
    except NotFound:
        raise
    except CallFailed as error:
        raise CommandExit(f"{path}: {error.message}") from error


async def _target(fs: FileSystem, path: str, name: str) -> str:
    """The path, or the name in it if it is a directory."""
    try:
        is_dir = (await fs.stat(path)).is_dir
    except NotFound:
        is_dir = False
        if path.endswith("/"):
            raise CommandExit(f"{REMOTE}{path}: no such directory") from None
    return str(PurePosixPath(path, name)) if is_dir else path


def _require_recursive(recursive: bool, path: str) -> None:
    if not recursive:
        raise CommandExit(f"{path}: is a directory; use -r")


def _raise(error: OSError) -> None:
    raise error


# -- progress


class _FileProgress:
    """Turns the progress of one file into steps of the bar."""

    def __init__(self, advance: Advance) -> None:
        self.done = 0
        self._advance = advance

    def __call__(self, progress: Progress) -> None:
        self._advance(progress.done - self.done)
        self.done = progress.done


def _progress(plan: CopyPlan, *, quiet: bool) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _: None) if quiet or not os.isatty(2) else _bar(plan)


@contextmanager
def _bar(plan: CopyPlan) -> Iterator[Advance]:
    from execclient.commands.progress import ProgressBar

    what = Path(plan.files[0].source).name if len(plan.files) == 1 else f"{len(plan.files)} files"
    with ProgressBar(what if plan.files else STREAM, plan.size or None) as bar:
        yield bar.advance
