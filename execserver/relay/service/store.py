"""Where the registry keeps what it knows: in this process, or in a store that several relays share.

The registry (`registry.py`) decides; a store keeps. Every change of a record names the revision that it was
made from, and is refused if another relay was quicker: of two executors that register at the same moment at
two relays, one wins. Times are seconds since 1970, because several relays compare them; their clocks must
agree within a second.

`docs/explanation/relay.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from execprotocol.relay.keys import PublicKeys


class StoreUnavailable(Exception):
    """The store did not answer, or cannot keep anything now. The message names the reason and the way out."""


class Outdated(Exception):
    """Another relay changed or removed the record first: read it again, and decide again."""


class ExecutorSocket(msgspec.Struct, frozen=True):
    """An open socket of an executor."""

    node: str
    """The relay that has it (`Bus.node`)."""
    address: str
    """Where the bus delivers to it."""


class Registration(msgspec.Struct, frozen=True):
    """One accepted registration of an executor."""

    environment_id: str
    id: str
    key: PublicKeys
    token_id: str
    created: float
    ticket_digest: bytes
    """SHA-256 of the ticket in the executor's URL."""
    socket: ExecutorSocket | None = None
    dialed: bool = False
    """Whether it ever had a socket."""
    changed: float = 0.0
    """When it last went online or offline, or was created."""


class PoolMember(msgspec.Struct, frozen=True):
    """What an executor said of itself when it registered as a member of a pool."""

    pool: str
    labels: Mapping[str, str] = {}
    capacity: int | None = None
    """How many sessions it takes; None: any number."""
    version: str = ""
    """Of its execserver."""


class EnvironmentRecord(msgspec.Struct, frozen=True):
    """The state of one environment: one value of the store."""

    environment_id: str
    current: Registration | None = None
    """The newest, whose ticket is valid."""
    older: Registration | None = None
    """Of the same key, while its socket serves and the newest has none."""
    member: PoolMember | None = None
    """None if the executor is in no pool."""

    def registrations(self) -> tuple[Registration, ...]:
        """The registrations, the newest first."""
        return tuple(each for each in (self.current, self.older) if each is not None)


class Stored(NamedTuple):
    """A record with its revision, which changes with each change of the record."""

    record: EnvironmentRecord
    revision: int


class ExecutorStatus(msgspec.Struct, frozen=True):
    """What an executor reports of itself every few seconds."""

    registration_id: str
    sessions: int
    """Sessions that it keeps, detached ones included."""
    opened: int = 0
    """Sessions that were opened since its server began."""
    draining: bool = False
    """Whether it takes no further sessions."""
    reported: float = 0.0


SecretKind = Literal["ticket", "authorization"]


class Grant(msgspec.Struct, frozen=True):
    """What a single-use secret of a harness allows."""

    environment_id: str
    registration_id: str
    token_id: str
    fingerprint: str
    """Of the harness's key."""
    expires: float


class StoredGrant(NamedTuple):
    """A grant with its revision, to use it up once."""

    grant: Grant
    revision: int


Changed = Callable[[str, EnvironmentRecord | None], None]
"""Called with an environment and its new record after any relay has changed it; None: it was removed."""


class RegistryStore(Protocol):
    """The store of one relay. Call it on the loop only; methods that are no coroutines do not block."""

    async def environment(self, environment_id: str) -> Stored | None:
        """The newest record of an environment; None if there is none.

        Raises:
            StoreUnavailable: it cannot be read now.
        """

    async def save(self, record: EnvironmentRecord, revision: int) -> int:
        """Keep a record; returns its new revision.

        Args:
            record: the new state of its environment.
            revision: of the record from which this one was made; 0: there was none.

        Raises:
            Outdated: the stored record has another revision by now.
            StoreUnavailable: it cannot be kept now. It may or may not have been kept.
        """

    async def remove(self, environment_id: str, revision: int) -> None:
        """Remove a record. Raises as `save`."""

    def environments(self) -> Mapping[str, EnvironmentRecord]:
        """All records, for lists and numbers: those of other relays may be some milliseconds old."""

    def on_change(self, changed: Changed) -> None:
        """Call `changed` from now on, in the order of changes, also for changes of this relay."""

    async def add_grant(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        """Keep the grant of a secret until it expires.

        Args:
            kind: tickets and authorizations are apart.
            digest: SHA-256 of the secret.
            grant: what it allows.

        Raises:
            StoreUnavailable: it cannot be kept now.
        """

    async def grant(self, kind: SecretKind, digest: bytes) -> StoredGrant | None:
        """The unused grant of a secret, also for some time after it has expired; None if there is none.

        Raises:
            StoreUnavailable: it cannot be read now.
        """

    async def use_up(self, kind: SecretKind, digest: bytes, revision: int) -> bool:
        """Remove a grant. False: another request used it first.

        Raises:
            StoreUnavailable: it is unknown whether it was removed. Admit no one with it.
        """

    async def report(self, environment_id: str, status: ExecutorStatus) -> None:
        """Keep the newest status of an executor. Raises StoreUnavailable."""

    def statuses(self) -> Mapping[str, ExecutorStatus]:
        """The newest status of each environment with one; those of other relays may be milliseconds old."""

    def sweep(self, now: float) -> None:
        """Forget grants that expired long ago, where the store does not do so itself."""
