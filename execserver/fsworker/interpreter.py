"""Which interpreter runs the worker, and what it needs to be able to read."""

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

    Its file descriptor 0 is the socket; it needs no other, no variable of the environment and no working
    directory of its own. No module of a user, of `site-packages` or of the working directory is ever
    imported, nothing is written beside the standard library, and names are UTF-8 whatever the locale.
    """
    return (
        _executable(), "-I", "-S", "-B", "-X", "utf8", "-X", "frozen_modules=on", "-c", COMMAND_TEXT
    )  # fmt: skip


@cache
def interpreter_paths() -> tuple[str, ...]:
    """Files and folders that the worker's view must have at their own paths, readable.

    The interpreter, its standard library and its shared libraries with the loader, each by the name that
    it is looked up by, which may lead through links. Blocking: runs the loader once, some milliseconds.
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
    """The interpreter itself, not the name that a virtual environment has for it."""
    return os.path.realpath(sys.executable)


def _libraries(program: str) -> list[str]:
    """The shared libraries of a program and of its `ctypes`, and the loader, as the loader finds them."""
    environment = {"LD_TRACE_LOADED_OBJECTS": "1"}
    if ctypes := getattr(_ctypes, "__file__", None):
        # `fs/rename` needs it, and it is the one extension of those in use that needs a library of its own.
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
    """The code that this process has in memory: of a loader that does not say what it loads."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    files = [line[5].rstrip("\n") for line in lines if len(line) == 6 and "x" in line[1]]
    packages = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return [path for path in dict.fromkeys(files) if path.startswith("/") and not path.startswith(packages)]
