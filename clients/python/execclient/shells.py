"""Shells: the shell of an account, and the arguments with which a shell runs a script.

The kinds of shells are the rows of `_TYPES`; `register_shell_type` adds one. This module neither runs a shell
nor sends requests: the shell of a command is on the daemon's machine, so callers pass functions that say
which files exist there. `environment/info` has the shell of the daemon's account (`shell_from_info`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from execclient.arguments import AnyPath
from execclient.connection.connection import Json

Argv = tuple[str, ...]

_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/homebrew/bin")
"""The folders of shells, in the usual order of PATH."""


@dataclass(frozen=True, slots=True)
class ShellType:
    """A kind of shell.

    Args:
        name: of the kind, for `find_shell` and in the daemon's `environment/info`.
        programs: possible names of the program, without folder and `.exe`.
        login: the arguments between the program and the script for a login shell, which reads the account's
            profile.
        plain: the same for a shell without a profile.
        places: possible paths of the program, first choice first; by default its names in the usual folders.
    """

    name: str
    programs: tuple[str, ...]
    login: Argv
    plain: Argv
    places: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Possible paths of the program."""
        usual = (f"{folder}/{program}" for program in self.programs for folder in _FOLDERS)
        return self.places or tuple(usual)


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell on a machine."""

    type: ShellType
    path: str
    """Of the program, on that machine."""

    def exec_args(self, command: str, *, login: bool = True) -> Argv:
        """The command that runs a script in this shell.

        Args:
            command: the script; passed unchanged as one argument.
            login: whether the shell reads the account's profile first.
        """
        return (self.path, *(self.type.login if login else self.type.plain), command)


def stderr_to_stdout(argv: Sequence[AnyPath]) -> list[AnyPath]:
    """A command that runs another one with its errors in its standard output, in the order of writing.

    Otherwise the order of the two streams is that of their arrival at the daemon. Needs `sh`, which reports a
    missing program by exit code 127.
    """
    return ["sh", "-c", 'exec "$@" 2>&1', "sh", *argv]


ZSH = ShellType("zsh", ("zsh",), ("-lc",), ("-c",))
BASH = ShellType("bash", ("bash",), ("-lc",), ("-c",))
SH = ShellType("sh", ("sh",), ("-lc",), ("-c",))
POWERSHELL = ShellType("powershell", ("pwsh", "powershell"), ("-Command",), ("-NoProfile", "-Command"))
CMD = ShellType("cmd", ("cmd",), ("/c",), ("/c",), places=("C:\\Windows\\System32\\cmd.exe",))

LAST_RESORT = Shell(SH, "/bin/sh")
"""For an account without a shell of a known kind: every Unix has this one."""

_TYPES: dict[str, ShellType] = {}


def register_shell_type(shell_type: ShellType) -> None:
    """Add a kind of shell.

    Raises:
        ValueError: another kind has its name, or that of one of its programs.
    """
    if not shell_type.programs:
        raise ValueError(f"{shell_type.name}: no program; name one at least")
    for name in (shell_type.name, *shell_type.programs):
        present = shell_type_of(name)
        if present is not None and present != shell_type:
            raise ValueError(f"{name}: already a shell of the kind {present.name}")
    _TYPES[shell_type.name] = shell_type


def shell_type_of(program: str) -> ShellType | None:
    """The kind of a shell by the name of its program, with or without folder and `.exe`, or None."""
    name = program.replace("\\", "/").rpartition("/")[2].casefold().removesuffix(".exe")
    return next((each for each in _TYPES.values() if name == each.name or name in each.programs), None)


for _type in (ZSH, BASH, SH, POWERSHELL, CMD):
    register_shell_type(_type)


def is_login_script(argv: Sequence[str]) -> bool:
    """Whether a command is a script for a login shell, as `Shell.exec_args` makes it."""
    shell_type = shell_type_of(argv[0]) if argv else None
    if shell_type is None or shell_type.login == shell_type.plain:
        return False
    return tuple(argv[1 : 1 + len(shell_type.login)]) == shell_type.login


def candidates(name_or_path: str, user: Shell | None = None) -> Iterator[Shell]:
    """Shells that a name or path may mean, first choice first. They need not exist.

    Args:
        name_or_path: such as `bash` or `/bin/bash`. A path comes first, then other paths of the same kind of
            shell.
        user: the account's shell, which is the first choice for its kind.
    """
    shell_type = shell_type_of(name_or_path)
    if shell_type is None:
        return
    if "/" in name_or_path or "\\" in name_or_path:
        yield Shell(shell_type, name_or_path)
    if user is not None and user.type == shell_type:
        yield user
    for path in shell_type.paths:
        yield Shell(shell_type, path)


def find_shell(name_or_path: str, exists: Callable[[str], bool], user: Shell | None = None) -> Shell | None:
    """The shell that a name or path means; None if its kind is unknown or it does not exist.

    Args:
        name_or_path: such as `bash` or `/bin/bash`.
        exists: whether a path is a program on the machine in question.
        user: the account's shell, which is the first choice for its kind.
    """
    return next((shell for shell in candidates(name_or_path, user) if exists(shell.path)), None)


def shell_from_info(info: Mapping[str, Json]) -> Shell:
    """The shell of the daemon's account.

    Args:
        info: the daemon's description of its machine; `info["shell"]` has `name` and `path`.
    """
    named = info.get("shell")
    path = named.get("path") if isinstance(named, Mapping) else None
    if not isinstance(named, Mapping) or not isinstance(path, str) or not path:
        return LAST_RESORT
    shell_type = shell_type_of(str(named.get("name") or "")) or shell_type_of(path)
    return LAST_RESORT if shell_type is None else Shell(shell_type, path)


def detect_user_shell(
    *,
    platform: str = sys.platform,
    login_shell: Callable[[], str | None] | None = None,
    exists: Callable[[str], bool] | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> Shell:
    """The shell of the account that this program runs as.

    On Unix the shell of the account's entry, if its kind is known and it exists; else another one of its
    kind, a bash, or `sh`. On Windows PowerShell, else `cmd.exe`.

    Args:
        platform: as in `sys.platform`.
        login_shell: the path in the account's entry; None if it has no entry.
        exists: whether a path is a program.
        which: the path of a program by PATH, or None.
    """
    exists = exists or _is_program
    if platform == "win32":
        return _by_path(POWERSHELL, which) or _by_path(CMD, which) or Shell(CMD, "cmd.exe")
    path = (login_shell or _account_shell)()
    shell_type = None if path is None else shell_type_of(path)
    if path is None or shell_type is None:
        return LAST_RESORT
    if exists(path):
        return Shell(shell_type, path)
    for each in (shell_type, BASH, SH):
        found = _by_path(each, which) or find_shell(each.name, exists)
        if found is not None:
            return found
    return LAST_RESORT


def _by_path(shell_type: ShellType, which: Callable[[str], str | None]) -> Shell | None:
    found = (which(program) for program in shell_type.programs)
    return next((Shell(shell_type, path) for path in found if path is not None), None)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _account_shell() -> str | None:
    import pwd  # not on Windows

    try:
        return pwd.getpwuid(os.getuid()).pw_shell or None
    except KeyError:
        return None
