"""Values as text: those of options (durations, counts, signals, keys), which a user types, and those that
commands print (durations, times, sizes).
"""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence

from execprotocol.command_line import did_you_mean
from execprotocol.limits import LARGEST_PORT

DEFAULT_DETACH_KEYS = "ctrl-p,ctrl-q"
"""As in docker."""

_CONTROL = "@abcdefghijklmnopqrstuvwxyz[\\]^_"
"""The characters whose control codes are 0 to 31, in that order."""

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]+\.?[0-9]*(?:e[0-9]+)?|\.[0-9]+)([smhd]?)")

_SIGNAL_FLAG = re.compile(r"-([0-9]+|[A-Z][A-Z0-9+]+)")
"""As kill(1) takes signals. No option of ours has a capital letter or a digit."""

_LENGTHS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
"""The seconds of the units that are printed."""

SHORTEST_SECONDS = 0.001
"""The resolution of limits on the wire."""

TEN_YEARS = 10 * 365 * 86400
"""The limit of the daemon's settings."""


def duration(text: str) -> float:
    """The seconds of a duration such as 90, 90s, 15m, 8h or 2d.

    Raises:
        ArgumentTypeError: it is none, shorter than a millisecond, or ten years or longer.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"no duration: {text!r}; write a time above 0: 90, 90s, 15m, 8h or 2d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if not SHORTEST_SECONDS <= seconds < TEN_YEARS:
        raise ArgumentTypeError(
            f"no duration: {text!r}; the shortest is {SHORTEST_SECONDS}, the longest 3649d"
        )
    return seconds


def moment(text: str) -> float:
    """A time in seconds since 1970, given as how long ago (5m, 2h) or as a date and time (ISO 8601), which is
    local unless it ends with Z or an offset.

    Raises:
        ArgumentTypeError: it is none.
    """
    if _DURATION.fullmatch(text):
        return time.time() - duration(text)
    from datetime import datetime  # takes as long to load as this module: not for each help and completion

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"no time: {text!r}; write how long ago, such as 5m or 2h, or 2026-11-27T14:03:00"
        ) from None


_SIZE = re.compile(r"([0-9]+)([KMGT]?)", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def size(text: str) -> int:
    """The bytes of a size such as 1048576, 512M or 2G; the units are powers of 1024, as systemd's.

    Raises:
        ArgumentTypeError: it is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"no size: {text!r}; write bytes, or 512M or 2G")
    return int(found[1]) << 10 * _POWERS[found[2].upper()]


def percent(text: str) -> int:
    """A whole number of percent: 150 or 150%.

    Raises:
        ArgumentTypeError: it is none.
    """
    return count(text.removesuffix("%"))


def count(text: str) -> int:
    """A whole number from 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"no whole number from 0: {text!r}")
    return int(text)


def ports(text: str) -> tuple[int, int | None]:
    """A remote and a local port, as 3000 or 3000:8080. The local one may be 0, or None if it is not given.

    Raises:
        ArgumentTypeError: there are no such ports.
    """
    remote, colon, local = text.partition(":")
    given = count(remote), count(local) if colon else None
    if not 1 <= given[0] <= LARGEST_PORT or (given[1] or 0) > LARGEST_PORT:
        raise ArgumentTypeError(f"no ports: {text!r}; write 3000 or 3000:8080, of 1 to {LARGEST_PORT}")
    return given


def signal_name(text: str) -> str:
    """The name of a signal that is given as 9, KILL, kill or SIGKILL.

    Raises:
        ArgumentTypeError: there is no such signal.
    """
    import signal

    from execclient.process_control import signal_name as numbered_signal

    if text.isdecimal():
        try:
            return numbered_signal(int(text))
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None
    name = text.upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    base, plus, offset = name.partition("+")
    if base == "SIGRTMIN" and plus and offset.isdecimal():
        return name  # the daemon's C library numbers it
    if name not in signal.Signals.__members__:
        names = [each.removeprefix("SIG") for each in signal.Signals.__members__]
        raise ArgumentTypeError(f"no signal: {text}{did_you_mean(name.removeprefix('SIG'), names)}")
    return name


def detach_keys(text: str) -> bytes:
    """The bytes of keys like `ctrl-p,ctrl-q`: characters, or `ctrl-` and a character. Empty for none.

    Raises:
        ArgumentTypeError: there is no such key.
    """
    return b"".join(_key(name) for name in text.split(",")) if text else b""


def _key(name: str) -> bytes:
    modifier, dash, key = name.rpartition("ctrl-")
    if not modifier and dash and len(key) == 1 and key.lower() in _CONTROL:
        return bytes([_CONTROL.index(key.lower())])
    if len(name) == 1 and name.isascii():
        return name.encode()
    raise ArgumentTypeError(
        f"no key: {name!r}; a key is a character, or ctrl- and a letter or one of @[\\]^_"
    )


def kill_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments of `kill` with `-9` and `-KILL` as `--signal=9` and `--signal=KILL`."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [f"--signal={each[1:]}" if _SIGNAL_FLAG.fullmatch(each) else each for each in argv[:end]] + [
        *argv[end:]
    ]


# -- values that commands print


def rough_duration(seconds: float) -> str:
    """About how long, in one unit: 0.3 s, 42 s, 3 min, 5 h, 12 d."""
    for unit in ("d", "h", "min"):
        length = _LENGTHS[unit]
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def chosen_duration(seconds: float) -> str:
    """A duration that a user has chosen, in two units at most: 80 s, 8 h, 1 d 12 h."""
    if seconds < 120:
        return f"{seconds:g} s"
    parts, rest = [], round(seconds)
    for unit in ("d", "h", "min", "s"):
        number, rest = divmod(rest, _LENGTHS[unit])
        if number:
            parts.append(f"{number} {unit}")
    return " ".join(parts[:2])


def clock_time(seconds: float) -> str:
    """A time since 1970 by the clock of this machine: 14:03, and with its date on another day than today."""
    then = time.localtime(seconds)
    same_day = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)


def exact_time(seconds: float) -> str:
    """A time since 1970 to the millisecond, local, with its offset: 2026-11-27T14:03:05.120+01:00."""
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def amount(size: float) -> str:
    """A number of bytes for people: 512 B, 3.2 KiB, 45 MiB."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
