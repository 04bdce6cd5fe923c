"""Connections belong to the process that made them: the child of a fork has none of them.

A forked child has a copy of each descriptor. As long as it lives, which may be longer than its parent
(`multiprocessing`), the other end would not see that the parent has closed the connection, or has died: a
daemon over `stdio:` would not end, and a session would not be taken for left, with all that runs in it. So
the child's copies are made `/dev/null`: their numbers stay taken, whoever closes them closes nothing else,
and what a child writes by mistake goes nowhere instead of between the parent's messages.

Programs that are executed have no copies anyway, and no `subprocess` forks by this way.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

_withheld: dict[int, tuple[int, int]] = {}
"""By number, which file it was, device and inode: a number may be somebody else's by the time of a fork."""


class _File(Protocol):
    def fileno(self) -> int:
        """Its number; negative, or ValueError, when it is closed."""


def withhold(transport: asyncio.BaseTransport) -> None:
    """Keep the transport's descriptor from children that are forked from now on.

    Args:
        transport: one of an event loop, for a socket or a pipe, that was connected just now.
    """
    file: _File | None = transport.get_extra_info("socket") or transport.get_extra_info("pipe")
    if file is None:
        return  # as below, with uvloop
    try:
        descriptor = file.fileno()
        _withheld[descriptor] = _identity(descriptor)
    except (ValueError, OSError):
        return  # the other end was faster: it is closed again


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
        return False  # it was closed


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_after_fork)
