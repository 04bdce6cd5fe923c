"""Tab completion in shells.

A shell runs the console script with `VARIABLE` set, and evaluates the answer: names that the daemon returns
are offered only if no shell gives them a meaning.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence

import typer
from typer.completion import get_completion_inspect_parameters

from execclient import ExecServerError
from execclient.commands.daemon import DaemonOptions, listing
from execclient.commands.failures import CommandExit

VARIABLE = "_EXECSERVER_COMPLETE"
"""The console script reads it, too."""

DAEMON_COMMANDS = {
    "serve": "run the daemon",
    "config": "show and check the configuration",
    "doctor": "check whether commands can be sandboxed here",
    "relay": "connect executors and clients that are behind firewalls",
}
"""Commands of the same program in the server's package: `execserver.cli`, `execserver.relay.service.command`.
"""

PATIENCE_SECONDS = 1.0
"""For the daemon's answer: a user waits at the keyboard."""

_HARMLESS = re.compile(r"[A-Za-z0-9._-]+")


def prepare() -> None:
    """Register the shells with typer, without its options that would edit start files."""
    get_completion_inspect_parameters()


def process_ids(context: typer.Context, incomplete: str) -> Sequence[str]:
    """The process ids of the daemon that the line names so far; none if the daemon does not answer."""
    daemon = DaemonOptions(context.params.get("url"), context.params.get("token_file"))
    try:
        ids = asyncio.run(_process_ids(daemon))
    except (ExecServerError, CommandExit, OSError, TimeoutError):
        return []  # an error must not appear in the shell's line
    return [each for each in ids if each.startswith(incomplete) and _HARMLESS.fullmatch(each)]


def signals(incomplete: str) -> Sequence[str]:
    """The names of signals, with SIG if the word begins with it."""
    names = [each.name for each in signal.Signals]
    short = [name.removeprefix("SIG") for name in names]
    return [
        name for name in (names if incomplete.startswith("SIG") else short) if name.startswith(incomplete)
    ]


async def _process_ids(daemon: DaemonOptions) -> list[str]:
    async with asyncio.timeout(PATIENCE_SECONDS), daemon.connect() as executor:
        return [str(each["processId"]) for each in await listing(executor)]
