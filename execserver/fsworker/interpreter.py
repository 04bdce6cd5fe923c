"""The interpreter of a worker, and the files that it must be able to read."""

from __future__ import annotations

import _ctypes
import os
import re
import subprocess
import sys
import sysconfig
from functools import cache

from execserver.fsworker.bundle import COMMAND_TEXT


@cache
def command() -> tuple[str, ...]:
    """The worker's program and arguments.

    Descriptor 0 is the socket. The worker needs no other descriptor, no environment and no certain working
    directory. It imports no module of the user, of `site-packages` or of the working directory, writes no
    byte code, and uses UTF-8 for names in any locale.
    """
    return (
        _executable(), "-I", "-S", "-B", "-X", "utf8", "-X", "frozen_modules=on", "-c", COMMAND_TEXT
    )  # fmt: skip


@cache
def interpreter_paths() -> tuple[str, ...]:
    """Files and folders that must be readable in the worker's view, at their own paths.

    They are the interpreter, its standard library, its shared libraries and the loader, each by the name by
    which it is looked up, which may be a link. Blocks: runs the loader once, for some milliseconds.
    """
    stdlib = os.path.dirname(os.__file__)
    extensions = sysconfig.get_config_var("DESTSHARED")
    found = [_executable(), stdlib]
    if isinstance(extensions, str) and os.path.isdir(extensions):
        found.append(extensions)
    found += _libraries(_executable())
    paths = [os.path.abspath(path) for path in dict.fromkeys(found)]
    return tuple(path for path in paths if not any(path.startswith(other + "/") for other in paths))


def _executable() -> str:
    """The interpreter itself, not its link in a virtual environment."""
    return os.path.realpath(sys.executable)


def _libraries(program: str) -> list[str]:
    """The loader, and the shared libraries of a program and of `ctypes`, as the loader finds them."""
    environment = {"LD_TRACE_LOADED_OBJECTS": "1"}
    if ctypes := getattr(_ctypes, "__file__", None):
        # For `fs/rename`. No other extension module in use needs a library of its own.
        environment["LD_PRELOAD"] = ctypes
    try:
        done = subprocess.run(
            [program],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _mapped()
    # `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`; the loader: `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    named = re.findall(r"^\s(?:\S+ => )?(/.*) \(0x[0-9a-f]+\)$", os.fsdecode(done.stdout), re.MULTILINE)
    return named or _mapped()


def _mapped() -> list[str]:
    """The code that this process has mapped, for a loader that does not list what it loads."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    files = [line[5].rstrip("\n") for line in lines if len(line) == 6 and "x" in line[1]]
    packages = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return [path for path in dict.fromkeys(files) if path.startswith("/") and not path.startswith(packages)]
