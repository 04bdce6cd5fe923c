"""An agent of the Agent Client Protocol that is reached by `execserver run`.

For each prompt it reads a file of the client, and streams it back line by line.
"""

from __future__ import annotations

import asyncio
from typing import Any

from acp import (
    PROTOCOL_VERSION,
    Agent,
    Client,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    run_agent,
    update_agent_message_text,
)


class Reader(Agent):
    """The agent."""

    client: Client

    def on_connect(self, conn: Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, *_: object, **__: object) -> InitializeResponse:
        return InitializeResponse(protocol_version=PROTOCOL_VERSION)

    async def new_session(self, cwd: str, *_: object, **__: object) -> NewSessionResponse:
        return NewSessionResponse(session_id=cwd)

    async def prompt(self, session_id: str, prompt: list[Any], **_: object) -> PromptResponse:
        answer = await self.client.read_text_file(session_id=session_id, path=prompt[0].text)
        for line in answer.content.splitlines():
            await self.client.session_update(session_id, update_agent_message_text(line))
        return PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(run_agent(Reader()))  # type: ignore[abstract]  # it needs no other method
