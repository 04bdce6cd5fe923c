"""Single files of an executor, as a patch needs them: within a sandbox, and with what failed as an answer."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Protocol

from pybase64 import b64decode, b64encode

from execclient.connection.connection import Json
from execclient.errors import CallFailed, NotFound
from execclient.patch.errors import CannotRead, PatchFileError
from execprotocol.path_uri import parse_path_uri, path_to_uri


class Server(Protocol):
    """What is needed of an executor."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The extensions that it serves."""

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Any request of the wire."""


class RemoteFiles:
    """Single files of an executor."""

    def __init__(self, executor: Server, sandbox: Mapping[str, Json] | None) -> None:
        self._executor = executor
        self._sandbox = {} if sandbox is None else {"sandbox": sandbox}

    async def call(self, method: str, params: Mapping[str, Json]) -> Json:
        """Any request, within the sandbox."""
        return await self._executor.call(method, {**params, **self._sandbox})

    async def _on(self, method: str, path: str, **params: Json) -> Json:
        return await self.call(method, {"path": path_to_uri(path), **params})

    async def look(self, path: str) -> bytes | CannotRead | None:
        """The content, None when nothing is there, or why there is none to be had."""
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
        """The path without links; itself when it leads nowhere."""
        try:
            result = await self._on("fs/canonicalize", path)
        except CallFailed:
            return path
        return parse_path_uri(result["path"])

    async def target(self, path: str) -> str:
        """The path that a write to it would reach; of a link that leads nowhere, that of its folder.

        Of a file that is not there yet, where its deepest folder that is there leads.
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
        """The SHA-256 of what is there; None when nothing is."""
        try:
            if "fs/digest" in self._executor.capabilities:
                return str((await self._on("fs/digest", path))["sha256"])
            result = await self._on("fs/readFile", path)
        except NotFound:
            return None
        return hashlib.sha256(b64decode(result["dataBase64"], validate=True)).hexdigest()

    async def write(self, path: str, content: bytes, *, with_parents: bool) -> None:
        """Make a file, or replace its content in place; with its directories, if they may be missing."""
        data = b64encode(content).decode()
        try:
            await self._on("fs/writeFile", path, dataBase64=data)
        except NotFound as error:
            if not with_parents:
                raise
            try:
                await self._on("fs/createDirectory", posixpath.dirname(path), recursive=True)
            except CallFailed as failure:
                message = f"Failed to create parent directories for {path}"
                raise PatchFileError(message, path, failure.message) from error
            await self._on("fs/writeFile", path, dataBase64=data)

    async def remove(self, path: str) -> None:
        """Remove a file, or a link itself."""
        await self._on("fs/remove", path, recursive=False, force=False)
