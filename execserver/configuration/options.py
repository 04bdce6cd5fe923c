"""One setting seen from outside: its names, its type in words, and the check of a value."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from execserver.configuration.model import PREFIX, Settings

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", Path: "a file name", str: "text"}
_LIMITS = {"ge": "at least", "gt": "above", "lt": "below"}


class Option:
    """A field of `Settings`. `type` is without None; `repeated` is a list of strings."""

    def __init__(self, name: str, field: FieldInfo) -> None:
        extra = field.json_schema_extra
        assert isinstance(extra, dict), f"{name} is not made by _option"
        self.name = name
        self.flag = "--" + name.replace("_", "-")
        self.variable = PREFIX + name.upper()
        self.default: Any = field.default
        self.description = str(field.description)
        self.group = str(extra["group"])
        self.metavar = _text(extra["metavar"])
        self.unit = _text(extra["unit"])
        self.unset = _text(extra["unset"])
        self.secret = bool(extra["secret"])
        self.type = _without_none(field.annotation)
        self.choices: tuple[str, ...] = get_args(self.type) if get_origin(self.type) is Literal else ()
        self.repeated = get_origin(self.type) is tuple
        self._field = field

    def validated(self, value: Any) -> Any:
        """The value of a flag or a variable: text, or what text stands for.

        Raises:
            ValueError: not accepted; the text says what is.
        """
        if self.type is Path and isinstance(value, str):
            if not value:
                raise ValueError(f"must be {self.accepted}, not empty")
            return Path(value)  # not by pydantic: a file's name may hold bytes that are no UTF-8
        return self._checked(value, lambda: self._adapter.validate_python(value))

    def validated_strictly(self, value: Any) -> Any:
        """The value of a file, whose types are its own: no text for a number.

        Raises:
            ValueError: not accepted; the text says what is.
        """
        # As JSON, because there a list may be a tuple and a string a path; what JSON lacks (dates)
        # becomes something that no setting takes.
        document = json.dumps(value, default=lambda other: {"": str(other)})
        return self._checked(value, lambda: self._adapter.validate_json(document, strict=True))

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

    def _checked(self, value: Any, check: Callable[[], Any]) -> Any:
        try:
            return check()
        except ValidationError as invalid:
            error = invalid.errors(include_url=False)[0]
        if error["type"] == "value_error":
            raise ValueError(str(error["ctx"]["error"])) from None  # our own check says it better
        given = "" if self.secret else f", not {value!r}"
        raise ValueError(f"must be {self.accepted}{given}")

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        annotated: Any = Annotated[self._field.annotation, self._field]
        return TypeAdapter(annotated)

    def _limits(self) -> list[str]:
        return [
            f"{words} {value:g}" if value < 1e6 else f"{words} {value}"
            for metadata in self._field.metadata
            for name, words in _LIMITS.items()
            if (value := getattr(metadata, name, None)) is not None
        ]


def _text(value: object) -> str | None:
    assert value is None or isinstance(value, str)
    return value


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    return annotation


OPTIONS = {name: Option(name, field) for name, field in Settings.model_fields.items()}
"""Every setting by its name, in the order of the model."""
