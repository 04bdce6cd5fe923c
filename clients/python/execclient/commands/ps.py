"""`execserver ps`: list the daemon's processes."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal, NamedTuple

from execclient.commands.daemon import DaemonOptions, Listed, Processes
from execclient.commands.values import amount, rough_duration
from execprotocol.command_line import printable

COMMAND_WIDTH = 16
"""The least width of the command line; other columns give way before it is cut shorter."""

_SEPARATOR = "  "


@dataclass(frozen=True, slots=True)
class PsOptions:
    """The options of the command."""

    ended: bool
    """Whether to include processes that ended."""
    argv: bool
    """Whether to show the command lines."""
    format: Literal["table", "wide", "json"]
    quiet: bool
    """Whether to print the IDs only."""


async def ps(daemon: DaemonOptions, options: PsOptions) -> int:
    """Print the processes of all sessions, the oldest first."""
    async with AsyncExitStack() as stack:
        names = options.format != "json" and not options.quiet
        processes = await Processes(daemon, stack).all(argv=options.argv or names)
    shown = [each for each in processes if options.ended or each["state"] == "running"]
    if options.format == "json":
        ids = [each["processId"] for each in shown]
        print(json.dumps(ids if options.quiet else shown, indent=2), flush=True)
    elif options.quiet:
        _print_lines([printable(str(each["processId"])) for each in shown])
    else:
        width = _terminal_width() if options.format == "table" else None
        _print_lines(table(shown, argv=options.argv, width=width))
    return 0


class Column(NamedTuple):
    """A column of the table."""

    heading: str
    text: Callable[[Listed], str]
    """The text of a cell."""
    rank: int
    """Of the columns that do not fit, the one with the highest rank is left out first; 0 is always shown."""
    right: bool = False
    """Whether it is aligned to the right."""


COLUMNS = (
    Column("ID", lambda each: str(each["processId"]), 0),
    Column("STATE", lambda each: state(each), 0),
    Column("PID", lambda each: str(each["pid"] or ""), 3, right=True),
    Column("AGE", lambda each: rough_duration(each["ageMs"] / 1000), 2, right=True),
    Column("CPU", lambda each: _optional(rough_duration, each["cpuSeconds"]), 5, right=True),
    Column("MEMORY", lambda each: _optional(amount, each["rssBytes"]), 4, right=True),
    Column("PROCS", lambda each: str(each["processCount"] or ""), 6, right=True),
    Column("TTY", lambda each: "yes" if each["tty"] else "", 7),
    Column("OUTPUT", lambda each: amount(each["retainedBytes"]), 8, right=True),
    Column("SESSION", lambda each: str(each["sessionId"]), 9),
)

NAME = Column("NAME", lambda each: os.path.basename((each["argv"] or [""])[0]), 1)
"""In place of the command line, whose arguments may be secrets."""

COMMAND = Column("COMMAND", lambda each: shlex.join(each["argv"] or []), 0)


def table(processes: Sequence[Listed], *, argv: bool, width: int | None) -> list[str]:
    """The lines of the table.

    Args:
        processes: the rows.
        argv: whether the last column has the command lines, in place of the names of the programs.
        width: the columns of the terminal; None for a table as wide as it needs.
    """
    columns = [*COLUMNS, COMMAND if argv else NAME]
    cells = {each: [each.heading, *(printable(each.text(row)) for row in processes)] for each in columns}
    widths = {each: max(map(len, cells[each])) for each in columns}
    if width is not None:
        needed = widths | ({COMMAND: min(widths[COMMAND], COMMAND_WIDTH)} if argv else {})
        if sum(widths.values()) + len(_SEPARATOR) * (len(columns) - 1) > width:
            columns = [each for each in columns if not each.rank or any(cells[each][1:])]
        for given_way in sorted(columns, key=lambda each: -each.rank):
            others = sum(needed[each] for each in columns) + len(_SEPARATOR) * (len(columns) - 1)
            if others <= width or not given_way.rank:
                break
            columns.remove(given_way)
        if argv:
            rest = width - sum(widths[each] + len(_SEPARATOR) for each in columns if each is not COMMAND)
            most = max(rest, needed[COMMAND])
            cells[COMMAND] = [
                text if len(text) <= most else text[: most - 1] + "…" for text in cells[COMMAND]
            ]
    return [
        _SEPARATOR.join(
            cells[each][row].rjust(widths[each]) if each.right else cells[each][row].ljust(widths[each])
            for each in columns
        ).rstrip()
        for row in range(len(processes) + 1)
    ]


def state(process: Listed) -> str:
    """`running`, or the exit code and the cause of the exit."""
    if process["state"] == "running":
        return "running"
    cause = process["cause"]
    return f"exited {process['exitCode']}" + (
        f" ({cause})" if cause not in (None, "normal", "signal") else ""
    )


def _optional(text: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else text(value)


def _terminal_width() -> int | None:
    """The columns of the terminal of stdout, or those that `COLUMNS` names; None without a terminal."""
    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        return None
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isascii() and given.isdecimal() and int(given) else columns or None


def _print_lines(lines: Sequence[str]) -> None:
    print("".join(f"{line}\n" for line in lines), end="", flush=True)
