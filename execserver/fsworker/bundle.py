"""The program of a worker: the list of its modules, and how they are sent. Watches are sent in the same way.

Our files are not readable inside a sandbox. So the worker is a plain interpreter, whose program text reads
compiled code from its standard input: the socket, which later carries the requests.
"""

from __future__ import annotations

import importlib.util
import marshal
from collections.abc import Sequence
from functools import cache
from types import CodeType

BOOT = "execserver.fsworker.program.boot"

MODULES = (
    "execprotocol.errors",
    "execprotocol.limits",
    "execprotocol.path_text",
    "execserver.filesystem.cancel",
    "execserver.fsworker.frames",
    "execserver.filesystem.opening",
    "execserver.filesystem.metadata",
    "execserver.filesystem.directories",
    "execserver.filesystem.operations",
    "execserver.filesystem.walk",
    "execserver.filesystem.content",
    "execserver.filesystem.replacing",
    "execserver.filesystem.tree_operations",
    "execserver.filesystem.edit_model",
    "execserver.filesystem.edit_operations",
    "execserver.fsworker.program.operations",
    "execserver.fsworker.program.worker",
)
"""All modules besides the standard library that a worker can import. An import contract enforces it."""

PACKAGES = (
    "execprotocol",
    "execserver",
    "execserver.filesystem",
    "execserver.fsworker",
    "execserver.fsworker.program",
)

COMMAND_TEXT = """\
import marshal, os
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise SystemExit("the daemon is gone")
        data += part
    return data
boot, codes, packages, program = marshal.loads(take(int.from_bytes(take(4), "little")))
main = {"__name__": "execserver.fsworker.program.boot"}
exec(boot, main)
main["run"](codes, packages, program)
"""


@cache
def bundle() -> bytes:
    """The first data that a worker receives: the length (4 bytes), then the code of all modules.

    All workers of this process get the same. The first call reads the files of the modules.

    Raises:
        RuntimeError: the installation is incomplete.
    """
    return pack("execserver.fsworker.program.worker", MODULES, PACKAGES)


def pack(program: str, modules: Sequence[str], packages: Sequence[str]) -> bytes:
    """The first data that an interpreter with `COMMAND_TEXT` receives.

    Args:
        program: the module whose `serve()` is called.
        modules: all modules besides the standard library that it can import.
        packages: the packages of those.

    Raises:
        RuntimeError: the installation is incomplete.
    """
    codes = {name: _code_of(name) for name in (*packages, *modules)}
    payload = marshal.dumps((_code_of(BOOT), codes, frozenset(packages), program))
    return len(payload).to_bytes(4, "little") + payload


def _code_of(name: str) -> CodeType:
    spec = importlib.util.find_spec(name)
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    code = None if get_code is None else get_code(name)
    if not isinstance(code, CodeType):
        raise RuntimeError(f"the code of the module {name} cannot be read: install execserver anew")
    return code
