"""What carries frames between the side that has an executor's socket and the side that has a harness's.

Both sides know each other by subjects only and never touch each other's objects, so they may live in one
process (`MemoryBus`) or, with another implementation of `Bus`, in several. Messages from one subject to
another arrive in order, at most once, or not at all; nothing is stored for a subject without a subscriber.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

MessageKind = Literal["joined", "crowded", "frame", "gone", "full", "room"]
"""joined: a harness is there. crowded: it cannot stay. frame: copy this. gone: the sender's socket ended.
full: the sender's queue is above its high mark, so that more would only wait. room: it is not any more."""


class BusMessage(NamedTuple):
    """One thing that one side tells the other.

    `sender` is the subject for answers. The rest is of frames only: the stream, the frame's kind as
    `frames.decode` names it, and the bytes exactly as they came from the peer.
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
        """Have the messages to `subject` handed to `receive`, in place of an earlier subscriber's."""

    def unsubscribe(self, subject: str) -> None:
        """Hand over nothing more (idempotent)."""

    def publish(self, subject: str, message: BusMessage) -> bool:
        """Send one message. False: it is certain that nobody subscribed."""


class MemoryBus:
    """Within one process: delivery happens inside `publish`."""

    def __init__(self) -> None:
        self._subscribers: dict[str, Receive] = {}

    def subscribe(self, subject: str, receive: Receive) -> None:
        """Have the messages to `subject` handed to `receive`."""
        self._subscribers[subject] = receive

    def unsubscribe(self, subject: str) -> None:
        """Hand over nothing more (idempotent)."""
        self._subscribers.pop(subject, None)

    def publish(self, subject: str, message: BusMessage) -> bool:
        """Deliver one message now. False: nobody subscribed."""
        receive = self._subscribers.get(subject)
        if receive is None:
            return False
        receive(message)
        return True


def executor_subject(registration_id: str) -> str:
    """Where harnesses send to a registration's executor."""
    return f"relay.{registration_id}.up"


def harness_subject(registration_id: str, peer_id: str) -> str:
    """Where the executor sends to one harness socket."""
    return f"relay.{registration_id}.down.{peer_id}"
