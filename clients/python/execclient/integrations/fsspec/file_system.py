"""The files of a daemon for fsspec: `fsspec.filesystem("execserver")`, `fsspec.open("execserver:///PATH")`.

Every operation is repeated after a lost connection, so each is made of requests that may be made twice, or
whose outcome can be found out. A file appears, or is replaced, with its whole content: `open(…, "wb")` keeps
what is written on this machine until the file is closed. `docs/how-to/fsspec.md`.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import posixpath
import re
import stat
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from glob import has_magic
from typing import Any, BinaryIO

from fsspec.asyn import AsyncFileSystem, sync_teardown, sync_wrapper
from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.exceptions import FSTimeoutError
from fsspec.utils import stringify_path

from execclient import (
    Executor,
    FileSystem,
    NotFound,
    Progress,
    Refused,
    Stat,
    SystemFailure,
    TransferFailed,
    WorkspaceWrite,
    connect,
)
from execclient.arguments import Sandbox
from execclient.govern.sandbox import sandbox_policy
from execclient.integrations.fsspec.open_files import (
    AsyncExecServerFile,
    Contents,
    ExecServerFile,
    check_readable,
)
from execclient.integrations.fsspec.sessions import Sessions
from execclient.local_files import part_path

CLOSE_SECONDS = 5.0
"""The longest wait for the end of a session when its file system is collected."""

_FSSPEC_OPTIONS = frozenset(
    {"asynchronous", "batch_size", "listings_expiry_time", "loop", "max_paths", "use_listings_cache"}
)
"""Storage options that every file system of fsspec takes. Listings are not cached here."""

_PREFIX = "execserver://"
_HOST = re.compile(r"(?P<host>[^/]+:\d+)(?P<path>/.*|)", re.DOTALL)

Info = dict[str, Any]


class Paths(AsyncFileSystem):
    """How a file system of the protocol takes URLs apart.

    A path without a slash in front is relative to the daemon's working directory, which is not known before
    a connection. So it stays relative, and the empty path is that directory.
    """

    protocol = "execserver"
    root_marker = ""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return _path_in(str(stringify_path(path)))

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path. It does not have the daemon's address."""
        path = self._strip_protocol(name)
        return f"{_PREFIX}./{path}" if _HOST.fullmatch(path) else f"{_PREFIX}{path}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        found = _HOST.fullmatch(path.removeprefix(_PREFIX)) if path.startswith(_PREFIX) else None
        return {"daemon_url": f"ws://{found['host']}"} if found else {}

    @classmethod
    def _parent(cls, path: str) -> str:
        return posixpath.dirname(str(cls._strip_protocol(path)))


class ExecServerFileSystem(Paths):
    """The files of a daemon: `execserver:///PATH`, or `execserver://HOST:PORT/PATH` at `ws://HOST:PORT`.

    A path is absolute, or relative to the daemon's working directory.

    Args:
        daemon_url: the `url` of `execclient.connect`; by default `EXECSERVER_URL`, else the default socket.
            It is not called `url`, because `fsspec.core.url_to_fs` has another parameter of that name.
        sandbox: what may be read and changed: a policy; its name (`read-only`), or a mapping with the name as
            `type`, as in a configuration; or the form of the wire. By default only the workspace and the
            folders for temporary files can be changed. None for no limits.
        workspace: the workspace of the policy; by default the daemon's working directory.
        auto_mkdir: create missing parents of a file that is written, copied or moved.
        connect_options: other arguments of `execclient.connect`, such as `token_file`.
        storage_options: of fsspec: `asynchronous`, `loop`, `batch_size`, `skip_instance_cache`.

    Raises:
        ValueError: the sandbox has an unknown name or member.
        TypeError: a storage option is unknown.
    """

    def __init__(
        self,
        daemon_url: str | None = None,
        *,
        sandbox: Sandbox | str | None = WorkspaceWrite(),  # noqa: B008 - it is frozen
        workspace: str | None = None,
        auto_mkdir: bool = True,
        connect_options: Mapping[str, Any] | None = None,
        **storage_options: Any,
    ) -> None:
        if unknown := storage_options.keys() - _FSSPEC_OPTIONS:
            raise TypeError(f"{min(unknown)} is no storage option of execserver (docs/how-to/fsspec.md)")
        super().__init__(**storage_options)
        self.daemon_url = daemon_url
        self.sandbox = _policy(sandbox)
        self.workspace = workspace
        self.auto_mkdir = auto_mkdir
        # They must not refer to this object, which would then never be collected.
        confine = partial(Executor.files, sandbox=self.sandbox, workspace=workspace)
        self._sessions = Sessions(partial(connect, daemon_url, **(connect_options or {})), confine)
        if not self.asynchronous:
            weakref.finalize(self, _close_at_end, os.getpid(), self._loop, self._sessions)

    async def _close(self) -> None:
        """End the session with the daemon. A later operation opens another one."""
        await self._sessions.close()

    close = sync_wrapper(_close)

    async def _into(self, path: str, call: Callable[[FileSystem], Awaitable[object]]) -> None:
        """Make a call that creates `path`, with its parents if they are missing."""
        try:
            await self._sessions.call(call)
        except NotFound:
            if not self.auto_mkdir:
                raise
            await self._makedirs(self._parent(path), exist_ok=True)
            await self._sessions.call(call)

    # -- looking

    async def _info(self, path: str, **kwargs: Any) -> Info:
        path = self._strip_protocol(path)
        return _info_of(path, await self._sessions.call(lambda files: files.stat(path or ".")))

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Info] | list[str]:
        path = self._strip_protocol(path)
        try:
            if not detail:
                entries = await self._sessions.call(lambda files: files.iterdir(path or "."))
                return sorted(posixpath.join(path, entry.name) for entry in entries)
            found = await self._sessions.call(lambda files: files.scandir(path or "."))
        except NotADirectoryError:
            return [await self._info(path)] if detail else [path]
        infos = [_info_of(posixpath.join(path, name), found[name]) for name in sorted(found)]
        for info in infos:
            if info["islink"] and info["type"] == "directory":
                info["type"] = "other"  # as `LocalFileSystem`: walking a link may not come to an end
        return infos

    async def _found(self, path: str) -> Info | None:
        """As `_info`; None if there is no such path."""
        try:
            return await self._info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        return await self._found(path) is not None

    async def _isdir(self, path: str) -> bool:
        found = await self._found(path)
        return found is not None and found["type"] == "directory"

    async def _isfile(self, path: str) -> bool:
        found = await self._found(path)
        return found is not None and found["type"] == "file"

    async def _created(self, path: str) -> datetime:
        found = await self._sessions.call(lambda files: files.stat(self._strip_protocol(path) or "."))
        if found.created is None:
            raise NotImplementedError("the daemon's file system does not record when a file was created")
        return datetime.fromtimestamp(found.created, UTC)

    async def _modified(self, path: str) -> datetime:
        return datetime.fromtimestamp((await self._info(path))["mtime"], UTC)

    created = sync_wrapper(_created)
    modified = sync_wrapper(_modified)

    # -- contents

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        try:
            return await self._sessions.call(lambda files: files.read_bytes(path, start, end))
        except Refused as error:
            raise await self._explained(error, path) from error

    async def _explained(self, error: Exception, path: str) -> Exception:
        """The error of Python if a directory is used as a file; otherwise the error itself."""
        if isinstance(error, OSError) or not await self._isdir(path):
            return error
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    async def cat_unchanged(self, opened: Info, start: int, end: int) -> bytes:
        """A part of an open file; raises an OSError unless the file is as `info` described it."""
        data = await self._cat_file(opened["name"], start, end)
        if await self._info(opened["name"]) != opened:
            message = "the file changed since it was opened: open it again"
            raise OSError(errno.ESTALE, message, opened["name"])
        return data

    async def _store(
        self,
        source: str | BinaryIO,
        path: str,
        mode: str = "overwrite",
        callback: Callback = DEFAULT_CALLBACK,
    ) -> None:
        """Make or replace a file with its whole content."""
        if mode not in ("overwrite", "create"):
            raise ValueError(f"mode is 'overwrite' or 'create', not {mode!r}")
        path = self._strip_protocol(path)

        async def upload(files: FileSystem) -> None:
            if not isinstance(source, str):
                source.seek(0)
            await files.upload(source, path, overwrite=mode == "overwrite", progress=partial(_show, callback))

        try:
            await self._into(path, upload)
        except (Refused, TransferFailed) as error:
            raise await self._explained(error, path) from error

    def contents(self, path: str, mode: str) -> Contents:
        """For an open file: what is written to it, in the mode `wb`, `xb` or `ab`."""

        async def fetch(local: BinaryIO) -> None:
            async def download(files: FileSystem) -> None:
                local.seek(0)
                local.truncate()
                await files.download(path, local)

            if await self._exists(path):
                await self._sessions.call(download)

        async def store(local: BinaryIO) -> None:
            await self._store(local, path, "create" if mode == "xb" else "overwrite")

        return Contents(fetch if mode == "ab" else None, store)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        await self._store(io.BytesIO(value), path, mode)

    async def _touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not await self._exists(path):
            await self._pipe_file(path, b"")
        else:
            now = time.time_ns()
            await self._sessions.call(lambda files: files.utime(path, ns=(now, now)))

    touch = sync_wrapper(_touch)

    async def _put_file(
        self,
        lpath: str,
        rpath: str,
        mode: str = "overwrite",
        callback: Callback = DEFAULT_CALLBACK,
        **kwargs: Any,
    ) -> None:
        size = await asyncio.to_thread(_local_size, lpath)
        if size is None:
            await self._makedirs(rpath, exist_ok=True)
        else:
            callback.set_size(size)
            await self._store(os.fspath(lpath), rpath, mode, callback)

    async def _get_file(
        self, rpath: str, lpath: str, callback: Callback = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        info = await self._info(rpath)
        if info["type"] == "directory":
            await asyncio.to_thread(os.makedirs, lpath, exist_ok=True)
            return
        await asyncio.to_thread(os.makedirs, os.path.dirname(lpath) or ".", exist_ok=True)
        callback.set_size(info["size"])
        await self._sessions.call(
            lambda files: files.download(info["name"], lpath, progress=partial(_show, callback))
        )

    def _open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> ExecServerFile:
        return ExecServerFile(self, path, mode, *args, **kwargs)

    async def open_async(self, path: str, mode: str = "rb", **kwargs: Any) -> AsyncExecServerFile:
        """Open a file for a program with an event loop: `rb` reads ranges; `wb` and `ab` write at the end."""
        if mode not in ("rb", "wb", "ab") or kwargs.get("compression"):
            raise ValueError(f"open_async has the modes rb, wb and ab, without compression, not {mode!r}")
        path = self._strip_protocol(path)
        if mode != "rb":
            return AsyncExecServerFile(self, path, mode, **kwargs)
        info = check_readable(await self._info(path))
        file = AsyncExecServerFile(self, path, mode, size=info["size"], **kwargs)
        file.details = info
        return file

    # -- changes of names

    async def _mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            await self._makedirs(self._parent(path), exist_ok=True)
        if await self._exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        await self._sessions.change(lambda files: files.mkdir(path), FileExistsError)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if exist_ok:
            await self._sessions.call(lambda files: files.mkdir(path or ".", parents=True))
        else:
            await self._mkdir(path)

    async def _remove(self, path: str, found: Info | None, *, recursive: bool = False) -> None:
        # A path that was there and is missing at a second attempt was removed by the first one.
        done = None if found is None else FileNotFoundError
        await self._sessions.change(lambda files: files.remove(path, recursive=recursive), done)

    async def _rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        found = await self._found(path)
        if found is not None and (found["type"] != "directory" or found["islink"]):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        await self._remove(path, found)

    rmdir = sync_wrapper(_rmdir)

    async def _rm_file(self, path: str, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        found = await self._found(path)
        if found is not None and found["type"] == "directory" and not found["islink"]:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        await self._remove(path, found)

    async def _rm(
        self,
        path: str | list[str],
        recursive: bool = False,
        batch_size: int | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        if maxdepth is not None:
            raise ValueError("rm removes whole trees: leave out maxdepth")
        if not recursive:
            await super()._rm(path, batch_size=batch_size)
            return
        for each in reversed(await self._expand_path(path)):
            await self._remove(each, await self._found(each), recursive=True)

    async def _cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        info = await self._info(path1)
        source, target = info["name"], self._strip_protocol(path2)
        if info["type"] == "directory":
            await self._makedirs(target, exist_ok=True)
            return
        if info["islink"]:
            source = await self._sessions.call(lambda files: files.resolve(info["name"]))
        await self._into(target, lambda files: files.copy(source, target))

    async def _mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Rename a file, a link or a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        before = await self._info(source)

        async def rename(files: FileSystem) -> None:
            try:
                await files.rename(source, target)
            except NotFound:
                # Perhaps an earlier attempt worked, whose outcome is unknown. Then the file is there now.
                if await files.exists(source) or _info_of(source, await files.stat(target)) != before:
                    raise

        try:
            await self._into(target, rename)
        except SystemFailure as error:
            if error.errno != errno.EXDEV:
                raise
            await self._move_by_copy(source, target)

    async def _move_by_copy(self, source: str, target: str) -> None:
        # The copy has a name of its own first. If that exists at a second attempt, the first one worked.
        part = part_path(target)
        copy = partial(FileSystem.copy, source=source, destination=part, recursive=True)
        remove = partial(FileSystem.remove, path=part, recursive=True, missing_ok=True)
        try:
            await self._sessions.change(copy, FileExistsError)
            await self._mv_file(part, target)
        finally:
            await self._sessions.call(remove)
        # Not by `_rm`, for which some characters of a name are patterns.
        await self._remove(source, await self._found(source), recursive=True)

    async def _mv(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        single = isinstance(path1, str) and (not has_magic(path1) or await self._exists(path1))
        if not single or not isinstance(path1, str) or not isinstance(path2, str):
            await self._copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error="raise")
            await self._rm(path1, recursive=recursive)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if path2.endswith("/") or (source != target and await self._isdir(target)):
            target = posixpath.join(target, posixpath.basename(source))
        if source != target:
            await self._mv_file(source, target)

    mv = sync_wrapper(_mv)


def _path_in(url: str) -> str:
    """The path in a URL, or in a path, without a slash at its end."""
    path = url.removeprefix("execserver::")
    if path.startswith(_PREFIX):
        path = path.removeprefix(_PREFIX)
        if found := _HOST.fullmatch(path):
            path = found["path"] or "/"
    return path.rstrip("/") or path[:1]


def _policy(sandbox: Sandbox | str | None) -> Sandbox | None:
    if isinstance(sandbox, str) or (isinstance(sandbox, Mapping) and "type" in sandbox):
        return sandbox_policy(sandbox)
    return sandbox


def _info_of(path: str, found: Stat) -> Info:
    types = {found.is_dir: ("directory", stat.S_IFDIR), found.is_file: ("file", stat.S_IFREG)}
    kind, bits = types.get(True, ("other", 0))
    return {
        "name": path,
        "size": found.size if found.is_file else 0,
        "type": kind,
        "mode": bits | (found.mode or 0),
        "mtime": found.modified if found.modified_ns is None else found.modified_ns / 1e9,
        "islink": found.is_symlink,
    }


def _local_size(path: str) -> int | None:
    """The size of a local file; None for a directory."""
    return None if os.path.isdir(path) else os.path.getsize(path)


def _show(callback: Callback, progress: Progress) -> None:
    callback.absolute_update(progress.done)


def _close_at_end(pid: int, loop: asyncio.AbstractEventLoop, sessions: Sessions) -> None:
    # The child of a fork has the objects, and neither the loop's thread nor the connection.
    if sessions and os.getpid() == pid and loop.is_running():
        with suppress(FSTimeoutError):  # the daemon ends the session by itself
            sync_teardown(loop, sessions.close, timeout=CLOSE_SECONDS)
