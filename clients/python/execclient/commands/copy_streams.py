"""Our standard streams as files for `FileSystem.upload` and `download`, which use them in threads.

A thread that waits for a pipe cannot be cancelled, and the interpreter would wait for it at its end.
So it waits for the pipe or for `stop`, whichever comes first.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

_PIPE_BUF = select.PIPE_BUF
"""A pipe that is ready takes so much without blocking, and perhaps no more."""


class _Stream:
    """What a transfer needs of a binary file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._stopped, self._stop = os.pipe()

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        data = bytearray()
        while len(data) < size and self._wait(select.POLLIN):
            piece = os.read(self._descriptor, size - len(data))
            if not piece:
                break
            data += piece
        return bytes(data)

    def write(self, data: bytes) -> int:
        """All of them."""
        rest = memoryview(data)
        while rest and self._wait(select.POLLOUT):
            rest = rest[os.write(self._descriptor, rest[:_PIPE_BUF]) :]
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def stop(self) -> None:
        """Wait no more, not now and not later."""
        os.write(self._stop, b"\0")

    def _wait(self, event: int) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, event)
        poll.register(self._stopped, select.POLLIN)
        return self._stopped not in {descriptor for descriptor, _ in poll.poll()}


@contextmanager
def standard_stream(descriptor: int) -> Iterator[BinaryIO]:
    """Standard input or output as a file; whoever still waits for it at the end of the block is let go."""
    stream = _Stream(descriptor)
    try:
        yield cast("BinaryIO", stream)
    finally:
        stream.stop()
