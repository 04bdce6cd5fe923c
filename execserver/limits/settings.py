"""The daemon's own limits for commands: defaults, and a ceiling for what a start may ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from execprotocol.errors import InvalidRequest

if TYPE_CHECKING:
    from execprotocol.process import ResourceLimits

ACCEPTED = (
    "memory=SIZE (bytes, 512M, 2G), pids=N, cpu=PERCENT (100 is one processor), io=WEIGHT, wall=SECONDS"
)

_MEMBERS = {
    "memory": "memoryBytes",
    "pids": "pids",
    "cpu": "cpuPercent",
    "io": "ioWeight",
    "wall": "wallMs",
}

_NUMBER = re.compile(r"([0-9]+)([KMGT]?)")


class LimitSettings(msgspec.Struct, frozen=True):
    """The settings for limits of commands."""

    default: dict[str, int]
    """For commands that ask for no such limit, by the names on the wire; never above `most`."""
    most: dict[str, int]
    """The greatest that a start may ask for, and the limit of one that asks for none."""
    sandboxed_only: bool
    """Whether `default` is for commands in a sandbox only."""

    @classmethod
    def of(cls, default: Iterable[str], most: Iterable[str], *, sandboxed_only: bool) -> LimitSettings | None:
        """The settings in the form of the command line, which was checked; None without limits."""
        greatest = parsed(most)
        lowered = {name: min(value, greatest.get(name, value)) for name, value in parsed(default).items()}
        settings = cls(lowered, greatest, sandboxed_only)
        return settings if settings.default or settings.most else None

    def effective(self, asked: ResourceLimits | None, *, sandboxed: bool) -> ResourceLimits | None:
        """The limits of a start; None without any.

        Args:
            asked: those of the request.
            sandboxed: whether it has a sandbox.

        Raises:
            InvalidRequest: it asks for more than it may.
        """
        from execprotocol.process import ResourceLimits

        values = {} if asked is None else asked.values()
        for name, value in values.items():
            if value > self.most.get(name, value):
                raise InvalidRequest(
                    f"`limits.{name}` is at most {self.most[name]} here, by the setting max_limit",
                    name="limit_too_high",
                    field=f"limits.{name}",
                )
        default = self.default if sandboxed or not self.sandboxed_only else {}
        merged = {**self.most, **default, **values}
        return msgspec.convert(merged, ResourceLimits) if merged else None


def parsed(texts: Iterable[str]) -> dict[str, int]:
    """Limits such as `memory=512M`, by the names on the wire.

    Raises:
        ValueError: one is not understood, or out of its range; the text says what is accepted.
    """
    from execprotocol.process import ResourceLimits

    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        number = _NUMBER.fullmatch(value)
        if name not in _MEMBERS or number is None or (number[2] and name != "memory"):
            raise ValueError(f"must be {ACCEPTED}, not {text!r}")
        size = int(number[1]) << 10 * " KMGT".index(number[2] or " ")
        found[_MEMBERS[name]] = size * 1000 if name == "wall" else size
    try:
        msgspec.convert(found, ResourceLimits)
    except msgspec.ValidationError as error:
        raise ValueError(f"must be {ACCEPTED}: {error}") from None
    return found
