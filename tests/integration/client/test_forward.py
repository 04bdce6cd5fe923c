"""Ports of processes at a real daemon, and connections to them from here."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from execclient import (
    ExecServerError,
    Executor,
    ExecutorClosed,
    Forward,
    NetworkAccess,
    PortEvent,
    Process,
    ReadOnly,
    Refused,
    connect,
)
from execclient.sync import connect as connect_blocking
from tests.support import listener as program
from tests.support.servers import free_ports
from tests.support.wire import PATIENCE

PROGRAM = [sys.executable, str(Path(program.__file__))]

INSIDE: dict[str, Any] = {"sandbox": ReadOnly(), "network": NetworkAccess(allow=("example.com",))}
"""A sandbox with a network of its own."""

LARGE = 24 << 20

WAITING = 48 << 20
"""More than may wait on the way to a local program: 8 MiB at each end, and what is between them."""


@asynccontextmanager
async def listening(
    executor: Executor, *arguments: str, **options: Any
) -> AsyncIterator[tuple[Process, int]]:
    """The program of these tests at the executor, and its port."""
    async with await executor.start([*PROGRAM, *arguments], **options) as process:
        async with asyncio.timeout(PATIENCE):
            line = await anext(process.lines())
        yield process, int(line)


@pytest.fixture
async def served(executor: Executor) -> AsyncIterator[tuple[Process, int]]:
    async with listening(executor) as found:
        yield found


@pytest.fixture
async def forwarded(executor: Executor, served: tuple[Process, int]) -> AsyncIterator[Forward]:
    _, port = served
    async with executor.forward(port, local_port=0) as forward:
        yield forward


async def ask(forward: Forward, line: str, data: bytes = b"") -> bytes:
    """All that the program answers to a line, some data, and the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(line.encode() + b"\n" + data)
            await writer.drain()
            writer.write_eof()
            return await reader.read()
    finally:
        writer.close()


async def until(wanted: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            found = wanted()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def until_only_runs(executor: Executor, process: Process) -> None:
    """Wait until nothing else runs, after what is opened all the same is there."""
    await asyncio.sleep(0.3)

    async def only_this() -> bool:
        running = [each.process_id for each in await executor.processes() if each.state == "running"]
        return running == [process.id]

    await until(only_this)


# -- which ports there are


async def test_a_port_is_listed_with_the_process_whose_descendant_listens(executor: Executor) -> None:
    shell = ["sh", "-c", '"$@"; :', "sh"]
    async with listening(executor) as (_, other):
        process = await executor.start([*shell, *PROGRAM])
        port = int(await anext(process.lines()))

        [found] = [each for each in await executor.ports() if each.port == port]

    assert (found.process_id, found.session_id) == (process.id, executor.session_id)
    assert (found.address, found.sandboxed) == ("127.0.0.1", False)
    assert found.name.startswith("python")
    assert found.pid != process.pid
    assert other != port


async def test_a_watch_yields_what_listens_already_and_what_begins_and_stops(executor: Executor) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        listening(executor) as (first, before),
        executor.watch_ports() as events,
    ):
        assert summary(await anext(events)) == (first.id, before, True)
        async with listening(executor) as (second, port):
            assert summary(await anext(events)) == (second.id, port, True)
        assert summary(await anext(events)) == (second.id, port, False)


def summary(event: PortEvent) -> tuple[str | None, int, bool]:
    return event.port.process_id, event.port.port, event.listening


async def test_a_watch_goes_on_over_a_lost_connection(shared_url: str) -> None:
    async with asyncio.timeout(PATIENCE), connect(shared_url) as executor, executor.watch_ports() as events:
        for _ in range(3):
            executor.drop_connection()
            async with listening(executor) as (process, port):
                executor.drop_connection()
                assert summary(await anext(events)) == (process.id, port, True)
            assert summary(await anext(events)) == (process.id, port, False)


async def test_a_session_has_one_watch_and_it_ends_with_the_session(url: str) -> None:
    async with connect(url) as executor, executor.watch_ports() as events:
        with pytest.raises(ValueError, match="a port watch already"):
            await executor.watch_ports().__aenter__()
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        await executor.close()
        with pytest.raises(ExecutorClosed):
            await waiting


# -- connections


async def test_each_direction_ends_by_itself(forwarded: Forward) -> None:
    async with asyncio.timeout(PATIENCE):
        assert await ask(forwarded, "echo", b"over there\n") == b"over there\nbye"

        reader, writer = await asyncio.open_connection("127.0.0.1", forwarded.port)
        writer.write(b"send 5\n")
        # The end of what the program sends arrives while this side may still send.
        assert await reader.read() == program.pattern(5)
        assert int(await ask(forwarded, "open")) == 1
        writer.close()
        await until(lambda: forwarded.connections == 0)


async def test_a_program_that_closes_the_connection_ends_it(forwarded: Forward) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", forwarded.port)
    async with asyncio.timeout(PATIENCE):
        writer.write(b"dripped\n")
        assert await reader.read() == b"0"
        writer.close()
        await until(lambda: forwarded.connections == 0)


async def test_what_goes_both_ways_is_whole_while_the_connection_is_cut(shared_url: str) -> None:
    data = program.pattern(LARGE)
    async with (
        connect(shared_url) as executor,
        listening(executor) as (_, port),
        executor.forward(port, local_port=0) as forwarded,
    ):

        async def cut() -> None:
            pause = 0.1
            while True:
                await asyncio.sleep(pause)
                executor.drop_connection()
                pause *= (
                    1.2  # on a slow machine, a connection takes longer than the first ones to carry anything
                )

        cutting = asyncio.create_task(cut())
        received, counted = await asyncio.gather(
            ask(forwarded, f"send {LARGE}"), ask(forwarded, "count", data)
        )
        cutting.cancel()

    assert received == data
    assert counted.decode() == f"{LARGE} {hashlib.sha256(data).hexdigest()}"
    assert executor.recoveries > 1


async def test_a_hundred_connections_are_served_at_a_time(forwarded: Forward) -> None:
    answers = await asyncio.gather(*(ask(forwarded, "echo", b"%d" % number) for number in range(100)))

    assert answers == [b"%dbye" % number for number in range(100)]


async def test_a_listener_waits_for_a_local_program_that_does_not_read(forwarded: Forward) -> None:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", forwarded.port, limit=1 << 16)
        writer.write(b"drip\n")
        sent = -1
        while sent != (sent := int(await ask(forwarded, "dripped"))) or not sent:
            await asyncio.sleep(0.5)
        assert sent < WAITING

        # It goes on when the program reads.
        expected = program.pattern(2 * WAITING)
        assert await reader.readexactly(len(expected)) == expected
        writer.transport.abort()
        await until(lambda: forwarded.connections == 0)


async def test_a_reset_is_forwarded_in_both_directions(forwarded: Forward) -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConnectionResetError):
            await ask(forwarded, "reset")

        _, writer = await asyncio.open_connection("127.0.0.1", forwarded.port)
        writer.write(b"drip\n")

        async def is_open() -> bool:
            return int(await ask(forwarded, "open")) == 1

        async def is_over() -> bool:
            return int(await ask(forwarded, "open")) == 0

        await until(is_open)
        writer.transport.abort()
        await until(is_over)


async def test_connections_are_reset_while_no_process_listens(executor: Executor) -> None:
    errors: list[ExecServerError] = []
    free = free_ports(1)[0]
    async with executor.forward(free, local_port=0, on_error=errors.append) as forwarded:
        with pytest.raises(ConnectionResetError):
            await ask(forwarded, "echo")
        async with listening(executor, "127.0.0.1", str(free)):
            assert await ask(forwarded, "echo") == b"bye"

    [error] = errors
    assert isinstance(error, Refused)
    assert str(free) in error.message


async def test_a_port_in_the_network_of_a_sandbox_is_reached(executor: Executor) -> None:
    async with listening(executor, **INSIDE) as (process, port):
        [found] = await executor.ports()
        assert (found.port, found.process_id, found.sandboxed) == (port, process.id, True)
        async with executor.forward(port, local_port=0) as forwarded:
            assert await ask(forwarded, "echo", b"inside") == b"insidebye"


async def test_the_same_port_of_two_processes_is_told_apart(executor: Executor) -> None:
    async with (
        listening(executor, "127.0.0.1", "4321", **INSIDE) as (first, port),
        listening(executor, "127.0.0.1", "4321", **INSIDE) as (second, _),
    ):
        errors: list[ExecServerError] = []
        async with executor.forward(port, local_port=0, on_error=errors.append) as forwarded:
            with pytest.raises(ConnectionResetError):
                await ask(forwarded, "open")
        assert first.id in str(errors)
        assert second.id in str(errors)
        async with executor.forward(port, local_port=0, process=second) as forwarded:
            assert await ask(forwarded, "open") == b"0"


@pytest.mark.parametrize("address", ["::1", "0.0.0.0", "::"])
async def test_a_listener_may_have_any_address(executor: Executor, address: str) -> None:
    async with (
        listening(executor, address) as (_, port),
        executor.forward(port, local_port=0) as forwarded,
    ):
        assert await ask(forwarded, "echo") == b"bye"


async def test_a_process_of_another_session_is_reached_where_sessions_are_shown(shared_url: str) -> None:
    async with (
        connect(shared_url) as owner,
        listening(owner) as (process, port),
        connect(shared_url) as other,
    ):
        if shared_url.startswith("ws:"):  # without authentication
            with pytest.raises(Refused):
                await other.ports(all_sessions=True)
            return
        assert [each.process_id for each in await other.ports(all_sessions=True)] == [process.id]
        assert not await other.ports()
        async with other.forward(port, local_port=0, session_id=owner.session_id) as forwarded:
            assert await ask(forwarded, "echo", b"x") == b"xbye"


# -- the port of this machine


async def test_the_local_port_has_the_same_number_if_that_is_free(
    executor: Executor, served: tuple[Process, int]
) -> None:
    _, port = served
    same = free_ports(1)[0]
    async with executor.forward(same) as free, executor.forward(port) as taken:
        assert free.port == same
        assert taken.port not in (0, port)  # the program of the same machine has it
        assert taken.url == f"http://127.0.0.1:{taken.port}/"
        assert await ask(taken, "echo") == b"bye"
        with pytest.raises(OSError, match="in use"):
            await executor.forward(port, local_port=free.port).__aenter__()


async def test_the_local_port_is_closed_at_the_end_of_the_block_and_of_the_session(
    executor: Executor, served: tuple[Process, int]
) -> None:
    async with executor.forward(served[1], local_port=0) as forwarded:
        reader, writer = await asyncio.open_connection("127.0.0.1", forwarded.port)
        await until(lambda: forwarded.connections)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", forwarded.port)
    writer.close()

    async with executor.forward(served[1], local_port=0) as forwarded:
        await executor.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", forwarded.port)


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4, 10, 25])
async def test_no_stream_and_no_connection_is_left_after_the_block(
    executor: Executor, served: tuple[Process, int], milliseconds: int
) -> None:
    """The end comes so long after the connections: before they are accepted, or while streams are opened."""
    connections = []
    async with executor.forward(served[1], local_port=0) as forwarded:
        for _ in range(3):
            connections.append(await asyncio.open_connection("127.0.0.1", forwarded.port))
        for _, writer in connections:
            writer.write(b"drip\n")
        if milliseconds:
            await asyncio.sleep(milliseconds / 1000)

    for reader, writer in connections:
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                await reader.read()
        writer.close()
    await until_only_runs(executor, served[0])


async def test_no_stream_is_left_if_the_end_is_cancelled(
    executor: Executor, served: tuple[Process, int]
) -> None:
    for turns in range(4):
        forward = executor.forward(served[1], local_port=0)
        await forward.__aenter__()
        assert await ask(forward, "echo", b"x") == b"xbye"
        _, writer = await asyncio.open_connection("127.0.0.1", forward.port)
        writer.write(b"drip\n")
        await asyncio.sleep(0.3)
        closing = asyncio.create_task(forward.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await forward.close()
        writer.close()
    await until_only_runs(executor, served[0])


@pytest.mark.parametrize(
    ("port", "local_port", "message"),
    [
        (0, 0, "port is 1 to 65535"),
        (65536, 0, "port is 1"),
        ("80", 0, "number of a port"),
        (80, -1, "local_port is 0"),
    ],
)
async def test_a_number_that_is_no_port_is_refused(
    executor: Executor, port: Any, local_port: int, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        executor.forward(port, local_port=local_port)


# -- without an event loop


def test_the_blocking_client_forwards_and_watches_too(url: str) -> None:
    with connect_blocking(url) as executor, executor.start(PROGRAM) as process:
        port = int(next(process.lines()))
        with executor.watch_ports() as events:
            assert next(events).port.port == port
        assert [each.port for each in executor.ports()] == [port]
        with (
            executor.forward(port, local_port=0, process=process) as forwarded,
            socket.create_connection(("127.0.0.1", forwarded.port), PATIENCE) as connection,
        ):
            connection.sendall(b"echo\nblocking")
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile("rb").read() == b"blockingbye"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", forwarded.port), PATIENCE)
