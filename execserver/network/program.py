"""The program of the network proxies: the forker, and the proxy processes that it forks.

    server ──Launch──▶ forker ──fork──▶ proxy (one a command) ──fork──▶ child that joins the sandbox's
                                          │ ▲                            network namespace, and ends
                                          │ └── listeners, by SCM_RIGHTS ────┘
                                          └── control socket to the server

The forker has all modules of a proxy loaded, so that a proxy costs one fork. It ends with its server. A proxy
does not: it ends when nothing holds the other end of its control socket any more, which the server shares
with the supervisor. Between two servers known verdicts hold, and questions wait.

A proxy parses what a confined command sends, and has the network of the host. So it has no capabilities,
cannot run programs, and counts as confined itself (`seccomp.for_proxies`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from typing import NoReturn, TypeVar

import msgspec
import uvloop

from execprotocol.network import Decision, NetworkRequest
from execserver.network import namespace
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
from execserver.network.rules import NetworkDecision
from execserver.network.serving import Listeners, serve
from execserver.network.variables import Ports
from execserver.sandbox import seccomp
from execserver.sandbox.thread_limits import deny_new_privileges, drop_capabilities, install_filter

T = TypeVar("T")

MAX_REPORTS = 1024
"""Decisions that wait for a server. Later ones are not reported."""

_MOST_REASON_BYTES = 4096

_start_decoder = msgspec.json.Decoder(ProxyStart)


def main() -> NoReturn:
    """Fork proxies until the server closes the socket, descriptor 0."""
    server = socket.socket(fileno=0)
    # The kernel reaps the proxies, and a proxy's own child.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with suppress(seccomp.UnknownArchitectureError):
        seccomp.for_proxies()  # assembled once, for all proxies
    gc.freeze()  # so that collections in the proxies leave the shared pages alone
    while True:
        try:
            message, descriptors = receive(server)
        except EOFError:
            os._exit(0)
        except OSError:
            continue  # the server sees the end of the proxy's control socket
        if isinstance(message, Launch) and len(descriptors) == 2:
            _fork(server, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork(server: socket.socket, control: int, start: int) -> None:
    try:
        if os.fork():
            return
    except OSError as error:
        with socket.socket(fileno=os.dup(control)) as channel:
            send(channel, Failed(f"no process can be forked: {error.strerror}"))
        return
    server.close()
    run(socket.socket(fileno=control), start)


def run(control: socket.socket, start: int) -> NoReturn:
    """Be a proxy: the process ends with it.

    Args:
        control: the socket to the server.
        start: a file with a `ProxyStart` in JSON.
    """
    try:
        with open(start, "rb") as file:
            proxy = Proxy(control, _start_decoder.decode(file.read()))
        proxy.listen()
        _confine()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(proxy.serve())
    except EOFError:
        os._exit(0)
    except BaseException as error:
        expected = isinstance(error, namespace.NamespaceError)
        text = (str(error) if expected else f"{type(error).__name__}: {error}")[:_MOST_REASON_BYTES]
        try:
            control.setblocking(True)
            send(control, Failed(text))
        finally:
            os._exit(1)
    os._exit(0)


def _confine() -> None:
    deny_new_privileges()
    drop_capabilities()
    install_filter(seccomp.for_proxies())


class Proxy:
    """One proxy process: its listeners, and the messages from and to the server.

    Args:
        control: the socket to the server.
        start: what it permits, and where it listens.
    """

    def __init__(self, control: socket.socket, start: ProxyStart) -> None:
        self._control = control
        self._start = start
        self._listeners: Listeners | None = None
        self._questions: dict[int, tuple[NetworkRequest, float, asyncio.Future[Decision]]] = {}
        """The request, the deadline, and the answer, by id."""
        self._last_id = 0
        self._unsent: deque[AnyMessage] = deque()
        self._gone: asyncio.Future[None] | None = None

    def listen(self) -> None:
        """Make the listeners; blocking.

        Raises:
            EOFError: the server needs no proxy any more.
            OSError: no descriptor or no port is left.
            NamespaceError: the sandbox cannot be entered.
        """
        inside = self._start.inside
        if inside is not None:
            wanted = [port for port in inside if port is not None]
            self._listeners = Listeners(*_pair(self._listen_inside(wanted)))
            send(self._control, Entered())
            return
        socks = self._start.policy.settings.enable_socks5
        listeners = namespace.listen_on_host(2 if socks else 1)
        self._listeners = Listeners(*_pair(listeners))
        http, socks_port = _pair([each.getsockname()[1] for each in listeners])
        send(self._control, Ready(Ports(http, socks_port)))

    def _listen_inside(self, ports: list[int]) -> list[socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            try:
                ours.close()
                namespace.listen_inside(self._control, theirs, ports)
            finally:
                os._exit(0)
        theirs.close()
        with ours:
            data, descriptors, _, _ = socket.recv_fds(ours, _MOST_REASON_BYTES, len(ports))
        if not data:
            raise EOFError
        if len(descriptors) != len(ports):
            raise namespace.NamespaceError(data.decode("utf-8", "replace"))
        return [socket.socket(fileno=each) for each in descriptors]

    async def serve(self) -> None:
        """Serve until the control socket has no other end."""
        assert self._listeners is not None
        loop = asyncio.get_running_loop()
        self._gone = loop.create_future()
        self._control.setblocking(False)
        loop.add_reader(self._control.fileno(), self._readable)
        policy = self._start.policy
        asks = None if policy.decision_timeout_s is None else self._ask
        serving = loop.create_task(serve(self._listeners, policy, asks, self._report))
        await asyncio.wait({serving, self._gone}, return_when=asyncio.FIRST_COMPLETED)
        if self._gone.done():
            # At once: there is nothing to save, and connections must not outlive the command.
            os._exit(0)
        serving.result()

    # -- decisions

    async def _ask(self, request: NetworkRequest) -> Decision:
        timeout = self._start.policy.decision_timeout_s
        assert timeout is not None
        loop = asyncio.get_running_loop()
        number = self._last_id = self._last_id + 1
        answer: asyncio.Future[Decision] = loop.create_future()
        self._questions[number] = (request, loop.time() + timeout, answer)
        try:
            self._send(Ask(number, request, timeout))
            return await answer  # the judge does not wait for ever
        finally:
            del self._questions[number]

    def _report(self, decision: NetworkDecision) -> None:
        if len(self._unsent) < MAX_REPORTS:
            self._send(Decided(decision))

    # -- messages

    def _readable(self) -> None:
        assert self._gone is not None
        try:
            while True:
                message, descriptors = receive(self._control)
                self._take(message, descriptors)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            if not self._gone.done():
                self._gone.set_result(None)

    def _take(self, message: AnyMessage | None, descriptors: list[int]) -> None:
        match message:
            case Answer(number, decision) if number in self._questions:
                answer = self._questions[number][2]
                if not answer.done():
                    answer.set_result(decision)
            case Enter() if len(descriptors) == 2:
                # Of a sandbox that it need not enter, or of a new server, which does not know that it has.
                namespace.open_gate(descriptors[1])
                self._send(Entered())
            case Resume():
                now = asyncio.get_running_loop().time()
                for number, (request, deadline, _) in self._questions.items():
                    self._send(Ask(number, request, max(0.0, deadline - now)))
            case _:
                pass
        for descriptor in descriptors:
            os.close(descriptor)

    def _send(self, message: AnyMessage) -> None:
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._control.fileno())
        while self._unsent:
            try:
                send(self._control, self._unsent[0])
            except BlockingIOError:
                loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError:
                self._unsent.clear()  # its end is read, too
                return
            self._unsent.popleft()


def _pair(values: list[T]) -> tuple[T, T | None]:
    return values[0], values[1] if len(values) > 1 else None


if __name__ == "__main__":
    sys.exit(main())
