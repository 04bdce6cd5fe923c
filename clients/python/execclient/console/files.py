"""The files below the folder of a process, to be read.

A process may have made links to anything that the daemon's user may read. So the daemon confines each request
to the folder, and a path whose real place is outside of it is refused besides. A daemon that cannot make
sandboxes has the second check only: there, a process that changes a link between the check and the read can
have another file shown to the user.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from execclient import Executor, FileSystem, Refused
from execclient.connection.connection import Json
from execclient.govern.sandbox import Profile
from execclient.govern.sandbox_entries import at_path, managed

MAX_TEXT_BYTES = 1 << 20
"""Of a file that is shown."""

MAX_ENTRIES = 2000
"""Of a folder."""

_NO_SANDBOX = "failed to prepare process sandbox"
"""Begins the reason of a daemon that cannot make sandboxes, after the path."""


class Outside(Exception):
    """The path is not below the folder."""


class _Found(NamedTuple):
    files: FileSystem
    path: str


class Folder:
    """The files below a folder of the daemon's machine.

    Args:
        executor: a session with the daemon.
        root: the folder, absolute.
    """

    def __init__(self, executor: Executor, root: str) -> None:
        self._executor = executor
        self._root = posixpath.normpath(root)

    async def list(self, path: str) -> Json:
        """The names in a folder, folders first.

        Args:
            path: relative to the root; empty for the root itself.

        Raises:
            Outside, CallFailed: it is not below the root; it cannot be read.
        """
        found = await self._find(path)
        entries = await found.files.iterdir(found.path)
        shown = sorted(entries, key=lambda each: (not each.is_dir, each.name))[:MAX_ENTRIES]
        kinds = {(True, False): "folder", (False, True): "file"}
        return {
            "entries": [
                {"name": each.name, "kind": kinds.get((each.is_dir, each.is_file), "other")} for each in shown
            ],
            "total": len(entries),
        }

    async def read(self, path: str) -> Json:
        """The text of a file of at most `MAX_TEXT_BYTES`; of another one, what it is.

        Raises:
            Outside, CallFailed: as `list`.
        """
        found = await self._find(path)
        size = (await found.files.stat(found.path)).size
        if size > MAX_TEXT_BYTES:
            return {"kind": "large", "size": size}
        data = await found.files.read_bytes(found.path, 0, MAX_TEXT_BYTES)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return {"kind": "binary", "size": size}
        if "\0" in text:
            return {"kind": "binary", "size": size}
        return {"kind": "text", "size": size, "text": text}

    async def _find(self, path: str) -> _Found:
        permissions = managed([at_path(self._root, "read")], network_allowed=False)
        files = self._executor.fs.confined(Profile(permissions), workspace=self._root)
        try:
            root = await files.resolve(self._root)
        except Refused as error:
            if _NO_SANDBOX not in error.message:
                raise
            files = self._executor.fs
            root = await files.resolve(self._root)
        # `..` is resolved before links are, as the names in the page suggest.
        real = await files.resolve(posixpath.normpath(posixpath.join(root, path)))
        if not _is_below(real, root):
            raise Outside(f"{path}: only the files below {self._root} are shown, and this is not one of them")
        return _Found(files, real)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
