"""The saved state of a sandbox session, and the options of a new one."""

from __future__ import annotations

from typing import Literal

from agents.sandbox.session import BaseSandboxClientOptions, SandboxSessionState
from pydantic import BaseModel, Field


class ExecServerSandboxClientOptions(BaseSandboxClientOptions):
    """The options of a new session: none.

    Address, sandbox and environment belong to the client, so that no saved state can change them.
    """

    type: Literal["execserver"] = "execserver"


class PtyPosition(BaseModel):
    """The output of a command that the SDK has received."""

    after_seq: int = 0
    """The number of the last chunk at the daemon."""
    held_back: str = ""
    """The bytes of an incomplete character at its end, which were not delivered, in hexadecimal."""


class ExecServerSandboxSessionState(SandboxSessionState):
    """A session that `ExecServerSandboxClient.resume` finds again. Trust it: it names the writable folder."""

    type: Literal["execserver"] = "execserver"
    executor_session_id: str = ""
    """The session at the daemon, to which the commands belong."""
    workspace_root_owned: bool = False
    """Whether the workspace was created for this session, and ends with `ExecServerSandboxClient.delete`."""
    pty_positions: dict[int, PtyPosition] = Field(default_factory=dict)
    """How far the output of each running command was read, by its number."""
