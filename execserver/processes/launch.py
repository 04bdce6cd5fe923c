"""Makes the `LaunchSpec` of a request, and looks the program up as `execvp` would."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from execprotocol.limits import TTY_COLUMNS, TTY_ROWS
from execserver.launch_spec import LaunchSpec

if TYPE_CHECKING:
    from execprotocol.process import StartParams

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where a bare program name is looked up when the child has no PATH."""


def launch_spec(params: StartParams, environment: dict[str, str], login_shell: str) -> LaunchSpec:
    """What a request wants to run: resolves the program, and completes the environment.

    Args:
        params: the request.
        environment: the child's variables; a terminal's gets a SHELL if there is none.
        login_shell: that SHELL.

    Raises:
        OSError: the program is missing or not executable.
        ValueError: the program's name is empty, or something holds a NUL byte.
    """
    program, *arguments = params.argv
    if not program:
        raise ValueError("the program name is empty")
    if params.tty and "SHELL" not in environment:
        environment["SHELL"] = login_shell
    name = program if params.arg0 is None else params.arg0
    if "/" not in program:
        program = find_program(program, environment.get("PATH", DEFAULT_PATH), params.cwd)
    size = params.size
    return LaunchSpec(
        program,
        (name, *arguments),
        params.cwd,
        environment,
        params.tty,
        params.pipe_stdin and not params.tty,
        (TTY_ROWS, TTY_COLUMNS) if size is None else (size.rows, size.cols),
    )


def find_program(name: str, path: str, cwd: str) -> str:
    """Look a bare name up in the *child's* PATH, as `execvp` in the child would.

    An entry that is empty or relative is taken relative to the child's working directory.

    Raises:
        OSError: ENOENT when no entry has it, EACCES when only files that may not be executed
            were found.
    """
    denied = False
    for entry in path.split(":"):
        candidate = os.path.join(cwd, entry, name)
        try:
            mode = os.stat(candidate).st_mode
        except OSError as error:
            denied = denied or error.errno == errno.EACCES
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            return candidate
        denied = denied or not stat.S_ISDIR(mode)
    number = errno.EACCES if denied else errno.ENOENT
    raise OSError(number, os.strerror(number), name)


def require_program(program: str, cwd: str) -> None:
    """Raise the error that a spawn would, for a program that a launcher starts inside a sandbox.

    Raises:
        OSError: the working directory or the program is missing, or may not be executed.
    """
    for path, needs_file in ((cwd, False), (os.path.join(cwd, program), True)):
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode) is needs_file:
            number = errno.EACCES if needs_file else errno.ENOTDIR
            raise OSError(number, os.strerror(number))
        if needs_file and not os.access(path, os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
