"""An ACP client with the terminals and files of a daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    CreateElicitationResponse,
    ElicitationMode,
    PermissionOption,
    RequestPermissionResponse,
    TextContentBlock,
    ToolCallUpdate,
)

from execclient import connect
from execclient.integrations.acp import ExecServerClient


class Editor(ExecServerClient):
    """A client that allows everything, and keeps what the agent says."""

    said = ""

    async def session_update(self, session_id: str, update: object, **kwargs: Any) -> None:
        if isinstance(update, AgentMessageChunk) and isinstance(update.content, TextContentBlock):
            self.said += update.content.text

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **kwargs: Any
    ) -> RequestPermissionResponse:
        outcome = AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return RequestPermissionResponse(outcome=outcome)

    async def create_elicitation(
        self, message: str, mode: ElicitationMode, **kwargs: Any
    ) -> CreateElicitationResponse:
        raise acp.RequestError.method_not_found("elicitation/create")

    async def complete_elicitation(self, elicitation_id: str, **kwargs: Any) -> None:
        """There is none."""

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise acp.RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """There is none."""

    def on_connect(self, conn: acp.Agent) -> None:
        """The connection is not needed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace."""
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture
async def editor(url: str, folder: Path) -> AsyncIterator[Editor]:
    """A client whose workspace is the folder."""
    async with connect(url) as executor:
        yield Editor(executor, workspace=str(folder))
