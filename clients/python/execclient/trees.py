"""The common parts of both directions of a tree's transfer (`tree_upload.py`, `tree_download.py`).

Rules kept in this file:

1. A file appears under its name with its whole content, whose SHA-256 was compared, or not at all.
2. A file that cannot be copied is reported in the result, and the others are copied. A full disk and the loss
   of the session end the copy.
3. At most `FILES_AHEAD` files and batches are under way, with `BYTES_AHEAD` bytes: more would reach the time
   limit of requests on a slow line.
4. After a lost connection a batch or a file is sent again: whole files with the same content do no harm.

With a server that has no batches (`fs/putFiles`, `fs/getFiles`), every file is copied as a larger one.
`docs/protocol.md`, "Batches".
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from execclient.arguments import AnyPath
from execclient.connection.connection import Json
from execclient.errors import (
    CallFailed,
    ExecServerError,
    NotFound,
    ProtocolFault,
    TransferFailed,
    call_failed,
)
from execclient.file_session import FileSession, repeated
from execclient.local_files import Attributes
from execclient.results import Copied, Entry, LeftOut, Progress, Stat, TreeCopied, TreeProgress
from execclient.session.session import INVALID_VALUE_ERRORS, cancel, to_end

SMALL_BYTES = 256 << 10
"""Files up to this size are sent in batches."""

BATCH_FILES = 256
BATCH_BYTES = 1 << 20
"""Of one batch: a server handles it in some ten milliseconds."""

FILES_AHEAD = 32
BYTES_AHEAD = 8 << 20
"""As much as one large file has under way (`transfer.BLOCKS_AHEAD`)."""

MAX_PATH_BYTES = 4096
"""The kernel's limit, with the NUL. It also bounds the depth of the tree that a server lists."""

PUT, GET = "fs/putFiles", "fs/getFiles"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors after which no further file is tried."""

LINK = "a link to a directory is not copied"
SPECIAL = "neither a file nor a directory"
GONE = "it is gone, or its name is not UTF-8"

T = TypeVar("T")

Ignore = Callable[[str, bool], bool]
"""Whether to leave out a path of the tree, which is relative to its top; and whether it is a directory."""

ShowTreeProgress = Callable[[TreeProgress], None]


class PathFiles(Protocol):
    """The methods of `FileSystem` that `described` uses."""

    def uri(self, path: AnyPath) -> str: ...  # noqa: D102 - as there
    async def stat(self, path: AnyPath) -> Stat: ...  # noqa: D102


class TreeFiles(PathFiles, Protocol):
    """The methods of `FileSystem` that a tree's transfer uses."""

    async def is_dir(self, path: AnyPath) -> bool: ...  # noqa: D102 - as there
    async def iterdir(self, path: AnyPath) -> list[Entry]: ...  # noqa: D102
    async def mkdir(self, path: AnyPath, *, parents: bool = ..., mode: int | None = ...) -> None: ...  # noqa: D102
    async def upload(  # noqa: D102
        self, local: AnyPath, path: AnyPath, *, progress: Callable[[Progress], None], preserve_times: bool
    ) -> Copied: ...
    async def download(  # noqa: D102
        self, path: AnyPath, local: AnyPath, *, progress: Callable[[Progress], None], preserve_times: bool
    ) -> Copied: ...


def ignore_function(ignore: Iterable[str] | Ignore | None) -> Ignore:
    """The function for the argument `ignore` of a tree's transfer.

    Raises:
        TypeError: it is one text instead of a list of patterns.
        ImportError: patterns need the package `pathspec`, which is not installed.
        ValueError: a pattern is invalid.
    """
    if ignore is None:
        return lambda path, is_directory: False
    if callable(ignore):
        return ignore
    if isinstance(ignore, str | bytes):
        raise TypeError(f"ignore is a list of patterns or a function, not one text: [{ignore!r}]")
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise ImportError(
            'patterns for ignore need the package pathspec: pip install "execclient[ignore]", '
            "or pass a function of the path and whether it is a directory"
        ) from error
    spec = GitIgnoreSpec.from_lines(ignore)
    return lambda path, is_directory: spec.match_file(path + "/" if is_directory else path)


class TreeFile(NamedTuple):
    """A file to copy, with its size as listed."""

    source: str
    destination: str
    size: int


class TreeDirectory(NamedTuple):
    """A directory of the copy, with the attributes of its source."""

    path: str
    attributes: Attributes


class _Budget:
    """The files and bytes that may be under way."""

    def __init__(self) -> None:
        self._files = FILES_AHEAD
        self._bytes = BYTES_AHEAD
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait until a transfer of so many bytes may begin, and count it until the end of the block."""
        size = min(size, BYTES_AHEAD)
        async with self._changed:
            await self._changed.wait_for(lambda: self._files > 0 and self._bytes >= size)
            self._files -= 1
            self._bytes -= size
        try:
            yield
        finally:
            self._files += 1
            self._bytes += size
            async with self._changed:
                self._changed.notify_all()


class TreeTransfer:
    """The common parts of both directions: the result, the progress, and the copy of single files."""

    def __init__(
        self,
        files: TreeFiles,
        session: FileSession,
        ignore: Ignore,
        *,
        preserve_times: bool,
        progress: ShowTreeProgress | None,
    ) -> None:
        self.result = TreeCopied()
        self.files = files
        self.session = session
        self.ignore = ignore
        self.preserve = preserve_times
        self._progress = progress
        self.budget = _Budget()
        self.done = 0
        self.total_files: int | None = None
        self.total: int | None = None
        self.stopped = threading.Event()
        """Set when the transfer has ended, for threads that still work for it."""

    def leave_out(self, path: str, reason: str, *, remote: bool) -> None:
        """Report a part of the tree that is not copied."""
        self.result.left_out.append(LeftOut(path, reason, remote))

    def leave_out_failed(self, path: str, error: Exception, *, remote: bool) -> None:
        """Report a file that cannot be copied, or raise the error if it would be the same for all others."""
        if isinstance(error, CallFailed):
            if error.errno in _FULL:
                raise error.of_path(path)
            reason = error.message
        elif isinstance(error, TransferFailed):
            reason = str(error).removeprefix(f"{path}: ")
        elif isinstance(error, OSError) and not isinstance(error, ExecServerError):
            if error.errno in _FULL:
                error.filename = error.filename or path
                raise error
            reason = error.strerror or str(error)
        else:
            raise error
        self.leave_out(path, reason, remote=remote)

    def note_copied(self, destination: str, copied: Copied) -> None:
        """Count a file that is at its destination."""
        self.result.files += 1
        self.result.size += copied.size or 0
        self.result.modes_kept &= copied.mode_kept
        if copied.in_place:
            self.result.in_place.append(destination)

    def advance(self, size: int) -> None:
        """Report the transfer of some bytes; a negative number takes back those of a failed attempt."""
        self.done += size
        if self._progress is not None:
            self._progress(TreeProgress(self.result.files, self.done, self.total_files, self.total))

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread. If the transfer is cancelled, wait until it has ended: it checks
        `stopped`.
        """
        return await to_end(function, *arguments, stop=self.stopped.set)

    async def copy_single(self, copy: Callable[..., Awaitable[Copied]], file: TreeFile) -> Copied:
        """Copy one file by a method of `FileSystem`, again if the connection is lost."""
        counted = 0

        def show(progress: Progress) -> None:
            nonlocal counted
            self.advance(progress.done - counted)
            counted = progress.done

        attempt = partial(copy, file.source, file.destination, progress=show, preserve_times=self.preserve)
        async with self.budget.taken(file.size):
            try:
                copied = await repeated(attempt)
            except BaseException:
                self.advance(-counted)
                raise
        self.note_copied(file.destination, copied)
        self.advance(0)
        return copied


async def side_by_side(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run jobs, at most `FILES_AHEAD` at a time. The first failure cancels the others, and is raised."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    workers = [asyncio.create_task(work()) for _ in range(min(FILES_AHEAD, len(jobs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        await cancel(workers)


async def call_batch(
    session: FileSession, method: str, params: Mapping[str, Json], count: int
) -> list[dict[str, Any]]:
    """Call `fs/putFiles` or `fs/getFiles` for so many entries; the outcome of each.

    Raises:
        ProtocolFault: the result has another number of entries.
    """
    result = await session.call(method, params)
    entries = result.get("entries") if isinstance(result, dict) else None
    if (
        not isinstance(entries, list)
        or len(entries) != count
        or not all(isinstance(each, dict) for each in entries)
    ):
        raise ProtocolFault(f"the server's answer to {method} is not one entry for each of {count}")
    return entries


async def described(files: PathFiles, session: FileSession, paths: Mapping[str, str]) -> dict[str, Stat]:
    """The status of paths, by their keys. Missing paths are left out.

    Raises:
        CallFailed: a path cannot be described.
    """
    found: dict[str, Stat] = {}
    for keys in parts(list(paths)):
        if GET not in session.capabilities:
            for key in keys:
                with suppress(NotFound):
                    found[key] = await files.stat(paths[key])
            continue
        params = {"paths": [files.uri(paths[key]) for key in keys], "maxBytes": 0}
        for key, entry in zip(keys, await call_batch(session, GET, params, len(keys)), strict=True):
            if "error" not in entry:
                found[key] = entry_stat(entry)
            elif not isinstance(error := entry_failed(GET, paths[key], entry["error"]), NotFound):
                raise error
    return found


def entry_stat(entry: Mapping[str, Any]) -> Stat:
    """The status in an entry of the result of `fs/getFiles`.

    Raises:
        ProtocolFault: it is not of the protocol.
    """
    try:
        return Stat(
            is_dir=bool(entry["isDirectory"]),
            is_file=bool(entry["isFile"]),
            is_symlink=bool(entry["isSymlink"]),
            size=int(entry["size"]),
            modified=entry["modifiedAtNs"] / 1e9,
            created=None,
            mode=int(entry["permissions"]),
            modified_ns=int(entry["modifiedAtNs"]),
            accessed_ns=int(entry["accessedAtNs"]),
        )
    except INVALID_VALUE_ERRORS as error:
        raise invalid_entry(GET, error) from error


def entry_failed(method: str, path: str, error: Json) -> CallFailed:
    """The error of one entry of a batch, about a path at the executor.

    Raises:
        ProtocolFault: it is no error of the protocol.
    """
    try:
        return call_failed(method, int(error["code"]), str(error["message"])).about(path=path)
    except INVALID_VALUE_ERRORS as fault:
        raise invalid_entry(method, fault) from fault


def invalid_entry(method: str, error: Exception) -> ProtocolFault:
    """The error for an entry of a result that is not of the protocol."""
    return ProtocolFault(f"the server's answer to {method} is not of the protocol: {error!r}")


def batches(files: Iterable[TreeFile]) -> Iterator[list[TreeFile]]:
    """Put small files into batches, in their order."""
    batch: list[TreeFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == BATCH_FILES or size + file.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """A list in parts of at most `BATCH_FILES`."""
    for first in range(0, len(items), BATCH_FILES):
        yield items[first : first + BATCH_FILES]
