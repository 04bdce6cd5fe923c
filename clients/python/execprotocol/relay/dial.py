"""Dial a relay, for both peers: a WebSocket of binary messages, each of them one frame of the relay.

1. The URL is the credential: messages, logs and exceptions show its host only.
2. Redirects are not followed.
3. Other messages than binary ones are dropped; a message that is too long ends the socket.
4. The listener of a socket is called once when it opens and once when it is lost, whichever side ended it.

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

from execprotocol.proxies import Proxies, ProxyFailed
from execprotocol.relay.contract import REJECTION_REASON_HEADER
from execprotocol.relay.frames import MAX_FRAME_BYTES, printable
from execprotocol.relay.websocket_client import connect_websocket

DIAL_SECONDS = 10.0
"""For connect, TLS and upgrade together. As the stock peers."""

PING_SECONDS = 30.0
"""Between pings. As the stock peers."""

UNANSWERED_PINGS = 2
"""Intervals without any data after a ping until the socket is dropped: 60 s, as the stock peers. Counted and
not timed, so that a process that was stopped first reads the data that arrived meanwhile."""

CLOSE_SECONDS = 5.0
"""For unsent data and the relay's answer after `close`; then the socket is dropped."""

HIGH_BYTES, LOW_BYTES = 256 << 10, 64 << 10
"""Unsent bytes above which a socket is full, and below which it has room again: a few records, so that a
stream with little to send does not wait long for one with much."""

UNSENT_BYTES = 128 << 10
"""Limit of unsent bytes in the system's buffer: two of the largest records. By default it takes megabytes,
and a small answer would wait for them: half a second at 10 MB/s."""

BUFFER_BYTES = 128 << 10
"""Initial size of the read buffer: two of the largest records."""

SHOWN_CHARACTERS = 100
"""Limit for the relay's reasons in errors."""

BINARY: Final = WSMsgType.BINARY
TEXT: Final = WSMsgType.TEXT
CONTINUATION: Final = WSMsgType.CONTINUATION
CLOSE: Final = WSMsgType.CLOSE

_QUIET = logging.Logger(__name__, logging.CRITICAL + 1)
"""picows would log the request, and with it the ticket."""


class DialRefused(Exception):
    """The relay refused the upgrade.

    Attributes:
        status: of its HTTP response.
        reason: the word in its rejection header; empty if there is none.
    """

    def __init__(self, shown: str, status: int, reason: str) -> None:
        super().__init__(f"{shown} refused the WebSocket with {status}" + (f" ({reason})" if reason else ""))
        self.status = status
        self.reason = reason


class DialFailed(Exception):
    """The relay did not answer.

    Attributes:
        untrusted: whether the relay's certificate is not trusted.
    """

    def __init__(self, message: str, *, untrusted: bool = False) -> None:
        super().__init__(message)
        self.untrusted = untrusted


class FrameListener(Protocol):
    """Receives the events of a socket, in this order."""

    def socket_opened(self, socket: FrameSocket) -> None:
        """Called once, first. Frames may be sent from now on."""

    def frame_received(self, message: bytes) -> None:
        """Called with each binary message, of at most 256 KiB."""

    def room(self) -> None:
        """Called when the socket was full and has room again."""

    def socket_lost(self, reason: str) -> None:
        """Called once, last. `reason` is for people, and never empty."""


class FrameSocket(WSListener):  # type: ignore[misc, unused-ignore]
    """A socket to the relay, from its upgrade until it is lost. `dial` creates it."""

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
    def transport(self) -> asyncio.BaseTransport:
        """The transport below the WebSocket, once it is open."""
        transport: asyncio.BaseTransport = self._transport.underlying_transport
        return transport

    @property
    def is_full(self) -> bool:
        """Whether more than 256 KiB are unsent. `room` is called once fewer than 64 KiB are."""
        return self._full

    @property
    def unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        if self._transport.is_disconnected:
            return 0
        size: int = self._transport.underlying_transport.get_write_buffer_size()
        return size

    def send(self, frame: bytes) -> None:
        """Queue a frame. A no-op after the end."""
        if self._stopped:
            return
        self._sent += len(frame)
        self._transport.send(BINARY, frame)

    def pause_reading(self) -> None:
        """Stop reading. A few frames that were read already are still delivered."""
        if not self._stopped and not self._paused:
            self._paused = True
            self._transport.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._stopped and self._paused:
            self._paused = False
            self._heard = True  # the silence was caused here
            self._transport.underlying_transport.resume_reading()

    def close(self, code: int, reason: str) -> None:
        """Send unsent data and a close frame, and end once the relay has answered it, at most 5 s later. Of
        the listener only `socket_lost` is called from now on.

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
        # Reading goes on until the relay has answered: the system resets a socket that is closed with unread
        # data in it, and sent data could be lost.
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
        """The WebSocket is open."""
        self._transport = transport
        transport.underlying_transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)
        self._listener.socket_opened(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Process a WebSocket frame; picows has answered it already if it was a ping."""
        self._heard = True
        kind = frame.msg_type
        if self._stopped or transport.is_close_frame_sent:
            # picows may close the socket, too, and then reads on for a moment.
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
        """The connection has ended."""
        ours = transport.close_handshake
        if not self._stopped and ours is not None and ours.sent is not None:
            # picows closed it for a violation of RFC 6455. Its exception has to be retrieved.
            broken = ours.sent.reason or "the relay violated the WebSocket protocol"
            self._reason = printable(broken, SHOWN_CHARACTERS).strip()
            self._end = self._loop.create_task(transport.wait_disconnected())
            self._end.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._stop("the connection to the relay broke")
        self._listener.socket_lost(self._reason)

    def pause_writing(self) -> None:
        """The system does not take more data."""
        self._full = True

    def resume_writing(self) -> None:
        """The system takes data again."""
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

    # -- pings

    def _ping(self) -> None:
        # A ping waits behind unsent data: while that moves, silence does not mean that the relay is dead.
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
    proxies: Proxies | None = None,
) -> FrameSocket:
    """Connect and upgrade, within 10 s.

    Args:
        url: from the registry, `ws` or `wss`.
        listener: receives the events of the socket.
        ssl_context: for `wss`; None: trust the system's certificates.
        headers: of the upgrade.
        proxies: chooses the proxy; None: connect directly.

    Raises:
        DialRefused: the relay refused the upgrade.
        DialFailed: any other failure to connect.
    """
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    proxy = None
    try:
        proxy = None if proxies is None else proxies.of(parts)
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
            proxy=proxy,
        )
    except WSHandshakeError as error:
        raise _refused(shown, error) from None
    except ssl.SSLCertVerificationError as error:
        whose = shown if proxy is None or proxy.scheme != "https" else f"{shown}, or of {proxy.shown},"
        raise DialFailed(
            f"the certificate of {whose} does not hold: {error.verify_message}", untrusted=True
        ) from None
    except ProxyFailed as error:
        raise DialFailed(f"cannot connect to {shown}: {error}") from None
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
        return os.strerror(error.errno)  # asyncio replaces the system's text
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
