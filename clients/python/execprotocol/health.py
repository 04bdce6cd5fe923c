"""`server/health`: how the daemon is, for hosts and operators (`docs/how-to/monitor.md`)."""

from __future__ import annotations

from typing import Literal, TypedDict

from execprotocol.model import U64


class Health(TypedDict):
    """Say how the daemon is, in numbers.

    They are those of the whole daemon, never ids, names or paths. It may be asked for before
    `initialize`, and a connection that asks for nothing else leaves no session behind.
    """

    status: Literal["ok", "stopping"]
    """`stopping` once the service has begun to end, `ok` before."""

    version: str
    """The version of the daemon."""

    pid: int
    """The process id of the server on the executor."""

    uptimeSeconds: float
    """How long the server has run, in seconds."""

    connections: U64
    """How many connections are open, the one that asks among them."""

    sessions: U64
    """How many sessions there are, attached or waiting for their client."""

    processes: U64
    """How many processes are not closed."""

    retainedOutputBytes: U64
    """How many bytes of output are kept for all processes."""

    retainedOutputLimitBytes: U64
    """What that may grow to before the oldest output is dropped (`--spool-max-bytes`)."""

    queuedInputBytes: U64
    """How many bytes of input were accepted for processes that have not read them yet."""

    lostOutputBytes: U64
    """How many bytes of output readers have missed since the start, because they were dropped."""
