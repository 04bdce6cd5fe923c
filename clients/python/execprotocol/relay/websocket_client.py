"""Opening a WebSocket as the one who dials: to a relay, and the client's to a daemon.

Addresses of a host are tried one after the other, redirects are not followed (what is in the URL or the
headers is for the one whom it was given for), and an attempt that fails or is given up leaves no socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult

from picows import WSListener, ws_connect

from execprotocol.daemon_thread import ADDRESS_SECONDS, addresses


async def open_websocket(
    make_listener: Callable[[], WSListener],
    url: SplitResult,
    *,
    seconds: float,
    headers: Mapping[str, str],
    context: ssl.SSLContext | None,
    max_frame_bytes: int,
    buffer_bytes: int,
    logger: logging.Logger | None = None,
    connected: Callable[[socket.socket], None] = lambda opened: None,
) -> WSListener | None:
    """Connect and upgrade.

    Args:
        make_listener: makes what picows calls.
        url: `ws` or `wss`, with a host.
        seconds: for connect, TLS and upgrade together.
        headers: of the upgrade.
        context: for `wss`; by default the system's certificates are believed.
        max_frame_bytes: a longer frame ends the socket.
        buffer_bytes: the read buffer at first.
        logger: picows's; by default its own, which tells the request at debug.
        connected: told of the socket before anything is sent on it.

    Returns:
        The listener; None when the other end hung up instead of answering.

    Raises:
        picows.WSHandshakeError: the answer was something else than an upgrade.
        ssl.SSLCertVerificationError, TimeoutError, OSError, ValueError: no connection came about.
    """
    opened: list[socket.socket] = []

    async def connect(_: object) -> socket.socket:
        opened.append(await _connected_socket(url))
        connected(opened[0])
        return opened[0]

    try:
        async with asyncio.timeout(seconds):
            _, listener = await ws_connect(
                make_listener,
                url.geturl(),
                ssl_context=context,
                # Ours ends first: of its own picows leaves an exception that nobody fetches.
                websocket_handshake_timeout=2 * seconds,
                logger_name=logger,
                max_frame_size=max_frame_bytes,
                read_buffer_init_size=buffer_bytes,
                extra_headers=headers,
                max_redirects=0,
                socket_factory=connect,
                use_aiofastnet=False,
            )
    except BaseException:
        # picows does not end what it was not allowed to finish.
        for each in opened:
            _hang_up(each)
        raise
    return listener


async def _connected_socket(url: SplitResult) -> socket.socket:
    """A connected socket to the first address that answers, in the resolver's order."""
    if url.scheme not in ("ws", "wss") or not url.hostname:
        raise ValueError("no ws or wss URL with a host")
    loop = asyncio.get_running_loop()
    found = await addresses(url.hostname, url.port or (443 if url.scheme == "wss" else 80))
    failure: Exception = OSError("no address")
    for number, (family, kind, protocol, _, address) in enumerate(found, 1):
        attempt = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            async with asyncio.timeout(ADDRESS_SECONDS if number < len(found) else None):
                await loop.sock_connect(attempt, address)
        except (OSError, TimeoutError) as error:
            attempt.close()
            failure = error
        except BaseException:
            attempt.close()
            raise
        else:
            return attempt
    raise failure


def _hang_up(connected: socket.socket) -> None:
    # Not closed: its descriptor may be with an event loop by now, which closes it at this end of file.
    if connected.fileno() >= 0:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
