"""Messages of any size over records of a limited one, and the order of records.

In each direction of a channel flows a stream of bytes: before each JSON-RPC message its length, four bytes
big-endian. Records are pieces of that stream, cut where it suits: they and messages share no boundaries.
No I/O. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from execprotocol.limits import MAX_MESSAGE_BYTES
from execprotocol.relay.noise import MAX_RECORD_BYTES

HEADER_BYTES = 4

REORDER_AHEAD = 64
"""How far before its turn a record is kept. One that is further ahead ends the stream."""

REORDER_BYTES = 1 << 20
"""What is kept of them."""

Piece = bytes | memoryview


class RecordError(Exception):
    """What came is no sequence of records or messages; the stream cannot go on."""


class RecordQueue:
    """What one direction has to say, cut into records when there is room for them."""

    __slots__ = ("_pieces", "unsent")

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self.unsent = 0
        """Bytes that no record has taken yet."""

    def put(self, parts: Sequence[bytes]) -> None:
        """Queue one message, given in parts that are not copied."""
        size = sum(map(len, parts))
        if size + HEADER_BYTES <= MAX_RECORD_BYTES:
            # One piece, so that a small message costs one join here and none when it is taken.
            self.put_raw(b"".join((size.to_bytes(HEADER_BYTES), *parts)))
            return
        self.put_head(size)
        for part in parts:
            self.put_raw(part)

    def put_head(self, size: int) -> None:
        """Begin a message whose bytes come by `put_raw`.

        Args:
            size: how many will come: no more and no less.
        """
        self.put_raw(size.to_bytes(HEADER_BYTES))

    def put_raw(self, piece: bytes) -> None:
        """Queue a piece of the message that was begun."""
        if piece:
            self._pieces.append(piece)
            self.unsent += len(piece)

    def take(self) -> bytes | memoryview | None:
        """The next record, as large as can be; None when there is nothing to say."""
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
    """Puts messages together again.

    Args:
        deliver: takes each message; a large one as the buffer that it was gathered in.
        limit: bytes that a message may have.
    """

    __slots__ = ("_begun", "_deliver", "_limit", "_missing", "_pending")

    def __init__(self, deliver: Callable[[bytes | bytearray], None], limit: int = MAX_MESSAGE_BYTES) -> None:
        self._deliver = deliver
        self._limit = limit
        self._begun: bytearray | None = None
        self._missing = 0  # of the message that has begun
        self._pending = b""  # less than a header

    @property
    def held(self) -> int:
        """Bytes of a message whose end has not come."""
        return len(self._begun) if self._begun is not None else len(self._pending)

    def feed(self, record: bytes) -> None:
        """Take the next record, and deliver what is whole.

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
    """Puts sealed records into their order: those that come again are ignored, those that come early wait."""

    __slots__ = ("_early_bytes", "early", "expected")

    def __init__(self) -> None:
        self.expected = 0
        self.early: dict[int, bytes] = {}
        self._early_bytes = 0

    def accept(self, seq: int, payload: bytes | memoryview) -> Sequence[bytes | memoryview]:
        """A record came.

        Args:
            seq: its number.
            payload: a view is copied if it has to wait.

        Returns:
            Those whose turn it is, in order; often just this one.

        Raises:
            RecordError: it is too far ahead of what is missing, or too much waits for that.
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
            raise RecordError(f"record {seq} came while {expected} is missing")
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
