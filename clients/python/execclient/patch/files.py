"""File operations of a patch: single files of an executor, within a sandbox."""

from __future__ import annotations

import hashlib
import posixpath

from pybase64 import b64decode

from execclient.connection.connection import Json
from execclient.errors import CallFailed, NotFound
from execclient.file_session import ConfinedCalls
from execclient.patch.errors import CannotRead, PatchFileError
from execprotocol.path_uri import parse_path_uri, path_to_uri


class RemoteFiles(ConfinedCalls):
    """Single files of an executor, within a sandbox if there is one."""

    async def _on(self, method: str, path: str, **params: Json) -> Json:
        return await self.call(method, {"path": path_to_uri(path), **params})

    async def read(self, path: str) -> bytes | CannotRead | None:
        """The content; None if nothing is there; an error if it cannot be read."""
        if "\0" in path:
            return CannotRead("file name contained an unexpected NUL byte")
        try:
            result = await self._on("fs/readFile", path)
        except NotFound:
            return None
        except CallFailed as error:
            return CannotRead(error.message)
        return b64decode(result["dataBase64"], validate=True)

    async def resolve(self, path: str) -> str:
        """The path with links resolved; unchanged if it does not exist."""
        try:
            result = await self._on("fs/canonicalize", path)
        except CallFailed:
            return path
        return parse_path_uri(result["path"])

    async def target(self, path: str) -> str:
        """The path that a write would reach.

        For a path that does not exist, or a broken link, only the deepest existing folder is resolved.
        """
        behind = ""
        while True:
            try:
                result = await self._on("fs/canonicalize", path)
            except CallFailed:
                folder, name = posixpath.split(path)
                if folder == path:
                    return posixpath.join(path, behind)
                path, behind = folder, posixpath.join(name, behind) if behind else name
            else:
                return posixpath.join(parse_path_uri(result["path"]), behind).rstrip("/") or "/"

    async def digest(self, path: str) -> str | None:
        """The SHA-256 of the file; None if nothing is there."""
        try:
            if "fs/digest" in self.capabilities:
                return str((await self._on("fs/digest", path))["sha256"])
            result = await self._on("fs/readFile", path)
        except NotFound:
            return None
        return hashlib.sha256(b64decode(result["dataBase64"], validate=True)).hexdigest()

    async def write(self, path: str, content: bytes, *, with_parents: bool) -> None:
        """Create a file, or replace its content in place; `with_parents` creates missing directories."""
        try:
            await self._on("fs/writeFile", path, dataBase64=content)
        except NotFound as error:
            if not with_parents:
                raise
            try:
                await self._on("fs/createDirectory", posixpath.dirname(path), recursive=True)
            except CallFailed as failure:
                message = f"Failed to create parent directories for {path}"
                raise PatchFileError(message, path, failure.message) from error
            await self._on("fs/writeFile", path, dataBase64=content)

    async def remove(self, path: str) -> None:
        """Remove a file, or a link itself."""
        await self._on("fs/remove", path, recursive=False, force=False)
