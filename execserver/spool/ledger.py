"""The journal of sessions and processes, from which a new server learns what the previous one had.

Rules kept in this file:

1. The ledger is a memfd of JSON lines. It has no name, never reaches a disk, and lives as long as a process
   holds its descriptor; the supervisor does.
2. A record counts when its line is complete. An incomplete line was being written when the server was
   killed: no client was told of it, and it is cut off.
3. A record is appended before a client is told of its content.
4. A line that this version cannot decode is skipped and counted. A newer server wrote it, or it is damaged;
   the other lines are valid all the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec

from execserver.spool.records import AnyRecord, State

COMPACTION_BYTES = 4 << 20
"""How much is added before a compaction pays: some fifty thousand records."""

_READ_BYTES = 1 << 20

_REPLAYED_BYTES = 64 << 10
"""How much is decoded in one go: a millisecond."""

_NAME = "ledger"


class Ledger:
    """An open ledger.

    Args:
        fd: a memfd, which belongs to this object from now on. An incomplete last line is cut off.
        compacted: whether it was just compacted.
    """

    def __init__(self, fd: int, *, compacted: bool = False) -> None:
        self.fd = fd
        self._size = _end_of_last_line(fd)
        self._compacted_size = self._size if compacted else 0
        os.ftruncate(fd, self._size)

    @classmethod
    def create(cls) -> Ledger:
        """An empty ledger.

        Raises:
            OSError: no descriptor, no memory.
        """
        return cls(os.memfd_create(_NAME, os.MFD_CLOEXEC))

    @classmethod
    def compacted(cls, records: Iterable[AnyRecord]) -> Ledger:
        """A new ledger of these records (`State.records()`).

        Records that are appended to the old one later have to be copied by `absorb`. Have the supervisor keep
        the new one in the old one's place *before* a record is appended to it, and close the old one last: a
        new server then finds the same state in either.

        Raises:
            OSError: no descriptor, no memory; the old one is as it was.
        """
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        try:
            end, lines = 0, bytearray()
            for record in records:
                lines += _line(record)
                if len(lines) >= _READ_BYTES:
                    end += _write(fd, bytes(lines), end)
                    lines.clear()
            _write(fd, bytes(lines), end)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, compacted=True)

    def absorb(self, other: Ledger, start: int) -> None:
        """Append what another ledger has from a position on, which was its `size` at some time.

        Raises:
            OSError: no memory.
        """
        while start < other.size:
            self._size += _write(self.fd, piece := os.pread(other.fd, _READ_BYTES, start), self._size)
            start += len(piece)

    @property
    def size(self) -> int:
        """Its length in bytes; all lines are complete."""
        return self._size

    def append(self, record: AnyRecord) -> None:
        """Write one record. When this returns, the record outlives the server.

        Raises:
            OSError: no memory; the record is not there.
        """
        line = _encode(record) + b"\n"
        # Not at the descriptor's position, which other processes share.
        if os.pwrite(self.fd, line, self._size) != len(line):
            os.ftruncate(self.fd, self._size)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self._size += len(line)

    @property
    def should_compact(self) -> bool:
        """Whether most of the ledger is probably outdated."""
        return self._size >= 2 * self._compacted_size + COMPACTION_BYTES

    def replay(self, end: int | None = None) -> State:
        """The state that all records add up to, or those up to a position that was the `size` at some time.
        Reads piece by piece: a thread can call it without delaying the others, which may append meanwhile.
        """
        state = State()
        apply = state.apply
        end = self._size if end is None else end
        start, rest = 0, b""
        while start < end:
            piece = os.pread(self.fd, min(_REPLAYED_BYTES, end - start), start)
            start += len(piece)
            cut = piece.rfind(b"\n") + 1
            lines, rest = (rest + piece[:cut], piece[cut:]) if cut else (b"", rest + piece)
            for record in _records(lines, state):
                apply(record)
        return state

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


def _write(fd: int, content: bytes, at: int) -> int:
    # Not at the descriptor's position, which other processes share.
    written = os.pwrite(fd, content, at)
    if written < len(content):
        os.ftruncate(fd, at)
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return written


def _end_of_last_line(fd: int) -> int:
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - _READ_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


_encode = msgspec.json.Encoder().encode
_NOT_UNDERSTOOD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@cache
def _decoder() -> msgspec.json.Decoder[AnyRecord]:
    """Made when a server takes over: it would cost every other start half a millisecond."""
    return msgspec.json.Decoder(AnyRecord)


def _line(record: AnyRecord) -> bytes:
    return _encode(record) + b"\n"


def _records(content: bytes, state: State) -> Iterable[AnyRecord]:
    try:
        return _decoder().decode_lines(content)
    except _NOT_UNDERSTOOD:
        return _understood(content, state)


def _understood(content: bytes, state: State) -> Iterator[AnyRecord]:
    for line in content.split(b"\n")[:-1]:
        try:
            yield _decoder().decode(line)
        except _NOT_UNDERSTOOD:
            state.skipped += 1
