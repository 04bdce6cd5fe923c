"""The reference's words for a JSON value that is not what belongs there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from execclient.tools.quoting import quoted

MAX_SHOWN = 1000
"""Characters of a string of the model's that an error repeats to it: enough to see which one is meant."""


def one_of(names: Sequence[str]) -> str:
    """What is possible, as the reference lists it."""
    marked = [f"`{name}`" for name in names]
    return " or ".join(marked) if len(marked) <= 2 else "one of " + ", ".join(marked)


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
            return f"string {quoted(cut(value))}"
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
