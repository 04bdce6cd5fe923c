"""`execserver ps`: list the daemon's processes."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from execclient.commands.daemon import DaemonOptions, Listed, Processes
from execclient.commands.durations import duration
from execclient.commands.terminal import printable


async def ps(daemon: DaemonOptions, *, ended: bool, argv: bool, as_json: bool) -> int:
    """Print the processes of all sessions, the oldest first; with `ended`, those that ended, too."""
    async with AsyncExitStack() as stack:
        processes = await Processes(daemon, stack).all(argv=argv)
    shown = [each for each in processes if ended or each["state"] == "running"]
    if as_json:
        print(json.dumps(shown, indent=2), flush=True)
    else:
        _print_table(shown, argv=argv)
    return 0


Column = tuple[str, str, Callable[[Listed], str]]
"""Heading, alignment, and text of a cell."""


def columns(*, argv: bool) -> Sequence[Column]:
    """The columns of the table."""
    always: list[Column] = [
        ("ID", "left", lambda each: str(each["processId"])),
        ("STATE", "left", state),
        ("PID", "right", lambda each: str(each["pid"] or "")),
        ("AGE", "right", lambda each: duration(each["ageMs"] / 1000)),
        ("CPU", "right", lambda each: "" if each["cpuSeconds"] is None else duration(each["cpuSeconds"])),
        ("MEMORY", "right", lambda each: "" if each["rssBytes"] is None else amount(each["rssBytes"])),
        ("PROCS", "right", lambda each: str(each["processCount"] or "")),
        ("TTY", "left", lambda each: "yes" if each["tty"] else ""),
        ("OUTPUT", "right", lambda each: amount(each["retainedBytes"])),
        ("SESSION", "left", lambda each: str(each["sessionId"])),
    ]
    command: list[Column] = [("COMMAND", "left", lambda each: shlex.join(each["argv"] or []))]
    return always + command if argv else always


def state(process: Listed) -> str:
    """`running`, or the exit code and the cause of the exit."""
    if process["state"] == "running":
        return "running"
    cause = process["cause"]
    return f"exited {process['exitCode']}" + (
        f" ({cause})" if cause not in (None, "normal", "signal") else ""
    )


def amount(count: float) -> str:
    """A number of bytes for people: 512 B, 3.2 KiB, 45 MiB."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while count >= 1024 and unit != "TiB":
        count, unit = count / 1024, next(units)
    return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"


def _print_table(processes: Sequence[Listed], *, argv: bool) -> None:
    shown = columns(argv=argv)
    rows = [[printable(text(each)) for _, _, text in shown] for each in processes]
    if os.isatty(1):
        _print_rich(shown, rows)
    else:
        _print_plain(shown, rows)


def _print_rich(shown: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, alignment, _ in shown:
        # A narrow window cuts the command, but no column that other commands need.
        table.add_column(
            heading,
            justify="right" if alignment == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=8 if heading == "COMMAND" else None,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _print_plain(shown: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    table = [[heading for heading, _, _ in shown], *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(shown))]
    for row in table:
        cells = (
            cell.rjust(width) if alignment == "right" else cell.ljust(width)
            for cell, width, (_, alignment, _) in zip(row, widths, shown, strict=True)
        )
        print("  ".join(cells).rstrip())
