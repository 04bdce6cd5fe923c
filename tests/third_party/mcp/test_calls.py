"""Calls of a host, over stdin and stdout."""

from __future__ import annotations

import asyncio
import re

import pytest
from mcp import MCPError

from tests.support.wire import at_most
from tests.third_party.mcp.conftest import Hosts, interrupted, output_of, read_to_end, session_of, text

LEGACY = pytest.mark.parametrize("mode", ["legacy"], indirect=True)
"""For what is the same in both generations of the protocol."""


async def test_a_command_runs_in_the_workspace(hosts: Hosts) -> None:
    async with hosts.start() as client:
        result = await client.call_tool(
            "exec_command", {"cmd": "pwd; echo error >&2; exit 3", "login": False}
        )

    assert output_of(result).splitlines() == [str(hosts.workspace), "error"]
    assert result.structured_content["exitCode"] == 3
    assert result.structured_content["output"] == text(result)
    assert result.is_error


@LEGACY
async def test_a_command_that_lasts_takes_input_and_is_read_to_its_end(hosts: Hosts) -> None:
    async with hosts.start() as client:
        command = 'read line; echo "got $line"; sleep 2; echo end'
        session = await session_of(client, command, tty=True, yield_time_ms=300)
        answered = await client.call_tool("write_stdin", {"session_id": session, "chars": "hello\n"})
        output, result = await read_to_end(client, session)
        again = await client.call_tool("write_stdin", {"session_id": session})

    assert (output_of(answered) + output).replace("\r", "") == "hello\ngot hello\nend\n"
    assert result.structured_content["exitCode"] == 0
    assert again.is_error


@LEGACY
async def test_no_call_waits_longer_than_the_host_does(hosts: Hosts) -> None:
    loop = asyncio.get_running_loop()
    async with hosts.start("--max-wait", "1") as client:
        began = loop.time()
        session = await session_of(client, "sleep 600", yield_time_ms=30_000)
        await client.call_tool("write_stdin", {"session_id": session, "yield_time_ms": 300_000})

        assert loop.time() - began < 30


@pytest.mark.without_chaos
@pytest.mark.parametrize("mode", ["auto"], indirect=True)
async def test_progress_is_reported_while_a_call_waits(hosts: Hosts) -> None:
    seen: list[float] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with hosts.start() as client:
        session = await session_of(client, "sleep 600", yield_time_ms=250)
        await client.call_tool(
            "write_stdin", {"session_id": session, "yield_time_ms": 6000}, progress_callback=progress
        )

    assert seen
    assert seen == sorted(seen)


@pytest.mark.without_chaos
@pytest.mark.parametrize("mode", ["auto"], indirect=True)
async def test_wrong_arguments_are_explained_to_the_model(hosts: Hosts) -> None:
    async with hosts.start() as client:
        result = await client.call_tool("exec_command", {"cmdd": "true"})

        assert result.is_error
        assert re.search("unknown field `cmdd`, expected one of `cmd`", text(result))
        with pytest.raises(MCPError, match="Unknown tool: shell; there is exec_command"):
            await client.call_tool("shell", {"command": ["true"]})


async def test_cancellation_kills_the_command_that_the_call_started(hosts: Hosts) -> None:
    async with hosts.start() as client:
        arguments = {"cmd": "sleep 600", "login": False, "yield_time_ms": 30_000}
        calling = asyncio.create_task(client.call_tool("exec_command", arguments))
        while not await hosts.running():
            await asyncio.sleep(0.1)
        calling.cancel()
        await asyncio.wait({calling})
        with at_most(20):
            while await hosts.running():
                await asyncio.sleep(0.1)

        assert text(await client.call_tool("list_sessions", {})) == "[no command runs]"


@LEGACY
async def test_a_cancelled_wait_leaves_the_command_running(hosts: Hosts) -> None:
    async with hosts.start() as client:
        session = await session_of(client, "sleep 600", yield_time_ms=250)
        waiting = asyncio.create_task(client.call_tool("write_stdin", {"session_id": session}))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait({waiting})

        assert await hosts.running() == 1
        ended = await interrupted(client, session)
        assert ended.structured_content["exitCode"] == 130
