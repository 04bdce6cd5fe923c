"""What harnesses are introduced with: random texts that stand for something once, and for a minute.

Kept as SHA-256 only: who reads our memory finds nothing to present.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Set
from typing import Generic, NamedTuple, TypeVar

from execserver.relay.service.registrations import Crowded, Registration

INTRODUCTION_SECONDS = 60.0
"""A harness dials at once; a minute forgives slow networks, and little is lost when a URL leaks later."""


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


class SingleUse(Generic[_Grant]):
    """Single-use secrets with one lifetime, so that the oldest is always the first to expire."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._grants: dict[bytes, tuple[float, _Grant]] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def issue(self, grant: _Grant, now: float) -> str:
        """Make a secret that stands for `grant`.

        Raises:
            Crowded: no more can be outstanding.
        """
        if len(self._grants) >= self._most:
            self.drop_expired_before(now)
        if len(self._grants) >= self._most:
            raise Crowded
        secret = secrets.token_urlsafe(32)
        self._grants[digest(secret)] = (now + INTRODUCTION_SECONDS, grant)
        return secret

    def find(self, secret: str) -> tuple[float, _Grant] | None:
        """When it expires, and what it stands for."""
        # Found by its hash: what the time of the search tells is nothing about the secret itself.
        return self._grants.get(digest(secret))

    def remove(self, secret: str) -> None:
        """Make it worthless."""
        del self._grants[digest(secret)]

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


def digest(secret: str) -> bytes:
    """What is kept of a secret."""
    # "replace": a URL may decode to anything, and what no secret looks like just is not found.
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
