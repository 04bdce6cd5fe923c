"""The output of a terminal for a model, without the echo of the model's input and without the prompt.

Rules kept in this file:

1. A model is shown everything once. The echo of its input is left out, and so is the part of the last,
   unfinished line that an earlier answer had.
2. In case of doubt, text is shown: an echo is left out only if the typed line is at the beginning of a line,
   or behind something that looks like a prompt.
3. A prompt that differs from the last one is shown: it asks something.
4. A line ends only at a newline: text that continues in the next row belongs to the same line.
5. Escape sequences are never part of a line. Those that move within a line or erase parts of it are applied;
   those that move to another place on the screen begin a new line; all others have no effect.
6. Output may be cut anywhere, in characters and in escape sequences, and continues with the next piece.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import deque
from itertools import islice
from typing import NamedTuple

MAX_EXPECTED = 1024
"""Typed lines with a pending echo; the echo of further lines is shown."""

MAX_SKIPPED = 8
"""Typed lines without an echo before a line with one, such as answers to a password prompt."""

MAX_STANDING = 1 << 14
"""Characters of an unfinished line that may still change. This bounds the cost of a program that never ends
its line."""

_PROMPT = re.compile(r"(?:.*[$#%>\u276f] ?|\.\.\. )")
"""Prompts of shells (U+276F in decorated ones), of shells that wait for more input, and of Python."""

_TYPED_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)?")
"""Arrow keys and the marks around pasted text."""

_INTERRUPTS = {"\x03": "^C", "\x1a": "^Z", "\x1c": "^\\"}
"""Control characters that end the line, with their echo."""

DEFAULT_COLUMNS = 80

TAB_WIDTH = 8

MAX_SEQUENCE = 1 << 12
"""A longer escape sequence is treated as binary output, which must not hold back the rest without end."""

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
"""Colors and modes, such as bracketed paste: by far the most frequent sequences, without effect here."""

_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
"""All except for the tab, which is text, and the newline, at which the text was split."""

_CONTROL = re.compile(f"[{_CONTROLS}]")

_PIECE = re.compile(rf"{_SEQUENCE.pattern}|(?P<control>[{_CONTROLS}])|(?P<text>[^{_CONTROLS}]+)")

MAX_MARKS = 8
"""Accents on one character; no script has more."""

_RUNS = re.compile(r"[ -~]+|[^ -~]")


class TerminalLines:
    """Turns terminal output into lines.

    Args:
        columns: the width of the terminal.
    """

    def __init__(self, columns: int = DEFAULT_COLUMNS) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self._columns = columns
        self._line = _Line(columns)

    @property
    def partial(self) -> str:
        """The last, unfinished line: the line of the cursor."""
        return self._line.text

    def forget(self) -> None:
        """Drop the last line; further output begins a new one."""
        self._line = _Line(self._columns)

    def feed(self, data: bytes) -> list[str]:
        """Add output; returns the lines that it ended."""
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
        """Write into the line; returns the lines that end without a newline."""
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
    """The cells of a line, one for each column of each row; the second cell of a wide character is empty."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._cells: list[str] = []
        self._row = 0
        self._column = 0
        """Equal to the number of columns after a character in the last one: the next row has not begun."""

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
        """Apply a control sequence; those of private modes have no effect."""
        if not re.fullmatch(r"[0-9;]*", parameters):
            return
        # No terminal has a million columns.
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
        """Put characters with a width of one column."""
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
        """Add a mark to the character before the cursor."""
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
        """Erase the row from the cursor on (0), up to the cursor (1), or all of it (2 and above)."""
        if mode > 0:
            start, end = self._row * self._columns, min(self._index, len(self._cells))
            self._cells[start:end] = [" "] * (end - start)
        if mode != 1:
            self._replace_rest([])

    def _replace_rest(self, cells: list[str]) -> None:
        """Replace the row from the cursor on. Other rows keep their places."""
        room = self._row_end - self._index
        if len(self._cells) > self._row_end:
            cells = [*cells, *[" "] * room]
        self._cells[self._index : self._row_end] = cells[:room]


def _split_unfinished(text: str) -> tuple[str, str]:
    start = text.rfind("\x1b", -MAX_SEQUENCE)
    # An OSC may end with an escape: check the escape before it, too.
    for each in (text.rfind("\x1b", -MAX_SEQUENCE, start) if start > 0 else -1, start):
        if each >= 0 and _UNFINISHED.match(text, each):
            return text[:each], text[each:]
    return text, ""


class _Echo(NamedTuple):
    text: str
    without_blanks: str


class TerminalText:
    """Cleans the output of one terminal session.

    Call `typed` with all input of the terminal, and `clean` with all its output, in order.

    Args:
        columns: the width of the terminal.
    """

    def __init__(self, columns: int = DEFAULT_COLUMNS) -> None:
        self._lines = TerminalLines(columns)
        self._expected: deque[tuple[_Echo, ...]] = deque()
        """The possible echoes of each typed line whose echo is pending."""
        self._echoed: deque[_Echo] = deque(maxlen=MAX_SKIPPED)
        """Echoes that came without a prompt. A shell repeats input that was typed ahead behind its prompt."""
        self._typing = ""
        """Typed input without an end of the line."""
        self._before_typing: tuple[str, tuple[tuple[_Echo, ...], ...]] = ("", ())
        """`_typing` and `_expected` before the last input."""
        self._standing = ""
        """The part of the unfinished line that was shown or left out."""
        self._prompt = ""
        """The last unfinished line that was shown."""

    def typed(self, chars: str) -> None:
        """Note input of the terminal, before the output that follows is cleaned."""
        self._before_typing = self._typing, tuple(self._expected)
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

    def take_back(self) -> None:
        """The input of the last call of `typed` was refused: expect no echo of it."""
        self._typing, expected = self._before_typing
        self._expected = deque(expected)

    def clean(self, output: bytes, *, ended: bool = False) -> str:
        """Clean the output since the last call; lines end with a newline alone.

        Args:
            output: the output of the terminal.
            ended: whether it is the last output, so that the last line is no prompt.
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
        """Whether the line is an echo. If so, echoes of earlier input are no longer expected.

        Args:
            rest: the line without the part that the model has seen.
            line: the whole line.
            partial: the unfinished line at the end: most likely the prompt.
        """
        if self._expected:
            # An echo may have other blanks than the input: for tabs, and at the end of a row.
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
        # On a terminal whose cursor cannot move up, editors scroll within the line, with "<" at its
        # beginning.
        if line.startswith("<") and len(line) > 1 and echo.endswith(line[1:]) and echo != line[1:]:
            return True
        if not line.endswith(echo):
            return False
        before = line[: len(line) - len(echo)]
        return before in (self._prompt, partial) or _PROMPT.fullmatch(before) is not None

    def _unfinished(self, partial: str, *, ended: bool) -> str:
        """The new part of the last line."""
        rest = partial.removeprefix(self._standing)
        if ended:
            self._standing = partial
            return rest
        if self._typing and _without_blanks(self._typing).startswith(_without_blanks(rest)):
            # Part of the echo of pending input: the line is the same as before.
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
            # A new prompt means that all input was read: pending echoes will not come.
            self._expected.clear()
            self._echoed.clear()
            return rest.removesuffix(self._prompt)
        self._prompt = partial
        return rest


def _without_blanks(text: str) -> str:
    return "".join(text.split())
