"""The relay's bearer tokens, each for one role in some environments or pools: what they are and allow.

A token is shown once, when it is created. Only its SHA-256 is kept: in a file (`token_file.py`), or in a
bucket of the fleet (`fleet/tokens.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from execprotocol.relay.contract import ContractError, check_environment_id
from execprotocol.relay.pools import check_pool_name, pool_of

PREFIX = "xrt_"
"""Lets secret scanners find a token that leaked into a log or a repository."""

TOKEN_BYTES = 32

Role = Literal["executor", "client"]
ROLES: tuple[Role, ...] = get_args(Role)

MAX_NOTE_CHARACTERS = 200
"""Limit of a token's note, which is shown in one line of a list."""

_ID = re.compile(r"[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEMBERS = ("id", "sha256", "role", "environments", "created", "expires", "note")
_POOLS = "pools"
"""The member that only tokens for pools have, so that an earlier relay can read a file without them."""


class TokenRecordError(Exception):
    """A token has an invalid value. The message names the member."""


class TokenError(Exception):
    """A request of the user cannot be carried out. The text is for the user."""


class TokenRefused(Exception):
    """A token does not allow the request. The message may be sent to the peer.

    Attributes:
        status: 401 for a token that is missing, unknown, revoked or expired; 403 for one with another role or
            other environments.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The record of a token in the file.

    Args:
        id: the token's name, 8 hexadecimal digits.
        sha256: of the token, 64 hexadecimal digits.
        role: the role that the token allows.
        environments: the ids of its environments, without repetition.
        created: seconds since 1970.
        expires: seconds since 1970; None: never.
        note: for people.
        pools: the names of its pools, without repetition. There is an environment or a pool.
    """

    id: str
    sha256: str
    role: Role
    environments: tuple[str, ...]
    created: int
    expires: int | None
    note: str
    pools: tuple[str, ...] = ()

    def allows(self, environment_id: str) -> bool:
        """Whether the token is for an environment: a pool's member only by the name of the pool."""
        pool = pool_of(environment_id)
        return environment_id in self.environments if pool is None else pool in self.pools

    def expired(self, now: float) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and now >= self.expires

    def to_json(self) -> dict[str, object]:
        """The JSON object in the file."""
        return {name: getattr(self, name) for name in (*_MEMBERS, *([_POOLS] if self.pools else []))}

    @classmethod
    def from_json(cls, value: object) -> TokenRecord:
        """Parse one entry of the file.

        Raises:
            TokenRecordError: a member is missing, unknown or invalid.
        """
        if not isinstance(value, dict):
            raise TokenRecordError("must be an object")
        for name in _MEMBERS:
            if name not in value:
                raise TokenRecordError(f"`{name}` is missing")
        for name in value:
            if name not in (*_MEMBERS, _POOLS):
                raise TokenRecordError(f"`{name[:40]}` is unknown here")
        expires, pools = value["expires"], _check_pools(value.get(_POOLS, ()))
        return cls(
            _hexadecimal(value["id"], "id", _ID),
            _hexadecimal(value["sha256"], "sha256", _SHA256),
            _check_role(value["role"]),
            _check_environments(value["environments"], least=0 if pools else 1),
            _time(value["created"], "created"),
            None if expires is None else _time(expires, "expires"),
            _check_note(value["note"]),
            pools,
        )


class Tokens:
    """The tokens that a relay knows, and what they allow. A subclass keeps them.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tokens: tuple[TokenRecord, ...] = ()
        self._by_hash: dict[bytes, TokenRecord] = {}
        self.fault = ""
        """Why the kept tokens cannot be read; empty if they can. Those of before stay in force."""

    @property
    def tokens(self) -> tuple[TokenRecord, ...]:
        """All tokens in the order of creation, expired ones included."""
        return self._tokens

    def refresh(self) -> None:
        """Take over changes that other processes have made. If they cannot be read, `fault` says why."""

    def check(self, presented: str | None, role: Role, environment_id: str) -> TokenRecord:
        """Check that a token allows a role in an environment now.

        Args:
            presented: the token; None: the request had none.
            role: the role that the request needs.
            environment_id: of the request.

        Raises:
            TokenRefused: the token does not allow it.
        """
        token = self._presented(presented, role)
        if not token.allows(environment_id):
            raise TokenRefused(403, "the token is not for this environment")
        return token

    def check_pool(self, presented: str | None, pool: str) -> TokenRecord:
        """Check that a token allows a client in a pool now. Arguments and errors as of `check`."""
        token = self._presented(presented, "client")
        if pool not in token.pools:
            raise TokenRefused(403, "the token is not for this pool")
        return token

    def _presented(self, presented: str | None, role: Role) -> TokenRecord:
        if not presented:
            raise TokenRefused(401, "a bearer token is needed, in the header `authorization`")
        self.refresh()
        digest = secret_digest(presented)
        token = self._by_hash.get(digest)
        if token is None or not hmac.compare_digest(bytes.fromhex(token.sha256), digest):
            raise TokenRefused(401, "the token is unknown here, or was revoked")
        if token.expired(self._clock()):
            raise TokenRefused(401, "the token has expired")
        if token.role != role:
            raise TokenRefused(403, f"the token is for the role {token.role}, and this needs {role}")
        return token

    def ended(self, token_ids: Iterable[str]) -> set[str]:
        """The ids of those tokens that were revoked or have expired."""
        self.refresh()
        now = self._clock()
        return set(token_ids) - {token.id for token in self._tokens if not token.expired(now)}

    def is_valid(self, token_id: str) -> bool:
        """Whether a token was not revoked and has not expired."""
        return not self.ended((token_id,))

    def _take(self, tokens: tuple[TokenRecord, ...]) -> None:
        self._tokens = tokens
        self._by_hash = {bytes.fromhex(token.sha256): token for token in tokens}


def new_token(
    role: str,
    environments: Sequence[str],
    *,
    pools: Sequence[str] = (),
    expires_in: float | None = None,
    note: str = "",
    now: float,
) -> tuple[TokenRecord, str]:
    """Make a token, which has to be kept.

    Args:
        role: "executor" or "client".
        environments: the ids of its environments.
        pools: the names of its pools. With the environments, one or more.
        expires_in: seconds; None: the token does not expire.
        note: one line for people.
        now: seconds since 1970.

    Returns:
        The record, and the token itself, which must not be stored.

    Raises:
        TokenError: a value is invalid.
    """
    if expires_in is not None and not (math.isfinite(expires_in) and expires_in > 0):
        raise TokenError(f"a token must expire in more than 0 seconds, not {expires_in}")
    try:
        checked = _check_role(role), _check_environments(environments, least=0 if pools else 1)
        line, named = _check_note(note), _check_pools(pools)
        for each in checked[1]:
            if pool_of(each) is not None:
                raise TokenRecordError(f"`environments`: {each} is a pool's member; name its pool instead")
    except TokenRecordError as error:
        raise TokenError(str(error)) from None
    secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    expires = None if expires_in is None else math.ceil(now + expires_in)
    digest = secret_digest(secret).hex()
    return TokenRecord(secrets.token_hex(4), digest, *checked, int(now), expires, line, named), secret


def secret_digest(secret: str) -> bytes:
    """The SHA-256 of a token or a ticket, which is stored in its place."""
    # "replace": a header or a URL may decode to any text; what looks like no secret is just not found.
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _check_role(value: object) -> Role:
    """The role, if it is one. Raises TokenRecordError."""
    for role in ROLES:
        if value == role:
            return role
    raise TokenRecordError(f"`role` must be {' or '.join(ROLES)}")


def _check_environments(value: object, least: int) -> tuple[str, ...]:
    """The environment ids, each once. Raises TokenRecordError."""
    if not isinstance(value, list | tuple) or len(value) < least:
        raise TokenRecordError("`environments` must name one environment or more, unless there is a pool")
    for each in value:
        if not isinstance(each, str):
            raise TokenRecordError("`environments` must hold texts")
        try:
            check_environment_id(each)
        except ContractError as error:
            raise TokenRecordError(f"`environments`: {error}") from None
    return tuple(dict.fromkeys(value))


def _check_pools(value: object) -> tuple[str, ...]:
    """The names of pools, each once. Raises TokenRecordError."""
    if not isinstance(value, list | tuple):
        raise TokenRecordError("`pools` must be a list of names")
    for each in value:
        if not isinstance(each, str):
            raise TokenRecordError("`pools` must hold texts")
        try:
            check_pool_name(each)
        except ValueError as error:
            raise TokenRecordError(f"`pools` {error}") from None
    return tuple(dict.fromkeys(value))


def _check_note(value: object) -> str:
    """The note, if it is one line of characters that can be shown. Raises TokenRecordError."""
    if not isinstance(value, str) or len(value) > MAX_NOTE_CHARACTERS or not value.isprintable():
        raise TokenRecordError(
            f"`note` must be one line of at most {MAX_NOTE_CHARACTERS} printable characters"
        )
    return value


def _hexadecimal(value: object, name: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise TokenRecordError(f"`{name}` must match {pattern.pattern}")
    return value


def _time(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TokenRecordError(f"`{name}` must be whole seconds since 1970")
    return value
