"""The relay's registry: registered executors, and tickets for their clients. No I/O but that of its store.

- The incumbent wins. An executor with a live socket, or one that registered a moment ago and may still be
  dialing, keeps its environment against every other key. The same key is always accepted; its older socket
  ends when the newer one opens.
- A ticket or an authorization is for one environment and one registration, and expires.
- Access ends with the token that granted it: `RelayRegistry.revoked` for sockets, and whenever a ticket or an
  authorization is used.
- Tickets and authorizations are kept as SHA-256 only: the store holds no usable secret.
- Several relays may share the store (`environment_records.py`). An executor is *connected* while a relay that
  lives has its socket.

Time is the injected clock (seconds since 1970). See `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.bus import Bus
from execserver.relay.service.environment_records import (
    EndSocket,
    EnvironmentRecords,
    OwnSockets,
    registration_of,
)
from execserver.relay.service.pools import Pools
from execserver.relay.service.store import (
    EnvironmentRecord,
    ExecutorSocket,
    ExecutorStatus,
    Grant,
    PoolMember,
    Registration,
    RegistryStore,
    SecretKind,
    StoredGrant,
    StoreUnavailable,
)
from execserver.relay.service.tokens import secret_digest

DIAL_SECONDS = 5.0
"""How long a new registration keeps its environment before its first socket: enough to dial, so that two new
executors do not evict each other; short, so that one that died before dialing does not block a standby."""

EXECUTOR_TICKET_SECONDS = 3600.0
"""An executor may dial the URL of its registration for so long; then it has to present its token again."""

MAX_OUTSTANDING = 10_000
"""Unused tickets of an environment, and as many authorizations, of those that one relay issued: some MB of
memory at most, and enough for 5,000 harnesses that reconnect at the same moment."""

HARNESS_TICKET_SECONDS = 60.0
"""A harness dials at once. A minute is enough for slow networks, and a URL that leaks later is worthless."""


class EnvironmentTaken(Exception):
    """Another executor has the environment."""


class ExecutorOffline(Exception):
    """No executor is connected in the environment."""


class TooManyTickets(Exception):
    """Too many tickets of the environment are unused."""


class TicketRefused(Exception):
    """A ticket is not valid.

    Attributes:
        status: of the refused upgrade.
        reason: one word, for the rejection header and for logs.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"the ticket is refused: {reason}")
        self.status = status
        self.reason = reason


@dataclass(slots=True, eq=False)
class Harness:
    """One admitted harness socket, from `redeem_harness` to `harness_closed`.

    `executor_address` is where the bus delivers to the executor's socket.
    """

    registration: Registration
    executor_address: str
    token_id: str


class RegisterResult(NamedTuple):
    """The result of `register`: `ticket` goes into the executor's URL."""

    registration: Registration
    ticket: str


class ConnectResult(NamedTuple):
    """The result of `connect`: `ticket` goes into the harness's URL, `authorization` into its handshake."""

    registration: Registration
    ticket: str
    authorization: str


class EnvironmentState(NamedTuple):
    """One line of the list. `seconds`: how long it has been online, or offline. `socket`: None if offline.
    `member` and `status`: None if the executor is in no pool, or has not reported.
    """

    environment_id: str
    registration_id: str
    fingerprint: str
    online: bool
    seconds: float
    socket: ExecutorSocket | None
    member: PoolMember | None
    status: ExecutorStatus | None


class UnusedSecrets:
    """The secrets that this relay issued, until they were used here or have expired: to limit their number.

    Args:
        most: of one kind in one environment.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._expiry: dict[tuple[str, SecretKind], dict[bytes, float]] = {}  # the oldest first

    def check(self, environment_id: str, now: float) -> None:
        """Check that there is room for one more of each kind.

        Raises:
            TooManyTickets: too many are unused.
        """
        kinds: tuple[SecretKind, ...] = ("ticket", "authorization")
        for key in [(environment_id, kind) for kind in kinds]:
            if len(self._expiry.get(key, ())) >= self._most:
                self._drop_expired(key, now)
            if len(self._expiry.get(key, ())) >= self._most:
                raise TooManyTickets(
                    f"{self._most} tickets of the environment {environment_id} are unused; try again later"
                )

    def add(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        """Count a secret."""
        self._expiry.setdefault((grant.environment_id, kind), {})[digest] = grant.expires

    def discard(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        """Count a secret no more (idempotent)."""
        self._expiry.get((grant.environment_id, kind), {}).pop(digest, None)

    def sweep(self, now: float) -> None:
        """Forget the expired ones."""
        for key in tuple(self._expiry):
            self._drop_expired(key, now)
            if not self._expiry[key]:
                del self._expiry[key]

    def _drop_expired(self, key: tuple[str, SecretKind], now: float) -> None:
        expiry = self._expiry[key]
        while expiry:
            digest, expires = next(iter(expiry.items()))
            if expires > now:
                return
            del expiry[digest]


class RelayRegistry:
    """The registrations, tickets and authorizations of all environments.

    Any coroutine may raise StoreUnavailable, after which the caller may try again.

    Attributes:
        node: the name of this relay.
        pools: chooses executors of pools.

    Args:
        store: keeps the records; shared by the relays of a fleet.
        bus: names this relay, and knows which relays live.
        clock: seconds since 1970.
        is_token_valid: whether a token, by its id, was not revoked and has not expired.
        most: how many tickets of an environment, issued here, may be unused.
    """

    def __init__(
        self,
        store: RegistryStore,
        bus: Bus,
        clock: Callable[[], float],
        is_token_valid: Callable[[str], bool],
        most: int = MAX_OUTSTANDING,
    ) -> None:
        self._store = store
        self.node, self._is_alive = bus.node, bus.is_alive
        self.pools = Pools(store, bus, clock)
        self._records = EnvironmentRecords(store, bus)
        self._sockets = OwnSockets(store, self._records, bus.node, clock, is_token_valid)
        self._clock = clock
        self._is_token_valid = is_token_valid
        self._unused = UnusedSecrets(most)
        self._harnesses: set[Harness] = set()

    # -- executors

    async def register(
        self, environment_id: str, key: PublicKeys, token_id: str, member: PoolMember | None = None
    ) -> RegisterResult:
        """Register an executor for an environment. Its earlier ticket is invalid from now on.

        Args:
            environment_id: valid.
            key: the executor's.
            token_id: the token that allowed the request.
            member: what the executor said of itself as a member of a pool.

        Raises:
            EnvironmentTaken: another key has the environment.
            TooManyMembers: its pool has too many executors.
        """
        self.pools.check_room(environment_id)
        registration_id, ticket = secrets.token_urlsafe(16), secrets.token_urlsafe(32)
        digest = secret_digest(ticket)

        def decide(record: EnvironmentRecord) -> EnvironmentRecord:
            now = self._clock()
            current, live = record.current, self._records.live(record)
            if current is not None and current.key != key:
                is_dialing = not current.dialed and now < current.created + DIAL_SECONDS
                if is_dialing or live is not None:
                    raise EnvironmentTaken(f"another executor has the environment {environment_id}")
            newest = Registration(environment_id, registration_id, key, token_id, now, digest, changed=now)
            return EnvironmentRecord(environment_id, newest, live, member)

        record = await self._records.change(environment_id, decide)
        assert record.current is not None, "just made"
        return RegisterResult(record.current, ticket)

    async def redeem_executor(self, environment_id: str, ticket: str) -> Registration:
        """The registration of a ticket. It can be redeemed again: an executor redials its URL.

        Raises:
            TicketRefused: unknown, replaced or expired (410, after which executors register again).
        """
        record = await self._records.read(environment_id)
        current = record.current
        if (
            current is None
            or not hmac.compare_digest(current.ticket_digest, secret_digest(ticket))
            or not self._is_token_valid(current.token_id)
        ):
            raise TicketRefused(410, "unknown_route")
        if self._clock() >= current.created + EXECUTOR_TICKET_SECONDS:
            raise TicketRefused(410, "expired")
        return current

    async def socket_opened(self, registration: Registration, address: str, end: EndSocket) -> None:
        """Record that an executor's socket is open: it replaces the sockets of its environment at any relay.

        Call `socket_closed` once for it, also after an error.

        Args:
            registration: as redeemed.
            address: where the bus delivers to the socket, from now on.
            end: called once at most, when the socket has to be closed.

        Raises:
            TicketRefused: another registration replaced this one since the ticket was redeemed, or its token
                has ended. Close the socket.
        """

        def decide(record: EnvironmentRecord) -> EnvironmentRecord:
            current = record.current
            if current is None or current.id != registration.id or not self._is_token_valid(current.token_id):
                raise TicketRefused(410, "unknown_route")
            place = ExecutorSocket(self.node, address)
            online = replace(current, socket=place, dialed=True, changed=self._clock())
            return replace(record, current=online, older=None)

        await self._sockets.opened(registration, address, decide, end)

    async def socket_closed(self, environment_id: str, address: str) -> None:
        """Record that an executor's socket has ended (idempotent). It does not raise StoreUnavailable:
        `settle` tries again.
        """
        await self._sockets.closed(environment_id, address)

    # -- harnesses

    async def connect(self, environment_id: str, key: PublicKeys, token_id: str) -> ConnectResult:
        """Give a harness a ticket and an authorization for the connected executor.

        Raises:
            ExecutorOffline: no executor is connected.
            TooManyTickets: too many tickets are unused.
        """
        registration = self._records.live(await self._records.read(environment_id))
        if registration is None:
            raise ExecutorOffline(f"no executor is connected in the environment {environment_id}")
        now = self._clock()
        self._unused.check(environment_id, now)
        grant = Grant(
            environment_id, registration.id, token_id, key.fingerprint, now + HARNESS_TICKET_SECONDS
        )
        ticket, authorization = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        await self._issue("authorization", secret_digest(authorization), grant)
        await self._issue("ticket", secret_digest(ticket), grant)
        return ConnectResult(registration, ticket, authorization)

    async def redeem_harness(self, environment_id: str, ticket: str) -> Harness:
        """Admit a harness's socket, once per ticket. Call `harness_closed` for it.

        Raises:
            TicketRefused: unknown or used (401), expired, or its executor is not connected (410).
        """
        digest = secret_digest(ticket)
        found = await self._grant("ticket", environment_id, digest)
        if found is None:
            raise TicketRefused(401, "unknown_route")
        grant = found.grant
        record = await self._records.read(environment_id)
        if not await self._use_up("ticket", digest, found) or not self._is_token_valid(grant.token_id):
            raise TicketRefused(401, "unknown_route")
        if self._clock() >= grant.expires:
            raise TicketRefused(410, "expired")
        registration = registration_of(record, grant.registration_id)
        if (
            registration is None
            or registration.socket is None
            or not self._is_alive(registration.socket.node)
        ):
            raise TicketRefused(410, "route_unavailable")
        harness = Harness(registration, registration.socket.address, grant.token_id)
        self._harnesses.add(harness)
        return harness

    def admits(self, harness: Harness) -> bool:
        """Whether a harness is still admitted: its token may have ended before its socket was open."""
        return harness in self._harnesses

    def harness_closed(self, harness: Harness) -> None:
        """Record that a harness's socket has ended (idempotent)."""
        self._harnesses.discard(harness)

    async def validate(self, environment_id: str, request: ValidateRequest) -> bool:
        """Whether the authorization was given to this harness key for this registration. True once for each.

        The caller has checked that the token is an executor's for the environment. Any such token will do, so
        that an executor may renew its own; another executor cannot know the authorization, which travels
        encrypted.
        """
        digest = secret_digest(request.authorization)
        found = await self._grant("authorization", environment_id, digest)
        if found is None:
            return False
        grant = found.grant
        if (
            self._clock() >= grant.expires
            or grant.registration_id != request.registration_id
            or not hmac.compare_digest(grant.fingerprint, request.harness_key.fingerprint)
            or not self._is_token_valid(grant.token_id)
            or registration_of(await self._records.read(environment_id), grant.registration_id) is None
        ):
            return False
        return await self._use_up("authorization", digest, found)

    # -- tokens

    def token_ids(self) -> set[str]:
        """The tokens of all registrations, and of this relay's sockets."""
        return {harness.token_id for harness in self._harnesses} | self._sockets.token_ids()

    def revoked(self, token_ids: Set[str]) -> tuple[Harness, ...]:
        """End everything that depends on these tokens, which were revoked or expired.

        The sockets of executors end through their `end`; `settle` removes their registrations.

        Returns:
            The harnesses of this relay whose sockets have to be closed.
        """
        harnesses = tuple(harness for harness in self._harnesses if harness.token_id in token_ids)
        self._harnesses.difference_update(harnesses)
        self._sockets.revoked(token_ids)
        return harnesses

    # -- chores

    async def settle(self) -> None:
        """Correct the records that are wrong about this relay's sockets or name ended tokens. Call this about
        every half second. It does not raise StoreUnavailable: the next call tries again.
        """
        await self._sockets.settle()

    async def sweep(self) -> None:
        """Remove expired entries. Call this about every minute. It does not raise StoreUnavailable."""
        now = self._clock()
        self._store.sweep(now)
        self._unused.sweep(now)

        def decide(record: EnvironmentRecord) -> EnvironmentRecord:
            return EnvironmentRecord(record.environment_id) if self._is_over(record) else record

        for environment_id, record in tuple(self._store.environments().items()):
            if self._is_over(record):
                try:
                    await self._records.change(environment_id, decide)
                except StoreUnavailable:
                    return  # the next sweep finds them again

    def _is_over(self, record: EnvironmentRecord) -> bool:
        current = record.current
        return current is None or (
            self._records.live(record) is None and self._clock() >= current.created + EXECUTOR_TICKET_SECONDS
        )

    # -- lists

    def environments(self) -> list[EnvironmentState]:
        """The environments with a registration, sorted by name."""
        now = self._clock()
        states, statuses = [], self._store.statuses()
        for environment_id, record in sorted(self._store.environments().items()):
            live = self._records.live(record)
            shown = live or record.current
            if shown is not None:
                states.append(
                    EnvironmentState(
                        environment_id,
                        shown.id,
                        shown.key.fingerprint,
                        live is not None,
                        max(0.0, now - shown.changed),
                        live.socket if live is not None else None,
                        record.member,
                        statuses.get(environment_id),
                    )
                )
        return states

    @property
    def online(self) -> int:
        """The number of environments with a connected executor."""
        return sum(self._records.live(record) is not None for record in self._store.environments().values())

    # -- grants

    async def _issue(self, kind: SecretKind, digest: bytes, grant: Grant) -> None:
        self._unused.add(kind, digest, grant)  # first: requests at the same moment count each other
        await self._store.add_grant(kind, digest, grant)

    async def _grant(self, kind: SecretKind, environment_id: str, digest: bytes) -> StoredGrant | None:
        found = await self._store.grant(kind, digest)
        return found if found is not None and found.grant.environment_id == environment_id else None

    async def _use_up(self, kind: SecretKind, digest: bytes, found: StoredGrant) -> bool:
        is_first = await self._store.use_up(kind, digest, found.revision)
        self._unused.discard(kind, digest, found.grant)
        return is_first
