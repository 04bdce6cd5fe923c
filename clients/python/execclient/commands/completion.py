"""What a shell offers when the tab key is pressed.

The shells call us with `VARIABLE` set. What comes from the daemon is offered only if it is harmless:
the shells evaluate what they get.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence

import typer
from typer.completion import get_completion_inspect_parameters

from execclient import ExecServerError
from execclient.commands.daemon import Daemon, listing
from execclient.commands.failures import Failure

VARIABLE = "_EXECSERVER_COMPLETE"
"""The console script looks for it, too."""

DAEMON_COMMANDS = {
    "serve": "run the daemon",
    "config": "look at the configuration",
    "doctor": "can commands be confined here?",
    "relay": "let executors and clients meet that are behind firewalls",
}
"""Commands of the same program that the server has: `execserver.cli`, `execserver.relay.service.command`."""

PATIENCE_SECONDS = 1.0
"""Somebody waits at the keyboard."""

_HARMLESS = re.compile(r"[A-Za-z0-9._-]+")


def prepare() -> None:
    """Let typer know the shells, which it otherwise learns with options that would edit start files."""
    get_completion_inspect_parameters()


def process_ids(context: typer.Context, incomplete: str) -> Sequence[str]:
    """The ids of the processes at the daemon that the line names so far; none when it does not answer."""
    daemon = Daemon(context.params.get("url"), context.params.get("token_file"))
    try:
        ids = asyncio.run(_process_ids(daemon))
    except (ExecServerError, Failure, OSError, TimeoutError):
        return []  # the shell's line is no place for an error
    return [each for each in ids if each.startswith(incomplete) and _HARMLESS.fullmatch(each)]


def signals(incomplete: str) -> Sequence[str]:
    """The names of signals, with or without SIG as they are begun."""
    names = [each.name for each in signal.Signals]
    short = [name.removeprefix("SIG") for name in names]
    return [
        name for name in (names if incomplete.startswith("SIG") else short) if name.startswith(incomplete)
    ]


async def _process_ids(daemon: Daemon) -> list[str]:
    async with asyncio.timeout(PATIENCE_SECONDS), daemon.connect() as executor:
        return [str(each["processId"]) for each in await listing(executor)]
