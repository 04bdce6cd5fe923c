"""What `execserver config show` prints: TOML that could be a configuration file, or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from execserver.configuration.loading import Effective
from execserver.configuration.options import OPTIONS, Option
from execserver.supervisor.listeners import default_listener

_HIDDEN = "(hidden)"


def as_toml(effective: Effective, environment: Mapping[str, str]) -> str:
    """A line `key = value` for each setting, its origin as a comment; a comment for unset and secret ones."""
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
