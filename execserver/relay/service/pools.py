"""Pools: choose an executor for a new client, and count the clients that wait for one.

The chosen executor is the least loaded one that is connected, has the labels, is not draining and is below
its capacity. Its load are the sessions of its last report, and the clients that this relay has sent to it
since and that the report cannot contain yet. Relays of a fleet do not see each other's: until the next
report, a fraction of a second later, they may send an executor more clients than its capacity.

`docs/protocol.md`, "Pools".
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from execprotocol.relay.contract import ContractError, RegisterRequest, StatusRequest
from execprotocol.relay.pools import member_id, pool_of
from execserver.relay.service.bus import Bus
from execserver.relay.service.environment_records import EnvironmentRecords, registration_of
from execserver.relay.service.store import EnvironmentRecord, ExecutorStatus, PoolMember, RegistryStore

SENT_SECONDS = 10.0
"""How long a client that was sent to an executor counts there if no report shows that it opened a session. It
connects within a second, or has failed."""

WAITING_SECONDS = 15.0
"""How long a refused client counts as waiting. It asks again every two seconds."""

MAX_WAITING = 10_000
"""Clients of a pool that are counted as waiting: some MB of memory at most."""

MAX_MEMBERS = 10_000
"""Registered executors of a pool, connected or not: some 10 MB in each relay and in the store. A token for a
pool allows every key, so without a limit it would allow any number of records."""

MAX_SHOWN_LABELS = 20


class PoolOffline(Exception):
    """No connected executor of the pool has the labels."""


class PoolFull(Exception):
    """All executors that have the labels are at capacity or draining."""


class TooManyMembers(Exception):
    """The pool has as many registered executors as it may have."""


class StaleRegistration(Exception):
    """Another registration has replaced the one that a status names."""


@dataclass(slots=True)
class _Sent:
    """The clients that were sent to an executor and whose sessions are in no report yet."""

    opened: int
    """Of the last report that was looked at."""
    moments: deque[float] = field(default_factory=deque)

    def count(self, opened: int, now: float) -> int:
        """Their number, after a look at the newest report."""
        for _ in range(min(len(self.moments), opened - self.opened)):
            self.moments.popleft()
        self.opened = opened
        while self.moments and self.moments[0] <= now - SENT_SECONDS:
            self.moments.popleft()
        return len(self.moments)


class Pools:
    """The members of all pools, and the clients that wait.

    Args:
        store: keeps records and statuses.
        bus: knows which relays live.
        clock: seconds since 1970.
    """

    def __init__(self, store: RegistryStore, bus: Bus, clock: Callable[[], float]) -> None:
        self._store = store
        self._records = EnvironmentRecords(store, bus)
        self._clock = clock
        self._members: dict[str, set[str]] = {}  # environment ids of all that are registered
        self._sent: dict[str, _Sent] = {}
        self._waiting: dict[str, dict[str, float]] = {}  # by the client's fingerprint, the oldest first
        store.on_change(self._changed)
        for environment_id, record in store.environments().items():
            self._changed(environment_id, record)

    def choose(
        self, pool: str, labels: Mapping[str, str | None], client: str, without: Collection[str] = ()
    ) -> str:
        """Choose an executor, and count the client there.

        Args:
            pool: its name.
            labels: that the executor must have; None: with any value.
            client: the fingerprint of its key.
            without: environment ids of executors that turned out not to be connected.

        Returns:
            The executor's environment id.

        Raises:
            PoolOffline, PoolFull: there is none; the client counts as waiting. The message says why.
        """
        connected = [
            record
            for each in self._members.get(pool, ())
            if each not in without
            and (record := self._store.environments().get(each)) is not None
            and record.member is not None
            and self._records.live(record) is not None
        ]
        try:
            chosen = self._chosen(pool, labels, connected)
        except (PoolOffline, PoolFull):
            self._wait(pool, client)
            raise
        now = self._clock()
        self._sent.setdefault(chosen, _Sent(self._status(chosen).opened)).moments.append(now)
        self._waiting.get(pool, {}).pop(client, None)
        return chosen

    def check_room(self, environment_id: str) -> None:
        """Check that an environment may be registered. Others than those of pools always may.

        Raises:
            TooManyMembers: it would be a further member of a pool that has too many.
        """
        pool = pool_of(environment_id)
        members = self._members.get(pool, ()) if pool is not None else ()
        if len(members) >= MAX_MEMBERS and environment_id not in members:
            raise TooManyMembers(
                f"the pool {pool} has {MAX_MEMBERS} registered executors; those that are not connected are "
                "forgotten after an hour. An executor with a key file stays the same member when it restarts"
            )

    async def report(self, environment_id: str, status: StatusRequest) -> None:
        """Keep the status of an executor.

        Raises:
            StaleRegistration: it is not that of the current registration.
            StoreUnavailable: it cannot be kept now.
        """
        record = self._store.environments().get(environment_id)
        if record is None or registration_of(record, status.registration_id) is None:
            record = await self._records.read(environment_id)  # the list may be some milliseconds old
        if registration_of(record, status.registration_id) is None:
            raise StaleRegistration(f"the registration of {environment_id} is not valid any more")
        await self._store.report(
            environment_id,
            ExecutorStatus(
                status.registration_id, status.sessions, status.opened, status.draining, self._clock()
            ),
        )

    def waiting(self) -> dict[str, int]:
        """The number of waiting clients of each pool that has members or such clients."""
        counts = {}
        for pool in {*self._members, *self._waiting}:
            self._drop_late(pool)
            counts[pool] = len(self._waiting.get(pool, ()))
        for pool in [pool for pool, clients in self._waiting.items() if not clients]:
            del self._waiting[pool]
        return counts

    def _chosen(self, pool: str, labels: Mapping[str, str | None], connected: list[EnvironmentRecord]) -> str:
        if not connected:
            raise PoolOffline(f"no executor of the pool {pool} is connected")
        members = [(each.environment_id, each.member) for each in connected if each.member is not None]
        matching = [(each, member) for each, member in members if _has(member, labels)]
        if not matching:
            raise PoolOffline(
                f"no connected executor of the pool {pool} has {_shown(labels.items())}; there is "
                f"{_shown(label for _, member in members for label in member.labels.items())}"
            )
        ready = [(each, member) for each, member in matching if not self._status(each).draining]
        loads = [(self._load(each), each, member.capacity) for each, member in ready]
        free = [
            (load / (capacity or 1), random.random(), each)  # noqa: S311  decides ties, hides nothing
            for load, each, capacity in loads
            if capacity is None or load < capacity
        ]
        if not free:
            draining = len(matching) - len(ready)
            raise PoolFull(
                f"of {len(matching)} connected executors of the pool {pool}, {len(ready)} are at their "
                f"capacity and {draining} are draining"
            )
        return min(free)[2]

    def _load(self, environment_id: str) -> int:
        status, sent = self._status(environment_id), self._sent.get(environment_id)
        return status.sessions + (sent.count(status.opened, self._clock()) if sent is not None else 0)

    def _status(self, environment_id: str) -> ExecutorStatus:
        # Also that of an earlier registration: it is of the same key, and so of the same executor.
        return self._store.statuses().get(environment_id) or ExecutorStatus("", 0)

    def _wait(self, pool: str, client: str) -> None:
        clients = self._waiting.setdefault(pool, {})
        clients.pop(client, None)
        if len(clients) >= MAX_WAITING:
            self._drop_late(pool)
        if len(clients) < MAX_WAITING:
            clients[client] = self._clock()

    def _drop_late(self, pool: str) -> None:
        clients, oldest = self._waiting.get(pool, {}), self._clock() - WAITING_SECONDS
        while clients and clients[first := next(iter(clients))] <= oldest:
            del clients[first]

    def _changed(self, environment_id: str, record: EnvironmentRecord | None) -> None:
        pool = pool_of(environment_id)
        if pool is None:
            return
        if record is not None:
            self._members.setdefault(pool, set()).add(environment_id)
            return
        self._sent.pop(environment_id, None)
        members = self._members.get(pool, set())
        members.discard(environment_id)
        if not members:
            self._members.pop(pool, None)


def member_of(environment_id: str, request: RegisterRequest) -> PoolMember | None:
    """What a registration says of a member of a pool; None if it is none.

    Raises:
        ContractError: the id is that of another key, or is no member's and the request describes one.
    """
    pool, entry = pool_of(environment_id), request.pool
    if pool is None:
        if entry is not None:
            raise ContractError(
                "`pool` is for environments named POOL--FINGERPRINT, with 16 hexadecimal digits"
            )
        return None
    if environment_id != member_id(pool, request.key.fingerprint):
        raise ContractError("`environment_id` is that of a pool's member with another key")
    return None if entry is None else PoolMember(pool, entry.labels, entry.capacity, entry.version)


def _has(member: PoolMember, labels: Mapping[str, str | None]) -> bool:
    return all(
        name in member.labels and value in (None, member.labels[name]) for name, value in labels.items()
    )


def _shown(labels: Iterable[tuple[str, str | None]]) -> str:
    """Labels for a message, each once."""
    texts: set[str] = set()
    for name, value in labels:
        texts.add(f"{name}={value}" if value else name)
        if len(texts) > MAX_SHOWN_LABELS:  # a large pool may have 100,000 of them
            break
    more = ", …" if len(texts) > MAX_SHOWN_LABELS else ""
    return (", ".join(sorted(texts)[:MAX_SHOWN_LABELS]) or "no label") + more
