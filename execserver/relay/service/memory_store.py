"""The store of a relay that shares its registry with no other: everything is in this process.

No coroutine waits here: what the registry does between two of its own waits happens at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType

from execserver.relay.service.store import (
    Changed,
    EnvironmentRecord,
    ExecutorStatus,
    Grant,
    Outdated,
    SecretKind,
    Stored,
    StoredGrant,
)

EXPIRED_SECONDS = 60.0
"""How long an expired grant is kept, so that a late harness gets "expired" instead of "unknown_route"."""


class MemoryStore:
    """A `RegistryStore` in memory. `on_change` is called before `save` and `remove` return."""

    def __init__(self) -> None:
        self._revisions = itertools.count(1)
        self._stored: dict[str, Stored] = {}
        self._records: dict[str, EnvironmentRecord] = {}
        self._grants: dict[tuple[SecretKind, bytes], StoredGrant] = {}  # the oldest first
        self._statuses: dict[str, ExecutorStatus] = {}
        self._changed: list[Changed] = []

    async def environment(self, environment_id: str) -> Stored | None:
        """The record of an environment; None if there is none."""
        return self._stored.get(environment_id)

    async def save(self, record: EnvironmentRecord, revision: int) -> int:
        """Keep a record that was made from `revision`; returns its new revision.

        Raises:
            Outdated: the record has another revision by now.
        """
        environment_id = record.environment_id
        self._check(environment_id, revision)
        new = next(self._revisions)
        self._stored[environment_id] = Stored(record, new)
        self._records[environment_id] = record
        self._notify(environment_id, record)
        return new

    async def remove(self, environment_id: str, revision: int) -> None:
        """Remove a record and its status. Raises as `save`."""
        self._check(environment_id, revision)
        if self._stored.pop(environment_id, None) is not None:
            del self._records[environment_id]
            self._statuses.pop(environment_id, None)
            self._notify(environment_id, None)

    def environments(self) -> Mapping[str, EnvironmentRecord]:
        """All records."""
        return MappingProxyType(self._records)

    def on_change(self, changed: Changed) -> None:
        """Call `changed` with each change from now on."""
        self._changed.append(changed)

    async def add_grant(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        """Keep the grant of a secret."""
        self._grants[kind, digest] = StoredGrant(grant, next(self._revisions))

    async def grant(self, kind: SecretKind, digest: bytes) -> StoredGrant | None:
        """The unused grant of a secret, also while it has expired by less than `EXPIRED_SECONDS`."""
        # Found by its hash: the duration of the search reveals nothing about the secret.
        return self._grants.get((kind, digest))

    async def use_up(self, kind: SecretKind, digest: bytes, revision: int) -> bool:
        """Remove a grant. False: another request used it first."""
        found = self._grants.get((kind, digest))
        if found is None or found.revision != revision:
            return False
        del self._grants[kind, digest]
        return True

    async def report(self, environment_id: str, status: ExecutorStatus) -> None:
        """Keep the newest status of an executor."""
        self._statuses[environment_id] = status

    def statuses(self) -> Mapping[str, ExecutorStatus]:
        """The newest status of each environment with one."""
        return MappingProxyType(self._statuses)

    def sweep(self, now: float) -> None:
        """Forget grants that expired `EXPIRED_SECONDS` ago."""
        while self._grants:
            key, stored = next(iter(self._grants.items()))
            if stored.grant.expires > now - EXPIRED_SECONDS:
                return
            del self._grants[key]

    def _check(self, environment_id: str, revision: int) -> None:
        stored = self._stored.get(environment_id)
        if revision != (stored.revision if stored is not None else 0):
            raise Outdated(environment_id)

    def _notify(self, environment_id: str, record: EnvironmentRecord | None) -> None:
        for changed in self._changed:
            changed(environment_id, record)
