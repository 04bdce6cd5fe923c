"""The user's terminal: raw mode for a remote terminal, colors, and text that is safe to print."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self

from execprotocol.command_line import printable

LEAVE_SCREEN = (
    b"\x1b[?1000;1002;1003;1006l"  # no mouse
    b"\x1b[?2004l"  # no bracketed paste
    b"\x1b[?1l\x1b>"  # cursor keys and keypad as usual
    b"\x1b[?1049l"  # the main screen
    b"\x1b[?25h"  # visible cursor
    b"\x1b[0m\x1b[r\x1b[999;1H\r\n"  # no colors, the whole screen scrolls, cursor below its content
)
"""Undoes the settings of a full-screen program that is left running."""

When = Literal["auto", "always", "never"]
"""The values of `--color`."""


def is_colored(when: When) -> bool:
    """Whether to color stdout: by default on a terminal with colors, unless `NO_COLOR` is set."""
    if when == "auto":
        return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return when == "always"


def is_for_people(when: When) -> bool:
    """Whether a person reads stdout, and not another program."""
    return os.isatty(1) or is_colored(when)


def visible(text: str) -> str:
    """The text with invisible characters escaped, except for line ends and tabs."""
    return printable(text, keep="\n\t")


def screen_size() -> tuple[int, int] | None:
    """Rows and columns of the terminal of a standard stream; None without a terminal or a size."""
    for descriptor in (0, 1, 2):
        try:
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return None


class RawTerminal:
    """Puts the terminal of stdin into raw mode within a `with` block.

    While the program is stopped by SIGTSTP, the terminal has its former mode.
    """

    def __init__(self) -> None:
        self._before: list[Any] = []
        self._resized = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._set_raw()
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_signal_handler(signal.SIGTSTP)
        self._restore()

    async def follow_size(self, resize: Callable[[int, int], Awaitable[None]]) -> None:
        """Report every new size, without end."""
        while True:
            await self._resized.wait()
            self._resized.clear()
            size = screen_size()
            if size is not None:
                await resize(*size)

    def _set_raw(self) -> None:
        self._before = termios.tcgetattr(0)
        # Not flushed: input typed ahead is meant for the remote program.
        tty.setraw(0, termios.TCSADRAIN)

    def _restore(self) -> None:
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        except termios.error:
            return  # the terminal is gone

    def _stop(self) -> None:
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        # Continues here after SIGCONT; the size may have changed meanwhile.
        self._set_raw()
        self._resized.set()
