"""A command that a token of its caller ends, at a real daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

from execclient import Executor
from execclient.environment_policy import EnvironmentPolicy
from execclient.govern.approval_policy import NEVER
from execclient.govern.orchestrator import SandboxAttempt
from execclient.govern.policy.policy import Policy
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools.command_call import CommandCall, RunToEndRuntime
from execclient.tools.exec_params import Cancellation, ExecParams
from tests.support.toolsets import ONE_TRANSPORT
from tests.support.wire import at_most, wait_gone

ATTEMPT = SandboxAttempt(DangerFullAccess(), bypassed=False, number=1)


def runtime(executor: Executor, workspace: Path, script: str, token: asyncio.Event) -> RunToEndRuntime:
    folder = str(workspace)
    call = CommandCall(
        call_id="c",
        tool="shell",
        params=ExecParams(("sh", "-c", script), folder, expiration=Cancellation(token)),
        executor=executor,
        policy=Policy(),
        approval=NEVER,
        sandbox=DangerFullAccess(),
        turn_cwd=folder,
        workspace_roots=(folder,),
        environment=EnvironmentPolicy(),
    )
    return RunToEndRuntime(call, None)


@ONE_TRANSPORT
async def test_a_token_ends_a_command_with_all_that_came_of_it(executor: Executor, workspace: Path) -> None:
    token, pid_file = asyncio.Event(), workspace / "pid"
    one = runtime(executor, workspace, "sleep 60 & echo $! >pid.new; mv pid.new pid; wait", token)
    running = asyncio.create_task(one.run(ATTEMPT))
    while not pid_file.exists():
        await asyncio.sleep(0.01)

    with at_most(10):
        token.set()
        await running

    assert (one.cancelled, one.timed_out) == (True, False)
    assert wait_gone(int(pid_file.read_text()))


@ONE_TRANSPORT
async def test_a_command_that_ends_before_its_token_is_not_cancelled(
    executor: Executor, workspace: Path
) -> None:
    one = runtime(executor, workspace, "exit 3", asyncio.Event())

    with at_most(15):
        session = await one.run(ATTEMPT)

    assert (session.process.exit_code, one.cancelled, one.timed_out) == (3, False, False)
