"""Tab completion in shells, by argcomplete.

A shell runs the console script with `_ARGCOMPLETE` set, and offers the printed words: names that the daemon
returns are among them only if no shell gives them a meaning.
"""

from __future__ import annotations

import re
from argparse import Action, Namespace
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execclient import Executor

SHELLS = ("bash", "zsh", "fish")

PATIENCE_SECONDS = 1.0
"""For the daemon's answer: a user waits at the keyboard."""

_HARMLESS = re.compile(r"[A-Za-z0-9._-]+")

Completer = Callable[..., Sequence[str]]
"""Returns the words for the last one, which is `prefix`. `parsed_args` has the options before it."""


def complete_with(action: Action, completer: Completer) -> None:
    """Set the words of an option or argument; by default they are its choices, else names of files."""
    action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it


def script(shell: str) -> str:
    """The script that completes the program's commands in one of `SHELLS`."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["execserver"], use_defaults=False, shell=shell)


def nothing(**_: object) -> Sequence[str]:
    """No words: the value can only be typed."""
    return []


def process_ids(prefix: str, parsed_args: Namespace, **_: object) -> Sequence[str]:
    """The process ids of the daemon that the line names so far; none if the daemon does not answer."""
    from execclient.commands.daemon import listing

    async def listed(executor: Executor) -> list[str]:
        return [str(each["processId"]) for each in await listing(executor)]

    return _of_daemon(listed, prefix, parsed_args)


def ports(prefix: str, parsed_args: Namespace, **_: object) -> Sequence[str]:
    """The ports on which processes of that daemon listen."""

    async def listed(executor: Executor) -> list[str]:
        return sorted({str(each.port) for each in await executor.ports(all_sessions=True)})

    return _of_daemon(listed, prefix, parsed_args)


def _of_daemon(
    listed: Callable[[Executor], Coroutine[None, None, list[str]]], prefix: str, parsed_args: Namespace
) -> Sequence[str]:
    import asyncio

    from execclient import ExecServerError
    from execclient.commands.daemon import DaemonOptions
    from execclient.commands.failures import CommandExit

    daemon = DaemonOptions(parsed_args.url, parsed_args.token_file)

    async def words() -> list[str]:
        async with asyncio.timeout(PATIENCE_SECONDS), daemon.connect() as executor:
            return await listed(executor)

    try:
        found = asyncio.run(words())
    except (ExecServerError, CommandExit, OSError, TimeoutError):
        return []  # an error must not appear in the shell's line
    return [each for each in found if each.startswith(prefix) and _HARMLESS.fullmatch(each)]


def signals(prefix: str, **_: object) -> Sequence[str]:
    """The names of signals, with SIG if the word begins with it."""
    from signal import Signals

    names = [each.name for each in Signals]
    short = [name.removeprefix("SIG") for name in names]
    return [name for name in (names if prefix.startswith("SIG") else short) if name.startswith(prefix)]
