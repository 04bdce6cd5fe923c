"""WebSockets: ws:// and wss://, with one message per WebSocket message. `docs/protocol.md`, "WebSocket".

picows does the framing: it is a dependency of the package anyway, and handles messages at half the cost of
`websockets` with TLS, at two thirds without. Only this module and those of relays import it, and only if the
URL needs them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult

from picows import WSFrame, WSHandshakeError, WSListener, WSMsgType, WSTransport

from execclient.connection.channel import CONNECT_SECONDS, Receiver
from execclient.connection.target import is_loopback
from execclient.errors import AccessDenied, ConnectionFailed, DaemonNotRunning, UntrustedServer
from execclient.fork_safety import withhold
from execprotocol.limits import MAX_WEBSOCKET_REPLY_BYTES, WEBSOCKET_FRAGMENT_BYTES
from execprotocol.proxies import Proxies, ProxyFailed
from execprotocol.relay import websocket_client

PING_SECONDS = 30.0
"""Between pings; the same as in the server."""

GRACE_SECONDS = 5.0
"""For the response to a second ping after a silence of `PING_SECONDS`: the client itself may have stood
still."""

BUFFER_BYTES = 256 << 10
"""The initial read buffer, and one read of a busy connection."""

SHOWN_CHARACTERS = 200
"""Of the body of an error response."""

UNAUTHORIZED, FORBIDDEN = 401, 403

TEXT: Final = WSMsgType.TEXT
BINARY: Final = WSMsgType.BINARY
CONTINUATION: Final = WSMsgType.CONTINUATION
CLOSE: Final = WSMsgType.CLOSE


class WebSocketChannel(WSListener):  # type: ignore[misc, unused-ignore]
    """A WebSocket after its upgrade."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._transport: WSTransport
        self._begun: bytearray | None = None
        self._reason: str | None = None
        self._received = True
        self._unsent = 0
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: bytes) -> None:
        """As `Channel.send`; a large message goes out in fragments."""
        if self._transport.is_disconnected:
            return
        if len(message) <= WEBSOCKET_FRAGMENT_BYTES:
            self._transport.send(TEXT, message)
            return
        view = memoryview(message)
        for start in range(0, len(view), WEBSOCKET_FRAGMENT_BYTES):
            piece = view[start : start + WEBSOCKET_FRAGMENT_BYTES]
            last = start + WEBSOCKET_FRAGMENT_BYTES >= len(view)
            self._transport.send(CONTINUATION if start else TEXT, piece, fin=last)

    def close(self) -> None:
        """As `Channel.close`."""
        if not self._stopped:
            self._stop()
            self._transport.send_close()
        self._transport.disconnect()

    def abort(self) -> None:
        """As `Channel.abort`."""
        self._stop()
        self._transport.disconnect(graceful=False)

    def _stop(self) -> None:
        self._stopped = True
        self._begun = None
        if self._timer is not None:
            self._timer.cancel()

    # -- calls of picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The server has accepted the upgrade."""
        self._transport = transport
        withhold(transport.underlying_transport)
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)
        self._receiver.channel_opened(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame arrived. If it is a ping, picows has responded already."""
        self._received = True
        if self._stopped:
            return
        kind = frame.msg_type
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._receiver.protocol_broken("the server sent a frame with an extension that was not agreed on")
        elif kind in (TEXT, BINARY):
            if self._begun is not None:
                self._receiver.protocol_broken("the server began a message within another")
            elif frame.fin:
                self._receiver.message_received(frame.get_payload_as_bytes())
            else:
                self._begun = bytearray(frame.get_payload_as_memoryview())
        elif kind == CONTINUATION:
            self._continued(frame)
        elif kind == CLOSE:
            payload = frame.get_payload_as_bytes()
            text = payload[2:].decode(errors="replace") or "without a reason"
            self._reason = f"the server closed it: {text} ({int.from_bytes(payload[:2])})"
            self.close()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The connection has ended, from either side."""
        self._stop()
        self._receiver.channel_lost(self._reason)

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """The send buffer has drained."""
        self._receiver.resume_writing()

    def _continued(self, frame: WSFrame) -> None:
        begun = self._begun
        if begun is None:
            self._receiver.protocol_broken("the server went on with a message that it had not begun")
        elif len(begun) + frame.payload_size > MAX_WEBSOCKET_REPLY_BYTES:
            self._receiver.protocol_broken(
                f"the server sent a message of more than {MAX_WEBSOCKET_REPLY_BYTES} bytes"
            )
        else:
            begun += frame.get_payload_as_memoryview()
            if frame.fin:
                self._begun = None
                self._receiver.message_received(bytes(begun))

    # -- pings

    def _ping(self) -> None:
        silent = not self._received
        self._received = False
        self._unsent = self._transport.underlying_transport.get_write_buffer_size()
        self._transport.send_ping()
        if silent:
            self._timer = self._loop.call_later(GRACE_SECONDS, self._grace_over)
        else:
            self._timer = self._loop.call_later(PING_SECONDS, self._ping)

    def _grace_over(self) -> None:
        unsent = self._transport.underlying_transport.get_write_buffer_size()
        # A ping behind a full send buffer has not left yet: while the buffer drains, silence means nothing.
        if self._received or 0 < unsent < self._unsent:
            self._ping()
            return
        self._reason = f"the server has not responded for {PING_SECONDS + GRACE_SECONDS:g} s"
        self.abort()


async def open_websocket(
    url: SplitResult,
    receiver: Receiver,
    *,
    headers: Mapping[str, str],
    context: ssl.SSLContext | None,
    proxies: Proxies | None = None,
) -> None:
    """Connect and upgrade.

    Args:
        url: `ws` or `wss`, with a host.
        receiver: of the messages.
        headers: of the upgrade.
        context: for `wss`; by default the system's certificates are trusted.
        proxies: chooses the proxy; None: connect directly.

    Raises:
        DaemonNotRunning: no server is listening on this machine.
        AccessDenied: the server requires another token, or refuses this client.
        UntrustedServer: the server's certificate is not valid.
        ConnectionFailed: any other failure.
    """
    shown = url.geturl()
    proxy = None
    try:
        proxy = None if proxies is None else proxies.of(url)
        channel = await websocket_client.connect_websocket(
            lambda: WebSocketChannel(receiver),
            url,
            seconds=CONNECT_SECONDS,
            headers=headers,
            context=context,
            max_frame_bytes=MAX_WEBSOCKET_REPLY_BYTES,
            buffer_bytes=BUFFER_BYTES,
            proxy=proxy,
        )
    except WSHandshakeError as error:
        raise _refused(shown, error) from None
    except ProxyFailed as error:
        raise ConnectionFailed(f"cannot connect to {shown}: {error}") from None
    except ConnectionRefusedError as error:
        if is_loopback(url.hostname or ""):
            raise DaemonNotRunning(
                f"no server is listening at {shown} ({error.strerror}). "
                f"Start a daemon with: execserver serve --listen {url.scheme}://{url.netloc}"
            ).about(errno=error.errno) from None
        failure = ConnectionFailed(f"cannot connect to {shown}: no server is listening there")
        raise failure.about(errno=error.errno) from None
    except ssl.SSLCertVerificationError as error:
        whose = shown if proxy is None or proxy.scheme != "https" else f"{shown}, or of {proxy.shown},"
        raise UntrustedServer(
            f"the certificate of {whose} is not valid: {error.verify_message}. If it is right and only "
            "unknown here, pass ssl=ssl.create_default_context(cafile=…)"
        ) from error
    except (OSError, ValueError) as error:
        failure = ConnectionFailed(f"cannot connect to {shown}: {_text(error)}")
        raise failure.about(errno=getattr(error, "errno", None)) from error
    if channel is None:
        raise ConnectionFailed(f"{shown} hung up instead of responding to the upgrade")


def _refused(url: str, error: WSHandshakeError) -> ConnectionFailed:
    if error.response is None:
        return ConnectionFailed(f"{url} is no WebSocket server: {error}")
    status = int(error.response.status)
    body = (error.raw_body or b"").decode(errors="replace").strip()[:SHOWN_CHARACTERS]
    text = f"{url} refused the connection with {status}" + (f" ({body})" if body else "")
    if status == UNAUTHORIZED:
        return AccessDenied(
            f"{text}: give the daemon's token with token=, token_file=, EXECSERVER_TOKEN or "
            "EXECSERVER_TOKEN_FILE",
            status,
        )
    if status == FORBIDDEN:
        names = (
            ": connect to its address instead of a name, or start the daemon with the name in --ws-host; no "
            "Origin header may be added on the way"
        )
        return AccessDenied(text if body else text + names, status)
    return ConnectionFailed(text)


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no response"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
