"""Files in memory: what a launcher is handed by a descriptor, and a sealed copy of the launcher itself."""

from __future__ import annotations

import errno
import fcntl
import os

_MFD_EXEC = 0x10
"""Linux 6.3: the file is to be executed. `vm.memfd_noexec` may forbid it."""

_F_SEAL_EXEC = 0x20
"""Linux 6.3: the owner cannot take the right to execute away, nor give it."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_ELF = b"\x7fELF"


def memory_file(content: bytes) -> int:
    """A close-on-exec descriptor from which the content can be read once.

    Raises:
        OSError: no descriptor or no memory is to be had.
    """
    fd = os.memfd_create("execserver", os.MFD_CLOEXEC)
    try:
        _write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SealedProgram:
    """A copy of a program in memory, which cannot be changed and has no path in the file system.

    `/proc/PID/exe` of a process that runs it leads to this copy and to nothing of the host's. It lives as
    long as this object.

    Args:
        path: the program.

    Raises:
        OSError: it cannot be read, or there can be no such copy: ENOEXEC for a script, EACCES where the
            kernel executes no file in memory (`vm.memfd_noexec=2`).
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        self._fd = -1
        with open(path, "rb") as file:
            content = file.read()
        if not content.startswith(_ELF):
            # The kernel would run the script's interpreter, which is the host's.
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), path)
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            writable = os.memfd_create("bwrap", flags | _MFD_EXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            writable = os.memfd_create("bwrap", flags)
        try:
            _write(writable, content)
            os.fchmod(writable, 0o555)
            _seal(writable)
            # What is open for writing cannot be executed.
            self._fd = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(writable)

    def fileno(self) -> int:
        """The descriptor of the copy, which is close-on-exec."""
        return self._fd

    @property
    def path(self) -> str:
        """Where this process, and its child until the exec, finds the copy."""
        return f"/proc/self/fd/{self._fd}"

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _seal(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | _F_SEAL_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
