"""Several relays' registries in one process, over one store: what each decides, and which sockets it ends.

    fleet = Fleet(clock)
    one, two = fleet.node(), fleet.node()
    registered = await one.online("box", KEY, "token")   # registered, with a socket at that node
    one.ended                                            # {"socket-1": "replaced"}: what the registry closed
    fleet.alive.discard(one.bus.node)                    # the others take the node for dead

The registries, and the rendezvous of tests that need frames, are the real ones.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.bus import MemoryBus, Receive
from execserver.relay.service.environment_records import SocketEnd
from execserver.relay.service.memory_store import MemoryStore
from execserver.relay.service.registry import RegisterResult, RelayRegistry
from execserver.relay.service.store import (
    Changed,
    EnvironmentRecord,
    Grant,
    RegistryStore,
    SecretKind,
    Stored,
    StoredGrant,
    StoreUnavailable,
)


class SharedBus(MemoryBus):
    """The bus of one of several nodes in this process.

    Args:
        subscribers: by address, of all nodes.
        alive: the names of the nodes that live.
    """

    def __init__(self, subscribers: dict[str, Receive], alive: set[str]) -> None:
        super().__init__()
        self._subscribers = subscribers
        self._alive = alive
        alive.add(self.node)

    def address(self, peer_id: str) -> str:
        """With the name of the node."""
        return f"{self.node}.{peer_id}"

    def is_alive(self, node: str) -> bool:
        """Whether it is among those that live."""
        return node in self._alive


class DistantStore(MemoryStore):
    """A store as at another host: each call takes a turn of the loop before it has an effect, and it may be
    out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.fault = ""
        """While set, nothing is read or kept."""
        self.loses_answers = False
        """Whether it keeps a record, and then fails all the same."""
        self.answer: asyncio.Event | None = None
        """Where `save` waits after it kept a record."""
        self.delayed: dict[str, EnvironmentRecord | None] | None = None
        """While not None, news of changes wait here: the newest of each environment."""
        self.subscribers: list[Changed] = []

    def on_change(self, changed: Changed) -> None:
        """As documented, but see `delayed`."""
        if not self.subscribers:
            super().on_change(self._deliver)
        self.subscribers.append(changed)

    def deliver(self) -> None:
        """Deliver the news that wait."""
        delayed, self.delayed = self.delayed or {}, None
        for environment_id, record in delayed.items():
            self._deliver(environment_id, record)

    async def environment(self, environment_id: str) -> Stored | None:
        """As documented."""
        await self._travel()
        return await super().environment(environment_id)

    async def save(self, record: EnvironmentRecord, revision: int) -> int:
        """As documented, but see `loses_answers`."""
        await self._travel()
        saved = await super().save(record, revision)
        if self.answer is not None:
            await self.answer.wait()
        if self.loses_answers:
            raise StoreUnavailable("the answer did not come")
        return saved

    async def remove(self, environment_id: str, revision: int) -> None:
        """As documented."""
        await self._travel()
        await super().remove(environment_id, revision)

    async def add_grant(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        """As documented."""
        await self._travel()
        await super().add_grant(kind, digest, grant)

    async def grant(self, kind: SecretKind, digest: bytes) -> StoredGrant | None:
        """As documented."""
        await self._travel()
        return await super().grant(kind, digest)

    async def use_up(self, kind: SecretKind, digest: bytes, revision: int) -> bool:
        """As documented."""
        await self._travel()
        return await super().use_up(kind, digest, revision)

    async def _travel(self) -> None:
        await asyncio.sleep(0)
        if self.fault:
            raise StoreUnavailable(self.fault)

    def _deliver(self, environment_id: str, record: EnvironmentRecord | None) -> None:
        if self.delayed is not None:
            self.delayed[environment_id] = record
            return
        for changed in self.subscribers:
            changed(environment_id, record)


class Node:
    """The registry of one relay."""

    def __init__(self, registry: RelayRegistry, bus: SharedBus) -> None:
        self.registry = registry
        self.bus = bus
        self.ended: dict[str, SocketEnd] = {}
        """The sockets that the registry closed, and why."""
        self._numbers = itertools.count(1)

    async def register(self, environment: str, key: PublicKeys, token: str = "executor") -> RegisterResult:
        """Register an executor."""
        return await self.registry.register(environment, key, token)

    async def dial(self, environment: str, ticket: str) -> str:
        """Open a socket of an executor here; its address."""
        registration = await self.registry.redeem_executor(environment, ticket)
        address = self.bus.address(f"socket-{next(self._numbers)}")

        def end(why: SocketEnd) -> None:
            assert address not in self.ended, "closed twice"
            self.ended[address] = why

        try:
            await self.registry.socket_opened(registration, address, end)
        except Exception:
            await self.registry.socket_closed(environment, address)
            raise
        return address

    async def online(
        self, environment: str, key: PublicKeys, token: str = "executor"
    ) -> tuple[RegisterResult, str]:
        """Register an executor and open its socket; the registration, and the socket's address."""
        registered = await self.register(environment, key, token)
        return registered, await self.dial(environment, registered.ticket)


class Fleet:
    """Relays that share a store and a bus.

    Args:
        clock: seconds.
        store: of all.
        is_token_valid: by the id of a token; None: `revoked` decides.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        store: RegistryStore,
        is_token_valid: Callable[[str], bool] | None = None,
    ) -> None:
        self.store = store
        self.alive: set[str] = set()
        self.revoked: set[str] = set()
        """Tokens that are not valid."""
        self._clock = clock
        self._is_token_valid = is_token_valid or (lambda token_id: token_id not in self.revoked)
        self._subscribers: dict[str, Receive] = {}

    def node(self) -> Node:
        """A new relay."""
        bus = SharedBus(self._subscribers, self.alive)
        return Node(RelayRegistry(self.store, bus, self._clock, self._is_token_valid), bus)
