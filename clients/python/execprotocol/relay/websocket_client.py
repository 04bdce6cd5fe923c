"""Open a WebSocket as a client: to a relay, and from the client library to a daemon.

The addresses of a host are tried one after the other. Redirects are not followed: the URL and the headers
hold credentials for one host. An attempt that fails or is cancelled leaves no socket. Through a proxy, the
WebSocket and its TLS are inside a tunnel (CONNECT, or SOCKS5).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult

from picows import WSListener, ws_connect
from python_socks import ProxyConnectionError, ProxyError, ProxyType

from execprotocol.daemon_thread import ADDRESS_SECONDS, addresses
from execprotocol.proxies import Proxy, ProxyFailed


async def connect_websocket(
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
    proxy: Proxy | None = None,
) -> WSListener | None:
    """Connect and upgrade.

    Args:
        make_listener: makes the object whose methods picows calls.
        url: `ws` or `wss`, with a host.
        seconds: for connect, TLS and upgrade together.
        headers: of the upgrade.
        context: for `wss`; None: trust the system's certificates.
        max_frame_bytes: a longer frame ends the socket.
        buffer_bytes: initial size of the read buffer.
        logger: for picows; None: its own, which logs the request at debug level.
        connected: called with the socket before anything is sent on it.
        proxy: to connect through; None: connect directly.

    Returns:
        The listener; None if the server hung up instead of answering.

    Raises:
        picows.WSHandshakeError: the answer was not an upgrade.
        ProxyFailed: the proxy cannot be reached, or opens no tunnel.
        ssl.SSLCertVerificationError, TimeoutError, OSError, ValueError: there is no connection.
    """
    async with asyncio.timeout(seconds):
        opened = await _socket_to(url, proxy)
        try:
            connected(opened)
            _, listener = await ws_connect(
                make_listener,
                url.geturl(),
                ssl_context=context,
                # The timeout above ends first: picows's own leaves an exception that is never retrieved.
                websocket_handshake_timeout=2 * seconds,
                logger_name=logger,
                max_frame_size=max_frame_bytes,
                read_buffer_init_size=buffer_bytes,
                extra_headers=headers,
                max_redirects=0,
                socket_factory=lambda _: opened,
                use_aiofastnet=False,
                proxy=None if proxy is None or proxy.is_socks else proxy.url,
            )
        except BaseException as error:
            _hang_up(opened)  # picows does not end a socket whose upgrade was cancelled
            if proxy is not None and isinstance(error, ProxyError):
                raise proxy.refusal(str(error)) from None
            raise
    return listener


async def _socket_to(url: SplitResult, proxy: Proxy | None) -> socket.socket:
    """A socket that is connected to the URL's host, or to the proxy."""
    if url.scheme not in ("ws", "wss") or not url.hostname:
        raise ValueError("no ws or wss URL with a host")
    port = url.port or (443 if url.scheme == "wss" else 80)
    if proxy is None:
        return await _connected_socket(url.hostname, port)
    try:
        if proxy.is_socks:
            return await _socks_socket(proxy, url.hostname, port)
        return await _connected_socket(proxy.host, proxy.port)
    except ProxyFailed:
        raise
    except TimeoutError:
        raise proxy.unreachable("no answer") from None
    except socket.gaierror as error:
        raise proxy.unreachable(f"its name cannot be resolved: {error.strerror}") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno is not None else str(error)
        raise proxy.unreachable(why) from None


async def _socks_socket(proxy: Proxy, host: str, port: int) -> socket.socket:
    """A socket that the proxy has connected to a host, whose name it has resolved."""
    from python_socks.async_.asyncio import Proxy as SocksProxy  # few programs need it

    _, _, _, _, address = (await addresses(proxy.host, proxy.port))[0]
    user, password = proxy.credentials or (None, None)
    socks = SocksProxy(ProxyType.SOCKS5, address[0], proxy.port, user, password, rdns=True)
    try:
        return await socks.connect(host, port)
    except ProxyConnectionError as error:
        raise OSError(error.errno, "") from None
    except ProxyError as error:
        raise proxy.refusal(str(error)) from None


async def _connected_socket(host: str, port: int) -> socket.socket:
    """A socket to the first address that answers, in the resolver's order."""
    loop = asyncio.get_running_loop()
    found = await addresses(host, port)
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
    # Not closed: an event loop may own the descriptor by now, and closes it at this end of file.
    if connected.fileno() >= 0:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
