"""A peer that floods a server, as a process of its own: `python -m tests.support.flood URL KIND [TOKEN]`.

It says `flooding` when the first rounds have left, and goes on until it is killed. A server that ends the
connection ends the process, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.support.framing import PING, PONG, TEXT, frame, with_headers
from tests.support.wire import Client, connect_unix, connect_ws

CONTINUED = 0
PIECE = 1 << 20


def _many(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    return frame(opcode, payload, fin=fin) * 100_000


def _message(params: bytes) -> bytes:
    return b'{"id":1,"method":"process/start","params":%b}' % params


def _fragments(message: bytes) -> bytes:
    pieces = [message[start : start + PIECE] for start in range(0, len(message), PIECE)]
    return b"".join(
        frame(CONTINUED if number else TEXT, piece, fin=number == len(pieces) - 1)
        for number, piece in enumerate(pieces)
    )


def _members(count: int) -> bytes:
    return _message(b"{%b}" % b",".join(b'"%d":1' % number for number in range(count)))


FRAMES: dict[str, Callable[[], bytes]] = {
    "empty fragments": lambda: _many(CONTINUED, b"", fin=False),
    "fragments of a byte": lambda: _many(CONTINUED, b" ", fin=False),
    "pings of a peer that does not read": lambda: _many(PING, b"x" * 125),
    "pongs": lambda: _many(PONG, b""),
    "a large message, then tiny frames": lambda: frame(TEXT, b"{" + b"x" * 200_000) + 3 * _many(PING, b""),
    "messages that are no JSON": lambda: _many(TEXT, b"{"),
    "objects without number": lambda: _fragments(_message(b"[%b0]" % (b"{}," * (8 << 20)))),
    "members without number": lambda: _fragments(_members(2_000_000)),
}
"""On WebSockets: what is sent over and over. Fragments continue a message that has begun."""

LINES: dict[str, Callable[[], bytes]] = {
    "lines of nothing": lambda: b"\n" * PIECE,
    "lines of a byte": lambda: b"{\n" * 50_000,
    "headers without end": lambda: (b"a:\r\n" * 1000 + with_headers(b"")) * 50,
    "strings without number": lambda: _message(b"[%b0]" % (b'"",' * (8 << 20))) + b"\n",
}
"""The same on Unix sockets."""


def _connect(url: str, kind: str, token: str) -> Client:
    if kind in FRAMES:
        return connect_ws(url, {"Authorization": f"Bearer {token}"} if token else None)
    headers = kind.startswith("headers")
    return connect_unix(url.removeprefix("unix://"), headers=headers, standard=headers)


def main(url: str, kind: str, token: str = "") -> None:
    """Flood."""
    client = _connect(url, kind, token).handshake()
    if kind.endswith("does not read"):
        client.pause()
    if "fragments" in kind:
        client.transport.send_bytes(frame(TEXT, b"[", fin=False))
    flood = (FRAMES | LINES)[kind]()
    for _ in range(2):  # then the server has had one, and its buffers have grown
        client.transport.send_bytes(flood)
    print("flooding", flush=True)
    while not client.ended:
        client.transport.send_bytes(flood)


if __name__ == "__main__":
    main(*sys.argv[1:])
