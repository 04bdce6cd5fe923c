"""What the relay shows: health and readiness to anybody, to its own user the metrics and who is online."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import hdrs, web

from execserver.relay.service.errors import Refusal
from execserver.relay.service.registry import Registry
from execserver.relay.service.relay_metrics import Watcher, page
from execserver.relay.service.rendezvous import Rendezvous


class Pages:
    """The pages.

    Args:
        registry: who is registered.
        rendezvous: who has streams.
        watcher: reads the numbers.
        is_draining: whether the relay is about to end.
    """

    def __init__(
        self, registry: Registry, rendezvous: Rendezvous, watcher: Watcher, is_draining: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._rendezvous = rendezvous
        self._watcher = watcher
        self._is_draining = is_draining

    def public(self, prefix: str) -> list[web.RouteDef]:
        """For the listener of the peers, below a prefix."""
        return [web.get(f"{prefix}/healthz", self.healthz), web.get(f"{prefix}/readyz", self.readyz)]

    def private(self) -> list[web.RouteDef]:
        """For the control socket."""
        return [*self.public(""), *self.metrics_only(), web.get("/environments", self.environments)]

    def metrics_only(self) -> list[web.RouteDef]:
        """For the listener of the metrics."""
        return [web.get("/metrics", self.metrics)]

    async def healthz(self, _request: web.Request) -> web.Response:
        """The loop turns."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """Peers may come."""
        if self._is_draining():
            raise Refusal(503, "the relay is about to end")
        return web.Response(text="ready\n")

    async def environments(self, _request: web.Request) -> web.Response:
        """Who is online."""
        rows = [
            {
                "environment": state.environment_id,
                "seconds": round(state.seconds, 3),
                "streams": self._rendezvous.streams_of(state.registration_id),
                "clients": self._rendezvous.harnesses_of(state.registration_id),
                "registration": state.registration_id,
                "key": state.fingerprint,
            }
            for state in self._registry.environments()
            if state.online
        ]
        return web.json_response(rows)

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics page."""
        numbers = self._watcher.numbers()
        # Making the text takes milliseconds, in which frames would wait.
        content = await asyncio.to_thread(page, numbers, request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=content.body, headers={hdrs.CONTENT_TYPE: content.content_type})
