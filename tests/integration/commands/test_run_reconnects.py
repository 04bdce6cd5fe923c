"""`execserver run` behind a socket that ssh forwards: while ssh is down, no server listens there."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from execclient import connect
from tests.integration.commands.conftest import EXECSERVER, CommandLine
from tests.support.cutting_proxy import CuttingProxy

LONGER_THAN_A_DAEMON_NEEDS = 3.0
"""Seconds; after 2 the client takes the daemon for ended."""


class Forwarder:
    """Forwards a socket, as ssh does."""

    def __init__(self, target: str, path: Path) -> None:
        self._proxy = CuttingProxy(target, lambda: None)
        self._path = path
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._proxy.serve, self._path)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._proxy.end()
        await self._server.wait_closed()


@asynccontextmanager
async def forwarded(execserver: CommandLine, *options: str) -> AsyncIterator[tuple[Forwarder, Process]]:
    """A forwarder, and `cat` behind it."""
    path = execserver.folder / "forwarded"
    forwarder = Forwarder(execserver.url, path)
    await forwarder.start()
    process = await asyncio.create_subprocess_exec(
        *EXECSERVER,
        "run",
        "--url",
        f"unix://{path}",
        *options,
        "--",
        "cat",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=execserver.environment,
    )
    try:
        assert await echo(process, b"before\n") == b"before\n"
        yield forwarder, process
    finally:
        await forwarder.stop()
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def echo(process: Process, line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    return await asyncio.wait_for(process.stdout.readline(), 20)


async def test_with_a_ttl_a_command_and_its_client_wait_for_each_other(execserver: CommandLine) -> None:
    async with forwarded(execserver, "--ttl", "60") as (forwarder, process):
        await forwarder.stop()
        echoed = asyncio.create_task(echo(process, b"meanwhile\n"))
        await asyncio.sleep(LONGER_THAN_A_DAEMON_NEEDS)
        assert process.returncode is None
        await forwarder.start()
        assert await echoed == b"meanwhile\n"
        assert await process.communicate(b"") == (b"", b"")
    assert process.returncode == 0


async def test_without_one_the_client_takes_the_daemon_for_ended(execserver: CommandLine) -> None:
    async with forwarded(execserver) as (forwarder, process):
        await forwarder.stop()
        _, errors = await asyncio.wait_for(process.communicate(), 20)
        assert errors.startswith(b"execserver: the daemon has ended: no server is listening")
        assert process.returncode == 125
        await forwarder.start()


def test_a_ttl_above_the_limit_of_the_daemon_is_an_error_that_names_the_limit(
    execserver: CommandLine,
) -> None:
    done = execserver("run", "--ttl", "30d", "--", "true")
    assert done.returncode == 125
    assert (
        done.stderr == b"execserver: --ttl: the daemon keeps a session for at most 7 d (--max-session-ttl)\n"
    )


def test_a_daemon_of_this_command_alone_has_no_ttl(execserver: CommandLine) -> None:
    done = execserver("run", "--url", "stdio:", "--ttl", "1h", "--", "true")
    assert done.returncode == 125
    assert b"the daemon ends with the connection" in done.stderr


async def test_after_its_ttl_the_command_is_ended_and_its_client_with_it(execserver: CommandLine) -> None:
    async with forwarded(execserver, "--ttl", "1") as (forwarder, process):
        await forwarder.stop()
        _, errors = await asyncio.wait_for(process.communicate(), 20)
        assert errors.startswith(b"execserver: the session could not be resumed within 1 s: no server")
        assert process.returncode == 125
        await forwarder.start()
    async with connect(execserver.url) as executor, asyncio.timeout(20):
        while await executor.processes(all_sessions=True):  # the daemon may have noticed the cut later
            await asyncio.sleep(0.05)
