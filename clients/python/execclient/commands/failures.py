"""What a command exits with when it is not the remote process that decides, and what is said then.

The table of exit statuses is in `docs/reference/command-line.md`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from execclient import (
    AccessDenied,
    ConnectionFailed,
    ExecServerError,
    InsecureToken,
    SystemFailure,
    UntrustedServer,
)
from execclient.commands.terminal import printable

INCOMPLETE = 1
"""Some of what was named could not be done; each was said."""

NO_DAEMON = 69
"""`EX_UNAVAILABLE` of sysexits.h: nobody answers, so a script can start a daemon and try again."""

TIMED_OUT = 124
"""As `timeout(1)`."""

FAILED = 125
"""As `env(1)`, `timeout(1)` and docker: the failure is ours, not the command's."""

CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""As every shell."""

OUTPUT_CLOSED = 128 + signal.SIGPIPE
"""What a shell reports of a program that wrote into a pipe that nobody reads."""

_STATUS_OF_START = {
    "(os error 2)": NOT_FOUND,  # ENOENT
    "(os error 8)": CANNOT_EXECUTE,  # ENOEXEC
    "(os error 13)": CANNOT_EXECUTE,  # EACCES
}
"""How the wire writes what the operating system said: `docs/protocol.md`, I1."""


FOLDER_REMOVED = "the folder that we are in was removed: change to another one"


class Failure(Exception):
    """The command ends here.

    Args:
        message: for people, on stderr; empty when there is nothing to say.
        status: what to exit with.
    """

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


def complain(*lines: str) -> None:
    """A message on stderr, under our name: one line, unless it is made of several.

    Names and errors of the other side are in it, so no control character reaches the terminal.
    """
    text = "\n".join(printable(line, keep="\t") for line in lines)
    try:
        os.write(2, f"execserver: {text}\n".encode())
    except OSError:
        return  # nobody takes it, and there is no other place to say it


def perform(work: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run a command on a loop of its own: what to exit with, and it was said why."""
    try:
        return asyncio.run(work())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Failure as failure:
        if str(failure):
            complain(str(failure))
        return failure.status
    except ExecServerError as error:
        complain(str(error))
        return NO_DAEMON if _nobody_answers(error) else FAILED
    except BrokenPipeError:
        _give_up_stdout()
        return OUTPUT_CLOSED
    except OSError as error:
        complain(FOLDER_REMOVED if error.filename is None and _is_folder_removed() else str(error))
        return FAILED


def current_folder(option: str) -> Path:
    """The folder that we are in.

    Args:
        option: what may name another one, absolute.

    Raises:
        Failure: it was removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise Failure(f"{FOLDER_REMOVED}, or give an absolute {option}") from error


def _is_folder_removed() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def start_failure(program: str, error: SystemFailure) -> Failure:
    """Why a program could not be started, with the status that a shell would give."""
    status = next((status for end, status in _STATUS_OF_START.items() if error.message.endswith(end)), FAILED)
    return Failure(f"{program}: {error.message}" + (f": {error.reason}" if error.reason else ""), status)


def _nobody_answers(error: Exception) -> bool:
    return isinstance(error, ConnectionFailed) and not isinstance(
        error, UntrustedServer | AccessDenied | InsecureToken
    )


def _give_up_stdout() -> None:
    """The interpreter flushes at its end, which must not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
