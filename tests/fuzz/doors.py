"""How messages stand on a connection, well and badly framed, and how replies are found in what comes back."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from execserver.rpc.framing import Framer, FramingError, HeaderFramer, LineFramer
from tests.fuzz.verdicts import Judge, Verdict
from tests.support.framing import BINARY, CLOSE, PING, TEXT, Framing, Headers, Lines, WebSocket, frame

BADLY_FRAMED = 0.03
"""Share of the messages whose framing is changed too."""


@dataclass
class Framed:
    """Bytes to be sent, and what is owed for each message that the daemon finds in them."""

    data: bytes
    verdicts: list[Verdict] = field(default_factory=list)
    ends: bool = False
    """Whether the daemon ends the connection for them."""


class Door(ABC):
    """One connection's framing, in both directions."""

    def __init__(self, judge: Judge, chance: random.Random, framing: Framing) -> None:
        self._judge = judge
        self.chance = chance
        self._framing = framing

    @abstractmethod
    def frame(self, message: bytes) -> Framed | None:
        """A message as it is sent; None when it must not be."""

    def plain(self, message: bytes) -> bytes:
        """A message framed as it should be."""
        return self._framing.encode(message)

    def take(self) -> bytes | None:
        """The next whole message of what was received."""
        return self._framing.take()

    @property
    def midway(self) -> bool:
        """Whether the daemon is left in the middle of a message, so that nothing after it would be heard."""
        return False

    def received(self, data: bytes) -> None:
        """Bytes that came."""
        self._framing.feed(data)

    def _judged(self, framed: Framed, messages: list[bytes | bytearray]) -> Framed | None:
        for message in messages:
            verdict = self._judge.verdict(message)
            if verdict is None:
                return None
            framed.verdicts.append(verdict)
            if verdict.ends:
                framed.ends = True
                break
        return framed


class StreamDoor(Door):
    """Lines and headers: a framer of the daemon's own follows what is sent."""

    def __init__(self, judge: Judge, chance: random.Random, framing: Framing, framer: Framer) -> None:
        super().__init__(judge, chance, framing)
        self._framer = framer
        self._clean = True

    @property
    def midway(self) -> bool:
        """See `Door`."""
        return not self._clean

    def frame(self, message: bytes) -> Framed | None:
        """See `Door`."""
        badly = self.chance.random() < BADLY_FRAMED
        data = self._badly(message) if badly else self.plain(message)
        if self._clean and not badly and self._is_one(message):
            return self._judged(Framed(data), [message])
        return self._followed(data)

    def _followed(self, data: bytes) -> Framed | None:
        framer = copy.deepcopy(self._framer)
        framed = Framed(data)
        try:
            messages = framer.feed(data)
        except FramingError as error:
            # Headers are answered before the end, lines are not.
            messages, framed.ends = error.messages, True
        judged = self._judged(framed, messages)
        # Nothing follows on a connection that ends, and the message may still be left out.
        if judged is not None and not judged.ends:
            self._framer = framer
            self._clean = self._is_clean(framer)
        return judged

    @abstractmethod
    def _is_one(self, message: bytes) -> bool:
        """Whether these bytes, well framed, are one message and exactly these bytes."""

    @abstractmethod
    def _is_clean(self, framer: Framer) -> bool:
        """Whether nothing of a message was begun."""

    @abstractmethod
    def _badly(self, message: bytes) -> bytes:
        """The message in a framing that is changed somehow."""


class LineDoor(StreamDoor):
    """A message a line."""

    def __init__(self, judge: Judge, chance: random.Random) -> None:
        super().__init__(judge, chance, Lines(), LineFramer())

    def _is_one(self, message: bytes) -> bool:
        return b"\n" not in message and b"\r" not in message and bool(message.strip())

    def _is_clean(self, framer: Framer) -> bool:
        assert isinstance(framer, LineFramer)
        return not framer._begun

    def _badly(self, message: bytes) -> bytes:
        forms = (
            b"%b\r\n",
            b"\n\n%b\n",
            b" \t%b \n",
            b"%b\r",
            b"\xef\xbb\xbf%b\n",
            b"%b",
            b"\0%b\n",
            b"%b\n\r\n",
        )
        return self.chance.choice(forms) % message


class HeaderDoor(StreamDoor):
    """A message behind its `Content-Length`."""

    def __init__(self, judge: Judge, chance: random.Random) -> None:
        super().__init__(judge, chance, Headers(), HeaderFramer())

    def _is_one(self, message: bytes) -> bool:
        return True

    def _is_clean(self, framer: Framer) -> bool:
        assert isinstance(framer, HeaderFramer)
        return not framer._headers and not framer._missing

    def _badly(self, message: bytes) -> bytes:
        size = len(message)
        wrong = self.chance.choice((0, 1, size + 1, size - 1, size + 2, 67108865, 10**30, -1))
        heads = (
            b"content-length:%d\r\n\r\n" % size,
            b"CONTENT-LENGTH: %d  \r\nX-Other: \xff\r\n\r\n" % size,
            b"Content-Type: application/vscode-jsonrpc; charset=utf8\r\nContent-Length: %d\r\n\r\n" % size,
            b"Content-Length: %d\r\nContent-Type: text/plain; charset=latin-1\r\n\r\n" % size,
            b"Content-Length: %d\r\n\r\n" % wrong,
            b"Content-Length: %d\r\n\r\n" % wrong,
            b"Content-Length: %d\n\n" % size,
            b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (size, size),
            b"Content-Length: 0x%x\r\n\r\n" % size,
            b"Content-Length: \r\n\r\n",
            b"Content-Length: %d\r\nX: %b\r\n\r\n" % (size, b"y" * self.chance.choice((3000, 5000))),
            b"",
            b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
        )
        return self.chance.choice(heads) + message


class WebSocketDoor(Door):
    """A message a WebSocket message."""

    def __init__(self, judge: Judge, chance: random.Random) -> None:
        super().__init__(judge, chance, WebSocket())

    def frame(self, message: bytes) -> Framed | None:
        """See `Door`."""
        if self.chance.random() >= BADLY_FRAMED:
            return self._judged(Framed(self.plain(message)), [message])
        if self.chance.random() < 0.3:
            return Framed(self._fatal(message), ends=True)
        return self._judged(Framed(self._otherwise(message)), [message])

    def _otherwise(self, message: bytes) -> bytes:
        """The same message, in frames of another kind."""
        cut = self.chance.randrange(len(message) + 1)
        kind = self.chance.randrange(3)
        if kind == 0:
            return frame(BINARY, message)
        middle = frame(PING, b"p" * self.chance.randrange(126)) if kind == 1 else frame(0, b"", fin=False)
        return frame(TEXT, message[:cut], fin=False) + middle + frame(0, message[cut:])

    def _fatal(self, message: bytes) -> bytes:
        """A frame that ends a connection."""
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: b"\x81\x05hello",
            lambda: frame(3, message),
            lambda: frame(11, b"x"),
            lambda: frame(CLOSE, b"\x03\xe8"),
            lambda: b"\x81\xff" + (2**40).to_bytes(8) + b"mask" + message,
            lambda: frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"),
            lambda: frame(0, message),
            lambda: frame(PING, b"x", fin=False),
        )
        return self.chance.choice(makers)()
