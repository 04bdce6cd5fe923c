"""The bus between the endpoints of executors and those of harnesses.

Endpoints know each other by address only, so they may live in one process (`MemoryBus`) or, with another
implementation of `Bus`, in several. Messages from one address to another arrive in order and at most once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

MessageKind = Literal["joined", "crowded", "frame", "gone", "full", "congested", "room"]
"""joined: a harness connected. crowded: there are too many harnesses. frame: forward this. gone: the sender's
socket ended. full: the sender's queue is above its high mark. congested: the way to the sender's relay is, as
the bus itself reports. room: it is below its low mark again."""


class BusMessage(NamedTuple):
    """One message between endpoints.

    `sender` is the address for answers. The other members are for frames: the stream, the kind by
    `frames.decode`, and the bytes exactly as the peer sent them.
    """

    kind: MessageKind
    sender: str
    stream_id: str = ""
    frame_kind: str = ""
    frame: bytes = b""


Receive = Callable[[BusMessage], None]


class Bus(Protocol):
    """Addresses, each with at most one subscriber, at one of the relays that share the bus."""

    @property
    def node(self) -> str:
        """The name of this relay: new at each start, unique among all relays that share the bus."""

    def address(self, peer_id: str) -> str:
        """The address of a peer of this relay."""

    def is_alive(self, node: str) -> bool:
        """Whether a relay shares the bus now, as far as known: one that died is found out within seconds."""

    def subscribe(self, address: str, receive: Receive) -> None:
        """Call `receive` with each message to an address of this relay, in place of an earlier subscriber."""

    def unsubscribe(self, address: str) -> None:
        """Deliver no more messages (idempotent)."""

    def publish(self, address: str, message: BusMessage) -> bool:
        """Send one message. False: there is certainly no subscriber.

        If the receiver turns out to be lost later, or messages between the two relays were lost, the sender's
        address gets "gone" from the receiver's. A sender of frames gets "congested" from the receiver's
        address while the way to its relay is congested, and "room" when it no longer is.
        """


class MemoryBus:
    """A bus within one process: `publish` delivers before it returns."""

    def __init__(self) -> None:
        self.node = secrets.token_hex(4)
        self._subscribers: dict[str, Receive] = {}

    def address(self, peer_id: str) -> str:
        """The address of a peer."""
        return peer_id

    def is_alive(self, node: str) -> bool:
        """Whether it is this process."""
        return node == self.node

    def subscribe(self, address: str, receive: Receive) -> None:
        """Call `receive` with each message to an address."""
        self._subscribers[address] = receive

    def unsubscribe(self, address: str) -> None:
        """Deliver no more messages (idempotent)."""
        self._subscribers.pop(address, None)

    def publish(self, address: str, message: BusMessage) -> bool:
        """Deliver one message now. False: there is no subscriber."""
        receive = self._subscribers.get(address)
        if receive is None:
            return False
        receive(message)
        return True
