"""`connect` and `Executor`: a session with a daemon, its commands and files."""

from __future__ import annotations

import os
import ssl as tls
from collections.abc import Collection, Container, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Never

from execclient import arguments
from execclient.arguments import AnyPath, Network, Sandbox
from execclient.connection.address import target
from execclient.connection.connection import Json
from execclient.environment_policy import EnvironmentPolicy, Inherit
from execclient.errors import NoSuchProcess, Refused, Unsupported, UnsupportedUrl
from execclient.filesystem import FileSystem
from execclient.ports import PortMethods
from execclient.process import Process
from execclient.resource_limits import ResourceLimits
from execclient.results import ProcessInfo, RunResult
from execclient.run import IfExists, Limits, Run, Starter, StartOptions
from execclient.session.draining import DrainNotices, OnDraining
from execclient.session.inbox import Inbox
from execclient.session.network import NetworkAnswers, NetworkHandlers, OnNetworkDecision, OnNetworkRequest
from execclient.session.session import Session
from execprotocol.path_uri import parse_path_uri

if TYPE_CHECKING:
    from execclient.watch import Watch

BUFFER_BYTES = 64 << 20
"""Output of a process that may wait in the client."""

CALL_SECONDS = 60.0
"""Longer than a recovery may take, so that a call can outlast one."""

CLIENT_NAME = "execclient"

_NO_LIMIT = "math.inf sets no limit"

_NOT_OPEN = (
    "use `async with connect() as executor` or `executor = await connect()`, or without an event loop "
    "`from execclient.sync import connect`"
)


class Executor(PortMethods):
    """A daemon that runs commands and accesses files. Get one from `connect`."""

    def __init__(self, session: Session, url: str, info: Mapping[str, Json]) -> None:
        self.url = url
        self.info = info
        """The daemon's description of itself and its machine (`docs/protocol.md`, D1)."""
        self.cwd = parse_path_uri(info.get("cwd") or "file:///")
        """The daemon's working directory; relative paths begin here."""
        self.fs = FileSystem(session, self.cwd)
        self._session = session
        self._starter = Starter(session, self.fs, self.cwd)

    @property
    def capabilities(self) -> frozenset[str]:
        """The extensions that the daemon serves, such as `fs/digest` or `process/start.size`."""
        return self._session.capabilities

    @property
    def home(self) -> str | None:
        """The home folder of the daemon's user; None if the daemon does not report it."""
        uri = self.info.get("userHomeDir")
        return None if uri is None else parse_path_uri(uri)

    def files(self, sandbox: Sandbox | None, *, workspace: AnyPath | None = None) -> FileSystem:
        """The files within a sandbox, as `run` takes one: those of `fs.confined`; None for no limits."""
        return self.fs if sandbox is None else self.fs.confined(sandbox, workspace=workspace)

    @property
    def session_id(self) -> str:
        """The daemon's name for the session."""
        return self._session.id

    @property
    def session_ttl(self) -> float | None:
        """Seconds for which the daemon keeps the session and its processes without a connection; None if the
        daemon does not report it. The daemon's `--session-ttl`, unless a client set another time by `ttl` of
        `connect`.
        """
        return self._session.ttl

    @property
    def closed(self) -> bool:
        """Whether the session has ended for this client: by `close` or `detach`, or because it was lost."""
        return self._session.is_closed

    @property
    def recoveries(self) -> int:
        """How often a lost connection was replaced."""
        return self._session.recoveries

    async def run(
        self,
        argv: Sequence[AnyPath],
        *,
        cwd: AnyPath | None = None,
        env: Mapping[str, AnyPath] | None = None,
        inherit: Inherit | EnvironmentPolicy = "all",
        tty: bool = False,
        size: tuple[int, int] | None = None,
        input: bytes | str | None = None,  # noqa: A002 - as in `subprocess.run`
        timeout: float | None = None,  # noqa: ASYNC109 - the command ends, with a result
        idle_timeout: float | None = None,
        grace: float = 0.0,
        sandbox: Sandbox | None = None,
        network: Network | None = None,
        limits: ResourceLimits | None = None,
        max_output_bytes: int | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run a command to its end, and return its output.

        Returns at most 500 ms after the exit, even if a background child keeps the output open; that child
        runs on until the session ends. Cancelling kills the command and all its descendants.

        Args:
            argv: program and arguments, as UTF-8 text or paths; no shell is involved.
            cwd: the working directory; the daemon's by default.
            env: variables that are added to the inherited ones.
            inherit: the daemon's variables to inherit: all, the core (HOME, PATH, …), none, or a policy.
            tty: give the command a terminal; all output is then in `stdout`.
            size: rows and columns of the terminal; 24 and 80 by default.
            input: the standard input, text as UTF-8; empty by default. On a terminal it is typed.
            timeout: seconds until the command and its descendants are killed; the result is then `timed_out`.
            idle_timeout: the same for seconds without output and without input.
            grace: seconds between SIGTERM to the process group and the kill, at either limit.
            sandbox: as `ReadOnly()`, with `cwd` as the workspace, or as on the wire; enforced or refused.
            network: the hosts that it may reach, `NetworkAccess(…)`; without it, as the sandbox says.
            limits: what the command and its descendants may use together; enforced or refused.
            max_output_bytes: output kept of each stream and of both: half from each end. The rest is counted.
            check: raise `CommandFailed` unless the command exits with 0, in time.

        Raises:
            SystemFailure: the command could not be started.
            OutputGap, CommandFailed: output was lost; or with `check`. The exception has the `result`.
            CommandNotRun: the sandbox failed before the command began.
            Unsupported: the server does not serve `size`, `grace` or `limits`, or cannot end an `input`.
            OutcomeUnknown, SessionLost, ExecutorClosed: the outcome is unknown. The first is caused by old
                servers, and by a loss of the connection that outlasts the daemon's `--process-ttl`.
            TypeError, ValueError: an argument is not valid; the message names it. Nothing was started.
        """
        limit = arguments.count(max_output_bytes, "max_output_bytes", none="keeps everything")
        times, pipe = Limits.of(timeout, idle_timeout, grace), input is not None
        options = StartOptions(
            argv, cwd, env, inherit, tty, size, pipe, times, "fail", sandbox, network, None, True, limits
        )
        # Checked before the start: a command that waits for the rest of an invalid input waits for ever.
        data = None if input is None else arguments.data(input, "input")
        if data is not None and not tty:
            self._session.require("process/closeStdin")
        return await Run(self._starter, options, data, limit).result(check=check)

    async def start(
        self,
        argv: Sequence[AnyPath],
        *,
        id: str | None = None,  # noqa: A002 - becomes `Process.id`
        cwd: AnyPath | None = None,
        env: Mapping[str, AnyPath] | None = None,
        inherit: Inherit | EnvironmentPolicy = "all",
        tty: bool = False,
        size: tuple[int, int] | None = None,
        stdin: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - the process ends, not the call
        idle_timeout: float | None = None,
        grace: float = 0.0,
        if_exists: IfExists = "fail",
        sandbox: Sandbox | None = None,
        network: Network | None = None,
        limits: ResourceLimits | None = None,
        arg0: str | None = None,
        shell_snapshot: str | None = None,
        buffer_bytes: int | None = BUFFER_BYTES,
    ) -> Process:
        """Start a process, and return while it runs.

        Args:
            argv: as for `run`, like all arguments that are not explained here.
            id: the process's name in the session; by default eight random letters and digits.
            cwd: the working directory.
            env: variables.
            inherit: the daemon's variables.
            tty: give the process a terminal, for which `Process.write` is the keyboard.
            size: of the terminal.
            stdin: connect `Process.write` to the standard input, until `Process.close_stdin`.
            timeout: seconds until the process is killed; its `cause` is then `timeout`.
            idle_timeout: seconds of silence until the process is killed; the `cause` is then `idleTimeout`.
            grace: seconds between SIGTERM and the kill, at either limit.
            if_exists: with `attach`: if the session has a process of this `id` that was started in the same
                way, return that process, with its output from the first byte. So the start can be sent
                again after a lost connection, as one without an `id` is.
            sandbox: a policy, with `cwd` as the workspace; or the form of the wire.
            network: the hosts that the process may reach.
            limits: what the process and its descendants may use together.
            arg0: the name that the program sees in place of `argv[0]`.
            shell_snapshot: for `[shell, "-lc", script]`: the scope of a snapshot in the place of the profile.
            buffer_bytes: output that may wait in the client; beyond it the oldest becomes an `OutputGap`.

        Raises:
            SystemFailure: the process could not be started.
            Refused: the `id` is taken; or, with `attach`, by another command.
            Unsupported: the server does not serve `size`, `if_exists`, `grace` or `limits`.
            OutcomeUnknown: the connection was lost, and the start cannot be sent again: there is an `id`
                without `if_exists="attach"`, or it is not served. If the process started it is killed.
        """
        inbox = Inbox(arguments.new_id() if id is None else id, _buffer(buffer_bytes))
        new, times = id is None, Limits.of(timeout, idle_timeout, grace)
        options = StartOptions(
            argv, cwd, env, inherit, tty, size, stdin, times, if_exists, sandbox, network, arg0, new, limits
        )
        deadlines = self._starter.deadlines(inbox, options)
        return await self._starter.start(inbox, options._replace(shell_snapshot=shell_snapshot), deadlines)

    async def attach(
        self,
        process_id: str,
        *,
        session_id: str | None = None,
        after_seq: int = 0,
        interactive: bool = False,
        network: Network | None = None,
        buffer_bytes: int | None = BUFFER_BYTES,
    ) -> Process:
        """An existing process of this session or of another session.

        Any number of clients may be attached to a process, and all get the same output. A process of this
        session, also after `connect(session_id=…)`, behaves like one that was just started. A process of
        another session belongs to its owner: leaving its block or closing the executor does not end it, and a
        slow reader misses some output, which is an `OutputGap`.

        Args:
            process_id: its name.
            session_id: its session; this session by default.
            after_seq: begin after this number; 0 for all output that is kept.
            interactive: request the right to resize the terminal of another session's process.
            network: answers questions about the hosts of a process of this session, in place of the `network`
                that it was started with.
            buffer_bytes: as for `start`.

        Raises:
            NoSuchProcess: there is no process of that name.
            Refused: the process may not be reached from here; the message says what would help.
            Unsupported: the server does not serve `process/subscribe`.
        """
        own = session_id is None or session_id == self.session_id
        if not own:
            self._session.require("process/subscribe")
        arguments.count(after_seq, "after_seq")
        buffer_bytes = _buffer(buffer_bytes)
        inbox = Inbox(process_id, buffer_bytes, session_id=None if own else session_id, after_seq=after_seq)
        inbox.interactive = interactive and not own
        try:
            state = await self._session.attach(inbox)
        except Refused as error:
            if "unknown process" in error.message:
                raise NoSuchProcess(error.message) from error
            raise
        if own:
            self._session.network.serve_own(process_id, network)
        pid, tty = state.get("pid"), state.get("tty")
        if own and "process/list" in self.capabilities:
            for info in await self.processes():
                if info.process_id == process_id:
                    pid, tty = info.pid, info.tty
        return Process(self._session, inbox, pid=pid, tty=tty, confined=own)

    async def processes(self, *, all_sessions: bool = False, argv: bool = False) -> list[ProcessInfo]:
        """The processes that the daemon knows, the oldest first, including those that ended a short time ago.

        Args:
            all_sessions: the processes of all sessions, not only of this one.
            argv: include arguments and working directories. They may contain secrets.

        Raises:
            Refused: other sessions are not accessible from here; the message says what would help.
            Unsupported: the server does not serve `process/list`.
        """
        self._session.require("process/list")
        result = await self._session.call("process/list", {"allSessions": all_sessions, "argv": argv})
        return [ProcessInfo.decode(item) for item in result["processes"]]

    async def kill_trees(self, process_ids: Container[str]) -> None:
        """Kill the remaining descendants of processes of this session, also of those that have exited.

        Waits some seconds at most. Processes that the daemon has forgotten (`--process-ttl`) are left alone.

        Args:
            process_ids: the names of the processes; others are left alone.
        """
        # A process whose start is under way is not listed yet.
        named = process_ids if isinstance(process_ids, Collection) else ()
        await self._session.kill_trees(process_ids.__contains__, named)

    def watch(
        self,
        path: AnyPath,
        *,
        recursive: bool = True,
        ignore_rules: bool = True,
        exclude_dirs: Iterable[str] = (),
        sandbox: Sandbox | None = None,
        workspace: AnyPath | None = None,
    ) -> Watch:
        """Watch a directory or a file for changes, while in the block: `async with executor.watch("src")`.

        Changes after the block was entered are reported, each once, in order, also over lost connections. If
        some could not be kept, a change of the kind `gap` names the directory to look at again: the caller
        took none for long while many happened, or the server was replaced. Links below it are not followed.

        Args:
            path: the root.
            recursive: watch everything below it; otherwise its own names only.
            ignore_rules: leave out what `.gitignore`, `.ignore`, `.rgignore` and `.git/info/exclude` ignore.
            exclude_dirs: names of directories that are not watched, at any depth.
            sandbox: as `run` takes one: what it may not read is not reported.
            workspace: of the sandbox, as for `files`.

        Raises:
            NotFound: when the block is entered: the path does not exist.
            Refused: a limit is reached, such as that of inotify; the message names the limit and the way out.
            Unsupported: the server does not serve `fs/watch`.
        """
        from execclient.watch import Watch  # late: few programs watch

        params: dict[str, Json] = {
            "path": self.fs.uri(path),
            "recursive": recursive,
            "ignoreRules": ignore_rules,
            "excludeDirs": arguments.names(exclude_dirs, "exclude_dirs"),
        }
        if sandbox is not None:
            folder = "" if workspace is None else arguments.path(workspace, "workspace")
            params["sandbox"] = arguments.sandbox(sandbox, os.path.join(self.cwd, folder), "workspace")
        return Watch(self._session, params)

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        """Send any request of the wire (`docs/protocol.md`); its result. Raises as `Session.call`."""
        return await self._session.call(method, params, limit=limit)

    def drop_connection(self) -> None:
        """Cut the connection as a fault would, for diagnosis. Recovery begins at once."""
        self._session.drop_connection()

    async def close(self) -> None:
        """End the session, as leaving the block of `connect` does. May be called again.

        All processes that were started in the session are killed with their descendants, unless `connect`
        was told to `keep` them. Takes some seconds at most: if the connection stays lost, the daemon ends the
        session by itself `session_ttl` seconds later.
        """
        await self._session.close()

    async def detach(self) -> None:
        """End the connection, and let the processes run on. May be called again.

        The daemon ends the session with its processes `session_ttl` seconds later, unless a client resumes
        it: `connect(session_id=executor.session_id)`.
        """
        await self._session.close(keep=True)

    def __repr__(self) -> str:
        state = " closed" if self._session.is_closed else ""
        return f"<{type(self).__name__} {self.url} session={self.session_id}{state}>"


def _buffer(limit: int | None) -> int | None:
    return arguments.count(limit, "buffer_bytes", none="sets no limit")


async def _set_ttl(session: Session, seconds: float) -> None:
    """Have the daemon keep the session for this time without a connection.

    Raises:
        Unsupported: the daemon cannot; it keeps the session for a time of its own.
        Refused: the time is above the daemon's limit.
    """
    if "session/setTtl" not in session.capabilities:
        own = "a time that it does not report" if session.ttl is None else f"{session.ttl:g} s"
        remedy = f"leave out the ttl: the server then keeps the session for {own}, which its settings decide"
        raise Unsupported("session/setTtl", remedy)
    result = await session.call("session/setTtl", {"ttlMs": max(1, round(seconds * 1000))})
    session.ttl = result["sessionTtlMs"] / 1000


class connect:  # noqa: N801 - called like a function, as `open`
    """Open a session with a daemon. Leaving the block ends the session and kills its processes.

        async with connect() as executor:
            print((await executor.run(["uname", "-a"])).text)

        remote = ["ssh", "host", "execserver", "serve", "--listen", "stdio"]
        executor = await connect("stdio:", command=remote)
        ...
        await executor.close()

    Args:
        url: `unix:///PATH`; `ws://HOST:PORT`; `wss://HOST[:PORT][/PATH]`; `stdio:`, which spawns a daemon for
            this session; or `relay+https://HOST[:PORT][/BASE]?environment=ID`, which finds the executor at a
            relay; with `?pool=NAME[&label=NAME[=VALUE]]` instead, the relay chooses the least loaded executor
            of a pool that has the labels, and `Executor.url` is the URL of that one. With `&wait=SECONDS`, a
            new session waits so long for an executor (by default 1 s out of a pool, else not at all). By
            default `EXECSERVER_URL`, else the daemon's default socket.
        token: for a WebSocket server with authentication (`docs/protocol.md`, "WebSocket authentication"), or
            for a relay; by default from `token_file`, `EXECSERVER_TOKEN`, or the file named by
            `EXECSERVER_TOKEN_FILE`.
        token_file: is read at each connect and reconnect, so that the token may be renewed.
        command: the command to spawn for `stdio:`, instead of the daemon of this installation.
        ssl: for `wss:` and `relay+https:`: which certificates to trust; those of the system by default.
        executor_key_sha256: for a relay: the fingerprint of the executor's key, so that the relay cannot
            substitute another executor. By default `EXECSERVER_EXECUTOR_KEY_SHA256`, else the key of the
            first connection is trusted.
        key_file: for a relay: the client's key pair (`execserver relay key FILE`), for an executor with a
            list of allowed clients. By default `EXECSERVER_CLIENT_KEY_FILE`, else a new key for each session.
        session_id: resume the session of a client that is gone. Leaving the block ends the session, with the
            processes of the other client, unless `keep` is set.
        keep: leave the session and its processes to the daemon, which ends them `session_ttl` seconds later,
            unless a client resumes the session before. Has no effect over `stdio:`, where the daemon ends
            with the connection.
        ttl: seconds for which the daemon keeps the session and its processes while no client is connected to
            it: after the end of this client with `keep`, and after the loss of this client or its network in
            any case. The time begins anew at each disconnection. At most the daemon's `--max-session-ttl`
            (7 days). It belongs to the session: a later client that resumes it without `ttl` leaves it as it
            is. By default the daemon's `--session-ttl` (80 s). `session_ttl` has the time in force.
        call_timeout: seconds for the response to a call, recovery included.
        recovery_timeout: seconds in which a lost connection must be replaced. By default 45, and 2 while no
            server listens on this machine: behind a socket that ssh forwards, give a time.
        client_name: the client's name in the daemon's log.
        allow_insecure_token: send the token unencrypted to another machine, too.
        proxy: for a WebSocket server or a relay: the proxy to dial through, `http://[USER:PASSWORD@]HOST:PORT`,
            `https://…` or `socks5h://…`. By default `EXECSERVER_PROXY`, else `HTTPS_PROXY`, `HTTP_PROXY`,
            `ALL_PROXY` and `NO_PROXY`. Loopback addresses are never reached through a proxy.
        on_network_request: decides on hosts that a command wants to reach and that its `network` neither
            allows nor denies; without it these are denied. It gets a `NetworkRequest` and returns
            True or False, which hold for the same protocol, host and port in the session; or a `Decision` of
            `execprotocol.network`, such as `Decision("allow", scope="once")` for one question. It is called
            on the event loop or is asynchronous, then several may run at a time. If it raises, the host is
            denied. It is not told if the command stops waiting.
        on_network_decision: called with each `NetworkDecision`, in order, one at a time; may be asynchronous.
            After a lost connection it gets the newest 256 of the meantime.
        on_draining: called with a `DrainNotice` when the executor begins to drain, so that the caller can
            finish or move on before it ends, and again after each reconnect while it drains; may be
            asynchronous. A drain that is cancelled is not reported.

    Raises:
        UnsupportedUrl: the URL is of another kind, or does not go with the other arguments.
        Refused: `ttl` is above the limit of the daemon; the message has the limit. A new session is ended, a
            resumed one is left as it was.
        Unsupported: the server cannot set a `ttl`, as it is an older or another one. The same holds.
        ConnectionFailed: the connection failed; `DaemonNotRunning`, `EnvironmentOffline`,
            `UntrustedServer`, `WrongExecutor`, `AccessDenied` and `InsecureToken` give the cause.
        SessionLost: there is no session `session_id`.
        SessionAttached: another client is connected to it.
        ExecutorDraining: the executor opens no new sessions; connect to another one, or try again later.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_file: AnyPath | None = None,
        command: Sequence[str] | None = None,
        ssl: tls.SSLContext | None = None,
        session_id: str | None = None,
        keep: bool = False,
        ttl: float | None = None,
        call_timeout: float = CALL_SECONDS,
        recovery_timeout: float | None = None,
        client_name: str = CLIENT_NAME,
        executor_key_sha256: str | None = None,
        key_file: AnyPath | None = None,
        allow_insecure_token: bool = False,
        proxy: str | None = None,
        on_network_request: OnNetworkRequest | None = None,
        on_network_decision: OnNetworkDecision | None = None,
        on_draining: OnDraining | None = None,
    ) -> None:
        self._target = partial(
            target,
            url,
            token=token,
            token_file=token_file,
            command=command,
            ssl=ssl,
            executor_key_sha256=executor_key_sha256,
            key_file=key_file,
            allow_insecure_token=allow_insecure_token,
            proxy=proxy,
        )
        self._session = partial(
            Session,
            call_timeout=arguments.seconds(call_timeout, "call_timeout", instead=_NO_LIMIT),
            recovery_timeout=None
            if recovery_timeout is None
            else arguments.seconds(recovery_timeout, "recovery_timeout", instead=_NO_LIMIT),
            client_name=client_name,
            session_id=session_id,
            keep=keep,
        )
        arguments.check_handler(on_network_request, "on_network_request")
        arguments.check_handler(on_network_decision, "on_network_decision")
        arguments.check_handler(on_draining, "on_draining")
        self._on_draining = on_draining
        self._handlers = NetworkHandlers(on_network_request, on_network_decision)
        self._ttl = arguments.time_to_live(ttl)
        self._resumes = session_id is not None
        self._executor: Executor | None = None

    def __repr__(self) -> str:
        url = self._target.args[0]
        return f"<connect {'to the default daemon' if url is None else url}>"

    def __await__(self) -> Generator[object, None, Executor]:
        return self._open().__await__()

    async def __aenter__(self) -> Executor:
        self._executor = await self._open()
        return self._executor

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._executor is not None
        await self._executor.close()

    if not TYPE_CHECKING:  # a type checker reports all of this by itself

        def __getattr__(self, name: str) -> Never:
            hint = "" if name.startswith("_") else f": {_NOT_OPEN}"
            raise AttributeError(f"'connect' object has no attribute {name!r}{hint}", name=name, obj=self)

        def __enter__(self) -> Never:
            raise TypeError(f"connect() is entered by an event loop: {_NOT_OPEN}")

        def __exit__(self, *_: object) -> None:
            """Is never called; without it `with` would not come as far as the error above."""

    async def _open(self) -> Executor:
        found = self._target()
        if self._ttl is not None and not found.recoverable:
            raise UnsupportedUrl(f"ttl= does not go with {found.url}: the daemon ends with the connection")
        answers = NetworkAnswers(self._handlers, DrainNotices(self._on_draining))
        session = self._session(found, network=answers)
        initialized = await session.open()
        if self._ttl is not None:
            try:
                await _set_ttl(session, self._ttl)
            except BaseException:
                await session.close(keep=self._resumes)
                raise
        return Executor(session, found.url, initialized.get("environmentInfo") or {})
