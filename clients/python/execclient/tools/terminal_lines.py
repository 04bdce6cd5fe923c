"""The lines that output makes on a terminal: what one would see, without colors and without rows.

Rules kept in this file:

1. A line ends at a newline and nowhere else: text that goes on in the next row belongs to the same line.
2. Escape sequences are never part of a line. Those that move within a line or erase parts of it do so;
   those that go to another place on the screen begin a new line; all others have no effect.
3. Output may be cut anywhere, in characters and in escape sequences, and goes on with the next piece.
"""

from __future__ import annotations

import codecs
import re
import unicodedata

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
