"""Modules that are loaded when something first needs them, in whatever thread that is, or a moment after the
start: a client that starts a daemon for one command should not wait for what that command does not need.

Of modules that import each other, two threads that begin at different ends can see halves: so one thread at a
time. And the table of descriptors may be full by then, which must not cost anybody an answer: then with those
that a daemon keeps spare.

Somebody may install another version over ours while we run, of which we must not load the rest: so
`load_deferred` loads what `deferred` has put off, soon after the start.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

_FULL = (errno.EMFILE, errno.ENFILE)


class Loader:
    """Runs what imports. Safe to use from several threads, and inside itself."""

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
            return self.load_at_once(work)

    def load_at_once(self, work: Callable[[], T]) -> T:
        """The same without waiting for other threads, for modules that do not import each other: it may be
        asked for in the middle of an import, for which such a thread would wait in turn.

        Raises:
            OSError: there is no descriptor, nor a spare one (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        try:
            return _import(work)
        except OSError as error:
            if error.errno not in _FULL:
                raise
        with self.lend():
            return _import(work)

    def load_without_spares(self, work: Callable[[], T]) -> T:
        """The same where the caller sees to the descriptors: only it knows who would take them first.

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

_put_off: list[Callable[[], object]] = []
"""What loads the modules that are put off, in the order in which they were."""


class Deferred(ModuleType):
    """Stands for a module that is loaded when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        # What asks for these looks at modules as such, at all there are.
        if name.startswith("__"):
            raise AttributeError(name)
        module = vars(self).get("__module")
        if module is None:
            module = vars(self)["__module"] = LOADER.load(lambda: import_module(self.__name__))
        return getattr(module, name)


def deferred(name: str) -> Any:
    """A module that is loaded when something of it is first used, or by `load_deferred`.

    For the type checker, import the module itself instead.
    """
    put_off(lambda: import_module(name))
    return Deferred(name)


def put_off(load: Callable[[], object]) -> None:
    """Have something loaded by `load_deferred`."""
    _put_off.append(load)


def load_deferred() -> None:
    """Load everything that is put off, and what that puts off. For whatever thread: others get their turn
    after each module.

    Raises:
        OSError: there is no descriptor for it (EMFILE, ENFILE).
        ImportError: the installation is broken.
    """
    for load in _put_off:  # it grows meanwhile
        LOADER.load_without_spares(load)
        time.sleep(0)
