"""What a connection needs of its transport, and what it offers in return.

A channel carries whole messages. It frames them (a newline, a WebSocket header), buffers
what the peer has not taken yet, and says how much that is. It never blocks and never
drops a message: bounding what is queued is the connection's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from execserver.sessions.access import PeerProof
from execserver.telemetry.measures import TransportKind


class Channel(Protocol):
    """The transport's side of one connection. All methods are called on the loop's thread."""

    peer: str
    """Who is at the other end, for logs: `stdio`, `unix:pid=123`, `127.0.0.1:41234`."""

    kind: TransportKind
    """What it is, for logs and counters."""

    peer_proof: PeerProof | None
    """What is known of who is at the other end."""

    parse_error_prefix: str
    """How the message of a parse error begins; the wire gives each transport its own."""

    max_reply_bytes: int | None
    """The largest message the peer takes, or None."""

    utf8_is_fatal: bool
    """Whether bytes that are no UTF-8 end a lean connection (newline framing) or are a parse error."""

    presumes_json_rpc: bool
    """Whether a peer that was not understood yet gets its parse errors in the standard dialect."""

    @property
    def unsent(self) -> int:
        """Bytes accepted by `send` that the kernel has not taken yet."""

    @property
    def progress(self) -> int:
        """Bytes that the kernel has taken so far."""

    @property
    def ended(self) -> bool:
        """Whether it has ended: nothing more is delivered, and what is sent goes nowhere."""

    def send(self, parts: Sequence[bytes]) -> None:
        """Queue one message, given in pieces that are not copied. A no-op once closed.

        Messages of one loop turn leave in one write. While a stream is open they wait
        behind it.
        """

    def read_now(self) -> None:
        """Send what is queued and read what has come, without waiting for the loop, if that can be."""

    def open_stream(self, size: int) -> MessageStream:
        """Begin one message whose pieces come later; other messages wait until it is closed.
        Only one stream is open at a time: the caller keeps to that.

        Args:
            size: bytes of the whole message; it may turn out to be shorter, never longer.
        """

    def pause_reading(self) -> None:
        """Deliver no further messages after the current batch (idempotent)."""

    def resume_reading(self) -> None:
        """Deliver again (idempotent)."""

    def probe(self, timeout: float) -> None:
        """Ask the peer for a sign of life and drop the connection when none comes in `timeout`
        seconds. A no-op where the kernel tells of a dead peer (stdio, Unix sockets).
        """

    def finish(self) -> None:
        """Read nothing more, and end once the peer has taken what is queued, or a second later."""

    def abort(self) -> None:
        """Drop the connection now, without a farewell (idempotent); `connection_lost` follows."""


class MessageStream(Protocol):
    """One message being sent in pieces."""

    async def write(self, piece: bytes) -> None:
        """Queue a piece and wait until the peer has taken most of what is queued.

        Raises:
            ConnectionResetError: the connection is gone.
        """

    async def close(self, tail: bytes) -> None:
        """Queue the last piece and let other messages pass.

        Raises:
            ConnectionResetError: the connection is gone.
        """


class MessageHandler(Protocol):
    """The connection's side: a transport calls it, on the loop's thread."""

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        """Whole messages, without their framing, in the order of arrival: some or all of what one read
        brought. A large one is the buffer that it was gathered in, which is the handler's from now on.
        Those behind one that ended the channel are not looked at. Never raises.
        """

    def framing_failed(self, reason: str) -> None:
        """What comes is no sequence of messages any more, and nothing more is read. The handler says
        so to the peer and calls `finish`.
        """

    def batch_ended(self) -> None:
        """Everything that one read of the transport brought has been delivered."""

    def drained(self) -> None:
        """`unsent` fell below the low-water mark (64 KiB) after having been above it."""

    def connection_lost(self) -> None:
        """The connection is over, for whatever reason. Called exactly once."""
