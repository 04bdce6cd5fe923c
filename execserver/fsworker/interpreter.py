"""The interpreter of a worker, and the files that it and other programs must be able to read."""

from __future__ import annotations

import _ctypes
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache

from execserver.fsworker.bundle import COMMAND_TEXT
from execserver.sandbox.thread_limits import tagged_spawn

_VERSION_SECONDS = 10


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
    # `ctypes` for `fs/rename`. No other extension module in use needs a library of its own.
    found += libraries_of(_executable(), preload=getattr(_ctypes, "__file__", None)) or _mapped()
    paths = [os.path.abspath(path) for path in dict.fromkeys(found)]
    return tuple(path for path in paths if not any(path.startswith(other + "/") for other in paths))


def _executable() -> str:
    """The interpreter itself, not its link in a virtual environment."""
    return os.path.realpath(sys.executable)


def libraries_of(program: str, *, preload: str | None = None) -> list[str]:
    """The loader and the shared libraries of a program, as the loader finds them. Blocks for milliseconds.

    Empty for a static program, which prints its version instead, and for a loader that lists none.

    Args:
        program: its path.
        preload: a library whose own libraries count, too.
    """
    environment = {"LD_TRACE_LOADED_OBJECTS": "1"} | ({"LD_PRELOAD": preload} if preload else {})
    # `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`; the loader: `/lib64/ld-linux-x86-64.so.2 (0x…)`.
    listed = os.fsdecode(version_output(program, environment))
    return re.findall(r"^\s(?:\S+ => )?(/.*) \(0x[0-9a-f]+\)$", listed, re.MULTILINE)


def version_output(program: str, environment: Mapping[str, str]) -> bytes:
    """What a program prints with `--version`; nothing if it cannot be started, or takes ten seconds. Blocks.

    Args:
        program: its path.
        environment: all of its variables.
    """
    try:
        with tagged_spawn(None):
            process = subprocess.Popen(
                [program, "--version"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
    except OSError:
        return b""
    with process:
        try:
            return process.communicate(timeout=_VERSION_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return b""


def _mapped() -> list[str]:
    """The code that this process has mapped, for a loader that does not list what it loads."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    files = [line[5].rstrip("\n") for line in lines if len(line) == 6 and "x" in line[1]]
    packages = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return [path for path in dict.fromkeys(files) if path.startswith("/") and not path.startswith(packages)]
