"""What a shell prints of its state: a sequence of named sections, between two marks.

A module for each kind of shell (`bash.py`, `zsh.py`) prints it and restores it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from execserver.processes.login_state import UnfitError

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec

MARK = b"execserver-shell-snapshot"
"""Begins and ends the sections, and is all that the standard error has."""

TYPED = b"execserver\n"
"""What a standard input that is a pipe has to hold: a profile that reads it takes a part."""

Dump = Mapping[bytes, bytes]
"""Section → text."""

Variables = Mapping[bytes, tuple[bytes, bytes]]
"""Name → attributes and the statement that sets the variable."""

EQUAL = {
    b"arguments": "it changes the arguments of the command",
    b"background": "it starts something in the background",
    b"jobs": "it starts something in the background",
    b"processes": "it starts something in the background",
    b"traps": "it sets a trap",
    b"builtins": "it loads or disables builtins",
    b"files": "it leaves a descriptor open",
    b"input": "it reads or replaces the standard input",
    b"nice": "it changes the priority",
}
"""The sections that no script restores, and what it means when they differ."""


class ShellKind(Protocol):
    """A kind of shell, as a module."""

    FIRST_LINES: str
    """The snapshot of a profile that does nothing: leaves no trace of the snapshot itself."""

    def usable(self, script: str) -> bool:
        """Whether a script would mean the same in a shell with a snapshot."""

    def dump_script(self, *, count_processes: bool) -> str:
        """The script that prints the state of the shell that runs it."""

    def parsed(self, output: bytes, errors: bytes) -> dict[bytes, bytes]:
        """The sections of a dump. Raises UnfitError as `sections`."""

    def difference(self, plain: Dump, login: Dump, dropped: Callable[[str], bool]) -> bytes:
        """The script that gives a shell without profile (`plain`) the state of a login shell.

        Args:
            plain: the dump of the first.
            login: the dump of the second.
            dropped: whether the environment policy of the command drops a variable of that name.

        Raises:
            UnfitError: no script can.
        """

    def strings(self, dump: Dump) -> dict[str, str]:
        """The variables whose values are plain text."""

    def startup_files(self, variables: Mapping[str, str]) -> list[str]:
        """The files that a login shell reads by itself."""

    def launch(self, fd: int, spec: LaunchSpec) -> LaunchSpec:
        """The launch of a shell that restores the snapshot in a descriptor, from that of a login shell."""


def sections(output: bytes, errors: bytes) -> dict[bytes, bytes]:
    """The sections of a dump.

    Args:
        output: the standard output of the shell.
        errors: its standard error.

    Raises:
        UnfitError: the shell ended early, or the profile wrote something.
    """
    first, *parts = output.split(b"\0")
    if first != MARK:
        raise UnfitError("it writes to the standard output" if MARK in output else "it ends the shell")
    if errors != MARK:
        raise UnfitError(
            "it writes to the standard error" if errors.strip(MARK) else "it replaces the standard error"
        )
    if parts[-3:] != [b"end", MARK, b""]:
        raise UnfitError("it sets a trap that writes" if MARK in parts else "it ends the shell")
    return dict(zip(parts[:-3:2], parts[1:-3:2], strict=True))


def require_restorable(plain: Dump, login: Dump) -> None:
    """Raise UnfitError if a section differs that no script restores."""
    for section, meaning in EQUAL.items():
        if plain[section] != login[section]:
            raise UnfitError(meaning)


def require_equal(dump: Dump, login: Dump, reason: str) -> None:
    """Compare the state of a shell with that of a login shell.

    Args:
        dump: the state.
        login: that of the login shell.
        reason: what is said of a section that differs.

    Raises:
        UnfitError: they differ; the text names the section.
    """
    for section in sorted({*dump, *login}):
        if dump.get(section) != login.get(section):
            raise UnfitError(f"its state ({os.fsdecode(section)}) {reason}")


def require_kept(before: Variables, after: Variables, dropped: Callable[[str], bool]) -> None:
    """Raise UnfitError if the profile sets a variable that a policy drops."""
    for name in sorted(after):
        if before.get(name) != after[name] and dropped(os.fsdecode(name)):
            raise UnfitError(f"it sets {os.fsdecode(name)}, which the environment policy drops")


def changes(before: Variables, after: Variables) -> Iterator[bytes]:
    """The statements that change the variables."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is not None and (new is None or set(old[0]) - set(new[0]) - {ord("-")}):
            yield b"\\builtin unset -v " + name
        if new is not None:
            yield new[1]


def quoted(text: bytes) -> bytes:
    """The text as one word of a shell."""
    return os.fsencode(shlex.quote(os.fsdecode(text)))
