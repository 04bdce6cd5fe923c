"""File operations by path, behind one interface: in this process, or in a sandbox (`confined_files.py`)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.descriptors import Descriptor, Descriptors
from execserver.filesystem.digest import digest
from execserver.filesystem.directories import create_directory
from execserver.filesystem.listing import read_directory, walk
from execserver.filesystem.metadata import canonicalize, metadata
from execserver.filesystem.opening import open_to_read, open_to_replace
from execserver.filesystem.reading import LargeFile, begin_reading
from execserver.filesystem.remove import remove
from execserver.filesystem.rename import rename
from execserver.filesystem.replacing import Attributes, install
from execserver.filesystem.tree_operations import PLAIN, Wish, copy
from execserver.filesystem.walk import WalkLimits
from execserver.filesystem.writing import write_file

if TYPE_CHECKING:
    from execprotocol.filesystem import DigestResult, Metadata


HandleMode = Literal["read", "replace"]


class Files(Protocol):
    """The operations, with native paths. Called on the loop's thread; errors are `RpcError`s."""

    def begin_reading(self, path: str, max_reply_bytes: int | None) -> Awaitable[bytes | LargeFile]:
        """The content of a file in base64, or the file when it is large (`reading.begin_reading`)."""

    def write(self, path: str, text: str | memoryview) -> Awaitable[None]:
        """Make a file or replace its content, which comes as base64 (`writing.write_file`)."""

    def open(self, path: str, mode: HandleMode, permissions: int | None = None) -> Awaitable[Descriptor]:
        """Open a regular file; the descriptor belongs to the connection."""

    def create_directory(
        self, path: str, *, recursive: bool, permissions: int | None = None
    ) -> Awaitable[None]:
        """Make a directory (`directories.create_directory`)."""

    def metadata(self, path: str, *, extended: bool = False) -> Awaitable[Metadata]:
        """Say what a path is (`metadata.metadata`)."""

    def set_metadata(self, path: str, wanted: Attributes) -> Awaitable[None]:
        """Give a path permission bits and times (`Attributes.set`)."""

    def canonicalize(self, path: str) -> Awaitable[str]:
        """A path without links (`metadata.canonicalize`)."""

    def read_directory(self, path: str) -> Awaitable[bytes]:
        """List a directory, in JSON (`listing.read_directory`)."""

    def walk(self, path: str, limits: WalkLimits) -> Awaitable[bytes]:
        """List a tree, in JSON (`listing.walk`)."""

    def remove(self, path: str, *, recursive: bool, force: bool) -> Awaitable[None]:
        """Remove a path (`remove.remove`)."""

    def copy(self, source: str, destination: str, *, recursive: bool, wish: Wish = PLAIN) -> Awaitable[bool]:
        """Copy a path (`copy.copy`)."""

    def install(self, source: str, destination: str, wanted: Attributes) -> Awaitable[bool]:
        """Move a finished file to its place (`replacing.install`)."""

    def rename(self, source: str, destination: str, *, overwrite: bool) -> Awaitable[None]:
        """Rename a path (`rename.rename`)."""

    def digest(self, path: str, size: int | None = None) -> Awaitable[DigestResult]:
        """The digest of a file (`digest.digest`)."""


class DirectFiles:
    """The operations in this process, in threads."""

    def __init__(self, calls: BlockingCalls, descriptors: Descriptors) -> None:
        self._calls = calls
        self._descriptors = descriptors

    def begin_reading(self, path: str, max_reply_bytes: int | None) -> Awaitable[bytes | LargeFile]:
        """See `Files`."""
        return self._calls.run(begin_reading, path, max_reply_bytes, self._descriptors)

    def write(self, path: str, text: str | memoryview) -> Awaitable[None]:
        """See `Files`."""
        return self._calls.run(write_file, path, text)

    def open(self, path: str, mode: HandleMode, permissions: int | None = None) -> Awaitable[Descriptor]:
        """See `Files`."""
        return self._calls.run(_open, path, mode, permissions, self._descriptors)

    def create_directory(
        self, path: str, *, recursive: bool, permissions: int | None = None
    ) -> Awaitable[None]:
        """See `Files`."""
        work = partial(create_directory, path, recursive=recursive, permissions=permissions)
        return self._calls.run(work)

    def metadata(self, path: str, *, extended: bool = False) -> Awaitable[Metadata]:
        """See `Files`."""
        return self._calls.run(partial(metadata, path, extended=extended))

    def set_metadata(self, path: str, wanted: Attributes) -> Awaitable[None]:
        """See `Files`."""
        return self._calls.run(wanted.set, path)

    def canonicalize(self, path: str) -> Awaitable[str]:
        """See `Files`."""
        return self._calls.run(canonicalize, path)

    def read_directory(self, path: str) -> Awaitable[bytes]:
        """See `Files`."""
        return self._calls.run(read_directory, path, self._calls.stop)

    def walk(self, path: str, limits: WalkLimits) -> Awaitable[bytes]:
        """See `Files`."""
        return self._calls.run(walk, path, limits, self._calls.stop)

    def remove(self, path: str, *, recursive: bool, force: bool) -> Awaitable[None]:
        """See `Files`."""
        return self._calls.run(partial(remove, path, recursive=recursive, force=force))

    def copy(self, source: str, destination: str, *, recursive: bool, wish: Wish = PLAIN) -> Awaitable[bool]:
        """See `Files`."""
        work = partial(copy, source, destination, recursive=recursive, stop=self._calls.stop, wish=wish)
        return self._calls.run(work)

    def install(self, source: str, destination: str, wanted: Attributes) -> Awaitable[bool]:
        """See `Files`."""
        return self._calls.run(install, source, destination, wanted, self._calls.stop)

    def rename(self, source: str, destination: str, *, overwrite: bool) -> Awaitable[None]:
        """See `Files`."""
        return self._calls.run(partial(rename, source, destination, overwrite=overwrite))

    def digest(self, path: str, size: int | None = None) -> Awaitable[DigestResult]:
        """See `Files`."""
        return self._calls.run(digest, path, self._calls.stop, size)


def _open(path: str, mode: HandleMode, permissions: int | None, descriptors: Descriptors) -> Descriptor:
    number = open_to_read(path)[0] if mode == "read" else open_to_replace(path, permissions)
    return descriptors.adopt(number)
