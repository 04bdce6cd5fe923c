"""An agent of the Agent Client Protocol on another machine, with the official client."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, Client, ReadTextFileResponse, spawn_agent_process, text_block
from acp.schema import AgentMessageChunk, TextContentBlock

AGENT = Path(__file__).with_name("elsewhere_agent.py")
PROMPTS = 25
LINES = 40


class Editor(Client):
    """The client: it has the files, and collects what the agent says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reads: list[str] = []

    async def read_text_file(
        self, session_id: str, path: str, *_: object, **__: object
    ) -> ReadTextFileResponse:
        self.reads.append(path)
        return ReadTextFileResponse(content="\n".join(f"{path} line {number}" for number in range(LINES)))

    async def session_update(self, session_id: str, update: Any, **_: object) -> None:
        assert isinstance(update, AgentMessageChunk)
        assert isinstance(update.content, TextContentBlock)
        self.lines.append(update.content.text)


async def test_an_agent_and_its_client_ask_each_other_each_once(url: str, tmp_path: Path) -> None:
    editor = Editor()  # type: ignore[abstract]  # the agent calls no other method
    arguments = ["-m", "execserver", "run", "--", sys.executable, str(AGENT)]
    environment = {"EXECSERVER_URL": url, "PYTHONPATH": os.getcwd()}
    async with spawn_agent_process(editor, sys.executable, *arguments, env=environment) as (agent, _):
        await agent.initialize(protocol_version=PROTOCOL_VERSION)
        session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        for prompt in range(PROMPTS):
            answer = await agent.prompt(session.session_id, [text_block(f"file-{prompt}")])
            assert answer.stop_reason == "end_turn"
    assert editor.reads == [f"file-{prompt}" for prompt in range(PROMPTS)]
    assert editor.lines == [f"{path} line {number}" for path in editor.reads for number in range(LINES)]
