"""The connection of a runtime: an event loop in a thread, as each call may come from another event loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from execclient import Executor as CoreExecutor
from execclient import arguments, connect
from execclient.govern.sandbox import WorkspaceWrite
from execclient.integrations.settings import SandboxSetting
from execclient.loop_thread import LoopThread
from execclient.sync import Executor

__all__ = ["Daemon", "ExecServerRuntimeConfig"]

R = TypeVar("R")


class ExecServerRuntimeConfig(BaseModel):
    """The settings of an `ExecServerRuntime`, which are its keyword arguments."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = None
    """The daemon, as for `execclient.connect`; by default `EXECSERVER_URL`, else the default socket."""
    cwd: str = ""
    """Where sessions and commands begin, the base of relative paths, and the workspace of the sandbox; by
    default the daemon's working directory."""
    env: dict[str, str] = {}
    """Variables of sessions and commands, added to those of the daemon."""
    sandbox: SandboxSetting = WorkspaceWrite()
    session_id: str | None = None
    """The session of an earlier runtime, to continue with its bash sessions."""
    ttl: float | None = Field(None, gt=0)
    """Seconds for which the daemon keeps everything while no runtime is connected; 80 s by default."""
    keep: bool = False
    """Whether `close` leaves everything to the daemon, for a runtime with this `session_id`."""


class Daemon:
    """A session with a daemon. Making one blocks, and raises as `execclient.connect` does.

    Args:
        config: where it is, and the limits.
    """

    def __init__(self, config: ExecServerRuntimeConfig) -> None:
        options: dict[str, Any] = {"ttl": config.ttl, "keep": config.keep, "client_name": "swe-rex"}
        self._thread: LoopThread[CoreExecutor] = LoopThread(
            lambda: connect(config.url, session_id=config.session_id, **options)
        )
        self._core = self._thread.enter()
        self.executor = Executor(self._thread, self._core)
        """The same without an event loop."""
        try:
            self.cwd = os.path.join(self._core.cwd, config.cwd)
            self.sandbox = arguments.sandbox(config.sandbox, self.cwd)
        except BaseException:
            self.executor.close()
            raise
        self.env = config.env
        self.files = self._core.files(self.sandbox)
        """With the limits of the sandbox."""

    def path(self, path: str) -> str:
        """The absolute path."""
        return os.path.join(self.cwd, path)

    async def call(self, make: Callable[[CoreExecutor], Coroutine[Any, Any, R]]) -> R:
        """Await a call to the executor or the files, from any event loop. Cancelling it cancels the call."""
        return await self._thread.call_async(lambda: make(self._core))
