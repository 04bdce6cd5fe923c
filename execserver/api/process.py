"""`process/*`. `docs/protocol.md`, "Processes"."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

import pybase64
from msgspec.structs import replace

from execprotocol.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    SpawnFailed,
    os_error_text,
    start_differs,
    start_unknown,
    unknown_process,
)
from execprotocol.limits import MAX_ASKING_NAME_BYTES, MAX_FILLED_GAP, MAX_PAGE_BYTES
from execprotocol.path_uri import ForeignPath
from execprotocol.process import signal_number
from execserver.api import confinement
from execserver.filesystem.blocking import BlockingCalls, run_in_background
from execserver.host import Host
from execserver.launch_spec import LaunchSpec
from execserver.processes import start_obstacle
from execserver.processes.child_environment import child_environment
from execserver.processes.executor import Executor
from execserver.processes.output_log import Page
from execserver.processes.process import ManagedProcess
from execserver.processes.process_input import ProcessInput
from execserver.processes.start_options import StartOptions, first_difference, start_digests
from execserver.processes.store import ProcessStore, Reservation
from execserver.rpc.codec import encode_json
from execserver.rpc.handlers import Caller, Encoded, Handlers
from execserver.sessions.access import reach, require_resize
from execserver.sessions.event_stream import end_members
from execserver.sessions.registry import SessionRegistry
from execserver.sessions.session import Session
from execserver.telemetry.measures import measures

if TYPE_CHECKING:
    from execprotocol.network import NetworkProxy
    from execprotocol.process import (
        CloseStdinParams,
        CloseStdinResult,
        ReadParams,
        ResizeParams,
        ResizeResult,
        SandboxType,
        SignalParams,
        SignalResult,
        StartParams,
        StartResult,
        TerminateParams,
        TerminateResult,
        WriteParams,
        WriteResult,
    )
    from execprotocol.sandbox import SandboxContext
    from execserver.network.proxies import Proxies, Proxy
    from execserver.processes.login_state.snapshots import Snapshot, Snapshots
    from execserver.sandbox.confinement import Confinement
    from execserver.sandbox.policy import Policy
    from execserver.sandbox.sandboxes import Sandboxes

MAX_WAITING_INPUT_BYTES = 32 << 20
"""Bytes of writes of a session that wait for a child to read. Half of what a connection's unfinished requests
may hold, so that a client which writes without reading the answers can still terminate the process."""

_LEAST_WAITING_BYTES = 64 << 10
"""The least that a waiting write counts, so that small ones are limited, too."""

_MAX_WAIT_SECONDS = 10 * 365 * 24 * 3600.0
"""A timer of the loop cannot wait for 2^64 milliseconds."""

_PIECES_FROM_BYTES = 16 << 10
"""Smaller pages are joined: a copy is cheaper than pieces."""

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

_PLATFORM_SANDBOX: SandboxType = "macosSeatbelt" if sys.platform == "darwin" else "linuxSeccomp"


class OfProcess(Protocol):
    """The parameters of a request about one process."""

    process_id: str
    session_id: str | None


class ProcessHandlers:
    """The handlers of this family."""

    def __init__(
        self, executor: Executor, host: Host, sandboxes: Sandboxes, sessions: SessionRegistry
    ) -> None:
        self._executor = executor
        self._sessions = sessions
        self._host = host
        self._sandboxes = sandboxes
        self._proxies: Proxies | None = None
        self._snapshots: Snapshots | None = None

    def table(self) -> Handlers:
        """Method name → handler."""
        return {
            "process/start": self.start,
            "process/read": self.read,
            "process/write": self.write,
            "process/signal": self.signal,
            "process/terminate": self.terminate,
            "process/closeStdin": self.close_stdin,
            "process/resize": self.resize,
        }

    def start(self, caller: Caller, params: StartParams) -> Encoded | Awaitable[Encoded]:
        """Start a process, at once or when it has its turn."""
        _check_start(params)
        if self._host.command_limits is not None:
            sandboxed = params.sandbox is not None
            limits = self._host.command_limits.effective(params.limits, sandboxed=sandboxed)
            params = replace(params, limits=limits)
        store = caller.session.processes
        if params.if_exists == "attach" and store.is_taken(params.process_id):
            return self._attach(caller, params)
        store.require_free(params.process_id)
        policy = None if params.sandbox is None else self._policy(params, params.sandbox)
        if self._host.require_sandbox:
            confinement.require_limits(params.sandbox, policy)
        if params.network_proxy is not None:
            return self._start_with_proxy(caller, params, params.network_proxy, policy)
        if policy is not None:
            return self._start_confined(caller, params, policy)
        if self._executor.can_spawn_now and params.shell_snapshot is None and not _needs_group(params):
            return self._start(caller, params, self._spec)
        return self._start_in_turn(caller, params)

    def read(self, caller: Caller, params: ReadParams) -> Encoded | Awaitable[Encoded]:
        """Answer a read, at once when there is news."""
        process = self._get(caller, params)
        if not params.wait_ms or process.has_news(params.after_seq or 0):
            return _read_page(caller, process, params)
        return _read_when_news(caller, process, params, params.wait_ms)

    def write(self, caller: Caller, params: WriteParams) -> WriteResult | Awaitable[WriteResult]:
        """Queue input; the answer waits while the child is far behind."""
        process = self._find(caller, params)
        if process is None:
            return {"status": "unknownProcess"}
        own = caller.session
        session = None if process.started.session == own.id else own.id
        stdin = process.input
        if stdin is None:
            return {"status": "stdinClosed"}
        if stdin.writer is not None and stdin.writer.full and not stdin.ended:
            return _write_when_room(own.processes, stdin, params, session)
        return stdin.write(params.chunk, params.write_id, session, whole_lines=params.whole_lines)

    def close_stdin(self, caller: Caller, params: CloseStdinParams) -> CloseStdinResult:
        """End the standard input after what was accepted."""
        process = self._find(caller, params)
        if process is None:
            return {"status": "unknownProcess"}
        return {"status": "stdinClosed"} if process.input is None else process.input.end()

    def resize(self, caller: Caller, params: ResizeParams) -> ResizeResult:
        """Set the size of the terminal."""
        session = self._session(caller, params)
        process = session.processes.get(params.process_id)
        require_resize(caller, session, process)
        running = process.output.resize(params.size.rows, params.size.cols)
        if running and process.sizes is not None:
            process.sizes.changed(params.size.rows, params.size.cols)
        return {"running": running}

    def signal(self, caller: Caller, params: SignalParams) -> SignalResult | Awaitable[SignalResult]:
        """Send a signal to the leader, its group or all descendants, if they live."""
        process = self._find(caller, params)
        if process is None:
            return _signal_result(caller, "unknownProcess")
        number = signal_number(params.signal)
        assert number is not None
        if params.scope == "tree":
            if number == signal.SIGKILL:
                process.leader.end_for("signal", tree=True)
                return self._kill_tree(caller, process, process.running)
            return self._signal_tree(caller, process, number)
        try:
            send = process.leader.signal if params.scope == "leader" else process.leader.signal_group
            delivered = send(number)
        except PermissionError as error:
            raise InvalidRequest(os_error_text(error), name="permission_denied", field="processId") from None
        return _signal_result(caller, "delivered" if delivered else "alreadyExited")

    def terminate(
        self, caller: Caller, params: TerminateParams
    ) -> TerminateResult | Awaitable[TerminateResult]:
        """Kill the process group, or all descendants of the process."""
        store = self._session(caller, params).processes
        if store.cancel_start(params.process_id):
            return {"running": True}
        process = store.find(params.process_id)
        if process is None:
            return {"running": False}
        process.leader.end_for("terminated", tree=params.scope == "tree")
        if params.scope == "tree":
            return self._terminate_tree(caller, process, process.running)
        return {"running": process.leader.signal_group(signal.SIGKILL)}

    def _session(self, caller: Caller, params: OfProcess) -> Session:
        """The session that a request is about.

        Raises:
            InvalidRequest: the session is unknown, or out of reach.
        """
        session_id = params.session_id
        return caller.session if session_id is None else reach(caller, self._sessions, session_id)

    def _find(self, caller: Caller, params: OfProcess) -> ManagedProcess | None:
        """The process that a request is about, if it exists; raises as `_session` does."""
        return self._session(caller, params).processes.find(params.process_id)

    def _get(self, caller: Caller, params: OfProcess) -> ManagedProcess:
        """The process that a request is about; raises InvalidRequest when it does not exist."""
        return self._session(caller, params).processes.get(params.process_id)

    def _start(
        self,
        caller: Caller,
        params: StartParams,
        make_spec: Callable[[StartParams], LaunchSpec],
        confinement: Confinement | None = None,
        proxy: Proxy | None = None,
        snapshot: Snapshot | None = None,
    ) -> Encoded:
        options = _options(caller, params, confinement, proxy)
        with nullcontext(_unchanged) if snapshot is None else snapshot.opened() as restored:
            try:
                process = caller.session.processes.start(
                    params.process_id, lambda: restored(make_spec(params)), options
                )
            except SpawnFailed as error:
                self._explain(error, params)
                raise
        return _answer_start(caller, params, process, snapshot)

    async def _snapshot(self, caller: Caller, params: StartParams, policy: Policy | None) -> Snapshot | None:
        """The shell snapshot of a start that asks for one."""
        if params.shell_snapshot is None:
            return None
        from execserver.processes.login_state.snapshots import Snapshots  # few daemons need it

        if self._snapshots is None:
            self._snapshots = Snapshots(self._executor, self._sandboxes)
        return await self._snapshots.get(caller.session, params, partial(self._spec, params), policy)

    def _attach(self, caller: Caller, params: StartParams) -> Encoded | Awaitable[Encoded]:
        """Answer for the existing process, if it was started with the same parameters."""
        process = caller.session.processes.find(params.process_id)
        if process is None:
            return self._attach_when_started(caller, params)
        digests = process.started.digests
        if digests is None:
            raise start_unknown(params.process_id)
        parameter = first_difference(digests, start_digests(params))
        if parameter is not None:
            raise start_differs(params.process_id, parameter)
        result = _start_result(caller, params, process)
        if caller.extensions:
            result["attached"] = True
        return Encoded(encode_json(result))

    async def _attach_when_started(self, caller: Caller, params: StartParams) -> Encoded:
        await caller.session.processes.wait_for_start(params.process_id)
        result = self.start(caller, params)
        return result if isinstance(result, Encoded) else await result

    async def _start_in_turn(
        self, caller: Caller, params: StartParams, proxy: Proxy | None = None
    ) -> Encoded:
        with caller.session.processes.reserve(params.process_id) as reservation:
            snapshot = await self._snapshot(caller, params, None)
            variables = {} if proxy is None else await proxy.variables()
            if _needs_group(params):
                spec = self._own_spec(params, variables)
                return await self._start_in_leaf(
                    caller, params, spec, reservation, None, proxy, snapshot=snapshot
                )
            await self._executor.wait_for_turn()
            reservation.require_wanted()
        make_spec = partial(self._spec, variables=variables)
        return self._start(caller, params, make_spec, proxy=proxy, snapshot=snapshot)

    async def _start_in_leaf(
        self,
        caller: Caller,
        params: StartParams,
        spec: LaunchSpec,
        reservation: Reservation,
        confined: Confinement | None = None,
        proxy: Proxy | None = None,
        taken: Callable[[], None] = lambda: None,
        snapshot: Snapshot | None = None,
    ) -> Encoded:
        """Start a process with limits, for which no snapshot is restored."""
        session = caller.session

        async def start() -> ManagedProcess:
            options = _options(caller, params, confined, proxy)
            process = await session.processes.start_limited(
                params.process_id, spec, options, lambda: not reservation.cancelled
            )
            taken()
            if reservation.cancelled:  # its connection is gone, and no answer will make another one follow it
                session.follow(process, caller.attachment)
            return process

        try:
            process = await _to_its_end(asyncio.ensure_future(start()), reservation)
        except SpawnFailed as error:
            self._explain(error, params)
            raise
        return _answer_start(caller, params, process, snapshot)

    async def _start_with_proxy(
        self, caller: Caller, params: StartParams, settings: NetworkProxy, policy: Policy | None
    ) -> Encoded:
        """Start a network proxy and the process that it is for."""
        if self._proxies is None:
            from execserver.network.proxies import Proxies  # few daemons need it
            from execserver.network.rules import ProxyLimits

            given = self._executor.limits
            limits = ProxyLimits(connections=given.proxy_connections, total_bytes=given.proxy_max_bytes)
            self._proxies = Proxies(self._host.environment, self._executor.tree_killer.tag(0), limits)
        proxy = self._proxies.open(settings, inside=policy is not None and policy.managed_network)
        try:
            if policy is None:
                return await self._start_in_turn(caller, params, proxy)
            return await self._start_confined(caller, params, policy, proxy)
        finally:
            # A request can be cancelled when its process has begun.
            process = caller.session.processes.find(params.process_id)
            if process is not None and process.proxy is not None:
                process.proxy.serve(caller.session.network)
            else:
                proxy.close()

    async def _start_confined(
        self, caller: Caller, params: StartParams, policy: Policy, proxy: Proxy | None = None
    ) -> Encoded:
        """Look at the disk in a thread, then start when it is the request's turn."""
        variables: dict[str, str] = {}
        preparation = confinement.Preparation(self._sandboxes, policy, lambda: self._spec(params, variables))
        try:
            with caller.session.processes.reserve(params.process_id) as reservation:
                snapshot = await self._snapshot(caller, params, policy)
                if proxy is not None:
                    variables.update(await proxy.variables())
                calls = caller.own(BlockingCalls, BlockingCalls)
                try:
                    spec, confined = await calls.run(preparation.run)
                except SpawnFailed as error:
                    await calls.run(self._explain, error, params, partial(confinement.may_read, policy))
                    raise
                if _needs_group(params):
                    return await self._start_in_leaf(
                        caller, params, spec, reservation, confined, proxy, preparation.taken, snapshot
                    )
                await self._executor.wait_for_turn()
                reservation.require_wanted()
            result = self._start(caller, params, lambda _: spec, confined, proxy, snapshot)
            preparation.taken()
            return result
        finally:
            run_in_background(preparation.give_up)

    def _explain(
        self, error: SpawnFailed, params: StartParams, may_read: start_obstacle.MayRead = lambda _: True
    ) -> None:
        """Add to an error what is missing or in the way, if that can be found."""
        found = start_obstacle.find_obstacle(
            error.error, params.argv, params.cwd, self._environment(params), may_read
        )
        if found is not None:
            error.field = found.field
            error.details["reason"] = found.reason
            if found.path is not None:
                error.details["path"] = found.path

    def _policy(self, params: StartParams, sandbox: SandboxContext) -> Policy | None:
        managed = params.enforce_managed_network
        return confinement.command_policy(
            sandbox, params.cwd, self._environment(params), managed_network=managed
        )

    def _environment(self, params: StartParams) -> dict[str, str]:
        return child_environment(self._host.environment, params.env_policy, params.env)

    def _spec(self, params: StartParams, variables: Mapping[str, str] = _NO_VARIABLES) -> LaunchSpec:
        environment = self._environment(params)
        environment.update(variables)
        return LaunchSpec.of(params, environment, self._host.shell)

    def _own_spec(self, params: StartParams, variables: Mapping[str, str]) -> LaunchSpec:
        """The specification, where no sandbox is prepared.

        Raises:
            SpawnFailed: the program is missing.
        """
        try:
            return self._spec(params, variables)
        except (OSError, ValueError) as error:
            measures.failed_starts += 1
            failed = SpawnFailed(error)
            self._explain(failed, params)
            raise failed from None

    async def _signal_tree(self, caller: Caller, process: ManagedProcess, number: int) -> SignalResult:
        try:
            delivered = await self._executor.tree_killer.signal(process, number)
        except OSError as error:
            raise InternalError(os_error_text(error)) from None
        return _signal_result(caller, "delivered" if delivered else "alreadyExited")

    async def _kill_tree(self, caller: Caller, process: ManagedProcess, running: bool) -> SignalResult:
        found = running or await self._executor.tree_killer.has_descendants(process.number)
        await self._executor.tree_killer.kill([process.number], [process.pid] if running else [])
        return _signal_result(caller, "delivered" if found else "alreadyExited")

    async def _terminate_tree(
        self, caller: Caller, process: ManagedProcess, running: bool
    ) -> TerminateResult:
        survivors = await self._executor.tree_killer.kill([process.number], [process.pid] if running else [])
        result: TerminateResult = {"running": running}
        if caller.extensions:
            result["survivors"] = survivors
        return result


def _signal_result(
    caller: Caller, status: Literal["delivered", "alreadyExited", "unknownProcess"]
) -> SignalResult:
    return {"status": status} if caller.extensions else {}


async def _to_its_end(start: asyncio.Future[ManagedProcess], reservation: Reservation) -> ManagedProcess:
    """The result of a start. If the request is cancelled, the start is given up in order first."""
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        reservation.cancelled = True
        await asyncio.wait([start])
        if not start.cancelled():
            start.exception()  # a request that is gone has no use for it
        raise


def _needs_group(params: StartParams) -> bool:
    return params.limits is not None and params.limits.need_group


def _options(
    caller: Caller, params: StartParams, confined: Confinement | None, proxy: Proxy | None
) -> StartOptions:
    may_attach = caller.extensions or params.if_exists == "attach"
    return StartOptions.of(
        params, may_attach=may_attach, confinement=confined, proxy=proxy, limits=params.limits
    )


def _unchanged(spec: LaunchSpec) -> LaunchSpec:
    return spec


def _answer_start(
    caller: Caller, params: StartParams, process: ManagedProcess, snapshot: Snapshot | None
) -> Encoded:
    result = _start_result(caller, params, process)
    if caller.extensions and snapshot is not None and snapshot.obstacle is not None:
        result["snapshotObstacle"] = snapshot.obstacle
    # No event of a process may overtake the reply to its start.
    release = caller.session.follow(process, caller.attachment)
    return Encoded(encode_json(result), after=release, begun=True)


def _start_result(caller: Caller, params: StartParams, process: ManagedProcess) -> StartResult:
    # The reference reports it for every sandbox, also for one that limits nothing.
    sandbox_type: SandboxType = "none" if params.sandbox is None else _PLATFORM_SANDBOX
    result: StartResult = {"processId": params.process_id, "sandboxType": sandbox_type}
    if caller.extensions:
        result["pid"] = process.pid
        if params.sandbox is not None:
            result["sandboxBackend"] = process.sandbox_backend
            if result["sandboxBackend"] == "landlock":
                result["sandboxType"] = "linuxLandlock"
    return result


def _check_start(params: StartParams) -> None:
    if isinstance(params.cwd, ForeignPath):
        raise InvalidParams(
            f"cwd URI `{params.cwd}` is not valid on this exec-server host: "
            f"'{params.cwd}' is invalid on 'linux'"
        )
    _check_proxy(params)
    if params.size is not None and not params.tty:
        raise InvalidParams("`size` is that of a terminal: give it with `tty` only", field="size")
    wall_ms = None if params.limits is None else params.limits.wall_ms
    if params.grace_ms is not None and params.timeout_ms is params.idle_timeout_ms is wall_ms is None:
        text = "`graceMs` is for a time limit: give it with `timeoutMs`, `idleTimeoutMs` or `wallMs` only"
        raise InvalidParams(text, field="graceMs")


def _check_proxy(params: StartParams) -> None:
    proxy = params.network_proxy
    if proxy is None:
        if params.enforce_managed_network and params.sandbox is not None:
            raise InvalidParams(
                "enforceManagedNetwork makes a network proxy the only way out of the sandbox: send it with "
                "`networkProxy`, or leave it out",
                field="enforceManagedNetwork",
            )
        return
    if not proxy.proxy.enabled:
        raise InvalidParams(
            "invalid network proxy config: executor-local network proxy launch requires an enabled proxy",
            field="networkProxy.proxy.enabled",
        )
    name_bytes = len(params.process_id.encode("utf-8", "surrogatepass"))
    if proxy.policy_decision_timeout_ms is not None and not 1 <= name_bytes <= MAX_ASKING_NAME_BYTES:
        raise InvalidParams(
            "callback-enabled process ID must be non-empty and at most 256 bytes", field="processId"
        )


async def _read_when_news(
    caller: Caller, process: ManagedProcess, params: ReadParams, wait_ms: int
) -> Encoded:
    await process.wait_for_news(params.after_seq or 0, min(wait_ms / 1000, _MAX_WAIT_SECONDS))
    # Thousands of reads may wait for the same megabyte.
    await caller.wait_to_reply()
    if process.released:
        raise unknown_process(params.process_id)
    caller.expect_next_poll()
    return _read_page(caller, process, params)


async def _write_when_room(
    store: ProcessStore, stdin: ProcessInput, params: WriteParams, session: str | None
) -> WriteResult:
    size = max(len(params.chunk), _LEAST_WAITING_BYTES)
    if store.waiting_input + size > MAX_WAITING_INPUT_BYTES:
        raise InternalError(
            f"process {params.process_id} does not read its input and too much is queued: "
            "nothing of this write was taken, send it again when earlier writes are answered"
        )
    store.waiting_input += size
    try:
        if stdin.writer is not None:
            await stdin.writer.wait_for_space()
    finally:
        store.waiting_input -= size
    return stdin.write(params.chunk, params.write_id, session, whole_lines=params.whole_lines)


def _read_page(caller: Caller, process: ManagedProcess, params: ReadParams) -> Encoded:
    after_seq = params.after_seq or 0
    unlimited = params.max_bytes is None
    page = process.log.read(after_seq, params.max_bytes, MAX_PAGE_BYTES)
    after = None
    next_seq = process.log.next_seq
    if page.chunks and (not unlimited or not page.complete):
        next_seq = page.chunks[-1].seq + 1
    # The stock client must not learn of an end before it has all earlier output. But only this page can tell
    # it that a number between two chunks stands for the exit.
    ends = page.complete or not unlimited
    exited_seq = process.exited_seq
    exited = process.exit_code is not None and (ends or (exited_seq is not None and exited_seq < next_seq))
    pacing = process.output.pacing
    if pacing is not None and process.started.session == caller.session.id:
        pacing.read(after_seq, next_seq - 1)
    if unlimited:
        after = partial(caller.attachment.answered, process, page, next_seq)
    first, *rest = _encode_page(
        process,
        page,
        after_seq,
        next_seq,
        unlimited=unlimited,
        exited=exited,
        closed=process.closed and ends,
        extensions=caller.extensions,
        sizes=caller.extensions and params.sizes is True,
    )
    return Encoded(first, after, rest=tuple(rest))


def _encode_page(
    process: ManagedProcess,
    page: Page,
    after_seq: int,
    next_seq: int,
    *,
    unlimited: bool,
    exited: bool,
    closed: bool,
    extensions: bool,
    sizes: bool,
) -> list[bytes]:
    """A page as JSON; a large one in pieces, so that the base64 text of its chunks is never copied."""
    texts = [b'{"chunks":[']
    if unlimited:
        texts += [filler + b"," for filler in _fill_gap(process, after_seq)]
    for chunk in page.chunks:
        at = b'"at":%d,' % chunk.at_ms if extensions and chunk.at_ms else b""
        texts += (
            b'{"seq":%d,"stream":"%b",%b"chunk":"' % (chunk.seq, chunk.stream.encode(), at),
            pybase64.b64encode(chunk.data),
            b'"},',
        )
    texts[-1] = texts[-1].removesuffix(b",")
    texts.append(
        b'],"nextSeq":%d,"exited":%b,"exitCode":%b,"closed":%b,"failure":%b,"sandboxDenied":%b%b%b%b}'
        % (
            next_seq,
            _boolean(exited),
            b"%d" % (process.exit_code or 0) if exited else b"null",
            _boolean(closed),
            b"null" if process.failure is None else encode_json(process.failure),
            _boolean(exited and process.sandbox_denied),
            end_members(process) if extensions and exited else b"",
            b""
            if page.first_seq is None
            else b',"firstSeq":%d,"lostBytes":%d' % (page.first_seq, page.lost_bytes),
            b""
            if not sizes or process.sizes is None
            else b',"sizes":' + encode_json(process.sizes.between(after_seq, next_seq)),
        )
    )
    return texts if sum(map(len, texts)) >= _PIECES_FROM_BYTES else [b"".join(texts)]


def _fill_gap(process: ManagedProcess, after_seq: int) -> list[bytes]:
    """Dropped numbers as empty chunks: the stock client stops for ever at a missing number."""
    last = process.log.evicted_through
    if not 0 < last - after_seq <= MAX_FILLED_GAP:
        return []
    stream = process.streams[0].encode()
    return [
        b'{"seq":%d,"stream":"%b","chunk":""}' % (seq, stream)
        for seq in range(after_seq + 1, last + 1)
        if seq != process.exited_seq
    ]


def _boolean(value: bool) -> bytes:
    return b"true" if value else b"false"
