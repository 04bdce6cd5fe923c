"""A message a line: cutting what arrives into messages, whatever pieces it comes in.

Each byte is searched once and copied at most twice, however long a message is. No I/O.
`docs/protocol.md`, "Lines: stdio and Unix sockets".
"""

from __future__ import annotations

from collections.abc import Callable

from execprotocol.limits import MAX_LINE_BYTES


class MessageTooLong(Exception):
    """A message is longer than any that the protocol has."""


class LineSplitter:
    """Hands over each line without its newline, as soon as it is whole.

    Args:
        deliver: takes a message.
        limit: bytes that a message may have.
    """

    def __init__(self, deliver: Callable[[bytes], None], limit: int = MAX_LINE_BYTES) -> None:
        self._deliver = deliver
        self._limit = limit
        self._begun: list[bytes] = []
        """The pieces of a line whose end has not come."""
        self._begun_bytes = 0
        self._stopped = False

    def stop(self) -> None:
        """Deliver nothing more, also not the rest of what is being fed."""
        self._stopped = True
        self._begun.clear()

    def feed(self, data: bytes) -> None:
        """Bytes came.

        Raises:
            MessageTooLong: and nothing of that message was delivered.
        """
        end = data.find(b"\n")
        if end < 0:
            self._keep(data)
            return
        start = 0
        if self._begun:
            self._begun.append(data[:end])
            self._check(self._begun_bytes + end)
            line = b"".join(self._begun)
            self._begun.clear()
            self._begun_bytes = 0
            start = end + 1
            if not self._stopped:
                self._deliver(line)
            end = data.find(b"\n", start)
        while end >= 0 and not self._stopped:
            self._check(end - start)
            self._deliver(data[start:end])
            start = end + 1
            end = data.find(b"\n", start)
        if start < len(data):
            self._keep(data[start:])

    def _keep(self, piece: bytes) -> None:
        if self._stopped:
            return
        self._begun_bytes += len(piece)
        self._check(self._begun_bytes)
        self._begun.append(piece)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise MessageTooLong(f"a message of more than {self._limit} bytes")
