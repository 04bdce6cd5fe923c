"""What a shell prints of its state: a sequence of named sections, between two marks.

A module for each kind of shell (`bash.py`, `zsh.py`) prints it and restores it.
"""

from __future__ import annotations

import os
import re
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


_END = r"""\builtin printf '%s' "${16} ${17}"
\builtin printf '\0%s\0' processes
PROCESSES
\builtin printf '\0%s\0' input
[[ /dev/fd/0 -ef /dev/null ]] && \builtin printf 'null '
[[ -p /dev/fd/0 ]] && \builtin printf 'pipe '
IFS= \builtin read -r __execserver_0 && \builtin printf '%s' "$__execserver_0"
\builtin printf '\0%s\0' end
\builtin printf '%s\0' MARK
\builtin printf '%s' MARK >&2
"""

_COUNT_PROCESSES = """for __execserver_0 in /proc/[0-9]*/; do \\builtin printf '%s' .; done"""
"""In a namespace of its own, where it finds what the profile has left in the background."""


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


def completed(script: str, *, count_processes: bool) -> str:
    """The script of a kind, which leaves the fields of its `/proc/PID/stat` from the third on as arguments,
    with the sections that are the same in all kinds behind it.
    """
    counting = _COUNT_PROCESSES if count_processes else ":"
    return (script + _END).replace("MARK", MARK.decode()).replace("PROCESSES", counting, 1)


def comparable(
    found: dict[bytes, bytes], variables: Variables, tagged_limit: re.Pattern[bytes]
) -> dict[bytes, bytes]:
    """The sections without what is another one for each shell.

    Args:
        found: the sections.
        variables: those to compare.
        tagged_limit: the line of the limit with the ownership tag.
    """
    for name in (b"soft", b"hard"):
        found[name] = tagged_limit.sub(b"", found[name])
    found[b"variables"] = b"\n".join(variables[name][1] for name in sorted(variables))
    return found


def plain_values(variables: Variables, pattern: re.Pattern[bytes]) -> dict[str, str]:
    """The values of variables in which a pattern finds plain text."""
    found = {name: pattern.search(statement) for name, (_, statement) in variables.items()}
    return {os.fsdecode(name): os.fsdecode(value[1]) for name, value in found.items() if value is not None}


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


def require_restorable(plain: Dump, login: Dump, others: Mapping[bytes, str] | None = None) -> None:
    """Raise UnfitError if one of the `EQUAL` sections differs, or one of the others that a kind has."""
    for section, meaning in {**EQUAL, **(others or {})}.items():
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
