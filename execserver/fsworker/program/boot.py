"""The first module that runs in a worker: makes the others importable without their files.

It is sent as compiled code with the other modules, and run by `bundle.COMMAND_TEXT`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType


class Modules:
    """An importer of modules from their compiled code."""

    def __init__(self, codes: dict[str, CodeType], packages: frozenset[str]) -> None:
        self._codes = codes
        self._packages = packages
        # Not imported: `importlib.machinery` takes longer than all of our modules.
        self._spec = type(sys.__spec__)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Called by `import`."""
        if name not in self._codes:
            return None
        return self._spec(name, self, is_package=name in self._packages)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        """Called by `import`: makes a plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """Called by `import`."""
        exec(self._codes[module.__name__], module.__dict__)  # noqa: S102 - that is how modules are made


def run(codes: dict[str, CodeType], packages: frozenset[str], program: str) -> None:
    """Call `serve()` of the module `program`, which returns when the daemon closes the socket."""
    sys.meta_path.insert(0, Modules(codes, packages))  # type: ignore[arg-type]
    __import__(program)
    sys.modules[program].serve()
