"""The specification of a launch: a request makes one, a sandbox may wrap it into another, and `posix_spawn`
runs the result.

    api/process.py → LaunchSpec.of → Confinement.wrap → processes/spawn.py
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from execprotocol.limits import TTY_COLUMNS, TTY_ROWS

if TYPE_CHECKING:
    from execprotocol.process import StartParams

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where a bare program name is looked up when the child has no PATH."""


class LaunchSpec(msgspec.Struct, frozen=True):
    """A program with all that a spawn needs."""

    program: str
    """Its path."""
    arguments: tuple[str, ...]
    """The child's `argv`. Its first element may be another name than the program's (`arg0`)."""
    cwd: str
    environment: Mapping[str, str]
    tty: bool = False
    pipe_stdin: bool = False
    size: tuple[int, int] = (TTY_ROWS, TTY_COLUMNS)
    """Rows and columns of the terminal."""
    shared: tuple[int, ...] = ()
    """Descriptors that the child gets under the same numbers, and that stay open here."""

    read_only: tuple[str, ...] = ()
    """Folders that no sandbox makes writable, whatever its policy."""

    # Added by a sandbox. Descriptors belong to the caller of `wrap` from then on.

    passed: tuple[int, ...] = ()
    """Descriptors that the child gets under the same numbers, and that the caller closes afterwards."""
    status: int | None = None
    """The file for the launcher's report; to be read by offset. Either JSON lines with `child-pid`, the pid
    of the first process inside, and at the end `exit-code` if the command ran; or a pid file: only that pid,
    written once everything is set up."""
    gate: int | None = None
    """The end of a pipe: the command begins once a byte is in it (`processes/spawn.py`, `open_gate`)."""
    limit: Callable[..., None] | None = None
    """Takes the limits on, for the thread that spawns (`sandbox/thread_limits.py`). The arguments are the
    paths of the child's terminal and of its gate, each if it has one."""
    null: str | None = None
    """The file to open as an empty standard input, if not `/dev/null`."""
    spawn: Callable[..., int] | None = None
    """Starts the program instead of `os.posix_spawn` (`processes/gated_spawn.py`)."""
    takes_terminal: bool = False
    """Whether the command makes the terminal its own by itself, inside."""

    @classmethod
    def of(cls, params: StartParams, environment: dict[str, str], login_shell: str) -> LaunchSpec:
        """Resolve the program of a request, and complete its environment.

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
        return cls(
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
