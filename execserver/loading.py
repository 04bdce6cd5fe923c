"""Late imports, in any thread and with a full descriptor table.

A request that needs a late module loads it. `late_modules.py` loads all of them a moment after the start.

One thread loads at a time, because modules that import each other would be half loaded for a second thread. A
full descriptor table must not fail a request: then the import uses the descriptors that the daemon reserves.
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
    """Runs imports. Safe in several threads, and reentrant."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.use_reserved_descriptors: Callable[[], AbstractContextManager[None]] = nullcontext
        """Releases the reserved descriptors for the body of a `with` statement."""

    def load(self, work: Callable[[], T]) -> T:
        """Run a function that imports.

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
            OSError: no descriptor is free (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        with self._lock:
            return _import(work)


def _import(work: Callable[[], T]) -> T:
    try:
        return work()
    except ImportError as error:
        # The dynamic linker reports a full table by this text only.
        for number in _FULL:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number)) from error
        raise


LOADER = Loader()
"""The loader of this process."""
