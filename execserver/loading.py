"""Modules that are loaded when something first needs them, in whatever thread that is.

Of modules that import each other, two threads that begin at different ends can see halves: so one thread at a
time. And the table of descriptors may be full by then, which must not cost anybody an answer: then with those
that a daemon keeps spare.
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
    """Runs what imports models, or pydantic. Safe to use from several threads, and inside itself."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.lend: Callable[[], AbstractContextManager[None]] = nullcontext
        """Gives up the spare descriptors for as long as it lasts."""

    def load(self, work: Callable[[], T]) -> T:
        """Do something that imports.

        Raises:
            OSError: there is no descriptor, nor a spare one (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        with self._lock:
            try:
                return self.load_without_spares(work)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
            with self.lend():
                return self.load_without_spares(work)

    def load_without_spares(self, work: Callable[[], T]) -> T:
        """The same where the caller sees to the descriptors: only it knows who would take them first.

        Raises:
            OSError: there is no descriptor (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        with self._lock:
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
