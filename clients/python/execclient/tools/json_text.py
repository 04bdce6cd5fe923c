"""JSON as the reference reads it: the same texts are refused, in the same words, at the same line and column.

Rules kept here:

1. Columns count bytes of UTF-8, not characters, and lines end at a line feed.
2. An error about a byte that was only looked at is placed behind that byte (`error_at_next`); one about what
   was already taken is placed where reading stands (`error`). Models see both, so both are kept apart.
3. Reading is linear in the text, and nests no deeper than `MAX_DEPTH`.

What kind of value belongs where is not known here: see `json_shapes.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

Scalar = str | int | float | bool | None
JsonValue = Scalar | list["JsonValue"] | dict[str, "JsonValue"]

MAX_DEPTH = 128
"""Levels of lists and objects that are too many: the reference's limit, and far below the depth at
which a reader that calls itself runs out of stack."""

END: Final = -1
"""Stands for the byte behind the text."""

_QUOTE, _COLON, _COMMA, _BACKSLASH, _LOWER_U = b'":,\\u'
_LIST, _LIST_END, _OBJECT, _OBJECT_END = b"[]{}"
_CLOSING = {_LIST: _LIST_END, _OBJECT: _OBJECT_END}
_ZERO, _MINUS, _POINT = b"0-."
_DIGITS, _EXPONENT, _SIGNS = frozenset(b"0123456789"), frozenset(b"eE"), frozenset(b"+-")
_LITERALS: dict[int, tuple[bytes, bool | None]] = {
    ord("n"): (b"null", None),
    ord("t"): (b"true", True),
    ord("f"): (b"false", False),
}
_ESCAPES = {
    ord('"'): b'"',
    ord("\\"): b"\\",
    ord("/"): b"/",
    ord("b"): b"\b",
    ord("f"): b"\f",
    ord("n"): b"\n",
    ord("r"): b"\r",
    ord("t"): b"\t",
}
_BLANKS = re.compile(rb"[ \t\r\n]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_WHOLE = re.compile(rb"[0-9]*")
_HEX = re.compile(rb"[0-9A-Fa-f]{4}")
_MAX_UNSIGNED, _MIN_SIGNED = 2**64 - 1, -(2**63)
_MAX_DIGITS = 20
"""Of an integer of 64 bits; more are a floating point number without being converted first."""


class JsonTextError(ValueError):
    """A text is not the JSON that it should be; `str()` of it is the reference's message, place included.

    Attributes:
        reason: the message without the place.
        line: from 1.
        column: in bytes; 0 is before the first one of the line.
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"{reason} at line {line} column {column}")
        self.reason = reason
        self.line = line
        self.column = column


class Reader:
    """A text and how far it was read.

    Args:
        text: of any length; characters that UTF-8 does not have are errors where they stand.
    """

    def __init__(self, text: str | bytes) -> None:
        self._data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        self._index = 0
        self._depth = 0

    # -- places

    def error(self, reason: str) -> JsonTextError:
        """An error where reading stands."""
        return self._error_at(reason, self._index)

    def error_at_next(self, reason: str) -> JsonTextError:
        """An error about the next byte, or about the end of the text."""
        return self._error_at(reason, min(len(self._data), self._index + 1))

    def _error_at(self, reason: str, index: int) -> JsonTextError:
        start = self._data.rfind(b"\n", 0, index) + 1
        return JsonTextError(reason, 1 + self._data.count(b"\n", 0, start), index - start)

    # -- bytes

    def peek(self) -> int:
        """The next byte, or `END`."""
        return self._data[self._index] if self._index < len(self._data) else END

    def skip_blanks(self) -> int:
        """The next byte that is not blank, or `END`."""
        self.take(_BLANKS)
        return self.peek()

    def take(self, pattern: re.Pattern[bytes]) -> bytes:
        """All of what comes now that a pattern matches, which may be nothing."""
        found = pattern.match(self._data, self._index)
        assert found is not None  # all the patterns here match nothing, too
        self._index = found.end()
        return found[0]

    def skip(self) -> None:
        """Leave the next byte behind."""
        self._index += 1

    def at_value(self) -> int:
        """The first byte of the value that must come now."""
        byte = self.skip_blanks()
        if byte == END:
            raise self.error_at_next("EOF while parsing a value")
        return byte

    def end(self) -> None:
        """Nothing but blanks may follow."""
        if self.skip_blanks() != END:
            raise self.error_at_next("trailing characters")

    # -- values

    def value(self) -> JsonValue:
        """Any value. Of members of the same name the last one counts."""
        byte = self.at_value()
        if byte == _LIST:
            return [self.value() for _ in self.elements()]
        if byte == _OBJECT:
            found = {}
            for name in self.members():
                self.colon()
                found[name] = self.value()
            return found
        return self.scalar()

    def scalar(self) -> Scalar:
        """Any value that begins with the next byte, but for lists and objects."""
        byte = self.peek()
        if byte == _QUOTE:
            return self.string()
        if byte in _LITERALS:
            return self._literal(*_LITERALS[byte])
        if byte in _DIGITS or byte == _MINUS:
            return self._number()
        raise self.error_at_next("expected value")

    def elements(self) -> Iterator[None]:
        """Stops before each element of the list that begins here, which is then to be read."""
        self._open()
        first = True
        while (byte := self.skip_blanks()) != _LIST_END:
            if byte == END:
                raise self.error_at_next("EOF while parsing a list")
            if not first:
                self._comma(byte, _LIST_END, "expected `,` or `]`")
            first = False
            yield
        self._close()

    def members(self) -> Iterator[str]:
        """The name of each member of the object that begins here; then comes `colon`, then its value."""
        self._open()
        first = True
        while (byte := self.skip_blanks()) != _OBJECT_END:
            if byte == END:
                raise self.error_at_next("EOF while parsing an object")
            if not first:
                byte = self._comma(byte, _OBJECT_END, "expected `,` or `}`")
            first = False
            if byte != _QUOTE:
                raise self.error_at_next("key must be a string")
            yield self.string()
        self._close()

    def leave_object(self) -> None:
        """Go on to where the reference reports what is wrong with a member's name: it looks for the end
        of the object first.
        """
        if self.skip_blanks() == _OBJECT_END:
            self.skip()

    def colon(self) -> None:
        """What stands between a name and its value."""
        byte = self.skip_blanks()
        if byte != _COLON:
            raise self.error_at_next("EOF while parsing an object" if byte == END else "expected `:`")
        self.skip()

    def _comma(self, byte: int, closing: int, otherwise: str) -> int:
        if byte != _COMMA:
            raise self.error_at_next(otherwise)
        self.skip()
        byte = self.at_value()
        if byte == closing:
            raise self.error_at_next("trailing comma")
        return byte

    def _open(self) -> None:
        self._depth += 1
        if self._depth == MAX_DEPTH:
            raise self.error_at_next("recursion limit exceeded")
        self.skip()

    def _close(self) -> None:
        self._depth -= 1
        self.skip()

    def _literal(self, word: bytes, value: bool | None) -> bool | None:
        for expected in word:
            byte = self.peek()
            if byte == END:
                raise self.error("EOF while parsing a value")
            self.skip()
            if byte != expected:
                raise self.error("expected ident")
        return value

    # -- strings

    def string(self) -> str:
        """The string that begins here."""
        self.skip()
        parts: list[bytes] = []
        while True:
            parts.append(self.take(_PLAIN))
            byte = self.peek()
            if byte == END:
                raise self.error("EOF while parsing a string")
            self.skip()
            if byte == _QUOTE:
                break
            if byte != _BACKSLASH:
                raise self.error("control character (\\u0000-\\u001F) found while parsing a string")
            parts.append(self._escape())
        try:
            return b"".join(parts).decode()
        except UnicodeDecodeError:
            raise self.error("invalid unicode code point") from None

    def _escape(self) -> bytes:
        byte = self.peek()
        if byte == END:
            raise self.error("EOF while parsing a string")
        self.skip()
        if byte in _ESCAPES:
            return _ESCAPES[byte]
        if byte != _LOWER_U:
            raise self.error("invalid escape")
        unit = self.hex_escape()
        if 0xDC00 <= unit <= 0xDFFF:
            raise self.error("lone leading surrogate in hex escape")
        if not 0xD800 <= unit <= 0xDBFF:
            return chr(unit).encode()
        for expected in (_BACKSLASH, _LOWER_U):
            byte = self.peek()
            if byte == END:
                raise self.error("EOF while parsing a string")
            self.skip()
            if byte != expected:
                raise self.error("unexpected end of hex escape")
        low = self.hex_escape()
        if not 0xDC00 <= low <= 0xDFFF:
            raise self.error("lone leading surrogate in hex escape")
        return chr(0x10000 + (unit - 0xD800 << 10) + (low - 0xDC00)).encode()

    def hex_escape(self) -> int:
        """The four digits that come now, as a number."""
        digits = self._data[self._index : self._index + 4]
        self._index += len(digits)
        if len(digits) < 4:
            raise self.error("EOF while parsing a string")
        if not _HEX.fullmatch(digits):
            raise self.error("invalid escape")
        return int(digits, 16)

    # -- numbers

    def _number(self) -> int | float:
        """Of 64 bits if it is whole and has room there; else a floating point number."""
        start = self._index
        if self.peek() == _MINUS:
            self.skip()
        whole = self._digit() != _ZERO
        if whole:
            self.take(_WHOLE)
        elif self.peek() in _DIGITS:
            raise self.error_at_next("invalid number")
        integer = True
        if self.peek() == _POINT:
            integer = False
            self.skip()
            if self.peek() not in _DIGITS:
                ended = self.peek() == END
                raise self.error_at_next("EOF while parsing a value" if ended else "invalid number")
            self.take(_WHOLE)
        if self.peek() in _EXPONENT:
            integer = False
            self.skip()
            if self.peek() in _SIGNS:
                self.skip()
            self._digit()
            self.take(_WHOLE)
        text = self._data[start : self._index]
        if integer and len(text) <= _MAX_DIGITS + 1 and text != b"-0":
            number = int(text)
            if _MIN_SIGNED <= number <= _MAX_UNSIGNED:
                return number
        value = float(text)
        if math.isinf(value):
            raise self.error("number out of range")
        return value

    def _digit(self) -> int:
        byte = self.peek()
        if byte == END:
            raise self.error("EOF while parsing a value")
        self.skip()
        if byte not in _DIGITS:
            raise self.error("invalid number")
        return byte


# -- past a value


def skip_value(reader: Reader) -> None:
    """Go past the next value.

    Raises:
        JsonTextError: there is none.
    """
    open_ones: list[int] = []
    while True:
        byte = reader.at_value()
        if byte in _CLOSING:
            open_ones.append(byte)
            reader.skip()
        else:
            _skip_scalar(reader, byte)
        if not _to_next(reader, open_ones, inside=byte in _CLOSING):
            return
        if open_ones[-1] == _OBJECT:
            _skip_name(reader)


def _to_next(reader: Reader, open_ones: list[int], *, inside: bool) -> bool:
    """Go to the next element or member, past whatever ends before it; whether there is one.

    Args:
        reader: behind a value, or behind what opens a list or an object.
        open_ones: what is open, the innermost last.
        inside: whether something was just opened, and no comma belongs here.
    """
    while open_ones:
        innermost = open_ones[-1]
        byte = reader.skip_blanks()
        if byte == END:
            raise reader.error_at_next(f"EOF while parsing {'a list' if innermost == _LIST else 'an object'}")
        if byte == _CLOSING[innermost]:
            open_ones.pop()
            reader.skip()
            inside = False
            continue
        if inside:
            return True
        if byte != _COMMA:
            raise reader.error_at_next(f"expected `,` or `{chr(_CLOSING[innermost])}`")
        reader.skip()
        return True
    return False


def _skip_name(reader: Reader) -> None:
    byte = reader.skip_blanks()
    if byte != _QUOTE:
        raise reader.error_at_next("EOF while parsing an object" if byte == END else "key must be a string")
    _skip_string(reader)
    reader.colon()


def _skip_scalar(reader: Reader, byte: int) -> None:
    if byte == _QUOTE:
        _skip_string(reader)
    elif byte == _MINUS or byte in _DIGITS:
        _skip_number(reader)
    else:
        reader.scalar()


def _skip_string(reader: Reader) -> None:
    reader.skip()
    while True:
        reader.take(_PLAIN)
        byte = reader.peek()
        if byte == END:
            raise reader.error("EOF while parsing a string")
        if byte not in (_QUOTE, _BACKSLASH):
            raise reader.error("control character (\\u0000-\\u001F) found while parsing a string")
        reader.skip()
        if byte == _QUOTE:
            return
        escape = reader.peek()
        if escape == END:
            raise reader.error("EOF while parsing a string")
        reader.skip()
        if escape == _LOWER_U:
            reader.hex_escape()
        elif escape not in _ESCAPES:
            raise reader.error("invalid escape")


def _skip_number(reader: Reader) -> None:
    if reader.peek() == _MINUS:
        reader.skip()
    first = _digit(reader)
    if first != _ZERO:
        reader.take(_WHOLE)
    elif reader.peek() in _DIGITS:
        raise reader.error_at_next("invalid number")
    if reader.peek() == _POINT:
        reader.skip()
        if not reader.take(_WHOLE):
            raise reader.error_at_next("invalid number")
    if reader.peek() in _EXPONENT:
        reader.skip()
        if reader.peek() in _SIGNS:
            reader.skip()
        _digit(reader)
        reader.take(_WHOLE)


def _digit(reader: Reader) -> int:
    byte = reader.peek()
    if byte != END:
        reader.skip()
    if byte not in _DIGITS:
        raise reader.error("invalid number")
    return byte
