"""One setting seen from outside: its names, its type in words, and the check of a value."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from execserver.configuration.model import PREFIX, Settings

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", Path: "a file name", str: "text"}
_LIMITS = {"ge": "at least", "gt": "above", "lt": "below"}

_PLAIN_NUMBER = {int: re.compile(r"[0-9]{1,15}"), float: re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")}
"""Texts of numbers that mean the same to everybody."""


class Option:
    """A field of `Settings`. `type` is without None; `repeated` is a list of strings.

    What can be told without pydantic is: most daemons start with nothing else, and importing it takes longer
    than all the rest that is done with settings.
    """

    def __init__(self, name: str, default: Any, annotation: Any) -> None:
        annotation, said = get_args(annotation)
        self.name = name
        self.flag = "--" + name.replace("_", "-")
        self.variable = PREFIX + name.upper()
        self.default = default
        self.description = str(said["description"])
        self.group = str(said["group"])
        self.metavar = _text(said["metavar"])
        self.unit = _text(said["unit"])
        self.unset = _text(said["unset"])
        self.secret = bool(said["secret"])
        self._annotation = annotation
        self.type = _without_none(annotation)
        self.choices: tuple[str, ...] = get_args(self.type) if get_origin(self.type) is Literal else ()
        self.repeated = get_origin(self.type) is tuple
        self._bounds: dict[str, Any] = said["limits"]
        self._check: Callable[[Any], Any] | None = said["check"]

    def validated(self, value: Any) -> Any:
        """The value of a flag or a variable: text, or what text stands for.

        Raises:
            ValueError: not accepted; the text says what is.
        """
        if self.type is Path and isinstance(value, str):
            if not value:
                raise ValueError(f"must be {self.accepted}, not empty")
            return Path(value)  # not by pydantic: a file's name may hold bytes that are no UTF-8
        plain = self._plain(value)
        return self._looked_at(self._adapted(value, strict=False) if plain is None else plain)

    def validated_strictly(self, value: Any) -> Any:
        """The value of a file, whose types are its own: no text for a number.

        Raises:
            ValueError: not accepted; the text says what is.
        """
        return self._looked_at(self._adapted(value, strict=True))

    @property
    def accepted(self) -> str:
        """The accepted values in words: "a number of seconds, above 0"."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.repeated:
            return "a list of strings"
        words = _KINDS[self.type] + (f" of {self.unit}" if self.unit else "")
        return ", ".join([words, *self._limits()])

    def shown(self, value: Any) -> str:
        """A value for people: sizes with their binary unit, None and nothing by what holds then."""
        if value is None or value == ():
            return self.unset or "none"
        if isinstance(value, bool):
            return "true" if value else "false"
        if self.unit == "bytes" and value and value % (1 << 20) == 0:
            return f"{value} ({value >> 20} MiB)"
        if isinstance(value, float):
            return f"{value:g}"
        return " ".join(value) if isinstance(value, tuple) else str(value)

    def _plain(self, value: Any) -> Any:
        """What a value stands for without any doubt; None for a doubtful one."""
        if self.repeated:
            texts = _texts(value)
            plain = texts is not None and (self._check is not None or all(map(str.isascii, texts)))
            return texts if plain else None
        if not isinstance(value, str):
            return None
        if self.type is str:
            return value if value.isascii() else None
        if self.choices:
            return value if value in self.choices else None
        pattern = _PLAIN_NUMBER.get(self.type)
        if pattern is None or not pattern.fullmatch(value):
            return None
        number = self.type(value)
        within = {"ge": number.__ge__, "gt": number.__gt__, "lt": number.__lt__}
        return number if all(within[name](limit) is True for name, limit in self._bounds.items()) else None

    def _looked_at(self, value: Any) -> Any:
        return value if self._check is None or value is None else self._check(value)

    def _adapted(self, value: Any, *, strict: bool) -> Any:
        if self.repeated and self._check is not None:
            # Not pydantic's own strings: a socket's path may hold bytes that are no UTF-8.
            texts = _texts(value)
            if texts is None:
                raise ValueError(f"must be a list of strings, not {value!r}")
            return texts
        from pydantic import ValidationError

        try:
            if not strict:
                return self._adapter.validate_python(value)
            # As JSON, because there a list may be a tuple and a string a path; what JSON lacks (dates)
            # becomes something that no setting takes.
            document = json.dumps(value, default=lambda other: {"": str(other)})
            return self._adapter.validate_json(document, strict=True)
        except ValidationError:
            given = "" if self.secret else f", not {value!r}"
            raise ValueError(f"must be {self.accepted}{given}") from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import Field, TypeAdapter

        annotated: Any = Annotated[self._annotation, Field(**self._bounds)]
        return TypeAdapter(annotated)

    def _limits(self) -> list[str]:
        return [
            f"{_LIMITS[name]} {value:g}" if value < 1e6 else f"{_LIMITS[name]} {value}"
            for name, value in self._bounds.items()
        ]


def _texts(value: Any) -> tuple[str, ...] | None:
    """A list of strings, as it is kept; None for anything else."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return tuple(value)
    return None


def _text(value: object) -> str | None:
    assert value is None or isinstance(value, str)
    return value


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    return annotation


_ANNOTATIONS = get_type_hints(Settings, localns={"Path": Path}, include_extras=True)

OPTIONS = {
    name: Option(name, default, _ANNOTATIONS[name])
    for name, default in zip(Settings.__struct_fields__, Settings.__struct_defaults__, strict=True)
}
"""Every setting by its name, in the order of the model."""
