"""What an evaluation of the tests needs: samples of a daemon, and a model that follows a script."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.log import EvalLog
from inspect_ai.model import (
    ChatMessage,
    ChatMessageTool,
    GenerateConfig,
    Model,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from execclient import Executor, NotFound, connect
from execclient.integrations.inspect_ai import (
    FOLDER,
    ExecServerSandboxConfig,
    ExecServerSandboxEnvironment,
)

Call = tuple[str, dict[str, Any]]
"""The name of a tool, and its arguments."""


def scripted(calls: Sequence[Call]) -> Model:
    """A model that makes these tool calls, one after the other in each sample, and then answers `done`."""

    def output(
        messages: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        made = sum(isinstance(message, ChatMessageTool) for message in messages)
        if made < len(calls):
            answer = ModelOutput.for_tool_call("mockllm/model", *calls[made])
        else:
            answer = ModelOutput.from_content("mockllm/model", "done")
        answer.usage = ModelUsage()  # the model would else download a table to count tokens
        return answer

    return get_model("mockllm/model", custom_outputs=output)


def evaluation(task: Task, calls: Sequence[Call], folder: Path) -> EvalLog:
    """The log of an evaluation of all samples at once, in which the model makes these calls."""
    count = len(task.dataset)
    (log,) = evaluate(
        task,
        model=scripted(calls),
        display="none",
        log_dir=str(folder),
        max_samples=count,
        log_level="warning",
    )
    gc.collect()  # Inspect leaves streams open, with a warning that belongs to no later test
    return log


@asynccontextmanager
async def sample(config: ExecServerSandboxConfig) -> AsyncIterator[ExecServerSandboxEnvironment]:
    """An environment from its beginning to its end."""
    environments = await ExecServerSandboxEnvironment.sample_init("test", config, {})
    try:
        yield environments["default"].as_type(ExecServerSandboxEnvironment)
    finally:
        await ExecServerSandboxEnvironment.sample_cleanup("test", config, environments, False)


async def left(executor: Executor) -> tuple[list[str], list[str]]:
    """The working directories at a daemon, and its processes that run."""
    folder = f"{executor.home}/{FOLDER}"
    try:
        names = [entry.name for entry in await executor.fs.iterdir(folder)]
    except NotFound:
        names = []
    processes = await executor.processes(all_sessions=True)
    return names, [each.process_id for each in processes if each.state == "running"]


async def left_at(url: str) -> tuple[list[str], list[str]]:
    """The same, over a connection of its own."""
    async with connect(url) as executor:
        return await left(executor)
