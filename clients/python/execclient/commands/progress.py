"""A progress bar on the terminal of stderr: what was done, how fast, and how long the rest takes."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Self

from execclient.commands.ps import amount
from execclient.commands.terminal import printable

DRAW_SECONDS = 0.1
"""Between two drawings: more cannot be read, and each costs a system call."""

BAR_CELLS = 20

_CLEAR = "\r\x1b[K"


class ProgressBar:
    """Draws the progress of a copy within a `with` block. The last state stays on the screen.

    Args:
        name: what is copied.
        total: its bytes; None if that is not known.
    """

    def __init__(self, name: str, total: int | None) -> None:
        self._name = printable(name)
        self._total = total
        self._done = 0
        self._began = self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()
        self._write("\n")

    def advance(self, count: int) -> None:
        """Report so many more bytes."""
        self._done += count
        if time.monotonic() - self._drawn >= DRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        try:
            width = os.get_terminal_size(2).columns or 80
        except OSError:
            width = 80
        # One column is left: a terminal wraps a line that fills the last one.
        self._write(
            _CLEAR + bar_text(self._name, self._done, self._total, self._drawn - self._began)[: width - 1]
        )

    def _write(self, text: str) -> None:
        try:
            os.write(2, text.encode(errors="backslashreplace"))
        except OSError:
            return  # the terminal is gone


def bar_text(name: str, done: int, total: int | None, seconds: float) -> str:
    """The text of the bar: name, bar, share, bytes, rate and remaining time."""
    rate = done / seconds if seconds > 0 else 0.0
    speed = f"  {amount(rate)}/s" if rate else ""
    if not total:
        return f"{name}  {amount(done)}{speed}"
    share = min(done / total, 1.0)
    full = int(share * BAR_CELLS)
    bar = "━" * full + " " * (BAR_CELLS - full)
    rest = f"  {_clock((total - done) / rate)} left" if rate and done < total else ""
    return f"{name}  {bar} {share:4.0%}  {amount(done)} of {amount(total)}{speed}{rest}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
