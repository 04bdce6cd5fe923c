"""Explain why a value does not fit a model, with the error texts of the wire.

The decoder stops at its first error, with its own text. So a refused value is checked again, member by member
in the order of the model. A wrong member is reported before a missing one, as a decoder that reads from left
to right does (`docs/protocol.md`, E11).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from execprotocol.model import MismatchError, WireError, decode

_LOOKED_AT: Final = 100
"""Limit of missing members to skip in search of a wrong one: a message may lack a hundred thousand."""

_TOGETHER: Final = 256
"""Items of a list that are checked together, because most fit."""

_KINDS: Final[dict[type, str]] = {
    NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "floating point",
    str: "string",
    list: "sequence",
    dict: "map",
}

_EXPECTED: Final[dict[type, str]] = {
    bool: "Input should be a valid boolean",
    int: "Input should be a valid integer",
    str: "Input should be a valid string",
    list: "Input should be a valid list",
    dict: "Input should be a valid dictionary",
}


class Fault(msgspec.Struct, frozen=True):
    """Why a value does not fit a model."""

    text: str
    """A sentence for people."""

    field: str
    """The path to the fault: names of members on the wire and indexes of items, joined by dots; empty for the
    whole value. It includes the tag of a tagged model, as in `edits.0.write.path`."""

    missing: bool = False
    """Whether a required member is missing."""


_Place = tuple[str, ...]


def kind_of(value: Any) -> str:
    """The kind of a value, as the reference's decoder names it."""
    return _KINDS.get(type(value), type(value).__name__)


def first_fault(model: type[msgspec.Struct], value: Any) -> Fault:
    """The fault to report for a value that does not fit a model."""
    faults = list(islice(_until_wrong(_faults(model, value, ())), _LOOKED_AT))
    return faults[0] if faults[-1].missing else faults[-1]


def _until_wrong(faults: Iterator[Fault]) -> Iterator[Fault]:
    for fault in faults:
        yield fault
        if not fault.missing:
            return


def _faults(kind: Any, value: Any, place: _Place) -> Iterator[Fault]:
    """All faults of a value, in order; none if it fits its type."""
    try:
        decode(kind, value)
    except msgspec.ValidationError as error:
        inside = _inside(kind, value, place)
        first = next(inside, None)
        if first is not None:
            yield first
            yield from inside
        else:
            yield _of_whole(kind, value, place, error)


def _inside(kind: Any, value: Any, place: _Place) -> Iterator[Fault]:
    """The faults of the members or items of a value."""
    origin = get_origin(kind) or kind
    if origin is Annotated:
        yield from _faults(kind.__origin__, value, place)
    elif origin in (Union, UnionType):
        choices = [choice for choice in get_args(kind) if choice is not NoneType]
        yield from _faults(choices[0], value, place) if len(choices) == 1 else _tagged(choices, value, place)
    elif "anyOf" in getattr(kind, "schema", ()):
        for choice in kind.schema["anyOf"]:
            yield from _faults(choice, value, (*place, choice.__name__))
    elif value.__class__ is dict and origin is dict:
        for name, item in value.items():
            yield from _faults(get_args(kind)[1], item, (*place, name))
    elif value.__class__ is list and origin is list:
        for start in range(0, len(value), _TOGETHER):
            items = value[start : start + _TOGETHER]
            if not _fits(kind, items):
                for index, item in enumerate(items, start):
                    yield from _faults(get_args(kind)[0], item, (*place, str(index)))
    elif value.__class__ is dict and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if name in value:
                yield from _faults(field.type, value[name], (*place, name))
            elif field.required:
                yield Fault(f"missing field `{name}`", ".".join((*place, name)), missing=True)
        if kind.__struct_config__.forbid_unknown_fields:
            known = [field.encode_name for field in msgspec.structs.fields(kind)]
            for name in value.keys() - known:
                where = ".".join((*place, name))
                yield Fault(f"unknown field `{where}`, expected one of {', '.join(known)}", where)


def _tagged(choices: list[Any], value: Any, place: _Place) -> Iterator[Fault]:
    """The faults of an object of a tagged union."""
    if value.__class__ is not dict:
        return
    tag = choices[0].__struct_config__.tag_field
    where = ".".join(place)
    models = {choice.__struct_config__.tag: choice for choice in choices}
    if tag not in value:
        yield Fault(f"missing field `{where}.{tag}`", f"{where}.{tag}")
    elif value[tag].__class__ is str and value[tag] in models:
        yield from _inside(models[value[tag]], value, (*place, value[tag]))
    else:
        expected = ", ".join(map(repr, models))
        yield Fault(f"unknown variant `{value[tag]}`, expected {expected} (field `{where}`)", where)


def _of_whole(kind: Any, value: Any, place: _Place, error: msgspec.ValidationError) -> Fault:
    """The fault of a value whose members or items have no faults."""
    cause = error.__cause__
    if isinstance(cause, WireError):
        return Fault(str(cause), ".".join(place if cause.field is None else (*place, cause.field)))
    where = ".".join(place)
    origin = get_origin(kind) or kind
    if origin is Literal:
        *others, last = map(repr, get_args(kind))
        expected = f"{', '.join(others)} or {last}" if others else last
        return Fault(f"unknown variant `{value}`, expected {expected} (field `{where}`)", where)
    if origin is Annotated:
        bounds = kind.__metadata__[0]
        if bounds.extra is not None:
            return Fault(bounds.extra["error"].format(count=len(value)), where)
        too_small = bounds.ge is not None and value < bounds.ge
        limit = f"greater than or equal to {bounds.ge}" if too_small else f"less than or equal to {bounds.le}"
        expected = f"Input should be {limit}"
    elif isinstance(cause, MismatchError):
        expected = str(cause)
    elif origin in (Union, UnionType):
        expected = "Input should be a valid dictionary or object to extract fields from"
    elif issubclass(origin, msgspec.Struct):
        expected = f"Input should be a valid dictionary or instance of {origin.__name__}"
    else:
        expected = _EXPECTED[origin]
    return Fault(f"invalid type: {kind_of(value)} for field `{where}`: {expected}", where)


def _fits(kind: Any, value: Any) -> bool:
    try:
        decode(kind, value)
    except msgspec.ValidationError:
        return False
    return True
