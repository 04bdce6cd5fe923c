"""A server that is killed, and started again by its host."""

from __future__ import annotations

import asyncio
import re
import stat

import pytest
from mcp import MCPError

from tests.third_party.mcp.conftest import Hosts, interrupted, output_of, read_to_end, session_of, text

pytestmark = pytest.mark.parametrize("mode", ["legacy"], indirect=True)  # the state is the same in both

UNTIL_FOUND = "until test -e found; do sleep 0.1; done"
COUNT = f"for i in $(seq 1 25); do echo line $i; sleep 0.1; done; {UNTIL_FOUND}; exit 7"
COUNTED = "".join(f"line {i}\n" for i in range(1, 26))


async def test_a_command_is_read_on_after_the_server_was_killed(hosts: Hosts) -> None:
    async with hosts.start("--max-wait", "1") as client:
        first = await client.call_tool("exec_command", {"cmd": COUNT, "login": False, "yield_time_ms": 1000})
        session = int(first.structured_content["processId"])
        await asyncio.sleep(0.5)  # its answer is here, and the state written
        hosts.kill()
        with pytest.raises(MCPError, match="closed"):
            await client.call_tool("write_stdin", {"session_id": session})
    async with hosts.start("--max-wait", "1") as client:
        (hosts.workspace / "found").touch()
        output, result = await read_to_end(client, session)

    assert output_of(first) + output == COUNTED
    assert result.structured_content["exitCode"] == 7


async def test_a_kill_in_the_middle_of_a_call_loses_none_of_its_output(hosts: Hosts) -> None:
    async with hosts.start("--max-wait", "10") as client:
        session = await session_of(client, f"sleep 1; {COUNT}", yield_time_ms=250)
        first = await client.call_tool("write_stdin", {"session_id": session, "yield_time_ms": 1000})
        await asyncio.sleep(0.5)
        reading = asyncio.create_task(client.call_tool("write_stdin", {"session_id": session}))
        await asyncio.sleep(0.5)
        hosts.kill()
        with pytest.raises(MCPError, match="closed"):
            await reading
    async with hosts.start("--max-wait", "1") as client:
        (hosts.workspace / "found").touch()
        output, _ = await read_to_end(client, session)

    assert output_of(first) + output == COUNTED


async def test_a_command_whose_start_was_not_answered_is_found(hosts: Hosts) -> None:
    async with hosts.start() as client:
        command = f"touch begun; {UNTIL_FOUND}; {COUNT}"
        starting = asyncio.create_task(session_of(client, command))
        while not (hosts.workspace / "begun").exists():
            await asyncio.sleep(0.1)
        hosts.kill()
        with pytest.raises(MCPError):
            await starting
    async with hosts.start() as client:
        listed = await client.call_tool("list_sessions", {})
        (hosts.workspace / "found").touch()
        found = re.fullmatch(r"session_id (\d+): running, .*\n", text(listed), re.DOTALL)
        assert found, text(listed)
        output, result = await read_to_end(client, int(found[1]))

    assert "echo line $i" in text(listed)
    assert output == COUNTED
    assert result.structured_content["exitCode"] == 7


async def test_two_servers_of_a_host_do_not_share_sessions(hosts: Hosts) -> None:
    async with hosts.start() as one, hosts.start() as other:
        session = await session_of(one, "sleep 600", yield_time_ms=250)
        result = await other.call_tool("write_stdin", {"session_id": session})

    assert result.is_error
    assert "Unknown process id" in text(result)


@pytest.mark.without_chaos
async def test_the_state_is_for_its_owner_only(hosts: Hosts) -> None:
    folder = hosts.state / "execserver/mcp"
    async with hosts.start() as client:
        await session_of(client, "sleep 600", yield_time_ms=250)
        await asyncio.sleep(0.5)

        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}

    assert not list(folder.glob("*.json"))


async def test_commands_end_with_their_host_unless_they_are_kept(hosts: Hosts) -> None:
    async with hosts.start() as client:
        await session_of(client, "sleep 600", yield_time_ms=250)
        assert await hosts.running() == 1
    assert await hosts.running() == 0

    async with hosts.start("--keep") as client:
        session = await session_of(client, "sleep 600", yield_time_ms=250)
    assert await hosts.running() == 1
    async with hosts.start("--keep") as client:
        result = await interrupted(client, session)

    assert result.structured_content["exitCode"] == 130
    assert await hosts.running() == 0
