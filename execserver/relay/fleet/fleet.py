"""A relay's share in a fleet: its connections, bus, store and tokens, and whether they can be used.

The cluster may start after the relay, and may be away for any time: the relay is then not ready, and goes on
when the cluster is there again. A cluster that refuses the relay is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from execserver.relay.fleet.bus import NatsBus
from execserver.relay.fleet.connection import FleetError, FleetUnreachable, NatsConnection
from execserver.relay.fleet.store import NatsStore
from execserver.relay.fleet.tokens import FleetTokens
from execserver.relay.service.settings import NatsSettings
from execserver.relay.service.store import StoreUnavailable
from execserver.telemetry.logs import Logger
from execserver.telemetry.relay_definitions import RelayNumbers

FIRST_SECONDS = 3.0
"""How long the servers may take at the start, before the relay listens without them."""

COMMAND_SECONDS = 5.0
"""How long they may take for a command."""

RETRY_SECONDS = 0.5
"""Between two attempts."""

log = Logger()


class Fleet:
    """One relay's share.

    Args:
        settings: of the cluster.

    Raises:
        FleetError: a file of the settings is unusable.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self.connection = NatsConnection(settings, "execserver relay: registry")
        self.bus = NatsBus(lambda: NatsConnection(settings, "execserver relay: bus"), settings.prefix)
        self.store = NatsStore(self.connection, settings, self.bus.node)
        self.tokens = FleetTokens(self.connection, settings)
        self.store.follow(self.tokens.bucket, self.tokens.mirror)
        self._logged = ""

    @property
    def fault(self) -> str:
        """Why the relay cannot admit peers now; empty if it can."""
        return self.connection.fault or self.store.fault or self.bus.fault

    def add_numbers(self, numbers: RelayNumbers) -> None:
        """Add what the metrics show of this share, at one moment."""
        bus, links, store = self.bus, self.bus.links, self.store
        numbers.fleet_nodes = len(links.nodes) + 1
        numbers.nats_connected = int(self.connection.is_connected)
        numbers.nats_reconnects = self.connection.reconnects
        numbers.bus_frames, numbers.bus_bytes = dict(bus.messages), dict(bus.bytes)
        numbers.bus_queued_bytes, numbers.bus_undecodable = links.queued, bus.undecodable
        numbers.link_ends = dict(links.ended)
        numbers.store_operations = store.operations
        numbers.store_errors = {name: each.codes.get(1, 0) for name, each in store.operations.items()}
        numbers.health_write_age_seconds = store.health_age

    async def reach(self) -> None:
        """Try to connect for the first time; returns also if no server answers yet.

        Raises:
            FleetError: the cluster refuses this relay.
        """
        with contextlib.suppress(FleetUnreachable):
            await self.connection.open(FIRST_SECONDS)

    async def run(self, url: str) -> None:
        """Take part in the fleet until it is cancelled.

        Args:
            url: of this relay, for the list of relays.

        Raises:
            FleetError: the cluster refuses this relay.
        """
        if not self.connection.is_connected:
            await self._connect(FleetUnreachable)
        while True:
            try:
                await self.store.start(url)
                break
            except StoreUnavailable as error:
                await self._wait(error)
        while True:
            try:
                await self.bus.start()
                break
            except (FleetUnreachable, OSError) as error:
                await self._wait(error)
        log.info("relay takes part in the fleet", node=self.bus.node, servers=self._settings.servers)
        while True:
            await self.connection.closed.wait()
            self.connection.closed.clear()
            await self._connect(FleetError)  # credentials that expired may be renewed
            self.store.reconnected()

    async def close(self) -> None:
        """Leave the fleet (idempotent)."""
        await self.bus.close()
        await self.store.close()
        await self.connection.close()

    async def _connect(self, transient: type[FleetError]) -> None:
        while True:
            try:
                return await self.connection.open(FIRST_SECONDS)
            except transient as error:
                await self._wait(error)

    async def _wait(self, error: Exception) -> None:
        if str(error) != self._logged:
            self._logged = str(error)
            log.warning("the fleet is not reachable yet, the relay is not ready", error=self._logged)
        await asyncio.sleep(RETRY_SECONDS)


@contextlib.asynccontextmanager
async def open_tokens(settings: NatsSettings) -> AsyncIterator[FleetTokens]:
    """The tokens of a fleet, read and ready to be changed, for a command.

    Raises:
        FleetError: the cluster cannot be reached, or refuses this command.
        StoreUnavailable: the tokens cannot be read.
    """
    connection = NatsConnection(settings, "execserver relay token")
    await connection.open(COMMAND_SECONDS)
    tokens = FleetTokens(connection, settings)
    try:
        await tokens.bucket.ensure()
        tokens.mirror.start()
        try:
            await asyncio.wait_for(tokens.mirror.complete.wait(), COMMAND_SECONDS)
        except TimeoutError:
            raise StoreUnavailable("the NATS servers do not send the tokens; try again") from None
        tokens.refresh()
        yield tokens
    finally:
        await tokens.mirror.close()
        await connection.close()
