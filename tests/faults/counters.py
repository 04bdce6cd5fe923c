"""Numbered lines: any byte tells where in the stream it belongs, so that a loss or a double shows at once.

A line is a number of 15 digits and its end: 16 bytes. Line n begins at byte 16 n.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

LINE_BYTES = 16
BLOCK_BYTES = 1 << 16


def lines(first: int, count: int) -> bytes:
    """So many lines, beginning with number `first`."""
    return b"".join([b"%015d\n" % number for number in range(first, first + count)])


def stretch(begin: int, size: int) -> bytes:
    """Bytes `begin` to `begin + size` of the endless stream."""
    first = begin // LINE_BYTES
    last = -(-(begin + size) // LINE_BYTES)
    return lines(first, last - first)[begin - first * LINE_BYTES :][:size]


class CounterCheck:
    """Compares what arrives with the stream, byte for byte; what was stated to be lost is skipped."""

    def __init__(self) -> None:
        self.position = 0
        """Of the next byte, those that were lost counted."""
        self.digest = hashlib.sha256()

    def take(self, data: bytes, lost: int = 0) -> None:
        """The next bytes, `lost` bytes behind those before.

        Raises:
            AssertionError: they are others.
        """
        self.position += lost
        expected = stretch(self.position, len(data))
        if data != expected:
            wrong = next(i for i, (a, b) in enumerate(zip(data, expected, strict=True)) if a != b)
            came, due = data[wrong : wrong + 40], expected[wrong : wrong + 40]
            raise AssertionError(f"at byte {self.position + wrong}: {came!r}, not {due!r}")
        self.position += len(data)
        self.digest.update(data)


def digest_of(size: int) -> str:
    """The checksum of the first so many bytes of the stream."""
    digest = hashlib.sha256()
    for begin in range(0, size, BLOCK_BYTES):
        digest.update(stretch(begin, min(BLOCK_BYTES, size - begin)))
    return digest.hexdigest()


# ------------------------------------------------------------------ programs that a daemon runs

_WRITER = """
import os, sys
credit = os.open(sys.argv[1], os.O_RDONLY)
for block in range(int(sys.argv[2])):
    os.read(credit, 1)
    data = b"".join([b"%015d\\n" % number for number in range(block * 4096, block * 4096 + 4096)])
    while data:
        data = data[os.write(1, data):]
sys.exit(7)
"""

_READER = """
import hashlib, sys
digest, left = hashlib.sha256(), int(sys.argv[1])
while left:
    data = sys.stdin.buffer.read1(min(left, 1 << 16))
    if not data:
        sys.exit("end of input")
    digest.update(data)
    left -= len(data)
print(digest.hexdigest(), flush=True)
sys.exit(9)
"""


def writer(credit: Path, blocks: int) -> list[str]:
    """A command that writes blocks of `BLOCK_BYTES`, one for each byte in a fifo, and exits with 7."""
    return [sys.executable, "-S", "-c", _WRITER, os.fspath(credit), str(blocks)]


def reader(size: int) -> list[str]:
    """A command that reads so many bytes, writes their checksum as a line, and exits with 9."""
    return [sys.executable, "-S", "-c", _READER, str(size)]
