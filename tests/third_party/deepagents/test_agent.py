"""An agent of deepagents, with a scripted model, that works in the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from langchain.agents.middleware.types import InputAgentState
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from execclient.integrations.deepagents import ExecServerSandbox


class ScriptedModel(GenericFakeChatModel):
    """Says what the test wants it to, whatever tools there are."""

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        return self


def script(*calls: tuple[str, dict[str, Any]]) -> ScriptedModel:
    """A model that makes these calls of tools, and then ends."""
    messages = [
        AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])
        for number, (name, args) in enumerate(calls)
    ]
    return ScriptedModel(messages=iter([*messages, AIMessage(content="It is done.")]))


def work(folder: Path) -> ScriptedModel:
    """Writes a program, runs it, corrects it, runs it again."""
    program = str(folder / "program.sh")
    return script(
        ("write_file", {"file_path": program, "content": "echo helo from $PWD\n"}),
        ("execute", {"command": "sh program.sh"}),
        ("grep", {"pattern": "helo", "path": str(folder), "output_mode": "content"}),
        ("edit_file", {"file_path": program, "old_string": "helo", "new_string": "hello"}),
        ("execute", {"command": "sh program.sh; exit 3"}),
        ("read_file", {"file_path": program}),
        ("glob", {"pattern": "*.sh", "path": str(folder)}),
        ("ls", {"path": str(folder)}),
    )


def check(messages: list[AnyMessage], folder: Path) -> None:
    texts = [message.text for message in messages if isinstance(message, ToolMessage)]
    assert len(texts) == 8
    assert f"helo from {folder}" in texts[1]
    assert "1: echo helo from $PWD" in texts[2]
    assert f"hello from {folder}" in texts[4]
    assert "exit code 3" in texts[4]
    assert "echo hello from $PWD" in texts[5]
    assert f"{folder}/program.sh" in texts[6]
    assert f"{folder}/program.sh" in texts[7]
    assert messages[-1].text == "It is done."
    assert (folder / "program.sh").read_text() == "echo hello from $PWD\n"


TASK = InputAgentState(messages=[HumanMessage("Write a program that says hello.")])


def test_an_agent_runs_commands_and_edits_files(backend: ExecServerSandbox, folder: Path) -> None:
    agent = create_deep_agent(model=work(folder), backend=backend)
    check(agent.invoke(TASK)["messages"], folder)


async def test_an_asynchronous_agent_does_the_same(backend: ExecServerSandbox, folder: Path) -> None:
    agent = create_deep_agent(model=work(folder), backend=backend)
    check((await agent.ainvoke(TASK))["messages"], folder)


@pytest.mark.parametrize("artifacts", ["", "artifacts"])
def test_a_large_result_of_a_tool_goes_to_a_file_if_one_may_be_written(
    artifacts: str, backend: ExecServerSandbox, folder: Path
) -> None:
    root = CompositeBackend(default=backend, routes={}, artifacts_root=f"{folder}/{artifacts}")
    model = script(("execute", {"command": "seq 100000"}))
    messages = create_deep_agent(model=model, backend=root).invoke(TASK)["messages"]
    (result,) = (message.text for message in messages if isinstance(message, ToolMessage))
    assert len(result) < 20_000
    (file,) = folder.rglob("call-0")
    assert file.read_text().split()[99_999] == "100000"
