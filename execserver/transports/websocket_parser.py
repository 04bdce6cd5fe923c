"""WebSocket frames of a client, parsed and unmasked at C speed by picows; the only module that imports it.

picows is only used as a parser. It runs as a server on `_NullTransport`, which sends nothing: its answer to a
handshake that it is fed is dropped, because the real answer has been sent, and so are its close frames,
because a broken peer is dropped without one.

`WSProtocol` and its constructor are not in picows' documented interface, which owns the socket and the event
loop's transport. The parsers of websockets and wsproto are documented, and take 2.8 and 9.2 µs for a small
frame of a burst; this one takes 0.15, and a whole request 10. So the version is pinned, and
`tests/unit/transports/test_websocket_parser.py` fails with the next one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

from picows import WSFrame, WSListener, WSMsgType

from execserver.telemetry.logs import Logger

TEXT: Final = WSMsgType.TEXT
BINARY: Final = WSMsgType.BINARY
CONTINUATION: Final = WSMsgType.CONTINUATION
PING: Final = WSMsgType.PING
PONG: Final = WSMsgType.PONG
CLOSE: Final = WSMsgType.CLOSE

WebSocketFrame = WSFrame

BUFFER_BYTES = 16 << 10
"""The initial read buffer, and one read: a hundred small requests, or 2,700 empty frames. The buffer doubles
when it is full. Four times as much takes 10 MiB more for 200 connections, and is not faster."""

BULK_BYTES = 64 << 10
"""One read in the middle of a large frame. A read is parsed as a whole before other connections have a turn,
so it must not grow with the buffer."""

_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)

log = Logger()
_protocol: Any = importlib.import_module("picows.picows").__dict__["WSProtocol"]  # not in the type stub
_strategy: Any = importlib.import_module("picows").WSAutoPingStrategy.PING_PERIODICALLY


class FrameParser:
    """The incoming side of one WebSocket connection.

    Args:
        max_frame_bytes: the largest payload of one data frame.
        on_frame: called with an object of picows and each frame; payloads are only valid during the call.
        on_error: called when the peer breaks the protocol or exceeds the size. No bytes may be fed
            afterwards.
    """

    def __init__(
        self,
        max_frame_bytes: int,
        on_frame: Callable[[object, WebSocketFrame], None],
        on_error: Callable[[], None],
    ) -> None:
        listener = _Listener(on_frame)
        transport = _NullTransport(on_error)
        self._picows = _protocol(
            None, None, False, lambda request: listener, _Silence(), True, None,
            False, None, None, _strategy, False, max_frame_bytes, None, BUFFER_BYTES,
        )  # fmt: skip
        self._picows.connection_made(transport)
        self.feed(_HANDSHAKE)
        transport.handshake_done = True

    @property
    def room(self) -> int:
        """The free bytes of the read buffer, which grows with the messages and never shrinks."""
        return len(self._picows.get_buffer(-1))

    def read(self, fd: int, most: int) -> int:
        """Read at most `most` bytes from a descriptor and parse them; return their number, 0 at the end of
        input.
        """
        count = os.readv(fd, [self._picows.get_buffer(-1)[:most]])
        if count:
            self._picows.buffer_updated(count)
        return count

    def feed(self, data: bytes) -> None:
        """Parse bytes that the caller has read."""
        rest = memoryview(data)
        while rest:
            room = self._picows.get_buffer(-1)
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self._picows.buffer_updated(count)


class _Listener(WSListener):
    """Calls the given function directly: one more call for each frame is a tenth of the cost of a frame."""

    def __init__(self, on_ws_frame: Callable[[object, WebSocketFrame], None]) -> None:
        super().__init__()
        vars(self)["on_ws_frame"] = on_ws_frame


class _NullTransport:
    """The transport and socket for picows: nothing is sent."""

    def __init__(self, on_error: Callable[[], None]) -> None:
        self._on_error = on_error
        self.handshake_done = False

    def get_extra_info(self, name: str) -> object:
        """This object as the socket; None for other names."""
        return self if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        """Never 0, because picows would write to the descriptor itself."""
        return 1

    def write(self, data: object) -> None:
        """Report a broken peer: after the handshake, picows writes nothing but close frames."""
        if self.handshake_done:
            self._on_error()

    writelines = write

    def fileno(self) -> int:
        """No descriptor."""
        return -1

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""

    def getsockopt(self, *_: object) -> int:
        """Any value."""
        return 0

    def close(self) -> None:
        """Do nothing: `on_error` drops the channel."""

    abort = close


class _Silence:
    """The logger for picows: drops its reports about peers, and passes on exceptions of the server's own
    code.
    """

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """No."""
        return False

    def debug(self, *_: object) -> None:
        """Do nothing."""

    info = warning = error = log = debug

    def exception(self, text: str, *_: object) -> None:
        """Log an exception of the listener."""
        log.exception("frame handler failed", detail=text)
