"""The interface between connections and their transports, and the framing of byte streams into lines.

`sockets`, `stdio` and `websocket` make channels; `connection` sends requests on them and receives responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from execprotocol.limits import MAX_LINE_BYTES

CONNECT_SECONDS = 10.0
"""For the connect, and again for the handshake. As the stock client."""


class Channel(Protocol):
    """The sending side of a transport: messages are sent whole and in order."""

    def send(self, message: bytes) -> None:
        """Send a message, or buffer it. After the end of the channel messages are dropped."""

    def close(self) -> None:
        """Send all buffered data, then end. Returns at once, and may be called again."""

    def abort(self) -> None:
        """End at once. Returns before that is done, and may be called again."""


class Receiver(Protocol):
    """The receiving side: the calls that a channel makes, in this order."""

    def channel_opened(self, channel: Channel) -> None:
        """The first call, made once."""

    def message_received(self, message: bytes | bytearray) -> None:
        """A message arrived."""

    def pause_writing(self) -> None:
        """The send buffer is full: stop sending."""

    def resume_writing(self) -> None:
        """The send buffer has drained."""

    def protocol_broken(self, text: str) -> None:
        """The peer sent an invalid message. The receiver ends the channel."""

    def channel_lost(self, reason: str | None) -> None:
        """The last call, made once: the channel has ended, for this reason if it is known."""


class MessageTooLong(Exception):
    """A message exceeds the limit of the protocol."""


class LineSplitter:
    """Splits a byte stream into lines (`docs/protocol.md`, "Lines: stdio and Unix sockets").

    Each byte is searched once and copied at most twice, whatever the length of a line. No I/O.

    Args:
        deliver: receives each complete line, without its newline.
        limit: bytes that a line may have.
    """

    def __init__(self, deliver: Callable[[bytes], None], limit: int = MAX_LINE_BYTES) -> None:
        self._deliver = deliver
        self._limit = limit
        self._begun: list[bytes] = []
        """The pieces of an incomplete line."""
        self._begun_bytes = 0
        self._stopped = False

    def stop(self) -> None:
        """Deliver no more lines, not even from the data that is being fed."""
        self._stopped = True
        self._begun.clear()

    def feed(self, data: bytes) -> None:
        """Process received data.

        Raises:
            MessageTooLong: a line exceeds the limit; no part of it was delivered.
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
