"""The relay's registry: registered executors, and tickets for their clients. No I/O.

- The incumbent wins. An executor with a live socket, or one that registered a moment ago and may still be
  dialing, keeps its environment against every other key. The same key is always accepted; its older socket
  ends when the newer one opens.
- A ticket or an authorization is for one environment and one registration, and expires.
- Access ends with the token that granted it (`RelayRegistry.revoked`).
- Tickets and authorizations are kept as SHA-256 only: the relay's memory holds no usable secret.

Time is the injected clock (seconds, monotonic). See `docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from execprotocol.relay.contract import ValidateRequest
from execprotocol.relay.keys import PublicKeys
from execserver.relay.service.tokens import secret_digest

DIAL_SECONDS = 5.0
"""How long a new registration keeps its environment before its first socket: enough to dial, so that two new
executors do not evict each other; short, so that one that died before dialing does not block a standby."""

EXECUTOR_TICKET_SECONDS = 3600.0
"""An executor may dial the URL of its registration for so long; then it has to present its token again."""

MAX_OUTSTANDING = 10_000
"""Unused tickets of an environment, and as many authorizations: some MB of memory at most, and enough for
5,000 harnesses that reconnect at the same moment."""

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
class Registration:
    """One accepted registration of an executor."""

    environment_id: str
    id: str
    key: PublicKeys
    token_id: str
    created: float
    ticket_digest: bytes = field(repr=False)
    dialed: bool = False
    """Whether it ever had a socket."""
    sockets: int = 0
    changed: float = 0.0
    """When it last went online or offline, or was created."""

    @property
    def connected(self) -> bool:
        """Whether its socket is open."""
        return self.sockets > 0


@dataclass(slots=True, eq=False)
class Harness:
    """One admitted harness socket, from `redeem_harness` to `harness_closed`."""

    registration: Registration
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


class Revoked(NamedTuple):
    """The owners of sockets that have to be closed."""

    registrations: tuple[Registration, ...]
    harnesses: tuple[Harness, ...]


class EnvironmentState(NamedTuple):
    """One line of the list. `seconds`: how long it has been online, or offline."""

    environment_id: str
    registration_id: str
    fingerprint: str
    online: bool
    seconds: float


class TicketGrant(NamedTuple):
    """The grant of a harness's ticket."""

    registration: Registration
    token_id: str


class AuthorizationGrant(NamedTuple):
    """The grant of the authorization in a harness's first handshake message."""

    registration: Registration
    token_id: str
    fingerprint: str


_Grant = TypeVar("_Grant", TicketGrant, AuthorizationGrant)


class SingleUseSecrets(Generic[_Grant]):
    """Single-use secrets and their grants, with one lifetime: the oldest is always the first to expire."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._grants: dict[bytes, tuple[float, _Grant]] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def issue(self, grant: _Grant, now: float) -> str:
        """Make a secret for a grant.

        Raises:
            TooManyTickets: too many are unused.
        """
        if len(self._grants) >= self._most:
            self.drop_expired_before(now)
        if len(self._grants) >= self._most:
            raise TooManyTickets
        secret = secrets.token_urlsafe(32)
        self._grants[secret_digest(secret)] = (now + HARNESS_TICKET_SECONDS, grant)
        return secret

    def find(self, secret: str) -> tuple[float, _Grant] | None:
        """When the secret expires, and its grant."""
        # Found by its hash: the duration of the search reveals nothing about the secret.
        return self._grants.get(secret_digest(secret))

    def remove(self, secret: str) -> None:
        """Invalidate a secret."""
        del self._grants[secret_digest(secret)]

    def drop_expired_before(self, moment: float) -> None:
        """Remove secrets that expired before a moment."""
        while self._grants:
            digest, (expires, _) = next(iter(self._grants.items()))
            if expires > moment:
                return
            del self._grants[digest]

    def drop_tokens(self, token_ids: Set[str]) -> None:
        """Remove secrets that were issued for these tokens."""
        self._grants = {
            digest: entry for digest, entry in self._grants.items() if entry[1].token_id not in token_ids
        }

    def token_ids(self) -> set[str]:
        """The tokens for which secrets are unused."""
        return {grant.token_id for _, grant in self._grants.values()}


class _Environment:
    """The state of one environment."""

    def __init__(self, most: int) -> None:
        self.current: Registration | None = None  # the newest, whose ticket is valid
        # Of the same key, while its socket serves and the newest has none.
        self.older: Registration | None = None
        self.tickets: SingleUseSecrets[TicketGrant] = SingleUseSecrets(most)
        self.authorizations: SingleUseSecrets[AuthorizationGrant] = SingleUseSecrets(most)

    @property
    def live(self) -> Registration | None:
        """The newest registration with an open socket."""
        for registration in self.registrations():
            if registration.connected:
                return registration
        return None

    def registrations(self) -> Iterator[Registration]:
        if self.current is not None:
            yield self.current
        if self.older is not None:
            yield self.older

    def remove(self, registration: Registration) -> None:
        if registration is self.older:
            self.older = None
        elif registration is self.current:
            self.current, self.older = self.older, None


class RelayRegistry:
    """The registrations, tickets and authorizations of all environments.

    Args:
        clock: seconds, monotonic.
        most: how many tickets of an environment may be unused.
    """

    def __init__(self, clock: Callable[[], float], most: int = MAX_OUTSTANDING) -> None:
        self._clock = clock
        self._most = most
        self._places: dict[str, _Environment] = {}
        self._harnesses: set[Harness] = set()

    def register(self, environment_id: str, key: PublicKeys, token_id: str) -> RegisterResult:
        """Register an executor for an environment. Its earlier ticket is invalid from now on.

        Raises:
            EnvironmentTaken: another key has the environment.
        """
        now = self._clock()
        place = self._places.get(environment_id)
        if place is None:
            place = self._places[environment_id] = _Environment(self._most)
        current = place.current
        if current is not None:
            is_dialing = not current.dialed and now < current.created + DIAL_SECONDS
            if current.key != key and (is_dialing or place.live is not None):
                raise EnvironmentTaken(f"another executor has the environment {environment_id}")
            if current.connected:
                place.older = current
        ticket = secrets.token_urlsafe(32)
        registration = Registration(
            environment_id, secrets.token_urlsafe(16), key, token_id, now, secret_digest(ticket), changed=now
        )
        place.current = registration
        return RegisterResult(registration, ticket)

    def redeem_executor(self, environment_id: str, ticket: str) -> Registration:
        """The registration of a ticket. It can be redeemed again: an executor redials its URL.

        Raises:
            TicketRefused: unknown, replaced or expired (410, after which executors register again).
        """
        place = self._places.get(environment_id)
        current = place.current if place is not None else None
        if current is None or not hmac.compare_digest(current.ticket_digest, secret_digest(ticket)):
            raise TicketRefused(410, "unknown_route")
        if self._clock() >= current.created + EXECUTOR_TICKET_SECONDS:
            raise TicketRefused(410, "expired")
        return current

    def socket_opened(self, registration: Registration) -> tuple[Registration, ...]:
        """Record that an executor's socket is open. Call `socket_closed` once for it.

        Returns:
            The registrations that it replaces. Their sockets have to be closed.

        Raises:
            TicketRefused: another registration replaced this one since the ticket was redeemed. Close the
                socket.
        """
        place = self._places.get(registration.environment_id)
        if place is None or registration is not place.current:
            raise TicketRefused(410, "unknown_route")
        registration.dialed = True
        registration.sockets += 1
        registration.changed = self._clock()
        replaced, place.older = place.older, None
        return (replaced,) if replaced is not None else ()

    def socket_closed(self, registration: Registration) -> None:
        """Record that an executor's socket has ended."""
        registration.sockets -= 1
        if registration.connected:
            return
        registration.changed = self._clock()
        place = self._places.get(registration.environment_id)
        if place is not None and registration is place.older:
            place.older = None

    def connect(self, environment_id: str, key: PublicKeys, token_id: str) -> ConnectResult:
        """Give a harness a ticket and an authorization for the connected executor.

        Raises:
            ExecutorOffline: no executor is connected.
            TooManyTickets: too many tickets are unused.
        """
        place = self._places.get(environment_id)
        registration = place.live if place is not None else None
        if place is None or registration is None:
            raise ExecutorOffline(f"no executor is connected in the environment {environment_id}")
        now = self._clock()
        try:
            authorization = place.authorizations.issue(
                AuthorizationGrant(registration, token_id, key.fingerprint), now
            )
            ticket = place.tickets.issue(TicketGrant(registration, token_id), now)
        except TooManyTickets:
            raise TooManyTickets(
                f"{self._most} tickets of the environment {environment_id} are unused; try again later"
            ) from None
        return ConnectResult(registration, ticket, authorization)

    def redeem_harness(self, environment_id: str, ticket: str) -> Harness:
        """Admit a harness's socket, once per ticket. Call `harness_closed` for it.

        Raises:
            TicketRefused: unknown or used (401), expired, or its executor is not connected (410).
        """
        place = self._places.get(environment_id)
        found = place.tickets.find(ticket) if place is not None else None
        if place is None or found is None:
            raise TicketRefused(401, "unknown_route")
        place.tickets.remove(ticket)
        expires, admission = found
        if self._clock() >= expires:
            raise TicketRefused(410, "expired")
        registration = admission.registration
        if not registration.connected or registration not in place.registrations():
            raise TicketRefused(410, "route_unavailable")
        harness = Harness(registration, admission.token_id)
        self._harnesses.add(harness)
        return harness

    def admits(self, harness: Harness) -> bool:
        """Whether a harness is still admitted: its token may have ended before its socket was open."""
        return harness in self._harnesses

    def harness_closed(self, harness: Harness) -> None:
        """Record that a harness's socket has ended (idempotent)."""
        self._harnesses.discard(harness)

    def validate(self, environment_id: str, request: ValidateRequest) -> bool:
        """Whether the authorization was given to this harness key for this registration. True once for each.

        The caller has checked that the token is an executor's for the environment. Any such token will do, so
        that an executor may renew its own; another executor cannot know the authorization, which travels
        encrypted.
        """
        place = self._places.get(environment_id)
        found = place.authorizations.find(request.authorization) if place is not None else None
        if place is None or found is None:
            return False
        expires, granted = found
        registration = granted.registration
        if (
            self._clock() >= expires
            or registration.id != request.registration_id
            or registration not in place.registrations()
            or not hmac.compare_digest(granted.fingerprint, request.harness_key.fingerprint)
        ):
            return False
        place.authorizations.remove(request.authorization)
        return True

    def token_ids(self) -> set[str]:
        """The tokens of all registrations, harness sockets, unused tickets and authorizations."""
        used = {harness.token_id for harness in self._harnesses}
        for place in self._places.values():
            used.update(registration.token_id for registration in place.registrations())
            used |= place.tickets.token_ids() | place.authorizations.token_ids()
        return used

    def revoked(self, token_ids: Set[str]) -> Revoked:
        """Remove everything that depends on these tokens, which were revoked or expired."""
        registrations: list[Registration] = []
        for place in self._places.values():
            gone = [one for one in place.registrations() if one.token_id in token_ids]
            for registration in gone:
                place.remove(registration)
            registrations += gone
            place.tickets.drop_tokens(token_ids)
            place.authorizations.drop_tokens(token_ids)
        harnesses = tuple(harness for harness in self._harnesses if harness.token_id in token_ids)
        self._harnesses.difference_update(harnesses)
        return Revoked(tuple(registrations), harnesses)

    def sweep(self) -> None:
        """Remove expired entries. Call this about every minute."""
        now = self._clock()
        for environment_id, place in tuple(self._places.items()):
            # Kept for a while, so that a late harness gets "expired" instead of "unknown_route".
            place.tickets.drop_expired_before(now - HARNESS_TICKET_SECONDS)
            place.authorizations.drop_expired_before(now - HARNESS_TICKET_SECONDS)
            current = place.current
            if (
                current is not None
                and place.live is None
                and now >= current.created + EXECUTOR_TICKET_SECONDS
            ):
                place.remove(current)
            if place.current is None and not place.tickets and not place.authorizations:
                del self._places[environment_id]

    def environments(self) -> list[EnvironmentState]:
        """The environments with a registration, sorted by name."""
        now = self._clock()
        states = []
        for environment_id, place in sorted(self._places.items()):
            shown = place.live or place.current
            if shown is not None:
                states.append(
                    EnvironmentState(
                        environment_id,
                        shown.id,
                        shown.key.fingerprint,
                        shown.connected,
                        max(0.0, now - shown.changed),
                    )
                )
        return states

    @property
    def online(self) -> int:
        """The number of environments with a connected executor."""
        return sum(place.live is not None for place in self._places.values())
