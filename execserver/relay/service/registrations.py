"""What the registry keeps of those who are there, what it answers, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from execprotocol.relay.keys import PublicKeys


class Conflict(Exception):
    """Another executor has the environment."""


class Offline(Exception):
    """No executor is connected in the environment."""


class Crowded(Exception):
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


class Registered(NamedTuple):
    """What an executor gets: `ticket` goes into its URL."""

    registration: Registration
    ticket: str


class Introduction(NamedTuple):
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
