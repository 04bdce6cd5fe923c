"""The effective settings: flags, then variables, then the file, then defaults; and `execserver config
show`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from execserver.configuration.model import Settings, SettingsError
from execserver.configuration.options import OPTIONS, Option
from execserver.configuration.sources import EnvironmentSource, FileSource, FlagSource, Source
from execserver.supervisor import config_file
from execserver.supervisor.listeners import default_listener

_HIDDEN = "(hidden)"


class Effective:
    """The effective settings and the origin of each.

    Args:
        sources: in order of priority, highest first.
        file: the configuration file that was read.
        warnings: sentences for the operator.
    """

    def __init__(self, sources: tuple[Source, ...], file: str | None, warnings: list[str]) -> None:
        merged: dict[str, Any] = {}
        for source in reversed(sources):
            merged |= source.values
        self.settings = Settings(**merged)
        self.file = file
        """The configuration file that was read."""
        self.warnings = warnings
        """Sentences for the operator about mistakes that are not errors."""
        self._sources = sources

    def origin(self, name: str) -> str:
        """`flag --x`, `environment EXECSERVER_X`, `file PATH:LINE` or `default`."""
        return next((source.origin(name) for source in self._sources if name in source.values), "default")


def load(flags: Mapping[str, Any], environment: Mapping[str, str], config: str | None = None) -> Effective:
    """Read, check and merge all sources.

    Args:
        flags: the settings on the command line, by name (`given_settings`).
        environment: the variables.
        config: the value of `--config`; None if not given.

    Raises:
        SettingsError: values cannot be used. All problems of all sources are named.
    """
    folder = os.getcwd()
    path = config_file.find(config, environment)
    variables = EnvironmentSource(environment, folder)
    sources = (FlagSource(flags, folder), variables, FileSource(path))
    problems = [problem for source in sources for problem in source.problems]
    if problems:
        raise SettingsError(problems)
    return Effective(sources, path, variables.warnings)


# -- shown by `execserver config show`


def as_toml(effective: Effective, environment: Mapping[str, str]) -> str:
    """`key = value` for each setting, with its origin as a comment; a comment alone for unset and secret
    ones.
    """
    file = effective.file or "none"
    pairs = [(_line(option, value), origin) for option, value, origin in _values(effective, environment)]
    width = max(len(line) for line, _ in pairs if len(line) <= 60)
    return "".join(
        [f"# configuration file: {file}\n", *(f"{line:{width}}  # {why}\n" for line, why in pairs)]
    )


def as_json(effective: Effective, environment: Mapping[str, str]) -> str:
    """`{"file": PATH or null, "settings": {KEY: {"value": …, "from": ORIGIN}}}`."""
    settings = {
        option.name: {"value": value, "from": origin}
        for option, value, origin in _values(effective, environment)
    }
    return json.dumps({"file": effective.file, "settings": settings}, indent=2) + "\n"


def _values(effective: Effective, environment: Mapping[str, str]) -> list[tuple[Option, Any, str]]:
    values = []
    for name, option in OPTIONS.items():
        value: Any = getattr(effective.settings, name)
        if isinstance(value, Path):
            value = os.fspath(value)
        elif name == "listen":
            value = list(value) or [default_listener(environment).url]
        elif option.secret and value is not None:
            value = _HIDDEN
        values.append((option, value, effective.origin(name)))
    return values


def _line(option: Option, value: Any) -> str:
    if value is None:
        return f"# {option.name} is not set: {option.shown(None)}"
    if option.secret:
        return f"# {option.name}: {value}"
    # JSON's strings, lists, numbers and truth values are TOML's, but for characters beyond 16 bits.
    return f"{option.name} = {json.dumps(value, ensure_ascii=False)}"
