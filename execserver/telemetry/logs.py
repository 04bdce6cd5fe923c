"""structlog to stderr, JSON or console, written by a thread of its own.

What is logged: that things happened, to which connection, session and process. Never: tokens,
environment values, file contents, command output or arguments.

stderr may be a pipe that nobody reads. The daemon must not stop for that, so lines go through
a bounded queue; when it is full they are counted and dropped, and the count is logged.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from typing import TextIO

import structlog

_QUEUED_LINES = 10_000
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("json", "console")


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
    """Set structlog up for this process."""
    writer = LineWriter(sys.stderr)
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
        cache_logger_on_first_use=True,
    )
    return writer
