"""A command without its sandbox, and what is spawned in its place. Every start needs these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec


class Command(msgspec.Struct, frozen=True):
    """What is to be run, as it would be without a sandbox."""

    program: str
    """Its path."""

    arguments: Sequence[str]
    """The first one is the name that the program sees as its own."""

    cwd: str
    environment: Mapping[str, str]
    tty: bool


class Wrapped(msgspec.Struct, frozen=True):
    """What is spawned in its place. The descriptors belong to the caller from now on."""

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    passed: tuple[int, ...] = ()
    """Descriptors that the child gets under the same numbers, and that the caller closes afterwards."""

    status: int | None = None
    """The file for the launcher's report (`processes/sandboxed_child.py`); to be read by offset."""

    limit: Callable[[str | None], None] | None = None
    """Takes the limits on, for the thread that spawns (`thread_limits.py`). It is told the path of the
    command's terminal, if it gets one.
    """

    null: str | None = None
    """What to open as an empty standard input, if not `/dev/null`."""

    takes_terminal: bool = False
    """Whether the command makes its terminal its own by itself, inside."""
