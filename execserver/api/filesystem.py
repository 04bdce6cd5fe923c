"""The handlers of `fs/*`. `docs/protocol.md`, "File system".

Work that may block runs in a thread: the handler returns a coroutine, which starts when the connection has
room for it. Where no mount can hang, lookups and small reads, lists and writes are answered at once
(`filesystem/small.py`). A request whose sandbox limits files is always answered by a worker in that sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec

from execprotocol.errors import InternalError, InvalidRequest, RpcError, file_error
from execprotocol.limits import MAX_BATCH_BYTES
from execprotocol.path_uri import ForeignPath, path_to_uri
from execserver.api.confinement import file_policy
from execserver.filesystem import operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.descriptors import Descriptors
from execserver.filesystem.files import DirectFiles, Files, OperationCall, content_size
from execserver.filesystem.handles import FileHandles
from execserver.filesystem.listing import entries_json, walk_json
from execserver.filesystem.metadata import canonicalize as resolve_links
from execserver.filesystem.metadata import metadata
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.reading import FileStream, LargeFile, check_reply_size
from execserver.filesystem.small import PROC_PREFIX, SmallFiles
from execserver.filesystem.walk import check_limits
from execserver.filesystem.watch import MissingWatch
from execserver.fsworker.confined_files import ConfinedFiles, ConfinedRequests
from execserver.fsworker.pool import WorkerPool
from execserver.rpc.handlers import Caller, Encoded, Handler, StreamedResult
from execserver.sandbox.policy import Policy

if TYPE_CHECKING:
    from execprotocol.filesystem import (
        ApplyEditsParams,
        ApplyEditsResult,
        CanonicalPath,
        CloseParams,
        CopyParams,
        CreateDirectoryParams,
        DigestParams,
        DigestResult,
        EntryError,
        FoundFile,
        GetFilesParams,
        GetFilesResult,
        InstallParams,
        Metadata,
        OpenParams,
        OpenResult,
        PathParams,
        PutEntry,
        PutFilesParams,
        PutFilesResult,
        ReadBlockParams,
        RemoveEdit,
        RemoveParams,
        RenameParams,
        SetMetadataParams,
        WalkParams,
        WatchMissingParams,
        WatchMissingResult,
        WriteBlockParams,
        WriteEdit,
        WriteFileParams,
    )
    from execprotocol.sandbox import SandboxContext
    from execserver.edits.api import Edits
    from execserver.edits.plan import Edit

T = TypeVar("T")

_AT_ONCE = 32
"""Entries of a batch that one thread handles before other requests get their turn: some milliseconds."""

_BATCHES_AT_ONCE = 2
"""Batches of a connection that are in a thread at the same time. More would not be faster, because creating a
file occupies a processor; and the event loop would wait for a processor."""

_NOTHING = Encoded(b"{}")
_PUT, _PUT_IN_PLACE = Encoded(b'{"inPlace":false}'), Encoded(b'{"inPlace":true}')


class FileConfinement(msgspec.Struct, frozen=True):
    """What requests with a sandbox need."""

    pool: WorkerPool

    tmpdir: str | None
    """The daemon's `TMPDIR`, for the role `tmpdir`."""

    small: SmallFiles
    """Reads and writes small files that a worker has opened."""


class BatchTurns(asyncio.Semaphore):
    """The turns of the batches of one connection."""

    def __init__(self) -> None:
        super().__init__(_BATCHES_AT_ONCE)

    def close(self) -> None:
        """The connection has ended, and cancels its requests."""


def handlers(
    mounts: MountTable,
    small: SmallFiles,
    confinement: FileConfinement | None = None,
    edits: Callable[[], Edits] | None = None,
) -> dict[str, Handler]:
    """Method name → handler, for all of `fs/*`.

    Args:
        mounts: kept up to date by the caller (`MountTable.fileno`).
        small: carries out small operations; uses the same mount table.
        confinement: None refuses every sandbox that limits files.
        edits: returns the service for `fs/applyEdits`; None refuses the method.
    """
    return {
        "fs/readFile": partial(read_file, small, confinement),
        "fs/writeFile": partial(write_file, small, confinement),
        "fs/createDirectory": partial(create_directory, confinement),
        "fs/getMetadata": partial(get_metadata, mounts, confinement),
        "fs/canonicalize": partial(canonicalize, mounts, confinement),
        "fs/readDirectory": partial(read_directory, small, confinement),
        "fs/walk": partial(walk, confinement),
        "fs/remove": partial(remove, confinement),
        "fs/copy": partial(copy, confinement),
        "fs/rename": partial(rename, confinement),
        "fs/install": partial(install, confinement),
        "fs/setMetadata": partial(set_metadata, confinement),
        "fs/digest": partial(digest, confinement),
        "fs/applyEdits": partial(apply_edits, confinement, edits),
        "fs/putFiles": partial(put_files, confinement),
        "fs/getFiles": partial(get_files, confinement),
        "fs/open": partial(open_handle, confinement),
        "fs/readBlock": partial(read_block, confinement),
        "fs/writeBlock": partial(write_block, confinement),
        "fs/close": close_handle,
        "fs/watchMissing": partial(watch_missing, mounts),
    }


def get_metadata(
    mounts: MountTable, confinement: FileConfinement | None, caller: Caller, params: PathParams
) -> Metadata | Awaitable[Metadata]:
    """Describe a path."""
    # The most frequent case is written out: each function call costs a tenth of the system call.
    path = params.path
    if params.sandbox is None and type(path) is str and not (mounts.can_hang or path.startswith(PROC_PREFIX)):
        try:
            return metadata(path, extended=caller.extensions)
        except OSError as error:
            raise file_error(error) from None
    confined = _confined(confinement, caller, params.sandbox)
    path = _native_path(path)
    if confined is not None:
        return confined.run(operations.metadata, path, caller.extensions)
    return _look_up(mounts, partial(metadata, extended=caller.extensions), caller, path)


def canonicalize(
    mounts: MountTable, confinement: FileConfinement | None, caller: Caller, params: PathParams
) -> CanonicalPath | Awaitable[CanonicalPath]:
    """Resolve all links of a path."""
    confined = _confined(confinement, caller, params.sandbox)
    path = _native_path(params.path)
    return (
        _canonicalize_confined(confined, path)
        if confined is not None
        else _look_up(mounts, _canonical_path, caller, path)
    )


def read_file(
    small: SmallFiles, confinement: FileConfinement | None, caller: Caller, params: PathParams
) -> Encoded | Awaitable[Encoded | StreamedResult]:
    """Read a whole file."""
    path = _native_path(params.path)
    files = _confined(confinement, caller, params.sandbox)
    content = small.read(path) if files is None else None
    if content is None:
        return _read_file(files or _direct(caller), path, caller)
    check_reply_size(len(content), caller.max_reply_bytes)
    return Encoded(b'{"dataBase64":"%b"}' % content)


async def _read_file(files: Files, path: str, caller: Caller) -> Encoded | StreamedResult:
    content = await files.begin_reading(path, caller.max_reply_bytes)
    if isinstance(content, LargeFile):
        stream = FileStream(content, blocking_calls(caller), _descriptors(caller))
        return StreamedResult(b'{"dataBase64":"', stream, b'"}', stream.encoded_size)
    return Encoded(b'{"dataBase64":"%b"}' % content)


def write_file(
    small: SmallFiles, confinement: FileConfinement | None, caller: Caller, params: WriteFileParams
) -> Encoded | Awaitable[Encoded]:
    """Make a file or replace its content."""
    path = _native_path(params.path)
    files = _confined(confinement, caller, params.sandbox)
    if files is None and small.write(path, params.data_base64):
        return _NOTHING
    return _write_file(files or _direct(caller), path, params.data_base64)


async def _write_file(files: Files, path: str, text: str | memoryview) -> Encoded:
    await files.write(path, text)
    return _NOTHING


async def create_directory(
    confinement: FileConfinement | None, caller: Caller, params: CreateDirectoryParams
) -> Encoded:
    """Make a directory."""
    files = request_files(confinement, caller, params.sandbox)
    path = _native_path(params.path)
    await files.run(operations.create_directory, path, params.recursive, params.permissions)
    return _NOTHING


def read_directory(
    small: SmallFiles, confinement: FileConfinement | None, caller: Caller, params: PathParams
) -> Encoded | Awaitable[Encoded]:
    """List a directory."""
    path = _native_path(params.path)
    files = _confined(confinement, caller, params.sandbox)
    entries = small.read_directory(path) if files is None else None
    if entries is None:
        return _read_directory(files or _direct(caller), path)
    return Encoded(b'{"entries":%b}' % entries)


async def _read_directory(files: Files, path: str) -> Encoded:
    return Encoded(b'{"entries":%b}' % await files.list_json(operations.read_directory, entries_json, path))


async def walk(confinement: FileConfinement | None, caller: Caller, params: WalkParams) -> Encoded:
    """List a tree."""
    files = request_files(confinement, caller, params.sandbox)
    path, options = _native_path(params.path), params.options
    check_limits(options.max_depth, options.max_directories, options.max_entries)
    body = await files.list_json(
        operations.walk,
        walk_json,
        path,
        options.max_depth,
        options.max_directories,
        options.max_entries,
        options.follow_directory_symlinks,
        options.prune_hidden_directories,
    )
    return Encoded(body)


async def remove(confinement: FileConfinement | None, caller: Caller, params: RemoveParams) -> Encoded:
    """Remove a path."""
    files = request_files(confinement, caller, params.sandbox)
    await files.run(operations.remove, _native_path(params.path), params.recursive, params.force)
    return _NOTHING


async def copy(confinement: FileConfinement | None, caller: Caller, params: CopyParams) -> Encoded:
    """Copy a file, a link or a tree."""
    files = request_files(confinement, caller, params.sandbox)
    source, destination = _native_path(params.source_path), _native_path(params.destination_path)
    in_place = await files.run(
        operations.copy, source, destination, params.recursive, params.keep_mode, params.preserve_times
    )
    return _put(caller, in_place=in_place)


async def rename(confinement: FileConfinement | None, caller: Caller, params: RenameParams) -> Encoded:
    """Rename a file, a link or a directory."""
    files = request_files(confinement, caller, params.sandbox)
    source, destination = _native_path(params.source_path), _native_path(params.destination_path)
    await files.run(operations.rename, source, destination, params.overwrite)
    return _NOTHING


async def install(confinement: FileConfinement | None, caller: Caller, params: InstallParams) -> Encoded:
    """Move a finished file to its destination."""
    files = request_files(confinement, caller, params.sandbox)
    source, destination = _native_path(params.source_path), _native_path(params.destination_path)
    in_place = await files.run(operations.install, source, destination, *_attributes(params))
    return _put(caller, in_place=in_place)


async def set_metadata(
    confinement: FileConfinement | None, caller: Caller, params: SetMetadataParams
) -> Encoded:
    """Set permission bits and times."""
    files = request_files(confinement, caller, params.sandbox)
    await files.run(operations.set_metadata, _native_path(params.path), *_attributes(params))
    return _NOTHING


async def digest(confinement: FileConfinement | None, caller: Caller, params: DigestParams) -> DigestResult:
    """Compute the SHA-256 of a file."""
    files = request_files(confinement, caller, params.sandbox)
    return await files.digest(_native_path(params.path), params.size)


async def put_files(
    confinement: FileConfinement | None, caller: Caller, params: PutFilesParams
) -> PutFilesResult:
    """Create directories and small files."""
    files = request_files(confinement, caller, params.sandbox)
    size = sum(len(entry.data_base64 or b"") for entry in params.entries)
    if size > MAX_BATCH_BYTES:
        raise InvalidRequest(
            f"fs/putFiles takes at most {MAX_BATCH_BYTES} bytes of content at a time, not {size}",
            field="entries",
        )
    calls = [_put_call(entry, keep_mode=params.keep_mode) for entry in params.entries]
    outcomes = []
    for first in range(0, len(calls), _AT_ONCE):
        async with _turns(caller):
            outcomes.append(await files.run_each(calls[first : first + _AT_ONCE]))
    return {
        "entries": [
            {"error": _entry_error(each)} if isinstance(each, RpcError) else {"inPlace": each}
            for each in chain.from_iterable(outcomes)
        ]
    }


async def get_files(
    confinement: FileConfinement | None, caller: Caller, params: GetFilesParams
) -> GetFilesResult:
    """Describe paths, and read small files."""
    files = request_files(confinement, caller, params.sandbox)
    paths = [_native_path(path) for path in params.paths]
    if params.max_bytes > MAX_BATCH_BYTES:
        raise InvalidRequest(
            f"`maxBytes` is at most {MAX_BATCH_BYTES}, not {params.max_bytes}", field="maxBytes"
        )
    left = params.max_bytes
    entries: list[FoundFile] = []
    for first in range(0, len(paths), _AT_ONCE):
        async with _turns(caller):
            part = await files.find(paths[first : first + _AT_ONCE], max(left, 0))
        for found in part:
            left -= content_size(found)
            entries.append({"error": _entry_error(found)} if isinstance(found, RpcError) else found)
    return {"entries": entries}


async def apply_edits(
    confinement: FileConfinement | None,
    edits: Callable[[], Edits] | None,
    caller: Caller,
    params: ApplyEditsParams,
) -> ApplyEditsResult:
    """Change several files at once: all of them, or none."""
    # Imported here to save memory: most daemons never get this request.
    from execserver.edits.backends import EditContext

    if edits is None:
        raise InternalError("this executor has no place for the record of edits")
    policy = _policy(confinement, params.sandbox)
    wanted = [_edit(edit) for edit in params.edits]
    digests = await edits().apply(wanted, policy, caller.own(EditContext, EditContext))
    found = zip(wanted, digests, strict=True)
    return {"edits": [{"path": path_to_uri(edit.path), "sha256": digest} for edit, digest in found]}


async def open_handle(confinement: FileConfinement | None, caller: Caller, params: OpenParams) -> OpenResult:
    """Open a block handle."""
    files = request_files(confinement, caller, params.sandbox)
    path = _native_path(params.path)
    policy = _policy(confinement, params.sandbox)
    await _handles(caller).open(
        params.handle_id, policy, lambda: files.open(path, params.mode, params.permissions)
    )
    return {"handleId": params.handle_id}


async def read_block(confinement: FileConfinement | None, caller: Caller, params: ReadBlockParams) -> Encoded:
    """Read from a handle."""
    policy = _policy(confinement, params.sandbox)
    return Encoded(await _handles(caller).read_block(params.handle_id, policy, params.offset, params.len))


async def write_block(
    confinement: FileConfinement | None, caller: Caller, params: WriteBlockParams
) -> Encoded:
    """Write to a handle."""
    policy = _policy(confinement, params.sandbox)
    await _handles(caller).write_block(params.handle_id, policy, params.offset, params.chunk)
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
            blocking_calls(caller),
            lambda: not mounts.can_hang,
            lambda watch_id: caller.notify("fs/missingChanged", {"watchId": watch_id}),
        )

    watch = caller.own(MissingWatch, make_watch)
    return {"watching": await watch.replace(params.watch_id, missing, present)}


def _put(caller: Caller, *, in_place: bool) -> Encoded:
    """The result of a copy or an install."""
    if not caller.extensions:
        return _NOTHING
    return _PUT_IN_PLACE if in_place else _PUT


def _attributes(params: InstallParams | SetMetadataParams) -> tuple[int | None, int | None, int | None]:
    return params.permissions, params.modified_at_ns, params.accessed_at_ns


def _look_up(mounts: MountTable, function: Callable[[str], T], caller: Caller, path: str) -> T | Awaitable[T]:
    if mounts.can_hang or path.startswith(PROC_PREFIX):
        return _look_up_in_thread(caller, function, path)
    try:
        return function(path)
    except OSError as error:
        raise file_error(error) from None


async def _look_up_in_thread(caller: Caller, function: Callable[[str], T], path: str) -> T:
    return await blocking_calls(caller).run(function, path)


async def _canonicalize_confined(files: ConfinedFiles, path: str) -> CanonicalPath:
    return {"path": path_to_uri(await files.run(operations.canonicalize, path))}


def _canonical_path(path: str) -> CanonicalPath:
    return {"path": path_to_uri(resolve_links(path))}


def request_files(
    confinement: FileConfinement | None, caller: Caller, sandbox: SandboxContext | None
) -> Files:
    """The files of a request: in its sandbox, if it limits files."""
    return _confined(confinement, caller, sandbox) or _direct(caller)


def _direct(caller: Caller) -> DirectFiles:
    return DirectFiles(blocking_calls(caller), _descriptors(caller))


def _confined(
    confinement: FileConfinement | None, caller: Caller, sandbox: SandboxContext | None
) -> ConfinedFiles | None:
    """The files in a sandbox; None if no sandbox limits files."""
    policy = _policy(confinement, sandbox)
    if policy is None:
        return None
    assert confinement is not None
    requests = caller.own(ConfinedRequests, ConfinedRequests)
    calls, descriptors = blocking_calls(caller), _descriptors(caller)
    return ConfinedFiles(confinement.pool, policy, requests, calls, descriptors, confinement.small)


def _policy(confinement: FileConfinement | None, sandbox: SandboxContext | None) -> Policy | None:
    """The policy for the files of a request; None if nothing limits them."""
    if sandbox is None:
        return None
    policy = file_policy(sandbox, None if confinement is None else confinement.tmpdir)
    if policy is not None and confinement is None:
        raise InvalidRequest(
            "failed to prepare process sandbox: this executor has none for files", name="sandbox_unavailable"
        )
    return policy


def _put_call(entry: PutEntry, *, keep_mode: bool) -> OperationCall[bool]:
    path = _native_path(entry.path)
    if entry.data_base64 is None:
        return OperationCall(operations.put_directory, (path, entry.permissions))
    times = entry.modified_at_ns, entry.accessed_at_ns
    arguments = (path, entry.data_base64, entry.sha256, keep_mode, entry.permissions, *times)
    return OperationCall(operations.put_file, arguments)


def _entry_error(error: RpcError) -> EntryError:
    return {"code": error.code, "message": error.message}


def _edit(edit: WriteEdit | RemoveEdit) -> Edit:
    from execprotocol.filesystem import ExpectedAbsent, RemoveEdit
    from execserver.edits.plan import ABSENT, Edit

    expected = (
        None if edit.expected is None
        else ABSENT if isinstance(edit.expected, ExpectedAbsent)
        else edit.expected.sha256
    )  # fmt: skip
    path = _native_path(edit.path)
    if isinstance(edit, RemoveEdit):
        return Edit(path, None, expected)
    mode_from = None if edit.mode_from is None else _native_path(edit.mode_from)
    return Edit(path, edit.data_base64, expected, edit.create_parents, mode_from)


def blocking_calls(caller: Caller) -> BlockingCalls:
    """The threads of a connection."""
    return caller.own(BlockingCalls, BlockingCalls)


def _turns(caller: Caller) -> BatchTurns:
    return caller.own(BatchTurns, BatchTurns)


def _descriptors(caller: Caller) -> Descriptors:
    return caller.own(Descriptors, Descriptors)


def _handles(caller: Caller) -> FileHandles:
    return caller.own(FileHandles, lambda: FileHandles(blocking_calls(caller), _descriptors(caller)))


def _native_path(path: str) -> str:
    if type(path) is ForeignPath:
        raise InvalidRequest(f"'{path}' is invalid on 'linux'")
    return path
