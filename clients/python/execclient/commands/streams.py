"""The standard streams of this program, read and written without blocking the event loop.

Rules kept in this file:

1. No descriptor is made non-blocking: other processes, the shell above all, share that flag. Threads wait
   instead.
2. Input is read only on demand: what is not read stays for the next program.
3. Output is never dropped. Pending output waits in memory, and beyond `MEMORY_BYTES` in an unnamed file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

BLOCK_BYTES = 1 << 18
"""The size of reads: four times the capacity of a pipe."""

MEMORY_BYTES = 16 << 20
"""Pending output in memory. A reader that keeps pace never causes a write to the disk."""

_RECORD = struct.Struct("=II")
"""In front of each piece in the file: descriptor and length."""

_GONE = {errno.EPIPE, errno.EIO, errno.ENXIO}
"""The other end is gone: a closed pipe, a terminal that hung up."""


def is_empty_input() -> bool:
    """Whether stdin is /dev/null, so that there is nothing to forward."""
    given, null = os.fstat(0), os.stat(os.devnull)
    return given.st_rdev == null.st_rdev and given.st_mode == null.st_mode


class StandardInput:
    """Standard input, a block at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = threading.Semaphore(0)
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        threading.Thread(target=self._serve, name="standard input", daemon=True).start()

    async def read(self) -> bytes:
        """The next bytes, as soon as there are any; empty at EOF.

        Raises:
            OSError: it cannot be read, a directory for example.
        """
        self._answer = self._loop.create_future()
        self._asked.release()
        return await self._answer

    def _serve(self) -> None:
        while True:
            self._asked.acquire()
            data, error = b"", None
            try:
                data = _read(0)
            except OSError as failure:
                error = None if failure.errno in _GONE else failure
            try:
                self._loop.call_soon_threadsafe(self._deliver, data, error)
            except RuntimeError:
                return  # the event loop is closed

    def _deliver(self, data: bytes, error: OSError | None) -> None:
        if self._answer.done():
            return  # the reader was cancelled, since the process takes no more
        if error is None:
            self._answer.set_result(data)
        else:
            self._answer.set_exception(error)


class OutputWriter:
    """Writes standard output and standard error, in the order of `put`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._overflow = _Overflow()
        self._busy = False
        self._settled = asyncio.Event()
        self._settled.set()
        self.failure: OSError | None = None
        """The error after which nothing more is written."""
        self.failed = asyncio.Event()
        threading.Thread(target=self._serve, name="standard output", daemon=True).start()

    def put(self, descriptor: int, data: bytes) -> None:
        """Queue bytes; returns at once.

        Raises:
            OSError: they fit neither into memory nor into the file.
        """
        self._settled.clear()
        with self._changed:
            if self.failure is not None:
                self._settled.set()
                return
            if self._overflow or self._waiting_bytes >= MEMORY_BYTES:
                self._overflow.put(descriptor, data)
            else:
                self._waiting.append((descriptor, data))
                self._waiting_bytes += len(data)
            self._changed.notify()

    async def settled(self) -> None:
        """Wait until everything is written, or nothing more can be written."""
        await self._settled.wait()

    @property
    def is_closed(self) -> bool:
        """Whether writing failed because the reader is gone."""
        return self.failure is not None and self.failure.errno in _GONE

    def _serve(self) -> None:
        while True:
            descriptor, data = self._next()
            try:
                _write(descriptor, data)
            except OSError as failure:
                self._fail(failure)
                return

    def _next(self) -> tuple[int, bytes]:
        with self._changed:
            self._busy = False
            while not self._waiting and not self._overflow:
                self._call(self._is_settled)
                self._changed.wait()
            self._busy = True
            if not self._waiting:
                return self._overflow.take()
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece[1])
            return piece

    def _fail(self, failure: OSError) -> None:
        with self._changed:
            self.failure = failure
            self._waiting.clear()
        self._call(self.failed.set)
        self._call(self._settled.set)

    def _is_settled(self) -> None:
        with self._changed:
            if not self._waiting and not self._overflow and not self._busy:
                self._settled.set()

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return  # the event loop is closed


class _Overflow:
    """Pieces of output in an unnamed file, first in, first out."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._read = 0
        self._written = 0

    def __bool__(self) -> bool:
        return self._read < self._written

    def put(self, descriptor: int, data: bytes) -> None:
        if self._file is None:
            import tempfile  # 3 ms, which most commands do not need

            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - stays open until exit
        record = memoryview(_RECORD.pack(descriptor, len(data)) + data)
        while record:
            written = os.pwrite(self._file.fileno(), record, self._written)
            self._written += written
            record = record[written:]

    def take(self) -> tuple[int, bytes]:
        assert self._file is not None
        descriptor, length = _RECORD.unpack(self._get(_RECORD.size))
        data = self._get(length)
        if not self:
            self._read = self._written = 0
            self._file.truncate(0)
        return descriptor, data

    def _get(self, length: int) -> bytes:
        assert self._file is not None
        data = b""
        while len(data) < length:
            data += os.pread(self._file.fileno(), length - len(data), self._read + len(data))
        self._read += length
        return data


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, BLOCK_BYTES)
        except BlockingIOError:
            _wait(descriptor, select.POLLIN)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            _wait(descriptor, select.POLLOUT)


def _wait(descriptor: int, event: int) -> None:
    """Wait for a stream that another process made non-blocking."""
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll()
