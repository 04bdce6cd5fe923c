"""Whether two `process/start` ask for the same (`docs/protocol.md`, P20 to P22). Pure.

A digest is kept for each parameter instead of the parameters: they survive a restart of the server, may be
large, and hold values of the environment that nobody should find again in a text or a file. A parameter
that has its default is left out, so one that a newer version adds makes no difference to an older start.
"""

from __future__ import annotations

import json
from _blake2 import blake2b  # what `hashlib` has, which loads OpenSSL for the others
from collections.abc import Mapping
from typing import Any

import msgspec

from execprotocol.process import USUAL_SIZE, StartParams

_COMPARED = [
    field for field in msgspec.structs.fields(StartParams) if field.name not in ("process_id", "if_exists")
]
"""All parameters but for what the process is found by and what to do then."""

_DIGEST_BYTES = 8
"""16 hexadecimal digits: nobody gains anything by two starts of their own that look the same."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Names in any order are the same object; text that is no UTF-8 (in paths) stands as escapes."""


def start_digest(params: StartParams) -> dict[str, str]:
    """A digest of each parameter that is not its default, by its name on the wire."""
    return {
        field.encode_name: _digest(value)
        for field in _COMPARED
        if (value := getattr(params, field.name)) not in (field.default, USUAL_SIZE)
    }


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> str | None:
    """The first parameter, in the order of the document, in which two starts differ; None for equal ones."""
    for field in _COMPARED:
        if old.get(field.encode_name) != new.get(field.encode_name):
            return field.encode_name
    return next((name for name in old if name not in new), None)


def _digest(value: Any) -> str:
    plain = msgspec.to_builtins(value, enc_hook=str)  # a foreign path is no plain text
    return blake2b(_encode(plain).encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()
