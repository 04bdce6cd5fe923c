"""The executor and the toolset of an MCP server. They are opened at the first call."""

from __future__ import annotations

import asyncio
import os
import posixpath
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from execclient.client import Executor, connect
from execclient.govern.approval_policy import ON_REQUEST, ApprovalPolicy
from execclient.govern.approvals import Approvals, Reviewer
from execclient.govern.policy.policy import Policy
from execclient.govern.sandbox import SandboxPolicy, WorkspaceWrite
from execclient.tools.config import ToolsConfig
from execclient.tools.toolset import Toolset

MAX_WAIT_SECONDS = 45.0
"""Hosts give up on a call after 60 s."""

CLIENT_NAME = "execserver-mcp"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `execserver mcp`."""

    url: str | None = None
    """The daemon; None for `EXECSERVER_URL`, else the default socket."""
    token_file: Path | None = None
    cwd: str | None = None
    """The workspace. It is relative to the current directory, which is the default; at a daemon on another
    machine to that of the daemon."""
    sandbox: SandboxPolicy = WorkspaceWrite()  # noqa: RUF009 - immutable
    approval: ApprovalPolicy = ON_REQUEST
    policy: Policy | None = None
    rules: str = "the rule files"
    """Where the rules are, in words."""
    max_wait: float = MAX_WAIT_SECONDS
    """Seconds for which a call waits for output at most."""


class WorkspaceMissing(Exception):
    """The workspace is no folder on the daemon's machine."""


class Workspace:
    """The tools of a server.

    Args:
        options: the options of the server.
        reviewer: answers the questions.
    """

    def __init__(self, options: Options, reviewer: Reviewer) -> None:
        self._options = options
        self._reviewer = reviewer
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._toolset: Toolset | None = None

    async def toolset(self) -> Toolset:
        """The toolset. Raises as `connect` does."""
        async with self._opening:
            if self._toolset is None:
                self._toolset = await self._open()
            return self._toolset

    async def check(self) -> None:
        """Check that there are the daemon and the workspace.

        Raises:
            WorkspaceMissing: there is no such folder.
            ConnectionFailed: and all that `connect` raises.
        """
        async with self._connect() as executor:
            await self._folder(executor)

    async def close(self) -> None:
        """End the commands and the session."""
        await self._stack.aclose()

    async def _open(self) -> Toolset:
        options = self._options
        executor = await self._stack.enter_async_context(self._connect())
        toolset = Toolset(
            executor,
            policy=options.policy,
            approvals=Approvals(user=self._reviewer, policy=options.approval),
            sandbox=options.sandbox,
            cwd=await self._folder(executor),
            config=ToolsConfig(apply_patch=True, max_wait=options.max_wait),
        )
        return await self._stack.enter_async_context(toolset)

    def _connect(self) -> connect:
        return connect(self._options.url, token_file=self._options.token_file, client_name=CLIENT_NAME)

    async def _folder(self, executor: Executor) -> str:
        """The workspace, absolute, at the daemon."""
        is_here = executor.url.startswith(("unix:", "stdio:"))
        base = os.getcwd() if is_here else executor.cwd
        folder = posixpath.normpath(posixpath.join(base, self._options.cwd or ""))
        if not await executor.fs.is_dir(folder):
            raise WorkspaceMissing(f"--cwd: {folder}: no such directory on the daemon's machine")
        if folder == "/" and isinstance(self._options.sandbox, WorkspaceWrite):
            raise WorkspaceMissing(
                "--cwd: the workspace would be /, and everything writable: name the folder of the project"
            )
        return folder
