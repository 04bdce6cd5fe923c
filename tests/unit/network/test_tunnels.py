"""Tunnels through a proxy: ends, resets, slow readers, limits."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

import pytest

from execserver.network.rules import ProxyLimits
from tests.support.network_proxy import PATIENCE_S, RunningProxy, Verdicts, origin, proxy, socks_request

LOOPBACK: Verdicts = {"127.0.0.1": "allow"}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def reset_when_closed(writer: asyncio.StreamWriter) -> None:
    end: socket.socket = writer.get_extra_info("socket")
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def read_until_reset(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """What arrives, and whether a reset ends it."""
    got = b""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while data := await reader.read(65_536):
                got += data
        except ConnectionResetError:
            return got, True
    return got, False


@pytest.mark.statement("Q9")
async def test_each_direction_ends_by_itself() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        writer.write(b"after the end: " + got)
        await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.connect(f"127.0.0.1:{server.port}")
        writer.write(b"all")
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"after the end: all"
        writer.close()


async def test_the_command_can_send_after_the_end_of_the_server() -> None:
    got = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        got.set_result(await reader.read())

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.connect(f"127.0.0.1:{server.port}")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"bye"
            writer.write(b"still here")
            writer.write_eof()
            assert await got == b"still here"
        writer.close()


async def test_megabytes_pass_unchanged_both_ways_at_once() -> None:
    blob = os.urandom(8 * 1024 * 1024)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.connect(f"127.0.0.1:{server.port}")

        async def send() -> None:
            writer.write(blob)
            await writer.drain()
            writer.write_eof()

        async with asyncio.timeout(PATIENCE_S):
            _, got = await asyncio.gather(send(), reader.read())
        writer.close()
    assert got == blob


async def test_a_slow_reader_holds_the_sender_up() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(0)
        while sent < 64 * 1024 * 1024:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.connect(f"127.0.0.1:{server.port}")
        before = -1  # nothing is read, so that the buffers of the kernel fill up
        async with asyncio.timeout(PATIENCE_S):
            while sent != before:
                before = sent
                await asyncio.sleep(0.3)
        assert sent < 32 * 1024 * 1024
        async with asyncio.timeout(PATIENCE_S):
            assert len(await reader.read()) == 64 * 1024 * 1024
        writer.close()


@pytest.mark.statement("Q9")
async def test_a_reset_of_the_server_arrives_as_a_reset_behind_its_bytes() -> None:
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"z" * 300_000)
        await writer.drain()
        await arrived.wait()  # a reset takes bytes with it that have not arrived
        reset_when_closed(writer)

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.connect(f"127.0.0.1:{server.port}")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(300_000) == b"z" * 300_000
        arrived.set()
        assert await read_until_reset(reader) == (b"", True)
        writer.close()


async def test_a_reset_of_the_command_arrives_at_the_server() -> None:
    arrived, outcome = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"half"
        arrived.set()
        outcome.set_result(await read_until_reset(reader))

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        _, writer = await running.connect(f"127.0.0.1:{server.port}")
        writer.write(b"half")
        async with asyncio.timeout(PATIENCE_S):
            await arrived.wait()
            reset_when_closed(writer)
            writer.close()
            assert await outcome == (b"", True)


async def test_an_answer_arrives_whole_while_the_server_takes_no_more() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end: socket.socket = writer.get_extra_info("socket")
        end.shutdown(socket.SHUT_RD)
        writer.write(b"y" * 500_000)
        await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK) as running:
        reader, writer = await running.connect(f"127.0.0.1:{server.port}")
        writer.write(b"x" * 2_000_000)
        got, _ = await read_until_reset(reader)
        writer.close()
    assert len(got) == 500_000


@pytest.mark.statement("Q11")
async def test_an_idle_tunnel_ends_and_a_busy_one_does_not() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)

    limits = ProxyLimits(idle_s=3)
    async with origin(serve) as server, proxy(LOOPBACK, limits=limits) as running:
        idle, busy = [await running.connect(f"127.0.0.1:{server.port}") for _ in range(2)]
        for _ in range(35):
            busy[1].write(b"x")
            async with asyncio.timeout(PATIENCE_S):
                assert await busy[0].read(1) == b"x"
            await asyncio.sleep(0.1)
        got, reset = await read_until_reset(idle[0])
        assert (got, reset) == (b"", True)
        for _, writer in (idle, busy):
            writer.close()


@pytest.mark.statement("Q11")
async def test_connections_beyond_the_limit_are_refused_and_then_served_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with origin(serve) as server, proxy(LOOPBACK, limits=ProxyLimits(connections=2)) as running:
        authority = f"127.0.0.1:{server.port}"
        first, second = [await running.connect(authority) for _ in range(2)]
        got = await running.exchange(f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert got.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert got.endswith(b"this command has its limit of 2 connections open")
        assert await running.socks(socks_request("127.0.0.1", server.port), count=2) == b"\5\xff"
        first[1].close()
        async with asyncio.timeout(PATIENCE_S):
            while not (again := await _tunnel_or_none(running, authority)):
                await asyncio.sleep(0.02)
        second[1].close()
        again[1].close()


async def _tunnel_or_none(running: RunningProxy, authority: str) -> Streams | None:
    reader, writer = await running.open()
    writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    if (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 "):
        return reader, writer
    writer.close()
    return None


async def test_a_flood_of_connections_leaves_the_proxy_usable() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    limits = ProxyLimits(connections=8)
    async with origin(answer=answer) as server, proxy(LOOPBACK, limits=limits) as running:
        flood = [await running.open() for _ in range(300)]
        for _, writer in flood:
            writer.transport.abort()
        request = f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        async with asyncio.timeout(PATIENCE_S):
            while not (await _or_empty(running, request.encode())).startswith(b"HTTP/1.1 200 "):
                await asyncio.sleep(0.02)


async def _or_empty(running: RunningProxy, request: bytes) -> bytes:
    try:
        return await running.exchange(request)
    except OSError:
        return b""


@pytest.mark.parametrize("way", ["tunnel", "plain"])
async def test_beyond_its_limit_of_bytes_a_proxy_moves_nothing(way: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
        await writer.drain()

    async with origin(serve) as server, proxy(LOOPBACK, limits=ProxyLimits(total_bytes=1_000_000)) as running:
        authority = f"127.0.0.1:{server.port}"
        plain = f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()
        if way == "tunnel":
            reader, writer = await running.connect(authority)
        else:
            reader, writer = await running.open()
        writer.write(plain)
        got, _ = await read_until_reset(reader)
        writer.close()
        assert len(got) <= 1_000_500
        refused = await running.exchange(plain)
        tunnel = await running.exchange(f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        for answer in (refused, tunnel):
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert answer.endswith(b"has moved its limit of 1000000 bytes")
        assert await running.socks(socks_request("127.0.0.1", server.port), count=4) == b"\5\0\5\1"


async def test_the_end_of_the_proxy_is_a_reset_and_frees_its_ports() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        await reader.read()

    async with origin(serve) as server:
        async with proxy(LOOPBACK) as running:
            reader, writer = await running.connect(f"127.0.0.1:{server.port}")
            assert await reader.readexactly(5) == b"first"
            waiting = await running.open()
        got, reset = await read_until_reset(reader)
        assert (got, reset) == (b"", True)
        assert (await read_until_reset(waiting[0]))[0] == b""
        for port in (running.port, running.socks_port):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        waiting[1].close()
