"""The relay process: builds the parts, and owns the order of start and end.

Start: state folder and its lock, tokens, logs, loop, control socket, listeners, the base URL on stdout.
End: SIGTERM or SIGINT starts the drain: the relay is not ready, admits no peer, and closes every socket with
1012, so that executors and clients connect to where the URL leads next. The process ends within 5 s; a
second signal ends it at once. SIGHUP reads the certificate again.

Everything runs on one loop. Work that is not for a frame must take microseconds, or run in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import uvloop
from aiohttp import web

from execprotocol.relay.contract import MAX_BODY_BYTES
from execserver.memory import reuse_buffers, widen_descriptor_table
from execserver.relay.service import control_socket
from execserver.relay.service.bus import Bus, MemoryBus
from execserver.relay.service.errors import Guard, library_log
from execserver.relay.service.listening import (
    BACKLOG,
    RelayListenError,
    bind_address,
    load_certificate,
    tls_context,
)
from execserver.relay.service.listening import listen as listen_on
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.pages import MetricsReader, Pages
from execserver.relay.service.registry import RelayRegistry
from execserver.relay.service.registry_http import PublicUrls, RegistryHttp
from execserver.relay.service.rendezvous import RESTART, Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from execserver.relay.service.settings import RelaySettings, RelaySettingsError, StateDir, StateDirError
from execserver.relay.service.store import RegistryStore
from execserver.relay.service.token_file import TokenStore
from execserver.relay.service.tokens import TokenError, Tokens
from execserver.supervisor.notify import ServiceManager
from execserver.telemetry import logs
from execserver.telemetry.logs import Logger

if TYPE_CHECKING:
    from execserver.relay.fleet.fleet import Fleet

MAX_HEAD_LINE_BYTES, MAX_HEADERS = 4096, 48
"""Limits of a request head: the longest line, and the number of headers."""

REQUEST_SECONDS = 30
"""How long a connection may be without a request, at its start and between two."""

DRAIN_SECONDS = 4.0
"""How long sockets may take to end. With everything else, the process ends within 5 s."""

LEAVE_SECONDS = 0.8
"""How long the end of the connections to a fleet may take."""

TOKENS_SECONDS = 0.5
"""Interval of the check for revoked and expired tokens, which ends their sockets."""

DESCRIPTORS = 16_384
"""Size of the descriptor table from the start: each stream and each executor is a socket."""

SWEEP_SECONDS = 60.0
"""Interval in which expired tickets are removed."""

log = Logger()


def run(settings: RelaySettings) -> int:
    """Serve until a signal. Returns the exit code: 0 after a drain, 1 if the relay could not start."""
    reuse_buffers()
    _raise_descriptor_limit()
    widen_descriptor_table(DESCRIPTORS)
    try:
        state = StateDir(settings.state_dir)
    except StateDirError as error:
        return _print_error(error)
    writer = logs.configure(settings.log_level, settings.log_format)
    try:
        return uvloop.run(RelayServer(settings, state).serve())
    except (RelayListenError, RelaySettingsError, TokenError) as error:
        return _print_error(error)
    finally:
        writer.flush(1.0)
        state.close()


class RelayServer:
    """One relay.

    Args:
        settings: checked.
        state: its folder, locked.

    Raises:
        TokenError: the tokens cannot be read.
    """

    def __init__(self, settings: RelaySettings, state: StateDir) -> None:
        self._settings = settings
        self._state = state
        self._fleet = _fleet(settings)
        self._tokens: Tokens = TokenStore(state.path) if self._fleet is None else self._fleet.tokens
        self._token_fault = ""
        # Closed for the check of tokens: strangers may take every other descriptor.
        self._reserved = _reserve_descriptor()
        self._draining = False
        self._stop = asyncio.Event()
        self._manager = ServiceManager(os.environ)
        self._tls = tls_context(settings)
        self._bus: Bus = MemoryBus() if self._fleet is None else self._fleet.bus
        store: RegistryStore = MemoryStore() if self._fleet is None else self._fleet.store
        self._registry = RelayRegistry(store, self._bus, time.time, self._tokens.is_valid)
        self._failure: BaseException | None = None
        self._guard = Guard()
        self._runners: list[web.AppRunner] = []

    async def serve(self) -> int:
        """Serve until a signal, then drain. Returns the exit code.

        Raises:
            RelayListenError: a listener cannot be bound.
            RelaySettingsError: the NATS cluster refuses this relay.
        """
        loop = asyncio.get_running_loop()
        self._rendezvous = Rendezvous(self._bus, time.monotonic, loop.call_later)
        self._sockets = RendezvousHttp(self._registry, self._rendezvous, self._is_draining)
        try:
            if self._fleet is not None:
                await self._fleet.reach()
            url = await self._listen()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_signalled, number)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            chores = [
                loop.create_task(self._repeat(TOKENS_SECONDS, self._check_tokens)),
                loop.create_task(self._repeat(TOKENS_SECONDS, self._registry.settle)),
                loop.create_task(self._repeat(SWEEP_SECONDS, self._registry.sweep)),
            ]
            if self._fleet is not None:
                chores.append(loop.create_task(self._take_part(self._fleet, url)))
            if self._manager.beat_seconds is not None:
                chores.append(loop.create_task(self._repeat(self._manager.beat_seconds, self._beat)))
            gc.collect()
            gc.freeze()
            # Collecting among thousands of sockets takes long and finds nothing.
            gc.set_threshold(50_000, 20, 50)
            with contextlib.suppress(OSError):  # stdout is closed
                sys.stdout.write(f"{url}\n")
                sys.stdout.flush()
            self._manager.ready(f"Serving {url}")
            await self._stop.wait()
            await self._drain()
            for chore in chores:
                chore.cancel()
        finally:
            for runner in self._runners:
                await runner.cleanup()
            if self._fleet is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._fleet.close(), LEAVE_SECONDS)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(control_socket.SOCKET_NAME, dir_fd=self._state.descriptor)
        if self._failure is not None:
            raise self._failure
        log.info("relay ended")
        return 0

    # -- listeners

    async def _listen(self) -> str:
        """Bind all listeners. Returns the base URL."""
        settings = self._settings
        listen = settings.listen
        registry_http = RegistryHttp(
            self._registry,
            self._tokens,
            PublicUrls(settings.public_url, listen.scheme, listen.prefix),
            self._is_draining,
        )
        metrics = MetricsReader(
            self._registry,
            registry_http,
            self._rendezvous,
            self._sockets,
            self._guard,
            self._is_draining,
            self._fleet.add_numbers if self._fleet is not None else None,
        )
        nats = settings.nats.servers if settings.nats is not None else ()
        pages = Pages(self._registry, self._rendezvous, metrics, self._fault, nats)
        try:
            bound = control_socket.bind(self._state.descriptor)
        except OSError as error:
            raise RelayListenError(
                f"--state-dir {settings.state_dir}: {control_socket.SOCKET_NAME}: {error.strerror}"
            ) from None
        await self._site(pages.private(), bound)
        if settings.metrics is not None:
            await self._site(pages.metrics_only(), bind_address("--metrics-listen", settings.metrics))
        routes = [
            *registry_http.routes(listen.prefix),
            *self._sockets.routes(listen.prefix),
            *pages.public(listen.prefix),
            *self._plain_routes(),
        ]
        listening = listen_on(listen, os.environ)
        own = listen.url(listening.getsockname()[1])
        await self._site(routes, listening, self._tls)
        log.info("relay serves", listen=own, public=settings.public_url or own, process=os.getpid())
        return settings.public_url or own

    def _plain_routes(self) -> list[web.RouteDef]:
        if not self._settings.plain_environments:
            return []
        from execprotocol.relay.key_files import KeyFileError, load_key_pair
        from execserver.relay.service.plain_websocket import PlainWebSocket

        try:
            keys = load_key_pair(self._settings.state_dir / "door.key", create=True)
        except KeyFileError as error:
            raise RelayListenError(str(error)) from None
        plain = PlainWebSocket(
            self._settings.plain_environments,
            keys,
            self._registry,
            self._tokens,
            self._rendezvous,
            self._sockets.harnesses,
            self._is_draining,
        )
        environments = sorted(self._settings.plain_environments)
        log.info("plain door is open", environments=environments, key=keys.public.fingerprint)
        return plain.routes(self._settings.listen.prefix)

    async def _site(
        self, routes: list[web.RouteDef], listening: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard.middleware()])
        app.add_routes(routes)
        runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,  # the guard's is without queries
            logger=library_log(),
            keepalive_timeout=REQUEST_SECONDS,
            auto_decompress=False,  # peers do not compress bodies of 6 KiB, but attackers may
            lingering_time=1.0,
            # A stranger's head may be held for REQUEST_SECONDS. Peers send a fifth of this; proxies add some.
            max_line_size=MAX_HEAD_LINE_BYTES,
            max_field_size=MAX_HEAD_LINE_BYTES,
            max_headers=MAX_HEADERS,
            shutdown_timeout=0.5,
        )
        await runner.setup()
        self._runners.append(runner)
        await web.SockSite(runner, listening, ssl_context=tls, backlog=BACKLOG).start()

    # -- chores

    async def _repeat(self, seconds: float, chore: Callable[[], Awaitable[None] | None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                done = chore()
                if done is not None:
                    await done
            except Exception:
                # It may succeed next time. Ending the relay would end all sockets.
                log.exception("chore failed", chore=getattr(chore, "__name__", ""))

    def _check_tokens(self) -> None:
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            os.close(reserved)
        try:
            ended = self._tokens.ended(self._registry.token_ids())
        finally:
            self._reserved = _reserve_descriptor()  # no other task ran in between
        if self._tokens.fault != self._token_fault:
            self._token_fault = self._tokens.fault
            if self._token_fault:
                log.error("tokens cannot be read, those of before stay", error=self._token_fault)
        if ended:
            self._sockets.end(self._registry.revoked(ended))

    async def _take_part(self, fleet: Fleet, url: str) -> None:
        try:
            await fleet.run(url)
        except Exception as error:
            # The cluster refuses this relay, which came to light only now. A service manager starts it again.
            self._failure = error
            self._draining = True
            self._stop.set()

    def _beat(self) -> None:
        self._manager.beat()

    def _fault(self) -> str:
        """Why the relay admits no peers now; empty: it does."""
        if self._draining:
            return "the relay is about to end"
        return self._fleet.fault if self._fleet is not None else ""

    # -- signals

    def _is_draining(self) -> bool:
        return self._draining

    def _stop_signalled(self, number: int) -> None:
        if self._draining:
            log.warning("relay ends at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        self._draining = True
        log.info(
            "relay drains", signal=signal.Signals(number).name, streams=self._rendezvous.counters.streams
        )
        self._manager.stopping()
        self._stop.set()

    def _reload(self) -> None:
        self._manager.reloading(1)
        error = None
        if self._tls is not None:
            try:
                load_certificate(self._tls, self._settings)
                log.info("certificate loaded")
            except RelayListenError as problem:
                error = problem
                log.error("certificate not loaded, the old one stays", error=str(problem))
        self._manager.reloaded(error)

    async def _drain(self) -> None:
        self._rendezvous.drain(RESTART)
        deadline = time.monotonic() + DRAIN_SECONDS
        # Sockets end in several places; none of them has to notify this one.
        while (self._sockets.executors or self._sockets.harnesses) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _fleet(settings: RelaySettings) -> Fleet | None:
    """The share in the fleet of `--nats`. Raises RelaySettingsError."""
    if settings.nats is None:
        return None
    from execserver.relay.fleet.fleet import Fleet

    return Fleet(settings.nats)


def _reserve_descriptor() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _raise_descriptor_limit() -> None:
    """Each stream has two sockets, and a shell's limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print_error(error: Exception) -> int:
    sys.stderr.write(f"execserver: {error}\n")
    return 1
