"""A WebSocket to the relay, as both peers dial it: whole binary messages, each one frame of the relay.

1. The URL is the credential: it appears in no message, no log and no exception, only its host does.
2. Redirects are not followed, and no proxy of the environment is asked.
3. What is no binary message is dropped, and the socket goes on; a message that is too long ends it.
4. A socket that was told as opened is told as lost, once, whoever ended it.

picows does the framing, as for `ws:` in the client. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import urlsplit

from picows import WSCloseCode, WSFrame, WSHandshakeError, WSListener, WSMsgType, WSTransport

from execprotocol.relay.contract import REJECTION_REASON_HEADER
from execprotocol.relay.frames import MAX_FRAME_BYTES, printable
from execprotocol.relay.websocket_client import connect_websocket

DIAL_SECONDS = 10.0
"""For connect, TLS and upgrade together. As the stock peers."""

PING_SECONDS = 30.0
"""Between pings. As the stock peers."""

UNANSWERED_PINGS = 2
"""So many intervals after a ping that nothing answered, the socket is given up: 60 s, as the stock peers.
Counted and not timed, so that a process that stood still hears what came meanwhile first."""

CLOSE_SECONDS = 5.0
"""For what is unsent and the relay's answer, once we close; then the socket is cut."""

HIGH_BYTES, LOW_BYTES = 256 << 10, 64 << 10
"""Unsent bytes above which a socket is full, and at which it has room again: a few records, so that a
stream that has only a little to say does not stand long behind one that has much."""

UNSENT_BYTES = 128 << 10
"""What the system may hold of ours before it is on its way: two of the largest records. It would take
megabytes, and a small answer would stand behind them: half a second, on a line of 10 MB/s."""

BUFFER_BYTES = 128 << 10
"""The read buffer at first: two of the largest records."""

SHOWN_CHARACTERS = 100
"""Of a reason that somebody else gave."""

BINARY: Final = WSMsgType.BINARY
TEXT: Final = WSMsgType.TEXT
CONTINUATION: Final = WSMsgType.CONTINUATION
CLOSE: Final = WSMsgType.CLOSE

_QUIET = logging.Logger(__name__, logging.CRITICAL + 1)
"""picows would log the request, and with it the ticket."""


class DialRefused(Exception):
    """The relay answered the upgrade with something else.

    Attributes:
        status: of its HTTP response.
        reason: the word in its header for that; empty when there is none.
    """

    def __init__(self, shown: str, status: int, reason: str) -> None:
        super().__init__(f"{shown} refused the WebSocket with {status}" + (f" ({reason})" if reason else ""))
        self.status = status
        self.reason = reason


class DialFailed(Exception):
    """No answer came about.

    Attributes:
        untrusted: whether it is the relay's certificate that does not hold.
    """

    def __init__(self, message: str, *, untrusted: bool = False) -> None:
        super().__init__(message)
        self.untrusted = untrusted


class FrameListener(Protocol):
    """Who is told what happens on a socket, in this order."""

    def socket_opened(self, socket: FrameSocket) -> None:
        """Once, and first; frames may be sent."""

    def frame_received(self, message: bytes) -> None:
        """A binary message came, of at most 256 KiB."""

    def room(self) -> None:
        """The socket was full, and is no longer."""

    def socket_lost(self, reason: str) -> None:
        """Once, and last: nothing goes out or comes in any more. `reason` is for people, never empty."""


class FrameSocket(WSListener):  # type: ignore[misc, unused-ignore]
    """A socket to the relay, from its upgrade until it is lost. `dial` makes one."""

    def __init__(self, listener: FrameListener) -> None:
        super().__init__()
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: WSTransport
        self._begun: bytearray | None = None
        self._begun_text = False
        self._reason = ""
        self._full = False
        self._paused = False
        self._stopped = False
        self._heard = True
        self._silent_pings = 0
        self._sent = 0
        self._progress = 0
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.Task[None] | None = None

    @property
    def carrier(self) -> asyncio.BaseTransport:
        """What it goes over, once it is open."""
        carrier: asyncio.BaseTransport = self._transport.underlying_transport
        return carrier

    @property
    def is_full(self) -> bool:
        """Whether more than 256 KiB are unsent; `room` is told once it is below 64 KiB again."""
        return self._full

    @property
    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        if self._transport.is_disconnected:
            return 0
        size: int = self._transport.underlying_transport.get_write_buffer_size()
        return size

    def send(self, frame: bytes) -> None:
        """Send a frame, or keep it until it can be. Dropped after the end."""
        if self._stopped:
            return
        self._sent += len(frame)
        self._transport.send(BINARY, frame)

    def pause_reading(self) -> None:
        """Read no more; what was read already, up to some frames, is still told."""
        if not self._stopped and not self._paused:
            self._paused = True
            self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._stopped and self._paused:
            self._paused = False
            self._heard = True  # not hearing anything was our own doing
            self._transport.underlying_transport.resume_reading()

    def close(self, code: int, reason: str) -> None:
        """Send what is unsent and a close frame, and end once the relay has answered it, 5 s later at most.
        Tells nothing but the end.

        Args:
            code: of RFC 6455.
            reason: of at most 123 bytes.
        """
        if self._stopped:
            return
        # A transport that does not read does not see the other side's end either.
        self.resume_reading()
        self._stop(f"we closed it: {reason}")
        self._transport.send_close(WSCloseCode(code), reason)
        # Going on to read until the relay has seen that: a socket that is closed while something unread is in
        # it is reset by the system, and what is still on the way from us is thrown away.
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._cut)

    def abort(self) -> None:
        """End at once."""
        self._stop("we dropped it")
        self._cut()

    def _stop(self, reason: str) -> None:
        self._stopped = True
        self._begun = None
        self._reason = self._reason or reason
        if self._timer is not None:
            self._timer.cancel()

    # -- what picows calls

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The relay has agreed."""
        self._transport = transport
        transport.underlying_transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)
        self._listener.socket_opened(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A WebSocket frame came; picows has answered it already if it was a ping."""
        self._heard = True
        kind = frame.msg_type
        if self._stopped or transport.is_close_frame_sent:
            # picows, too, closes it, and then goes on reading for a moment.
            if kind == CLOSE:
                transport.disconnect()
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._break("the relay sent a frame with an extension that was not agreed on")
        elif kind == BINARY and frame.fin and self._begun is None:
            self._listener.frame_received(frame.get_payload_as_bytes())
        elif kind in (BINARY, TEXT):
            if self._begun is not None:
                self._break("the relay began a message within another")
            elif not frame.fin:
                self._begun = bytearray(frame.get_payload_as_memoryview())
                self._begun_text = kind == TEXT
        elif kind == CONTINUATION:
            self._continued(frame)
        elif kind == CLOSE:
            payload = frame.get_payload_as_bytes()
            text = (
                printable(payload[2:].decode(errors="replace"), SHOWN_CHARACTERS).strip()
                or "without a reason"
            )
            code = int.from_bytes(payload[:2])
            self._stop(f"the relay closed it: {text}" + (f" ({code})" if code else ""))
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
            self._timer = self._loop.call_later(CLOSE_SECONDS, self._cut)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The connection is over, from whichever side."""
        ours = transport.close_handshake
        if not self._stopped and ours is not None and ours.sent is not None:
            # picows closed it for a breach of RFC 6455. Its exception wants to be fetched by somebody.
            broken = ours.sent.reason or "the relay broke the WebSocket protocol"
            self._reason = printable(broken, SHOWN_CHARACTERS).strip()
            self._end = self._loop.create_task(transport.wait_disconnected())
            self._end.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._stop("the connection to the relay broke")
        self._listener.socket_lost(self._reason)

    def pause_writing(self) -> None:
        """The system does not take what we send."""
        self._full = True

    def resume_writing(self) -> None:
        """It does again."""
        self._full = False
        if not self._stopped:
            self._listener.room()

    def _continued(self, frame: WSFrame) -> None:
        begun = self._begun
        if begun is None:
            self._break("the relay went on with a message that it had not begun")
        elif len(begun) + frame.payload_size > MAX_FRAME_BYTES:
            self._break(f"the relay sent a message of more than {MAX_FRAME_BYTES} bytes")
        else:
            begun += frame.get_payload_as_memoryview()
            if frame.fin:
                self._begun = None
                if not self._begun_text:
                    self._listener.frame_received(bytes(begun))

    def _break(self, reason: str) -> None:
        self._stop(reason)
        self._cut()

    def _cut(self) -> None:
        if not self._transport.is_disconnected:  # asyncio's transports do not take it twice
            self._transport.disconnect(graceful=False)

    # -- is anybody there?

    def _ping(self) -> None:
        # Behind much that is being sent a ping has not left yet: while that moves, silence says nothing.
        unsent = self.unsent
        progress = self._sent - unsent
        alive = self._heard or self._paused or (unsent > 0 and progress > self._progress)
        self._silent_pings = 0 if alive else self._silent_pings + 1
        if self._silent_pings >= UNANSWERED_PINGS:
            self._break(f"the relay has not answered a ping for {UNANSWERED_PINGS * PING_SECONDS:g} s")
            return
        self._heard, self._progress = False, progress
        self._transport.send_ping()
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)


async def dial(
    url: str,
    listener: FrameListener,
    *,
    ssl_context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> FrameSocket:
    """Connect and upgrade, within 10 s.

    Args:
        url: as the registry handed it out: `ws` or `wss`.
        listener: told of what comes.
        ssl_context: for `wss`; by default the system's certificates are believed.
        headers: of the upgrade.

    Raises:
        DialRefused: the relay answered, and does not let us in.
        DialFailed: anything else that kept us from connecting.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    try:
        opened = await connect_websocket(
            lambda: FrameSocket(listener),
            parts,
            seconds=DIAL_SECONDS,
            headers=headers,
            context=ssl_context,
            max_frame_bytes=MAX_FRAME_BYTES,
            buffer_bytes=BUFFER_BYTES,
            logger=_QUIET,
            connected=_send_soon,
        )
    except WSHandshakeError as error:
        raise _refused(shown, error) from None
    except ssl.SSLCertVerificationError as error:
        raise DialFailed(
            f"the certificate of {shown} does not hold: {error.verify_message}", untrusted=True
        ) from None
    except TimeoutError:
        raise DialFailed(f"cannot connect to {shown}: no answer within {DIAL_SECONDS:g} s") from None
    except (OSError, ValueError) as error:
        raise DialFailed(f"cannot connect to {shown}: {_text(error)}") from None
    if not isinstance(opened, FrameSocket):
        raise DialFailed(f"{shown} hung up instead of answering the upgrade")
    return opened


def _send_soon(connected: socket.socket) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _refused(shown: str, error: WSHandshakeError) -> Exception:
    if error.response is None:
        return DialFailed(f"{shown} is no WebSocket server")
    reason = error.response.headers.get(REJECTION_REASON_HEADER) or ""
    return DialRefused(shown, int(error.response.status), printable(reason, SHOWN_CHARACTERS).strip())


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio puts its own words in its place
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
