"""Descriptors that live longer than one call, and may be closed while a thread uses them.

When a descriptor is closed, the next open file gets its number. So a close waits for the calls that use the
number, and no call begins after it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from execserver.filesystem.blocking import run_in_background
from execserver.filesystem.cancel import RequestCancelled


class Descriptor:
    """An open file. Threads use it by `borrow`; `close` may be called at any time, from any thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._users = 0
        self._closing = False
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self) -> Iterator[int]:
        """The number, which is valid until the end of the `with`.

        Raises:
            OSError: EBADF, the file is closed.
        """
        with self._lock:
            if self._closing:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
        try:
            yield self._fd
        finally:
            self._release()

    def close(self) -> None:
        """Close the file now, or when its last user is done (idempotent)."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            unused = not self._users
        if unused:
            self._close_fd()

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            unused = self._closing and not self._users
        if unused:
            self._close_fd()

    def _close_fd(self) -> None:
        # Some file systems report a late write error here. The number is free nevertheless.
        with suppress(OSError):
            os.close(self._fd)


class Descriptors:
    """The long-lived descriptors of one connection, which are closed with it."""

    def __init__(self) -> None:
        self._open: set[Descriptor] = set()
        self._ended = False
        self._lock = threading.Lock()

    def adopt(self, fd: int) -> Descriptor:
        """Take ownership of an open descriptor, from any thread.

        Raises:
            RequestCancelled: the connection has ended; the descriptor is closed.
        """
        descriptor = Descriptor(fd)
        with self._lock:
            if not self._ended:
                self._open.add(descriptor)
                return descriptor
        descriptor.close()
        raise RequestCancelled

    def release(self, descriptor: Descriptor) -> None:
        """Close a descriptor, from any thread (idempotent)."""
        with self._lock:
            self._open.discard(descriptor)
        descriptor.close()

    def close(self) -> None:
        """The connection has ended."""
        with self._lock:
            self._ended = True
            remaining, self._open = self._open, set()
        if remaining:
            # Closing a file on a network mount waits for the server.
            run_in_background(partial(_close_all, remaining))


def _close_all(descriptors: Iterable[Descriptor]) -> None:
    for descriptor in descriptors:
        descriptor.close()
