"""What a model needs to read of a terminal: the output, without what it typed itself and without the prompt.

Rules kept in this file:

1. A model is shown everything once. What it typed comes back as an echo, and is left out; what stood in the
   last, unfinished line when it was answered before is not repeated.
2. When in doubt it is shown: an echo is left out only where the typed line stands at the beginning of a line,
   or behind something that looks like a prompt.
3. A prompt that is another one than the last time is shown: it asks something.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import deque
from itertools import islice
from typing import NamedTuple

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


DEFAULT_COLUMNS = 80

TAB_WIDTH = 8

MAX_SEQUENCE = 1 << 12
"""A longer escape sequence is none, but binary output: it does not hold back what follows for ever."""

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|[PX^_][^\x1b]*\x1b\\"  # strings for the terminal itself
    r"|[ -/]*[0-OQ-WYZ`-~\\]"  # all others, such as the choice of a character set
    r")"
)

_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[PX^_][^\x1b]*\x1b?|[ -/]*)\Z")

_STYLE = re.compile(r"\x1b\[(?:[0-?]*m|\?[0-9;]*[hl])")
"""Colors and modes, bracketed paste among them: by far the most frequent ones, without any effect here."""

_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
"""All but the tab, which is text, and the newline, which is gone by then."""

_CONTROL = re.compile(f"[{_CONTROLS}]")

_PIECE = re.compile(rf"{_SEQUENCE.pattern}|(?P<control>[{_CONTROLS}])|(?P<text>[^{_CONTROLS}]+)")

MAX_MARKS = 8
"""Accents on one character; more are not of any script."""

_RUNS = re.compile(r"[ -~]+|[^ -~]")


class TerminalLines:
    """Takes output and gives the lines that it makes.

    Args:
        columns: how wide the terminal is.
    """

    def __init__(self, columns: int = DEFAULT_COLUMNS) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self._columns = columns
        self._line = _Line(columns)

    @property
    def partial(self) -> str:
        """The last line, which has no end yet: where the cursor is."""
        return self._line.text

    def forget(self) -> None:
        """Leave the last line behind; what comes next begins one of its own."""
        self._line = _Line(self._columns)

    def feed(self, data: bytes) -> list[str]:
        """More output; the lines that it has ended."""
        text = self._unfinished + self._decoder.decode(data)
        text, self._unfinished = _split_unfinished(text)
        *ended, rest = _STYLE.sub("", text).split("\n")
        lines: list[str] = []
        for each in ended:
            whole = each.removesuffix("\r")
            if not self._line.is_empty or _CONTROL.search(whole):
                lines.extend(self._write(each))
                whole = self._line.text
                self.forget()
            lines.append(whole)
        lines.extend(self._write(rest))
        return lines

    def _write(self, text: str) -> list[str]:
        """Write into the line; those lines that it ends without a newline."""
        left: list[str] = []
        for piece in _PIECE.finditer(text):
            if (run := piece["text"]) is not None:
                self._line.write(run)
            elif (control := piece["control"]) is not None:
                self._line.control(control)
            elif piece["final"] is not None:
                if piece["final"] in "Hfd":
                    if not self._line.is_empty:
                        left.append(self._line.text)
                    self.forget()
                else:
                    self._line.sequence(piece["final"], piece["parameters"])
        return left


class _Line:
    """Cells, one for each column of each row; the second one of a wide character is empty."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._cells: list[str] = []
        self._row = 0
        self._column = 0
        """As many as there are columns, behind a character in the last one: the next row has not begun."""

    @property
    def is_empty(self) -> bool:
        return not self._cells and self._row == self._column == 0

    @property
    def text(self) -> str:
        return "".join(self._cells)

    def write(self, text: str) -> None:
        for piece in _RUNS.findall(text):
            if " " <= piece[0] <= "~":
                self._put_run(piece)
            elif piece == "\t":
                self._put(piece, TAB_WIDTH - self._column % TAB_WIDTH)
            elif unicodedata.category(piece) in ("Mn", "Me", "Cf"):
                self._put_mark(piece)
            else:
                self._put(piece, 2 if unicodedata.east_asian_width(piece) in ("W", "F") else 1)

    def control(self, control: str) -> None:
        match control:
            case "\r":
                self._column = 0
            case "\b":
                self._column = max(0, min(self._column, self._columns - 1) - 1)

    def sequence(self, final: str, parameters: str) -> None:
        """A control sequence; those of private modes have no effect here."""
        if not re.fullmatch(r"[0-9;]*", parameters):
            return
        # Six digits are more than any terminal has columns.
        given = int(parameters.partition(";")[0][:6] or 0)
        count = max(1, given)
        match final:
            case "A":
                self._row = max(0, self._row - count)
            case "B":
                self._row = min(self._row + count, len(self._cells) // self._columns)
            case "C":
                self._column = min(self._column + count, self._columns - 1)
            case "D":
                self._column = max(0, min(self._column, self._columns - 1) - count)
            case "G" | "`":
                self._column = min(count, self._columns) - 1
            case "J" if given == 0:
                del self._cells[self._index :]
            case "K" | "J":
                self._erase(given)
            case "P":
                self._replace_rest(self._cells[self._index + count : self._row_end])
            case "@":
                blanks = [" "] * min(count, self._columns)
                self._replace_rest(blanks + self._cells[self._index : self._row_end])

    @property
    def _index(self) -> int:
        return self._row * self._columns + self._column

    @property
    def _row_end(self) -> int:
        return (self._row + 1) * self._columns

    def _put_run(self, run: str) -> None:
        """Characters of a column each."""
        while run:
            if self._column == self._columns:
                self._row += 1
                self._column = 0
            part = run[: self._columns - self._column]
            run = run[len(part) :]
            index = self._index
            self._cells.extend(" " * (index - len(self._cells)))
            self._cells[index : index + len(part)] = part
            self._column += len(part)

    def _put_mark(self, mark: str) -> None:
        """What belongs to the character before it."""
        index = self._index - 1
        if 0 <= index < len(self._cells) and len(self._cells[index]) <= MAX_MARKS:
            self._cells[index] += mark

    def _put(self, character: str, width: int) -> None:
        is_wide = width == 2 and character != "\t"
        if self._column == self._columns or (is_wide and self._column == self._columns - 1):
            self._row += 1
            self._column = 0
        width = min(width, self._columns - self._column)
        index = self._index
        self._cells.extend(" " * (index - len(self._cells)))
        self._cells[index : index + width] = [character, *[""] * (width - 1)]
        self._column += width

    def _erase(self, mode: int) -> None:
        """In the row: what is behind the cursor (0), before it (1), or all (2 and above)."""
        if mode > 0:
            start, end = self._row * self._columns, min(self._index, len(self._cells))
            self._cells[start:end] = [" "] * (end - start)
        if mode != 1:
            self._replace_rest([])

    def _replace_rest(self, cells: list[str]) -> None:
        """Have these in the row from the cursor on. Other rows stay where they are."""
        room = self._row_end - self._index
        if len(self._cells) > self._row_end:
            cells = [*cells, *[" "] * room]
        self._cells[self._index : self._row_end] = cells[:room]


def _split_unfinished(text: str) -> tuple[str, str]:
    start = text.rfind("\x1b", -MAX_SEQUENCE)
    # The end of an OSC may be an escape of its own: look at the one before it, too.
    for each in (text.rfind("\x1b", -MAX_SEQUENCE, start) if start > 0 else -1, start):
        if each >= 0 and _UNFINISHED.match(text, each):
            return text[:each], text[each:]
    return text, ""


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
