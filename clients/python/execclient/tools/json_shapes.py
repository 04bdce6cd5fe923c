"""The expected kinds of JSON values, with the reference's messages for unexpected ones.

A shape reads from a text (`read`: errors have a place) or checks a parsed value (`accept`: the same messages
without a place). Values are read in the order of the text, and the first error is reported; missing members
are reported at the closing brace.

Rule kept here: a shape never converts. A number in quotes is a string, and 1.0 is not a whole number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from execclient.tools.exec_text import quoted
from execclient.tools.json_text import JsonValue, Reader, skip_value

_LIST, _OBJECT, _QUOTE, _NULL = b'[{"n'


ValueT = TypeVar("ValueT")
ValueT_co = TypeVar("ValueT_co", covariant=True)


class ShapeError(ValueError):
    """A value does not have the expected shape. It has no place; a `Reader` adds the place."""


class Shape(Protocol[ValueT_co]):
    """A kind of value."""

    def read(self, reader: Reader) -> ValueT_co:
        """Read the next value of a text.

        Raises:
            JsonTextError: it is not of this kind, or not JSON.
        """
        ...

    def accept(self, value: object) -> ValueT_co:
        """The value, if it is of this kind.

        Raises:
            ShapeError: it is not.
        """
        ...


def read_text(shape: Shape[ValueT], text: str | bytes) -> ValueT:
    """Read a text that is one value.

    Raises:
        JsonTextError: the text is not JSON, or its value does not have the shape.
    """
    reader = Reader(text)
    value = shape.read(reader)
    reader.end()
    return value


@dataclass(frozen=True, slots=True)
class _Scalar:
    expected: str
    """The reference's name of the kind."""

    def read(self, reader: Reader) -> object:
        byte = reader.at_value()
        if byte in (_LIST, _OBJECT):
            raise reader.error(unexpected([] if byte == _LIST else {}, self.expected))
        value = reader.scalar()
        try:
            return self.accept(value)
        except ShapeError as error:
            raise reader.error(str(error)) from None

    def accept(self, value: object) -> object:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Text(_Scalar):
    """A string."""

    expected: str = "a string"

    def accept(self, value: object) -> object:
        """See `Shape`."""
        if not isinstance(value, str):
            raise ShapeError(unexpected(value, self.expected))
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ShapeError("invalid unicode code point") from None
        return value


@dataclass(frozen=True, slots=True)
class Boolean(_Scalar):
    """True or false."""

    expected: str = "a boolean"

    def accept(self, value: object) -> object:
        """See `Shape`."""
        if not isinstance(value, bool):
            raise ShapeError(unexpected(value, self.expected))
        return value


@dataclass(frozen=True, slots=True)
class Integer(_Scalar):
    """A whole number within bounds, both included."""

    lowest: int
    highest: int

    def accept(self, value: object) -> object:
        """See `Shape`."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ShapeError(unexpected(value, self.expected))
        if not self.lowest <= value <= self.highest:
            raise ShapeError(f"invalid value: {shown(value)}, expected {self.expected}")
        return value


TEXT, BOOLEAN = Text(), Boolean()
U64 = Integer("u64", 0, 2**64 - 1)
USIZE = Integer("usize", 0, 2**64 - 1)
I32 = Integer("i32", -(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value."""

    def read(self, reader: Reader) -> JsonValue:
        """See `Shape`."""
        return reader.value()

    def accept(self, value: object) -> object:
        """See `Shape`."""
        return value


@dataclass(frozen=True, slots=True)
class Nullable:
    """Another shape, or null."""

    shape: Shape[object]

    def read(self, reader: Reader) -> object:
        """See `Shape`."""
        return reader.scalar() if reader.skip_blanks() == _NULL else self.shape.read(reader)

    def accept(self, value: object) -> object:
        """See `Shape`."""
        return None if value is None else self.shape.accept(value)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose elements have one shape, read as a tuple."""

    shape: Shape[object]

    def read(self, reader: Reader) -> object:
        """See `Shape`."""
        byte = reader.at_value()
        if byte == _LIST:
            return tuple(self.shape.read(reader) for _ in reader.elements())
        raise reader.error(unexpected({} if byte == _OBJECT else reader.scalar(), "a sequence"))

    def accept(self, value: object) -> object:
        """See `Shape`."""
        if not isinstance(value, (list, tuple)):
            raise ShapeError(unexpected(value, "a sequence"))
        return tuple(self.shape.accept(each) for each in value)


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, reader: Reader) -> object:
        """See `Shape`."""
        if reader.at_value() != _QUOTE:
            raise reader.error_at_next("expected value")
        word = reader.string()
        if word not in self.words:
            raise reader.error(self._unknown(word))
        return word

    def accept(self, value: object) -> object:
        """See `Shape`."""
        if not isinstance(value, str):
            raise ShapeError(unexpected(value, "a string"))
        if value not in self.words:
            raise ShapeError(self._unknown(value))
        return value

    def _unknown(self, word: str) -> str:
        return f"unknown variant `{cut(word)}`, expected {one_of(self.words)}"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object."""

    name: str
    shape: Shape[object]
    required: bool = False
    aliases: tuple[str, ...] = ()
    """Other names of the same member."""
    instead: str | None = None
    """Another member that replaces this one."""
    advertised: bool = True
    """Whether errors about unknown names list it."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object with known members, read as a dictionary by their main names."""

    name: str
    """The name of the reference's struct."""
    length: int
    """The number of members of the reference's struct."""
    members: tuple[Member, ...]
    ignores_others: bool = False
    """Whether unknown members are skipped instead of refused."""
    _by_name: Mapping[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {name: each for each in self.members for name in (each.name, *each.aliases)}
        object.__setattr__(self, "_by_name", names)

    def read(self, reader: Reader) -> dict[str, object]:
        """See `Shape`."""
        byte = reader.at_value()
        if byte == _LIST:
            raise self._refused_list(reader)
        if byte != _OBJECT:
            raise reader.error(unexpected(reader.scalar(), f"struct {self.name}"))
        found: dict[str, object] = {}
        for name in reader.members():
            try:
                member = self._member(name, found)
            except ShapeError as error:
                reader.leave_object()
                raise reader.error(str(error)) from None
            reader.colon()
            if member is None:
                skip_value(reader)
            else:
                found[member.name] = member.shape.read(reader)
        try:
            self._check_missing(found)
        except ShapeError as error:
            raise reader.error(str(error)) from None
        return found

    def accept(self, value: object) -> dict[str, object]:
        """See `Shape`."""
        if not isinstance(value, Mapping):
            raise ShapeError(unexpected(value, f"struct {self.name}"))
        found: dict[str, object] = {}
        for name, each in value.items():
            if not isinstance(name, str):
                raise ShapeError("key must be a string")
            member = self._member(name, found)
            if member is None:
                continue
            try:
                found[member.name] = member.shape.accept(each)
            except ShapeError as error:
                # Without line and column, the message needs the name.
                raise ShapeError(f"{error} in `{name}`") from None
        self._check_missing(found)
        return found

    def _refused_list(self, reader: Reader) -> Exception:
        """The error for a list. The reference would take its elements as the members in order."""
        for _ in reader.elements():
            return reader.error(unexpected([], f"struct {self.name}"))
        count = f"{self.length} element{'' if self.length == 1 else 's'}"
        return reader.error(f"invalid length 0, expected struct {self.name} with {count}")

    def _member(self, name: str, found: Mapping[str, object]) -> Member | None:
        member = self._by_name.get(name)
        if member is None:
            if self.ignores_others:
                return None
            known = one_of([each.name for each in self.members if each.advertised])
            raise ShapeError(f"unknown field `{cut(name)}`, expected {known}")
        if member.name in found:
            raise ShapeError(f"duplicate field `{member.name}`")
        return member

    def _check_missing(self, found: Mapping[str, object]) -> None:
        for member in self.members:
            if member.required and member.name not in found and member.instead not in found:
                raise ShapeError(f"missing field `{member.name}`")


# -- messages

MAX_SHOWN = 1000
"""Characters of a model's string in an error: enough to recognize the string."""


def one_of(names: Sequence[str]) -> str:
    """A list of possible values, in the reference's form."""
    marked = [f"`{name}`" for name in names]
    return " or ".join(marked) if len(marked) <= 2 else "one of " + ", ".join(marked)


def shown(value: object) -> str:
    """An unexpected value, in the reference's form."""
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
    """The message for a value of another type."""
    return f"invalid type: {shown(value)}, expected {expected}"


def cut(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _float(value: float) -> str:
    # Python uses an exponent one digit earlier, with at least two digits.
    mantissa, mark, exponent = repr(value).partition("e")
    if not mark:
        return mantissa
    if exponent == "-05":
        return f"{'-' if value < 0 else ''}0.0000{mantissa.lstrip('-').replace('.', '')}"
    return f"{mantissa}e{int(exponent):+d}"
