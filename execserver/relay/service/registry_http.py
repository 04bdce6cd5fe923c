"""The registry over HTTP: the requests register, connect, validate and status of `registry.py`.

The id in the path is checked first, then the token, then the body: of a stranger only the head is read, and
the answer reveals nothing. `docs/protocol.md`, "Relay" and "Pools".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

from aiohttp import hdrs, web

from execprotocol.relay.contract import (
    AUTHENTICATION_UNAVAILABLE,
    ENVIRONMENT_OFFLINE,
    POOL_FULL,
    REGISTRATION_CONFLICT,
    STALE_REGISTRATION,
    ConnectAnswer,
    ConnectRequest,
    PoolConnectRequest,
    RegisterAnswer,
    RegisterRequest,
    StatusRequest,
    ValidateRequest,
    check_environment_id,
    check_pool,
)
from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.errors import HttpError
from execserver.relay.service.pools import PoolFull, PoolOffline, StaleRegistration, TooManyMembers, member_of
from execserver.relay.service.registry import EnvironmentTaken, ExecutorOffline, RelayRegistry, TooManyTickets
from execserver.relay.service.settings import is_host
from execserver.relay.service.store import StoreUnavailable
from execserver.relay.service.tokens import Role, TokenRecord, Tokens
from execserver.telemetry.logs import Logger

BODY_SECONDS = 10.0
"""How long a body of at most 16 KiB may take: as long as peers wait for an answer."""

DRAINING = "the relay is about to end; try again soon"

log = Logger()


class PublicUrls:
    """The URLs that the relay hands out.

    Args:
        public: the base URL by which peers reach the relay; empty: by the `Host` of each request.
        scheme: of the listener.
        prefix: the path of the listener.
    """

    def __init__(self, public: str, scheme: str, prefix: str) -> None:
        self._public = public
        self._scheme = scheme
        self._prefix = prefix

    def base(self, request: web.Request) -> str:
        """The base URL by which the sender of a request reaches the relay. Call this before the request has
        an effect.

        Raises:
            HttpError: there is no public URL, and `Host` is not valid in a URL.
        """
        if self._public:
            return self._public
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or not is_host(hosts[0]):
            raise HttpError(400, "the `Host` header must name this relay once: HOST or HOST:PORT")
        return f"{self._scheme}://{hosts[0]}{self._prefix}"

    def rendezvous(self, base: str, environment_id: str, role: str, ticket: str) -> str:
        """The URL that a peer has to dial."""
        # http becomes ws, https becomes wss.
        return (
            f"ws{base.removeprefix('http')}/cloud/environment/{environment_id}/{role}?ticket={quote(ticket)}"
        )


class RegistryHttp:
    """The handlers of the requests.

    Args:
        registry: their state.
        tokens: authorizes requests.
        urls: makes the URLs of answers.
        is_draining: whether the relay is draining.

    Attributes:
        outcomes: the number of requests, by request and outcome.
    """

    def __init__(
        self, registry: RelayRegistry, tokens: Tokens, urls: PublicUrls, is_draining: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._tokens = tokens
        self._urls = urls
        self._is_draining = is_draining
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """The routes, below a prefix."""
        base = f"{prefix}/cloud/environment/{{environment}}"
        return [
            web.post(f"{base}/register", self.register),
            web.post(f"{base}/connect", self.connect),
            web.post(f"{base}/validate", self.validate),
            web.post(f"{base}/status", self.status),
            web.post(f"{prefix}/cloud/pool/{{pool}}/connect", self.connect_pool),
        ]

    async def register(self, request: web.Request) -> web.Response:
        """Register an executor."""
        environment_id, token = self._admitted(request, "executor")
        base = self._urls.base(request)
        asked = RegisterRequest.parse(await _body(request))
        key, member = asked.key, member_of(environment_id, asked)
        if self._is_draining():
            raise HttpError(503, DRAINING, REGISTRATION_CONFLICT)
        try:
            registered = await self._registry.register(environment_id, key, token.id, member)
        except EnvironmentTaken as error:
            self.outcomes["register", "conflict"] += 1
            raise HttpError(503, str(error), REGISTRATION_CONFLICT) from None
        except TooManyMembers as error:
            raise HttpError(429, str(error)) from None
        except StoreUnavailable as error:  # after this code a stock executor retries
            raise HttpError(502, str(error), AUTHENTICATION_UNAVAILABLE) from None
        url = self._urls.rendezvous(base, environment_id, "executor", registered.ticket)
        self.outcomes["register", "accepted"] += 1
        registration = registered.registration
        log.info(
            "executor registered",
            environment=environment_id,
            registration=registration.id,
            key=key.fingerprint[:16],
            token=token.id,
        )
        return web.json_response(RegisterAnswer(environment_id, url, registration.id).to_json())

    async def connect(self, request: web.Request) -> web.Response:
        """Give a client a ticket for the connected executor."""
        environment_id, token = self._admitted(request, "client")
        base = self._urls.base(request)
        key = ConnectRequest.parse(await _body(request)).key
        try:
            return await self._introduce(base, environment_id, key, token)
        except ExecutorOffline as error:
            raise self._offline(error) from None

    async def connect_pool(self, request: web.Request) -> web.Response:
        """Choose an executor of a pool for a client, and give the client a ticket."""
        pool = check_pool(request.match_info["pool"])
        token = self._tokens.check_pool(bearer_of(request), pool)
        base = self._urls.base(request)
        asked = PoolConnectRequest.parse(await _body(request))
        gone: set[str] = set()
        while True:
            try:
                chosen = self._registry.pools.choose(pool, asked.labels, asked.key.fingerprint, gone)
            except PoolOffline as error:
                raise self._offline(error) from None
            except PoolFull as error:
                self.outcomes["connect", "full"] += 1
                raise HttpError(503, str(error), POOL_FULL) from None
            try:
                return await self._introduce(base, chosen, asked.key, token)
            except ExecutorOffline:  # the record in the list was some milliseconds old
                gone.add(chosen)

    async def _introduce(
        self, base: str, environment_id: str, key: PublicKeys, token: TokenRecord
    ) -> web.Response:
        """The answer with a ticket. Raises ExecutorOffline, HttpError."""
        if self._is_draining():
            raise HttpError(503, DRAINING)
        try:
            granted = await self._registry.connect(environment_id, key, token.id)
        except TooManyTickets as error:
            raise HttpError(429, str(error)) from None
        except StoreUnavailable as error:
            raise self._offline(error) from None
        url = self._urls.rendezvous(base, environment_id, "harness", granted.ticket)
        self.outcomes["connect", "accepted"] += 1
        registration = granted.registration
        answer = ConnectAnswer(environment_id, url, registration.id, registration.key, granted.authorization)
        return web.json_response(answer.to_json())

    async def validate(self, request: web.Request) -> web.Response:
        """Tell an executor whether the registry sent a client."""
        environment_id, _ = self._admitted(request, "executor")
        asked = ValidateRequest.parse(await _body(request))
        valid = await self._registry.validate(environment_id, asked)
        self.outcomes["validate", "valid" if valid else "invalid"] += 1
        return web.json_response({"valid": valid})

    async def status(self, request: web.Request) -> web.Response:
        """Take the load of a member of a pool."""
        environment_id, _ = self._admitted(request, "executor")
        reported = StatusRequest.parse(await _body(request))
        try:
            await self._registry.pools.report(environment_id, reported)
        except StaleRegistration as error:
            raise HttpError(409, str(error), STALE_REGISTRATION) from None
        return web.json_response({})

    def _offline(self, error: Exception) -> HttpError:
        """The refusal after which a stock harness retries."""
        self.outcomes["connect", "offline"] += 1
        return HttpError(409, str(error), ENVIRONMENT_OFFLINE)

    def _admitted(self, request: web.Request, role: Role) -> tuple[str, TokenRecord]:
        environment_id = check_environment_id(request.match_info["environment"])
        return environment_id, self._tokens.check(bearer_of(request), role, environment_id)


def bearer_of(request: web.Request) -> str | None:
    """The bearer token of a request; None if it has none."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
