"""Files of this machine as the ends of a transfer: opened without waiting, replaced whole or not at all.

A thread that waits for a pipe cannot be cancelled, and the interpreter would wait for it at its end.
So it waits for the pipe or for `stop`, whichever comes first.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple, cast

from execclient.arguments import new_id

MAX_NAME_BYTES = 230
"""Of a file's name in that of its part file; a name has at most 255."""

_PIPE_BUF = select.PIPE_BUF
"""A pipe that is ready takes so much without blocking, and perhaps no more."""

_LOOK_SECONDS = 0.05
"""Between two looks at whether a FIFO has got a reader, which no call waits for together with `stop`."""

_CANNOT_REPLACE = frozenset({errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a new name in a folder, for a file that can perhaps still be written: `docs/protocol.md`, F49."""

_NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Attributes(NamedTuple):
    """Permission bits and times of a file; None for those that are not known."""

    mode: int | None = None
    modified_ns: int | None = None
    """Nanoseconds since 1970."""
    accessed_ns: int | None = None

    @classmethod
    def of(cls, status: os.stat_result) -> Attributes:
        """Those of a file here, without the set-id and sticky bits."""
        return cls(status.st_mode & 0o777, status.st_mtime_ns, status.st_atime_ns)


class Stream:
    """A pipe, a terminal or a device as a binary file; what waits for it can be stopped.

    Args:
        descriptor: open.
        closing: whether `close` closes it.
    """

    def __init__(self, descriptor: int, *, closing: bool = False) -> None:
        self._descriptor = descriptor
        self._closing = closing
        self._in_use = threading.Lock()
        self._stopped, self._stop = os.pipe()

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        data = bytearray()
        with self._in_use:
            while len(data) < size and self._wait(select.POLLIN):
                try:
                    piece = os.read(self._descriptor, size - len(data))
                except BlockingIOError:
                    continue
                if not piece:
                    break
                data += piece
        return bytes(data)

    def write(self, data: bytes) -> int:
        """All of them."""
        rest = memoryview(data)
        with self._in_use:
            while rest and self._wait(select.POLLOUT):
                with suppress(BlockingIOError):
                    rest = rest[os.write(self._descriptor, rest[:_PIPE_BUF]) :]
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def stop(self) -> None:
        """Wait no more, not now and not later."""
        os.write(self._stop, b"\0")

    def close(self) -> None:
        """Stop, and let go of it."""
        self.stop()
        with self._in_use:
            for number in (self._stopped, self._stop, *([self._descriptor] if self._closing else [])):
                os.close(number)

    def _wait(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, event)
        poll.register(self._stopped, select.POLLIN)
        return self._stopped not in {descriptor for descriptor, _ in poll.poll()}


@contextmanager
def standard_stream(descriptor: int) -> Iterator[BinaryIO]:
    """Standard input or output as a file; a thread that waits for it still is let go at the end."""
    stream = Stream(descriptor)
    try:
        yield cast("BinaryIO", stream)
    finally:
        stream.stop()


class Source(NamedTuple):
    """A local file that is read."""

    file: BinaryIO
    size: int | None
    """When it was opened; None for a pipe, a terminal, or a file that does not tell its size."""
    attributes: Attributes
    """None of a pipe or a terminal."""


@contextmanager
def opened(local: str | os.PathLike[str]) -> Iterator[Source]:
    """Open a file to be read; neither this nor closing it ever waits.

    Raises:
        OSError: it cannot be opened; EISDIR for a directory, EINVAL for a device, which may have no end.
    """
    number = os.open(local, os.O_RDONLY | _NEVER_WAIT)
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode):
        with open(number, "rb") as file:
            yield Source(file, status.st_size or None, Attributes.of(status))
        return
    stream = Stream(number, closing=True)
    try:
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(local))
        if not (stat.S_ISFIFO(status.st_mode) or os.isatty(number) or _is_null(status)):
            raise OSError(errno.EINVAL, "a device is not copied, it may have no end", os.fspath(local))
        yield Source(cast("BinaryIO", stream), None, Attributes())
    finally:
        stream.close()


class Place:
    """Where a file goes on this machine: a part file first, but what is no file is written to as it is.

    Args:
        local: the path; a link stays, and what it leads to is replaced.
        mode: the permission bits that the file is going to have unless it replaces another one; None for the
            usual ones.
        stop: ends the waiting for a reader.
    """

    def __init__(self, local: str | os.PathLike[str], mode: int | None, stop: threading.Event) -> None:
        """Waits for the reader of a FIFO, or for `stop`.

        Raises:
            OSError: it cannot be made, or the file that is there must not be written.
        """
        self._target = os.path.realpath(local)
        self._part = ""
        try:
            self._standing: os.stat_result | None = os.stat(self._target)
        except FileNotFoundError:
            self._standing = None
        self._mode = mode if self._standing is None else self._standing.st_mode & 0o777
        if self._standing is not None and not stat.S_ISREG(self._standing.st_mode):
            self.file = cast("BinaryIO", Stream(self._open_special(stop), closing=True))
            return
        if self._standing is not None:
            _may_write(self._target)
        self.file = self._open_part()

    def fill(self, preserved: Attributes | None) -> bool:
        """All of it is there; the file is open still.

        Args:
            preserved: what the file gets, also where it replaces another one.

        Returns:
            Whether the file that is there could not be replaced, and was written in place.

        Raises:
            OSError: it cannot be put into its place; what was there is there.
        """
        if not self._part:
            return False
        number = self.file.fileno()
        in_place = not self._keeps_owner(number)
        wanted = Attributes(self._mode) if preserved is None else preserved
        if wanted.mode is not None:
            os.fchmod(number, wanted.mode)
        _set_times(number, wanted)
        if not in_place:
            try:
                os.replace(self._part, self._target)
            except OSError as error:
                if self._standing is None or error.errno not in _CANNOT_REPLACE:
                    raise
                in_place = True
        if in_place:
            self._overwrite(wanted if preserved is not None else Attributes())
            os.unlink(self._part)
        self._part = ""
        return in_place

    def leave(self) -> None:
        """It was not to be, or it is done: nothing is left but the target."""
        self.file.close()
        if self._part:
            with suppress(FileNotFoundError):
                os.unlink(self._part)

    def _open_part(self) -> BinaryIO:
        private = self._mode is not None
        self._part = part_path(self._target)
        try:
            number = os.open(
                self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666
            )
        except OSError as error:
            if self._standing is None or error.errno not in _CANNOT_REPLACE:
                raise
            number, self._part = tempfile.mkstemp(".part")
        return cast("BinaryIO", open(number, "w+b"))

    def _open_special(self, stop: threading.Event) -> int:
        """Open a device or a FIFO; the latter when it has a reader."""
        while True:
            try:
                return os.open(self._target, os.O_WRONLY | _NEVER_WAIT)
            except OSError as error:
                assert self._standing is not None
                if not stat.S_ISFIFO(self._standing.st_mode) or error.errno != errno.ENXIO:
                    raise
                if stop.wait(_LOOK_SECONDS):
                    raise

    def _keeps_owner(self, number: int) -> bool:
        standing, made = self._standing, os.fstat(number)
        if standing is None or (standing.st_uid, standing.st_gid) == (made.st_uid, made.st_gid):
            return True
        try:
            os.fchown(number, standing.st_uid, standing.st_gid)
        except OSError:
            return False
        return True

    def _overwrite(self, wanted: Attributes) -> None:
        """Write the target in place, and its old content again if that fails."""
        new = self.file
        new.seek(0)
        with open(self._target, "r+b", 0) as target:
            kept = _kept_aside(target)
            try:
                _reserve(target.fileno(), os.fstat(new.fileno()).st_size)
                _copy(new, target)
                target.truncate()
            except BaseException:
                if kept is not None:
                    kept.seek(0)
                    target.seek(0)
                    _copy(kept, target)
                    target.truncate()
                raise
            finally:
                if kept is not None:
                    kept.close()
            with suppress(PermissionError):  # of another owner
                if wanted.mode is not None:
                    os.fchmod(target.fileno(), wanted.mode)
                _set_times(target.fileno(), wanted)


def _copy(original: BinaryIO, copied: BinaryIO) -> None:
    """Copy to the end. `copied` is not buffered, and may take a part of a block."""
    while block := original.read(1 << 20):
        rest = memoryview(block)
        while rest:
            rest = rest[copied.write(rest) :]


def part_path(target: str) -> str:
    """Where the beginning of a file is kept: beside it, under a name that no other file has."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(name)[:MAX_NAME_BYTES])}.{new_id()}.part")


def _may_write(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | _NEVER_WAIT))
    except OSError as error:
        # A program that runs cannot be written to; it can be replaced.
        if error.errno != errno.ETXTBSY:
            raise


def set_attributes(path: str, wanted: Attributes) -> None:
    """Give a directory its permission bits and times.

    Raises:
        OSError: it is of another owner.
    """
    if wanted.mode is not None:
        os.chmod(path, wanted.mode)
    _set_times(path, wanted)


def _set_times(path: int | str, wanted: Attributes) -> None:
    if wanted.modified_ns is not None:
        accessed = wanted.accessed_ns
        os.utime(path, ns=(wanted.modified_ns if accessed is None else accessed, wanted.modified_ns))


def _kept_aside(file: BinaryIO) -> BinaryIO | None:
    """A copy of a file's content; None where there is no room. The file is at its beginning then."""
    kept = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - the caller closes it
    try:
        shutil.copyfileobj(file, kept, 1 << 20)
        kept.flush()
    except OSError:
        kept.close()
        return None
    finally:
        file.seek(0)
    return kept


def _reserve(number: int, size: int) -> None:
    """Find space before anything is changed, where the file system can do that."""
    if not size:
        return
    before = os.fstat(number).st_size
    try:
        os.posix_fallocate(number, 0, size)
    except OSError as error:
        if os.fstat(number).st_size > before:
            os.ftruncate(number, before)
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF):
            raise


def _is_null(status: os.stat_result) -> bool:
    return os.path.samestat(status, os.stat(os.devnull))
