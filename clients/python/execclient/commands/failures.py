"""Exit statuses and messages of commands that fail, as distinct from those of the remote process.

The table of exit statuses is in `docs/reference/command-line.md`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path

from execclient import (
    AccessDenied,
    ConnectionFailed,
    DaemonNotRunning,
    ExecServerError,
    InsecureToken,
    SandboxRequired,
    SystemFailure,
    UntrustedServer,
)
from execprotocol.command_line import printable

INCOMPLETE = 1
"""Part of the work could not be done; a message was printed for each part."""

NO_DAEMON = 69
"""`EX_UNAVAILABLE` of sysexits.h: no daemon answers. A script can start one and try again."""

FAILED = 125
"""As `env(1)`, `timeout(1)` and docker: execserver failed, not your command."""

CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""As in every shell."""

_STATUS_OF_START = {
    "(os error 2)": NOT_FOUND,  # ENOENT
    "(os error 8)": CANNOT_EXECUTE,  # ENOEXEC
    "(os error 13)": CANNOT_EXECUTE,  # EACCES
}
"""The status for the end of a message that the operating system caused (`docs/protocol.md`, I1)."""

_IN_PATH = " in the PATH of the executor: "
"""In the reason of the daemon for a program that is not found: the whole PATH follows."""

SANDBOX_OPTION = "use --sandbox read-only or --sandbox workspace-write"
"""The way out at a daemon that requires a sandbox: all commands that it refuses have the option."""

FOLDER_REMOVED = "the current directory was removed: change to another one"


class CommandExit(Exception):
    """Ends the command.

    Args:
        message: printed on stderr; empty for none.
        status: the exit status.
    """

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


def print_message(*lines: str) -> None:
    """Print a message on stderr, after the name of the program.

    Control characters are escaped: a message may quote names and errors of the daemon.
    """
    text = "\n".join(printable(line, keep="\t") for line in lines)
    try:
        os.write(2, f"execserver: {text}\n".encode())
    except OSError:
        return  # stderr is closed


def perform(work: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run a command on an event loop of its own and print its error; returns the exit status."""
    gc.enable()
    try:
        return asyncio.run(work())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except CommandExit as failure:
        if str(failure):
            print_message(str(failure))
        return failure.status
    except SandboxRequired as error:
        print_message(f"{error.method}: {error.message}; {SANDBOX_OPTION}")
        return FAILED
    except ExecServerError as error:
        print_message(str(error).replace(DaemonNotRunning.own_daemon, "--url stdio:"))
        return NO_DAEMON if _is_unreachable(error) else FAILED
    except BrokenPipeError:
        raise  # ends the program in `until_unread`
    except OSError as error:
        is_removed = error.filename is None and _is_folder_removed()
        print_message(FOLDER_REMOVED if is_removed else system_error(error))
        return FAILED


def current_folder(option: str) -> Path:
    """The current directory.

    Args:
        option: the option that could name another one.

    Raises:
        CommandExit: it was removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise CommandExit(f"{FOLDER_REMOVED}, or give an absolute {option}") from error


def _is_folder_removed() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def system_error(error: OSError) -> str:
    """The message for an error of this machine's operating system, as cp(1) has it."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def start_failure(program: str, error: SystemFailure, *, path_of: str) -> CommandExit:
    """The error for a program that could not be started, with the status that a shell would return.

    Args:
        program: as the user named it.
        error: the daemon's.
        path_of: where the `PATH` is from, in words.
    """
    status = next((status for end, status in _STATUS_OF_START.items() if error.message.endswith(end)), FAILED)
    if _IN_PATH in (error.reason or ""):
        found = "not found" if status == NOT_FOUND else "only found as a file that is not executable"
        return CommandExit(f"{program}: {found} in the PATH of {path_of}", status)
    return CommandExit(f"{program}: {error.message}" + (f": {error.reason}" if error.reason else ""), status)


def _is_unreachable(error: Exception) -> bool:
    return isinstance(error, ConnectionFailed) and not isinstance(
        error, UntrustedServer | AccessDenied | InsecureToken
    )
