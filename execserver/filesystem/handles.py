"""Block handles: `fs/open`, `fs/readBlock`, `fs/writeBlock`, `fs/close`.

A connection runs the requests of one handle one after the other. It may end at any time.
`docs/protocol.md`, "Handles".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pybase64

from execprotocol.errors import InvalidRequest, NotFound
from execprotocol.limits import (
    MAX_BLOCK_BYTES,
    MAX_FILE_HANDLES,
    MAX_FILE_OFFSET,
    MAX_HANDLE_ID_BYTES,
)
from execserver.fault_points import reach
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.reading import read_at
from execserver.filesystem.writing import write_at
from execserver.sandbox.policy import Policy


class _Handle(NamedTuple):
    descriptor: Descriptor
    policy: Policy | None
    """The policy under which the file was opened."""


class FileHandles:
    """The open handles of one connection. All methods are called on the loop's thread."""

    def __init__(self, calls: BlockingCalls, descriptors: Descriptors) -> None:
        self._calls = calls
        self._descriptors = descriptors
        # None while the file is being opened: the id is in use and counts.
        self._handles: dict[str, _Handle | None] = {}

    async def open(
        self, handle_id: str, policy: Policy | None, open_file: Callable[[], Awaitable[Descriptor]]
    ) -> None:
        """Open a file under an id that the client has chosen.

        Args:
            handle_id: the id.
            policy: limits `open_file`; None for no limits.
            open_file: opens the file; called if the id is free.

        Raises:
            InvalidRequest: the id is longer than 32 bytes or in use, or 128 handles are open.
            RpcError: raised by `open_file`.
        """
        if len(handle_id.encode("utf-8", "surrogatepass")) > MAX_HANDLE_ID_BYTES:
            raise InvalidRequest(f"file handle ID must not exceed {MAX_HANDLE_ID_BYTES} bytes")
        if handle_id in self._handles:
            raise InvalidRequest(
                f"file handle `{handle_id}` already exists", name="handle_exists", field="handleId"
            )
        if len(self._handles) >= MAX_FILE_HANDLES:
            raise InvalidRequest(f"at most {MAX_FILE_HANDLES} file handles may be open per connection")
        self._handles[handle_id] = None
        try:
            self._handles[handle_id] = _Handle(await open_file(), policy)
        except BaseException:
            self._handles.pop(handle_id, None)
            raise

    async def read_block(self, handle_id: str, policy: Policy | None, offset: int, length: int) -> bytes:
        """Read a block, as the JSON of a `ReadBlockResult`. A failing read closes the handle.

        Raises:
            InvalidRequest: `length` is not 1 to 1,048,576 bytes, or the handle has another policy.
            NotFound: there is no such handle.
            RpcError: the read failed.
        """
        if not 1 <= length <= MAX_BLOCK_BYTES:
            raise InvalidRequest(f"file read block length must be between 1 and {MAX_BLOCK_BYTES}")
        descriptor = self._get(handle_id, policy)
        try:
            return await self._calls.run(_read_block, descriptor, length, offset)
        except Exception:
            await self.close_handle(handle_id)
            raise

    async def write_block(self, handle_id: str, policy: Policy | None, offset: int, chunk: bytes) -> None:
        """Write all of a block.

        Raises:
            InvalidRequest: the block is not 1 to 1,048,576 bytes long or would end beyond 2^63 - 1, or the
                handle has another policy.
            NotFound: there is no such handle.
            RpcError: the write failed; the handle stays.
        """
        if not 1 <= len(chunk) <= MAX_BLOCK_BYTES:
            raise InvalidRequest(f"file write block length must be between 1 and {MAX_BLOCK_BYTES}")
        if offset + len(chunk) > MAX_FILE_OFFSET:
            raise InvalidRequest("file write range exceeds the signed 64-bit file offset limit")
        await self._calls.run(_write_block, self._get(handle_id, policy), chunk, offset)

    async def close_handle(self, handle_id: str) -> None:
        """Close a handle; an unknown one is no error.

        The file is closed when this returns, so that a program that was written through the handle can be
        started.
        """
        handle = self._handles.get(handle_id)
        if handle is not None:
            del self._handles[handle_id]
            await self._calls.run(self._descriptors.release, handle.descriptor)

    def close(self) -> None:
        """The connection has ended. `Descriptors` closes the files."""
        self._handles.clear()

    def _get(self, handle_id: str, policy: Policy | None) -> Descriptor:
        handle = self._handles.get(handle_id)
        if handle is None:
            raise NotFound(f"unknown file handle `{handle_id}`", name="unknown_handle", field="handleId")
        if policy is not None and policy != handle.policy:
            raise InvalidRequest(
                f"file handle `{handle_id}` was opened under another sandbox, and cannot be limited now: "
                "leave the sandbox out, or open the file again under this one",
                field="sandbox",
            )
        return handle.descriptor


def _read_block(descriptor: Descriptor, length: int, offset: int) -> bytes:
    if offset > MAX_FILE_OFFSET:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    with descriptor.borrow() as fd:
        data = read_at(fd, length, offset)
    eof = b"true" if len(data) < length else b"false"
    return b'{"chunk":"%b","eof":%b}' % (pybase64.b64encode(data), eof)


def _write_block(descriptor: Descriptor, chunk: bytes, offset: int) -> None:
    reach("during-block-write")
    with descriptor.borrow() as fd:
        write_at(fd, chunk, offset)
