"""What a model's commands leave in the background ends with the tools, and the executor stays open."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from execclient import Executor, connect
from execclient.govern.sandbox import (
    DangerFullAccess,
    ExternalSandbox,
    Profile,
    SandboxPolicy,
    WorkspaceWrite,
)
from execclient.tools.toolset import Toolset
from tests.conftest import StartServer
from tests.support.background import DAEMON, IN_BACKGROUND, Left
from tests.support.toolsets import INSIDE, ONE_TRANSPORT, Make


@pytest.fixture
def left() -> Iterator[Left]:
    """Something to leave running."""
    left = Left()
    yield left
    left.kill()


POLICIES = [
    DangerFullAccess(),
    ExternalSandbox(),
    ExternalSandbox(network=True),
    Profile({"type": "disabled"}),
    INSIDE,
    WorkspaceWrite(network=True),
]


async def leave(tools: Toolset, left: Left) -> None:
    """Have a model leave it running, by every tool that runs commands."""
    script = IN_BACKGROUND.format(sleep=left.sleep)
    for name, arguments in (
        ("exec_command", {"cmd": script, "login": False}),
        ("shell", {"command": ["sh", "-c", script]}),
        ("shell_command", {"command": script, "login": False}),
        ("exec_command", {"command": [sys.executable, "-I", "-c", DAEMON, *left.argv]}),
    ):
        assert (await tools.call(name, arguments)).success


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@ONE_TRANSPORT
async def test_what_is_left_in_the_background_ends_with_the_tools(
    make: Make, executor: Executor, left: Left, policy: SandboxPolicy
) -> None:
    tools = make(sandbox=policy)
    await leave(tools, left)
    if isinstance(policy, DangerFullAccess):
        await asyncio.to_thread(left.wait_running, 4)
    await tools.close()
    assert not left.pids
    assert (await executor.run(["echo", "open"])).text == "open\n"


async def test_a_server_that_a_command_started_ends_with_the_tools(make: Make, left: Left) -> None:
    tools = make(sandbox=DangerFullAccess())
    running = await tools.call("exec_command", {"cmd": f"exec {left.sleep}", "yield_time_ms": 250})
    assert running.process_id
    await leave(tools, left)
    await asyncio.to_thread(left.wait_running, 5)
    await tools.close()
    await tools.close()
    assert not left.pids


async def test_what_others_have_started_goes_on(make: Make, executor: Executor, left: Left) -> None:
    others = Left()
    try:
        await executor.run(["sh", "-c", IN_BACKGROUND.format(sleep=others.sleep)])
        other_tools = make(sandbox=DangerFullAccess())
        await leave(other_tools, others)
        tools = make(sandbox=DangerFullAccess())
        await leave(tools, left)
        await tools.close()
        assert not left.pids
        assert len(others.wait_running(5)) == 5
    finally:
        others.kill()


async def test_the_end_of_the_executor_s_session_ends_it_too(url: str, workspace: Path, left: Left) -> None:
    async with connect(url) as executor:
        tools = Toolset(executor, sandbox=DangerFullAccess(), cwd=str(workspace))
        await leave(tools, left)
        await asyncio.to_thread(left.wait_running, 4)
    assert not left.pids
    await tools.close()


async def test_it_ends_at_each_of_several_executors(
    start_server: StartServer, tmp_path: Path, left: Left
) -> None:
    async with AsyncExitStack() as stack:
        executors = {
            name: await stack.enter_async_context(connect(start_server(f"unix://{tmp_path}/{name}").url))
            for name in ("one", "two")
        }
        async with Toolset(executors, sandbox=DangerFullAccess(), cwd=str(tmp_path)) as tools:
            for name in executors:
                arguments = {"cmd": IN_BACKGROUND.format(sleep=left.sleep), "environment_id": name}
                assert (await tools.call("exec_command", arguments)).success
            await asyncio.to_thread(left.wait_running, 2)
        assert not left.pids
