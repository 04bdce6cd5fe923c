"""Who is registered where, and who may be introduced to whom: the registry's state, without I/O.

Rules kept here:
- The incumbent wins. An executor whose socket is live, or that registered a moment ago and may still be
  dialing, keeps its environment against every other key. The same key always gets in; its older socket goes
  when the newer one comes.
- Everything that is handed out belongs to one environment and one registration, and ends by itself.
- What a token allowed ends with the token (`RelayRegistry.revoked`).

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
"""How long a new registration keeps its place before its first socket: enough to dial, so that two newcomers
do not evict each other; short, so that one that died before dialing does not keep a standby out."""

EXECUTOR_TICKET_SECONDS = 3600.0
"""An executor dials the URL of its registration again and again; after this it has to show its token anew."""

MAX_OUTSTANDING = 10_000
"""Unused tickets (and as many authorizations) an environment: some MB of memory at most, and more than 5,000
harnesses need that come back at the same moment."""

HARNESS_TICKET_SECONDS = 60.0
"""A harness dials at once; a minute forgives slow networks, and little is lost when a URL leaks later."""


class EnvironmentTaken(Exception):
    """Another executor has the environment."""


class ExecutorOffline(Exception):
    """No executor is connected in the environment."""


class TooManyTickets(Exception):
    """Too many introductions of the environment wait to be used."""


class TicketRefused(Exception):
    """A ticket opens nothing.

    Attributes:
        status: of the refused upgrade.
        reason: the word for the rejection header, and for logs.
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
    """When it last went online or offline (or was created)."""

    @property
    def connected(self) -> bool:
        """Whether a socket of it is open."""
        return self.sockets > 0


@dataclass(slots=True, eq=False)
class Harness:
    """One admitted harness socket, from `redeem_harness` to `harness_closed`."""

    registration: Registration
    token_id: str


class RegisterResult(NamedTuple):
    """What an executor gets: `ticket` goes into its URL."""

    registration: Registration
    ticket: str


class ConnectResult(NamedTuple):
    """What a harness gets: `ticket` goes into its URL, `authorization` into its handshake."""

    registration: Registration
    ticket: str
    authorization: str


class Revoked(NamedTuple):
    """Whose sockets have to be closed."""

    registrations: tuple[Registration, ...]
    harnesses: tuple[Harness, ...]


class EnvironmentState(NamedTuple):
    """One line of the listing. `seconds`: how long it has been online, or offline."""

    environment_id: str
    registration_id: str
    fingerprint: str
    online: bool
    seconds: float


class TicketGrant(NamedTuple):
    """What a harness's ticket stands for."""

    registration: Registration
    token_id: str


class AuthorizationGrant(NamedTuple):
    """What the text in a harness's first handshake message stands for."""

    registration: Registration
    token_id: str
    fingerprint: str


_Grant = TypeVar("_Grant", TicketGrant, AuthorizationGrant)


class SingleUseSecrets(Generic[_Grant]):
    """Single-use secrets with one lifetime, so that the oldest is always the first to expire."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._grants: dict[bytes, tuple[float, _Grant]] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def issue(self, grant: _Grant, now: float) -> str:
        """Make a secret that stands for `grant`.

        Raises:
            TooManyTickets: no more can be outstanding.
        """
        if len(self._grants) >= self._most:
            self.drop_expired_before(now)
        if len(self._grants) >= self._most:
            raise TooManyTickets
        secret = secrets.token_urlsafe(32)
        self._grants[secret_digest(secret)] = (now + HARNESS_TICKET_SECONDS, grant)
        return secret

    def find(self, secret: str) -> tuple[float, _Grant] | None:
        """When it expires, and what it stands for."""
        # Found by its hash: what the time of the search tells is nothing about the secret itself.
        return self._grants.get(secret_digest(secret))

    def remove(self, secret: str) -> None:
        """Make it worthless."""
        del self._grants[secret_digest(secret)]

    def drop_expired_before(self, moment: float) -> None:
        """Forget what expired before then."""
        while self._grants:
            digest, (expires, _) = next(iter(self._grants.items()))
            if expires > moment:
                return
            del self._grants[digest]

    def drop_tokens(self, token_ids: Set[str]) -> None:
        """Forget what was issued for these tokens."""
        self._grants = {
            digest: entry for digest, entry in self._grants.items() if entry[1].token_id not in token_ids
        }

    def token_ids(self) -> set[str]:
        """The tokens that something was issued for."""
        return {grant.token_id for _, grant in self._grants.values()}


class _Environment:
    """One environment."""

    def __init__(self, most: int) -> None:
        self.current: Registration | None = None  # the newest; its ticket is the one that counts
        self.older: Registration | None = (
            None  # of the same key, as long as its socket serves and the new has none
        )
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
    """All environments.

    Args:
        clock: seconds that never go back.
        most: how many introductions of an environment may wait to be used.
    """

    def __init__(self, clock: Callable[[], float], most: int = MAX_OUTSTANDING) -> None:
        self._clock = clock
        self._most = most
        self._places: dict[str, _Environment] = {}
        self._harnesses: set[Harness] = set()

    def register(self, environment_id: str, key: PublicKeys, token_id: str) -> RegisterResult:
        """Give an environment to an executor. Its earlier ticket is worth nothing from now on.

        Raises:
            EnvironmentTaken: another key has it.
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
        """Whose ticket it is. It can be redeemed again: an executor redials its URL.

        Raises:
            TicketRefused: unknown, replaced or expired (410, after which executors register anew).
        """
        place = self._places.get(environment_id)
        current = place.current if place is not None else None
        if current is None or not hmac.compare_digest(current.ticket_digest, secret_digest(ticket)):
            raise TicketRefused(410, "unknown_route")
        if self._clock() >= current.created + EXECUTOR_TICKET_SECONDS:
            raise TicketRefused(410, "expired")
        return current

    def socket_opened(self, registration: Registration) -> tuple[Registration, ...]:
        """Note that an executor's socket is open; pair it with one `socket_closed`.

        Returns:
            The registrations that it replaces: their sockets have to be closed.

        Raises:
            TicketRefused: another one took the place since the ticket was redeemed; close the socket.
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
        """Note that an executor's socket ended."""
        registration.sockets -= 1
        if registration.connected:
            return
        registration.changed = self._clock()
        place = self._places.get(registration.environment_id)
        if place is not None and registration is place.older:
            place.older = None

    def connect(self, environment_id: str, key: PublicKeys, token_id: str) -> ConnectResult:
        """Introduce a harness to the executor that is connected.

        Raises:
            ExecutorOffline: none is.
            TooManyTickets: too many introductions have not been used yet.
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
                f"{self._most} introductions to the environment {environment_id} wait to be used; try later"
            ) from None
        return ConnectResult(registration, ticket, authorization)

    def redeem_harness(self, environment_id: str, ticket: str) -> Harness:
        """Admit a harness's socket, once; pair it with one `harness_closed`.

        Raises:
            TicketRefused: unknown or used (401), expired, or its executor is gone (410).
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
        """Whether an admitted harness still is: its token may have ended before its socket was open."""
        return harness in self._harnesses

    def harness_closed(self, harness: Harness) -> None:
        """Note that a harness's socket ended (idempotent)."""
        self._harnesses.discard(harness)

    def validate(self, environment_id: str, request: ValidateRequest) -> bool:
        """Whether this harness key was introduced to this registration. Says yes once an introduction.

        The caller has checked an executor's token for the environment. Any will do, so that an executor whose
        token was renewed goes on; another executor cannot know the authorization, which travels encrypted.
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
        """The tokens on which anything rests: registrations, harness sockets, unused introductions."""
        used = {harness.token_id for harness in self._harnesses}
        for place in self._places.values():
            used.update(registration.token_id for registration in place.registrations())
            used |= place.tickets.token_ids() | place.authorizations.token_ids()
        return used

    def revoked(self, token_ids: Set[str]) -> Revoked:
        """Forget all that rests on these tokens, which were revoked or expired."""
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
        """Forget what expired; call it every minute or so."""
        now = self._clock()
        for environment_id, place in tuple(self._places.items()):
            # Kept for a while, so that who comes late hears "expired" instead of "unknown_route".
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
        """The environments with a registration, by name."""
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
        """How many environments have an executor's socket."""
        return sum(place.live is not None for place in self._places.values())
