"""The reference's words for a JSON value that is not what belongs there."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

MAX_SHOWN = 1000
"""Characters of a string of the model's that an error repeats to it: enough to see which one is meant."""

_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def one_of(names: Sequence[str]) -> str:
    """What is possible, as the reference lists it."""
    quoted = [f"`{name}`" for name in names]
    return " or ".join(quoted) if len(quoted) <= 2 else "one of " + ", ".join(quoted)


def shown(value: object) -> str:
    """A value as the reference names what it did not expect."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            return f"integer `{value}`" if value.bit_length() <= 64 else "integer of more than 64 bits"
        case float():
            return f"floating point `{_float(value)}`"
        case str():
            return f'string "{_escaped(cut(value))}"'
        case list() | tuple():
            return "sequence"
        case Mapping():
            return "map"
        case _:
            return type(value).__name__


def unexpected(value: object, expected: str) -> str:
    """What is said of a value of another type."""
    return f"invalid type: {shown(value)}, expected {expected}"


def cut(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _float(value: float) -> str:
    # Python begins to use an exponent a digit earlier, and gives it two digits at least.
    mantissa, mark, exponent = repr(value).partition("e")
    if not mark:
        return mantissa
    if exponent == "-05":
        return f"{'-' if value < 0 else ''}0.0000{mantissa.lstrip('-').replace('.', '')}"
    return f"{mantissa}e{int(exponent):+d}"


def _escaped(text: str) -> str:
    """As between the quotes of a string literal of the reference's language."""
    return "".join(_SHORT_ESCAPES.get(each) or _escaped_character(each) for each in text)


def _escaped_character(character: str) -> str:
    # Marks that would join the character before them are escaped, too.
    if character == " " or (character.isprintable() and unicodedata.category(character) not in ("Mn", "Me")):
        return character
    return f"\\u{{{ord(character):x}}}"
