"""The executor's life at a registry: register, dial, serve, and begin again for as long as the daemon lives.

    register ──▶ dial ──▶ serve ──▶ (socket lost) ──▶ dial the same URL
       ▲                                                │ refused (4xx): the relay has forgotten it
       └────────────────────────────────────────────────┘

Nothing that the registry or the relay does ends it, unless the operator wants that of a final refusal: a
daemon that went away because a server far away was restarted would be a daemon less. Each change of state is
logged once, however often it is tried meanwhile; neither tokens nor URLs' queries are.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable

from execprotocol.relay import contract
from execprotocol.relay.contract import RegisterAnswer
from execprotocol.relay.dial import DialFailed, DialRefused, dial
from execprotocol.relay.registry_client import RegistryClient, RegistryError, RegistryRefused
from execserver.relay.executor.admission import ClientAdmission
from execserver.relay.executor.identity import Identity
from execserver.relay.executor.multiplexer import Multiplexer
from execserver.rpc.channel import Channel, MessageHandler
from execserver.telemetry.logs import Logger
from execserver.transports.authentication import ConfigurationError

REDIAL_SECONDS = (0.2, 5.0)
"""The wait before the first dial after a lost socket, and the longest: each is twice the one before, and up
to half more, so that a thousand executors do not come back to a restarted relay at the same moment."""

REGISTER_SECONDS = (1.0, 30.0)
"""The same between two registrations that failed."""

STANDBY_SECONDS = (0.5, 1.0)
"""Between two while another executor holds the environment: the take-over takes no longer."""

DIALS_A_REGISTRATION = 5
"""Dials in a row that fail, before the registry is asked each time whether the address is still the right
one: a relay may have moved."""

STEADY_SECONDS = 10.0
"""A socket that lived so long did: the waits begin anew. Two executors with the same key, each of which takes
the other's place, slow down instead of going on as fast as they can."""

log = Logger()


class RemoteExecutor:
    """Serves the clients that come through a relay, from `start` on.

    Args:
        identity: who we are.
        make_handler: makes the handler of each client's connection.
        may_open: whether new connections are taken now.
        refused: called with the reason when the registry refuses us for good, which ends us; without it we go
            on asking.
    """

    def __init__(
        self,
        identity: Identity,
        make_handler: Callable[[Channel], MessageHandler],
        *,
        may_open: Callable[[], bool] = lambda: True,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self._identity = identity
        self._make_handler = make_handler
        self._may_open = may_open
        self._refused = refused
        self._registry = RegistryClient(identity.base_url, identity.token)
        self._log = log.bind(registry=self._registry.shown, environment=identity.environment_id)
        self._said = ""
        self._link: Multiplexer | None = None
        self._closing = False
        self._redials = _Backoff(*REDIAL_SECONDS)
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, and return at once."""
        self._life = asyncio.get_running_loop().create_task(self._live())

    def close(self) -> None:
        """Take no further clients; the socket goes with the last that is there (idempotent)."""
        self._closing = True
        if self._link is not None:
            self._link.close_when_idle()
        elif self._life is not None:
            self._life.cancel()

    async def closed(self, seconds: float) -> None:
        """Wait until the relay has what was sent to it, for at most `seconds`, and let go of everything.

        `close` came before, and every connection has ended.
        """
        if self._life is not None:
            _, late = await asyncio.wait({self._life}, timeout=seconds)
            if late and self._link is not None:
                self._link.abort()
            if late:
                self._life.cancel()
                await asyncio.wait({self._life})
        await self._registry.aclose()

    async def _live(self) -> None:
        while not self._closing:
            try:
                answer = await self._register()
                if answer is None:
                    return
                await self._serve(answer)
            except Exception as error:  # a mistake of ours must not be the end of the service
                self._log.error("relay failed", exc_info=error)
                await asyncio.sleep(self._redials.longest)

    async def _register(self) -> RegisterAnswer | None:
        """Until it succeeds; None when it is not to be tried again."""
        waits = _Backoff(*REGISTER_SECONDS)
        while True:
            try:
                answer = await self._registry.register(
                    self._identity.environment_id, self._identity.key.public
                )
            except RegistryRefused as error:
                if error.code == contract.REGISTRATION_CONFLICT:
                    self._say("standing by: another executor holds the environment")
                    await asyncio.sleep(_between(*STANDBY_SECONDS))
                    continue
                if self._refused is not None and not error.retry:
                    self._refused(str(error))
                    return None
                self._say("not registered", str(error))
            except (RegistryError, ConfigurationError) as error:
                self._say("not registered", str(error))
            else:
                return answer
            await asyncio.sleep(waits.next())

    async def _serve(self, answer: RegisterAnswer) -> None:
        """On this registration, for as long as the relay knows it."""
        forgotten = False
        is_new = True
        failures = 0
        while not (self._closing or forgotten):
            if failures >= DIALS_A_REGISTRATION and (moved := await self._register_once()) is not None:
                answer, failures = moved, 0
            admission = ClientAdmission(self._identity, answer.registration_id, self._registry)
            link = Multiplexer(admission, self._make_handler, self._may_open)
            try:
                await dial(answer.url, link, headers={"X-Request-ID": f"req_{secrets.token_hex(16)}"})
            except DialRefused as refused:
                failures += 1
                self._say("not connected", str(refused))
                forgotten = 400 <= refused.status < 500
            except DialFailed as failed:
                failures += 1
                self._say("not connected", str(failed))
            else:
                failures = 0
                self._say("connected")
                await self._until_lost(link)
            # What was never known would be refused again at once.
            if not self._closing and (is_new or not forgotten):
                await asyncio.sleep(self._redials.next())
            is_new = False

    async def _register_once(self) -> RegisterAnswer | None:
        """None when that is not possible now: what there is may be right all the same."""
        try:
            return await self._registry.register(self._identity.environment_id, self._identity.key.public)
        except (RegistryError, ConfigurationError):
            return None

    async def _until_lost(self, link: Multiplexer) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        self._link = link
        try:
            reason = await link.lost
        finally:
            self._link = None
        if loop.time() - since >= STEADY_SECONDS:
            self._redials.reset()
        if not self._closing:
            self._say("connection lost", reason)

    def _say(self, state: str, reason: str = "") -> None:
        """Log a change; what is as before was said before."""
        said = f"{state} {reason}"
        if said == self._said:
            return
        self._said = said
        if reason:
            self._log.warning(f"relay: {state}", reason=reason)
        else:
            self._log.info(f"relay: {state}")


def _between(least: float, most: float) -> float:
    return random.uniform(least, most)  # noqa: S311  spreads load, hides nothing


class _Backoff:
    """Waits that grow.

    Args:
        first: in seconds.
        longest: of those without their random part.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = self._wait = first
        self.longest = longest

    def next(self) -> float:
        """The next wait, up to half longer than it is due."""
        wait = self._wait
        self._wait = min(2 * wait, self.longest)
        return _between(wait, 1.5 * wait)

    def reset(self) -> None:
        """Begin with the first one."""
        self._wait = self._first
