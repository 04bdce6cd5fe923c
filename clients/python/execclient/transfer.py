"""Files between this machine and the executor, block by block: a few blocks are in memory, never a file.

    download   open ── read blocks, several on their way ──> part file here ── digest ──> renamed
    upload     open a part file there ── write blocks ── digest ──> renamed

Handles belong to a connection (`docs/protocol.md`, G13). A file that is read is opened again after a
lost one, and has to be the same file still; what is written is never written twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from pybase64 import b64decode, b64encode

from execclient.cancellation import cancel
from execclient.connection import Json
from execclient.errors import ExecServerError, NotFound, OutcomeUnknown, TransferFailed
from execclient.identifiers import new_id
from execclient.session import Session
from execserver.protocol.limits import MAX_BLOCK_BYTES

if TYPE_CHECKING:
    from execclient.arguments import AnyPath
    from execclient.filesystem import FileSystem

BLOCKS_AHEAD = 8
"""Requests for blocks that are on their way at a time: enough to hide the way there and back."""


MAX_NAME_BYTES = 230
"""Of a file's name in that of its part file; a name has at most 255."""

Verify = Callable[[str], Awaitable[str]]
"""Gives the digest of a file at the executor."""


class Progress(NamedTuple):
    """How far a transfer has come, in bytes."""

    done: int
    total: int | None
    """None when the size is not known before."""


class RemoteFile:
    """A file that is open at the executor, as an async context.

    Args:
        session: where to.
        uri: which file.
        writing: make it, or empty it.
    """

    def __init__(self, session: Session, uri: str, *, writing: bool = False) -> None:
        self._session = session
        self._uri = uri
        self._mode = "replace" if writing else "read"
        self._handle = ""
        self._recoveries = 0
        """Of the session, when the file was opened."""
        self._identity: Json = None

    async def open(self) -> None:
        """Open it, with a new handle.

        Raises:
            TransferFailed: it was open before, and is not the same any more.
            OutcomeUnknown: the connection was lost, and it may have been emptied; only with `writing`.
        """
        while True:
            handle = new_id()
            params = {"handleId": handle, "path": self._uri, "mode": self._mode}
            try:
                await self._session.call("fs/open", params)
            except BaseException as error:
                # A handle is gone with its connection, and one to read from has changed nothing.
                if self._mode == "read" and isinstance(error, OutcomeUnknown):
                    continue
                await self._close(handle)
                raise
            break
        self._handle = handle
        self._recoveries = self._session.recoveries
        if self._mode == "read":
            await self._check_identity()

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        """Its content to its end; the way there and back is hidden by reading ahead."""
        offset = 0
        while True:
            async with aclosing(self._read_ahead(offset)) as reading:
                try:
                    async for block in reading:
                        offset += len(block)
                        yield block
                    return
                except (OutcomeUnknown, NotFound) as error:
                    # A lost connection takes the handle with it. Anything else that takes it is a fault.
                    if isinstance(error, NotFound) and self._recoveries == self._session.recoveries:
                        raise
            await self.open()

    async def _read_ahead(self, offset: int) -> AsyncGenerator[bytes, None]:
        ahead: deque[asyncio.Task[tuple[bytes, bool]]] = deque()
        try:
            while True:
                # One at least, since what the size says need not be so, in /proc for instance.
                while not ahead or (len(ahead) < BLOCKS_AHEAD and offset <= self.size):
                    ahead.append(asyncio.create_task(self._read(offset)))
                    offset += MAX_BLOCK_BYTES
                block, end = await ahead.popleft()
                if block:
                    yield block
                if end:
                    return
        finally:
            await cancel(ahead)

    async def _read(self, offset: int) -> tuple[bytes, bool]:
        params = {"handleId": self._handle, "offset": offset, "len": MAX_BLOCK_BYTES}
        result = await self._session.call("fs/readBlock", params)
        return b64decode(result["chunk"], validate=True), result["eof"]

    async def write(self, offset: int, block: bytes) -> None:
        """Write a block, of 1 MiB at most."""
        chunk = b64encode(block).decode()
        params = {"handleId": self._handle, "offset": offset, "chunk": chunk}
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
        self._identity = identity

    @property
    def size(self) -> int:
        """Of a file that is read: its size when it was opened."""
        return int(self._identity[0])

    async def _close(self, handle: str) -> None:
        with suppress(ExecServerError):  # the file is closed with its connection at the latest
            await self._session.call("fs/close", {"handleId": handle})

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(self._handle)


class Download:
    """A file on its way to this machine.

    Args:
        session: where from.
        uri: which file.
        path: the same, for people.
        progress: is told.
    """

    def __init__(
        self, session: Session, uri: str, path: str, progress: Callable[[Progress], None] | None
    ) -> None:
        self._session = session
        self._uri = uri
        self._path = path
        self._progress = progress

    async def run(self, local: AnyPath | BinaryIO, verify: Verify | None) -> None:
        """All of it. `verify` gives the digest at the executor."""
        if not isinstance(local, str | os.PathLike):
            await self._copy(local, verify)
            return
        place = await _local_place(local)
        try:
            with place.file:
                await self._copy(place.file, verify)
            await asyncio.to_thread(place.fill)
        except BaseException:
            place.leave()
            raise

    async def _copy(self, file: BinaryIO, verify: Verify | None) -> None:
        digest = hashlib.sha256()
        done = 0

        def take(block: bytes) -> None:
            file.write(block)
            if verify is not None:
                digest.update(block)

        async with RemoteFile(self._session, self._uri) as remote, aclosing(remote.blocks()) as blocks:
            async for block in blocks:
                await asyncio.to_thread(take, block)
                done += len(block)
                if self._progress is not None:
                    self._progress(Progress(done, max(done, remote.size)))
        await asyncio.to_thread(file.flush)
        if verify is not None and await verify(self._path) != digest.hexdigest():
            raise TransferFailed(f"{self._path}: what came is not what is there now: it changed meanwhile")


class Upload:
    """A file on its way to the executor.

    Args:
        files: where to.
        session: the same.
        progress: is told.
    """

    def __init__(
        self, files: FileSystem, session: Session, progress: Callable[[Progress], None] | None
    ) -> None:
        self._files = files
        self._session = session
        self._progress = progress

    async def run(self, local: AnyPath | BinaryIO, path: AnyPath, *, verify: bool) -> None:
        """All of it."""
        if isinstance(local, str | os.PathLike):
            with await asyncio.to_thread(open, local, "rb") as file:
                total = os.fstat(file.fileno()).st_size
                await self._put(file, total, path, verify=verify)
        else:
            await self._put(local, None, path, verify=verify)

    async def _put(self, file: BinaryIO, total: int | None, path: AnyPath, *, verify: bool) -> None:
        target, replaces = await self._place(path)
        part = part_path(target)
        try:
            if replaces:
                await self._files.copy(target, part)  # for its mode; the wire has no other way to give one
            async with RemoteFile(self._session, self._files.uri(part), writing=True) as remote:
                digest = await self._send(file, total, remote)
            if verify and await self._files.digest(part) != digest:
                raise TransferFailed(f"{os.fspath(path)}: what arrived is not what was sent")
            await self._rename(part, target, digest)
        except BaseException:
            with suppress(ExecServerError):
                await self._files.remove(part, missing_ok=True)
            raise

    async def _place(self, path: AnyPath) -> tuple[str, bool]:
        """The path behind all links, and whether a file is there."""
        try:
            target = await self._files.resolve(path)
        except NotFound:
            return os.fspath(path), False
        if not (await self._files.stat(target)).is_file:
            raise TransferFailed(f"{target} is there, and is no regular file")
        return target, True

    async def _send(self, file: BinaryIO, total: int | None, remote: RemoteFile) -> str:
        digest = hashlib.sha256()

        def read() -> bytes:
            block = file.read(MAX_BLOCK_BYTES)
            digest.update(block)
            return block

        under_way: deque[tuple[int, asyncio.Task[None]]] = deque()
        offset = 0
        try:
            while block := await asyncio.to_thread(read):
                if len(under_way) == BLOCKS_AHEAD:
                    await self._written(under_way, total)
                writing = asyncio.create_task(remote.write(offset, block))
                offset += len(block)
                under_way.append((offset, writing))
            while under_way:
                await self._written(under_way, total)
        finally:
            await cancel(task for _, task in under_way)
        return digest.hexdigest()

    async def _written(self, under_way: deque[tuple[int, asyncio.Task[None]]], total: int | None) -> None:
        done, task = under_way.popleft()
        await task
        if self._progress is not None:
            self._progress(Progress(done, None if total is None else max(done, total)))

    async def _rename(self, part: str, target: str, digest: str) -> None:
        try:
            await self._files.rename(part, target)
        except OutcomeUnknown:
            if await self._files.exists(part) or await self._files.digest(target) != digest:
                raise


def part_path(target: str) -> str:
    """Where the beginning of a file is kept: beside it, under a name that nobody else has."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(name)[:MAX_NAME_BYTES])}.{new_id()}.part")


class _LocalPlace:
    """Where a file goes on this machine: a part file first, but what is no file is written to as it is."""

    def __init__(self, local: str | os.PathLike[str]) -> None:
        # A link stays, and what it leads to is replaced.
        self._target = Path(os.path.realpath(local))
        self._part: Path | None = None
        if self._target.exists() and not self._target.is_file():
            self.file: BinaryIO = open(self._target, "wb")  # noqa: SIM115 - the caller closes it
            return
        self._part = Path(part_path(str(self._target)))
        self.file = open(self._part, "xb")  # noqa: SIM115 - the same
        with suppress(FileNotFoundError):
            os.fchmod(self.file.fileno(), self._target.stat().st_mode & 0o7777)

    def fill(self) -> None:
        """All of it is there."""
        if self._part is not None:
            self._part.replace(self._target)

    def leave(self) -> None:
        """It was not to be."""
        if self._part is not None:
            self._part.unlink(missing_ok=True)


async def _local_place(local: str | os.PathLike[str]) -> _LocalPlace:
    making = asyncio.create_task(asyncio.to_thread(_LocalPlace, local))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        # The thread makes the part file all the same.
        with suppress(OSError):
            place = await making
            place.file.close()
            place.leave()
        raise
