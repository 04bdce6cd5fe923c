"""Keep connections out of forked children.

A forked child has a copy of each descriptor. While the child lives, which may be longer than its parent
(`multiprocessing`), the peer would not notice that the parent has closed the connection or has died: a daemon
over `stdio:` would not end, and a session would not count as abandoned. So the child's copies are replaced by
`/dev/null`: their numbers stay in use, closing them affects no other file, and data that the child writes by
mistake does not mix with the parent's messages.

Executed programs have no copies anyway, and `subprocess` does not run fork handlers.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

_withheld: dict[int, tuple[int, int]] = {}
"""Device and inode by descriptor: at the time of a fork the number may stand for another file."""


class _File(Protocol):
    def fileno(self) -> int:
        """The descriptor; negative, or ValueError, if the file is closed."""


def withhold(transport: asyncio.BaseTransport) -> None:
    """Keep the descriptor of a transport out of children that are forked from now on.

    Args:
        transport: of a socket or a pipe on an event loop, just connected.
    """
    file: _File | None = transport.get_extra_info("socket") or transport.get_extra_info("pipe")
    if file is None:
        return  # closed already, with uvloop
    try:
        descriptor = file.fileno()
        _withheld[descriptor] = _identity(descriptor)
    except (ValueError, OSError):
        return  # the peer was faster: closed already


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _after_fork() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, identity in _withheld.items():
        if _is(descriptor, identity):
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _withheld.clear()


def _is(descriptor: int, identity: tuple[int, int]) -> bool:
    try:
        return _identity(descriptor) == identity
    except OSError:
        return False  # closed


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)
