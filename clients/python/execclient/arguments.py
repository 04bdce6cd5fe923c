"""Checks of arguments before a request is sent: an error names the argument, and what to pass instead.

`TypeError` for a wrong type, `ValueError` for an impossible value. No I/O.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from execclient.connection.connection import Json
from execprotocol.limits import LARGEST_PORT

AnyPath = str | os.PathLike[str]


class SupportsContext(Protocol):
    """A sandbox policy, such as `ReadOnly` or `WorkspaceWrite`. A protocol: the policies are loaded late."""

    @property
    def writes_workspace(self) -> bool:
        """Whether the command may write to the workspace."""

    def context(self, cwd: str, workspace_roots: Sequence[str]) -> Mapping[str, Json] | None:
        """The form of the wire, for a working directory and the folders of a workspace."""


Sandbox = SupportsContext | Mapping[str, Json]
"""A policy, or its form on the wire (`docs/protocol.md`, "Sandbox context")."""


class SupportsProxy(Protocol):
    """The hosts that a command may reach, such as `NetworkAccess`. A protocol, as for policies.

    With the methods `decide` and `report`, which are then handlers like `on_network_request` and
    `on_network_decision` of `connect`, it answers for its process itself.
    """

    def wire(self) -> Mapping[str, Json]:
        """The member `networkProxy` of `process/start`."""


Network = SupportsProxy | Mapping[str, Json]
"""The hosts that a command may reach, or the member `networkProxy` of `process/start`."""

LONGEST_SECONDS = 9e12
"""A time limit on the wire is a number of milliseconds that JSON carries exactly, of 53 bits."""

LARGEST_SIDE = 65535
"""Rows or columns of a terminal."""

_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567" * 8
"""The 32 letters and digits of base32, for each value of a byte: no 0, 1, 8 or 9, which look like letters."""


def new_id() -> str:
    """A new name of 8 letters and digits, short enough to be typed.

    The chance that it equals one of a million living names is one in a million (40 bits).
    """
    return os.urandom(8).translate(_LETTERS).decode()


def text(value: object, name: str) -> str:
    """An argument or a variable for the wire. Bytes are refused: JSON would silently make base64 of them."""
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(given, str):
        raise TypeError(f"{name} is text or a path, not {_kind(value)}")
    if "\0" in given:
        raise ValueError(f"{name} holds a NUL character, which no argument of a program can")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} holds bytes that are not UTF-8, which JSON cannot carry: pass them by a file or by input"
        ) from None
    return given


def command_line(values: object, name: str = "argv") -> list[str]:
    """A program and its arguments."""
    if isinstance(values, str):
        raise TypeError(f"{name} is a list of strings; for a shell command: ['sh', '-c', {values!r}]")
    if isinstance(values, bytes | bytearray | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is a list of strings, not {_kind(values)}")
    return [text(value, f"{name}[{place}]") for place, value in enumerate(values)]


def names(values: object, name: str) -> list[str]:
    """Names of files or directories."""
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is a list of names, not {_kind(values)}")
    return [text(value, f"{name}[{place}]") for place, value in enumerate(values)]


def variables(values: object) -> dict[str, str]:
    """Environment variables."""
    if not isinstance(values, Mapping):
        raise TypeError(f"env is a mapping of names to values, as a dict, not {_kind(values)}")
    checked = {text(name, "a name in env"): text(value, f"env[{name!r}]") for name, value in values.items()}
    for name in checked:
        if not name or "=" in name:
            raise ValueError(f"a name in env is not empty and has no '=' in it: {name!r}")
    return checked


def path(value: object, name: str = "path") -> str:
    """A path. An empty one is refused: it would be the working directory, and often is an unset variable."""
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(given, bytes):
        raise TypeError(f"{name} is text or a path, not bytes: use os.fsdecode(…)")
    if not isinstance(given, str):
        raise TypeError(f"{name} is text or a path, not {_kind(value)}")
    if not given:
        raise ValueError(f"{name} is empty; the executor's working directory is '.'")
    return given


def data(value: object, name: str, kinds: str = "bytes or text") -> bytes:
    """Bytes; text is encoded as UTF-8, and a mutable buffer is copied."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{name} holds characters that UTF-8 does not have: pass bytes, as from os.fsencode(…)"
            ) from None
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]  # the question
    except TypeError:
        raise TypeError(f"{name} is {kinds}, not {_kind(value)}") from None


def only_data(value: object, name: str, *, text: str) -> bytes:
    """Bytes, and no text. `text` says how to pass text."""
    if isinstance(value, str):
        raise TypeError(f"{name} is bytes, not str; {text}")
    return data(value, name, "bytes")


def any_seconds(value: object, name: str, instead: str) -> float:
    """A number of seconds of either sign. `instead` says what to pass otherwise."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        way = "pass its total_seconds()" if hasattr(value, "total_seconds") else instead
        raise TypeError(f"{name} is a number of seconds, not {_kind(value)}; {way}")
    if value != value:
        raise ValueError(f"{name} is a number of seconds, not NaN; {instead}")
    return value


def seconds(value: object, name: str, *, instead: str) -> float:
    """A time above 0. `instead` says how to pass no limit."""
    number = any_seconds(value, name, instead)
    if not number > 0:
        raise ValueError(f"{name} is above 0 seconds, not {value}; {instead}")
    return number


def limit(value: object, name: str) -> float | None:
    """A time limit that the daemon enforces; None or infinity for none."""
    if value is None:
        return None
    number = seconds(value, name, instead="None sets no limit")
    if number == math.inf:
        return None
    if number > LONGEST_SECONDS:
        raise ValueError(f"{name} is at most {LONGEST_SECONDS:.0f} seconds, not {value}; None sets no limit")
    return number


def grace(value: object) -> float:
    """Seconds between SIGTERM and SIGKILL at a time limit; 0 for none."""
    number = any_seconds(value, "grace", "0 kills at once")
    if not 0 <= number <= LONGEST_SECONDS:
        raise ValueError(f"grace is 0 to {LONGEST_SECONDS:.0f} seconds, not {value}; 0 kills at once")
    return number


def time_to_live(value: object) -> float | None:
    """How long the daemon keeps a session without a connection; None leaves it to the daemon."""
    if value is None:
        return None
    number = seconds(value, "ttl", instead="None leaves it to the daemon (--session-ttl)")
    if number > LONGEST_SECONDS:
        raise ValueError(f"ttl is at most {LONGEST_SECONDS:.0f} seconds, not {value}")
    return number


def waiting(value: object, name: str = "timeout") -> float | None:
    """How long to wait; None waits for ever, 0 or less does not wait."""
    return None if value is None else any_seconds(value, name, "None waits for ever")


def count(value: object, name: str, *, none: str | None = None) -> int | None:
    """A whole number from 0. None is allowed if `none` says what it means."""
    if value is None and none is not None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {_kind(value)}" + (f"; None {none}" if none else ""))
    if value < 0:
        raise ValueError(f"{name} is 0 or more, not {value}" + (f"; None {none}" if none else ""))
    return value


def port(value: object, name: str, *, least: int = 1) -> int:
    """The number of a TCP port."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is the number of a port, not {_kind(value)}")
    if not least <= value <= LARGEST_PORT:
        raise ValueError(f"{name} is {least} to {LARGEST_PORT}, not {value}")
    return value


def sandbox(value: Sandbox | None, workspace: str, name: str = "cwd") -> Mapping[str, Json] | None:
    """The access rights of a command or of file requests, for the wire; None for no sandbox.

    Args:
        value: a policy, or the form of the wire, which is returned unchanged.
        workspace: the workspace of a policy, absolute.
        name: the argument that sets the workspace, for errors.

    Raises:
        TypeError: it is neither.
        ValueError: the workspace would be everything.
    """
    check_sandbox(value)
    if value is None or isinstance(value, Mapping):
        return value
    if value.writes_workspace and not posixpath.normpath(workspace).strip("/"):
        raise ValueError(f"sandbox: with '/' as its workspace all could be written: pass a folder as {name}")
    return value.context(workspace, [workspace])


def check_sandbox(value: object) -> None:
    """Raise a TypeError unless it is a policy, the form of the wire, or None."""
    if value is None or isinstance(value, Mapping):
        return
    if isinstance(value, type) or not hasattr(value, "context"):
        given = f"the class {value.__name__}" if isinstance(value, type) else _kind(value)
        raise TypeError(f"sandbox is a policy, as ReadOnly() or WorkspaceWrite(), or a mapping, not {given}")


def network(value: Network) -> Mapping[str, Json]:
    """The network proxy of a command, for the wire.

    Raises:
        TypeError: it is neither a value with `wire` nor a mapping.
    """
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type) or not hasattr(value, "wire"):
        given = f"the class {value.__name__}" if isinstance(value, type) else _kind(value)
        raise TypeError(f"network is a NetworkAccess(…) or a mapping, not {given}")
    return value.wire()


def terminal_size(value: object) -> dict[str, int]:
    """Rows and columns, for the wire."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise TypeError(f"size is a pair of rows and columns, as (24, 80), not {value!r}")
    rows, cols = (_side(side, name) for side, name in zip(value, ("rows", "columns"), strict=True))
    return {"rows": rows, "cols": cols}


def _side(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"the {name} of a terminal are a whole number, not {_kind(value)}")
    if not 1 <= value <= LARGEST_SIDE:
        raise ValueError(f"the {name} of a terminal are 1 to {LARGEST_SIDE}, not {value}")
    return value


def check_handler(value: object, name: str) -> None:
    """Refuse what cannot be called: it would be noticed by its first event, far from the mistake."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is a function, not {_kind(value)}")


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
