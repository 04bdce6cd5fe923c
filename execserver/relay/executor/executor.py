"""Keep an executor registered and connected to a relay for as long as the daemon runs.

    register ──▶ dial ──▶ serve ──▶ (socket lost) ──▶ dial the same URL
       ▲                                                │ refused (4xx): the registration is unknown
       └────────────────────────────────────────────────┘

A member of a pool also reports its load, so that the relay can choose among the members.

The executor retries whatever the registry or the relay does; only the operator can ask that a final refusal
ends the daemon. Each change of state is logged once, however many attempts there are. Tokens and the queries
of URLs are not logged.
`docs/protocol.md`, "Relay" and "Pools".
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import NamedTuple

from execprotocol.relay import contract
from execprotocol.relay.contract import RegisterAnswer, StatusRequest
from execprotocol.relay.dial import DialFailed, DialRefused, dial
from execprotocol.relay.registry_client import RegistryClient, RegistryError, RegistryRefused
from execprotocol.trace_context import active_headers
from execserver.relay.executor.admission import ClientAdmission
from execserver.relay.executor.identity import Identity
from execserver.relay.executor.multiplexer import Multiplexer
from execserver.rpc.channel import Channel, MessageHandler
from execserver.telemetry import tracing
from execserver.telemetry.logs import Logger
from execserver.transports.authentication import ConfigurationError

REDIAL_SECONDS = (0.2, 5.0)
"""The wait before the first dial after a lost socket, and the longest. Each wait doubles and has a random
part of up to half, so that a thousand executors do not return to a restarted relay at the same moment."""

REGISTER_SECONDS = (1.0, 30.0)
"""The same after a failed registration."""

STANDBY_SECONDS = (0.5, 1.0)
"""The wait between registrations while another executor holds the environment: a takeover takes no longer.
The same while the relays of a fleet run and their store does not answer, which is over within seconds."""

DIALS_A_REGISTRATION = 5
"""After so many failed dials in a row, the registry is asked for the address again before each dial: the
relay may have moved."""

STEADY_SECONDS = 10.0
"""A socket that lived so long resets the waits. Two executors with the same key, which replace each other,
slow down by that."""

REPORT_SECONDS = 15.0
"""How often the load is reported if it does not change. A store of several relays keeps it for a minute."""

CHECK_SECONDS = 0.2
"""How soon a change of the load is reported. Many sessions that open at once make one report."""

log = Logger()


class Load(NamedTuple):
    """What a member of a pool reports of itself."""

    sessions: int
    """Those that it keeps, detached ones included."""
    opened: int
    """Those that were opened since the server began."""
    draining: bool
    """Whether it takes no further sessions."""


class RemoteExecutor:
    """Serves clients that connect through a relay, from `start` on.

    Args:
        identity: of this executor.
        make_handler: makes the handler of each client's connection.
        may_open: whether new connections are accepted now.
        load: what a member of a pool reports.
        refused: called with the reason if the registry refuses the executor for good, which then ends;
            None: the executor retries.
    """

    def __init__(
        self,
        identity: Identity,
        make_handler: Callable[[Channel], MessageHandler],
        *,
        may_open: Callable[[], bool] = lambda: True,
        load: Callable[[], Load] = lambda: Load(0, 0, draining=False),
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._identity = identity
        self._make_handler = make_handler
        self._may_open = may_open
        self._load = load
        self._refused = refused
        self._registry = RegistryClient(identity.base_url, identity.token, proxies=identity.proxies)
        self._log = log.bind(registry=self._registry.shown, environment=identity.environment_id)
        self._logged = ""
        self._trace: dict[str, str] = {}
        """Names the span of the last registration, which its upgrades belong to."""
        self._multiplexer: Multiplexer | None = None
        self._closing = False
        self._redials = _Backoff(*REDIAL_SECONDS)
        self._life: asyncio.Task[None] | None = None
        self._registration_id = ""
        """Of the newest registration."""
        self._reports: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start in the background."""
        loop = asyncio.get_running_loop()
        self._life = loop.create_task(self._live())
        if self._identity.pool is not None:
            self._reports = loop.create_task(self._report())

    def close(self) -> None:
        """Accept no further clients; the socket is closed after the last one (idempotent)."""
        self._closing = True
        if self._multiplexer is not None:
            self._multiplexer.close_when_idle()
        elif self._life is not None:
            self._life.cancel()

    async def closed(self, seconds: float) -> None:
        """Wait until sent data has left, for at most `seconds`, and release everything.

        Call `close` first, and end every connection.
        """
        if self._life is not None:
            _, late = await asyncio.wait({self._life}, timeout=seconds)
            if late and self._multiplexer is not None:
                self._multiplexer.abort()
            if late:
                self._life.cancel()
                await asyncio.wait({self._life})
        if self._reports is not None:
            self._reports.cancel()
            await asyncio.wait({self._reports})
        await self._registry.aclose()

    async def _live(self) -> None:
        while not self._closing:
            try:
                answer = await self._register()
                if answer is None:
                    return
                await self._serve(answer)
            except Exception as error:  # a bug here must not end the service
                self._log.error("relay failed", exc_info=error)
                await asyncio.sleep(self._redials.longest)

    async def _register(self) -> RegisterAnswer | None:
        """Register, with retries; None if the executor was refused for good."""
        waits = _Backoff(*REGISTER_SECONDS)
        while True:
            try:
                answer = await self._register_now()
            except RegistryRefused as error:
                if error.code == contract.REGISTRATION_CONFLICT:
                    self._log_state("standing by: another executor holds the environment")
                    await asyncio.sleep(_between(*STANDBY_SECONDS))
                    continue
                if self._refused is not None and not error.retry:
                    self._refused(str(error))
                    return None
                self._log_state("not registered", str(error))
                if error.code == contract.AUTHENTICATION_UNAVAILABLE:
                    await asyncio.sleep(_between(*STANDBY_SECONDS))
                    continue
            except (RegistryError, ConfigurationError) as error:
                self._log_state("not registered", str(error))
            else:
                return answer
            await asyncio.sleep(waits.next())

    async def _serve(self, answer: RegisterAnswer) -> None:
        """Dial and serve for as long as the relay knows this registration."""
        forgotten = False
        is_new = True
        failures = 0
        while not (self._closing or forgotten):
            if failures >= DIALS_A_REGISTRATION and (moved := await self._register_once()) is not None:
                answer, failures = moved, 0
            admission = ClientAdmission(self._identity, answer.registration_id, self._registry)
            multiplexer = Multiplexer(admission, self._make_handler, self._may_open)
            registry_unavailable = False
            try:
                request_id = f"req_{secrets.token_hex(16)}"
                await dial(
                    answer.url,
                    multiplexer,
                    headers={"X-Request-ID": request_id, **self._trace},
                    proxies=self._identity.proxies,
                )
            except DialRefused as refused:
                self._log_state("not connected", str(refused))
                registry_unavailable = refused.reason == contract.REGISTRY_UNAVAILABLE
                failures += not registry_unavailable
                forgotten = 400 <= refused.status < 500
            except DialFailed as failed:
                failures += 1
                self._log_state("not connected", str(failed))
            else:
                failures = 0
                self._log_state("connected")
                await self._until_lost(multiplexer)
            # A new registration that was refused is replaced at once.
            if not self._closing and (is_new or not forgotten):
                wait = _between(*STANDBY_SECONDS) if registry_unavailable else self._redials.next()
                await asyncio.sleep(wait)
            is_new = False

    async def _register_once(self) -> RegisterAnswer | None:
        """Register once; None if that failed: the old registration may still be valid."""
        try:
            return await self._register_now()
        except (RegistryError, ConfigurationError):
            return None

    async def _register_now(self) -> RegisterAnswer:
        identity = self._identity
        with tracing.outgoing("relay/register"):
            self._trace = active_headers()
            answer = await self._registry.register(
                identity.environment_id, identity.key.public, identity.pool
            )
        self._registration_id = answer.registration_id
        return answer

    async def _report(self) -> None:
        """Report the load after each change and each registration, and from time to time."""
        clock = asyncio.get_running_loop().time
        reported, reported_at = StatusRequest("", 0, 0, draining=False), 0.0
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            status = StatusRequest(self._registration_id, *self._load())
            unchanged = status == reported and clock() < reported_at + REPORT_SECONDS
            if unchanged or not status.registration_id:
                continue
            try:
                await self._registry.report(self._identity.environment_id, status)
            except (RegistryError, ConfigurationError) as error:
                # The state of the connection is logged elsewhere.
                self._log.debug("relay: the load was not reported", reason=str(error))
                await asyncio.sleep(_between(*STANDBY_SECONDS))
            else:
                reported, reported_at = status, clock()

    async def _until_lost(self, multiplexer: Multiplexer) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        self._multiplexer = multiplexer
        try:
            reason = await multiplexer.lost
        finally:
            self._multiplexer = None
        if loop.time() - since >= STEADY_SECONDS:
            self._redials.reset()
        if not self._closing:
            self._log_state("connection lost", reason)

    def _log_state(self, state: str, reason: str = "") -> None:
        """Log the state if it has changed."""
        logged = f"{state} {reason}"
        if logged == self._logged:
            return
        self._logged = logged
        if reason:
            self._log.warning(f"relay: {state}", reason=reason)
        else:
            self._log.info(f"relay: {state}")


def _between(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311  spreads load, hides nothing


class _Backoff:
    """Exponential back-off with a random part.

    Args:
        first: the first wait, in seconds.
        longest: the longest wait without its random part.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = self._wait = first
        self.longest = longest

    def next(self) -> float:
        """The next wait, with its random part of up to half."""
        wait = self._wait
        self._wait = min(2 * wait, self.longest)
        return _between(wait, 1.5 * wait)

    def reset(self) -> None:
        """Start again with the first wait."""
        self._wait = self._first
