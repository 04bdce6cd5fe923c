"""The options of a start beside the program, and the comparison with a later start (`docs/protocol.md`,
P20 to P22).

A digest of each parameter is kept instead of the parameters: they outlive the server, may be large, and hold
values of the environment that must not appear in a file. A parameter that has its default is left out, so a
parameter that a newer version adds makes no difference to an older start.
"""

from __future__ import annotations

import json
import os
import time
from _blake2 import blake2b  # what `hashlib` has, which loads OpenSSL for the others
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from execprotocol.port import PortOpenParams
from execprotocol.process import USUAL_SIZE, ResourceLimits, StartParams
from execserver.spool.records import Started

if TYPE_CHECKING:
    from execserver.launch_spec import LaunchSpec
    from execserver.network.proxies import Proxy
    from execserver.sandbox.confinement import Confinement

MAX_KEPT_ARGV = 4096
"""Characters of a command line that are kept for `process/list`, each argument counting for one more: enough
to recognize a command. The ledger holds them."""

_CUT = "…"

_COMPARED, _COMPARED_OF_STREAMS = (
    [field for field in msgspec.structs.fields(kind) if field.name not in ("process_id", "if_exists")]
    for kind in (StartParams, PortOpenParams)
)
"""All parameters but for the name of the process and what to do when that is taken."""

_DIGEST_BYTES = 8
"""16 hexadecimal digits. A client gains nothing from two of its own starts that look the same."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Names in any order are the same object; text that is no UTF-8 (in paths) stands as escapes."""


class StartOptions(msgspec.Struct, frozen=True):
    """The options of a start beside the program."""

    timeout: float | None
    """Seconds after which the process is killed, also for its `limits`."""
    idle_timeout: float | None
    """Seconds without output or input after which it is killed."""
    digests: dict[str, str] | None
    """A digest of each parameter, for a later start that wants to attach."""
    argv: list[str]
    """The command line as `process/list` shows it."""
    cwd: str
    """The working directory, likewise."""
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL at either limit; None for SIGKILL at once."""
    confinement: Confinement | None = None
    """The sandbox. It belongs to the process, once there is one."""
    proxy: Proxy | None = None
    """The network proxy, likewise."""
    limits: ResourceLimits | None = None
    """What it may use; None for no limit."""
    paced: bool = False
    """Whether its output is held back rather than dropped (`pacing.py`)."""

    @classmethod
    def of(
        cls,
        params: StartParams,
        *,
        may_attach: bool,
        confinement: Confinement | None = None,
        proxy: Proxy | None = None,
        limits: ResourceLimits | None = None,
    ) -> StartOptions:
        """The options of a request.

        Args:
            params: the request.
            may_attach: whether a later start may want to attach. Without that the digests would cost more
                than a spawn has to spare.
            confinement: the sandbox that was prepared for it.
            proxy: the network proxy that was started for it.
            limits: those in force: of the request, or of the settings.
        """
        wall_ms = None if limits is None else limits.wall_ms
        ends = [each for each in (params.timeout_ms, wall_ms) if each is not None]
        return cls(
            _seconds(min(ends, default=None)),
            _seconds(params.idle_timeout_ms),
            start_digests(params) if may_attach else None,
            bounded_argv(params.argv),
            bounded_path(params.cwd),
            _seconds(params.grace_ms),
            confinement,
            proxy,
            limits,
        )

    def record(
        self, number: int, session_id: str, process_id: str, pid: int, spec: LaunchSpec
    ) -> tuple[Started, list[int]]:
        """The record of the process that was started with these options, and the locks of its sandbox."""
        description, locks = (None, []) if self.confinement is None else self.confinement.recovery_state()
        started_at = time.monotonic()
        started = Started(
            number,
            session_id,
            process_id,
            pid,
            spec.tty,
            spec.pipe_stdin,
            started_at,
            None if self.timeout is None else started_at + self.timeout,
            self.idle_timeout,
            self.digests,
            description,
            self.argv,
            self.cwd,
            time.time_ns() // 1_000_000,
            self.grace,
            None if self.limits is None else self.limits.values(),
            self.paced,
            spec.size if spec.tty else None,
        )
        return started, locks


def start_digests(params: StartParams | PortOpenParams) -> dict[str, str]:
    """A digest of each parameter that is not its default, by its name on the wire."""
    return {
        field.encode_name: _digest(value)
        for field in (_COMPARED if isinstance(params, StartParams) else _COMPARED_OF_STREAMS)
        if (value := getattr(params, field.name)) not in (field.default, USUAL_SIZE)
    }


def first_difference(old: Mapping[str, str], new: Mapping[str, str]) -> str | None:
    """The first parameter, in the order of the document, in which two starts differ; None if none does."""
    for field in (*_COMPARED, *_COMPARED_OF_STREAMS):
        if old.get(field.encode_name) != new.get(field.encode_name):
            return field.encode_name
    return next((name for name in old if name not in new), None)


def bounded_argv(argv: list[str]) -> list[str]:
    """A command line, cut at `MAX_KEPT_ARGV`; an ellipsis stands for what is missing."""
    if sum(map(len, argv)) + len(argv) <= MAX_KEPT_ARGV:
        return argv
    kept: list[str] = []
    room = MAX_KEPT_ARGV
    for argument in argv:
        if len(argument) + 1 > room:
            kept.append(argument[: max(0, room - 1)] + _CUT)
            break
        kept.append(argument)
        room -= len(argument) + 1
    return kept


def bounded_path(path: str) -> str:
    """A native path as bounded text: bytes that are no UTF-8 become U+FFFD."""
    text = path if path.isascii() else os.fsencode(path).decode(errors="replace")
    return text if len(text) <= MAX_KEPT_ARGV else text[: MAX_KEPT_ARGV - 1] + _CUT


def _digest(value: Any) -> str:
    plain = msgspec.to_builtins(value, enc_hook=str)  # a foreign path is no plain text
    return blake2b(_encode(plain).encode("ascii"), digest_size=_DIGEST_BYTES).hexdigest()


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
