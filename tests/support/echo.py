"""A handler of connections that sends back what comes."""

from __future__ import annotations

from collections.abc import Sequence

from execserver.rpc.channel import Channel


class Echo:
    """Answers each message with itself."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ends = 0

    def messages_received(self, messages: Sequence[bytes | bytearray]) -> None:
        for message in messages:
            self.channel.send((bytes(message),))

    def framing_failed(self, reason: str) -> None:
        raise AssertionError(reason)

    def batch_ended(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def connection_lost(self) -> None:
        self.ends += 1
