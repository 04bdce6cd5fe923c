"""structlog to stderr, JSON or console, written by a thread of its own.

What is logged: that things happened, to which connection, session and process. Never: tokens,
environment values, file contents, command output or arguments.

stderr may be a pipe that nobody reads. The daemon must not stop for that, so lines go through
a bounded queue; when it is full they are counted and dropped, and the count is logged.

structlog is loaded with the first line: it takes a tenth of the start of a daemon, which says nothing before
the first requests are answered unless something is wrong.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from execserver.loading import LOADER, deferred

if TYPE_CHECKING:
    import structlog
else:
    structlog = deferred("structlog")

_QUEUED_LINES = 10_000
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "console")


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40}
_least = 0
"""The least level of which anything comes; of all, where nothing was set up."""
_set_up: Callable[[], None] | None = None
"""What is left to do before the first line."""


class Logger:
    """Says what happened.

    Args:
        bound: what is in every line.
    """

    __slots__ = ("_bound",)

    def __init__(self, **bound: object) -> None:
        self._bound = bound

    def bind(self, **more: object) -> Logger:
        """One that says this, too."""
        return Logger(**self._bound | more)

    def debug(self, event: str, **values: object) -> None:
        """For whoever looks for a mistake."""
        self._say("debug", event, values)

    def info(self, event: str, **values: object) -> None:
        """Something happened."""
        self._say("info", event, values)

    def warning(self, event: str, **values: object) -> None:
        """Something is not as it should be."""
        self._say("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        """Something could not be done."""
        self._say("error", event, values)

    def exception(self, event: str, **values: object) -> None:
        """An error, with the exception that is being handled."""
        self._say("exception", event, values)

    def _say(self, method: str, event: str, values: dict[str, Any]) -> None:
        if _LEVELS[method] < _least:
            return
        try:
            if _set_up is not None:
                LOADER.load(_set_up)
        except OSError:
            return  # There is not one descriptor: what is to be done matters more than what is said of it.
        getattr(structlog.get_logger(), method)(event, **self._bound | values)


class LineWriter:
    """Writes lines to a stream from a thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(_QUEUED_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def msg(self, message: str) -> None:
        """Queue one line."""
        try:
            self._lines.put_nowait(message)
        except queue.Full:
            self._dropped += 1

    debug = info = warning = warn = error = critical = exception = fatal = log = msg

    def flush(self, timeout: float) -> None:
        """Wait until what was queued is written, at most `timeout` seconds."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            note = f"({dropped} log lines dropped: nobody reads stderr)\n" if dropped else ""
            try:
                self._stream.write(f"{note}{line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # stderr is gone; there is nobody left to tell


def configure(level: str, form: str) -> LineWriter:
    """Set the log of this process up."""
    global _least, _set_up
    writer = LineWriter(sys.stderr)
    _least = _LEVELS[level]
    _set_up = lambda: _configure_structlog(level, form, writer)  # noqa: E731
    return writer


def _configure_structlog(level: str, form: str, writer: LineWriter) -> None:
    global _set_up
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form == "json"
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # Where rich is installed the default shows local variables, among them tokens.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_args: writer,
    )
    _set_up = None
