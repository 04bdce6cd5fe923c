"""Copy files between this machine and the executor in blocks; only a few blocks are in memory.

    download   open ── read blocks, several at a time ──> local part file ── digest ──> mode, times, rename
    upload     open a remote part file ── write blocks ── digest ──> fs/install: mode, times, rename

Handles belong to a connection (`docs/protocol.md`, G13). After a lost connection a file that is read is
opened again, and must be the same file; a block is never written twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from pybase64 import b64decode

from execclient.arguments import AnyPath, new_id
from execclient.connection.connection import Json
from execclient.errors import (
    CallFailed,
    ExecServerError,
    NotFound,
    OutcomeUnknown,
    TransferFailed,
    call_failed,
)
from execclient.file_session import FileSession, repeated
from execclient.local_files import Attributes, LocalSource, LocalTarget, opened, part_path
from execclient.results import Copied, Progress, Stat
from execclient.session.session import cancel, to_end
from execprotocol.errors import InternalError
from execprotocol.limits import MAX_BLOCK_BYTES
from execprotocol.path_uri import parse_path_uri

BLOCKS_AHEAD = 8
"""Concurrent requests for blocks: enough to hide the latency."""


Verify = Callable[[str, int | None], Awaitable[str]]
"""Returns the digest of a file at the executor, or of so many bytes at its beginning."""


_INSTALL = "fs/install"

_INSTALL_SECONDS = 3600.0
"""Writing a file in place takes time that depends on its size and its disk."""


class UploadFiles(Protocol):
    """The methods of `FileSystem` that an upload uses."""

    def uri(self, path: AnyPath) -> str: ...  # noqa: D102 - as there
    async def resolve(self, path: AnyPath) -> str: ...  # noqa: D102
    async def stat(self, path: AnyPath) -> Stat: ...  # noqa: D102
    async def exists(self, path: AnyPath) -> bool: ...  # noqa: D102
    async def digest(self, path: AnyPath) -> str: ...  # noqa: D102
    async def copy(self, source: AnyPath, destination: AnyPath) -> Copied: ...  # noqa: D102
    async def rename(self, source: AnyPath, destination: AnyPath, *, overwrite: bool) -> None: ...  # noqa: D102
    async def remove(self, path: AnyPath, *, missing_ok: bool) -> None: ...  # noqa: D102


class RemoteFile:
    """An open file at the executor, as an async context manager.

    Args:
        session: with the executor.
        uri: of the file.
        writing: create or truncate the file.
        mode: permission bits of a new file, if the executor supports that.
    """

    def __init__(
        self, session: FileSession, uri: str, *, writing: bool = False, mode: int | None = None
    ) -> None:
        self._session = session
        self._uri = uri
        self._mode = "replace" if writing else "read"
        self._permissions = {} if mode is None else {"permissions": mode}
        self.attributes = Attributes()
        """Of a file that is read, at the first open."""
        self._handle = ""
        self._recoveries = 0
        """Of the session, at the open."""
        self._identity: Json = None

    async def open(self) -> None:
        """Open the file, with a new handle.

        Raises:
            TransferFailed: the file was open before, and has changed.
            OutcomeUnknown: the connection was lost, and the file may have been truncated; only with
                `writing`.
        """
        while True:
            handle = new_id()
            params = {"handleId": handle, "path": self._uri, "mode": self._mode, **self._permissions}
            try:
                await self._session.call("fs/open", params)
            except BaseException as error:
                # The handle is gone with its connection, and opening for reading changes no file.
                if self._mode == "read" and isinstance(error, OutcomeUnknown):
                    continue
                await self._close(handle)
                raise
            break
        self._handle = handle
        self._recoveries = self._session.recoveries
        if self._mode == "read":
            try:
                await self._check_identity()
            except BaseException:
                await self.close()
                raise

    async def blocks(self, offset: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The content, up to the size at the open, or to the end if the file reports no size.

        Blocks are read ahead to hide the latency.

        Args:
            offset: of the first byte.
            end: the offset after the last byte, at most `size`; only for a file that reports a size.

        Raises:
            TransferFailed: the file has shrunk.
        """
        end = self.size if end is None else end
        while True:
            async with aclosing(self._read_ahead(offset, end)) as reading:
                try:
                    async for block in reading:
                        offset += len(block)
                        yield block
                    return
                except (OutcomeUnknown, NotFound) as error:
                    # A lost connection closes the handle. Any other closed handle is an error.
                    if isinstance(error, NotFound) and self._recoveries == self._session.recoveries:
                        raise
            await self.open()

    async def _read_ahead(self, offset: int, end: int) -> AsyncGenerator[bytes, None]:
        ahead: deque[asyncio.Task[tuple[bytes, bool]]] = deque()
        done = offset
        try:
            while not self.size or done < end:
                # A file without a size, as those of /proc, is read block after block.
                while not ahead or (len(ahead) < BLOCKS_AHEAD and offset < end):
                    length = min(MAX_BLOCK_BYTES, end - offset) if self.size else MAX_BLOCK_BYTES
                    ahead.append(asyncio.create_task(self._read(offset, length)))
                    offset += length
                block, is_last = await ahead.popleft()
                if block:
                    done += len(block)
                    yield block
                if is_last:
                    break
        finally:
            await cancel(ahead)
        if done < end:
            raise TransferFailed(f"the file shrank while it was read: {done} of {self.size} bytes are left")

    async def _read(self, offset: int, length: int) -> tuple[bytes, bool]:
        params = {"handleId": self._handle, "offset": offset, "len": length}
        try:
            result = await self._session.call("fs/readBlock", params)
        except CallFailed as error:
            error.of_path(parse_path_uri(self._uri))
            raise
        return b64decode(result["chunk"], validate=True), result["eof"]

    async def digest(self, size: int | None) -> str:
        """Open the file, and compute the SHA-256 of its content, or of so many bytes at its beginning."""
        digest, left = hashlib.sha256(), size
        async with self, aclosing(self.blocks()) as blocks:
            async for block in blocks:
                part = block if left is None else block[:left]
                digest.update(part)
                if left is not None:
                    left -= len(part)
                    if not left:
                        break
        return digest.hexdigest()

    async def write(self, offset: int, block: bytes) -> None:
        """Write a block of at most 1 MiB."""
        params = {"handleId": self._handle, "offset": offset, "chunk": block}
        try:
            await self._session.call("fs/writeBlock", params)
        except NotFound as error:
            if self._recoveries == self._session.recoveries:
                raise
            raise OutcomeUnknown(f"the handle was lost with its connection: {error}") from error

    async def _check_identity(self) -> None:
        metadata = await self._session.call("fs/getMetadata", {"path": self._uri})
        identity = metadata["size"], metadata["modifiedAtMs"], metadata["createdAtMs"]
        if self._identity not in (None, identity):
            raise TransferFailed("the file changed while it was read, and the connection was lost meanwhile")
        if self._identity is None and "permissions" in metadata:
            self.attributes = Attributes(
                metadata["permissions"] & 0o777, metadata["modifiedAtNs"], metadata["accessedAtNs"]
            )
        self._identity = identity

    @property
    def size(self) -> int:
        """Of a file that is read: its size at the open."""
        return int(self._identity[0])

    async def _close(self, handle: str) -> None:
        with suppress(ExecServerError):  # the end of the connection closes the file anyway
            await self._session.call("fs/close", {"handleId": handle})

    async def close(self) -> None:
        """Close the file."""
        await self._close(self._handle)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Download:
    """A copy from the executor to this machine.

    Args:
        session: with the executor.
        uri: of the source.
        path: of the source, for messages.
        progress: called after each block.
    """

    def __init__(
        self, session: FileSession, uri: str, path: str, progress: Callable[[Progress], None] | None
    ) -> None:
        self._session = session
        self._uri = uri
        self._path = path
        self._progress = progress

    async def run(self, local: AnyPath | BinaryIO, verify: Verify | None, *, preserve_times: bool) -> Copied:
        """Copy the file. `verify` returns the digest at the executor."""
        async with RemoteFile(self._session, self._uri) as remote:
            if not isinstance(local, str | os.PathLike):
                return Copied(await self._copy(remote, local, verify))
            local_target = await _local_target(local, remote.attributes.mode)
            try:
                size = await self._copy(remote, local_target.file, verify)
                preserved = remote.attributes if preserve_times else None
                in_place = await to_end(local_target.commit, preserved)
            finally:
                local_target.close()
            return Copied(size, in_place, remote.attributes.mode is not None)

    async def _copy(self, remote: RemoteFile, file: BinaryIO, verify: Verify | None) -> int:
        digest = hashlib.sha256()
        done = 0

        def take(block: bytes) -> None:
            file.write(block)
            if verify is not None:
                digest.update(block)

        async with aclosing(remote.blocks()) as blocks:
            async for block in blocks:
                await asyncio.to_thread(take, block)
                done += len(block)
                if self._progress is not None:
                    self._progress(Progress(done, max(done, remote.size)))
        await asyncio.to_thread(file.flush)
        # A file without a size, as those of /proc, has new content at each read.
        if verify is not None and remote.size and await verify(self._path, done) != digest.hexdigest():
            raise TransferFailed(
                f"{self._path}: the received data differs from the file: it changed meanwhile"
            )
        return done


class Upload:
    """A copy from this machine to the executor.

    Args:
        files: of the executor.
        session: with the executor.
        progress: called after each block.
    """

    def __init__(
        self, files: UploadFiles, session: FileSession, progress: Callable[[Progress], None] | None
    ) -> None:
        self._files = files
        self._session = session
        self._progress = progress
        self._overwrite = True

    async def run(
        self,
        local: AnyPath | BinaryIO,
        path: AnyPath,
        *,
        verify: bool,
        preserve_times: bool,
        overwrite: bool = True,
    ) -> Copied:
        """Copy the file."""
        self._overwrite = overwrite
        if not isinstance(local, str | os.PathLike):
            return await self._put(
                LocalSource(local, None, Attributes()), path, verify=verify, preserve=False
            )
        with opened(local) as source:
            return await self._put(source, path, verify=verify, preserve=preserve_times)

    async def _put(self, source: LocalSource, path: AnyPath, *, verify: bool, preserve: bool) -> Copied:
        target, replaces = await (self._place(path) if self._overwrite else self._new_place(path))
        try:
            return await self._replace(source, target, replaces=replaces, verify=verify, preserve=preserve)
        except (CallFailed, OutcomeUnknown) as error:
            error.of_path(target)  # and not of the part file
            raise

    async def _replace(
        self, source: LocalSource, target: str, *, replaces: bool, verify: bool, preserve: bool
    ) -> Copied:
        mode = source.attributes.mode
        installs = _INSTALL in self._session.capabilities
        private = installs and (replaces or mode is not None)
        part, remote = await self._open_part(target, replaces=replaces, mode=0o600 if private else None)
        try:
            try:
                size, digest = await self._send(source, remote)
            finally:
                await remote.close()
            if verify and await self._files.digest(part) != digest:
                raise TransferFailed(f"{target}: the new file differs from the sent data")
            # A replaced file keeps its mode, as with cp(1).
            wanted = source.attributes if preserve else Attributes(None if replaces else mode)
            if installs and self._overwrite:
                return Copied(size, await self._install(part, target, wanted, digest))
            if installs and wanted != Attributes():
                await self._session.call(
                    "fs/setMetadata", {"path": self._files.uri(part), **_members(wanted)}
                )
            await self._rename(part, target, digest)
            return Copied(size, mode_kept=installs or replaces or mode is None)
        except BaseException:
            await self._discard(part)
            raise

    async def _discard(self, part: str) -> None:
        """Remove a part file if there is one. Trying twice does no harm."""
        with suppress(ExecServerError):
            await repeated(partial(self._files.remove, part, missing_ok=True))

    async def _new_place(self, path: AnyPath) -> tuple[str, bool]:
        """The path itself, which must not exist. Whether it does is decided by the rename, in the end."""
        target = parse_path_uri(self._files.uri(path))
        if await self._files.exists(target):
            raise call_failed("fs/rename", InternalError.code, "File exists (os error 17)").of_path(target)
        return target, False

    async def _place(self, path: AnyPath) -> tuple[str, bool]:
        """The path behind all links, and whether the file exists."""
        try:
            target = await self._files.resolve(path)
        except NotFound:
            return parse_path_uri(self._files.uri(path)), False
        if not (await self._files.stat(target)).is_file:
            raise TransferFailed(f"{target} exists, and is not a regular file")
        return target, True

    async def _open_part(self, target: str, *, replaces: bool, mode: int | None) -> tuple[str, RemoteFile]:
        """Open a part file next to the target, or in the temporary folder if that directory is read-only."""
        part = part_path(target)
        try:
            if replaces and _INSTALL not in self._session.capabilities:
                await self._files.copy(target, part)  # for its mode; there is no other way to set it
            remote = self._part(part, mode)
            await remote.open()
        except CallFailed as error:
            folder = self._session.temporary_folder
            if not (replaces and mode is not None and folder and _is_not_writable(error)):
                await self._discard(part)
                raise
            part = part_path(os.path.join(folder, os.path.basename(target)))
            remote = self._part(part, mode)
            try:
                await remote.open()
            except CallFailed as other:
                if _is_not_writable(other):
                    raise _without_room(error, target, folder) from None
                raise
        except BaseException:
            await self._discard(part)
            raise
        return part, remote

    def _part(self, path: str, mode: int | None) -> RemoteFile:
        return RemoteFile(self._session, self._files.uri(path), writing=True, mode=mode)

    async def _send(self, source: LocalSource, remote: RemoteFile) -> tuple[int, str]:
        """Send the source, up to its size at the open; returns the number of bytes, and their digest."""
        digest = hashlib.sha256()
        total = source.size

        def read(offset: int) -> bytes:
            length = MAX_BLOCK_BYTES if total is None else min(MAX_BLOCK_BYTES, total - offset)
            block = source.file.read(length)
            digest.update(block)
            return block

        under_way: deque[tuple[int, asyncio.Task[None]]] = deque()
        offset = 0
        try:
            while block := await asyncio.to_thread(read, offset):
                if len(under_way) == BLOCKS_AHEAD:
                    await self._written(under_way, total)
                writing = asyncio.create_task(remote.write(offset, block))
                offset += len(block)
                under_way.append((offset, writing))
            if total is not None and offset < total:
                raise TransferFailed(f"the file shrank while it was read: {offset} of {total} bytes are left")
            while under_way:
                await self._written(under_way, total)
        finally:
            await cancel(task for _, task in under_way)
        return offset, digest.hexdigest()

    async def _written(self, under_way: deque[tuple[int, asyncio.Task[None]]], total: int | None) -> None:
        done, task = under_way.popleft()
        await task
        if self._progress is not None:
            self._progress(Progress(done, None if total is None else max(done, total)))

    async def _install(self, part: str, target: str, wanted: Attributes, digest: str) -> bool:
        params = {
            "sourcePath": self._files.uri(part),
            "destinationPath": self._files.uri(target),
            **_members(wanted),
        }
        try:
            result = await self._session.call(_INSTALL, params, limit=_INSTALL_SECONDS)
        except OutcomeUnknown:
            if not await self._is_moved(part, target, digest):
                raise
            return False
        if result["inPlace"]:
            # In a directory that is not writable, the file cannot be removed either.
            await self._discard(part)
        return bool(result["inPlace"])

    async def _rename(self, part: str, target: str, digest: str) -> None:
        try:
            await self._files.rename(part, target, overwrite=self._overwrite)
        except OutcomeUnknown:
            if not await self._is_moved(part, target, digest):
                raise

    async def _is_moved(self, part: str, target: str, digest: str) -> bool:
        return not await self._files.exists(part) and await self._files.digest(target) == digest


def _members(attributes: Attributes) -> dict[str, Json]:
    """Attributes as members of a request; None leaves one as it is."""
    return {
        "permissions": attributes.mode,
        "modifiedAtNs": attributes.modified_ns,
        "accessedAtNs": attributes.accessed_ns,
    }


def _without_room(error: CallFailed, target: str, temporary_folder: str) -> CallFailed:
    """The error for a target that may be writable, while no part file can be created."""
    reason = (
        f"the new content needs a file in {os.path.dirname(target)} or, to be written in place, in "
        f"{temporary_folder}, and neither can be written"
    )
    return call_failed(error.method, error.wire_code, error.message, {"path": target, "reason": reason})


def _is_not_writable(error: CallFailed) -> bool:
    """Whether a directory is not writable: EPERM, EACCES, EROFS (`docs/protocol.md`, I1)."""
    return re.search(r"\(os error (1|13|30)\)$", error.message) is not None


async def _local_target(local: str | os.PathLike[str], mode: int | None) -> LocalTarget:
    stop = threading.Event()
    made: list[LocalTarget] = []
    try:
        await to_end(lambda: made.append(LocalTarget(local, mode, stop)), stop=stop.set)
    except asyncio.CancelledError:
        # The thread has created the part file all the same.
        for target in made:
            target.close()
        raise
    return made[0]
