"""The server's side of the network proxies: starting them, their messages, and their ends.

    Proxies.open ──Launch──▶ forker ──fork──▶ proxy process ◀──control socket──▶ Proxy ──▶ decisions of the
                             (`program.py`)                                                session

Rules of this module:

1. The server makes the control socket of a proxy and keeps one end, so that a start waits for nothing. The
   supervisor keeps a copy of that end, by which a new server goes on with the proxy.
2. A proxy lives as long as its process: `Proxy.close` ends it at once, also if copies of the socket are open.
3. The death of the forker ends no proxy. The next start makes a new forker.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import replace

from execprotocol.errors import InternalError, InvalidParams, InvalidRequest
from execprotocol.network import Decision, NetworkProxy, NetworkRequest, PolicyDecisionEvent
from execserver.network.messages import (
    Answer,
    AnyMessage,
    Ask,
    Decided,
    Enter,
    Entered,
    Failed,
    Launch,
    ProxyStart,
    Ready,
    Resume,
    receive,
    send,
)
from execserver.network.rules import DomainRules, ProxyLimits, ProxyPolicy, RuleError
from execserver.network.upstream import parse_upstream
from execserver.network.variables import Ports, proxy_variables
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import measures

log = Logger()

HTTP_PORT, SOCKS_PORT = 61_128, 61_080
"""In a sandbox, whose network namespace has no other listener. Above the ports that Linux gives to sockets
without one (32768 to 60999), and far from those of any known service."""

_UPSTREAM_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
"""The first one that is set names the proxy that proxies may themselves go through."""

_READY_SECONDS = 30.0
"""How long a proxy may take for its listeners on the host. It takes some milliseconds, the first one of a
server a fifth of a second."""

_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Decisions(Protocol):
    """What decides about hosts without a verdict, and takes the record of all decisions."""

    @property
    def report(self) -> Callable[[PolicyDecisionEvent], None]:
        """Take a decision of a proxy."""

    async def decide(self, process_id: str, request: NetworkRequest, timeout_s: float) -> Decision:
        """Whether a process may reach a host."""


class Proxies:
    """Starts the network proxies of a server.

    Args:
        environment: the daemon's, which may name an upstream proxy.
        tag: the ownership tag of the service; None without tags.
        limits: of each proxy.
    """

    def __init__(self, environment: Mapping[str, str], tag: int | None, limits: ProxyLimits) -> None:
        self._environment = environment
        self._tag = tag
        self._limits = limits
        self._forker: socket.socket | None = None

    def open(self, settings: NetworkProxy, *, inside: bool) -> Proxy:
        """Start a proxy.

        Args:
            settings: of the request.
            inside: whether it is the only way out of a sandbox; otherwise it listens on the host.

        Raises:
            InvalidParams: a pattern of the domains is not valid.
            InvalidRequest: this daemon has no ownership tags, or its own environment names an upstream proxy
                that cannot be used.
            InternalError: no process can be started.
        """
        if self._tag is None:
            # By its tag a proxy finds the sandbox that it enters, and daemons know that it is no client.
            raise InvalidRequest(
                "failed to prepare process sandbox: a network proxy needs ownership tags, and the hard "
                "limit RLIMIT_RTTIME of the daemon is too low for them; raise it (`ulimit -H -R unlimited`, "
                "systemd: LimitRTTIME=infinity)",
                name="sandbox_unavailable",
                field="networkProxy",
            )
        try:
            DomainRules(settings.proxy)
        except RuleError as error:
            raise InvalidParams(str(error), field=f"networkProxy.proxy.{error.field}") from None
        ports = Ports(HTTP_PORT, SOCKS_PORT if settings.proxy.enable_socks5 else None) if inside else None
        start = ProxyStart(self._policy(settings), ports)
        try:
            ours = self._launch(msgspec.json.encode(start))
        except OSError as error:
            raise InternalError(f"the network proxy cannot be started: {error.strerror}") from None
        measures.network_proxies_started += 1
        return Proxy(ours, settings.proxy.allow_local_binding, ports)

    def _policy(self, settings: NetworkProxy) -> ProxyPolicy:
        timeout = settings.policy_decision_timeout_ms
        return ProxyPolicy(
            replace(settings.proxy, unix_sockets=None),
            self._limits,
            decision_timeout_s=None if timeout is None else timeout / 1000,
            upstream=self._upstream() if settings.proxy.allow_upstream_proxy else None,
        )

    def _upstream(self) -> str | None:
        name = next((name for name in _UPSTREAM_VARIABLES if self._environment.get(name)), None)
        if name is None:
            return None
        try:
            parse_upstream(self._environment[name])
        except ValueError as error:
            raise InvalidRequest(
                f"{error}; correct the variable {name} of the daemon, or leave out allowUpstreamProxy",
                field="networkProxy.proxy.allowUpstreamProxy",
            ) from None
        return self._environment[name]

    def _launch(self, start: bytes) -> socket.socket:
        """Have a proxy forked. Returns our end of its control socket.

        Raises:
            OSError: no descriptor is left, or no forker can be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            with theirs, open(os.memfd_create("execserver"), "r+b", buffering=0) as file:
                file.write(start)
                file.seek(0)
                try:
                    send(self._running_forker(), Launch(), (theirs.fileno(), file.fileno()))
                except (BrokenPipeError, ConnectionResetError):
                    self._drop_forker()
                    send(self._running_forker(), Launch(), (theirs.fileno(), file.fileno()))
        except BaseException:
            ours.close()
            raise
        return ours

    def _running_forker(self) -> socket.socket:
        if self._forker is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    _watch_end(_spawn_forker(theirs.fileno()))
                except BaseException:
                    ours.close()
                    raise
            ours.setblocking(False)
            self._forker = ours
        return self._forker

    def _drop_forker(self) -> None:
        if self._forker is not None:
            self._forker.close()
            self._forker = None


class Proxy:
    """One proxy process, from the server's side.

    Args:
        control: our end of its control socket, non-blocking; belongs to this object from now on.
        allow_local_binding: the setting of that name.
        inside: its ports in a sandbox; None for a proxy on the host.
    """

    def __init__(
        self, control: socket.socket, allow_local_binding: bool = False, inside: Ports | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._allow_local_binding = allow_local_binding
        self._ports: asyncio.Future[Ports] = self._loop.create_future()
        if inside is not None:
            self._ports.set_result(inside)
        self._gate: int | None = None
        """The gate of its sandbox, until its listeners inside are there."""
        self._process_id = ""
        self._decisions: Decisions | None = None
        self._failed: Callable[[str, bool], None] = _ignore
        self._answering: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    def adopt(cls, control: int) -> Proxy:
        """The proxy that an earlier server has started. It is asked again for what is not answered."""
        channel = socket.socket(fileno=control)
        channel.setblocking(False)
        return cls(channel)

    def fileno(self) -> int:
        """Our end of the control socket, for the supervisor."""
        return self._control.fileno()

    async def variables(self) -> dict[str, str]:
        """The variables of the command, when the proxy's ports are known.

        Raises:
            InternalError: it could not be started.
        """
        if not self._ports.done():
            self._loop.add_reader(self._control.fileno(), self._readable)
        try:
            # Not `wait_for`, which forgets a cancellation that comes together with the result.
            async with asyncio.timeout(_READY_SECONDS):
                ports = await asyncio.shield(self._ports)
        except TimeoutError:
            raise InternalError(f"the network proxy was not ready after {_READY_SECONDS:g} s") from None
        finally:
            if not self._closed:
                # Until `serve`: nothing takes questions and failures before that.
                self._loop.remove_reader(self._control.fileno())
        return proxy_variables(ports, allow_local_binding=self._allow_local_binding)

    def enter(self, report: int, gate: int, owner: int | None) -> None:
        """Listen in the sandbox, if the proxy is for one, then open its gate.

        Args:
            report: the file of the launcher's report.
            gate: the gate; belongs to this object from now on.
            owner: the ownership tag of the process; None without tags.
        """
        self._gate = gate
        self._send(Enter(owner or 0), (report, gate))

    def serve(self, process_id: str, decisions: Decisions, failed: Callable[[str, bool], None]) -> None:
        """Answer and report for a process from now on.

        Args:
            process_id: the client's name for it.
            decisions: of its session.
            failed: called with the reason when the proxy ends by itself, and with whether the command waits
                for it and will never begin.
        """
        self._process_id, self._decisions, self._failed = process_id, decisions, failed
        if not self._closed:
            self._loop.add_reader(self._control.fileno(), self._readable)

    def resume(self) -> None:
        """Have it ask again for what an earlier server has not answered."""
        self._send(Resume())

    def close(self) -> None:
        """End the proxy (idempotent)."""
        if self._closed:
            return
        self._loop.remove_reader(self._control.fileno())
        self._closed = True
        self._take_last_decisions()
        with suppress(OSError):  # it may have ended
            # Not only our descriptor: the supervisor has a copy.
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._drop_gate()
        for task in self._answering:
            task.cancel()
        if not self._ports.done():
            self._ports.cancel()

    def _readable(self) -> None:
        try:
            while not self._closed:
                message, descriptors = receive(self._control)
                for descriptor in descriptors:
                    os.close(descriptor)
                self._take(message)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._ended("the network proxy has ended")

    def _take_last_decisions(self) -> None:
        """Decisions of the command's last moments may not have been read yet."""
        with suppress(BlockingIOError, EOFError, OSError):
            while True:
                message, _ = receive(self._control)
                if isinstance(message, Decided):
                    self._take(message)

    def _take(self, message: AnyMessage | None) -> None:
        match message:
            case Ready(ports) if not self._ports.done():
                self._ports.set_result(ports)
            case Entered():
                self._drop_gate()
            case Failed(reason):
                self._ended(reason)
            case Ask():
                self._run(self._answer(message))
            case Decided(decision) if self._decisions is not None:
                measures.network_decisions[decision.decision] += 1
                event = {"processId": self._process_id, **msgspec.to_builtins(decision)}
                self._decisions.report(cast("PolicyDecisionEvent", event))
            case _:
                pass

    async def _answer(self, asked: Ask) -> None:
        if self._decisions is None:
            decision = Decision("deny")
        else:
            decision = await self._decisions.decide(self._process_id, asked.request, asked.timeout_s)
        self._send(Answer(asked.id, decision))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _send(self, message: AnyMessage, descriptors: tuple[int, ...] = ()) -> None:
        try:
            send(self._control, message, descriptors)
        except BlockingIOError:
            # It does not read, so nothing of it can be used any more.
            self._loop.call_soon(self._ended, "the network proxy does not read its messages")
        except OSError:
            return  # it has ended, which is read, too

    def _ended(self, reason: str) -> None:
        if self._closed:
            return
        waits = self._gate is not None and not _is_open(self._gate)
        if not self._ports.done():
            self._ports.set_exception(InternalError(f"the network proxy cannot be started: {reason}"))
            self._ports.exception()  # an adopted one has no start that waits for it
        self.close()
        self._failed(reason, waits)

    def _drop_gate(self) -> None:
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None


def _is_open(gate: int) -> bool:
    """Whether a gate was opened: nothing reads it any more."""
    poll = select.poll()
    poll.register(gate, select.POLLERR)
    return bool(poll.poll(0))


def _spawn_forker(channel: int) -> int:
    """Start a forker with this descriptor; its pid."""
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-m", "execserver.network.program"],
        {},
        setsid=True,
        setsigdef=_DEFAULT_SIGNALS,
        setsigmask=[],
        file_actions=[
            (os.POSIX_SPAWN_DUP2, channel, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def _watch_end(pid: int) -> None:
    """Reap a forker when it ends."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        os.waitpid(pid, 0)

    loop.add_reader(handle, ended)


def _ignore(_reason: str, _waits: bool) -> None:
    """Nothing."""
