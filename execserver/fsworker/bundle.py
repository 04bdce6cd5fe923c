"""The worker's program: which modules it has, and how it gets them.

Nothing of ours is readable inside a sandbox. So the worker is a plain interpreter whose program text
reads compiled code from its standard input, which is the socket that requests come by later.
"""

from __future__ import annotations

import importlib.util
import marshal
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
"""All that the worker can import beside the standard library. The import contracts hold them to it."""

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
boot, codes, packages = marshal.loads(take(int.from_bytes(take(4), "little")))
main = {"__name__": "execserver.fsworker.program.boot"}
exec(boot, main)
main["run"](codes, packages)
"""


@cache
def bundle() -> bytes:
    """What is sent to a worker first: the length (4 bytes), then the code of all modules.

    It is the same for all workers of this process. Making it reads the modules' files.

    Raises:
        RuntimeError: the installation is incomplete.
    """
    codes = {name: _code_of(name) for name in PACKAGES + MODULES}
    payload = marshal.dumps((_code_of(BOOT), codes, frozenset(PACKAGES)))
    return len(payload).to_bytes(4, "little") + payload


def _code_of(name: str) -> CodeType:
    spec = importlib.util.find_spec(name)
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    code = None if get_code is None else get_code(name)
    if not isinstance(code, CodeType):
        raise RuntimeError(f"the code of the module {name} cannot be read: install execserver anew")
    return code
