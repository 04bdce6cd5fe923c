"""The options that settings are given by: names, types in words, checks of values, and the flags of
commands.
"""

from __future__ import annotations

import argparse
import json
import re
import types
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from execserver.configuration.model import PREFIX, Settings
from execserver.supervisor.config_file import CONFIG_VARIABLE, FLAG

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", Path: "a file name", str: "text"}
_LIMITS = {"ge": "at least", "gt": "above", "lt": "below"}

_PLAIN_NUMBER = {int: re.compile(r"[0-9]{1,15}"), float: re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")}
"""Texts of numbers that every parser reads alike."""


_CONFIG_HELP = f"""\
the configuration file, TOML with the names of these options as keys; empty: none (default: {CONFIG_VARIABLE},
else $XDG_CONFIG_HOME/execserver/config.toml, else /etc/execserver/config.toml, if there is one)"""

EPILOG = """\
Every option can also be given as a variable, EXECSERVER_SESSION_TTL for --session-ttl (lists separated by
spaces), and in the configuration file, session_ttl = 80. Flags have priority over variables, and
variables over the file. `execserver config show` prints the effective values and their origins."""


class Option:
    """A field of `Settings`. `type` is without None; `repeated` is a list of strings.

    Simple values are checked without pydantic: most daemons have no others, and its import takes longer than
    the rest of the work on settings.
    """

    def __init__(self, name: str, default: Any, annotation: Any) -> None:
        annotation, described = get_args(annotation)
        self.name = name
        self.flag = "--" + name.replace("_", "-")
        self.variable = PREFIX + name.upper()
        self.default = default
        self.description = str(described["description"])
        self.group = str(described["group"])
        self.metavar = _text(described["metavar"])
        self.unit = _text(described["unit"])
        self.unset = _text(described["unset"])
        self.secret = bool(described["secret"])
        self._annotation = annotation
        self.type = _without_none(annotation)
        self.choices: tuple[str, ...] = get_args(self.type) if get_origin(self.type) is Literal else ()
        self.repeated = get_origin(self.type) is tuple
        self._bounds: dict[str, Any] = described["limits"]
        self._check: Callable[[Any], Any] | None = described["check"]

    def validated(self, value: Any) -> Any:
        """Check the value of a flag or a variable, given as text or parsed.

        Raises:
            ValueError: not accepted; the text says what is.
        """
        if self.type is Path and isinstance(value, str):
            if not value:
                raise ValueError(f"must be {self.accepted}, not empty")
            return Path(value)  # not by pydantic: file names may hold bytes that are not UTF-8
        plain = self._plain(value)
        return self._checked(self._adapted(value, strict=False) if plain is None else plain)

    def validated_strictly(self, value: Any) -> Any:
        """Check a value of the file, which has types of its own: text for a number is an error.

        Raises:
            ValueError: not accepted; the text says what is.
        """
        return self._checked(self._adapted(value, strict=True))

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
        """A value for people: sizes with their binary unit, an unset value by its effect."""
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
        """The parsed value of a simple text; None for other texts."""
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

    def _checked(self, value: Any) -> Any:
        return value if self._check is None or value is None else self._check(value)

    def _adapted(self, value: Any, *, strict: bool) -> Any:
        if self.repeated and self._check is not None:
            # Not by pydantic: the path of a socket may hold bytes that are not UTF-8.
            texts = _texts(value)
            if texts is None:
                raise ValueError(f"must be a list of strings, not {value!r}")
            return texts
        from pydantic import ValidationError

        try:
            if not strict:
                return self._adapter.validate_python(value)
            # As JSON, where a list may become a tuple and a string a path; types that JSON lacks (dates)
            # become an object, which no setting takes.
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
    """A list of strings as a tuple; None for anything else."""
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
"""Every setting by name, in the order of the model."""


# -- flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting. Flags that are not given leave no attribute."""
    parser.add_argument(FLAG, metavar="PATH", help=_CONFIG_HELP)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS.values():
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        _add_flag(groups[option.group], option)


def given_settings(namespace: argparse.Namespace) -> dict[str, Any]:
    """The settings on the command line, by name."""
    return {name: value for name, value in vars(namespace).items() if name in OPTIONS}


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    common: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": _help(option)}
    if option.type is bool:
        # With --no-…, because a flag must be able to override the file.
        group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **common)
    elif option.repeated:
        # Checked later, as a whole: the meaning may depend on the other values.
        group.add_argument(option.flag, action="append", metavar=option.metavar, **common)
    else:
        metavar = option.metavar or f"{{{','.join(option.choices)}}}"
        group.add_argument(option.flag, type=_converter(option), metavar=metavar, **common)


def _converter(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return option.validated(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _help(option: Option) -> str:
    unit = f", in {option.unit}" if option.unit and option.unit != "bytes" else ""
    repeated = "; may be repeated" if option.repeated else ""
    default = ""
    if option.unset or option.default not in (None, ()):
        default = f" (default: {option.shown(option.default)})"
    return (option.description + unit + repeated + default).replace("%", "%%")
