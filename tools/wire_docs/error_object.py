"""The error object of a reply (`docs/protocol.md`, "Error codes")."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class ErrorData(TypedDict):
    """What programs match on. Connections that speak standard JSON-RPC 2.0 get it; with a `reason`, also
    those with extensions.
    """

    code: str
    """The name of the error: finer than the number, and it never changes its meaning."""

    field: NotRequired[str]
    """The parameter at fault, as it is called on the wire; members of members stand behind dots."""

    reason: NotRequired[str]
    """A sentence for people: what kept a program from being started."""

    path: NotRequired[str]
    """The folder, the program or the interpreter that is missing, or may not be used."""


class ErrorObject(TypedDict):
    """Why a request has no result."""

    code: Literal[-32700, -32600, -32601, -32602, -32603, -32004, -32010, -32011]
    """The number of the error. It is coarse: one number stands for many things."""

    message: str
    """A sentence for people."""

    data: NotRequired[ErrorData]
    """The name of the error, and the parameter at fault."""
