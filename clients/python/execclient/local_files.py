"""Local files as source and target of a transfer: opened without blocking, replaced whole or not at all.

A thread that blocks on a pipe cannot be cancelled, and would keep the interpreter from exiting. So the thread
waits for the pipe or for `stop`.
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
"""Of the file's name in the name of its part file; a name has at most 255."""

_PIPE_BUF = select.PIPE_BUF
"""A pipe that is ready accepts this much without blocking, and perhaps no more."""

_REOPEN_SECONDS = 0.05
"""Between two attempts to open a FIFO that has no reader: no call waits for a reader and for `stop`."""

_CANNOT_REPLACE = frozenset({errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of creating a name in a directory whose files may still be writable: `docs/protocol.md`, F49."""

_NON_BLOCKING = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Attributes(NamedTuple):
    """Permission bits and times of a file; None for unknown ones."""

    mode: int | None = None
    modified_ns: int | None = None
    """Nanoseconds since 1970."""
    accessed_ns: int | None = None

    @classmethod
    def of(cls, status: os.stat_result) -> Attributes:
        """The attributes of a local file, without the set-id and sticky bits."""
        return cls(status.st_mode & 0o777, status.st_mtime_ns, status.st_atime_ns)


class StoppableFile:
    """A pipe, a terminal or a device as a binary file whose blocking calls can be stopped.

    Args:
        descriptor: open.
        closing: whether `close` closes the descriptor.
    """

    def __init__(self, descriptor: int, *, closing: bool = False) -> None:
        self._descriptor = descriptor
        self._closing = closing
        self._in_use = threading.Lock()
        self._stopped, self._stop = os.pipe()

    def read(self, size: int) -> bytes:
        """Read so many bytes, or fewer at the end."""
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
        """Write all data."""
        rest = memoryview(data)
        with self._in_use:
            while rest and self._wait(select.POLLOUT):
                with suppress(BlockingIOError):
                    rest = rest[os.write(self._descriptor, rest[:_PIPE_BUF]) :]
        return len(data)

    def flush(self) -> None:
        """Do nothing: data is not buffered."""

    def stop(self) -> None:
        """End a blocking call, now and later."""
        os.write(self._stop, b"\0")

    def close(self) -> None:
        """Stop, and close the descriptors."""
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
    """Standard input or output as a file; a thread that still blocks on it is stopped at the end."""
    stream = StoppableFile(descriptor)
    try:
        yield cast("BinaryIO", stream)
    finally:
        stream.stop()


class LocalSource(NamedTuple):
    """An open local file to read."""

    file: BinaryIO
    size: int | None
    """At the open; None for a pipe, a terminal, or a file that does not report its size."""
    attributes: Attributes
    """Unknown for a pipe or a terminal."""


@contextmanager
def opened(local: str | os.PathLike[str]) -> Iterator[LocalSource]:
    """Open a file for reading. Neither opening nor closing blocks.

    Raises:
        OSError: the file cannot be opened; EISDIR for a directory, EINVAL for a device, which may be endless.
    """
    number = os.open(local, os.O_RDONLY | _NON_BLOCKING)
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode):
        with open(number, "rb") as file:
            yield LocalSource(file, status.st_size or None, Attributes.of(status))
        return
    stream = StoppableFile(number, closing=True)
    try:
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(local))
        if not (stat.S_ISFIFO(status.st_mode) or os.isatty(number) or _is_null(status)):
            raise OSError(errno.EINVAL, "a device is not copied, as it may be endless", os.fspath(local))
        yield LocalSource(cast("BinaryIO", stream), None, Attributes())
    finally:
        stream.close()


def read_small(local: str, most: int) -> tuple[bytes, Attributes] | None:
    """Read a regular file of at most so many bytes, up to the size that it has when it is opened.

    Returns:
        None if it is larger, shrinks meanwhile, or is no regular file any more.

    Raises:
        OSError: the file cannot be read.
    """
    with open(os.open(local, os.O_RDONLY | _NON_BLOCKING), "rb", 0) as file:
        status = os.fstat(file.fileno())
        size = status.st_size
        if size > most or not stat.S_ISREG(status.st_mode):
            return None
        # The files of /proc report no size.
        content = _read_up_to(file.fileno(), size or most + 1)
        is_whole = len(content) == size or (not size and len(content) <= most)
        return (content, Attributes.of(status)) if is_whole else None


def _read_up_to(number: int, size: int) -> bytes:
    content = os.read(number, size)
    while content and len(content) < size and (more := os.read(number, size - len(content))):
        content += more
    return content


def write_small(local: str, content: bytes, mode: int | None, preserved: Attributes | None) -> bool | None:
    """Write a whole file, as `LocalTarget` does.

    Returns:
        Whether it was written in place; None if something else than a regular file is there.

    Raises:
        OSError: the file cannot be written; it is unchanged.
    """
    try:
        if not stat.S_ISREG(os.stat(local).st_mode):
            return None
    except FileNotFoundError:
        pass
    not_waiting = threading.Event()
    not_waiting.set()
    target = LocalTarget(local, mode, not_waiting)
    try:
        target.file.write(content)
        target.file.flush()
        return target.commit(preserved)
    finally:
        target.close()


class LocalTarget:
    """The local target of a download: a part file that replaces it, or a device or FIFO itself.

    Args:
        local: the path; if it is a link, the file behind it is replaced.
        mode: the permission bits of a new file; None for the default ones.
        stop: ends the wait for a reader.
    """

    def __init__(self, local: str | os.PathLike[str], mode: int | None, stop: threading.Event) -> None:
        """Waits for the reader of a FIFO, or for `stop`.

        Raises:
            OSError: the part file cannot be created, or the existing file is not writable.
        """
        self._target = os.path.realpath(local)
        self._part = ""
        try:
            self._existing: os.stat_result | None = os.stat(self._target)
        except FileNotFoundError:
            self._existing = None
        self._mode = mode if self._existing is None else self._existing.st_mode & 0o777
        if self._existing is not None and not stat.S_ISREG(self._existing.st_mode):
            self.file = cast("BinaryIO", StoppableFile(self._open_special(stop), closing=True))
            return
        if self._existing is not None:
            _check_writable(self._target)
        self.file = self._open_part()

    def commit(self, preserved: Attributes | None) -> bool:
        """Replace the target by the complete part file, which is still open.

        Args:
            preserved: attributes for the target, even if it replaces a file.

        Returns:
            Whether the target could not be replaced, and was written in place.

        Raises:
            OSError: the target cannot be written; it is unchanged.
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
                if self._existing is None or error.errno not in _CANNOT_REPLACE:
                    raise OSError(error.errno, error.strerror, self._target) from None
                in_place = True
        if in_place:
            self._overwrite(wanted if preserved is not None else Attributes())
            os.unlink(self._part)
        self._part = ""
        return in_place

    def close(self) -> None:
        """Close and remove the part file, after `commit` or in place of it."""
        with suppress(OSError):  # a full disk does not take what is still buffered
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
            if self._existing is None or error.errno not in _CANNOT_REPLACE:
                error.filename = self._target
                raise
            number, self._part = tempfile.mkstemp(".part")
        return cast("BinaryIO", open(number, "w+b"))

    def _open_special(self, stop: threading.Event) -> int:
        """Open a device or a FIFO; wait until the FIFO has a reader."""
        while True:
            try:
                return os.open(self._target, os.O_WRONLY | _NON_BLOCKING)
            except OSError as error:
                assert self._existing is not None
                if not stat.S_ISFIFO(self._existing.st_mode) or error.errno != errno.ENXIO:
                    raise
                if stop.wait(_REOPEN_SECONDS):
                    raise

    def _keeps_owner(self, number: int) -> bool:
        standing, made = self._existing, os.fstat(number)
        if standing is None or (standing.st_uid, standing.st_gid) == (made.st_uid, made.st_gid):
            return True
        try:
            os.fchown(number, standing.st_uid, standing.st_gid)
        except OSError:
            return False
        return True

    def _overwrite(self, wanted: Attributes) -> None:
        """Write the target in place, and restore its old content if that fails."""
        new = self.file
        new.seek(0)
        with open(self._target, "r+b", 0) as target:
            kept = _backup(target)
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
            with suppress(PermissionError):  # the file has another owner
                if wanted.mode is not None:
                    os.fchmod(target.fileno(), wanted.mode)
                _set_times(target.fileno(), wanted)


def _copy(original: BinaryIO, copied: BinaryIO) -> None:
    """Copy to the end. `copied` is not buffered, and may accept a part of a block."""
    while block := original.read(1 << 20):
        rest = memoryview(block)
        while rest:
            rest = rest[copied.write(rest) :]


def part_path(target: str) -> str:
    """The path of a new part file: next to the target, with a unique name."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(name)[:MAX_NAME_BYTES])}.{new_id()}.part")


def _check_writable(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | _NON_BLOCKING))
    except OSError as error:
        # A running program cannot be written; it can be replaced.
        if error.errno != errno.ETXTBSY:
            raise


def set_attributes(path: str, wanted: Attributes) -> None:
    """Set the permission bits and times of a directory.

    Raises:
        OSError: the directory has another owner.
    """
    if wanted.mode is not None:
        os.chmod(path, wanted.mode)
    _set_times(path, wanted)


def _set_times(path: int | str, wanted: Attributes) -> None:
    if wanted.modified_ns is not None:
        accessed = wanted.accessed_ns
        try:
            os.utime(path, ns=(wanted.modified_ns if accessed is None else accessed, wanted.modified_ns))
        except OverflowError as error:  # a server may send any number
            raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW)) from error


def _backup(file: BinaryIO) -> BinaryIO | None:
    """A copy of a file's content, or None if there is no space. Rewinds the file."""
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
    """Allocate space before the content changes, if the file system supports that."""
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
