"""The server process: wires the parts, and owns the order of start-up and shut-down.

Start-up: facts of the launch, chdir to `/`, logs, loop, executor, sessions (and what a dead server left of
them), handlers, listeners, *ready*. Shut-down: stop accepting, kill by membership, send the last events,
drop connections, exit. Upgrade: try the new code, stop reading, answer what was read, exit;
nothing is killed. The supervisor above does the rest (`supervisor/program.py`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import uvloop

from execprotocol.errors import InternalError
from execserver import descendants, descriptor_table, fault_points, upgrade
from execserver.api import discover, environment, filesystem, handshake, health, http, observing, process
from execserver.configuration.model import Settings
from execserver.credentials import Credentials
from execserver.fault_points import reach
from execserver.filesystem import mounts
from execserver.filesystem.blocking import run_in_background
from execserver.filesystem.small import SmallFiles
from execserver.fsworker import launch, pool
from execserver.host import Host
from execserver.loading import LOADER
from execserver.memory import reuse_buffers
from execserver.private_folder import FolderError, state_folder
from execserver.processes.executor import Executor
from execserver.processes.recovery_state import RecoveredState, RecoveryState
from execserver.processes.spawn import Spawner
from execserver.processes.takeover import Takeover
from execserver.relay.executor.options import missing_packages, options_of_service, place_of
from execserver.rpc.channel import Channel
from execserver.rpc.connection import Connection
from execserver.rpc.dispatcher import load_dispatch
from execserver.rpc.handlers import Handlers
from execserver.sandbox import policy
from execserver.sandbox.options import OwnThings, executed, socket_addresses
from execserver.sandbox.sandboxes import Sandboxes
from execserver.sandbox.state_folder import StateFolderError, open_state_folder
from execserver.sessions.registry import SessionTable
from execserver.spool.spool import Spool, SpoolLimits
from execserver.supervisor.config_file import usual_places
from execserver.supervisor.earlier_state import earlier_place, is_own_folder
from execserver.supervisor.remote import base_and_environment
from execserver.supervisor.server_channel import (
    ChannelError,
    Hello,
    PassedListener,
    ServerChannel,
    SupervisorGoneError,
    open_supervisor_pidfd,
)
from execserver.telemetry import logs, tracing
from execserver.telemetry.gauges import Gauges
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures
from execserver.transports.authentication import ConfigurationError
from execserver.transports.listener import Listener, serve_socket
from execserver.transports.stdio import serve_stdio

if TYPE_CHECKING:
    from execserver.edits.api import Edits
    from execserver.relay.executor.executor import RemoteExecutor
    from execserver.relay.executor.identity import Identity

log = Logger()

RECORDS_FOLDER = "edits"
"""Of the state folder: where `fs/applyEdits` keeps its records (`edits/journal.py`)."""

LAST_EVENTS_SECONDS = 1.0
"""How long clients have, at the end of the service, to take the last events."""

LAST_ANSWERS_SECONDS = 10.0
"""How long requests may take that were read before an upgrade."""

WARM_UP_AFTER_SECONDS = 2.0
"""When it is tried whether sandboxes work, unless a request asks earlier: it costs a tenth of a second of a
processor, which a client that starts a daemon for a single command should not wait for."""

LATE_MODULES = ("structlog", "execserver.transports.websocket")
"""Modules that take 20 ms and more to load, for the libraries that they need. A request that needs one
earlier loads it. The first is what stdio needs, too."""

LOAD_AFTER_SECONDS = 0.1
"""The time without traffic after which these are loaded: the first command of a client that starts a daemon
for it does not wait for them, nor does a client that goes on asking, or whose command goes on writing."""

LOAD_AT_LAST_SECONDS = 5.0
"""The longest wait for such a time: an upgrade may replace the installed files."""

LAST_FRAMES_SECONDS = 1.0
"""How long a relay may take to take the last bytes for its clients."""

LAST_SPANS_SECONDS = 1.0
"""How long the last spans may take to reach their collector, where there is one."""

SWITCH_INTERVAL_SECONDS = 0.0005
"""How soon a file-system thread gives the loop its turn back; Python's own 5 ms is too long."""


def run(config: Settings, config_file: str | None = None) -> int:
    """Serve until the service ends. Returns the exit code, or ends the process itself.

    Args:
        config: the settings.
        config_file: the file that they were read from, which sandboxes do not show.
    """
    reuse_buffers()
    descriptor_table.widen()
    try:
        channel, hello = ServerChannel.from_environment()
    except ChannelError as error:
        print(f"execserver: {error}", file=sys.stderr)  # noqa: T201
        return 1
    host = Host()
    try:
        credentials = Credentials(config.authentication, base=host.cwd)
        _check_exposure(config, hello)
        identity = _remote_identity(config, hello, host)
    except ConfigurationError as error:
        print(f"execserver: {error}", file=sys.stderr)  # noqa: T201
        return 1
    fault_points.arm(os.environ)
    own = _own_things(config, hello, host, config_file)
    os.chdir("/")
    writer = logs.configure(config.log_level, config.log_format)
    tracing.configure()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The supervisor says when to stop; a command's `kill $PPID` does not.
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        # Never closed, as `uvloop.run` would do: that waits for threads, and a name server that does not
        # answer holds one for half a minute.
        code = loop.run_until_complete(
            Server(config, hello, channel, host, credentials, own, identity).serve()
        )
    except SupervisorGoneError:
        code = 1
    tracing.shut_down(LAST_SPANS_SECONDS)
    writer.flush(1.0)
    # A thread that hangs in a dead mount must not keep the process.
    os._exit(code)


def load_the_rest(*, only_stdio: bool = False) -> None:
    """Load the modules that take long to load, and that a first command does not need, in any thread.

    Args:
        only_stdio: without what only sockets need.

    Raises:
        OSError: there is no descriptor for it.
        ImportError: the installation is broken.
    """
    # The loop waits for the interpreter as long as this says, after each of its system calls.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(100e-6)
    try:
        for name in LATE_MODULES[:1] if only_stdio else LATE_MODULES:
            LOADER.load_without_reserved(partial(import_module, name))
    finally:
        sys.setswitchinterval(usual)
    gc.freeze()  # as `Server._freeze_heap`


def load_everything() -> None:
    """Load also what the first client of standard JSON-RPC and the first `http/request` load, to check the
    installation. Most daemons never do, and would keep 7 MiB for it.

    Raises:
        ImportError, OSError: it is broken.
    """
    load_the_rest()
    LOADER.load(load_dispatch)
    LOADER.load(lambda: import_module("pydantic_core"))


def _own_things(config: Settings, hello: Hello, host: Host, config_file: str | None) -> OwnThings:
    """What no sandbox shows. Relative names are those of the launch folder."""
    named = (
        config_file,
        config.ws_token_file,
        config.ws_shared_secret_file,
        config.remote_token_file,
        config.remote_key_file,
        config.remote_allowed_clients,
    )
    files = [os.path.join(host.cwd, name) for name in named if name is not None]
    files += [place for place in usual_places(os.environ) if place not in files]
    for listener in hello.listeners:
        if listener.kind == "unix" and listener.socket is not None:
            name = listener.socket.getsockname()
            # A socket that was passed to us may have an abstract name, or none.
            files += [name] if isinstance(name, str) and name.startswith("/") else []
    folders = [place for place in (earlier_place(),) if is_own_folder(place)]
    with suppress(FolderError):  # records of running services are there whatever the setting is
        folders.append(state_folder(host.environment))
    if config.remote_token_file is not None:
        folders += _closed_folder(os.path.join(host.cwd, config.remote_token_file), host)
    return OwnThings(tuple(folders), tuple(files), executed(), socket_addresses(os.environ), home=host.home)


def _closed_folder(file: str, host: Host) -> list[str]:
    """The folder of a file that is replaced now and then, if it is closed to others and no place of work.

    The kernel uncovers a name when another file takes its place: sandboxes that are open then would see that
    file. Below a covered folder they do not.
    """
    folder = os.path.realpath(os.path.dirname(file))
    try:
        status = os.stat(folder)
    except OSError:
        return []
    is_closed = not status.st_mode & 0o007 and status.st_uid in (0, os.geteuid())
    is_worked_in = any(policy.is_below(os.path.realpath(place), folder) for place in (host.cwd, host.home))
    return [folder] if is_closed and not is_worked_in else []


def _check_exposure(config: Settings, hello: Hello) -> None:
    """Refuse to open the machine to whoever can reach it, and credentials where none are read."""
    if not hello.listeners:
        if config.remote is not None:
            place_of(config.remote_options)
        # The supervisor found the configuration file no good and left it to us to say why; it is good now.
        raise ConfigurationError("the configuration file was changed during the start: start again")
    kinds = {listener.kind for listener in hello.listeners}
    if config.authentication.ws_auth is not None:
        if "stdio" in kinds:
            raise ConfigurationError("--ws-auth cannot be used with --listen stdio: nobody checks it there")
        return
    for listener in hello.listeners:
        if listener.kind == "tcp" and listener.socket is not None:
            address = listener.socket.getsockname()[0]
            if not _is_loopback(address) and not config.allow_unauthenticated:
                raise ConfigurationError(
                    f"{listener.url} is reachable from other machines: give --ws-auth, "
                    "or --allow-unauthenticated if that is meant"
                )


def _remote_identity(config: Settings, hello: Hello, host: Host) -> Identity | None:
    """Who we are to the registry that the supervisor has found in the settings; None without one."""
    passed = next((listener for listener in hello.listeners if listener.kind == "remote"), None)
    if passed is None and hello.take_over:
        return None  # what is new in the file begins with the next service, not with the next server
    served = None if passed is None else base_and_environment(passed.url)
    options = options_of_service(config.remote_options, served)
    if passed is None or options is None:
        return None
    assert passed.memory is not None
    from pathlib import Path

    try:
        from execserver.relay.executor.executor import RemoteExecutor  # noqa: F401  so that it is known to be there
        from execserver.relay.executor.identity import identity_from
    except ImportError as error:
        raise ConfigurationError(missing_packages(error)) from None
    return identity_from(options, Path(host.cwd), host.environment, passed.memory)


def _is_loopback(address: str) -> bool:
    import ipaddress

    return ipaddress.ip_address(address).is_loopback


async def _quiet_moment() -> None:
    """Wait until for a moment no client says anything, nor is told anything; not for ever."""
    loop = asyncio.get_running_loop()
    at_last = loop.time() + LOAD_AT_LAST_SECONDS
    before = -1
    while (passed := measures.received_bytes + measures.sent_bytes) != before and loop.time() < at_last:
        before = passed
        await asyncio.sleep(LOAD_AFTER_SECONDS)


class Server:
    """One server process."""

    def __init__(
        self,
        config: Settings,
        hello: Hello,
        channel: ServerChannel,
        host: Host,
        credentials: Credentials,
        own: OwnThings,
        identity: Identity | None = None,
    ) -> None:
        self._config = config
        self._hello = hello
        self._channel = channel
        self._host = host
        self._credentials = credentials
        self._sandboxes = Sandboxes(config.sandboxes, own, host.environment)
        self._reloads: set[asyncio.Task[None]] = set()
        self._stop_requested = asyncio.Event()
        self._stopping = False
        self._exit_code = 0
        self._executor: Executor | None = None
        self._workers: pool.WorkerPool | None = None
        self._edits: Edits | None = None
        self._upgrading = False
        self._told_to_stop = False
        self._connections: set[Connection] = set()
        self._listeners: list[Listener] = []
        self._identity = identity
        self._remote: RemoteExecutor | None = None
        self._loading: asyncio.Task[None] | None = None

    async def serve(self) -> int:
        """The story of a server's life. Returns the exit code."""
        self._watch_supervisor()
        recovery, recovered = self._take_over()
        executor = self._executor = self._make_executor(recovery)
        sessions = SessionTable(executor, self._config.session_ttl)
        if recovered is not None:
            takeover = Takeover(executor, self._sandboxes, recovered)
            sessions.inherit(takeover)
            await takeover.kill_unfinished_starts()
            reach("take-over-restored")
        loop = asyncio.get_running_loop()
        loop.add_reader(self._hello.keeper.fileno(), self._keeper_spoke, executor)
        gauges = self._make_gauges(executor, sessions)
        handlers = self._make_handlers(executor, sessions, gauges)

        def connect(channel: Channel) -> Connection:
            connection = Connection(
                channel,
                handlers,
                self._config.concurrent_requests,
                lambda lost: self._connection_lost(lost, sessions),
            )
            self._connections.add(connection)
            if self._stopping:
                connection.stop_reading()
            return connection

        # Before anybody can look: what a dead server has begun is done, or was never begun.
        await self._replay_edits()
        for listener in self._hello.listeners:
            await self._listen(listener, connect, executor, gauges)
        self._freeze_heap()
        LOADER.use_reserved_descriptors = executor.reserved.released
        self._loading = loop.create_task(self._load_the_rest(executor))
        loop.call_later(WARM_UP_AFTER_SECONDS, run_in_background, self._sandboxes.warm_up)
        if self._remote is not None:
            self._remote.start()
        self._channel.send({"type": "ready"})
        if self._hello.beat_seconds is not None:
            self._beat(self._hello.beat_seconds)
        log.info("ready", listeners=[listener.url for listener in self._hello.listeners])
        await self._stop_requested.wait()
        if self._upgrading:
            await self._make_room(executor)
        if not self._upgrading or self._told_to_stop:
            await self._shut_down(executor)
        return self._exit_code

    # -- start-up

    def _watch_supervisor(self) -> None:
        loop = asyncio.get_running_loop()
        pidfd = open_supervisor_pidfd(self._hello.supervisor_pid)
        loop.add_reader(pidfd, self._supervisor_gone)
        loop.add_reader(self._channel.fileno(), self._supervisor_spoke)

    def _take_over(self) -> tuple[RecoveryState, RecoveredState | None]:
        """Begin, or go on where a server before this one ended."""
        keeper = self._hello.keeper
        if not self._hello.take_over:
            return RecoveryState.begin(keeper, self._host.cwd, self._host.provider_id), None
        handed = keeper.take_over()
        if not RecoveryState.has_begun(handed):
            return RecoveryState.begin(keeper, self._host.cwd, self._host.provider_id), None
        recovery, recovered = RecoveryState.resume(keeper, handed)
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
            self._make_spool(recovery),
        )

    def _make_spool(self, recovery: RecoveryState) -> Spool:
        def tell(failing: bool, reason: str) -> None:
            if failing:
                log.warning("output is kept in memory: the disk takes none", reason=reason)
            else:
                log.info("output is kept on disk again")

        folder: str | None = None
        try:
            configured = self._config.sandboxes.spool_dir
            folder = f"{open_state_folder(configured, self._host.environment, os.geteuid())}/spool"
        except StateFolderError as error:
            log.warning("output is kept in memory", reason=str(error))
        limits = SpoolLimits(disk=self._config.limits.spool_max_bytes)
        return Spool(folder, limits, tell, recovery.small_files)

    def _make_gauges(self, executor: Executor, sessions: SessionTable) -> Gauges:
        return Gauges(
            stopping=lambda: self._stopping,
            sessions=lambda: len(sessions),
            connections=lambda: len(self._connections),
            processes=lambda: executor.live,
            retained_output_bytes=lambda: executor.retained_output_bytes,
            retained_output_limit_bytes=self._config.limits.spool_max_bytes,
            queued_input_bytes=lambda: executor.queued_input_bytes,
        )

    def _make_handlers(self, executor: Executor, sessions: SessionTable, gauges: Gauges) -> Handlers:
        return {
            **handshake.handlers(sessions, self._host),
            **environment.handlers(self._host),
            **process.ProcessHandlers(executor, self._host, self._sandboxes, sessions).table(),
            **observing.ObservingHandlers(executor, sessions).table(),
            **self._make_file_handlers(executor),
            **self._make_http_handlers(),
            **discover.handlers(),
            **health.handlers(gauges),
        }

    def _make_file_handlers(self, executor: Executor) -> Handlers:
        table = mounts.MountTable()
        loop = asyncio.get_running_loop()
        loop.add_reader(table.fileno(), table.refresh)
        # The kernel tells of each change once; the registration may have taken one.
        loop.call_later(1, table.refresh)
        small = SmallFiles(table)
        workers = self._make_workers(executor, lambda: table.can_hang)
        confinement = filesystem.FileConfinement(workers, self._host.environment.get("TMPDIR"), small)
        return filesystem.handlers(table, small, confinement, self._make_edits)

    def _make_workers(self, executor: Executor, can_hang: Callable[[], bool]) -> pool.WorkerPool:
        launcher = launch.WorkerLauncher(self._sandboxes, executor.tree_killer.tag(0))
        self._workers = pool.WorkerPool(launcher, can_hang=can_hang, start_failed=launcher.start_failed)
        return self._workers

    def _make_http_handlers(self) -> Handlers:
        return http.HttpHandlers(self._host).table()

    def _make_edits(self) -> Edits:
        """What carries out `fs/applyEdits`, made when it is first needed: few daemons ever do."""
        if self._edits is None:
            from execserver.edits.api import Edits

            assert self._workers is not None
            self._edits = Edits(self._open_state_folder, self._workers)
        return self._edits

    async def _replay_edits(self) -> None:
        try:
            found = os.listdir(f"{self._open_state_folder()}/{RECORDS_FOLDER}")
        except (OSError, InternalError):
            return  # There never was any; or no place for them, as others will say.
        if len(found) > 1:  # the lock is always there
            await self._make_edits().replay()

    def _open_state_folder(self) -> str:
        configured = self._config.sandboxes.spool_dir
        try:
            return open_state_folder(configured, self._host.environment, os.geteuid())
        except StateFolderError as error:
            raise InternalError(str(error)) from None

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
            self._remote = self._make_remote(connect, executor)
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

    def _make_remote(self, connect: Callable[[Channel], Connection], executor: Executor) -> RemoteExecutor:
        from execserver.relay.executor.executor import RemoteExecutor

        assert self._identity is not None
        return RemoteExecutor(
            self._identity,
            connect,
            may_open=lambda: not (self._stopping or executor.reserved.uses),
            refused=self._refused_remotely if self._config.remote_exit_on_refusal else None,
        )

    def _refused_remotely(self, reason: str) -> None:
        log.error("the service ends: the registry refuses it", reason=reason)
        self._exit_code = 1
        self._stop_requested.set()

    def _freeze_heap(self) -> None:
        """What lives now lives for good: the collector need not look at it again. Nor does it before: of
        100,000 objects the imports leave some thousand behind, and to find them takes a tenth of a start.
        """
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()  # it was to do nothing until now (`cli.py`)

    async def _load_the_rest(self, executor: Executor) -> None:
        """Now rather than at the first request that needs it, and before somebody installs another version in
        its place.
        """
        try:
            await asyncio.sleep(LOAD_AFTER_SECONDS)
            await _quiet_moment()
            only_stdio = all(listener.kind == "stdio" for listener in self._hello.listeners)
            await executor.reserved.run(partial(load_the_rest, only_stdio=only_stdio))
        except OSError as error:  # what a request needs is loaded for it
            log.warning("what is needed later cannot be loaded now", reason=str(error))
        except Exception as error:  # a broken installation
            log.error("what is needed later cannot be loaded", exc_info=error)
        run_in_background(self._sandboxes.sweep)

    # -- life

    def _connection_lost(self, connection: Connection, sessions: SessionTable) -> None:
        self._connections.discard(connection)
        if connection.attached_session is not None:
            sessions.detach(connection.attached_session)
        if any(listener.kind == "stdio" for listener in self._hello.listeners) and connection.peer == "stdio":
            # The end of the input is the end of the service.
            self._stop_requested.set()

    def _supervisor_spoke(self) -> None:
        try:
            message = self._channel.receive()
        except ChannelError as error:
            log.error("message from the supervisor not understood", reason=str(error))
            return
        if message is None:
            self._supervisor_gone()
        elif message["type"] == "stop":
            self._told_to_stop = True
            self._stop_requested.set()
        elif message["type"] == "reload" and not self._stopping:  # else the successor's ready answers it
            task = asyncio.get_running_loop().create_task(self._reload())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    def _beat(self, seconds: float) -> None:
        """Tell the watchdog that the loop turns."""
        self._channel.send({"type": "beat"})
        asyncio.get_running_loop().call_later(seconds, self._beat, seconds)

    def _keeper_spoke(self, executor: Executor) -> None:
        while (ended := self._hello.keeper.receive()) is not None:
            executor.inherited_end(ended.number, ended.status)

    async def _reload(self) -> None:
        """Make room for a server with new code, settings and credentials, if it would start."""
        if any(listener.kind == "stdio" for listener in self._hello.listeners):
            # Requests that were read half cannot be taken over; the credentials are what can change.
            error = await self._credentials.reload()
            log.info("reloaded", reason=error)
            self._channel.send({"type": "reloaded", "error": error})
            return
        error = await self._credentials.fault() or await self._try_new_code()
        if error is not None:
            log.warning("no upgrade: everything is as before", reason=error)
            self._channel.send({"type": "reloaded", "error": error})
        elif not self._stopping:
            log.info("upgrading", connections=len(self._connections))
            self._upgrading = True
            self._stop_requested.set()

    def _supervisor_gone(self) -> None:
        """Nobody is left to clean up after us: do it now, and go."""
        try:
            if self._executor is not None:
                self._executor.tree_killer.kill_all()
        finally:
            os._exit(1)

    async def _try_new_code(self) -> str | None:
        """Why a new server would not start."""
        tag = self._executor.tree_killer.tag(0) if self._executor is not None else None
        if tag is not None:
            descendants.set_own_tag(tag)
        try:
            remote_url = next((each.url for each in self._hello.listeners if each.kind == "remote"), None)
            trial = upgrade.Trial(sys.argv[2:], self._host, remote_url)
        except OSError as failed:
            return f"the new code could not be tried: {failed}"
        return await asyncio.to_thread(trial.refusal)

    # -- the end

    async def _make_room(self, executor: Executor) -> None:
        """Answer what was read, and end; the processes go on. Returns early when the service is to stop."""
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
            if self._told_to_stop:
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
        if self._edits is not None:
            await self._edits.close()
        if self._workers is not None:
            await self._workers.close()
        await asyncio.to_thread(self._sandboxes.close)
        await self._send_last_events()
        for listener in self._listeners:
            # Until here they have shown, to whoever asked, that the service ends.
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
        """Let the ends of the killed processes reach the clients."""
        deadline = asyncio.get_running_loop().time() + LAST_EVENTS_SECONDS
        while any(connection.has_unsaid() for connection in self._connections):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.005)
