"""The table of handlers, of which the rarer families are made when they are first asked for.

A client that starts a daemon for one command needs `initialize` and a few methods of processes, and should
not wait for the rest to be loaded. `Families.make_all` makes the rest a moment after the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from execserver.loading import LOADER
from execserver.rpc.handlers import Handler, Handlers


class Families(dict[str, Handler]):
    """Method name → handler. All of it belongs to the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self._makers: dict[str, Callable[[], Handlers]] = {}

    def put_off(self, methods: Iterable[str], make: Callable[[], Handlers]) -> None:
        """Make the handlers of these methods when one of them is first needed.

        Args:
            methods: all that `make` gives.
            make: may load modules; called once.
        """
        for method in methods:
            self._makers[method] = make

    def make_all(self) -> None:
        """Make what nobody has asked for yet.

        Raises:
            OSError: there is no descriptor for it (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        while self._makers:
            self.make(next(iter(self._makers)))

    def make(self, method: str) -> None:
        """Make the family of a method, if it is not there yet.

        Raises:
            OSError: there is no descriptor for it (EMFILE, ENFILE).
            ImportError: the installation is broken.
        """
        if method in self._makers:
            for name, handler in LOADER.load(self._makers[method]).items():
                del self._makers[name]
                self[name] = handler

    def __missing__(self, method: str) -> Handler:
        self.make(method)
        return self[method]
