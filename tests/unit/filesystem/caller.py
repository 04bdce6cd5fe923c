"""A stub of a connection, which calls the handlers of `fs/*`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

from execprotocol.methods import METHODS
from execprotocol.path_uri import path_to_uri
from execserver.api.filesystem import FileConfinement, handlers
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.small import SmallFiles
from execserver.rpc.handlers import Caller, Closable, Encoded, Result, StreamedResult
from execserver.rpc.params import decode_params

T = TypeVar("T", bound=Closable)


class StubCaller:
    """The parts of a connection that handlers use. `call` decodes parameters and collects the result."""

    def __init__(self, mounts: MountTable, confinement: FileConfinement | None = None) -> None:
        self.extensions = False
        self.max_reply_bytes: int | None = None
        self.notifications: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue()
        self._handlers = handlers(mounts, SmallFiles(mounts), confinement)
        self._owned: dict[type[Any], Closable] = {}

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.put_nowait((method, params))

    def own(self, kind: type[T], make: Callable[[], T]) -> T:
        if kind not in self._owned:
            self._owned[kind] = make()
        return cast("T", self._owned[kind])

    def close(self) -> None:
        """End the connection."""
        for owned in self._owned.values():
            owned.close()
        self._owned.clear()

    def begin(self, method: str, /, **params: Any) -> Result | Awaitable[Result]:
        """Call a handler; values that are paths become URIs."""
        return self._handlers[method](cast("Caller", self), decode_params(METHODS[method], _encode(params)))

    async def call(self, method: str, /, **params: Any) -> Any:
        """The whole result, decoded."""
        result = self.begin(method, **params)
        if isinstance(result, Awaitable):
            result = await result
        if isinstance(result, StreamedResult):
            async with aclosing(result.pieces) as pieces:
                text = b"".join([piece async for piece in pieces])
            return json.loads(result.head + text + result.tail)
        return json.loads(result.json) if isinstance(result, Encoded) else result


def _encode(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _encode_value(value) for name, value in params.items()}


def _encode_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_encode_value(item) for item in value]
    return path_to_uri(str(value)) if hasattr(value, "__fspath__") else value
