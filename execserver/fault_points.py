"""Fault points: named points at which a test can stop the server.

They have no effect unless `EXECSERVER_FAULT_POINT` was in the server's environment at its start: `NAME`, or
`NAME:N` for the N-th time that the point is reached. The server then stops itself (SIGSTOP). The test sees
the state T and kills the server, cuts its connections, fills its disk, or continues it (SIGCONT). Only the
first server of a service is armed, and the next one for the points of a takeover: a later server must get
past the same point.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import MutableMapping

VARIABLE = "EXECSERVER_FAULT_POINT"

_armed: dict[str, int] = {}
"""How often each point is still to be reached; empty except in tests."""


def arm(environment: MutableMapping[str, str]) -> None:
    """Remove the variable from the environment, and arm the point that it names."""
    name, _, count = environment.pop(VARIABLE, "").partition(":")
    if name:
        _armed[name] = int(count or 1)


def only_of_take_over(*, first: bool) -> None:
    """Disarm all points except, in the first server that takes over, those that begin with `take-over`."""
    for name in tuple(_armed):
        if not (first and name.startswith("take-over")):
            del _armed[name]


def reach(name: str) -> None:
    """Stop here if the point is armed. Otherwise this is a look-up in an empty dictionary."""
    if name in _armed:
        _armed[name] -= 1
        if _armed[name] == 0:
            del _armed[name]
            # To this thread: a signal to the process may stop another thread first, while this one runs on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
