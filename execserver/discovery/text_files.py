"""Reading small text files of unknown content, within limits. What cannot be read becomes a warning."""

from __future__ import annotations

import pybase64

from execprotocol.errors import NotFound, RpcError
from execprotocol.path_uri import path_to_uri
from execserver.filesystem.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execprotocol.environment import TextFile

MAX_FILE_BYTES = 1 << 20
"""The largest file that is read."""


class TextReader:
    """Reads the files of one root.

    Args:
        files: the files that may be read.
        most: bytes of all contents together.
    """

    def __init__(self, files: Files, most: int) -> None:
        self.files = files
        self.warnings: list[str] = []
        self.left = most
        self._most = most

    async def read(self, path: str) -> TextFile | None:
        """The text of a file; None if there is none, or with a warning if it cannot be read."""
        found = (await self.files.find([path], min(MAX_FILE_BYTES, self.left)))[0]
        if isinstance(found, NotFound):
            return None
        uri = path_to_uri(path)
        if isinstance(found, RpcError):
            return self._warn(f"failed to read capability file {uri}: {found.message}")
        if not found["isFile"]:
            return None
        if found["size"] > MAX_FILE_BYTES:
            return self._warn(f"capability file {uri} exceeds the {MAX_FILE_BYTES}-byte limit")
        if "dataBase64" not in found:
            return self._warn(f"capability root bundle exceeds the {self._most}-byte limit")
        content = pybase64.b64decode(found["dataBase64"])
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            return self._warn(f"capability file {uri} is not UTF-8: {_utf8_error(error)}")
        self.left -= len(content)
        return {"path": uri, "contents": text}

    async def read_first(self, paths: list[str]) -> TextFile | None:
        """The first of some files that can be read."""
        for path in paths:
            found = await self.read(path)
            if found is not None:
                return found
        return None

    def _warn(self, text: str) -> TextFile | None:
        self.warnings.append(text)
        return None


def _utf8_error(error: UnicodeDecodeError) -> str:
    if error.reason == "unexpected end of data":
        return f"incomplete utf-8 byte sequence from index {error.start}"
    return f"invalid utf-8 sequence of {error.end - error.start} bytes from index {error.start}"
