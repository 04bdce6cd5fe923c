"""The numbers of a relay, gathered from where they are counted, and the page that shows them."""

from __future__ import annotations

import time
from collections.abc import Callable

from execserver.relay.service.errors import Guard
from execserver.relay.service.registry import Registry
from execserver.relay.service.registry_http import RegistryHttp
from execserver.relay.service.rendezvous import Rendezvous
from execserver.relay.service.rendezvous_http import RendezvousHttp
from execserver.telemetry.exposition import Number, Reading, Readings, RenderedPage, render
from execserver.telemetry.relay_definitions import RELAY_DEFINITIONS, RelayDefinition, RelayNumbers


class Watcher:
    """Reads all numbers at one moment; on the loop's thread.

    Args:
        registry: environments.
        registry_http: what came of requests.
        rendezvous: streams and frames.
        rendezvous_http: sockets and their queues.
        guard: refusals.
        is_draining: whether the relay is about to end.
    """

    def __init__(
        self,
        registry: Registry,
        registry_http: RegistryHttp,
        rendezvous: Rendezvous,
        rendezvous_http: RendezvousHttp,
        guard: Guard,
        is_draining: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._registry_http = registry_http
        self._rendezvous = rendezvous
        self._rendezvous_http = rendezvous_http
        self._guard = guard
        self._is_draining = is_draining
        self._began = time.monotonic()

    def numbers(self) -> RelayNumbers:
        """All of them."""
        counters = self._rendezvous.counters
        queues = {
            "executor": [peer.queued for peer in self._rendezvous_http.executors],
            "client": [peer.queued for peer in self._rendezvous_http.harnesses.values()],
        }
        return RelayNumbers(
            uptime_seconds=time.monotonic() - self._began,
            draining=int(self._is_draining()),
            environments=len(self._registry.environments()),
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
            introductions=self._outcomes("connect", ("accepted", "offline")),
            validations=self._outcomes("validate", ("valid", "invalid")),
            refusals=dict(self._guard.refusals),
        )

    def _outcomes(self, request: str, outcomes: tuple[str, ...]) -> dict[str, int]:
        return {outcome: self._registry_http.outcomes[request, outcome] for outcome in outcomes}


def page(numbers: RelayNumbers, accept: str) -> RenderedPage:
    """The metrics page.

    Args:
        numbers: what was read.
        accept: of the request.
    """
    return render([Readings(each, _values(each, numbers)) for each in RELAY_DEFINITIONS], accept)


def _values(definition: RelayDefinition, numbers: RelayNumbers) -> list[Reading]:
    found = getattr(numbers, definition.number)
    if isinstance(found, dict):
        return [Number((key,), value) for key, value in found.items()]
    return [Number((), found)]
