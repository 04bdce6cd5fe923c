"""The registry over HTTP: register, connect, validate. What they mean is `registry.py`'s.

In this order: the id in the path, the token, the body. So a stranger learns nothing, and only his head
is read. `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

from aiohttp import hdrs, web

from execprotocol.relay.contract import (
    ENVIRONMENT_OFFLINE,
    REGISTRATION_CONFLICT,
    ConnectAnswer,
    ConnectRequest,
    RegisterAnswer,
    RegisterRequest,
    ValidateRequest,
    check_environment_id,
)
from execserver.relay.service.errors import HttpError
from execserver.relay.service.registry import EnvironmentTaken, ExecutorOffline, RelayRegistry, TooManyTickets
from execserver.relay.service.settings import is_host
from execserver.relay.service.tokens import Role, TokenRecord, TokenStore
from execserver.telemetry.logs import Logger

BODY_SECONDS = 10.0
"""How long a body may take that has 16 KiB at most: as long as the peers wait for an answer."""

DRAINING = "the relay is about to end; try again soon"

log = Logger()


class PublicUrls:
    """The URLs that peers are handed.

    Args:
        public: the base under which they reach us; empty: by the request's `Host`.
        scheme: of our listener.
        prefix: of our listener, the path of our base.
    """

    def __init__(self, public: str, scheme: str, prefix: str) -> None:
        self._public = public
        self._scheme = scheme
        self._prefix = prefix

    def base(self, request: web.Request) -> str:
        """Under which URL the peer that sent a request reaches us. To be asked before the request is carried
        out: what is refused has no effect.

        Raises:
            HttpError: `Host` cannot stand in a URL, and there is no public URL.
        """
        if self._public:
            return self._public
        hosts = request.headers.getall(hdrs.HOST, [])
        if len(hosts) != 1 or not is_host(hosts[0]):
            raise HttpError(400, "the `Host` header must name this relay once: HOST or HOST:PORT")
        return f"{self._scheme}://{hosts[0]}{self._prefix}"

    def rendezvous(self, base: str, environment_id: str, role: str, ticket: str) -> str:
        """Where a peer is to dial that reaches us under a base."""
        # http becomes ws, https becomes wss.
        return (
            f"ws{base.removeprefix('http')}/cloud/environment/{environment_id}/{role}?ticket={quote(ticket)}"
        )


class RegistryHttp:
    """The three requests.

    Args:
        registry: who is where.
        tokens: who may what.
        urls: makes what is handed out.
        is_draining: whether the relay is about to end.

    Attributes:
        outcomes: how often what came of them, by request and outcome.
    """

    def __init__(
        self, registry: RelayRegistry, tokens: TokenStore, urls: PublicUrls, is_draining: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._tokens = tokens
        self._urls = urls
        self._is_draining = is_draining
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Below a prefix."""
        base = f"{prefix}/cloud/environment/{{environment}}"
        return [
            web.post(f"{base}/register", self.register),
            web.post(f"{base}/connect", self.connect),
            web.post(f"{base}/validate", self.validate),
        ]

    async def register(self, request: web.Request) -> web.Response:
        """An executor wants to be found."""
        environment_id, token = self._admitted(request, "executor")
        base = self._urls.base(request)
        key = RegisterRequest.parse(await _body(request)).key
        if self._is_draining():
            raise HttpError(503, DRAINING, REGISTRATION_CONFLICT)
        try:
            registered = self._registry.register(environment_id, key, token.id)
        except EnvironmentTaken as error:
            self.outcomes["register", "conflict"] += 1
            raise HttpError(503, str(error), REGISTRATION_CONFLICT) from None
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
        """A client wants to reach the executor."""
        environment_id, token = self._admitted(request, "client")
        base = self._urls.base(request)
        key = ConnectRequest.parse(await _body(request)).key
        if self._is_draining():
            raise HttpError(503, DRAINING)
        try:
            introduction = self._registry.connect(environment_id, key, token.id)
        except ExecutorOffline as error:
            self.outcomes["connect", "offline"] += 1
            raise HttpError(409, str(error), ENVIRONMENT_OFFLINE) from None
        except TooManyTickets as error:
            raise HttpError(429, str(error)) from None
        url = self._urls.rendezvous(base, environment_id, "harness", introduction.ticket)
        self.outcomes["connect", "accepted"] += 1
        registration = introduction.registration
        answer = ConnectAnswer(
            environment_id, url, registration.id, registration.key, introduction.authorization
        )
        return web.json_response(answer.to_json())

    async def validate(self, request: web.Request) -> web.Response:
        """An executor asks whether it was us who sent a client."""
        environment_id, _ = self._admitted(request, "executor")
        asked = ValidateRequest.parse(await _body(request))
        valid = self._registry.validate(environment_id, asked)
        self.outcomes["validate", "valid" if valid else "invalid"] += 1
        return web.json_response({"valid": valid})

    def _admitted(self, request: web.Request, role: Role) -> tuple[str, TokenRecord]:
        environment_id = check_environment_id(request.match_info["environment"])
        return environment_id, self._tokens.check(bearer_of(request), role, environment_id)


def bearer_of(request: web.Request) -> str | None:
    """The token that a request carries; None when it carries none."""
    scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
