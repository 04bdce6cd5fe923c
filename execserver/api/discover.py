"""`rpc.discover`. `docs/protocol.md`, "Standard JSON-RPC"; it is answered in either dialect."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from execserver.loading import LOADER
from execserver.rpc.envelope import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers

if TYPE_CHECKING:
    from execserver.protocol.environment import NoParams


def handlers() -> Handlers:
    """The handler of `rpc.discover`; what it answers is made when it is first asked for."""
    return {"rpc.discover": _Discovery().discover}


class _Discovery:
    def __init__(self) -> None:
        self._document: Encoded | None = None
        self._making: asyncio.Task[Encoded] | None = None

    def discover(self, caller: Caller, params: NoParams) -> Encoded | asyncio.Future[Encoded]:
        """The OpenRPC document: at once, or when the one thread that makes it is done."""
        if self._document is not None:
            return self._document
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())
        # Others wait for the same document: it goes on when one of them is gone.
        return asyncio.shield(self._making)

    async def _make(self) -> Encoded:
        try:
            # Some 40 ms with the imports, which the loop does not have.
            self._document = await asyncio.to_thread(_make_document)
        finally:
            self._making = None
        return self._document


def _make_document() -> Encoded:
    openrpc = LOADER.load(lambda: import_module("execserver.protocol.openrpc"))
    return Encoded(encode_json(openrpc.openrpc_document()))
