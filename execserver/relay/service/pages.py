"""The relay's pages: health and readiness without credentials; metrics and environments for its own user."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from aiohttp import hdrs, web

from execserver.relay.service.errors import Guard, HttpError
from execserver.relay.service.registry import EnvironmentState, RelayRegistry
from execserver.relay.service.registry_http import RegistryHttp
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from execserver.relay.service.store import ExecutorSocket
from execserver.telemetry.definitions import distribution
from execserver.telemetry.exposition import Labels, Number, Reading, Readings, RenderedPage, render
from execserver.telemetry.measures import RequestCounts
from execserver.telemetry.relay_definitions import RELAY_DEFINITIONS, RelayDefinition, RelayNumbers


class MetricsReader:
    """Reads all metrics at one moment, on the loop's thread.

    Args:
        registry: for environments.
        registry_http: for the outcomes of requests.
        rendezvous: for streams and frames.
        rendezvous_http: for sockets and their queues.
        guard: for refused requests.
        is_draining: whether the relay is draining.
        add_fleet: adds the numbers of the relay's share in a fleet; None: it has none.
    """

    def __init__(
        self,
        registry: RelayRegistry,
        registry_http: RegistryHttp,
        rendezvous: Rendezvous,
        rendezvous_http: RendezvousHttp,
        guard: Guard,
        is_draining: Callable[[], bool],
        add_fleet: Callable[[RelayNumbers], None] | None = None,
    ) -> None:
        self._registry = registry
        self._registry_http = registry_http
        self._rendezvous = rendezvous
        self._rendezvous_http = rendezvous_http
        self._guard = guard
        self._is_draining = is_draining
        self._add_fleet = add_fleet
        self._began = time.monotonic()

    def numbers(self) -> RelayNumbers:
        """The current values."""
        counters = self._rendezvous.counters
        queues = {
            "executor": [peer.queued for peer in self._rendezvous_http.executors],
            "client": [peer.queued for peer in self._rendezvous_http.harnesses.values()],
        }
        states = self._registry.environments()
        numbers = RelayNumbers(
            uptime_seconds=time.monotonic() - self._began,
            draining=int(self._is_draining()),
            environments=len(states),
            environments_online=self._registry.online,
            clients=counters.harnesses,
            streams=counters.streams,
            frames={"executor": counters.frames_up, "client": counters.frames_down},
            bytes={"executor": counters.bytes_up, "client": counters.bytes_down},
            dropped=counters.dropped,
            resets=counters.resets,
            queued_bytes={to: sum(each) for to, each in queues.items()},
            largest_queue_bytes={to: max(each, default=0) for to, each in queues.items()},
            closed=counters.closed,
            pauses={"helped": counters.holds - counters.failed_holds, "failed": counters.failed_holds},
            registrations=self._outcomes("register", ("accepted", "conflict")),
            introductions=self._outcomes("connect", ("accepted", "offline", "full")),
            validations=self._outcomes("validate", ("valid", "invalid")),
            refusals=dict(self._guard.refusals),
            pool_waiting=self._registry.pools.waiting(),
        )
        _count_pools(numbers, states)
        if self._add_fleet is not None:
            self._add_fleet(numbers)
        return numbers

    def _outcomes(self, request: str, outcomes: tuple[str, ...]) -> dict[str, int]:
        return {outcome: self._registry_http.outcomes[request, outcome] for outcome in outcomes}


class Pages:
    """The handlers of the pages.

    Args:
        registry: for registered environments.
        rendezvous: for their streams.
        metrics: reads the metrics.
        fault: why the relay admits no peers now; empty: it does.
        nats: the servers of its fleet, which have its tokens.
    """

    def __init__(
        self,
        registry: RelayRegistry,
        rendezvous: Rendezvous,
        metrics: MetricsReader,
        fault: Callable[[], str],
        nats: Sequence[str] = (),
    ) -> None:
        self._registry = registry
        self._rendezvous = rendezvous
        self._metrics = metrics
        self._fault = fault
        self._nats = nats

    def public(self, prefix: str) -> list[web.RouteDef]:
        """The routes for the listener of the peers, below a prefix."""
        return [web.get(f"{prefix}/healthz", self.healthz), web.get(f"{prefix}/readyz", self.readyz)]

    def private(self) -> list[web.RouteDef]:
        """The routes for the control socket."""
        return [
            *self.public(""),
            *self.metrics_only(),
            web.get("/environments", self.environments),
            web.get("/nats", self.nats),
        ]

    def metrics_only(self) -> list[web.RouteDef]:
        """The routes for the listener of the metrics."""
        return [web.get("/metrics", self.metrics)]

    async def healthz(self, _request: web.Request) -> web.Response:
        """Answer 200 while the loop runs."""
        return web.Response(text="ok\n")

    async def readyz(self, _request: web.Request) -> web.Response:
        """Answer 200 while peers are admitted."""
        if fault := self._fault():
            raise HttpError(503, fault)
        return web.Response(text="ready\n")

    async def nats(self, _request: web.Request) -> web.Response:
        """The NATS servers of the fleet, as JSON; none for a single relay."""
        return web.json_response(list(self._nats))

    async def environments(self, _request: web.Request) -> web.Response:
        """The environments with a connected executor, as JSON."""
        states = self._registry.environments()
        return web.json_response([self._row(each, each.socket) for each in states if each.socket is not None])

    def _row(self, state: EnvironmentState, socket: ExecutorSocket) -> dict[str, object]:
        """One environment; None for what this relay does not know."""
        is_here, member, status = socket.node == self._registry.node, state.member, state.status
        return {
            "environment": state.environment_id,
            "seconds": round(state.seconds, 3),
            "streams": self._rendezvous.streams_of(socket.address) if is_here else None,
            "clients": self._rendezvous.harnesses_of(socket.address) if is_here else None,
            "pool": member.pool if member is not None else None,
            "labels": dict(member.labels) if member is not None else None,
            "capacity": member.capacity if member is not None else None,
            "version": member.version if member is not None else None,
            "sessions": status.sessions if status is not None else None,
            "draining": status.draining if status is not None else None,
            "node": socket.node,
            "registration": state.registration_id,
            "key": state.fingerprint,
        }

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics page."""
        numbers = self._metrics.numbers()
        # Rendering takes milliseconds, which would delay frames.
        content = await asyncio.to_thread(metrics_page, numbers, request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=content.body, headers={hdrs.CONTENT_TYPE: content.content_type})


def metrics_page(numbers: RelayNumbers, accept: str) -> RenderedPage:
    """The metrics page.

    Args:
        numbers: the values to show.
        accept: the header of the request.
    """
    return render([Readings(each, _values(each, numbers)) for each in RELAY_DEFINITIONS], accept)


def _count_pools(numbers: RelayNumbers, states: Sequence[EnvironmentState]) -> None:
    """Add what members of pools said of themselves. A pool whose members are all offline is shown, too."""
    executors, sessions, capacity = numbers.pool_executors, numbers.pool_sessions, numbers.pool_capacity
    for state in states:
        member, status = state.member, state.status
        if member is None:
            continue
        pool, draining = member.pool, status is not None and status.draining
        for shown in ("online", "draining"):
            executors.setdefault((pool, shown), 0)
        sessions.setdefault(pool, 0)
        if member.capacity is not None:
            capacity.setdefault(pool, 0)
        if state.online:
            executors[pool, "draining" if draining else "online"] += 1
            sessions[pool] += status.sessions if status is not None else 0
            if member.capacity is not None and not draining:
                capacity[pool] += member.capacity


def _values(definition: RelayDefinition, numbers: RelayNumbers) -> list[Reading]:
    found = getattr(numbers, definition.number)
    if isinstance(found, dict):
        return [_reading((key,) if isinstance(key, str) else key, value) for key, value in found.items()]
    return [] if found is None else [Number((), found)]


def _reading(labels: Labels, value: float | RequestCounts) -> Reading:
    return distribution(labels, value) if isinstance(value, RequestCounts) else Number(labels, value)
