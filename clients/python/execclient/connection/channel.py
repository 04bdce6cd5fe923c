"""What carries whole messages between us and a daemon, and who is told of what comes.

A channel is made by `sockets`, `stdio` or `websocket`; `connection` puts requests on it and takes
answers from it.
"""

from __future__ import annotations

from typing import Protocol

CONNECT_SECONDS = 10.0
"""For the connect, and again for the handshake. As the stock client."""


class Channel(Protocol):
    """The way out: messages are sent whole, in order."""

    def send(self, message: bytes) -> None:
        """Send a message; what does not go out at once is kept. Dropped when the channel has ended."""

    def close(self) -> None:
        """Send what is kept, then end. Returns at once, and may be called again."""

    def abort(self) -> None:
        """End at once. Returns before that is done, and may be called again."""


class Receiver(Protocol):
    """The way in: what a channel tells, in this order."""

    def channel_opened(self, channel: Channel) -> None:
        """Once, and first."""

    def message_received(self, message: bytes | bytearray) -> None:
        """A message came."""

    def pause_writing(self) -> None:
        """The other side does not take what we send: wait with more."""

    def resume_writing(self) -> None:
        """It does again."""

    def protocol_broken(self, text: str) -> None:
        """The other side sent what cannot be understood. The receiver ends the channel."""

    def channel_lost(self, reason: str | None) -> None:
        """Once, and last: nothing goes out or comes in any more, and this is why, if it is known."""
