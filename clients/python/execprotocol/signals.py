"""The names of signals on the wire (`docs/protocol.md`, P33). Pure.

The numbers are those of the executor; a client only ever needs the names.
"""

from __future__ import annotations

import signal

INTERRUPT = "interrupt"
"""The one name that the reference has: SIGINT."""

_PLAIN = (
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "IOT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "POLL", "PWR", "SYS",
)  # fmt: skip

_REAL_TIME = 30
"""SIGRTMAX - SIGRTMIN: what the C library has left for programs."""

_OFFSET = rf"(?:[1-9]|[12][0-9]|{_REAL_TIME})"

PATTERN = rf"^(?:{INTERRUPT}|SIG(?:{'|'.join(_PLAIN)})|SIGRTMIN(?:\+{_OFFSET})?|SIGRTMAX(?:-{_OFFSET})?)$"
"""Every name, as a regular expression of JSON Schema."""

_NUMBERS: dict[str, int] = {
    INTERRUPT: signal.SIGINT,
    **{f"SIG{name}": getattr(signal, f"SIG{name}") for name in _PLAIN},
    "SIGRTMIN": signal.SIGRTMIN,
    "SIGRTMAX": signal.SIGRTMAX,
    **{f"SIGRTMIN+{offset}": signal.SIGRTMIN + offset for offset in range(1, _REAL_TIME + 1)},
    **{f"SIGRTMAX-{offset}": signal.SIGRTMAX - offset for offset in range(1, _REAL_TIME + 1)},
}


def signal_number(name: str) -> int | None:
    """The number of a signal by its name: `interrupt`, `SIGTERM`, `SIGRTMIN+3`, …; None when there is none of
    that name. Names are exact, also in their case.
    """
    return _NUMBERS.get(name)
