"""`fs/*`. `docs/protocol.md`, "File system".

Whatever may block runs in a thread: the handler is then a coroutine, which begins its work only
when the connection has room for it. Two lookups are answered at once where no mount can hang.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from execserver.api.confinement import refuse_unenforceable
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.copy import copy as copy_path
from execserver.filesystem.descriptors import Descriptors
from execserver.filesystem.directories import create_directory as make_directory
from execserver.filesystem.directories import read_directory as list_directory
from execserver.filesystem.handles import FileHandles
from execserver.filesystem.metadata import canonicalize as resolve_links
from execserver.filesystem.metadata import metadata
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.reading import FileStream, LargeFile, begin_reading
from execserver.filesystem.remove import remove as remove_path
from execserver.filesystem.walk import walk as walk_tree
from execserver.filesystem.watch import MissingWatch
from execserver.filesystem.writing import write_file as write_content
from execserver.protocol.errors import InvalidRequest, file_error
from execserver.protocol.filesystem import (
    CanonicalPath,
    CloseParams,
    CopyParams,
    CreateDirectoryParams,
    Metadata,
    OpenParams,
    OpenResult,
    PathParams,
    ReadBlockParams,
    RemoveParams,
    WalkParams,
    WatchMissingParams,
    WatchMissingResult,
    WriteBlockParams,
    WriteFileParams,
)
from execserver.protocol.path_uri import ForeignPath, path_to_uri
from execserver.rpc.handlers import Caller, Encoded, Handler, StreamedResult

T = TypeVar("T")

_ELSEWHERE = "/proc/"
"""Below it are the roots of other processes, with mounts that are not in our table."""

_NOTHING = Encoded(b"{}")


def handlers(mounts: MountTable) -> dict[str, Handler]:
    """Method name → handler, for all of `fs/*`.

    Args:
        mounts: kept up to date by the caller (`MountTable.fileno`).
    """
    return {
        "fs/readFile": read_file,
        "fs/writeFile": write_file,
        "fs/createDirectory": create_directory,
        "fs/getMetadata": partial(get_metadata, mounts),
        "fs/canonicalize": partial(canonicalize, mounts),
        "fs/readDirectory": read_directory,
        "fs/walk": walk,
        "fs/remove": remove,
        "fs/copy": copy,
        "fs/open": open_handle,
        "fs/readBlock": read_block,
        "fs/writeBlock": write_block,
        "fs/close": close_handle,
        "fs/watchMissing": partial(watch_missing, mounts),
    }


def get_metadata(mounts: MountTable, caller: Caller, params: PathParams) -> Metadata | Awaitable[Metadata]:
    """Say what a path is."""
    # What is asked most often is spelled out: each call would cost a tenth of the system call.
    path = params.path
    if params.sandbox is None and type(path) is str and not (mounts.can_hang or path.startswith(_ELSEWHERE)):
        try:
            return metadata(path)
        except OSError as error:
            raise file_error(error) from None
    return _look_up(mounts, metadata, caller, params)


def canonicalize(
    mounts: MountTable, caller: Caller, params: PathParams
) -> CanonicalPath | Awaitable[CanonicalPath]:
    """Resolve all links of a path."""
    return _look_up(mounts, _canonical_path, caller, params)


async def read_file(caller: Caller, params: PathParams) -> Encoded | StreamedResult:
    """Read a whole file."""
    path = _allowed_path(params)
    calls, descriptors = _calls(caller), caller.own(Descriptors, Descriptors)
    content = await calls.run(begin_reading, path, caller.max_reply_bytes, descriptors)
    if isinstance(content, LargeFile):
        stream = FileStream(content, calls, descriptors)
        return StreamedResult(b'{"dataBase64":"', stream, b'"}', stream.encoded_size)
    return Encoded(b'{"dataBase64":"%b"}' % content)


async def write_file(caller: Caller, params: WriteFileParams) -> Encoded:
    """Make a file or replace its content."""
    await _calls(caller).run(write_content, _allowed_path(params), params.data_base64)
    return _NOTHING


async def create_directory(caller: Caller, params: CreateDirectoryParams) -> Encoded:
    """Make a directory."""
    work = partial(make_directory, _allowed_path(params), recursive=params.recursive)
    await _calls(caller).run(work)
    return _NOTHING


async def read_directory(caller: Caller, params: PathParams) -> Encoded:
    """List a directory."""
    calls = _calls(caller)
    return Encoded(b'{"entries":%b}' % await calls.run(list_directory, _allowed_path(params), calls.stop))


async def walk(caller: Caller, params: WalkParams) -> Encoded:
    """List a tree."""
    calls = _calls(caller)
    return Encoded(await calls.run(walk_tree, _allowed_path(params), params.options, calls.stop))


async def remove(caller: Caller, params: RemoveParams) -> Encoded:
    """Remove a path."""
    work = partial(remove_path, _allowed_path(params), recursive=params.recursive, force=params.force)
    await _calls(caller).run(work)
    return _NOTHING


async def copy(caller: Caller, params: CopyParams) -> Encoded:
    """Copy a file, a link or a tree."""
    refuse_unenforceable(params.sandbox)
    source, destination = _native_path(params.source_path), _native_path(params.destination_path)
    calls = _calls(caller)
    await calls.run(partial(copy_path, source, destination, recursive=params.recursive, stop=calls.stop))
    return _NOTHING


async def open_handle(caller: Caller, params: OpenParams) -> OpenResult:
    """Open a block handle."""
    refuse_unenforceable(params.sandbox)
    await _handles(caller).open(params.handle_id, _native_path(params.path), params.mode)
    return {"handleId": params.handle_id}


async def read_block(caller: Caller, params: ReadBlockParams) -> Encoded:
    """Read from a handle."""
    return Encoded(await _handles(caller).read_block(params.handle_id, params.offset, params.len))


async def write_block(caller: Caller, params: WriteBlockParams) -> Encoded:
    """Write to a handle."""
    await _handles(caller).write_block(params.handle_id, params.offset, params.chunk)
    return _NOTHING


async def close_handle(caller: Caller, params: CloseParams) -> Encoded:
    """Close a handle."""
    await _handles(caller).close_handle(params.handle_id)
    return _NOTHING


async def watch_missing(mounts: MountTable, caller: Caller, params: WatchMissingParams) -> WatchMissingResult:
    """Watch for missing paths."""
    missing = [_native_path(path) for path in params.missing]
    present = None if params.present is None else _native_path(params.present)

    def make_watch() -> MissingWatch:
        return MissingWatch(
            _calls(caller),
            lambda: not mounts.can_hang,
            lambda watch_id: caller.notify("fs/missingChanged", {"watchId": watch_id}),
        )

    watch = caller.own(MissingWatch, make_watch)
    return {"watching": await watch.replace(params.watch_id, missing, present)}


def _look_up(
    mounts: MountTable, function: Callable[[str], T], caller: Caller, params: PathParams
) -> T | Awaitable[T]:
    path = _allowed_path(params)
    if mounts.can_hang or path.startswith(_ELSEWHERE):
        return _look_up_in_thread(caller, function, path)
    try:
        return function(path)
    except OSError as error:
        raise file_error(error) from None


async def _look_up_in_thread(caller: Caller, function: Callable[[str], T], path: str) -> T:
    return await _calls(caller).run(function, path)


def _canonical_path(path: str) -> CanonicalPath:
    return {"path": path_to_uri(resolve_links(path))}


def _calls(caller: Caller) -> BlockingCalls:
    return caller.own(BlockingCalls, BlockingCalls)


def _handles(caller: Caller) -> FileHandles:
    return caller.own(FileHandles, lambda: FileHandles(_calls(caller), caller.own(Descriptors, Descriptors)))


def _allowed_path(params: PathParams) -> str:
    """The path of a request that may be carried out."""
    if params.sandbox is not None:
        refuse_unenforceable(params.sandbox)
    return _native_path(params.path)


def _native_path(path: str) -> str:
    if type(path) is ForeignPath:
        raise InvalidRequest(f"'{path}' is invalid on 'linux'")
    return path
