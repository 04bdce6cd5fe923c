"""Which processes are a daemon's servers."""

from __future__ import annotations

from pathlib import Path


def is_server(pid: int, supervisor: int) -> bool:
    """Whether a child of a supervisor is a server, and no orphan of a command: the first server may be a copy
    of the supervisor, others are programs of their own.

    Raises:
        OSError: there is no such process (any more).
    """
    same = Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{supervisor}/cmdline").read_bytes()
    return same or is_spawned(pid)


def is_spawned(pid: int) -> bool:
    """Whether it is a server that is a program of its own.

    Raises:
        OSError: there is no such process (any more).
    """
    return b"execserver.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()
