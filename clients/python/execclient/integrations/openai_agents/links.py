"""The connections of a client, one for each of its sessions at the daemon."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from execclient.client import Executor, connect
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.errors import SessionLost
from execclient.govern.sandbox import SandboxPolicy
from execclient.integrations.openai_agents.state import ExecServerSandboxSessionState
from execclient.integrations.openai_agents.terminals import Terminals


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client: no saved state of a session can change them."""

    url: str | None
    sandbox: SandboxPolicy | None
    ttl: float | None
    inherit: Inherit | EnvironmentPolicy


@dataclass(slots=True)
class Link:
    """A connection, and the running commands behind it."""

    executor: Executor
    terminals: Terminals
    users: int = 0
    """Sessions of the SDK that use it: more than one if one was resumed before the other was closed."""


class Links:
    """The open connections of a client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open: dict[str, Link] = {}

    async def open(self, state: ExecServerSandboxSessionState) -> Link:
        """The connection to the session of a state, or to a new session if it has none or it has ended.

        Raises:
            ExecServerError: as `connect`.
        """
        link = self._open.get(state.executor_session_id)
        if link is None:
            executor = await self._connected(state.executor_session_id)
            link = Link(executor, Terminals(executor, state))
            try:
                await link.terminals.find()
            except BaseException:
                await executor.detach()
                raise
            state.executor_session_id = executor.session_id
            self._open[executor.session_id] = link
        link.users += 1
        return link

    async def close(self, link: Link) -> None:
        """End the session of a connection that no session of the SDK uses any more."""
        link.users -= 1
        if not link.users:
            del self._open[link.executor.session_id]
            await link.executor.close()

    async def _connected(self, session_id: str) -> Executor:
        connected = partial(connect, self.settings.url, ttl=self.settings.ttl)
        if session_id:
            with suppress(SessionLost):
                return await connected(session_id=session_id)
        return await connected()
