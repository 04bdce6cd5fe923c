"""The worked examples of the founding document of the tools, step by step, at a real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from execclient import Executor
from execclient.govern.approval_policy import ON_REQUEST
from execclient.govern.approvals import Approvals
from execclient.govern.orchestrator import SandboxAttempt
from execclient.govern.sandbox import WorkspaceWrite
from execclient.tools.arguments import ShellCommandArguments, parse
from execclient.tools.config import ToolsConfig, Turn
from execclient.tools.exec_params import Timeout
from execclient.tools.function_handler import CommandHandler
from execclient.tools.payloads import FunctionPayload
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import shown
from tests.support.toolsets import ONE_TRANSPORT, shell_for

GREP = '{"command": "grep -r \'TODO\' src/", "timeout_ms": 5000}'


@pytest.fixture
def project(workspace: Path) -> Path:
    """A project with something to find."""
    (workspace / "src").mkdir()
    (workspace / "src" / "main.rs").write_text("fn main() {\n    // TODO: refactor this\n}\n")
    return workspace


@pytest.fixture
def tools(executor: Executor, project: Path) -> Toolset:
    """The session of the example: questions on request, writing in the workspace."""
    return Toolset(
        executor,
        approvals=Approvals(policy=ON_REQUEST),
        sandbox=WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir=True),
        cwd=str(project),
        config=ToolsConfig(shell_type="shell_command", clean_terminal=True),
    )


async def test_a_search_from_its_call_to_its_output(
    tools: Toolset, executor: Executor, project: Path
) -> None:
    # 1: the arguments
    arguments = parse(ShellCommandArguments, GREP)
    assert (arguments.command, arguments.timeout_ms, arguments.login) == ("grep -r 'TODO' src/", 5000, True)

    # 2 and 3: the shell around the script, and all that is to be run
    handler = tools.registry.lookup("shell_command", FunctionPayload(GREP))
    assert isinstance(handler, CommandHandler)
    inspected = await tools.inspect("shell_command", GREP)
    shell = shell_for(executor.info["shell"]["path"])
    assert inspected.command == (shell, "-lc", "grep -r 'TODO' src/")
    assert inspected.cwd == str(project)

    # 4: no reviewer is asked, and no rule lifts the sandbox
    assert (inspected.requirement.kind, inspected.requirement.bypass_sandbox) == ("skip", False)

    # 5 to 8: the sandbox of the platform, and the output
    result = await tools.call("shell_command", GREP, "call_abc123")
    assert result.record.decided is not None
    assert result.record.decided.sandbox_type == "linuxSeccomp"
    assert result.record.phases == ("approval", "sandbox", "run")
    assert (result.exit_code, result.timed_out) == (0, False)
    assert result.stdout == "src/main.rs:    // TODO: refactor this\n"

    # 9 and 10: the result, and the item for the model
    assert result.stderr == ""
    assert result.duration > 0
    item = result.to_openai()
    assert (item["type"], item["call_id"]) == ("function_call_output", "call_abc123")
    assert item["output"].endswith("Output:\nsrc/main.rs:    // TODO: refactor this\n")
    json.dumps(item)


async def test_what_is_to_be_run_and_what_is_started(tools: Toolset, project: Path) -> None:
    from execclient.tools.events import CallEvents
    from execclient.tools.registry import ToolInvocation

    payload = FunctionPayload(GREP)
    handler = tools.registry.lookup("shell_command", payload)
    assert isinstance(handler, CommandHandler)
    context = tools._context(CallEvents(None, "c", "shell_command"), Turn())
    call = await handler.command(ToolInvocation("c", "shell_command", payload, context))
    before = call.params

    env = call.env(SandboxAttempt(tools.sandbox, bypassed=False, number=1))

    assert before.expiration == Timeout(5.0)
    assert call.params == before
    assert env.command == before.command
    assert env.env == {**before.env, "CODEX_SANDBOX_NETWORK_DISABLED": "1"}
    assert env.context is not None
    assert env.sandbox == "linuxSeccomp"


async def test_a_shell_that_keeps_its_state_between_calls(tools: Toolset) -> None:
    async with tools:
        first = await tools.call(
            "exec_command",
            {"command": ["bash", "--norc", "-i"], "process_id": "1001", "yield_time_ms": 2500, "tty": True},
        )
        assert first.to_process_json()["process_id"] == "1001"
        assert first.to_process_json()["exit_code"] is None
        assert "bash-" in await shown(tools, first, "bash-")

        second = await tools.call(
            "write_stdin", {"process_id": "1001", "input": "export FOO=bar\n", "yield_time_ms": 1000}
        )
        assert second.to_process_json() == {"output": "", "process_id": "1001", "exit_code": None}

        third = await tools.call(
            "write_stdin", {"process_id": "1001", "input": "echo $FOO\n", "yield_time_ms": 1000}
        )
        output = await shown(tools, third, "bar\n")
        assert {**third.to_process_json(), "output": output} == {
            "output": "bar\n",
            "process_id": "1001",
            "exit_code": None,
        }


@ONE_TRANSPORT
async def test_the_same_shell_shows_echo_and_prompt_where_they_are_wanted(
    executor: Executor, project: Path
) -> None:
    async with Toolset(executor, cwd=str(project)) as raw:
        begun = await raw.call(
            "exec_command", {"cmd": "PS1='$ ' bash --norc -i", "tty": True, "yield_time_ms": 1000}
        )
        await shown(raw, begun, "$ ")
        result = await raw.call(
            "write_stdin",
            {"session_id": int(begun.process_id or 0), "chars": "echo $FOO-\n", "yield_time_ms": 500},
        )
        output = await shown(raw, result, "\r\n-\r\n$ ")

    assert "echo $FOO-\r\n" in output
    assert output.rstrip("\r\n ").endswith("$")
