"""The executor and the toolset of an MCP server. They are opened at the first call."""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from execclient.client import Executor, connect
from execclient.errors import (
    EnvironmentOffline,
    NoSuchProcess,
    Refused,
    SessionLost,
    Unsupported,
    UnsupportedUrl,
)
from execclient.govern.approval_policy import ON_REQUEST, ApprovalPolicy
from execclient.govern.approvals import Approvals, Reviewer
from execclient.govern.network import NetworkAccess
from execclient.govern.policy.policy import Policy
from execclient.govern.sandbox import DangerFullAccess, SandboxPolicy, WorkspaceWrite
from execclient.integrations.mcp.state import Saved, StateFile, StateUnusable
from execclient.integrations.mcp.tools import register
from execclient.tools.config import ToolsConfig
from execclient.tools.saved_sessions import SavedSession
from execclient.tools.toolset import Toolset

log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 45.0
"""Hosts give up on a call after 60 s."""

TTL_SECONDS = 900.0
"""How long commands run on while a host starts a killed server again, or its user does."""

DELIVERY_SECONDS = 0.1
"""From the end of a call to the arrival of its answer at the host."""

UNKNOWN_SANDBOX = DangerFullAccess().to_json()
"""For a command whose sandbox is not known: input for it needs an approval."""

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
    network: NetworkAccess | None = None
    """The hosts that commands may reach; None leaves the network to the sandbox and to rules about hosts."""
    approval: ApprovalPolicy = ON_REQUEST
    policy: Policy | None = None
    rules: str = "the rule files"
    """Where the rules are, in words."""
    max_wait: float = MAX_WAIT_SECONDS
    """Seconds for which a call waits for output at most."""
    ttl: float | None = None
    """Seconds for which the daemon keeps the commands without a server; None for `TTL_SECONDS`, or less if
    the daemon does not permit it."""
    keep: bool = False
    """Whether to keep them also after the host has closed the server."""
    name: str | None = None
    """Tells servers apart, in place of the name of the host."""


class CannotServe(Exception):
    """The options do not fit this machine or the daemon's; the message says which, why, and what helps."""


class Workspace:
    """The tools of a server, and the state with which another server resumes its commands.

    Args:
        options: the options of the server.
        reviewer: answers the questions.
    """

    def __init__(self, options: Options, reviewer: Reviewer) -> None:
        self._options = options
        self._reviewer = reviewer
        self._opening = asyncio.Lock()
        self._toolset: Toolset | None = None
        self._state: StateFile | None = None

    async def check(self) -> None:
        """Check that there are the daemon and the workspace.

        Raises:
            CannotServe: the workspace is no folder there.
            ConnectionFailed: and all that `connect` raises.
        """
        executor = await self._connect(None)
        try:
            await self._folder(executor)
        finally:
            await executor.close()

    async def toolset(self, host: str) -> Toolset:
        """The toolset.

        Args:
            host: the name of the host. The first one counts.

        Raises:
            CannotServe: the workspace is no folder there.
            ConnectionFailed: and all that `connect` raises.
        """
        async with self._opening:
            if self._toolset is not None and self._toolset.executor.closed:
                log.warning("the session with the daemon is lost, and with it the commands: a new one begins")
                await self._toolset.close()
                self._toolset = None
            if self._toolset is None:
                self._toolset = await self._open(host)
            return self._toolset

    def save_soon(self) -> None:
        """Save what answers have returned until now, once the host has probably received them.

        After a kill before that, the next server returns this output again. It loses none.
        """
        if self._toolset is not None:
            saved = _saved(self._toolset)
            asyncio.get_running_loop().call_later(DELIVERY_SECONDS, self._save, saved)

    async def close(self) -> None:
        """End the commands and the session, or with `keep` leave them to the daemon."""
        toolset, state = self._toolset, self._state
        self._toolset = None
        if toolset is not None:
            if self._options.keep:
                saved = _saved(toolset)
                await toolset.executor.detach()
                if state is not None:
                    state.write(saved)
            else:
                await toolset.close()
                await toolset.executor.close()
                if state is not None:
                    state.remove()
        if state is not None:
            state.close()

    # -- inside

    def _save(self, saved: Saved) -> None:
        """Save the state, unless its session has ended meanwhile."""
        toolset, state = self._toolset, self._state
        if toolset is not None and toolset.executor.session_id == saved.session_id and state is not None:
            state.write(saved)

    async def _open(self, host: str) -> Toolset:
        if self._state is None:
            self._state = self._state_file(host)
        saved = None if self._state is None else self._state.read()
        executor = await self._connect(saved)
        try:
            toolset = Toolset(
                executor,
                policy=self._options.policy,
                approvals=Approvals(user=self._reviewer, policy=self._options.approval),
                sandbox=self._options.sandbox,
                cwd=await self._folder(executor),
                config=ToolsConfig(
                    apply_patch=True, max_wait=self._options.max_wait, network=self._options.network
                ),
            )
            register(toolset)
            if saved is not None and saved.session_id == executor.session_id:
                await _resume(toolset, saved)
        except BaseException:
            await executor.detach()
            raise
        if self._state is not None:
            self._state.write(_saved(toolset))
        return toolset

    def _state_file(self, host: str) -> StateFile | None:
        options = self._options
        url = options.url or os.environ.get("EXECSERVER_URL", "")
        try:
            return StateFile((url, os.path.join(os.getcwd(), options.cwd or ""), options.name or host))
        except StateUnusable as error:
            log.warning("%s; a server that is started after this one will not find its commands", error)
            return None

    async def _connect(self, saved: Saved | None) -> Executor:
        """Resume the session, or open a new one if the daemon no longer has it."""
        if saved is not None:
            # The connection of the killed server is about to end: the client waits for that.
            with suppress(SessionLost, EnvironmentOffline):
                return await self._connected(saved.session_id, saved.url or self._options.url)
        return await self._connected(None, self._options.url)

    async def _connected(self, session_id: str | None, url: str | None) -> Executor:
        options = self._options
        connecting = partial(
            connect,
            url,
            token_file=options.token_file,
            session_id=session_id,
            client_name=CLIENT_NAME,
        )
        try:
            return await connecting(ttl=options.ttl or TTL_SECONDS)
        except (Refused, Unsupported, UnsupportedUrl):
            if options.ttl is not None:
                raise
            return await connecting()

    async def _folder(self, executor: Executor) -> str:
        """The workspace, absolute, at the daemon."""
        is_here = executor.url.startswith(("unix:", "stdio:"))
        base = os.getcwd() if is_here else executor.cwd
        folder = posixpath.normpath(posixpath.join(base, self._options.cwd or ""))
        if not await executor.fs.is_dir(folder):
            raise CannotServe(f"--cwd: {folder}: no such directory on the daemon's machine")
        if folder == "/" and isinstance(self._options.sandbox, WorkspaceWrite):
            raise CannotServe(
                "--cwd: the workspace would be /, and everything writable: name the folder of the project"
            )
        return folder


def _saved(toolset: Toolset) -> Saved:
    executor = toolset.executor
    return Saved(executor.session_id, toolset.sessions, executor.url)


async def _resume(toolset: Toolset, saved: Saved) -> None:
    """Continue the commands of the server before, also those whose start it could not report any more."""
    known = {each.process_id for each in saved.sessions}
    unreported = [
        SavedSession(None, each.process_id, each.argv, each.cwd, each.tty, UNKNOWN_SANDBOX, 0)
        for each in await toolset.executor.processes(argv=True)
        if each.state == "running" and each.process_id not in known and each.argv and each.cwd
    ]
    for each in (*saved.sessions, *unreported):
        try:
            await toolset.resume(each)
        except NoSuchProcess:
            log.warning("the daemon has forgotten the command of session %s: %s", each.number, each.command)
