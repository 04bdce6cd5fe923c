"""Times as text for people."""

from __future__ import annotations

import time

_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def rough_duration(seconds: float) -> str:
    """About how long, in one unit: 0.3 s, 42 s, 3 min, 5 h, 12 d."""
    for unit in ("d", "h", "min"):
        length = _SECONDS[unit]
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
