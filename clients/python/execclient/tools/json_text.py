"""Reads JSON like the reference: the same texts are refused, with the same messages, lines and columns.

Rules kept here:

1. Columns count bytes of UTF-8, not characters, and lines end at a line feed.
2. An error about a byte that was only peeked at is placed behind that byte (`error_at_next`); an error about
   consumed text is placed at the current position (`error`). Models see both.
3. Reading is linear in the text, and nests no deeper than `MAX_DEPTH`.

`json_shapes.py` has the expected kinds of values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

Scalar = str | int | float | bool | None
JsonValue = Scalar | list["JsonValue"] | dict[str, "JsonValue"]

MAX_DEPTH = 128
"""The reference's limit on nested lists and objects, which is refused itself. It is far below the depth at
which a recursive reader runs out of stack."""

END: Final = -1
"""Stands for the end of the text in the place of a byte."""

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
"""Digits of a 64-bit integer. A number with more digits is read as floating point at once."""


class JsonTextError(ValueError):
    """A text is not the expected JSON; `str()` of it is the reference's message with the place.

    Attributes:
        reason: the message without the place.
        line: from 1.
        column: in bytes; 0 is before the first byte of the line.
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"{reason} at line {line} column {column}")
        self.reason = reason
        self.line = line
        self.column = column


class Reader:
    """Reads a text.

    Args:
        text: the text, of any length; characters that are not possible in UTF-8 are errors in their places.
    """

    def __init__(self, text: str | bytes) -> None:
        self._data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        self._index = 0
        self._depth = 0

    # -- places

    def error(self, reason: str) -> JsonTextError:
        """An error at the current position."""
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
        """Consume the match of a pattern at the current position, which may be empty."""
        found = pattern.match(self._data, self._index)
        assert found is not None  # all patterns here match the empty string
        self._index = found.end()
        return found[0]

    def skip(self) -> None:
        """Consume the next byte."""
        self._index += 1

    def at_value(self) -> int:
        """The first byte of the next value, behind blanks."""
        byte = self.skip_blanks()
        if byte == END:
            raise self.error_at_next("EOF while parsing a value")
        return byte

    def end(self) -> None:
        """Check that only blanks follow."""
        if self.skip_blanks() != END:
            raise self.error_at_next("trailing characters")

    # -- values

    def value(self) -> JsonValue:
        """Read any value. The last of several members with the same name counts."""
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
        """Read any value except for lists and objects, from the next byte on."""
        byte = self.peek()
        if byte == _QUOTE:
            return self.string()
        if byte in _LITERALS:
            return self._literal(*_LITERALS[byte])
        if byte in _DIGITS or byte == _MINUS:
            return self._number()
        raise self.error_at_next("expected value")

    def elements(self) -> Iterator[None]:
        """Iterate over the list that begins here. The caller reads each element."""
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
        """Iterate over the names of the object that begins here. For each, call `colon` and read a value."""
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
        """Move to where the reference reports a wrong name: it looks for the end of the object first."""
        if self.skip_blanks() == _OBJECT_END:
            self.skip()

    def colon(self) -> None:
        """Consume the colon between a name and its value."""
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
        """Read the string that begins here."""
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
        """Read four hexadecimal digits as a number."""
        digits = self._data[self._index : self._index + 4]
        self._index += len(digits)
        if len(digits) < 4:
            raise self.error("EOF while parsing a string")
        if not _HEX.fullmatch(digits):
            raise self.error("invalid escape")
        return int(digits, 16)

    # -- numbers

    def _number(self) -> int | float:
        """Read a number: an integer if it is whole and has 64 bits, else a floating point number."""
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


# -- skipping a value


def skip_value(reader: Reader) -> None:
    """Skip the next value as the reference does.

    Less is checked than by reading: halves of characters, numbers out of range and any depth are accepted.
    Some errors have other places and messages.

    Raises:
        JsonTextError: there is no value.
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
    """Move to the next element or member, over the ends of lists and objects; returns whether there is one.

    Args:
        reader: a reader behind a value, or behind the opening of a list or an object.
        open_ones: the opening bytes of the lists and objects around, the innermost last.
        inside: whether a list or an object was just opened, so that no comma is expected.
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
