"""Checks of the machine from outside a sandbox."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE = 15.0
"""Seconds to wait for an event; long, because it matters only in a failure."""


def wait_for(done: Callable[[], object], what: str) -> None:
    """Poll until a condition is true."""
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end, f"waited {DEADLINE:g} s for {what}"
        time.sleep(0.02)


def bearers(token: str) -> list[int]:
    """The processes of the machine that have a word on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
