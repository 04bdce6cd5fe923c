"""`execserver watch`: print changes of files on the daemon's machine as they happen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from execclient import Change, Executor, Watch
from execclient.commands.daemon import DaemonOptions
from execclient.commands.failures import INCOMPLETE, CommandExit, print_message
from execclient.commands.sandboxes import file_sandbox
from execclient.commands.signals import Signals
from execclient.commands.streams import OutputWriter
from execprotocol.command_line import OUTPUT_CLOSED, printable

if TYPE_CHECKING:
    from execclient.govern.sandbox import SandboxPolicy


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The options of the command."""

    recursive: bool
    ignore_rules: bool
    exclude_dirs: tuple[str, ...]
    once: bool
    """Whether to end after the first changes."""
    quiet: bool
    """Whether to print no message when the watch begins."""
    as_json: bool
    sandbox: SandboxPolicy | None
    """The limits on the daemon's machine; the daemon's working directory is the workspace."""


async def watch(daemon: DaemonOptions, path: str, options: WatchOptions) -> int:
    """Print the changes below a path until the watch ends, a signal comes, or the reader is gone."""
    output = OutputWriter()
    with Signals() as signals:
        status = await signals.unless_signalled(_connected(daemon, path, options, output))
    if output.is_closed:
        return OUTPUT_CLOSED
    if output.failure is not None:
        raise CommandExit(f"output cannot be written: {output.failure.strerror}")
    return status


async def _connected(daemon: DaemonOptions, path: str, options: WatchOptions, output: OutputWriter) -> int:
    async with daemon.connect() as executor, await _watch(executor, path, options) as watched:
        if not options.quiet:
            polls = " (on a network mount: it is listed every two seconds)"
            print_message(f"watching {watched.path}{polls if watched.mode == 'polling' else ''}")
        return await _print(watched, options, output)


async def _watch(executor: Executor, path: str, options: WatchOptions) -> Watch:
    return executor.watch(
        path,
        recursive=options.recursive,
        ignore_rules=options.ignore_rules,
        exclude_dirs=options.exclude_dirs,
        sandbox=await file_sandbox(executor, options.sandbox, executor.cwd),
    )


async def _print(watched: Watch, options: WatchOptions, output: OutputWriter) -> int:
    while changes := await watched.batch():
        form = _record if options.as_json else _line
        output.put(1, "".join(f"{form(change)}\n" for change in changes).encode("utf-8", "surrogateescape"))
        # The daemon keeps the changes that follow better than this program.
        await output.settled()
        if options.once or output.failure is not None:
            return 0
    print_message(f"{watched.path}: {watched.message or watched.ended}")
    return INCOMPLETE


def _line(change: Change) -> str:
    slash = "/" if change.is_dir else ""
    previous = "" if change.previous is None else f"{printable(change.previous)}{slash} -> "
    return f"{change.kind:8}  {previous}{printable(change.path)}{slash}"


def _record(change: Change) -> str:
    previous = {} if change.previous is None else {"from": change.previous}
    return json.dumps({"kind": change.kind, "path": change.path, **previous, "isDirectory": change.is_dir})
