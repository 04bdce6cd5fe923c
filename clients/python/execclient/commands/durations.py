"""Times on the command line: reading them from options, and writing them for people."""

from __future__ import annotations

import re
import time

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_TEN_YEARS = 10 * 365 * 86400
"""The limit of the daemon's settings."""

_GIVEN = re.compile(r"(\d+(?:\.\d+)?) ?(d|h|min|m|s)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `15m`, `8h` or `2d`.

    Raises:
        ValueError: it is no such text, or not above 0 and below ten years.
    """
    found = _GIVEN.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no duration: give a number of seconds, or a number with s, m, h or d behind it, as "
            "in 90, 90s, 15m, 8h or 2d"
        )
    seconds = float(found[1]) * _SECONDS[found[2] or "s"]
    if not 0 < seconds < _TEN_YEARS:
        raise ValueError(f"{text!r} is no duration above 0 and below ten years")
    return seconds


def duration(seconds: float) -> str:
    """About how long, in one unit: 0.3 s, 42 s, 3 min, 5 h, 12 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def setting(seconds: float) -> str:
    """A duration that a person has chosen, in two units at most: 80 s, 8 h, 1 d 12 h."""
    if seconds < 120:
        return f"{seconds:g} s"
    parts, rest = [], round(seconds)
    for unit in ("d", "h", "min", "s"):
        count, rest = divmod(rest, _SECONDS[unit])
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def clock_time(seconds: float) -> str:
    """A time since 1970 by the clock of this machine: 14:03, and with its date on another day than today."""
    then = time.localtime(seconds)
    same_day = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)
