"""An open proxy that takes a request in every way in which it could be meant.

Lenient proxies differ in what they read from malformed requests. This one connects to all hosts that one of
them could see: what it does not reach, a request does not name.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

_REQUEST = re.compile(rb"([A-Z]+) +(\S[^\r\n]*?)(?: HTTP/\d\.\d)?[ \t]*[\r\n]")
_HOST = re.compile(rb"[\r\n]\s*(?:host|x-forwarded-host)\s*:\s*([^\r\n]+)", re.IGNORECASE)
_SOCKET = re.compile(rb"x-unix-socket: *([^\r\n]+)", re.IGNORECASE)
_SECONDS = 0.3
"""The pause after which no more is expected."""


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until there is a pause."""
    data = b""
    with contextlib.suppress(TimeoutError):
        while more := await asyncio.wait_for(reader.read(65_536), _SECONDS):
            data += more
    return data


def meanings(authority: bytes) -> Iterator[tuple[str, int]]:
    """The hosts and ports that an authority may be taken for."""
    cut = re.split(rb"[\0\r\n\t ]", authority)[0]
    for text in {authority, cut, unquote_to_bytes(authority).split(b"\0")[0], cut.partition(b"\\")[0]}:
        for part in {text, *re.split(rb"[@#]", text)}:
            found = re.match(rb"\[(.*)\](?::(\d*))?$|([^:]+)(?::(\d*))?$", part.partition(b"/")[0])
            if found is None:
                continue
            host, port = found[1] or found[3], int(found[2] or found[4] or 0) & 0xFFFF
            with contextlib.suppress(UnicodeError):
                name = host.decode()
                yield (name if ":" in name else name.encode("idna").decode()), port


def _wanted(data: bytes) -> dict[tuple[str, int], bytes]:
    """All hosts that a stream of requests names, with what one of them gets."""
    found: dict[tuple[str, int], bytes] = {}
    for request in _REQUEST.finditer(data):
        method, target = request[1], request[2]
        after = target.partition(b"://")[2] if b"://" in target else target
        end = data.find(b"\r\n\r\n", request.start())
        end = len(data) if end < 0 else end
        path = b"/" + after.partition(b"/")[2]
        head = method + b" " + (path if b"://" in target else target) + b" HTTP/1.1\r\nHost: x\r\n\r\n"
        default = 443 if method == b"CONNECT" or target.startswith(b"https") else 80
        for authority in {after, *_HOST.findall(data[request.start() : end + 2])}:
            for host, port in meanings(authority.strip()):
                found[host, port or default] = head if method != b"CONNECT" else data[end + 4 :]
    return found


async def _exchange(host: str, port: int, data: bytes) -> bytes:
    # A host may have a NUL in it, or be too long.
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 1)
        try:
            writer.write(data)
            return await rest(reader)
        finally:
            writer.close()
    return b""


async def serve_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of HTTP."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            if data.startswith(b"CONNECT") or b"pgrade:" in data:
                # What goes through the tunnel follows its answer.
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            data += await rest(reader)
            for path in _SOCKET.findall(data):
                local_reader, local = await asyncio.open_unix_connection(path.decode())
                local.write(data)
                writer.write(await rest(local_reader))
                local.close()
            for (host, port), part in _wanted(data).items():
                writer.write(await _exchange(host, port, data if b"pgrade:" in data else part))
            await writer.drain()
    writer.close()


async def serve_socks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection of SOCKS, version 4 or 5."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        (version,) = await reader.readexactly(1)
        targets = await (_socks4 if version == 4 else _socks5)(reader, writer)
        writer.write(b"\0\x5a\0\0\0\0\0\0" if version == 4 else b"\5\0\0\1\0\0\0\0\0\0")
        data = await rest(reader)
        for host, port in targets:
            writer.write(await _exchange(host, port, data))
        await writer.drain()
    writer.close()


async def _socks4(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> set[tuple[str, int]]:
    _, port, address = struct.unpack("!BH4s", await reader.readexactly(7))
    await reader.readuntil(b"\0")
    if address.startswith(b"\0\0\0"):
        return {((await reader.readuntil(b"\0"))[:-1].decode(), port)}
    return {(socket.inet_ntoa(address), port)}


async def _socks5(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> set[tuple[str, int]]:
    (count,) = await reader.readexactly(1)
    methods = await reader.readexactly(count)
    writer.write(bytes((5, methods[0])))
    _, _, _, kind = await reader.readexactly(4)
    length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
    host = await reader.readexactly(length)
    (port,) = struct.unpack("!H", await reader.readexactly(2))
    if kind != 3:
        return {(socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, host), port)}
    return {(name, own or port or 80) for name, own in meanings(host)}
