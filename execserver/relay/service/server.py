"""The relay process: wires the parts, and owns the order of start-up and end.

Start-up: state folder and its lock, tokens, logs, loop, control socket, listeners, the base URL on stdout.
End: SIGTERM or SIGINT begins to drain (not ready, nobody is let in, every socket is closed with 1012, so that
executors and clients go to where the URL leads next), and 5 s later at most the process is over; a second
signal ends it at once. SIGHUP reads the certificate again.

Everything runs on one loop. What is not a frame must take microseconds or go to a thread.
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

import uvloop
from aiohttp import web

from execprotocol.relay.contract import MAX_BODY_BYTES
from execserver import descriptor_table
from execserver.memory import reuse_buffers
from execserver.relay.service import control_socket
from execserver.relay.service.bus import MemoryBus
from execserver.relay.service.errors import Guard, library_log
from execserver.relay.service.listening import BACKLOG, RelayListenError, bind, load_certificate, tls_context
from execserver.relay.service.listening import listen as listen_on
from execserver.relay.service.pages import MetricsReader, Pages
from execserver.relay.service.registry import RelayRegistry
from execserver.relay.service.registry_http import PublicUrls, RegistryHttp
from execserver.relay.service.rendezvous import RESTART, Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from execserver.relay.service.settings import RelaySettings, StateDir, StateDirError
from execserver.relay.service.tokens import TokenError, TokenStore
from execserver.supervisor.notify import Manager
from execserver.telemetry import logs
from execserver.telemetry.logs import Logger

MAX_HEAD_LINE_BYTES, MAX_HEADERS = 4096, 48
"""Of the head of a request: the longest line, and how many there may be."""

REQUEST_SECONDS = 30
"""How long a connection may be without a request: at first, and between two."""

DRAIN_SECONDS = 4.0
"""How long sockets may take to end. With the rest, the process is over in 5 s."""

TOKENS_SECONDS = 0.5
"""How soon a revoked or expired token ends the sockets that rest on it."""

DESCRIPTORS = 16_384
"""What the process has room for from its start: each stream and each executor is a socket."""

SWEEP_SECONDS = 60.0
"""How often what expired is forgotten."""

log = Logger()


def run(settings: RelaySettings) -> int:
    """Serve until a signal. Returns the exit code: 0 after a drain, 1 when it could not start."""
    reuse_buffers()
    _raise_descriptor_limit()
    descriptor_table.widen(DESCRIPTORS)
    try:
        state = StateDir(settings.state_dir)
    except StateDirError as error:
        return _complain(error)
    writer = logs.configure(settings.log_level, settings.log_format)
    try:
        return uvloop.run(RelayServer(settings, state).serve())
    except (RelayListenError, TokenError) as error:
        return _complain(error)
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
        self._tokens = TokenStore(state.path)
        self._token_fault = ""
        # Strangers may take every descriptor there is, and must not keep a token from being revoked so.
        self._spare = _open_spare()
        self._draining = False
        self._stop = asyncio.Event()
        self._manager = Manager(os.environ)
        self._tls = tls_context(settings)
        self._registry = RelayRegistry(time.monotonic)
        self._guard = Guard()
        self._runners: list[web.AppRunner] = []

    async def serve(self) -> int:
        """Serve until a signal, then drain; the exit code.

        Raises:
            RelayListenError: something cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._rendezvous = Rendezvous(MemoryBus(), time.monotonic, loop.call_later)
        self._sockets = RendezvousHttp(self._registry, self._rendezvous, self._is_draining)
        try:
            url = await self._listen()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._told_to_stop, number)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            chores = [
                loop.create_task(self._repeat(TOKENS_SECONDS, self._check_tokens)),
                loop.create_task(self._repeat(SWEEP_SECONDS, self._sweep)),
            ]
            if self._manager.beat_seconds is not None:
                chores.append(loop.create_task(self._repeat(self._manager.beat_seconds, self._beat)))
            gc.collect()
            gc.freeze()
            gc.set_threshold(
                50_000, 20, 50
            )  # thousands of sockets are no garbage, and looking takes its time
            with contextlib.suppress(OSError):  # nobody reads it
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
            with contextlib.suppress(FileNotFoundError):
                os.unlink(control_socket.SOCKET_NAME, dir_fd=self._state.descriptor)
        log.info("relay ended")
        return 0

    # -- listeners

    async def _listen(self) -> str:
        """Bind everything; the base URL."""
        settings = self._settings
        listen = settings.listen
        registry_http = RegistryHttp(
            self._registry,
            self._tokens,
            PublicUrls(settings.public_url, listen.scheme, listen.prefix),
            self._is_draining,
        )
        watcher = MetricsReader(
            self._registry, registry_http, self._rendezvous, self._sockets, self._guard, self._is_draining
        )
        pages = Pages(self._registry, self._rendezvous, watcher, self._is_draining)
        try:
            bound = control_socket.bind(self._state.descriptor)
        except OSError as error:
            raise RelayListenError(
                f"--state-dir {settings.state_dir}: {control_socket.SOCKET_NAME}: {error.strerror}"
            ) from None
        await self._site(pages.private(), bound)
        if settings.metrics is not None:
            await self._site(pages.metrics_only(), bind("--metrics-listen", settings.metrics))
        routes = [
            *registry_http.routes(listen.prefix),
            *self._sockets.routes(listen.prefix),
            *pages.public(listen.prefix),
            *self._door_routes(),
        ]
        listening = listen_on(listen, os.environ)
        own = listen.url(listening.getsockname()[1])
        await self._site(routes, listening, self._tls)
        log.info("relay serves", listen=own, public=settings.public_url or own, process=os.getpid())
        return settings.public_url or own

    def _door_routes(self) -> list[web.RouteDef]:
        if not self._settings.plain_doors:
            return []
        from execprotocol.relay.key_files import KeyFileError, load_key_pair
        from execserver.relay.service.plain_websocket import PlainWebSocket

        try:
            keys = load_key_pair(self._settings.state_dir / "door.key", create=True)
        except KeyFileError as error:
            raise RelayListenError(str(error)) from None
        door = PlainWebSocket(
            self._settings.plain_doors,
            keys,
            self._registry,
            self._tokens,
            self._rendezvous,
            self._sockets.harnesses,
            self._is_draining,
        )
        log.info(
            "plain door is open", environments=sorted(self._settings.plain_doors), key=keys.public.fingerprint
        )
        return door.routes(self._settings.listen.prefix)

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
            auto_decompress=False,  # nobody compresses 6 KiB, and what nobody does is only attacks
            lingering_time=1.0,
            # A head is held for REQUEST_SECONDS without anybody knowing who sends it. What peers of ours send
            # has a fifth of this; proxies add some.
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
                # The next time may be better; to end everybody's sockets is not.
                log.exception("chore failed", chore=getattr(chore, "__name__", ""))

    def _check_tokens(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)
        try:
            ended = self._tokens.ended(self._registry.token_ids())
        finally:
            self._spare = _open_spare()  # nobody else had a turn meanwhile
        if self._tokens.fault != self._token_fault:
            self._token_fault = self._tokens.fault
            if self._token_fault:
                log.error("tokens cannot be read, those of before stay", error=self._token_fault)
        if ended:
            self._sockets.end(self._registry.revoked(ended))

    def _sweep(self) -> None:
        self._registry.sweep()

    def _beat(self) -> None:
        self._manager.beat()

    # -- signals

    def _is_draining(self) -> bool:
        return self._draining

    def _told_to_stop(self, number: int) -> None:
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
        # Sockets are opened and closed in several places, none of which has to know of this.
        while (self._sockets.executors or self._sockets.harnesses) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _open_spare() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _raise_descriptor_limit() -> None:
    """Two sockets for each stream, and more than the 1,024 of a shell."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complain(error: Exception) -> int:
    sys.stderr.write(f"execserver: {error}\n")
    return 1
