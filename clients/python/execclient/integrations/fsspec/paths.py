"""Paths and URLs of the protocol `execserver`."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.utils import stringify_path

_PREFIX = "execserver://"
_HOST = re.compile(r"(?P<host>[^/]+:\d+)(?P<path>/.*|)", re.DOTALL)


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


def _path_in(url: str) -> str:
    """The path in a URL, or in a path, without a slash at its end."""
    path = url.removeprefix("execserver::")
    if path.startswith(_PREFIX):
        path = path.removeprefix(_PREFIX)
        if found := _HOST.fullmatch(path):
            path = found["path"] or "/"
    return path.rstrip("/") or path[:1]
