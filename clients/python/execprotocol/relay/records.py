"""Split messages into records, assemble messages from records, and restore the order of records.

Each direction of a channel is a stream of bytes: each JSON-RPC message follows its length, four bytes
big-endian. Records are pieces of that stream: their boundaries are independent of those of messages.
No I/O. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from execprotocol.limits import MAX_MESSAGE_BYTES
from execprotocol.relay.noise import MAX_RECORD_BYTES

HEADER_BYTES = 4

REORDER_AHEAD = 64
"""How far ahead of the next record one is kept. One that is further ahead ends the stream."""

REORDER_BYTES = 1 << 20
"""Limit of kept records, in bytes."""

Piece = bytes | memoryview


class RecordError(Exception):
    """Received data is not a valid sequence of records or messages. The stream cannot go on."""


class RecordQueue:
    """The messages of one direction, cut into records on demand."""

    __slots__ = ("_pieces", "unsent")

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.unsent = 0
        """Bytes that are not in a record yet."""

    def put(self, parts: Sequence[bytes]) -> None:
        """Queue one message. Its parts are not copied, unless it fits into one record."""
        size = sum(map(len, parts))
        if size + HEADER_BYTES <= MAX_RECORD_BYTES:
            # One piece: a small message costs one join here and none in `take`.
            self.put_raw(b"".join((size.to_bytes(HEADER_BYTES), *parts)))
            return
        self.put_head(size)
        for part in parts:
            self.put_raw(part)

    def put_head(self, size: int) -> None:
        """Begin a message whose bytes follow by `put_raw`.

        Args:
            size: the exact number of bytes that follow.
        """
        self.put_raw(size.to_bytes(HEADER_BYTES))

    def put_raw(self, piece: bytes) -> None:
        """Queue a piece of the begun message."""
        if piece:
            self._pieces.append(piece)
            self.unsent += len(piece)

    def take(self) -> bytes | memoryview | None:
        """The next record, as large as possible; None if nothing is queued."""
        pieces = self._pieces
        if not pieces:
            return None
        first = pieces.popleft()
        if len(first) >= MAX_RECORD_BYTES:
            record: Piece = memoryview(first)[:MAX_RECORD_BYTES]
            if len(first) > MAX_RECORD_BYTES:
                pieces.appendleft(memoryview(first)[MAX_RECORD_BYTES:])
        elif not pieces:
            record = first
        else:
            record = self._joined(first)
        self.unsent -= len(record)
        return record

    def clear(self) -> None:
        """Drop everything."""
        self._pieces.clear()
        self.unsent = 0

    def _joined(self, first: Piece) -> bytes:
        pieces, joined, room = self._pieces, [first], MAX_RECORD_BYTES - len(first)
        while pieces and room:
            piece = pieces.popleft()
            if len(piece) > room:
                pieces.appendleft(memoryview(piece)[room:])
                piece = memoryview(piece)[:room]
            joined.append(piece)
            room -= len(piece)
        return b"".join(joined)


class MessageAssembler:
    """Assembles messages from records.

    Args:
        deliver: called with each message; a large one is passed as the buffer in which it was assembled.
        limit: of a message, in bytes.
    """

    __slots__ = ("_begun", "_deliver", "_limit", "_missing", "_pending")

    def __init__(self, deliver: Callable[[bytes | bytearray], None], limit: int = MAX_MESSAGE_BYTES) -> None:
        self._deliver = deliver
        self._limit = limit
        self._begun: bytearray | None = None
        self._missing = 0  # bytes of the begun message
        self._pending = b""  # of a header

    @property
    def held(self) -> int:
        """Bytes of an incomplete message."""
        return len(self._begun) if self._begun is not None else len(self._pending)

    def feed(self, record: bytes) -> None:
        """Process the next record, and deliver complete messages.

        Raises:
            RecordError: a message of more than `limit` bytes is announced.
        """
        place, end = 0, len(record)
        if self._begun is not None:
            taken = min(self._missing, end)
            self._begun += memoryview(record)[:taken]
            self._missing -= taken
            if self._missing:
                return
            message, self._begun = self._begun, None
            place = taken
            self._deliver(message)
        if self._pending:
            record, place = self._pending + record[place:], 0
            end, self._pending = len(record), b""
        while place < end:
            if end - place < HEADER_BYTES:
                self._pending = record[place:]
                return
            size = int.from_bytes(record[place : place + HEADER_BYTES])
            if size > self._limit:
                raise RecordError(f"a message of {size} bytes is announced; at most {self._limit} are taken")
            place += HEADER_BYTES
            if size > end - place:
                self._begun = bytearray(memoryview(record)[place:])
                self._missing = size - (end - place)
                return
            self._deliver(record[place : place + size])
            place += size


class Reorder:
    """Restores the order of sealed records: repeated ones are ignored, early ones wait.

    Attributes:
        expected: the number of the next record.
        early: the records that wait for it, by number.
    """

    __slots__ = ("_early_bytes", "early", "expected")

    def __init__(self) -> None:
        self.expected = 0
        self.early: dict[int, bytes] = {}
        self._early_bytes = 0

    def accept(self, seq: int, payload: bytes | memoryview) -> Sequence[bytes | memoryview]:
        """Accept a record.

        Args:
            seq: its number.
            payload: a view is copied if it has to wait.

        Returns:
            The records that are next in order; usually just this one.

        Raises:
            RecordError: the record is too far ahead of a missing one, or too many bytes wait for that one.
        """
        expected = self.expected
        if seq == expected:
            self.expected = expected + 1
            if not self.early:
                return (payload,)
            return [payload, *self._follow_up()]
        if seq < expected or seq in self.early:
            return ()
        if seq - expected > REORDER_AHEAD:
            raise RecordError(f"record {seq} arrived while {expected} is missing")
        self._early_bytes += len(payload)
        if self._early_bytes > REORDER_BYTES:
            raise RecordError(f"more than {REORDER_BYTES} bytes wait for record {expected}")
        self.early[seq] = bytes(payload)
        return ()

    def _follow_up(self) -> list[bytes]:
        found: list[bytes] = []
        while (payload := self.early.pop(self.expected, None)) is not None:
            self._early_bytes -= len(payload)
            self.expected += 1
            found.append(payload)
        return found
