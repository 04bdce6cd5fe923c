"""Files at the executor. `docs/protocol.md`, "File system"."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import NamedTuple

from pybase64 import b64decode, b64encode

from execclient.connection import Caller
from execserver.protocol.limits import MAX_BLOCK_BYTES
from execserver.protocol.path_uri import path_to_uri

WHOLE_FILE_BYTES = 32 << 20
"""Larger files are written block by block: a message holds 64 MiB, and base64 takes a third more."""

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Stat:
    """What a path is: that of a link's target, but for `is_symlink`. Times are seconds since 1970."""

    is_dir: bool
    is_file: bool
    is_symlink: bool
    size: int
    modified: float
    created: float | None
    """None where the file system does not know."""


class Entry(NamedTuple):
    """One name in a directory, and the kind of what it names; neither for a device or a socket."""

    name: str
    is_dir: bool
    is_file: bool


class FileSystem:
    """Files at the executor, as `executor.fs`.

    Relative paths are relative to `executor.cwd`. Every method raises `NotFound` for a path that
    is not there, `Refused` for what may not be done, `SystemFailure` for other failures there.
    """

    def __init__(self, call: Caller, cwd: str) -> None:
        self._call = call
        self._cwd = cwd
        self._handles = itertools.count(1)

    def uri(self, path: AnyPath) -> str:
        """The URI of a path, as it goes over the wire."""
        return path_to_uri(os.path.join(self._cwd, path))

    async def read_bytes(self, path: AnyPath) -> bytes:
        """The content of a file of at most 512 MiB."""
        result = await self._call("fs/readFile", {"path": self.uri(path)})
        return b64decode(result["dataBase64"], validate=True)

    async def write_bytes(self, path: AnyPath, data: bytes) -> None:
        """Make a file, or replace its content in place; its directory must exist.

        Above 32 MiB it takes several requests: a failure in between leaves a part.
        """
        if len(data) > WHOLE_FILE_BYTES:
            await self._write_blocks(path, data)
        else:
            await self._call("fs/writeFile", {"path": self.uri(path), "dataBase64": b64encode(data).decode()})

    async def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a text file; line ends as they are."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_text(self, path: AnyPath, text: str, encoding: str = "utf-8") -> None:
        """Make a text file, or replace its content in place; line ends as they are."""
        await self.write_bytes(path, text.encode(encoding))

    async def stat(self, path: AnyPath) -> Stat:
        """What a path is."""
        result = await self._call("fs/getMetadata", {"path": self.uri(path)})
        return Stat(
            is_dir=result["isDirectory"],
            is_file=result["isFile"],
            is_symlink=result["isSymlink"],
            size=result["size"],
            modified=result["modifiedAtMs"] / 1000,
            created=result["createdAtMs"] / 1000 if result["createdAtMs"] else None,
        )

    async def iterdir(self, path: AnyPath) -> list[Entry]:
        """The names in a directory, in no order; without dangling links."""
        result = await self._call("fs/readDirectory", {"path": self.uri(path)})
        return [
            Entry(entry["fileName"], entry["isDirectory"], entry["isFile"]) for entry in result["entries"]
        ]

    async def mkdir(self, path: AnyPath, *, parents: bool = False) -> None:
        """Make a directory; with `parents` its parents too, and it may be there already."""
        await self._call("fs/createDirectory", {"path": self.uri(path), "recursive": parents})

    async def remove(self, path: AnyPath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link (never its target), or a directory: an empty one unless `recursive`."""
        params = {"path": self.uri(path), "recursive": recursive, "force": missing_ok}
        await self._call("fs/remove", params)

    async def copy(self, source: AnyPath, destination: AnyPath, *, recursive: bool = False) -> None:
        """Copy a file, or a link as a link; with `recursive` a directory, to a place that is free."""
        params = {
            "sourcePath": self.uri(source),
            "destinationPath": self.uri(destination),
            "recursive": recursive,
        }
        await self._call("fs/copy", params)

    async def _write_blocks(self, path: AnyPath, data: bytes) -> None:
        handle = {"handleId": str(next(self._handles))}
        await self._call("fs/open", handle | {"path": self.uri(path), "mode": "replace"})
        try:
            for offset in range(0, len(data), MAX_BLOCK_BYTES):
                block = b64encode(data[offset : offset + MAX_BLOCK_BYTES]).decode()
                await self._call("fs/writeBlock", {**handle, "offset": offset, "chunk": block})
        finally:
            await self._call("fs/close", handle)
