"""Agents of the SDK with a scripted model: a `SandboxAgent`, and one with a shell and a patch tool."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from agents import Agent, ApplyPatchTool, RunConfig, Runner, ShellTool, Tool
from agents.items import ToolCallOutputItem, TResponseOutputItem
from agents.result import RunResult
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.testing import ModelCall, ScriptedModel, assistant_message, function_call
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseCustomToolCall,
    ResponseFunctionShellToolCall,
)

from execclient import connect
from execclient.integrations.openai_agents import ExecServerEditor, ExecServerSandboxClient, ExecServerShell

RUN = RunConfig(tracing_disabled=True)


def called(name: str, **arguments: Any) -> list[TResponseOutputItem]:
    """The step of a model that calls a tool."""
    return [function_call(name, json.dumps(arguments), call_id=uuid.uuid4().hex)]


def outputs(result: RunResult) -> list[Any]:
    """What the tools answered."""
    return [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]


def raw_outputs(result: RunResult) -> list[dict[str, Any]]:
    """The items that go back to the model."""
    return [cast("Any", item.raw_item) for item in result.new_items if isinstance(item, ToolCallOutputItem)]


def sandboxed(url: str) -> RunConfig:
    client = ExecServerSandboxClient(url)
    return RunConfig(sandbox=SandboxRunConfig(client=client), tracing_disabled=True)


async def test_a_sandbox_agent_runs_commands_and_patches_files(url: str) -> None:
    patch = "*** Begin Patch\n*** Update File: notes.txt\n@@\n-one\n+two\n*** End Patch"
    model = ScriptedModel(
        [
            called("exec_command", cmd="cat notes.txt; pwd"),
            [
                ResponseCustomToolCall(
                    type="custom_tool_call", name="apply_patch", call_id=uuid.uuid4().hex, input=patch
                )
            ],
            called("exec_command", cmd="cat notes.txt; exit 7", yield_time_ms=5000),
            [assistant_message("done")],
        ]
    )
    manifest = Manifest(entries={"notes.txt": File(content=b"one\n")})
    agent = SandboxAgent(name="worker", model=model, default_manifest=manifest)
    result = await Runner.run(agent, "work", run_config=sandboxed(url))

    assert result.final_output == "done"
    first, patched, second = outputs(result)
    root = re.search(r"^/.*/workspace$", first, re.MULTILINE)
    assert root is not None
    assert "Process exited with code 0" in first
    assert first.splitlines()[-2] == "one"
    assert "notes.txt" in patched
    assert "Process exited with code 7" in second
    assert second.splitlines()[-1] == "two"
    assert not Path(root[0]).exists()


async def test_a_sandbox_agent_works_with_a_program_that_asks(url: str) -> None:
    script = "while read line; do echo got $line; done; echo over"
    first = called("exec_command", cmd=script, tty=True, yield_time_ms=250)
    model = ScriptedModel([first])
    agent = SandboxAgent(name="worker", model=model)

    def answer(step: ModelCall) -> list[TResponseOutputItem]:
        text = json.dumps(step.input)
        found = re.search(r"session ID (\d+)", text)
        assert found is not None
        chars = "hello\n" if "got hello" not in text else "\x04"
        if "Process exited" in text:
            return [assistant_message("done")]
        return called("write_stdin", session_id=int(found[1]), chars=chars, yield_time_ms=2000)

    for _ in range(3):
        model.enqueue({"responder": answer})
    result = await Runner.run(agent, "work", run_config=sandboxed(url))
    _, hello, end = outputs(result)
    assert "hello\r\ngot hello\r\n" in hello
    assert "Process exited with code 0" in end


def shell_call(commands: Sequence[str], **action: int) -> list[TResponseOutputItem]:
    return [
        ResponseFunctionShellToolCall.model_validate(
            {
                "id": "sh_1",
                "type": "shell_call",
                "call_id": uuid.uuid4().hex,
                "status": "completed",
                "action": {
                    "commands": list(commands),
                    "max_output_length": None,
                    "timeout_ms": None,
                    **action,
                },
            }
        )
    ]


def patch_call(operation: dict[str, str]) -> list[TResponseOutputItem]:
    return [
        ResponseApplyPatchToolCall.model_validate(
            {
                "id": "ap_1",
                "type": "apply_patch_call",
                "call_id": uuid.uuid4().hex,
                "status": "completed",
                "operation": operation,
            }
        )
    ]


async def test_an_agent_with_a_shell_runs_each_command_and_stops_at_the_time_limit(
    url: str, tmp_path: Path
) -> None:
    model = ScriptedModel(
        [
            shell_call(["echo one; echo two >&2; exit 3", "pwd"]),
            shell_call(["echo begun; sleep 60", "touch never"], timeout_ms=500),
            [assistant_message("done")],
        ]
    )
    async with connect(url) as executor:
        shell = ShellTool(executor=ExecServerShell(executor, cwd=tmp_path))
        result = await Runner.run(Agent(name="worker", model=model, tools=[shell]), "work", run_config=RUN)
    first, second = (answer["output"] for answer in raw_outputs(result))
    assert [(each["stdout"], each["stderr"], each["outcome"]) for each in first] == [
        ("one\n", "two\n", {"type": "exit", "exit_code": 3}),
        (f"{tmp_path}\n", "", {"type": "exit", "exit_code": 0}),
    ]
    assert [(each["stdout"], each["outcome"]["type"]) for each in second] == [("begun\n", "timeout")]
    assert not (tmp_path / "never").exists()


async def test_an_agent_with_a_patch_tool_creates_changes_moves_and_deletes(
    url: str, tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "old").write_text("gone")
    operations = [
        {"type": "create_file", "path": "a/new", "diff": "+one\n+two\n+\n"},
        {"type": "update_file", "path": "a/new", "diff": "@@\n one\n-two\n+three\n"},
        {"type": "delete_file", "path": "old"},
        {"type": "create_file", "path": "a/new", "diff": "+again\n"},
        {"type": "update_file", "path": "missing", "diff": "@@\n-x\n+y\n"},
        {"type": "create_file", "path": f"{outside}/new", "diff": "+no\n"},
    ]
    model = ScriptedModel([*map(patch_call, operations), [assistant_message("done")]])
    async with connect(url) as executor:
        tool = ApplyPatchTool(editor=ExecServerEditor(executor, cwd=tmp_path))
        result = await Runner.run(Agent(name="worker", model=model, tools=[tool]), "work", run_config=RUN)
    states = [(answer["status"], answer["output"]) for answer in raw_outputs(result)]
    assert [state for state, _ in states] == ["completed"] * 3 + ["failed"] * 3
    assert "exists already: use update_file" in states[3][1]
    assert "missing does not exist" in states[4][1]
    assert "Read-only file system" in states[5][1]
    assert (tmp_path / "a/new").read_text() == "one\nthree\n"
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize("sandbox", ["default", "none"])
@pytest.mark.without_chaos
async def test_the_sandbox_of_a_shell_and_an_editor_can_be_lifted(
    url: str, tmp_path: Path, sandbox: str, outside: Path
) -> None:
    given: dict[str, Any] = {} if sandbox == "default" else {"sandbox": None}
    model = ScriptedModel(
        [
            shell_call([f"echo one > {outside}/one"]),
            patch_call({"type": "create_file", "path": f"{outside}/two", "diff": "+two\n"}),
            [assistant_message("done")],
        ]
    )
    async with connect(url) as executor:
        tools: list[Tool] = [
            ShellTool(executor=ExecServerShell(executor, cwd=tmp_path, **given)),
            ApplyPatchTool(editor=ExecServerEditor(executor, cwd=tmp_path, **given)),
        ]
        await Runner.run(Agent(name="worker", model=model, tools=tools), "work", run_config=RUN)
    written = sorted(path.name for path in outside.iterdir())
    assert written == (["one", "two"] if sandbox == "none" else [])
