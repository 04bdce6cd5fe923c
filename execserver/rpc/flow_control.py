"""Flow control of a connection: large replies and pieces of streams wait until the peer has taken earlier
bytes.

A *large reply* waits until less than `MAX_UNSENT_BYTES` is queued, first come first served. A *piece* of a
stream without an end (a streamed response body) waits until an event may be queued, and takes turns with
other pieces and with the output of processes.
"""

from __future__ import annotations

import asyncio
from collections import deque

from execserver.rpc.channel import Channel
from execserver.sessions.event_stream import WINDOW_BYTES

MAX_UNSENT_BYTES = 16 << 20
"""Unsent bytes above which a connection's messages and large replies wait."""

Turn = asyncio.Future[None]


class FlowControl:
    """The flow control of one connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._replies: deque[Turn] = deque()
        self._pieces: deque[Turn] = deque()

    def may_queue_event(self) -> bool:
        """Whether another event may be queued."""
        return self._channel.unsent < WINDOW_BYTES

    def may_queue_reply(self) -> bool:
        """Whether another large reply may be queued."""
        return self._channel.unsent <= MAX_UNSENT_BYTES

    async def wait_to_reply(self) -> None:
        """Wait until the peer has taken enough for another large reply."""
        try:
            while self._replies or not self.may_queue_reply():
                turn: Turn = asyncio.get_running_loop().create_future()
                self._replies.append(turn)
                await turn
                if self.may_queue_reply():
                    return
        finally:
            asyncio.get_running_loop().call_soon(self.wake_reply)

    def wake_reply(self) -> None:
        """Let the next large reply go, if it may be queued."""
        if self.may_queue_reply():
            _grant(self._replies)

    async def wait_to_push(self) -> None:
        """Wait until one more piece may be sent."""
        if self._pieces or not self.may_queue_event():
            turn: Turn = asyncio.get_running_loop().create_future()
            self._pieces.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._pass_on()  # the turn may have come already
                raise
        self._pass_on()

    def wake_push(self) -> None:
        """Let the next piece go: the peer has taken most of what was queued."""
        _grant(self._pieces)

    def _pass_on(self) -> None:
        if self._pieces:
            asyncio.get_running_loop().call_soon(self._let_another_push)

    def _let_another_push(self) -> None:
        if self.may_queue_event():
            self.wake_push()


def _grant(turns: deque[Turn]) -> None:
    while turns:
        turn = turns.popleft()
        if not turn.done():
            turn.set_result(None)
            return
