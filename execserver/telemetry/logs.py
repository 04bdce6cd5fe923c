"""The log: lines on stderr, as JSON or as text for people, rendered by structlog and written by a thread.

Events of the daemon are logged, with their connection, session and process. Tokens, environment values, file
contents, command output and arguments are never logged.

stderr may be a pipe without a reader, which must not block the daemon. So lines go through a bounded queue;
lines above its bound are counted and dropped, and the count is logged. The thread also renders them:
structlog takes 40 ms to load, and the first command of a client must not wait for it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from execserver.loading import LOADER

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_QUEUED_LINES = 10_000
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "json", "text", "console")
"""`auto` is text on a terminal, and JSON elsewhere; `console` is an earlier name of `text`."""

LOAD_AFTER_SECONDS = 0.1
"""The time between the first line and the load of structlog. By then, the first command of a client that
started the daemon for it has begun."""

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40}

_context: ContextVar[Mapping[str, object]] = ContextVar("fields of log lines", default={})  # noqa: B039
_least = 0
"""The lowest level that is written; 0 (all) if the log is not configured."""
_writer: LineWriter | None = None
"""None if the log is not configured."""


@contextmanager
def bound_fields(**fields: object) -> Iterator[None]:
    """Add fields to every line that is logged inside, also by tasks created inside."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


class Logger:
    """Writes log lines.

    Args:
        bound: fields of every line.
    """

    __slots__ = ("_bound",)

    def __init__(self, **bound: object) -> None:
        self._bound = bound

    def bind(self, **more: object) -> Logger:
        """A logger with more fields."""
        return Logger(**self._bound | more)

    def debug(self, event: str, **values: object) -> None:
        """Log a detail for debugging."""
        self._log("debug", event, values)

    def info(self, event: str, **values: object) -> None:
        """Log an event."""
        self._log("info", event, values)

    def warning(self, event: str, **values: object) -> None:
        """Log a problem that the daemon can handle."""
        self._log("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        """Log a failure."""
        self._log("error", event, values)

    def exception(self, event: str, **values: object) -> None:
        """Log a failure with the exception that is being handled."""
        self._log("exception", event, values)

    def _log(self, method: str, event: str, values: dict[str, Any]) -> None:
        if _LEVELS[method] < _least:
            return
        fields = {**_context.get(), **self._bound, **values}
        if _writer is None:
            import structlog

            getattr(structlog.get_logger(), method)(event, **fields)
            return
        if method == "exception":
            fields.setdefault("exc_info", sys.exc_info())
        _writer.put(Line(method, event, fields, time.time()))


class Line(NamedTuple):
    """One line before it is rendered."""

    method: str
    event: str
    fields: dict[str, Any]
    at: float
    """Unix time, in seconds."""


class LineWriter:
    """Renders lines and writes them to a stream, in a thread.

    Args:
        stream: the output.
        form: one of `FORMATS`.
    """

    def __init__(self, stream: TextIO, form: str) -> None:
        self._stream = stream
        self._form = form
        self._lines: queue.Queue[Line | None] = queue.Queue(_QUEUED_LINES)
        self._dropped = 0
        self._flushing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        """Queue one line."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def flush(self, timeout: float) -> None:
        """Wait for at most `timeout` seconds until all queued lines are written. The last call."""
        self._flushing.set()
        end = time.monotonic() + timeout
        try:
            self._lines.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(end - time.monotonic())

    def _run(self) -> None:
        render: Callable[[Line], str] | None = None
        while (line := self._lines.get()) is not None:
            if render is None:
                self._flushing.wait(LOAD_AFTER_SECONDS)
                try:
                    render = LOADER.load(lambda: _renderer(self._form, terminal=self._stream.isatty()))
                except OSError:  # without a descriptor: the next line tries again
                    self._dropped += 1
                    continue
            dropped, self._dropped = self._dropped, 0
            note = f"({dropped} log lines dropped: stderr is not read, or there were no descriptors)\n"
            try:
                self._stream.write(f"{note if dropped else ''}{_rendered(render, line)}\n")
                self._stream.flush()
            except (OSError, ValueError):
                return  # stderr is gone


def configure(level: str, form: str) -> LineWriter:
    """Set up the log of this process.

    Args:
        level: the lowest level that is written, one of `LEVELS`.
        form: one of `FORMATS`.
    """
    global _least, _writer
    _least = _LEVELS[level]
    _writer = LineWriter(sys.stderr, form)
    return _writer


def _rendered(render: Callable[[Line], str], line: Line) -> str:
    try:
        return render(line)
    except Exception as error:  # a value without a text: leave it out, and keep the log
        plain = {name: value for name, value in line.fields.items() if isinstance(value, str | int | float)}
        return render(line._replace(fields={**plain, "left_out": type(error).__name__}))


def _renderer(form: str, *, terminal: bool) -> Callable[[Line], str]:
    structlog = import_module("structlog")
    as_json = form == "json" or (form == "auto" and not terminal)
    processors: list[Processor] = [structlog.processors.format_exc_info]
    if as_json:
        processors.append(structlog.processors.JSONRenderer())
    else:
        console = structlog.dev.ConsoleRenderer(
            colors=terminal and not os.environ.get("NO_COLOR"),
            # With rich installed, the default shows local variables, such as tokens.
            exception_formatter=structlog.dev.plain_traceback,
            repr_native_str=True,
            sort_keys=False,
            pad_event_to=0,
            pad_level=False,
        )
        processors += [_escaped, console]

    def render(line: Line) -> str:
        fields = {**line.fields, "event": line.event}
        rendered: Any = structlog.processors.add_log_level(None, line.method, fields)
        rendered["timestamp"] = _utc(line.at) if as_json else f"{datetime.fromtimestamp(line.at):%F %T}"
        for process in processors:
            rendered = process(None, line.method, rendered)
        return str(rendered)

    return render


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _escaped(_logger: object, _method: str, fields: EventDict) -> EventDict:
    """Escape what could control a terminal in the texts that the console renderer does not quote."""
    from execprotocol.command_line import printable  # late: it loads argparse, and JSON needs neither

    for name in ("event", "exception"):
        if name in fields:
            fields[name] = printable(str(fields[name]), keep="\n")
    return fields
