"""An agent made of ACP's own classes: its turn is a script of calls to the client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import acp
from acp.schema import (
    AgentCapabilities,
    AudioContentBlock,
    ClientCapabilities,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    Implementation,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    ResourceContentBlock,
    TextContentBlock,
)


class Agent(acp.Agent):
    """Runs a command, kills another one, writes and reads a file, and reports all results as JSON."""

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: ClientCapabilities | None = None,
        client_info: Implementation | None = None,
        **kwargs: Any,
    ) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version, agent_capabilities=AgentCapabilities())

    async def new_session(self, cwd: str, *args: Any, **kwargs: Any) -> NewSessionResponse:
        self._cwd = cwd
        return NewSessionResponse(session_id="one")

    async def prompt(
        self,
        session_id: str,
        prompt: list[
            TextContentBlock
            | ImageContentBlock
            | AudioContentBlock
            | ResourceContentBlock
            | EmbeddedResourceContentBlock
        ],
        **kwargs: Any,
    ) -> PromptResponse:
        client, path = self._client, f"{self._cwd}/notes.txt"
        await client.write_text_file(session_id, path, "one\ntwo\nthree\n")
        line = (await client.read_text_file(session_id, path, line=2, limit=1)).content
        first = await client.create_terminal(session_id, "wc", ["-l", path], output_byte_limit=1000)
        done = await client.wait_for_terminal_exit(session_id, first.terminal_id)
        output = await client.terminal_output(session_id, first.terminal_id)
        await client.release_terminal(session_id, first.terminal_id)
        second = await client.create_terminal(session_id, "sleep 3600", cwd=self._cwd)
        await client.kill_terminal(session_id, second.terminal_id)
        killed = await client.wait_for_terminal_exit(session_id, second.terminal_id)
        try:
            await client.read_text_file(session_id, "notes.txt")
            error = None
        except acp.RequestError as refused:
            error = (refused.code, str(refused))
        report = [line, done.exit_code, output.output, killed.signal, error]
        await client.session_update(session_id, acp.update_agent_message_text(json.dumps(report)))
        return PromptResponse(stop_reason="end_turn")


asyncio.run(acp.run_agent(Agent()))  # type: ignore[abstract] # the client calls no other method
