"""`rpc.discover`. `docs/protocol.md`, "Standard JSON-RPC"; it is answered in either dialect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from execserver.loading import LOADER
from execserver.rpc.handlers import Caller, Encoded, Handlers

if TYPE_CHECKING:
    from execprotocol.environment import NoParams

DOCUMENT = Path(__file__).with_name("openrpc.json")
"""Written by `make schemas`, beside `schemas/openrpc.json`: the same without white space."""


def handlers() -> Handlers:
    """The handler of `rpc.discover`."""
    return {"rpc.discover": discover}


def discover(caller: Caller, params: NoParams) -> Encoded:
    """The OpenRPC document, some 130 KiB."""
    return Encoded(LOADER.load(DOCUMENT.read_bytes))
