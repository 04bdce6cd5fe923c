"""Whether two `process/start` ask for the same (`docs/protocol.md`, P20 to P22). Pure.

A digest is kept for each parameter instead of the parameters: they survive a restart of the server, may be
large, and hold values of the environment that nobody should find again in a text or a file. A parameter
that has its default is left out, so one that a newer version adds makes no difference to an older start.
"""

from __future__ import annotations

import json
from _blake2 import blake2b  # what `hashlib` has, which loads OpenSSL for the others
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from execserver.protocol.limits import TTY_COLUMNS, TTY_ROWS

if TYPE_CHECKING:
    from execserver.protocol.process import StartParams

_REQUIRED = object()

_COMPARED: dict[str, tuple[str, Any]] = {
    "argv": ("argv", _REQUIRED),
    "cwd": ("cwd", _REQUIRED),
    "env": ("env", _REQUIRED),
    "tty": ("tty", _REQUIRED),
    "pipe_stdin": ("pipeStdin", False),
    "arg0": ("arg0", None),
    "env_policy": ("envPolicy", None),
    "sandbox": ("sandbox", None),
    "enforce_managed_network": ("enforceManagedNetwork", False),
    "managed_network": ("managedNetwork", None),
    "network_proxy": ("networkProxy", None),
    "shell_snapshot": ("shellSnapshot", None),
    "metadata": ("metadata", None),
    "timeout_ms": ("timeoutMs", None),
    "idle_timeout_ms": ("idleTimeoutMs", None),
    "size": ("size", None),
}
"""Attribute, name on the wire and default of each parameter, but for what the process is found by and what to
do then. Written out, because the model that has them takes long to load."""

_DIGEST_BYTES = 8
"""16 hexadecimal digits: nobody gains anything by two starts of their own that look the same."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Names in any order are the same object; text that is no UTF-8 (in paths) stands as escapes."""


def start_digest(params: StartParams) -> dict[str, str]:
    """A digest of each parameter that is not its default, by its name on the wire."""
    return {
        name: _digest(value)
        for attribute, (name, default) in _COMPARED.items()
        if (value := getattr(params, attribute)) != default and not _is_usual_size(attribute, value)
    }


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> str | None:
    """The first parameter, in the order of the document, in which two starts differ; None for equal ones."""
    for name, _ in _COMPARED.values():
        if old.get(name) != new.get(name):
            return name
    return next((name for name in old if name not in new), None)


def _is_usual_size(attribute: str, value: Any) -> bool:
    return attribute == "size" and (value.rows, value.cols) == (TTY_ROWS, TTY_COLUMNS)


def _digest(value: Any) -> str:
    plain = value.model_dump(by_alias=True) if hasattr(value, "model_dump") else value
    return blake2b(_encode(plain).encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()
