"""What will be run, decided before anything runs. Pure but for the look-up of the program."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from execprotocol.limits import TTY_COLUMNS, TTY_ROWS
from execserver.sandbox.command import Command

if TYPE_CHECKING:
    from execserver.sandbox.confinement import Confinement

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where a bare program name is looked up when the child has no PATH."""


class LaunchPlan(msgspec.Struct, frozen=True):
    """Everything that a spawn needs.

    `arguments` is the child's `argv`, its first element possibly another name than the
    program's (`arg0`).
    """

    program: str
    arguments: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    tty: bool
    pipe_stdin: bool
    size: tuple[int, int] = (TTY_ROWS, TTY_COLUMNS)
    """Rows and columns of its terminal."""
    confinement: Confinement | None = None
    """The sandbox that it runs in. It belongs to the process, once there is one."""

    def command(self) -> Command:
        """What a sandbox needs to know of it."""
        return Command(self.program, self.arguments, self.cwd, self.environment, self.tty)


def plan_launch(
    argv: list[str],
    arg0: str | None,
    cwd: str,
    environment: dict[str, str],
    *,
    tty: bool,
    pipe_stdin: bool,
    login_shell: str,
    size: tuple[int, int] = (TTY_ROWS, TTY_COLUMNS),
) -> LaunchPlan:
    """Resolve the program and settle the environment.

    Raises:
        OSError: the program is not there, or is not executable.
        ValueError: the program's name is empty, or something holds a NUL byte.
    """
    program = argv[0]
    if not program:
        raise ValueError("the program name is empty")
    if tty and "SHELL" not in environment:
        environment["SHELL"] = login_shell
    if "/" not in program:
        program = find_program(program, environment.get("PATH", DEFAULT_PATH), cwd)
    return LaunchPlan(
        program=program,
        arguments=(argv[0] if arg0 is None else arg0, *argv[1:]),
        cwd=cwd,
        environment=environment,
        tty=tty,
        pipe_stdin=pipe_stdin and not tty,
        size=size,
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
    """What the spawn would say of a program, for one that is not spawned by us but inside a sandbox.

    Raises:
        OSError: the working directory or the program is not there, or may not be executed.
    """
    for path, needs_file in ((cwd, False), (os.path.join(cwd, program), True)):
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode) is needs_file:
            number = errno.EACCES if needs_file else errno.ENOTDIR
            raise OSError(number, os.strerror(number))
        if needs_file and not os.access(path, os.X_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
