"""structlog to stderr, JSON or console, written by a thread of its own.

What is logged: that things happened, to which connection, session and process. Never: tokens,
environment values, file contents, command output or arguments.

stderr may be a pipe that nobody reads. The daemon must not stop for that, so lines go through
a bounded queue; when it is full they are counted and dropped, and the count is logged.

structlog takes a tenth of the start of a daemon to load. So it is loaded a moment after it, or with the first
line that says that something is wrong; lines before that are held, and carry their own time.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
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
_held: list[tuple[Logger, str, str, dict[str, Any]]] | None = None
"""Lines that wait for it; None when none are to wait."""
_holding = threading.Lock()
_HELD_SINCE = "held since"


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
        if _set_up is not None:
            if method in ("debug", "info") and self._is_held(method, event, values):
                return
            try:
                begin()
            except OSError:
                return  # There is not one descriptor: what is to be done matters more than what is said.
        self._write(method, event, values)

    def _is_held(self, method: str, event: str, values: dict[str, Any]) -> bool:
        # With a trace of a request structlog is there, and knows of what request a line is.
        if "structlog" in sys.modules:
            return False
        with _holding:
            if _held is None:
                return False
            _held.append((self, method, event, {**values, _HELD_SINCE: time.time()}))
            return True

    def _write(self, method: str, event: str, values: dict[str, Any]) -> None:
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


def configure(level: str, form: str, *, hold: bool = False) -> LineWriter:
    """Set the log of this process up.

    Args:
        level: the least that is written, of `LEVELS`.
        form: of `FORMATS`.
        hold: whether lines may wait until `begin` is called.
    """
    global _least, _set_up, _held
    writer = LineWriter(sys.stderr)
    _least = _LEVELS[level]
    _set_up = lambda: _configure_structlog(level, form, writer)  # noqa: E731
    _held = [] if hold else None
    return writer


def begin() -> None:
    """Load structlog, and write what was held.

    Raises:
        OSError: there is no descriptor for it (EMFILE, ENFILE).
        ImportError: the installation is broken.
    """
    global _set_up, _held
    if _set_up is not None:
        LOADER.load(_set_up)
    with _holding:
        held, _held, _set_up = _held, None, None
    for logger, level, event, values in held or ():
        logger._write(level, event, values)  # noqa: SLF001


def _configure_structlog(level: str, form: str, writer: LineWriter) -> None:
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
            _stamp_held,
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_args: writer,
    )


def _stamp_held(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    since = line.pop(_HELD_SINCE, None)
    if since is not None:
        line["timestamp"] = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
    return line
