"""Whether two `process/start` ask for the same (`docs/protocol.md`, P20 to P22). Pure.

A digest is kept for each parameter instead of the parameters: they survive a restart of the server, may be
large, and hold values of the environment that nobody should find again in a text or a file. A parameter
that has its default is left out, so one that a newer version adds makes no difference to an older start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

from pydantic import BaseModel

from execserver.protocol.process import USUAL_SIZE, StartParams

_NOT_COMPARED = frozenset({"process_id", "if_exists"})
"""What the process was found by, and what to do then."""

_SAME_AS_DEFAULT: dict[str, tuple[Any, ...]] = {"size": (USUAL_SIZE,)}

_DIGEST_BYTES = 8
"""16 hexadecimal digits: nobody gains anything by two starts of their own that look the same."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Names in any order are the same object; text that is no UTF-8 (in paths) stands as escapes."""


def start_digest(params: StartParams) -> dict[str, str]:
    """A digest of each parameter that is not its default, by its name on the wire."""
    return {
        name: _digest(value)
        for attribute, name, defaults in _compared()
        if (value := getattr(params, attribute)) not in defaults
    }


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> str | None:
    """The first parameter, in the order of the document, in which two starts differ; None for equal ones."""
    for _, name, _ in _compared():
        if old.get(name) != new.get(name):
            return name
    return next((name for name in old if name not in new), None)


@cache
def _compared() -> tuple[tuple[str, str, tuple[Any, ...]], ...]:
    """Attribute, name on the wire, and what is the same as leaving it out, of each parameter; one that is
    required equals none of that.
    """
    return tuple(
        (attribute, field.alias or attribute, (field.get_default(), *_SAME_AS_DEFAULT.get(attribute, ())))
        for attribute, field in StartParams.model_fields.items()
        if attribute not in _NOT_COMPARED
    )


def _digest(value: Any) -> str:
    plain = value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value
    return blake2b(_encode(plain).encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()
