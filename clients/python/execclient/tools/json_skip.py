"""Past a JSON value that nobody wants, as the reference goes past one.

It looks at less than one who reads: halves of characters, numbers out of range and any depth are let through.
And it places and names some errors otherwise, which is why it is not simply reading.
"""

from __future__ import annotations

from execclient.tools.json_text import DIGITS, END, PLAIN, WHOLE, Reader

_QUOTE, _COMMA, _BACKSLASH, _LOWER_U, _POINT, _MINUS, _ZERO = b'",\\u.-0'
_LIST, _OBJECT = b"[{"
_CLOSING = {_LIST: ord("]"), _OBJECT: ord("}")}
_EXPONENT, _SIGNS = frozenset(b"eE"), frozenset(b"+-")
_SIMPLE_ESCAPES = frozenset(b'"\\/bfnrt')


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
    elif byte == _MINUS or byte in DIGITS:
        _skip_number(reader)
    else:
        reader.scalar()


def _skip_string(reader: Reader) -> None:
    reader.skip()
    while True:
        reader.take(PLAIN)
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
        elif escape not in _SIMPLE_ESCAPES:
            raise reader.error("invalid escape")


def _skip_number(reader: Reader) -> None:
    if reader.peek() == _MINUS:
        reader.skip()
    first = _digit(reader)
    if first != _ZERO:
        reader.take(WHOLE)
    elif reader.peek() in DIGITS:
        raise reader.error_at_next("invalid number")
    if reader.peek() == _POINT:
        reader.skip()
        if not reader.take(WHOLE):
            raise reader.error_at_next("invalid number")
    if reader.peek() in _EXPONENT:
        reader.skip()
        if reader.peek() in _SIGNS:
            reader.skip()
        _digit(reader)
        reader.take(WHOLE)


def _digit(reader: Reader) -> int:
    byte = reader.peek()
    if byte != END:
        reader.skip()
    if byte not in DIGITS:
        raise reader.error("invalid number")
    return byte
