"""Files at the executor. `docs/protocol.md`, "File system"."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from typing import BinaryIO

from pybase64 import b64decode, b64encode

from execclient import arguments
from execclient.arguments import AnyPath
from execclient.connection.connection import Json
from execclient.errors import NotFound, ProtocolFault, WalkIncomplete
from execclient.results import Copied, Entry, Progress, Stat, WalkEntry
from execclient.session.session import Session
from execclient.transfer import Download, RemoteFile, Upload
from execprotocol.limits import (
    MAX_BLOCK_BYTES,
    MAX_WALK_DEPTH,
    MAX_WALK_DIRECTORIES,
    MAX_WALK_ENTRIES,
)
from execprotocol.path_uri import parse_path_uri, path_to_uri

WHOLE_FILE_BYTES = 32 << 20
"""Larger files are read and written block by block: a message holds 64 MiB, and base64 takes a third more."""

DIGEST_SECONDS = COPY_SECONDS = 3600.0
"""For what takes as long as the file is large and its disk slow; `call_timeout` is for all else."""

_SET_METADATA = "fs/setMetadata"

ShowProgress = Callable[[Progress], None]


class FileSystem:
    """Files at the executor, as `executor.fs`.

    Relative paths are relative to `executor.cwd`. Every method raises `NotFound` for a path that
    is not there, `Refused` for what may not be done, `SystemFailure` for other failures there.
    """

    def __init__(self, session: Session, cwd: str) -> None:
        self._session = session
        self._call = session.call
        self._cwd = cwd

    def uri(self, path: AnyPath) -> str:
        """The URI of a path, as it goes over the wire.

        Raises:
            TypeError, ValueError: it is no text, or empty; every method raises these.
        """
        return path_to_uri(os.path.join(self._cwd, arguments.path(path)))

    async def read_bytes(self, path: AnyPath) -> bytes:
        """The content of a file; one above 32 MiB takes several requests, and must not change meanwhile."""
        if (await self._call("fs/getMetadata", {"path": self.uri(path)}))["size"] > WHOLE_FILE_BYTES:
            return await self._read_blocks(path)
        result = await self._call("fs/readFile", {"path": self.uri(path)})
        return b64decode(result["dataBase64"], validate=True)

    async def write_bytes(self, path: AnyPath, data: bytes) -> None:
        """Make a file, or replace its content in place; its directory must exist.

        Above 32 MiB it takes several requests: a failure in between leaves a part.
        """
        data = arguments.only_data(data, "data", text="write_text writes text")
        if len(data) > WHOLE_FILE_BYTES:
            await self._write_blocks(path, data)
        else:
            await self._call("fs/writeFile", {"path": self.uri(path), "dataBase64": b64encode(data).decode()})

    async def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a text file; line ends as they are."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_text(self, path: AnyPath, text: str, encoding: str = "utf-8") -> None:
        """Make a text file, or replace its content in place; line ends as they are."""
        if not isinstance(text, str):
            raise TypeError(f"text is a str, not {type(text).__name__}; write_bytes writes bytes")
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
            mode=result.get("permissions"),
            modified_ns=result.get("modifiedAtNs"),
            accessed_ns=result.get("accessedAtNs"),
        )

    async def exists(self, path: AnyPath) -> bool:
        """Whether there is something, at the end of all links."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def is_dir(self, path: AnyPath) -> bool:
        """Whether it is a directory, or a link to one; False when there is nothing."""
        try:
            return (await self.stat(path)).is_dir
        except NotFound:
            return False

    async def is_file(self, path: AnyPath) -> bool:
        """Whether it is a regular file, or a link to one; False when there is nothing."""
        try:
            return (await self.stat(path)).is_file
        except NotFound:
            return False

    async def resolve(self, path: AnyPath) -> str:
        """The absolute path without any links, of what must exist."""
        result = await self._call("fs/canonicalize", {"path": self.uri(path)})
        return parse_path_uri(result["path"])

    async def iterdir(self, path: AnyPath) -> list[Entry]:
        """The names in a directory, in no order; without dangling links.

        Raises:
            ProtocolFault: the server gave what is no name but a path.
        """
        result = await self._call("fs/readDirectory", {"path": self.uri(path)})
        entries = [
            Entry(entry["fileName"], entry["isDirectory"], entry["isFile"]) for entry in result["entries"]
        ]
        for entry in entries:
            # Who joins them with a path of this machine must not be led out of it.
            if not _is_name(entry.name):
                raise ProtocolFault(f"the server names {entry.name!r} in a directory, which is no name there")
        return entries

    async def walk(
        self,
        path: AnyPath,
        *,
        max_depth: int = MAX_WALK_DEPTH,
        follow_links: bool = False,
        hidden: bool = True,
    ) -> list[WalkEntry]:
        """All files and directories below a directory, level by level, each in the order of the names.

        Links to directories are listed, and links to files; dangling ones, sockets and devices are not.

        Args:
            path: where to begin; is not listed itself.
            max_depth: 0 for the directory's own names only; at most 64.
            follow_links: look into directories that links lead to, each once.
            hidden: look into directories whose names begin with a dot.

        Raises:
            WalkIncomplete: there are more than 10,000 directories or 50,000 names; it has the first.
        """
        options = {
            "maxDepth": arguments.count(max_depth, "max_depth"),
            "maxDirectories": MAX_WALK_DIRECTORIES,
            "maxEntries": MAX_WALK_ENTRIES,
            "followDirectorySymlinks": follow_links,
            "pruneHiddenDirectories": not hidden,
        }
        result = await self._call("fs/walk", {"path": self.uri(path), "options": options})
        unread = {error["path"]: error["message"] for error in result["errors"]}
        entries = [
            WalkEntry(parse_path_uri(entry["path"]), entry["kind"] == "directory", unread.get(entry["path"]))
            for entry in result["entries"]
        ]
        if result["truncated"]:
            raise WalkIncomplete(os.fspath(path), entries)
        return entries

    async def mkdir(self, path: AnyPath, *, parents: bool = False, mode: int | None = None) -> None:
        """Make a directory; with `parents` its parents too, and it may be there already.

        Args:
            path: where.
            parents: see above.
            mode: the permission bits of the directory itself, from which the umask there takes some away;
                None for 0o777.

        Raises:
            Unsupported: `mode` is given, and the server does not take it.
        """
        params: dict[str, Json] = {"path": self.uri(path), "recursive": parents}
        if mode is not None:
            self._session.require("fs/createDirectory.permissions")
            params["permissions"] = _mode(mode)
        await self._call("fs/createDirectory", params)

    async def chmod(self, path: AnyPath, mode: int) -> None:
        """Set the permission bits of a file or a directory; links are followed.

        Raises:
            Unsupported: the server does not serve `fs/setMetadata`.
        """
        self._session.require(_SET_METADATA)
        await self._call(_SET_METADATA, {"path": self.uri(path), "permissions": _mode(mode)})

    async def utime(self, path: AnyPath, *, ns: tuple[int, int]) -> None:
        """Set the times of a file or a directory; links are followed.

        Args:
            path: of what.
            ns: of the last access and the last change, in nanoseconds since 1970, as for `os.utime`.

        Raises:
            Unsupported: the server does not serve `fs/setMetadata`.
        """
        self._session.require(_SET_METADATA)
        params = {"path": self.uri(path), "accessedAtNs": ns[0], "modifiedAtNs": ns[1]}
        await self._call(_SET_METADATA, params)

    async def remove(self, path: AnyPath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link (never its target), or a directory: an empty one unless `recursive`."""
        params = {"path": self.uri(path), "recursive": recursive, "force": missing_ok}
        await self._call("fs/remove", params)

    async def copy(
        self,
        source: AnyPath,
        destination: AnyPath,
        *,
        recursive: bool = False,
        keep_mode: bool = False,
        preserve_times: bool = False,
    ) -> Copied:
        """Copy a file, or a link as a link; with `recursive` a directory, to a place that is free.

        The copy appears whole or not at all, with the permission bits of the source. It may take an hour,
        whatever the `call_timeout`.

        Args:
            source: what.
            destination: the full path of the copy; a link to a file is followed.
            recursive: whether it may be a directory.
            keep_mode: a file that is there keeps its permission bits, and new ones have no set-id bits.
            preserve_times: copies get the times of their source.

        Raises:
            Unsupported: the server does not take `keep_mode` or `preserve_times`.
        """
        params: dict[str, Json] = {
            "sourcePath": self.uri(source),
            "destinationPath": self.uri(destination),
            "recursive": recursive,
        }
        for member, wanted in (("keepMode", keep_mode), ("preserveTimes", preserve_times)):
            if wanted:
                self._session.require(f"fs/copy.{member}")
                params[member] = True
        result = await self._call("fs/copy", params, limit=max(COPY_SECONDS, self._session.call_timeout))
        return Copied(None, bool(result.get("inPlace")))

    async def rename(self, source: AnyPath, destination: AnyPath, *, overwrite: bool = True) -> None:
        """Rename a file, a link or a directory, in one step; a link itself, never its target.

        Args:
            source: what.
            destination: the new path, of the same file system; never just a directory to put it in.
            overwrite: replace a file that is there; otherwise that is a `SystemFailure`.

        Raises:
            Unsupported: the server does not serve `fs/rename`.
        """
        self._session.require("fs/rename")
        params = {
            "sourcePath": self.uri(source),
            "destinationPath": self.uri(destination),
            "overwrite": overwrite,
        }
        await self._call("fs/rename", params)

    async def digest(self, path: AnyPath, size: int | None = None) -> str:
        """The SHA-256 of a file, as 64 hexadecimal digits.

        Computed where the file is; with a server that cannot do that, the file is read.

        Args:
            path: a regular file.
            size: of how many bytes at its beginning, for a file that grows; None for all.
        """
        params: dict[str, Json] = {"path": self.uri(path)}
        if "fs/digest" in self._session.capabilities:
            if size is not None and "fs/digest.size" in self._session.capabilities:
                params["size"] = size
            result = await self._call("fs/digest", params, limit=DIGEST_SECONDS)
            if size is None or result["size"] <= size:
                return str(result["sha256"])
        return await RemoteFile(self._session, self.uri(path)).digest(size)

    async def download(
        self,
        path: AnyPath,
        local: AnyPath | BinaryIO,
        *,
        progress: ShowProgress | None = None,
        verify: bool = True,
        preserve_times: bool = False,
    ) -> Copied:
        """Copy a file from the executor to this machine, in blocks: memory does not grow with the file.

        The local file appears, or is replaced, when all of it is there; one that cannot be replaced, such as
        a mount point, is written in place then. A file that is replaced passes on its mode; a new one has the
        permission bits of its source, without the set-id and sticky bits. A lost connection is made up for,
        unless the file has changed meanwhile.

        A file that grows is copied as large as it was when it was opened. One that tells no size, as those of
        /proc, is read to its end, and not verified. What is no file, such as a FIFO, is refused.

        Args:
            path: a regular file at the executor.
            local: a path here, or a file that is open for writing in binary, which is written to as
                the blocks come.
            progress: called after each block.
            verify: compare the SHA-256 of what came with that of the file at the executor.
            preserve_times: the local file gets the times of the source, and its permission bits also where it
                replaces another one, as with `cp -p`.

        Raises:
            TransferFailed: the file changed or shrank meanwhile, or what came is not what is there.
            Unsupported: `preserve_times`, and the server does not tell times.
            OSError: the local file cannot be written.
        """
        if preserve_times:
            self._session.require(_SET_METADATA)  # of the same version as what tells them
        return await Download(self._session, self.uri(path), os.fspath(path), progress).run(
            local, self.digest if verify else None, preserve_times=preserve_times
        )

    async def upload(
        self,
        local: AnyPath | BinaryIO,
        path: AnyPath,
        *,
        progress: ShowProgress | None = None,
        verify: bool = True,
        preserve_times: bool = False,
    ) -> Copied:
        """Copy a file from this machine to the executor, in blocks: memory does not grow with the file.

        It is written beside its place, and renamed into it when all of it is there; a file that cannot be
        replaced, such as a mount point, is written in place then. A file that is replaced passes on its mode;
        a new one has the permission bits of its source, without the set-id and sticky bits, or those of a new
        file where the source has none. A link stays, and what it leads to is replaced. After a failure
        everything is as it was.

        A file that grows is copied as large as it was when it was opened. A FIFO is read to its end; a device
        is refused.

        Args:
            local: a path here, or a file that is open for reading in binary, which is read to its end.
            path: a path at the executor; its directory must exist.
            progress: called after each block.
            verify: compare the SHA-256 of what was sent with that of what is there, before it is renamed.
            preserve_times: the file gets the times of the local one, and its permission bits also where it
                replaces another one, as with `cp -p`.

        Raises:
            TransferFailed: what arrived is not what was sent, or the local file shrank meanwhile.
            OutcomeUnknown: the connection was lost; what is written is not written twice. The place
                is as it was, unless the last step was under way.
            Unsupported: the server does not serve `fs/rename`, or with `preserve_times` `fs/install`.
            OSError: the local file cannot be read.
        """
        self._session.require("fs/rename", *(["fs/install"] if preserve_times else []))
        return await Upload(self, self._session, progress).run(
            local, path, verify=verify, preserve_times=preserve_times
        )

    async def _read_blocks(self, path: AnyPath) -> bytes:
        async with RemoteFile(self._session, self.uri(path)) as file, aclosing(file.blocks()) as blocks:
            return b"".join([block async for block in blocks])

    async def _write_blocks(self, path: AnyPath, data: bytes) -> None:
        async with RemoteFile(self._session, self.uri(path), writing=True) as file:
            for offset in range(0, len(data), MAX_BLOCK_BYTES):
                await file.write(offset, data[offset : offset + MAX_BLOCK_BYTES])


def _is_name(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def _mode(value: int) -> int:
    mode = arguments.count(value, "mode")
    if mode is None or mode > 0o7777:
        raise ValueError(f"mode is at most 0o7777, not {value:#o}")
    return mode
