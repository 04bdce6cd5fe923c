"""From a model's fields to the shapes that a call's arguments are read by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from execclient.tools.json_shapes import (
    BOOLEAN,
    TEXT,
    Anything,
    Enumeration,
    Integer,
    ListOf,
    Member,
    Nullable,
    Object,
    Shape,
)

_SHAPES: dict[object, Shape[object]] = {str: TEXT, bool: BOOLEAN, Any: Anything()}


class Arguments(BaseModel):
    """What every tool's arguments have in common. Instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reference_struct: ClassVar[tuple[str, int]]
    """What the reference reads first and names in its messages, and how many members that has."""
    read_first: ClassVar[tuple[str, ...]] = ()
    """The members that the reference reads by themselves, before all of them: what is wrong with one of
    these, or with the text as such, is reported before what is wrong with the others."""


@dataclass(frozen=True, slots=True)
class UnlessGiven:
    """Marks a field that a call needs unless it has another one."""

    other: str


@dataclass(frozen=True, slots=True)
class AlsoNamed:
    """Marks a field with another name that models use for it."""

    name: str


class NullIsAbsent:
    """Marks a field whose null means what its absence does, though its type has no null."""


class Unadvertised:
    """Marks a field that is understood and not shown to models: a second form of what is shown."""


@cache
def first_shape_of(model: type[Arguments]) -> Object | None:
    """What is read before the whole; None if nothing is."""
    if not model.read_first:
        return None
    first = tuple(member for member in shape_of(model).members if member.name in model.read_first)
    return Object(*model.reference_struct, first, ignores_others=True)


@cache
def shape_of(model: type[Arguments]) -> Object:
    """What a tool's arguments are read by."""
    members = []
    for name, field in model.model_fields.items():
        marks = field.metadata
        shape = _shape(field.annotation, marks)
        instead = next((each.other for each in marks if isinstance(each, UnlessGiven)), None)
        if instead is not None and isinstance(shape, Nullable):
            shape = shape.shape  # it has to be left out for the other one
        members.append(
            Member(
                name,
                shape,
                required=field.is_required() or instead is not None,
                aliases=tuple(each.name for each in marks if isinstance(each, AlsoNamed)),
                instead=instead,
                advertised=not any(isinstance(each, Unadvertised) for each in marks),
            )
        )
    return Object(*model.reference_struct, tuple(members))


def _shape(annotation: Any, marks: Sequence[object]) -> Shape[object]:
    if get_origin(annotation) in (UnionType, Union):
        (inner,) = (each for each in get_args(annotation) if each is not NoneType)
        return Nullable(_shape(inner, marks))
    if any(isinstance(each, NullIsAbsent) for each in marks):
        return Nullable(_shape(annotation, [each for each in marks if not isinstance(each, NullIsAbsent)]))
    integer = next((each for each in marks if isinstance(each, Integer)), None)
    if integer is not None:
        return integer
    if get_origin(annotation) is Literal:
        return Enumeration(get_args(annotation))
    if get_origin(annotation) is tuple:
        return ListOf(TEXT)
    return _SHAPES[annotation]
