"""The terminal that somebody sits at: raw while a remote one is shown on it, and then as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

LEAVE_SCREEN = (
    b"\x1b[?1000;1002;1003;1006l"  # no mouse
    b"\x1b[?2004l"  # no bracketed paste
    b"\x1b[?1l\x1b>"  # cursor keys and keypad as usual
    b"\x1b[?1049l"  # the main screen
    b"\x1b[?25h"  # the cursor is seen
    b"\x1b[0m\x1b[r\x1b[999;1H\r\n"  # no colours, the whole screen scrolls; below what is on it
)
"""Undoes what a full-screen program may have set when it is left running."""


def screen_size() -> tuple[int, int] | None:
    """Rows and columns of the terminal at one of our streams; None without one, or when it has no size."""
    for descriptor in (0, 1, 2):
        try:
            columns, rows = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if rows and columns:
            return rows, columns
    return None


class RawTerminal:
    """The terminal at standard input passes on every key, as long as the block lasts.

    When it is stopped from outside it is as it was for the time being.
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
        """Hand on every new size, for ever."""
        while True:
            await self._resized.wait()
            self._resized.clear()
            size = screen_size()
            if size is not None:
                await resize(*size)

    def _set_raw(self) -> None:
        self._before = termios.tcgetattr(0)
        # Not flushed: what was typed ahead is meant for the remote program.
        tty.setraw(0, termios.TCSADRAIN)

    def _restore(self) -> None:
        try:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        except termios.error:
            return  # the terminal is gone

    def _stop(self) -> None:
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        # Goes on here after SIGCONT; the window may have changed meanwhile.
        self._set_raw()
        self._resized.set()


def printable(text: str, keep: str = "") -> str:
    """The text with every character that cannot be seen written as its number, such as `\\x1b`.

    Those are control characters, marks for the direction of writing, separators other than the blank, and
    lone surrogates.

    Args:
        text: anything.
        keep: what stays as it is all the same, such as line ends.
    """
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)
