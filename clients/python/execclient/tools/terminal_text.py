"""What a model needs to read of a terminal: the output, without what it typed itself and without the prompt.

Rules kept in this file:

1. A model is shown everything once. What it typed comes back as an echo, and is left out; what stood in the
   last, unfinished line when it was answered before is not repeated.
2. When in doubt it is shown: an echo is left out only where the typed line stands at the beginning of a line,
   or behind something that looks like a prompt.
3. A prompt that is another one than the last time is shown: it asks something.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from typing import NamedTuple

from execclient.tools.terminal_lines import DEFAULT_COLUMNS, TerminalLines

MAX_EXPECTED = 1024
"""Typed lines whose echo is waited for; one who pastes more sees the rest of it."""

MAX_SKIPPED = 8
"""Typed lines that are given up when a later one is echoed: those that answered a password's prompt, say."""

MAX_STANDING = 1 << 14
"""Characters of a line that may still be written into; a program that never ends its line costs no more."""

_PROMPT = re.compile(r"(?:.*[$#%>\u276f] ?|\.\.\. )")
"""Of shells, U+276F for the decorated ones, of shells that wait for more, of Python and its like."""

_TYPED_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)?")
"""Arrow keys and the marks around pasted text."""

_INTERRUPTS = {"\x03": "^C", "\x1a": "^Z", "\x1c": "^\\"}
"""They end the line, and are shown."""


class _Echo(NamedTuple):
    text: str
    without_blanks: str


class TerminalText:
    """The text of one terminal session.

    Tell it with `typed` what is written to the terminal, and have all its output cleaned, in order.

    Args:
        columns: how wide the terminal is.
    """

    def __init__(self, columns: int = DEFAULT_COLUMNS) -> None:
        self._lines = TerminalLines(columns)
        self._expected: deque[tuple[_Echo, ...]] = deque()
        """For each typed line whose echo has not come: what that may be."""
        self._echoed: deque[_Echo] = deque(maxlen=MAX_SKIPPED)
        """Those that came without a prompt. A shell repeats what was typed ahead behind its prompt."""
        self._typing = ""
        """Typed without an end of the line."""
        self._standing = ""
        """How much of the unfinished line was shown, or needed not be."""
        self._prompt = ""
        """The last line that was shown unfinished."""

    def typed(self, chars: str) -> None:
        """What is written to the terminal; call it before the output that follows is cleaned."""
        for char in _TYPED_SEQUENCE.sub("", chars):
            if char in "\r\n":
                self._expect(self._typing)
            elif char in _INTERRUPTS:
                mark = _INTERRUPTS[char]
                self._expect(self._typing + mark, mark)
            elif char in "\b\x7f":
                self._typing = self._typing[:-1]
            elif char in "\x15":
                self._typing = ""
            elif char >= " " or char == "\t":
                self._typing += char

    def clean(self, output: bytes, *, ended: bool = False) -> str:
        """The output since the last time, as the model should read it; lines end with a newline alone.

        Args:
            output: what the terminal gave.
            ended: nothing will follow, so that the last line is no prompt, even if it looks like it.
        """
        lines = self._lines.feed(output)
        partial = self._lines.partial
        shown: list[str] = []
        for line in lines:
            rest = line.removeprefix(self._standing)
            if not self._is_echo(rest, line, partial):
                shown.append(f"{rest}\n")
            self._standing = ""
        shown.append(self._unfinished(partial, ended=ended))
        if len(partial) > MAX_STANDING:
            self._lines.forget()
            self._standing = self._prompt = ""
        return "".join(shown)

    def _expect(self, *echoes: str) -> None:
        self._typing = ""
        if len(self._expected) < MAX_EXPECTED:
            self._expected.append(tuple(_Echo(echo, _without_blanks(echo)) for echo in echoes))

    def _is_echo(self, rest: str, line: str, partial: str) -> bool:
        """Whether the line is an echo; what was typed before that is then not waited for any more.

        Args:
            rest: the line without what the model knows of it.
            line: all of it.
            partial: the line after all: most likely the prompt.
        """
        if self._expected:
            # An echo has other blanks than what was typed: for tabs, and at the end of a row.
            bare = _without_blanks(rest)
            for number, echoes in enumerate(islice(self._expected, MAX_SKIPPED + 1)):
                for echo in echoes:
                    if bare == echo.without_blanks or self._behind_prompt(line, echo.text, partial):
                        for _ in range(number + 1):
                            self._expected.popleft()
                        if line == echo.text:
                            self._echoed.append(echo)
                        return True
        for echo in self._echoed:
            if line != echo.text and self._behind_prompt(line, echo.text, partial):
                self._echoed.remove(echo)
                return True
        return False

    def _behind_prompt(self, line: str, echo: str, partial: str) -> bool:
        # On a terminal whose cursor cannot go up, editors scroll within the line: "<" is for what went out.
        if line.startswith("<") and len(line) > 1 and echo.endswith(line[1:]) and echo != line[1:]:
            return True
        if not line.endswith(echo):
            return False
        before = line[: len(line) - len(echo)]
        return before in (self._prompt, partial) or _PROMPT.fullmatch(before) is not None

    def _unfinished(self, partial: str, *, ended: bool) -> str:
        """What is new in the last line."""
        rest = partial.removeprefix(self._standing)
        if ended:
            self._standing = partial
            return rest
        if self._typing and _without_blanks(self._typing).startswith(_without_blanks(rest)):
            # Its echo, perhaps not all of it yet: the line is still the one from before.
            return ""
        if not rest and partial:
            return ""
        if not partial:
            self._standing = ""
            return ""
        goes_on = self._standing != "" and partial.startswith(self._standing)
        self._standing = partial
        self._typing = ""
        if goes_on:
            return rest
        if self._prompt and partial.endswith(self._prompt):
            # Whoever prompts again has read all lines: what was not echoed by now never will be.
            self._expected.clear()
            self._echoed.clear()
            return rest.removesuffix(self._prompt)
        self._prompt = partial
        return rest


def _without_blanks(text: str) -> str:
    return "".join(text.split())
