"""The handlers of all methods, and the parts of the server that only handlers use: fs workers and edits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from execprotocol.errors import InternalError
from execserver.api import (
    confinement,
    discovery,
    environment,
    filesystem,
    handshake,
    health,
    http,
    observing,
    ports,
    process,
    search,
    watch,
)
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.small import SmallFiles
from execserver.fsworker.launch import WorkerLauncher
from execserver.fsworker.pool import WorkerPool
from execserver.host import Host
from execserver.launch_spec import DEFAULT_PATH
from execserver.processes.executor import Executor
from execserver.rpc.handlers import Handlers
from execserver.sandbox.sandboxes import Sandboxes
from execserver.sandbox.state_folder import StateFolderError, open_state_folder
from execserver.sessions.registry import SessionRegistry
from execserver.telemetry.definitions import Gauges

if TYPE_CHECKING:
    from execserver.audit.trail import AuditTrail
    from execserver.edits.api import Edits

EDITS_FOLDER = "edits"
"""The folder in the state folder for the journal of `fs/applyEdits` (`edits/journal.py`)."""

PROGRAMS_END_SECONDS = 2.0
"""How long the end of the server waits for the killed programs of searches and watches."""


class HandlerTable:
    """Method name → handler, for all families.

    Args:
        executor: runs the processes.
        sessions: the sessions of all clients.
        sandboxes: confine processes and fs workers.
        host: the facts of the launch.
        gauges: for `server/health`.
        spool_dir: the setting of that name; it chooses the state folder.
        trail: where acts are written down; None for nowhere.
    """

    def __init__(
        self,
        executor: Executor,
        sessions: SessionRegistry,
        sandboxes: Sandboxes,
        host: Host,
        gauges: Gauges,
        spool_dir: str | None,
        trail: AuditTrail | None = None,
    ) -> None:
        self._environment = host.environment
        self._require_sandbox = host.require_sandbox
        self._spool_dir = spool_dir
        self._sessions = sessions
        self._edits: Edits | None = None
        self._mounts = MountTable()
        launcher = WorkerLauncher(sandboxes, executor.tree_killer.tag(0))
        self._workers = WorkerPool(
            launcher, can_hang=lambda: self._mounts.can_hang, start_failed=launcher.start_failed
        )
        self.handlers: Handlers = {
            **handshake.handlers(sessions, host),
            **environment.handlers(host),
            **process.ProcessHandlers(executor, host, sandboxes, sessions).table(),
            **observing.ObservingHandlers(executor, sessions).table(),
            **ports.PortHandlers(executor, sessions).table(),
            **self._file_handlers(host, sandboxes, launcher, executor.tree_killer.tag),
            **http.HttpHandlers(host).table(),
            **health.handlers(gauges, host, trail),
        }
        if trail is not None:
            from execserver.api.audited import audited  # for few daemons

            self.handlers = audited(self.handlers, trail)

    async def replay_edits(self) -> None:
        """Complete or undo the edits that a dead server has begun, before the first client connects."""
        try:
            found = os.listdir(f"{self._open_state_folder()}/{EDITS_FOLDER}")
        except (OSError, InternalError):
            return  # no edits ever, or no state folder, which others report
        if len(found) > 1:  # the lock is always there
            await self._make_edits().replay()

    async def close(self) -> None:
        """Finish the edits, and end the searches, the watches and the fs workers."""
        ended = [program for session in self._sessions for program in session.end_programs()]
        if self._edits is not None:
            await self._edits.close()
        await self._workers.close()
        if ended:
            await asyncio.wait(ended, timeout=PROGRAMS_END_SECONDS)

    def _file_handlers(
        self, host: Host, sandboxes: Sandboxes, launcher: WorkerLauncher, tag: Callable[[int], int | None]
    ) -> Handlers:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._mounts.fileno(), self._mounts.refresh)
        # The kernel reports each change once, and the registration may have taken one.
        loop.call_later(1, self._mounts.refresh)
        small = SmallFiles(self._mounts)
        tmpdir = self._environment.get("TMPDIR")
        confined = filesystem.FileConfinement(self._workers, tmpdir, small)
        handlers: Handlers = filesystem.handlers(self._mounts, small, confined, self._make_edits)
        path = self._environment.get("PATH", DEFAULT_PATH)
        handlers = {
            **handlers,
            **search.SearchHandlers(sandboxes, confined, tag, path).table(),
            **watch.WatchHandlers(launcher, self._mounts, tmpdir).table(),
        }
        if self._require_sandbox:
            handlers = confinement.require_file_limits(handlers, tmpdir)
        return {**handlers, **discovery.DiscoveryHandlers(host, confined).table()}

    def _make_edits(self) -> Edits:
        """The edits of `fs/applyEdits`, made at the first use: few daemons need them."""
        if self._edits is None:
            from execserver.edits.api import Edits

            self._edits = Edits(self._open_state_folder, self._workers)
        return self._edits

    def _open_state_folder(self) -> str:
        try:
            return open_state_folder(self._spool_dir, self._environment, os.geteuid())
        except StateFolderError as error:
            raise InternalError(str(error)) from None
