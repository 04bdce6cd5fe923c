"""The server process: wires the parts, and owns the order of start-up, upgrade and shut-down.

Start-up: facts of the launch, checks (`preflight.py`), chdir to `/`, logs, loop, executor, sessions (also
those of a dead server), handlers, listeners, *ready*. Shut-down: stop accepting, kill by ownership tag, send
the last events, drop connections, exit. Upgrade: try the new code (`upgrade.py`), stop reading, answer what
was read, exit; no process is killed. The supervisor does the rest (`supervisor/program.py`).
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import uvloop

from execserver import descendants, fault_points, upgrade
from execserver.api import health
from execserver.api.handler_table import HandlerTable
from execserver.configuration.model import Settings
from execserver.fault_points import reach
from execserver.filesystem.blocking import run_in_background
from execserver.host import Host
from execserver.late_modules import freeze_heap, load_when_quiet
from execserver.loading import LOADER
from execserver.memory import reuse_buffers, widen_descriptor_table
from execserver.preflight import (
    check_confinement,
    check_exposure,
    daemon_paths,
    open_trail,
    remote_identity,
)
from execserver.processes.executor import Executor
from execserver.processes.recovery_state import RecoveredState, RecoveryState
from execserver.processes.spawn import Spawner
from execserver.processes.takeover import Takeover
from execserver.rpc.channel import Channel
from execserver.rpc.connection import Connection
from execserver.sandbox.sandboxes import Sandboxes
from execserver.sandbox.state_folder import StateFolderError, open_state_folder
from execserver.sessions.registry import SessionRegistry
from execserver.spool.spool import Spool, SpoolLimits
from execserver.supervisor.server_channel import (
    ChannelError,
    Hello,
    PassedListener,
    ServerChannel,
    SupervisorGoneError,
    open_supervisor_pidfd,
)
from execserver.telemetry import logs, tracing
from execserver.telemetry.definitions import Gauges
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures
from execserver.transports.authentication import ConfigurationError, Credentials
from execserver.transports.listener import SocketListener, serve_socket
from execserver.transports.stdio import serve_stdio

if TYPE_CHECKING:
    from execserver.audit.trail import AuditTrail
    from execserver.relay.executor.executor import RemoteExecutor
    from execserver.relay.executor.identity import Identity

log = Logger()

LAST_EVENTS_SECONDS = 1.0
"""How long clients may take for the last events at the end of the service."""

LAST_ANSWERS_SECONDS = 10.0
"""How long requests that were read before an upgrade may take."""

WARM_UP_AFTER_SECONDS = 2.0
"""When the mechanisms of sandboxes are tried, unless a request needs them earlier. It takes a tenth of a
second of a processor, which should not delay a client that starts a daemon for a single command."""

LAST_FRAMES_SECONDS = 1.0
"""How long a relay may take for the last bytes to its clients."""

LAST_SPANS_SECONDS = 1.0
"""How long the last spans may take to reach their collector."""

SWITCH_INTERVAL_SECONDS = 0.0005
"""How soon a file-system thread yields to the loop; Python's default of 5 ms is too long."""


def run(config: Settings, config_file: str | None = None) -> int:
    """Serve until the service ends. Return an exit code, or end the process.

    Args:
        config: the settings.
        config_file: the file that the settings were read from, which no sandbox shows.
    """
    reuse_buffers()
    widen_descriptor_table()
    try:
        channel, hello = ServerChannel.from_environment()
    except ChannelError as error:
        print(f"execserver: {error}", file=sys.stderr)  # noqa: T201
        return 1
    host = Host(require_sandbox=config.require_sandbox, command_limits=config.command_limits)
    try:
        credentials = Credentials(config.authentication, base=host.cwd)
        check_exposure(config, hello)
        identity = remote_identity(config, hello, host)
        sandboxes = Sandboxes(
            config.sandboxes, daemon_paths(config, hello, host, config_file), host.environment
        )
        if not hello.take_over:  # else running processes would end for it, and each request is refused anyway
            check_confinement(config, sandboxes)
    except ConfigurationError as error:
        print(f"execserver: {error}", file=sys.stderr)  # noqa: T201
        return 1
    fault_points.arm(os.environ)
    os.chdir("/")
    writer = logs.configure(config.log_level, config.log_format)
    tracing.configure()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Only the supervisor stops the server; a command's `kill $PPID` must not.
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        trail = open_trail(config, hello, host)
    except ConfigurationError as error:
        print(f"execserver: {error}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        # Never closed, as `uvloop.run` would do: that waits for threads, and a silent name server blocks one
        # for half a minute.
        code = loop.run_until_complete(
            Server(config, hello, channel, host, credentials, sandboxes, identity, trail).serve()
        )
    except SupervisorGoneError:
        kill_what_is_left()
        code = 1
    tracing.shut_down(LAST_SPANS_SECONDS)
    writer.flush(1.0)
    # Without waiting for threads: one may hang in a dead mount.
    os._exit(code)


def kill_what_is_left() -> None:
    """Kill the processes of the service in place of the supervisor, which is gone, before there is an
    executor that could. A server that is dismissed before its hello has started none.
    """
    owner = descendants.split_tag(descendants.own_limit())
    # A server that a command starts by itself, without a supervisor, has the number of its process.
    if owner is not None and owner[1] == 0:
        with suppress(OSError):  # no descriptors: the next daemon with this state folder does it
            descendants.kill_descendants(owner[0], roots=[os.getpid()])


class Server:
    """One server process."""

    def __init__(
        self,
        config: Settings,
        hello: Hello,
        channel: ServerChannel,
        host: Host,
        credentials: Credentials,
        sandboxes: Sandboxes,
        identity: Identity | None = None,
        trail: AuditTrail | None = None,
    ) -> None:
        self._config = config
        self._trail = trail
        self._hello = hello
        self._channel = channel
        self._host = host
        self._credentials = credentials
        self._sandboxes = sandboxes
        self._reloads: set[asyncio.Task[None]] = set()
        self._stop_requested = asyncio.Event()
        self._stopping = False
        self._exit_code = 0
        self._executor: Executor | None = None
        self._table: HandlerTable | None = None
        self._upgrading = False
        self._stop_received = False
        self._connections: set[Connection] = set()
        self._sessions: SessionRegistry | None = None
        self._listeners: list[SocketListener] = []
        self._identity = identity
        self._remote: RemoteExecutor | None = None
        self._loading: asyncio.Task[None] | None = None

    async def serve(self) -> int:
        """Run the server from start-up to its end; return the exit code."""
        self._watch_supervisor()
        recovery, recovered = self._take_over()
        executor = self._executor = self._make_executor(recovery)
        sessions = SessionRegistry(executor, self._config.session_ttl, self._config.max_session_ttl)
        self._sessions = sessions
        if recovered is not None:
            takeover = Takeover(executor, self._sandboxes, recovered)
            sessions.inherit(takeover)
            await takeover.kill_unfinished_starts()
            reach("take-over-restored")
        loop = asyncio.get_running_loop()
        loop.add_reader(self._hello.fd_store.fileno(), self._fd_store_readable, executor)
        gauges = self._make_gauges(executor, sessions)
        table = self._table = HandlerTable(
            executor,
            sessions,
            self._sandboxes,
            self._host,
            gauges,
            self._config.sandboxes.spool_dir,
            self._trail,
        )

        def connect(channel: Channel) -> Connection:
            connection = Connection(
                channel,
                table.handlers,
                self._config.concurrent_requests,
                lambda lost: self._connection_lost(lost, sessions),
            )
            self._connections.add(connection)
            if self._stopping:
                connection.stop_reading()
            return connection

        await table.replay_edits()
        for listener in self._hello.listeners:
            await self._listen(listener, connect, executor, gauges)
        freeze_heap()
        LOADER.use_reserved_descriptors = executor.reserved.released
        self._loading = loop.create_task(self._load_late_modules(executor))
        loop.call_later(WARM_UP_AFTER_SECONDS, run_in_background, self._sandboxes.warm_up)
        if self._remote is not None:
            self._remote.start()
        self._channel.send({"type": "ready", "drainGraceSeconds": self._config.drain_grace})
        if self._hello.beat_seconds is not None:
            self._beat(self._hello.beat_seconds)
        log.info("ready", listeners=[listener.url for listener in self._hello.listeners])
        await self._stop_requested.wait()
        if self._upgrading:
            await self._drain_for_upgrade(executor)
        if not self._upgrading or self._stop_received:
            await self._shut_down(executor)
        return self._exit_code

    # -- start-up

    def _watch_supervisor(self) -> None:
        loop = asyncio.get_running_loop()
        pidfd = open_supervisor_pidfd(self._hello.supervisor_pid)
        loop.add_reader(pidfd, self._supervisor_gone)
        loop.add_reader(self._channel.fileno(), self._supervisor_readable)

    def _take_over(self) -> tuple[RecoveryState, RecoveredState | None]:
        """Begin a service, or take over from an earlier server."""
        fd_store = self._hello.fd_store
        if not self._hello.take_over:
            return RecoveryState.begin(fd_store, self._host.cwd, self._host.provider_id), None
        handed = fd_store.take_over()
        if not RecoveryState.has_begun(handed):
            return RecoveryState.begin(fd_store, self._host.cwd, self._host.provider_id), None
        recovery, recovered = RecoveryState.resume(fd_store, handed)
        service = recovered.state.service
        if service is not None:
            self._host = self._host.continued(service.cwd, service.provider_id)
        fault_points.only_of_take_over(first=service is None or service.servers == 1)
        reach("take-over-begun")
        if recovered.state.skipped:
            log.warning("parts of the ledger were not understood", lines=recovered.state.skipped)
        return recovery, recovered

    def _make_executor(self, recovery: RecoveryState) -> Executor:
        home = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        nofile = self._hello.nofile_soft
        return Executor(
            self._hello.instance,
            (os.getpid(), self._hello.supervisor_pid),
            Spawner(home, null, nofile if nofile != soft else None),
            self._config.limits,
            self._sandboxes,
            recovery,
            _make_spool(self._config, self._host, recovery),
        )

    def _make_gauges(self, executor: Executor, sessions: SessionRegistry) -> Gauges:
        return Gauges(
            stopping=lambda: self._stopping,
            draining=lambda: sessions.draining,
            sessions=lambda: len(sessions),
            connections=lambda: len(self._connections),
            processes=lambda: executor.live,
            retained_output_bytes=lambda: executor.retained_output_bytes,
            retained_output_limit_bytes=self._config.limits.spool_max_bytes,
            queued_input_bytes=lambda: executor.queued_input_bytes,
        )

    async def _listen(
        self,
        passed: PassedListener,
        connect: Callable[[Channel], Connection],
        executor: Executor,
        gauges: Gauges,
    ) -> None:
        if passed.stdio is not None:
            serve_stdio(*passed.stdio, connect, self._config.stdio_spin_us, lambda: not executor.live)
            return
        if passed.kind == "remote":
            self._remote = self._make_remote(connect, executor, gauges)
            return
        assert passed.socket is not None
        assert passed.kind != "stdio"
        if passed.kind == "tcp" and self._config.authentication.ws_auth is None:
            log.warning("every local user can connect without credentials", url=passed.url)
        elif passed.kind == "tcp" and self._credentials.has_short_token:
            log.warning(
                "the token has fewer than 16 bytes, and can be guessed unless it is random", url=passed.url
            )
        self._listeners.append(
            await serve_socket(
                passed.socket,
                passed.kind,
                connect,
                self._credentials,
                host_names=self._config.ws_host,
                may_accept=lambda: not executor.reserved.uses,
                pages=health.pages(gauges),
                upgrades=lambda: not self._stopping,
            )
        )

    def _make_remote(
        self, connect: Callable[[Channel], Connection], executor: Executor, gauges: Gauges
    ) -> RemoteExecutor:
        from execserver.relay.executor.executor import Load, RemoteExecutor

        assert self._identity is not None
        return RemoteExecutor(
            self._identity,
            connect,
            may_open=lambda: not (self._stopping or executor.reserved.uses),
            load=lambda: Load(
                gauges.sessions(), measures.sessions_opened, draining=self._stopping or gauges.draining()
            ),
            refused=self._refused_remotely if self._config.remote_exit_on_refusal else None,
        )

    def _refused_remotely(self, reason: str) -> None:
        log.error("the service ends: the registry refuses it", reason=reason)
        self._exit_code = 1
        self._stop_requested.set()

    async def _load_late_modules(self, executor: Executor) -> None:
        only_stdio = all(listener.kind == "stdio" for listener in self._hello.listeners)
        await load_when_quiet(executor, only_stdio=only_stdio)
        run_in_background(self._sandboxes.sweep)
        run_in_background(_sweep_groups)

    # -- life

    def _connection_lost(self, connection: Connection, sessions: SessionRegistry) -> None:
        self._connections.discard(connection)
        if connection.attached_session is not None:
            sessions.detach(connection.attached_session)
        if any(listener.kind == "stdio" for listener in self._hello.listeners) and connection.peer == "stdio":
            # The end of the input is the end of the service.
            self._stop_requested.set()

    def _supervisor_readable(self) -> None:
        try:
            message = self._channel.receive()
        except ChannelError as error:
            log.error("message from the supervisor not understood", reason=str(error))
            return
        if message is None:
            self._supervisor_gone()
        elif message["type"] == "stop":
            self._stop_received = True
            self._stop_requested.set()
        elif message["type"] == "drain":
            self._drain(message["endsInMs"], active=message["active"])
        elif message["type"] == "reload" and not self._stopping:  # else the new server's ready answers it
            task = asyncio.get_running_loop().create_task(self._reload())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    def _drain(self, ends_in_ms: int | None, *, active: bool) -> None:
        # The registry is made, with the sessions of an earlier server, before the loop turns.
        assert self._sessions is not None
        if active:
            report = lambda count: self._channel.send({"type": "sessions", "count": count})  # noqa: E731
            self._sessions.drain(ends_in_ms, report)
        else:
            self._sessions.cancel_drain()

    def _beat(self, seconds: float) -> None:
        """Report to the watchdog that the loop turns."""
        self._channel.send({"type": "beat"})
        asyncio.get_running_loop().call_later(seconds, self._beat, seconds)

    def _fd_store_readable(self, executor: Executor) -> None:
        while (ended := self._hello.fd_store.receive()) is not None:
            executor.inherited_end(ended.number, ended.status)

    async def _reload(self) -> None:
        """Begin an upgrade to a server with new code, settings and credentials, if it would start."""
        if any(listener.kind == "stdio" for listener in self._hello.listeners):
            # Half-read requests cannot be taken over, so only the credentials change.
            error = await self._credentials.reload()
            log.info("reloaded", reason=error)
            self._channel.send({"type": "reloaded", "error": error})
            return
        error = await self._credentials.fault() or await self._why_no_upgrade()
        if error is not None:
            log.warning("no upgrade: everything is as before", reason=error)
            self._channel.send({"type": "reloaded", "error": error})
        elif not self._stopping:
            log.info("upgrading", connections=len(self._connections))
            self._upgrading = True
            self._stop_requested.set()

    def _supervisor_gone(self) -> None:
        """Kill all processes and exit: the supervisor, which would do it, is gone."""
        try:
            if self._executor is not None:
                self._executor.tree_killer.kill_all()
        finally:
            os._exit(1)

    async def _why_no_upgrade(self) -> str | None:
        tag = self._executor.tree_killer.tag(0) if self._executor is not None else None
        remote_url = next((each.url for each in self._hello.listeners if each.kind == "remote"), None)
        return await upgrade.why_not(sys.argv[2:], self._host, remote_url, tag)

    # -- the end

    async def _drain_for_upgrade(self, executor: Executor) -> None:
        """Answer the messages that were read and end; the processes run on. Return early if the service is to
        stop.
        """
        self._stopping = True
        self._channel.send({"type": "upgrading"})
        for listener in self._listeners:
            listener.close()
        for connection in self._connections:
            connection.drain()
        if self._remote is not None:
            self._remote.close()
        executor.expedite()
        deadline = asyncio.get_running_loop().time() + LAST_ANSWERS_SECONDS
        while not all(connection.has_answered for connection in self._connections):
            if self._stop_received:
                return
            if asyncio.get_running_loop().time() > deadline:
                log.warning("some requests are not answered in time")
                break
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort()
        await self._leave_relay()

    async def _shut_down(self, executor: Executor) -> None:
        self._stopping = True
        log.info("stopping", connections=len(self._connections))
        self._channel.send({"type": "stopping"})
        executor.stopping = True
        executor.end_all_for("serviceStop")
        for connection in self._connections:
            connection.stop_reading()
        survivors = await asyncio.to_thread(executor.tree_killer.kill_all)
        if survivors:
            log.error("some processes could not be killed", pids=survivors)
        if self._table is not None:
            await self._table.close()
        await asyncio.to_thread(self._sandboxes.close)
        if executor.tree_killer.leaves is not None:
            await asyncio.to_thread(executor.tree_killer.leaves.close)
        await self._send_last_events()
        for listener in self._listeners:
            # Until here they have served the pages that report the end of the service.
            listener.close()
        for connection in list(self._connections):
            connection.abort()
        await self._leave_relay()
        executor.close()

    async def _leave_relay(self) -> None:
        if self._remote is not None:
            self._remote.close()
            await self._remote.closed(LAST_FRAMES_SECONDS)

    async def _send_last_events(self) -> None:
        """Send the exits of the killed processes to the clients."""
        deadline = asyncio.get_running_loop().time() + LAST_EVENTS_SECONDS
        while any(connection.has_pending_data() for connection in self._connections):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.005)


def _make_spool(config: Settings, host: Host, recovery: RecoveryState) -> Spool:
    def tell(failing: bool, reason: str) -> None:
        if failing:
            log.warning("output is kept in memory: the disk takes none", reason=reason)
        else:
            log.info("output is kept on disk again")

    folder: str | None = None
    try:
        configured = config.sandboxes.spool_dir
        folder = f"{open_state_folder(configured, host.environment, os.geteuid())}/spool"
    except StateFolderError as error:
        log.warning("output is kept in memory", reason=str(error))
    limits = SpoolLimits(disk=config.limits.spool_max_bytes)
    return Spool(folder, limits, tell, recovery.small_files)


def _sweep_groups() -> None:
    """In a thread: remove the control groups that killed services have left."""
    from execserver.limits.hierarchies import groups_of_services
    from execserver.limits.leaves import sweep

    sweep(groups_of_services())
