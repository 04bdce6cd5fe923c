"""A reviewer that asks a person at a terminal.

Rules kept in this file:

1. The text shows what will run: characters that move the cursor, change the direction of writing or are
   invisible are escaped.
2. Only a complete answer counts. Any other input repeats the question; EOF ends the turn.
3. One question at a time. On a terminal, input typed before a question does not answer it.
4. Nothing is pushed out of sight: long runs of blanks and empty lines are replaced by their number, and the
   length of a long command is shown below it.
5. A thread waits for the person, never the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import select
import shlex
import termios
import threading
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TextIO

from execclient.govern.approvals import ACCEPT, ACCEPT_FOR_SESSION, CANCEL, ApprovalRequest, Review
from execclient.govern.network import NetworkTarget, host_and_port

__all__ = ["TerminalApprover", "visible"]

_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Fillers and a blank pattern that Unicode counts as letters and marks."""

_SELECTORS = frozenset(
    map(chr, [*range(0x180B, 0x180E), 0x180F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
)
"""Variation selectors: marks that are visible at most as another form of the character before them."""


MAX_BLANKS = 40
"""In a row. More would push the following text out of sight."""

MAX_MARKS = 3
"""On one letter, more than any language needs: marks are drawn over the letter and the lines around it."""

MAX_EMPTY_LINES = 2
"""In a row. More would push the following text out of sight."""

LONG_CHARACTERS, LONG_LINES = 2000, 20
"""About the size of a terminal. The beginning of a longer command may be out of sight."""

_MANY_BLANKS = re.compile(f" {{{MAX_BLANKS + 1},}}")


class TerminalApprover:
    """A `Reviewer` that asks on a terminal, or on any two text streams.

    Args:
        input: the stream of answers, one on each line.
        output: the stream for questions.
    """

    def __init__(self, input: TextIO, output: TextIO) -> None:  # noqa: A002 - the usual names of the streams
        self._output = output
        self._lines = Lines(input)
        self._turn = asyncio.Lock()

    async def review(self, request: ApprovalRequest) -> Review | None:
        """Ask until there is an answer.

        Raises:
            OSError: a stream cannot be used.
        """
        async with self._turn:
            self._lines.forget()
            self._write("\n".join(_question(request)) + "\n")
            while True:
                self._write(f"{_choices(request)}\n> ")
                line = await self._lines.next()
                if not line:
                    self._write("\nThe input has ended, and with it the turn.\n")
                    return CANCEL
                review = _answer(line.strip(), request)
                if review is not None:
                    return review
                self._write("That is none of the answers.\n")

    def _write(self, text: str) -> None:
        encoding = self._output.encoding or "utf-8"
        # Characters that the terminal's encoding does not have are escaped.
        self._output.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._output.flush()


def visible(text: str) -> str:
    r"""A text as one line with invisible characters escaped: `\n`, `\x1b`, `\u202e`.

    More than `MAX_BLANKS` blanks in a row, or more than `MAX_MARKS` accents on one letter, are replaced by
    their number.
    """
    text = _MANY_BLANKS.sub(lambda match: f" [{len(match[0])} blanks] ", text)
    return "".join(
        f"[{len(run)} marks]" if len(run) > MAX_MARKS and is_mark else run
        for is_mark, run in _runs("".join(_escaped(char) if _hides(char) else char for char in text))
    )


def _runs(text: str) -> Iterator[tuple[bool, str]]:
    for is_mark, run in itertools.groupby(text, lambda char: unicodedata.category(char) in ("Mn", "Me")):
        yield is_mark, "".join(run)


def _hides(char: str) -> bool:
    if char == " ":
        return False
    # Cc, Cf, Cs, Co, Cn: controls, directions, joiners and unassigned ones. Zs, Zl, Zp: other blanks.
    return unicodedata.category(char)[0] in "CZ" or char in _INVISIBLE_LETTERS or char in _SELECTORS


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def quoted(mark: str, text: str) -> list[str]:
    """The lines of a text with a bar in front of each, so that none looks like a line of the question.

    Args:
        mark: goes before the first line.
        text: from the model.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    shown: list[str] = []
    for is_empty, run in itertools.groupby(lines, lambda line: not line.strip()):
        several = list(run)
        if is_empty and len(several) > MAX_EMPTY_LINES:
            shown.append(f"  : {len(several)} empty lines")
            continue
        shown += [
            f"  | {' ' * len(mark) if shown or index else mark}{visible(line)}"
            for index, line in enumerate(several)
        ]
    return shown


def length_note(command: str) -> str:
    """How long a command is whose beginning may be out of sight; empty for a shorter one."""
    written = command.count("\n") + 1
    if len(command) <= LONG_CHARACTERS and written <= LONG_LINES + 1:
        return ""
    return f"{len(command)} characters in {written} lines; read them all"


# -- the question


def _question(request: ApprovalRequest) -> list[str]:
    lines = ["", visible(request.prompt or HEADLINES[request.kind])]
    if request.retry:
        lines.append("The sandbox denied something to its first run. It would run a second time.")
    if request.network is not None:
        lines += network_lines(request.network)
    lines += quoted("$ ", request.command)
    if length := length_note(request.command):
        lines.append(f"  length:  {length}")
    lines += [f"  file:    {visible(path)}" for path in request.paths]
    lines.append(f"  folder:  {visible(request.cwd)}")
    if request.reason:
        lines.append(f"  reason:  {visible(request.reason)}")
    lines += [f"  permits: {visible(sentence)}" for sentence in request.permits]
    lines += quoted("", request.diff or "")
    return lines


HEADLINES = {
    "command": "The model asks to run a command.",
    "patch": "The model asks to change files.",
    "network": "A running command asks for a host on the network.",
}
"""The text above a question, by its kind."""


def network_lines(target: NetworkTarget) -> list[str]:
    """The lines of a question about a host."""
    return [
        f"  host:     {visible(target.host)}",
        f"  port:     {target.port}",
        f"  protocol: {target.protocol}",
    ]


def _choices(request: ApprovalRequest) -> str:
    once = "once" if request.network is None else "for this command"
    choices = [f"y: yes, {once}", "n [WHY]: no", "a: yes, for the whole session"]
    if request.amendment is not None:
        choices.append(f"p: yes, and always what begins with {visible(shlex.join(request.amendment))}")
    if request.rule is not None:
        rule = request.rule
        choices.append(
            f"p: yes, and always {rule.protocol} to {visible(host_and_port(rule.host, rule.port))}"
        )
    return "; ".join([*choices, "q: end the turn"])


def _answer(line: str, request: ApprovalRequest) -> Review | None:
    word, _, why = line.partition(" ")
    if word in ("n", "no"):
        return Review("denied", why.strip() or None)
    match line:
        case "y" | "yes":
            return ACCEPT
        case "a":
            return ACCEPT_FOR_SESSION
        case "q":
            return CANCEL
        case "p" if request.amendment is not None:
            return Review("approved_with_amendment", amendment=request.amendment)
        case "p" if request.rule is not None:
            return Review("approved_with_amendment", rule=request.rule)
    return None


# -- the answer


class Lines:
    """Reads lines of a text stream, each in a thread of its own.

    The thread of a terminal waits for input without reading it, and can be stopped: input typed after a
    question was withdrawn belongs to the next reader. On another stream the read continues, and the next
    question gets the line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.fileno() if stream.isatty() else None
        self._reading: Future[str] | None = None

    def forget(self) -> None:
        """Drop a line that came after a question was withdrawn, and all pending input of a terminal."""
        if self._reading is not None and self._reading.done():
            self._reading = None
        if self._terminal is not None:
            termios.tcflush(self._terminal, termios.TCIFLUSH)

    async def next(self) -> str:
        """The next line, with its newline; empty at EOF.

        Raises:
            OSError: the stream cannot be read.
        """
        if self._terminal is not None:
            return await self._typed(self._terminal)
        if self._reading is None:
            self._reading = _in_thread(self._stream.readline)
        line = await asyncio.wrap_future(self._reading)
        self._reading = None
        return line

    async def _typed(self, terminal: int) -> str:
        awake, wake = os.pipe()
        poll = select.poll()  # select(2) takes no descriptor above 1023
        poll.register(terminal, select.POLLIN)
        poll.register(awake, select.POLLIN)

        def read() -> str:
            try:
                return "" if awake in dict(poll.poll()) else self._stream.readline()
            finally:
                os.close(awake)

        try:
            return await asyncio.wrap_future(_in_thread(read))
        finally:
            os.close(wake)


def _in_thread(read: Callable[[], str]) -> Future[str]:
    """Read in a daemon thread, for which the end of the program does not wait."""
    line: Future[str] = Future()
    # If the waiting task is cancelled, the line is still read.
    line.set_running_or_notify_cancel()

    def run() -> None:
        try:
            line.set_result(read())
        except Exception as error:  # raised in the waiting task
            line.set_exception(error)

    threading.Thread(target=run, name="approval", daemon=True).start()
    return line
