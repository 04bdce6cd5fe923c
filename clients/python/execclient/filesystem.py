"""Files at the executor. `docs/protocol.md`, "File system"."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, BinaryIO

from pybase64 import b64decode

from execclient import arguments
from execclient.arguments import AnyPath, Sandbox
from execclient.connection.connection import Json
from execclient.errors import NotFound, ProtocolFault, WalkIncomplete
from execclient.file_session import ConfinedSession, FileSession
from execclient.results import Copied, Entry, Progress, Stat, TreeCopied, WalkEntry
from execprotocol.limits import (
    MAX_BLOCK_BYTES,
    MAX_WALK_DEPTH,
    MAX_WALK_DIRECTORIES,
    MAX_WALK_ENTRIES,
)
from execprotocol.path_uri import parse_path_uri, path_to_uri

if TYPE_CHECKING:
    from execclient.transfer import RemoteFile
    from execclient.trees import Ignore, ShowTreeProgress

WHOLE_FILE_BYTES = 32 << 20
"""Larger files are read and written in blocks: a message holds 64 MiB, and base64 adds a third."""

DIGEST_SECONDS = COPY_SECONDS = 3600.0
"""For calls whose duration depends on the size of a file and its disk; other calls have `call_timeout`."""

_SET_METADATA = "fs/setMetadata"

ShowProgress = Callable[[Progress], None]


class FileRequests:
    """The methods of `FileSystem` that are a request or two each."""

    def __init__(self, session: FileSession, cwd: str, sandbox: Sandbox | None = None) -> None:
        self._session = session
        self._call = session.call
        self._cwd = cwd
        self._sandbox = sandbox
        """That of `session`; None for none."""

    def __repr__(self) -> str:
        sandbox = "" if self._sandbox is None else f" sandbox={self._sandbox!r}"
        return f"<{type(self).__name__} cwd={self._cwd!r}{sandbox}>"

    def uri(self, path: AnyPath) -> str:
        """The URI of a path, for the wire.

        Raises:
            TypeError, ValueError: the path is not text, or empty; every method raises these.
        """
        return path_to_uri(os.path.join(self._cwd, arguments.path(path)))

    async def read_bytes(self, path: AnyPath, start: int | None = None, stop: int | None = None) -> bytes:
        """The content of a file, or a part of it. Above 32 MiB it is read in blocks, and must not change
        meanwhile.

        Args:
            path: a regular file.
            start: the offset of the first byte. A negative offset counts from the end, as in a slice.
            stop: the offset after the last byte, likewise. Only the part from `start` to `stop` is read.

        Raises:
            TransferFailed: the file shrank meanwhile, or changed while the connection was lost.
        """
        if start is not None or stop is not None:
            return await self._read_part(path, slice(start, stop))
        if (await self._call("fs/getMetadata", {"path": self.uri(path)}))["size"] > WHOLE_FILE_BYTES:
            return await self._read_blocks(path)
        result = await self._call("fs/readFile", {"path": self.uri(path)})
        return b64decode(result["dataBase64"], validate=True)

    async def write_bytes(self, path: AnyPath, data: bytes, *, parents: bool = False) -> None:
        """Create a file, or replace its content in place.

        Above 32 MiB this takes several requests: a failure in between leaves a partial file.

        Args:
            path: the file.
            data: its content.
            parents: create missing directories above the file; otherwise a missing one is a `NotFound`.
        """
        data = arguments.only_data(data, "data", text="write_text writes text")
        try:
            await self._write(path, data)
        except NotFound:
            if not parents:
                raise
            await self.mkdir(os.path.dirname(parse_path_uri(self.uri(path))), parents=True)
            await self._write(path, data)

    async def _write(self, path: AnyPath, data: bytes) -> None:
        if len(data) > WHOLE_FILE_BYTES:
            await self._write_blocks(path, data)
        else:
            await self._call("fs/writeFile", {"path": self.uri(path), "dataBase64": data})

    async def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a text file, with unchanged line ends."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_text(
        self, path: AnyPath, text: str, encoding: str = "utf-8", *, parents: bool = False
    ) -> None:
        """As `write_bytes`, for a text with unchanged line ends."""
        if not isinstance(text, str):
            raise TypeError(f"text is a str, not {type(text).__name__}; write_bytes writes bytes")
        await self.write_bytes(path, text.encode(encoding), parents=parents)

    async def stat(self, path: AnyPath) -> Stat:
        """The status of a path."""
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
        """Whether a path exists. Links are followed."""
        try:
            await self.stat(path)
        except NotFound:
            return False
        return True

    async def is_dir(self, path: AnyPath) -> bool:
        """Whether a path is a directory, or a link to one; False if it does not exist."""
        try:
            return (await self.stat(path)).is_dir
        except NotFound:
            return False

    async def is_file(self, path: AnyPath) -> bool:
        """Whether a path is a regular file, or a link to one; False if it does not exist."""
        try:
            return (await self.stat(path)).is_file
        except NotFound:
            return False

    async def resolve(self, path: AnyPath) -> str:
        """The absolute path without links. The path must exist."""
        result = await self._call("fs/canonicalize", {"path": self.uri(path)})
        return parse_path_uri(result["path"])

    async def iterdir(self, path: AnyPath) -> list[Entry]:
        """The names in a directory, in arbitrary order, without dangling links.

        Raises:
            ProtocolFault: the server sent a name that is a path.
        """
        result = await self._call("fs/readDirectory", {"path": self.uri(path)})
        entries = [
            Entry(entry["fileName"], entry["isDirectory"], entry["isFile"]) for entry in result["entries"]
        ]
        for entry in entries:
            # A caller may join the name with a local path, which must not lead out of that directory.
            if not _is_name(entry.name):
                raise ProtocolFault(
                    f"the server sent the name {entry.name!r} in a directory, which is not a valid name"
                )
        return entries

    async def scandir(self, path: AnyPath) -> dict[str, Stat]:
        """The names in a directory, each with its status, in arbitrary order, without dangling links.

        This takes two requests for up to 256 names. `Stat.created` is None.

        Raises:
            ProtocolFault: the server sent a name that is a path.
        """
        from execclient.trees import described  # late, as in `_remote_file`

        folder = arguments.path(path)
        names = [entry.name for entry in await self.iterdir(folder)]
        paths = {name: os.path.join(folder, name) for name in names}
        return await described(self, self._session, paths)

    async def walk(
        self,
        path: AnyPath,
        *,
        max_depth: int = MAX_WALK_DEPTH,
        follow_links: bool = False,
        hidden: bool = True,
    ) -> list[WalkEntry]:
        """All files and directories below a directory, level by level, each level sorted by name.

        Links to directories and files are listed; dangling links, sockets and devices are not.

        Args:
            path: the directory; it is not listed itself.
            max_depth: 0 for the directory's own names only; at most 64.
            follow_links: read the directories behind links, each once.
            hidden: read directories whose names begin with a dot.

        Raises:
            WalkIncomplete: there are more than 10,000 directories or 50,000 names; the error has the first
                ones.
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
        """Create a directory.

        Args:
            path: the new directory.
            parents: create missing parents, too, and accept an existing directory.
            mode: the permission bits of the directory itself, less the daemon's umask; 0o777 by default.

        Raises:
            Unsupported: the server does not serve `mode`.
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
            path: the file or directory.
            ns: the times of the last access and the last change, in nanoseconds since 1970, as for
                `os.utime`.

        Raises:
            Unsupported: the server does not serve `fs/setMetadata`.
        """
        self._session.require(_SET_METADATA)
        params = {"path": self.uri(path), "accessedAtNs": ns[0], "modifiedAtNs": ns[1]}
        await self._call(_SET_METADATA, params)

    async def remove(self, path: AnyPath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Remove a file, a link (not its target), or a directory, which must be empty unless `recursive`."""
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
        """Copy a file, or a link as a link; with `recursive`, a directory to a path that does not exist.

        The copy appears whole or not at all, with the mode of the source. Its limit is an hour.

        Args:
            source: the file, link or directory.
            destination: the full path of the copy; a link to a file is followed.
            recursive: whether the source may be a directory.
            keep_mode: an existing file keeps its permission bits, and new files have no set-id bits.
            preserve_times: copies get the times of their source.

        Raises:
            Unsupported: the server does not serve `keep_mode` or `preserve_times`.
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
        """Rename a file, a link (not its target) or a directory, atomically.

        Args:
            source: the file, link or directory.
            destination: the full new path, in the same file system.
            overwrite: replace an existing file; otherwise that is a `SystemFailure`.

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

    def _remote_file(self, path: AnyPath, *, writing: bool = False) -> RemoteFile:
        from execclient.transfer import RemoteFile  # late: 6 ms, and most programs copy no file

        return RemoteFile(self._session, self.uri(path), writing=writing)

    async def _read_blocks(self, path: AnyPath) -> bytes:
        async with self._remote_file(path) as file, aclosing(file.blocks()) as blocks:
            return b"".join([block async for block in blocks])

    async def _read_part(self, path: AnyPath, part: slice) -> bytes:
        async with self._remote_file(path) as file:
            if not file.size:  # it is empty, or does not report its size, as those of /proc
                return (await self.read_bytes(path))[part]
            start, stop, _ = part.indices(file.size)
            async with aclosing(file.blocks(start, stop)) as blocks:
                return b"".join([block async for block in blocks])

    async def _write_blocks(self, path: AnyPath, data: bytes) -> None:
        async with self._remote_file(path, writing=True) as file:
            for offset in range(0, len(data), MAX_BLOCK_BYTES):
                await file.write(offset, data[offset : offset + MAX_BLOCK_BYTES])


class FileSystem(FileRequests):
    """Files at the executor, as `executor.fs`.

    Relative paths are relative to `executor.cwd`. Every method raises `NotFound` for a path that does not
    exist, `Refused` if permission is denied, `SystemFailure` for other failures at the executor.
    """

    def confined(self, sandbox: Sandbox, *, workspace: AnyPath | None = None) -> FileSystem:
        """The same files within a sandbox, as a command has one by `run(…, sandbox=…)`.

        The daemon enforces the policy in every method of the result. A change that it does not allow is a
        `SystemFailure` with the errno EROFS; reading a denied file is a `PermissionError`. Relative paths
        begin at `executor.cwd`, whatever the workspace is. No request is sent here.

        Directly below a writable folder `.git`, `.agents`, `.codex` and `.aws` are read-only, and a missing
        one is listed as an empty folder (`docs/protocol.md`, C18); with `ReadOnly()` folders are listed as
        they are. To replace a file in a folder that cannot be written, `upload` also needs to write to the
        daemon's temporary folder.

        Args:
            sandbox: a policy, `ReadOnly()` or `WorkspaceWrite(…)`; or the form of the wire
                (`docs/protocol.md`, "Sandbox context"). `DangerFullAccess()` sets no limits.
            workspace: the folder of the policy's workspace, where relative patterns of `deny_read` begin;
                `executor.cwd` by default.

        Raises:
            TypeError: `sandbox` is neither.
            ValueError: the workspace is `/`, and the policy allows to write to it; or these files are
                confined already.
        """
        if self._sandbox is not None:
            raise ValueError("these files have a sandbox already: pass another one to executor.fs.confined")
        if sandbox is None:
            raise TypeError("sandbox is None; for no limits, use executor.fs itself or DangerFullAccess()")
        folder = "" if workspace is None else arguments.path(workspace, "workspace")
        context = arguments.sandbox(sandbox, os.path.join(self._cwd, folder), "workspace")
        if context is None:
            return FileSystem(self._session, self._cwd)
        return FileSystem(ConfinedSession(self._session, context), self._cwd, sandbox)

    async def digest(self, path: AnyPath, size: int | None = None) -> str:
        """The SHA-256 of a file, as 64 hexadecimal digits.

        The daemon computes the digest; if the server cannot do that, the client reads the file.

        Args:
            path: a regular file.
            size: the number of bytes at its beginning, for a file that grows; None for all.
        """
        params: dict[str, Json] = {"path": self.uri(path)}
        if "fs/digest" in self._session.capabilities:
            if size is not None and "fs/digest.size" in self._session.capabilities:
                params["size"] = size
            result = await self._call("fs/digest", params, limit=DIGEST_SECONDS)
            if size is None or result["size"] <= size:
                return str(result["sha256"])
        return await self._remote_file(path).digest(size)

    async def download(
        self,
        path: AnyPath,
        local: AnyPath | BinaryIO,
        *,
        progress: ShowProgress | None = None,
        verify: bool = True,
        preserve_times: bool = False,
    ) -> Copied:
        """Copy a file from the executor to this machine, in blocks: memory use does not grow with the file.

        The local file appears, or is replaced, after its whole content has arrived; a file that cannot be
        replaced, such as a mount point, is then written in place. A replaced file keeps its mode; a new one
        gets the permission bits of its source, without the set-id and sticky bits. After a lost connection
        the copy continues, unless the file has changed meanwhile. If the call is cancelled, a regular file
        is as it was, or at the very end the whole copy.

        A growing file is copied up to its size at the start. A file that reports no size, such as those of
        /proc, is read to its end, and not verified. Other files, such as a FIFO, are refused.

        Args:
            path: a regular file at the executor.
            local: a local path, or a binary file that is open for writing; it is written as blocks arrive.
            progress: called after each block.
            verify: compare the SHA-256 of the received data with that of the file at the executor.
            preserve_times: keep the times of the source, and its mode even if a file is replaced, as `cp -p`.

        Raises:
            TransferFailed: the file changed or shrank meanwhile, or the received data differs.
            Unsupported: the server does not report times, for `preserve_times`.
            OSError: the local file cannot be written.
        """
        if preserve_times:
            self._session.require(_SET_METADATA)  # the same version of the server reports times
        from execclient.transfer import Download  # late, as in `_remote_file`

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
        overwrite: bool = True,
    ) -> Copied:
        """Copy a file from this machine to the executor, in blocks: memory use does not grow with the file.

        The file is written next to its target, and renamed when it is complete; a target that cannot be
        replaced, such as a mount point, is then written in place. A replaced file keeps its mode; a new one
        gets the permission bits of its source, without the set-id and sticky bits, or those of a new file if
        the source has none. If the target is a link, the file behind it is replaced. After a failure the
        target is unchanged.

        A growing file is copied up to its size at the start. A FIFO is read to its end; a device is refused.

        Args:
            local: a local path, or a binary file that is open for reading, which is read to its end.
            path: a path at the executor; its directory must exist.
            progress: called after each block.
            verify: compare the SHA-256 of the sent data with that of the new file, before it is renamed.
            preserve_times: keep the times of the source, and its mode even if a file is replaced, as `cp -p`.
            overwrite: replace an existing file; otherwise that, also a dangling link, is a `FileExistsError`,
                and of several uploads at the same time only one succeeds.

        Raises:
            TransferFailed: the new file differs from the sent data, or the local file shrank meanwhile.
            FileExistsError: there is such a file, and `overwrite` is False.
            OutcomeUnknown: the connection was lost; no block is written twice. The target is unchanged,
                unless the last step was under way.
            Unsupported: the server does not serve `fs/rename`, or `fs/install` for `preserve_times`.
            OSError: the local file cannot be read.
        """
        self._session.require("fs/rename", *(["fs/install"] if preserve_times else []))
        from execclient.transfer import Upload  # late, as in `_remote_file`

        return await Upload(self, self._session, progress).run(
            local, path, verify=verify, preserve_times=preserve_times, overwrite=overwrite
        )

    async def download_tree(
        self,
        path: AnyPath,
        local: AnyPath,
        *,
        ignore: Iterable[str] | Ignore | None = None,
        preserve_times: bool = False,
        progress: ShowTreeProgress | None = None,
    ) -> TreeCopied:
        """Copy a directory with everything below it from the executor to this machine.

        Small files arrive in batches, up to 32 larger ones at the same time. Each file is copied as by
        `download`: it appears with its whole, compared content. Files that exist are replaced, and others
        stay. What cannot be copied is reported in the result: single files, links to directories, devices,
        sockets and FIFOs. A link to a file is copied as that file. Dangling links are ignored.

        After a lost connection the copy continues. New directories get the permission bits of their source.

        Args:
            path: a directory at the executor.
            local: the directory of the copy itself, not the one above it; it is created with its parents.
            ignore: what to leave out: patterns as in a .gitignore file at the top of the tree, which need the
                extra `execclient[ignore]`, or a function that is called with each path, relative to the top,
                and whether it is a directory. What is below an ignored directory is not looked at.
            preserve_times: keep times, and set modes of existing files and directories, too, as `cp -p`.
            progress: called after each batch and each block.

        Raises:
            TransferFailed: `path` is no directory, or a path is too long for this machine.
            Unsupported: the server does not report times, for `preserve_times`.
            OSError: a local directory cannot be created, or the disk is full.
            ImportError: patterns need `pathspec`, which is not installed.
            ValueError: a pattern is invalid.
        """
        if preserve_times:
            self._session.require(_SET_METADATA)
        from execclient.tree_download import TreeDownload  # late, as in `_remote_file`
        from execclient.trees import ignore_function

        transfer = TreeDownload(
            self, self._session, ignore_function(ignore), preserve_times=preserve_times, progress=progress
        )
        return await transfer.run(arguments.path(path), arguments.path(local, "local"))

    async def upload_tree(
        self,
        local: AnyPath,
        path: AnyPath,
        *,
        ignore: Iterable[str] | Ignore | None = None,
        preserve_times: bool = False,
        progress: ShowTreeProgress | None = None,
    ) -> TreeCopied:
        """Copy a directory with everything below it from this machine to the executor.

        The rules are those of `download_tree`. Each file is copied as by `upload`.

        Args:
            local: a directory of this machine.
            path: the directory of the copy itself at the executor, not the one above it; it is created with
                its parents.
            ignore: as for `download_tree`.
            preserve_times: keep times, and set modes of existing files and directories, too, as `cp -p`.
            progress: called after each batch and each block.

        Raises:
            OSError: the local directory cannot be listed.
            SystemFailure: a directory cannot be created, or the executor's disk is full.
            Unsupported: the server does not serve `fs/rename`, or `fs/install` for `preserve_times`.
            ImportError: patterns need `pathspec`, which is not installed.
            ValueError: a pattern is invalid.
        """
        self._session.require("fs/rename", *(["fs/install"] if preserve_times else []))
        from execclient.tree_upload import TreeUpload  # late, as in `_remote_file`
        from execclient.trees import ignore_function

        transfer = TreeUpload(
            self, self._session, ignore_function(ignore), preserve_times=preserve_times, progress=progress
        )
        return await transfer.run(arguments.path(local, "local"), arguments.path(path))


def _is_name(text: object) -> bool:
    if not isinstance(text, str):
        return False
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
