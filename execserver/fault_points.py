"""Named points at which a test can stop the server, to do something to it just there.

Nothing happens unless `EXECSERVER_FAULT_POINT` was in the server's environment at its start: `NAME`, or
`NAME:N` for the N-th time that the point is reached. The server then stops itself (SIGSTOP); whoever
watches it sees the state T, and kills it, cuts its connections, fills its disk, or lets it go on (SIGCONT).
Only the first server of a service is armed, and for the points of a take-over its successor: the next one
has to get past the same point.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import MutableMapping

VARIABLE = "EXECSERVER_FAULT_POINT"

_armed: dict[str, int] = {}
"""How often a point is still to be passed, by name: empty but in tests."""


def arm(environment: MutableMapping[str, str]) -> None:
    """Take the variable out of the environment, and remember what it says."""
    name, _, count = environment.pop(VARIABLE, "").partition(":")
    if name:
        _armed[name] = int(count or 1)


def only_of_take_over(*, first: bool) -> None:
    """Pass all points but, in the first server that takes over, those that begin with `take-over`."""
    for name in tuple(_armed):
        if not (first and name.startswith("take-over")):
            del _armed[name]


def reach(name: str) -> None:
    """Stop here if a test asked for it. Costs a look into an empty dictionary otherwise."""
    if name in _armed:
        _armed[name] -= 1
        if _armed[name] == 0:
            del _armed[name]
            # To this thread: one for the process may stop another one first, and this one would go on a bit.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
