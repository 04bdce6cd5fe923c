"""The interface between a transport (`Channel`) and a connection (`MessageHandler`).

A channel carries whole messages. It frames them (a newline, a WebSocket header), buffers bytes that the peer
has not taken, and reports their number. It never blocks and never drops a message: the connection bounds what
is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from execserver.sessions.access import PeerProof
from execserver.telemetry.measures import TransportKind


class Channel(Protocol):
    """The transport's side of one connection. All methods are called on the loop's thread."""

    peer: str
    """The peer's name for logs: `stdio`, `unix:pid=123`, `127.0.0.1:41234`."""

    kind: TransportKind
    """The kind of transport, for logs and counters."""

    peer_proof: PeerProof | None
    """How the peer is known; None for an unknown peer."""

    key_fingerprint: str | None
    """Of the key by which a relay's client has identified itself; None without a relay."""

    parse_error_prefix: str
    """The beginning of the text of a parse error; the wire gives each transport its own."""

    max_reply_bytes: int | None
    """The largest message the peer takes, or None."""

    utf8_is_fatal: bool
    """Whether invalid UTF-8 ends a connection of the Codex dialect (newline framing), or is a parse error."""

    presumes_json_rpc: bool
    """Whether parse errors before the choice of a dialect are written in the JSON-RPC 2.0 dialect."""

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the kernel has not taken yet."""

    @property
    def progress(self) -> int:
        """Bytes that the kernel has taken so far."""

    @property
    def ended(self) -> bool:
        """Whether the channel has ended: it delivers no more, and drops what is sent."""

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue one message, given in pieces that are not copied. Does nothing once closed.

        The messages of one turn of the loop leave in one write. While a stream is open they wait behind it.
        """

    def read_now(self) -> None:
        """Send what is queued and read what has arrived, without waiting for the loop, if possible."""

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces follow; other messages wait until it is closed. The caller opens
        only one stream at a time.

        Args:
            size: bytes of the whole message; it may turn out shorter, never longer.
        """

    def pause_reading(self) -> None:
        """Deliver no further message after the current read (idempotent)."""

    def resume_reading(self) -> None:
        """Deliver again (idempotent)."""

    def probe(self, timeout: float) -> None:
        """Ping the peer and drop the connection if nothing arrives within `timeout` seconds. Does nothing
        where the kernel reports a dead peer (stdio, Unix sockets).
        """

    def finish(self) -> None:
        """Read no more, and end once the peer has taken what is queued, or a second later."""

    def abort(self) -> None:
        """Drop the connection now (idempotent); `connection_lost` follows."""


class MessageStream(Protocol):
    """One message that is sent in pieces."""

    async def write(self, piece: bytes) -> None:
        """Queue a piece and wait until the peer has taken most of what is queued.

        Raises:
            ConnectionResetError: the connection is gone.
        """

    async def close(self, tail: bytes) -> None:
        """Queue the last piece and release the messages behind this one.

        Raises:
            ConnectionResetError: the connection is gone.
        """


class MessageHandler(Protocol):
    """The connection's side, called by the transport on the loop's thread."""

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        """Take whole messages without their framing, in the order of arrival: some or all of one read. A
        large one is the buffer that it was gathered in, which the handler now owns. Messages behind one that
        ended the channel are ignored. Never raises.
        """

    def framing_failed(self, reason: str) -> None:
        """The transport cannot separate further messages and reads no more. The handler reports it to the
        peer and calls `finish`.
        """

    def batch_ended(self) -> None:
        """All messages of one read have been delivered."""

    def drained(self) -> None:
        """`unsent` fell below the low-water mark (64 KiB) after having been above it."""

    def connection_lost(self) -> None:
        """The connection is over. Called exactly once."""
