"""The parameters of the first requests of a connection, decoded without their models. Pure.

Importing pydantic and making the models takes longer than everything else that a daemon does before it can
answer, and building the model of `process/start` another millisecond. So what agents send first is decoded
here, if it is of the usual kind. What is unusual or wrong goes to the models, which alone know the texts of
errors.

A quick decoder takes nothing that the model would not take, and gives the same values under the same names:
`tests/unit/rpc/test_quick_params.py` compares them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from execserver.protocol.base64_text import decode_base64
from execserver.protocol.limits import MAX_TIMEOUT_MS
from execserver.protocol.path_uri import remembered_path

_I64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""What is larger is for the models."""

_Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=MAX_TIMEOUT_MS)]


class QuickExtensions(msgspec.Struct, rename="camel"):
    """`handshake.Extensions`."""

    execserver: int | None = None


class QuickInitialize(msgspec.Struct, rename="camel"):
    """`handshake.InitializeParams`."""

    client_name: str
    resume_session_id: str | None = None
    extensions: QuickExtensions | None = None


class QuickStart(msgspec.Struct, rename="camel"):
    """`process.StartParams`, without what has models of its own."""

    process_id: str
    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    cwd: str
    env: dict[str, str]
    tty: bool
    pipe_stdin: bool = False
    arg0: str | None = None
    env_policy: None = None
    sandbox: None = None
    enforce_managed_network: bool = False
    managed_network: None = None
    network_proxy: None = None
    shell_snapshot: None = None
    metadata: None = None
    timeout_ms: _Milliseconds | None = None
    idle_timeout_ms: _Milliseconds | None = None
    if_exists: Literal["fail", "attach"] = "fail"
    size: None = None


class QuickRead(msgspec.Struct, rename="camel"):
    """`process.ReadParams`."""

    process_id: str
    after_seq: _I64 | None = None
    max_bytes: _I64 | None = None
    wait_ms: _I64 | None = None
    session_id: str | None = None


class QuickWrite(msgspec.Struct, rename="camel"):
    """`process.WriteParams`."""

    process_id: str
    chunk: Any
    write_id: Annotated[str, msgspec.Meta(min_length=1)]
    session_id: str | None = None


QUICK: Final[dict[str, type[msgspec.Struct]]] = {
    "initialize": QuickInitialize,
    "process/start": QuickStart,
    "process/read": QuickRead,
    "process/write": QuickWrite,
}


def decode_quickly(method: str, params: dict[str, Any]) -> Any:
    """Decode usual parameters, as the method's model would; None for all others."""
    kind = QUICK.get(method)
    if kind is None:
        return None
    try:
        decoded = msgspec.convert(params, kind)
        if decoded.__class__ is QuickStart:
            decoded.cwd = remembered_path(decoded.cwd)
        elif decoded.__class__ is QuickWrite:
            if decoded.chunk.__class__ is not str:  # a large one is a view of its message
                return None
            decoded.chunk = decode_base64(decoded.chunk.encode())
    except (msgspec.ValidationError, ValueError):  # a PathUriError is one, too
        return None
    return decoded
