"""An agent of pydantic-ai with a model that follows a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    WorkspaceRef,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from execclient import WorkspaceWrite
from execclient.integrations.pydantic_ai import ExecServerWorkspace

tools = FunctionToolset[None]()


@tools.tool
async def shell(ctx: RunContext[None], command: str) -> str:
    """Run a shell command."""
    done = await ctx.workspace.run(command, shell=True, timeout=30)
    return f"{done.exit_code} {done.stdout}{done.stderr}"


@tools.tool
async def write(ctx: RunContext[None], path: str, text: str) -> str:
    """Write a file."""
    try:
        await ctx.workspace.write_text(path, text)
    except OSError as error:
        raise ModelRetry(str(error)) from error
    return "written"


def following(*calls: ToolCallPart) -> FunctionModel:
    """A model that makes these calls one after the other, and repeats what the last one returned."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done = sum(isinstance(message, ModelResponse) for message in messages)
        if done < len(calls):
            return ModelResponse(parts=[calls[done]])
        returned = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        return ModelResponse(parts=[TextPart(str(returned[0]))])

    return FunctionModel(respond)


async def test_a_model_writes_a_file_and_runs_it_in_one_workspace(url: str, folder: Path) -> None:
    agent = Agent(
        following(
            ToolCallPart("write", {"path": "src/hello.py", "text": "print(6 * 7)"}),
            ToolCallPart("shell", {"command": "python3 src/hello.py; pwd"}),
        ),
        toolsets=[tools],
        capabilities=[ExecServerWorkspace(url=url, root=str(folder))],
    )
    result = await agent.run("go")
    (made,) = folder.iterdir()
    assert result.output == f"0 42\n{made}\n"
    assert (made / "src/hello.py").read_text() == "print(6 * 7)"


async def test_a_later_run_continues_in_the_workspace_of_the_first(url: str, folder: Path) -> None:
    capability = ExecServerWorkspace[None](url=url, root=str(folder))
    first = Agent(
        following(ToolCallPart("write", {"path": "a", "text": "kept"})),
        toolsets=[tools],
        capabilities=[capability],
    )
    history = (await first.run("go")).all_messages()
    second = Agent(
        following(
            *[ToolCallPart("shell", {"command": "true"})] * 2, ToolCallPart("shell", {"command": "cat a"})
        ),
        toolsets=[tools],
        capabilities=[ExecServerWorkspace[None](url=url, root=str(folder))],
    )
    result = await second.run("and then?", message_history=history)
    assert result.output == "0 kept"
    assert len(list(folder.iterdir())) == 1


async def test_the_sandbox_stops_the_model_and_the_text_says_so(
    url: str, folder: Path, tmp_path: Path
) -> None:
    strict = WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir=True)
    agent = Agent(
        following(ToolCallPart("shell", {"command": f"echo x > {tmp_path}/outside"})),
        toolsets=[tools],
        capabilities=[ExecServerWorkspace(str(folder), url=url, sandbox=strict)],
    )
    assert "Read-only file system" in (await agent.run("go")).output
    assert not (tmp_path / "outside").exists()


async def test_a_read_only_workspace_refuses_commands(url: str, folder: Path) -> None:
    agent = Agent(
        TestModel(call_tools=["shell"]),
        toolsets=[tools],
        capabilities=[ExecServerWorkspace(str(folder), url=url, read_only=True)],
    )
    with pytest.raises(PermissionError, match="read-only"):
        await agent.run("go")


async def test_the_capability_declines_the_workspace_of_another_provider(url: str) -> None:
    ref = WorkspaceRef(provider="local", id="/")
    agent = Agent(TestModel(call_tools=[]), capabilities=[ExecServerWorkspace(url=url)])
    with pytest.raises(Exception, match="local"):
        await agent.run("go", workspace=ref)
