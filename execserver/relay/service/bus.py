"""The bus between the endpoints of executors and those of harnesses.

Endpoints address each other by subjects only, so they may live in one process (`MemoryBus`) or, with another
implementation of `Bus`, in several. Messages from one subject to another arrive in order and at most once;
a message to a subject without a subscriber is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

MessageKind = Literal["joined", "crowded", "frame", "gone", "full", "room"]
"""joined: a harness connected. crowded: there are too many harnesses. frame: forward this. gone: the sender's
socket ended. full: the sender's queue is above its high mark. room: it is below its low mark again."""


class BusMessage(NamedTuple):
    """One message between endpoints.

    `sender` is the subject for answers. The other members are for frames: the stream, the kind by
    `frames.decode`, and the bytes exactly as the peer sent them.
    """

    kind: MessageKind
    sender: str
    stream_id: str = ""
    frame_kind: str = ""
    frame: bytes = b""


Receive = Callable[[BusMessage], None]


class Bus(Protocol):
    """Subjects, each with at most one subscriber."""

    def subscribe(self, subject: str, receive: Receive) -> None:
        """Call `receive` with each message to `subject`, in place of an earlier subscriber."""

    def unsubscribe(self, subject: str) -> None:
        """Deliver no more messages (idempotent)."""

    def publish(self, subject: str, message: BusMessage) -> bool:
        """Send one message. False: there is certainly no subscriber."""


class MemoryBus:
    """A bus within one process: `publish` delivers before it returns."""

    def __init__(self) -> None:
        self._subscribers: dict[str, Receive] = {}

    def subscribe(self, subject: str, receive: Receive) -> None:
        """Call `receive` with each message to `subject`."""
        self._subscribers[subject] = receive

    def unsubscribe(self, subject: str) -> None:
        """Deliver no more messages (idempotent)."""
        self._subscribers.pop(subject, None)

    def publish(self, subject: str, message: BusMessage) -> bool:
        """Deliver one message now. False: there is no subscriber."""
        receive = self._subscribers.get(subject)
        if receive is None:
            return False
        receive(message)
        return True


def executor_subject(registration_id: str) -> str:
    """The subject of a registration's executor."""
    return f"relay.{registration_id}.up"


def harness_subject(registration_id: str, peer_id: str) -> str:
    """The subject of one harness socket."""
    return f"relay.{registration_id}.down.{peer_id}"
