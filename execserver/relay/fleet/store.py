"""The registry's records in buckets of a NATS cluster (`RegistryStore`).

    PREFIX_environments   file    one `EnvironmentRecord` each; `relay.NODE` for 15 s, one `NodeRecord` each
    PREFIX_grants         memory  for 120 s, by kind and SHA-256 of the secret: one `Grant` each
    PREFIX_status         memory  for 60 s, one `ExecutorStatus` each

All values are JSON. Members that are unknown, of a newer version, are ignored.

Each relay writes its own `NodeRecord` every two seconds. That shows whether the cluster can keep anything: a
full disk, a lost majority and JetStream that is off are known before a peer asks (`fault`). The record is in
the bucket of environments, because the disk may be full for one bucket and have room in a block of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from execserver.relay.fleet.buckets import (
    ELECTION_SECONDS,
    Bucket,
    BucketMissing,
    BucketSettings,
    Mirror,
)
from execserver.relay.fleet.connection import NatsConnection, end_task
from execserver.relay.service.settings import NatsSettings
from execserver.relay.service.store import (
    Changed,
    EnvironmentRecord,
    ExecutorStatus,
    Grant,
    Outdated,
    SecretKind,
    Stored,
    StoredGrant,
    StoreUnavailable,
)
from execserver.telemetry.logs import Logger
from execserver.telemetry.measures import RequestCounts

GRANT_SECONDS, STATUS_SECONDS, NODE_SECONDS = 120.0, 60.0, 15.0
"""How long these records stay."""

HEALTH_SECONDS = 2.0
"""Interval in which the store is tried."""

PATIENCE_SECONDS = 4.0
"""How long the store may not answer before it counts as unavailable: longer than a reconnection."""

OPERATIONS = ("environment", "save", "remove", "add_grant", "grant", "use_up", "report", "health")
"""Names in the metrics."""

log = Logger()

_Record = TypeVar("_Record")


class NodeRecord(msgspec.Struct, frozen=True):
    """One relay of the fleet."""

    node: str
    """Its name (`Bus.node`)."""
    url: str
    """The URL at which it serves."""
    started: float
    """Seconds since 1970."""


class NatsStore:
    """The store of one relay (`RegistryStore`).

    Args:
        connection: to the cluster, open or about to be.
        settings: with the prefix of the buckets, and their replicas.
        node: the name of this relay.
    """

    def __init__(self, connection: NatsConnection, settings: NatsSettings, node: str) -> None:
        def bucket(name: str, *, memory: bool = False, seconds: float | None = None) -> Bucket:
            own = BucketSettings(f"{settings.prefix}_{name}", memory, seconds)
            return Bucket(connection, own, settings.replicas)

        self.fault = "the store is not connected yet"
        """Why nothing can be kept now; empty if everything can."""
        self.operations = {name: RequestCounts() for name in OPERATIONS}
        """By operation: how many there were, and how long they took. The code is 1 for those that failed."""
        self._written = time.monotonic()
        self._environments = bucket("environments")
        self._grants = bucket("grants", memory=True, seconds=GRANT_SECONDS)
        self._status = bucket("status", memory=True, seconds=STATUS_SECONDS)
        self._record = NodeRecord(node, "", time.time())
        self._environment_mirror = Mirror(self._environments, msgspec.json.Decoder(EnvironmentRecord).decode)
        self._status_mirror = Mirror(self._status, msgspec.json.Decoder(ExecutorStatus).decode)
        self._buckets = [self._environments, self._grants, self._status]
        self._mirrors: list[Mirror[Any]] = [self._environment_mirror, self._status_mirror]
        self._connection = connection
        self._reconnected = asyncio.Event()
        self._health: asyncio.Task[None] | None = None
        connection.on_reconnect(self.reconnected)

    def follow(self, bucket: Bucket, mirror: Mirror[Any]) -> None:
        """Create, follow and check another bucket with the others. Call it before `start`."""
        self._buckets.append(bucket)
        self._mirrors.append(mirror)

    async def start(self, url: str) -> None:
        """Create what is missing, read everything, and follow it until `close`.

        Args:
            url: of this relay, for its record.

        Raises:
            StoreUnavailable: nothing is followed. Call it again.
        """
        self._record = msgspec.structs.replace(self._record, url=url)
        try:
            await self._ensure()
            for mirror in self._mirrors:
                mirror.start()
            async with asyncio.timeout(ELECTION_SECONDS):
                for mirror in self._mirrors:
                    await mirror.complete.wait()
            await self._try()
        except (StoreUnavailable, TimeoutError) as error:
            for mirror in self._mirrors:
                await mirror.close()
            self.fault = str(error) or "the NATS servers do not send the contents of the buckets"
            raise StoreUnavailable(self.fault) from None
        self.fault = ""
        self._health = asyncio.get_running_loop().create_task(self._try_always())

    async def close(self) -> None:
        """End (idempotent)."""
        await end_task(self._health)
        for mirror in self._mirrors:
            await mirror.close()

    @property
    def health_age(self) -> float:
        """Seconds since the own record was last written."""
        return time.monotonic() - self._written

    # -- environments

    async def environment(self, environment_id: str) -> Stored | None:
        """The newest record of an environment. See `RegistryStore`."""
        with self._measured("environment"):
            found = await self._environments.get(environment_id, self._patience)
        if found is None:
            return None
        record = self._decoded(EnvironmentRecord, found.data, f"{self._environments.name}, {environment_id}")
        return Stored(record, found.revision)

    async def save(self, record: EnvironmentRecord, revision: int) -> int:
        """Keep a record. See `RegistryStore`."""
        key = record.environment_id
        with self._measured("save"):
            new = await self._environments.put(key, msgspec.json.encode(record), revision, self._patience)
        self._environment_mirror.note(key, record, new)
        return new

    async def remove(self, environment_id: str, revision: int) -> None:
        """Remove a record. See `RegistryStore`."""
        with self._measured("remove"):
            new = await self._environments.remove(environment_id, revision, self._patience)
        self._environment_mirror.note(environment_id, None, new)

    def environments(self) -> Mapping[str, EnvironmentRecord]:
        """All records. See `RegistryStore`."""
        return self._environment_mirror.records

    def on_change(self, changed: Changed) -> None:
        """Call `changed` with each change. See `RegistryStore`."""
        self._environment_mirror.on_change(changed)

    # -- grants

    async def add_grant(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        """Keep the grant of a secret. See `RegistryStore`."""
        with self._measured("add_grant"):
            await self._grants.put(_key(kind, digest), msgspec.json.encode(grant), None, self._patience)

    async def grant(self, kind: SecretKind, digest: bytes) -> StoredGrant | None:
        """The unused grant of a secret. See `RegistryStore`."""
        with self._measured("grant"):
            found = await self._grants.get(_key(kind, digest), self._patience)
        if found is None:
            return None
        return StoredGrant(self._decoded(Grant, found.data, f"{self._grants.name}, a {kind}"), found.revision)

    async def use_up(self, kind: SecretKind, digest: bytes, revision: int) -> bool:
        """Remove a grant. See `RegistryStore`."""
        try:
            with self._measured("use_up"):
                await self._grants.remove(_key(kind, digest), revision, self._patience)
        except Outdated:
            return False
        return True

    # -- status

    async def report(self, environment_id: str, status: ExecutorStatus) -> None:
        """Keep the newest status of an executor. See `RegistryStore`."""
        with self._measured("report"):
            revision = await self._status.put(
                environment_id, msgspec.json.encode(status), None, self._patience
            )
        self._status_mirror.note(environment_id, status, revision)

    def statuses(self) -> Mapping[str, ExecutorStatus]:
        """The newest status of each environment. See `RegistryStore`."""
        return self._status_mirror.records

    def sweep(self, now: float) -> None:
        """Nothing: the servers forget expired grants."""

    # -- health

    @property
    def _patience(self) -> float:
        # While the store is known to be unavailable, requests do not pile up.
        return PATIENCE_SECONDS / 2 if self.fault else ELECTION_SECONDS

    def reconnected(self) -> None:
        """Read everything again: messages may have been lost."""
        for mirror in self._mirrors:
            mirror.restart()
        self._reconnected.set()

    async def _ensure(self) -> None:
        for bucket in self._buckets:
            await bucket.ensure()

    async def _try(self) -> None:
        """Write the own record, and see that the copies are up to date.

        Raises:
            StoreUnavailable: something cannot be kept or read.
        """
        record = msgspec.json.encode(self._record)
        with self._measured("health"):
            key = f"relay.{self._record.node}"
            await self._environments.put(key, record, None, PATIENCE_SECONDS, ttl=NODE_SECONDS)
        self._written = time.monotonic()
        await self._grants.info(PATIENCE_SECONDS)
        for mirror in self._mirrors:
            await mirror.check(PATIENCE_SECONDS)

    async def _try_always(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._reconnected.wait(), HEALTH_SECONDS)
            self._reconnected.clear()
            fault = ""
            try:
                try:
                    await self._try()
                except BucketMissing:  # a single server has lost what was in its memory
                    await self._ensure()
                    self.reconnected()
            except StoreUnavailable as error:
                fault = str(error)
            if fault != self.fault:
                self.fault = fault
                if fault:
                    log.error("the store of the fleet is unavailable", error=fault)
                else:
                    log.info("the store of the fleet is available again")

    @contextlib.contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        began, code = time.monotonic(), 0
        try:
            yield
        except StoreUnavailable:
            code = 1
            raise
        finally:
            self.operations[operation].add(time.monotonic() - began, code)

    def _decoded(self, kind: type[_Record], data: bytes, where: str) -> _Record:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreUnavailable(f"invalid record ({where}), remove it: {error}") from None


def _key(kind: SecretKind, digest: bytes) -> str:
    return f"{kind}.{digest.hex()}"
