"""One connection to the daemon that is fuzzed: what is sent, and what must come back for it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.faults.service import Service
from tests.fuzz.doors import Door, Framed, HeaderDoor, LineDoor, WebSocketDoor
from tests.fuzz.verdicts import Judge
from tests.support.wire import Json, _upgrade

SENTINEL_SECONDS = 15.0
"""For the plain question behind a round, which waits for nothing: a longer silence is a hang."""

REPLY_SECONDS = 20.0
"""For all replies of a round, some of which wait for processes that start."""

NOBODY = 65534
"""Whom the daemon runs as when the tests are root's."""


@dataclass(frozen=True)
class Kind:
    """A framing and what is spoken in it."""

    door: Callable[[Judge, random.Random], Door]
    transport: str
    standard: bool


KINDS = {
    "lines/lean": Kind(LineDoor, "unix", standard=False),
    "lines/standard": Kind(LineDoor, "unix", standard=True),
    "headers/standard": Kind(HeaderDoor, "unix", standard=True),
    "websocket/lean": Kind(WebSocketDoor, "ws", standard=False),
    "websocket/standard": Kind(WebSocketDoor, "ws", standard=True),
}


class Failure(AssertionError):
    """The daemon did what it must not do."""


@contextlib.contextmanager
def as_the_daemon() -> Iterator[None]:
    """Connect as the user that the daemon runs as: a Unix socket takes nobody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class Link:
    """One connection, read and written by the same thread."""

    def __init__(self, service: Service, kind: Kind, judge: Judge, chance: random.Random) -> None:
        self._standard = kind.standard
        # A TCP listener asks for no user, and a lookup of its address may load what nobody can read.
        with as_the_daemon() if kind.transport == "unix" else contextlib.nullcontext():
            self._socket: socket.socket = service.socket()
        self.door: Door = kind.door(judge, chance)
        self.answered: float | None = None
        """When the last question was answered."""
        if kind.transport == "ws":
            status, _, left_over = _upgrade(self._socket, urlsplit(service.url).netloc, "/", None)
            assert status == 101
            self.door.received(left_over)
        self._socket.setblocking(False)

    def decide_by(self, chance: random.Random) -> None:
        """Have framings decided by this one from now on."""
        self.door.chance = chance

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def handshake(self) -> None:
        """Become ready for everything."""
        head = {"jsonrpc": "2.0"} if self._standard else {}
        hello = {**head, "id": "hello", "method": "initialize", "params": {"clientName": "fuzz"}}
        ready = {**head, "method": "initialized"}
        data = b"".join(self.door.plain(json.dumps(each).encode()) for each in (hello, ready))
        self.exchange(data, 1, REPLY_SECONDS)

    def question(self) -> bytes:
        """A plain request, which is always answered."""
        self.answered = None
        head = {"jsonrpc": "2.0"} if self._standard else {}
        return json.dumps({**head, "id": "question", "method": "environment/status"}).encode()

    def send(self, data: bytes) -> None:
        """Send what is taken at once, and read nothing."""
        try:
            self._socket.send(data)
        except (BlockingIOError, ConnectionError):
            return

    def exchange(self, data: bytes, replies: int | None, seconds: float) -> None:
        """Send, and read until so many replies have come; None for the end of the connection.

        Raises:
            Failure: it did not come so.
        """
        deadline = time.monotonic() + seconds
        left = memoryview(data)
        count = 0
        while left or replies is None or count < replies:
            readable, writable, _ = select.select(
                [self._socket], [self._socket] if left else [], [], max(0.0, deadline - time.monotonic())
            )
            if not readable and not writable:
                raise Failure(f"{count} replies of {replies} in {seconds:g} s")
            if writable:
                left = self._send_some(left, ending=replies is None)
            if readable:
                received = self._receive()
                if not received and replies is None:
                    return
                if not received:
                    raise Failure(f"the connection was ended after {count} replies of {replies}")
                self.door.received(received)
                count += self._take_all()
        if replies is not None and count > replies:
            raise Failure(f"{count} replies where {replies} were owed")

    def _send_some(self, left: memoryview, *, ending: bool) -> memoryview:
        try:
            return left[self._socket.send(left[: 1 << 18]) :]
        except BlockingIOError:
            return left
        except ConnectionError:
            if ending:
                return left[len(left) :]
            raise

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1 << 18)
        except ConnectionError:
            return b""

    def _take_all(self) -> int:
        count = 0
        while (message := self.door.take()) is not None:
            count += self._is_reply(json.loads(message))
        return count

    def _is_reply(self, message: Json) -> bool:
        """Whether it is one, and not an event.

        Raises:
            Failure: it is no message of this dialect, or the daemon failed.
        """
        for each in message if isinstance(message, list) else [message]:
            if self._standard != (each.get("jsonrpc") == "2.0"):
                raise Failure(f"not of this dialect: {str(each)[:300]}")
            if "method" not in each and ("id" not in each or ("result" in each) == ("error" in each)):
                raise Failure(f"neither a reply nor an event: {str(each)[:300]}")
            if "error" in each and each["error"]["message"] == "internal error":
                raise Failure("a message made the daemon fail inside")
            if each.get("id") == "question" and each.get("result") == {"status": "ready"}:
                self.answered = time.monotonic()
        return isinstance(message, list) or "method" not in message


def see(link: Link, messages: list[Framed], seconds: float) -> None:
    """Send messages, and wait for what is owed for them.

    Raises:
        Failure: it did not come in time.
    """
    data = b"".join(framed.data for framed in messages)
    if messages and messages[-1].ends:
        link.exchange(data, None, seconds)
        return
    replies = sum(verdict.replies > 0 for framed in messages for verdict in framed.verdicts)
    if link.door.midway:
        # What was begun is never finished: only what came before it is owed.
        link.exchange(data, replies, seconds)
        return
    question = link.question()
    began = time.monotonic()
    link.exchange(data + link.door.plain(question), replies + 1, seconds)
    if link.answered is None or link.answered - began > SENTINEL_SECONDS:
        raise Failure(f"the plain question was answered at {link.answered}, asked at {began}")
