"""Late imports: modules that take 20 ms and more to load, and that a first command does not need.

A request that needs one loads it, in any thread. `server.load_the_rest` loads all of them a moment after the
start, before an upgrade can replace the installed files.

Modules that import each other are half loaded for a second thread that begins at another end, so one thread
loads at a time. The table of descriptors may be full by then, which must not fail a request: then the import
takes the descriptors that a daemon reserves.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")

_FULL = (errno.EMFILE, errno.ENFILE)


class Loader:
    """Runs imports. Safe to use from several threads, and inside itself."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.use_reserved_descriptors: Callable[[], AbstractContextManager[None]] = nullcontext
        """Releases the reserved descriptors for the body of a `with` statement."""

    def load(self, work: Callable[[], T]) -> T:
        """Do something that imports.

        Raises:
            OSError: there is no descriptor, not even a reserved one (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        with self._lock:
            try:
                return _import(work)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
            with self.use_reserved_descriptors():
                return _import(work)

    def load_without_reserved(self, work: Callable[[], T]) -> T:
        """The same without the reserved descriptors, which the caller manages.

        Raises:
            OSError: there is no descriptor (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        with self._lock:
            return _import(work)


def _import(work: Callable[[], T]) -> T:
    try:
        return work()
    except ImportError as error:
        # So the dynamic linker says it.
        for number in _FULL:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number)) from error
        raise


LOADER = Loader()
"""The one of this program: what is imported belongs to all of it."""
