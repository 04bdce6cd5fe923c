"""Open files. A written file is kept on this machine until it is closed, and then appears as a whole."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO, cast

from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem, sync
from fsspec.spec import AbstractBufferedFile

MEMORY_BYTES = 8 << 20
"""Of a file that is being written; what is more goes into a temporary file on this machine."""

Transfer = Callable[[BinaryIO], Awaitable[None]]


class Contents:
    """The new content of a file that is being written, on this machine.

    Args:
        fetch: for appending: reads the present content into a local file.
        store: creates or replaces the file with the content of a local file.
    """

    def __init__(self, fetch: Transfer | None, store: Transfer) -> None:
        self._fetch = fetch
        self._store = store
        spool = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
        self._file = cast("BinaryIO", spool)  # it has the methods, and another base

    async def begin(self) -> None:
        """Fetch the present content, for appending."""
        if self._fetch is not None:
            await self._fetch(self._file)

    def write(self, data: bytes) -> None:
        """Add data at the end."""
        self._file.write(data)

    async def store(self) -> None:
        """Create or replace the file."""
        await self._store(self._file)

    def close(self) -> None:
        """Drop the content."""
        self._file.close()


def check_readable(info: dict[str, Any]) -> dict[str, Any]:
    """The description of a path to open for reading; raises an OSError unless it is a regular file."""
    if info["type"] == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), info["name"])
    if info["type"] != "file":
        raise OSError(errno.EINVAL, "not a regular file", info["name"])
    return info


class ExecServerFile(AbstractBufferedFile):
    """An open file for blocking calls."""

    def __init__(self, fs: AsyncFileSystem, path: str, mode: str, *args: Any, **kwargs: Any) -> None:
        self._contents: Contents | None = None
        self.closed = True  # unless all below works: it is closed when it is collected
        if mode == "xb" and fs.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        super().__init__(fs, path, mode, *args, **kwargs)
        if mode == "rb":
            check_readable(self.details)
        if mode == "ab" and fs.exists(path):
            self.loc = fs.info(path)["size"]

    def _fetch_range(self, start: int, end: int) -> bytes:
        return cast("bytes", sync(self.fs.loop, self.fs.cat_unchanged, self.details, start, end))

    def _initiate_upload(self) -> None:
        self._contents = self.fs.contents(self.path, self.mode)
        sync(self.fs.loop, self._contents.begin)

    def _upload_chunk(self, final: bool = False) -> bool:
        assert self._contents is not None
        self._contents.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Create or replace the file. fsspec calls this at the end of a transaction."""
        if self._contents is not None:
            try:
                sync(self.fs.loop, self._contents.store)
            finally:
                self.discard()

    def discard(self) -> None:
        """Drop what was written."""
        if self._contents is not None:
            self._contents.close()
            self._contents = None


class AsyncExecServerFile(AbstractAsyncStreamedFile):
    """An open file for a program with an event loop, without read-ahead."""

    _contents: Contents | None = None

    async def _fetch_range(self, start: int, end: int) -> bytes:
        return cast("bytes", await self.fs.cat_unchanged(self.details, start, end))

    async def _initiate_upload(self) -> None:
        self._contents = self.fs.contents(self.path, self.mode)
        await self._contents.begin()

    async def _upload_chunk(self, final: bool = False) -> bool:
        assert self._contents is not None
        self._contents.write(self.buffer.getvalue())
        if final:
            try:
                await self._contents.store()
            finally:
                self._contents.close()
        return True
