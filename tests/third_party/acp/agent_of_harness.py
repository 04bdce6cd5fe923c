"""An agent of pydantic-ai-harness whose model follows a script, with terminals and files of the client."""

from __future__ import annotations

import warnings

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.experimental import HarnessExperimentalWarning

with warnings.catch_warnings():
    warnings.simplefilter("ignore", HarnessExperimentalWarning)
    from pydantic_ai_harness.experimental.acp import (
        AcpSession,
        AcpSessionConfig,
        acp_filesystem,
        acp_terminal,
        run_acp_stdio_sync,
    )

CALLS = (
    ToolCallPart("write_file", {"path": "src/answer.py", "content": "print(6 * 7)\n"}),
    ToolCallPart("read_file", {"path": "src/answer.py"}),
    ToolCallPart("run_command", {"command": "python3 src/answer.py; echo why >&2; exit 3"}),
    ToolCallPart("run_command", {"command": "kill -9 $$"}),
)


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The next call; at the end, what all calls returned."""
    done = sum(isinstance(message, ModelResponse) for message in messages)
    if done < len(CALLS):
        return ModelResponse(parts=[CALLS[done]])
    returned = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(parts=[TextPart("|".join(str(part.content) for part in returned))])


async def stream(messages: list[ModelMessage], info: AgentInfo):  # type: ignore[no-untyped-def]
    """The same, for a run that streams."""
    from pydantic_ai.models.function import DeltaToolCall

    (part,) = model(messages, info).parts
    if isinstance(part, ToolCallPart):
        yield {
            0: DeltaToolCall(
                name=part.tool_name, json_args=part.args_as_json_str(), tool_call_id=part.tool_call_id
            )
        }
    elif isinstance(part, TextPart):
        yield part.content


def config(session: AcpSession) -> AcpSessionConfig[None]:
    """Terminals and files of the client, which has to offer them."""
    files, terminal = acp_filesystem(session), acp_terminal(session)
    assert files is not None
    assert terminal is not None
    return AcpSessionConfig(deps=None, capabilities=[files, terminal])


run_acp_stdio_sync(Agent(FunctionModel(model, stream_function=stream)), session_config=config)
