"""One connection to the SOCKS5 proxy (RFC 1928): CONNECT without authentication."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import struct

from execserver.network.addresses import Host, HostError, parse_host
from execserver.network.dialing import Dialer, UpstreamProxyError
from execserver.network.judge import DeniedError, Target
from execserver.network.resolver import ResolveError
from execserver.network.rules import ProxyLimits
from execserver.network.tunnel import IdleWatch, TrafficError, Tunnel, reset_on_close

_VERSION = 5
_NO_AUTHENTICATION, _NO_METHOD = 0, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4

_GRANTED, _FAILED, _NOT_ALLOWED = 0, 1, 2
_NETWORK_UNREACHABLE, _HOST_UNREACHABLE, _REFUSED, _EXPIRED = 3, 4, 5, 6
_NO_COMMAND, _NO_ADDRESS_TYPE = 7, 8
_REPLIES = {
    errno.ENETUNREACH: _NETWORK_UNREACHABLE,
    errno.EHOSTUNREACH: _HOST_UNREACHABLE,
    errno.ECONNREFUSED: _REFUSED,
    errno.ETIMEDOUT: _EXPIRED,
}


class _RefusedError(Exception):
    def __init__(self, reply: int) -> None:
        super().__init__(reply)
        self.reply = reply


class SocksConnection:
    """Serves one connection of a command.

    Args:
        client: the connection, non-blocking.
        address: its other end, for reports.
        dialer: judges the request and connects.
        limits: the limits of the proxy.
        watch: ends the connection when it is idle.
    """

    def __init__(
        self, client: socket.socket, address: str, dialer: Dialer, limits: ProxyLimits, watch: IdleWatch
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._address = address
        self._dialer = dialer
        self._limits = limits
        self._watch = watch

    async def serve(self) -> None:
        """Serve the request of the connection. A broken connection is not an error."""
        with contextlib.suppress(OSError, EOFError, TrafficError):
            try:
                async with asyncio.timeout(self._limits.head_s):
                    target = await self._read_request()
                server, first = await self._connect(target)
            except _RefusedError as error:
                await self._reply(error.reply)
                return
            with contextlib.closing(server):
                await self._reply(_GRANTED, server.getsockname())
                await self._loop.sock_sendall(self._client, first)
                await Tunnel(self._client, server, self._dialer.traffic, self._watch).run()

    async def refuse(self, status: int, text: str) -> None:
        """End the connection with the reply that no method is acceptable; there is none with a text."""
        with contextlib.suppress(OSError):
            await self._loop.sock_sendall(self._client, bytes((_VERSION, _NO_METHOD)))

    async def _read_request(self) -> Target:
        version, count = await self._read(2)
        if version != _VERSION:
            # Such as an HTTP request, or SOCKS4, which have no common form of refusal.
            reset_on_close(self._client)
            raise EOFError
        if _NO_AUTHENTICATION not in await self._read(count):
            await self._loop.sock_sendall(self._client, bytes((_VERSION, _NO_METHOD)))
            raise EOFError
        await self._loop.sock_sendall(self._client, bytes((_VERSION, _NO_AUTHENTICATION)))
        version, command, _, kind = await self._read(4)
        if version != _VERSION:
            raise _RefusedError(_FAILED)
        host = await self._read_host(kind)
        (port,) = struct.unpack("!H", await self._read(2))
        if command != _CONNECT:
            raise _RefusedError(_NO_COMMAND)
        if host is None or not port:
            raise _RefusedError(_NOT_ALLOWED)
        return Target("socks5_tcp", host, port, None, self._address)

    async def _read_host(self, kind: int) -> Host | None:
        """The host of a request; null if it is not valid."""
        if kind == _NAME:
            (length,) = await self._read(1)
            data = await self._read(length)
            try:
                return parse_host(data.decode())
            except (UnicodeDecodeError, HostError):
                return None
        if kind not in (_IPV4, _IPV6):
            raise _RefusedError(_NO_ADDRESS_TYPE)
        return parse_host(str(ipaddress.ip_address(await self._read(4 if kind == _IPV4 else 16))))

    async def _connect(self, target: Target) -> tuple[socket.socket, bytes]:
        try:
            return await self._dialer.tunnel(target)
        except DeniedError:
            raise _RefusedError(_NOT_ALLOWED) from None
        except (ResolveError, UpstreamProxyError):
            raise _RefusedError(_HOST_UNREACHABLE) from None
        except TrafficError:
            raise _RefusedError(_FAILED) from None
        except TimeoutError:
            raise _RefusedError(_EXPIRED) from None
        except OSError as error:
            raise _RefusedError(_REPLIES.get(error.errno or 0, _FAILED)) from None

    async def _read(self, count: int) -> bytes:
        """Exactly so many bytes: those behind them are for the tunnel."""
        data = b""
        while len(data) < count:
            more = await self._loop.sock_recv(self._client, count - len(data))
            if not more:
                raise EOFError
            data += more
        self._watch.touch()
        return data

    async def _reply(self, reply: int, bound: tuple[str, int, *tuple[int, ...]] = ("0.0.0.0", 0)) -> None:  # noqa: S104
        address = ipaddress.ip_address(bound[0].partition("%")[0])
        kind = _IPV4 if address.version == 4 else _IPV6
        packed = bytes((_VERSION, reply, 0, kind)) + address.packed + struct.pack("!H", bound[1])
        await self._loop.sock_sendall(self._client, packed)
