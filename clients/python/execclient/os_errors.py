"""Errors that Python programs also know by the names of the operating system's.

`except FileNotFoundError` catches a program or a file that is missing at the executor, and `except
PermissionError` what may not be done there. These classes only join a class of `execclient.errors` with one
of Python's; they have the `code` of the former, and programs name one of the two.
"""

from __future__ import annotations

import errno

from execclient.errors import CommandFailed, Refused, SystemFailure


class Denied(Refused, PermissionError, errnos=(errno.EACCES, errno.EPERM)):
    """The executor may not do that with the path."""


class StartDenied(SystemFailure, PermissionError, errnos=(errno.EACCES, errno.EPERM)):
    """The program, or its working directory, may not be used."""


class StartMissing(SystemFailure, FileNotFoundError, errnos=(errno.ENOENT,)):
    """The program, its interpreter or its working directory is not there."""


class AlreadyThere(SystemFailure, FileExistsError, errnos=(errno.EEXIST,)):
    """Something is in the way of what is to be made."""


class IsDirectory(SystemFailure, IsADirectoryError, errnos=(errno.EISDIR,)):
    """The path is a directory, and a file is needed."""


class NotDirectory(SystemFailure, NotADirectoryError, errnos=(errno.ENOTDIR,)):
    """A part of the path is a file, and a directory is needed."""


class CommandTimedOut(CommandFailed, TimeoutError):
    """A command of `run(…, check=True)` ran into a time limit."""
