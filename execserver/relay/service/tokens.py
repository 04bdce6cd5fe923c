"""The relay's bearer tokens, each for one role in some environments, in a file of the state folder.

- A token is shown once, when it is created. The file has its SHA-256 only.
- The file is written under another name and renamed, under a lock: a reader sees all or nothing of a change,
  and concurrent changes lose nothing.
- An invalid file is an error. It is never taken for an empty one, nor overwritten.

    {"version": 1, "tokens": [{"id", "sha256", "role", "environments", "created", "expires", "note"}, …]}

A token for pools also has `pools`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from execprotocol.relay.contract import ContractError, check_environment_id
from execprotocol.relay.pools import check_pool_name, pool_of
from execprotocol.trust import UntrustedError, check_way
from execserver.private_folder import FolderError, lock, open_private

FILE_NAME, LOCK_NAME = "tokens.json", "tokens.lock"
VERSION = 1

PREFIX = "xrt_"
"""Lets secret scanners find a token that leaked into a log or a repository."""

TOKEN_BYTES = 32

LOCK_SECONDS = 5.0
"""The lock is held for milliseconds; a program that holds it longer is stuck."""

Role = Literal["executor", "client"]
ROLES: tuple[Role, ...] = get_args(Role)

MAX_NOTE_CHARACTERS = 200
"""Limit of a token's note, which is shown in one line of a list."""

_ID = re.compile(r"[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEMBERS = ("id", "sha256", "role", "environments", "created", "expires", "note")
_POOLS = "pools"
"""The member that only tokens for pools have, so that an earlier relay can read a file without them."""

_Signature = tuple[int, int, int, int]


class TokenRecordError(Exception):
    """A token has an invalid value. The message names the member."""


class TokenError(Exception):
    """A request of the user cannot be carried out. The text is for the user."""


class TokenFileError(TokenError):
    """The token file or its folder is invalid."""


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


class TokenStore:
    """The tokens of one state folder, as the file has them now.

    Args:
        folder: the state folder, owned by this user, of mode 0700.
        create: whether a missing folder is created.
        clock: seconds since 1970.

    Raises:
        TokenFileError: the folder or the file is invalid.
    """

    def __init__(self, folder: Path, *, create: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._folder = Path(os.path.abspath(folder))
        self._path = self._folder / FILE_NAME
        self._clock = clock
        self._tokens: tuple[TokenRecord, ...] = ()
        self._by_hash: dict[bytes, TokenRecord] = {}
        self._signature: _Signature | None = None  # of the file that was read last
        self.fault = ""
        """Why the file is invalid; empty if it is valid. The tokens of the last valid file stay in force."""
        if not create and not self._folder.is_dir():
            raise TokenFileError(f"there is no state folder {self._folder}")
        try:
            check_way(os.path.abspath(self._folder))
            os.close(open_private(str(self._folder)))
        except (FolderError, UntrustedError) as error:
            raise TokenFileError(str(error)) from None
        self._load()

    @property
    def tokens(self) -> tuple[TokenRecord, ...]:
        """All tokens in the order of creation, expired ones included."""
        return self._tokens

    def create(
        self,
        role: str,
        environments: Sequence[str],
        *,
        pools: Sequence[str] = (),
        expires_in: float | None = None,
        note: str = "",
    ) -> tuple[TokenRecord, str]:
        """Create a token.

        Args:
            role: "executor" or "client".
            environments: the ids of its environments.
            pools: the names of its pools. With the environments, one or more.
            expires_in: seconds; None: the token does not expire.
            note: one line for people.

        Returns:
            The record, and the token itself, which is not stored.

        Raises:
            TokenError: a value or the file is invalid.
        """
        now = self._clock()
        if expires_in is not None and not (math.isfinite(expires_in) and expires_in > 0):
            raise TokenError(f"a token must expire in more than 0 seconds, not {expires_in}")
        try:
            checked = _check_role(role), _check_environments(environments, least=0 if pools else 1)
            line, named = _check_note(note), _check_pools(pools)
            for each in checked[1]:
                if pool_of(each) is not None:
                    raise TokenRecordError(
                        f"`environments`: {each} is a pool's member; name its pool instead"
                    )
        except TokenRecordError as error:
            raise TokenError(str(error)) from None
        secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        with self._locked():
            taken = {token.id for token in self._tokens}
            token_id = secrets.token_hex(4)
            while token_id in taken:
                token_id = secrets.token_hex(4)
            expires = None if expires_in is None else math.ceil(now + expires_in)
            token = TokenRecord(
                token_id, secret_digest(secret).hex(), *checked, int(now), expires, line, named
            )
            self._save((*self._tokens, token))
        return token, secret

    def revoke(self, token_id: str) -> TokenRecord:
        """Remove a token from the file.

        Raises:
            TokenError: there is no token with that id, or the file is invalid.
        """
        with self._locked():
            for token in self._tokens:
                if token.id == token_id:
                    self._save(tuple(each for each in self._tokens if each is not token))
                    return token
        raise TokenError(f"there is no token {token_id!r} in {self._path}; `token list` shows their ids")

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

    def refresh(self) -> None:
        """Read the file again if it has changed. If it is invalid, `fault` says why."""
        try:
            self._load()
        except TokenFileError as error:
            self.fault = str(error)
        else:
            self.fault = ""

    def _load(self) -> None:
        """Load the file, if it has changed.

        Raises:
            TokenFileError: the file is invalid.
        """
        try:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self._take((), None)
            return
        except OSError as error:
            raise TokenFileError(f"cannot read {self._path}: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            signature = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
            self._check_status(status)  # first: `open` would fail for a folder
            if signature != self._signature:
                with open(descriptor, "rb", closefd=False) as file:
                    content = file.read()
                self._take(self._parse(content), signature)
        except OSError as error:
            raise TokenFileError(f"cannot read {self._path}: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _check_status(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise TokenFileError(f"{self._path} is no file; remove it")
        if status.st_uid != os.geteuid():
            raise TokenFileError(
                f"{self._path} belongs to uid {status.st_uid}, not to this user ({os.geteuid()})"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise TokenFileError(f"{self._path} has mode {mode:04o}, open to others; chmod it to 0600")

    def _take(self, tokens: tuple[TokenRecord, ...], signature: _Signature | None) -> None:
        self._tokens = tokens
        self._by_hash = {bytes.fromhex(token.sha256): token for token in tokens}
        self._signature = signature

    def _parse(self, content: bytes) -> tuple[TokenRecord, ...]:
        way_out = "restore it from a backup, or remove it to begin without tokens"
        try:
            whole = json.loads(content)
        except (ValueError, RecursionError):
            raise TokenFileError(f"{self._path} is no JSON, perhaps cut off; {way_out}") from None
        if not isinstance(whole, dict) or not isinstance(whole.get("tokens"), list):
            raise TokenFileError(f"{self._path} must be an object with a list `tokens`; {way_out}")
        if whole.get("version") != VERSION:
            raise TokenFileError(f"{self._path}: `version` must be {VERSION}, the only supported one")
        tokens = []
        for index, entry in enumerate(whole["tokens"]):
            try:
                tokens.append(TokenRecord.from_json(entry))
            except TokenRecordError as error:
                raise TokenFileError(f"{self._path}: tokens[{index}]: {error}; {way_out}") from None
        if len({token.id for token in tokens}) < len(tokens):
            raise TokenFileError(f"{self._path} has two tokens with the same id; {way_out}")
        return tuple(tokens)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, with the newest tokens loaded."""
        path = self._folder / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TokenFileError(f"cannot lock {path}: {error.strerror}") from None
        try:
            deadline = time.monotonic() + LOCK_SECONDS
            while not lock(descriptor):
                if time.monotonic() >= deadline:
                    raise TokenFileError(
                        f"{path} has been locked by another program for {LOCK_SECONDS:.0f} s"
                    )
                time.sleep(0.005)  # flock offers no wait with a limit
            self._load()
            yield
        finally:
            os.close(descriptor)

    def _save(self, tokens: tuple[TokenRecord, ...]) -> None:
        """Replace the file. If that fails, the old file stays. The lock is held."""
        content = json.dumps({"version": VERSION, "tokens": [token.to_json() for token in tokens]}, indent=1)
        new = self._folder / f"{FILE_NAME}.new"
        try:
            descriptor = os.open(
                new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "w") as file:
                os.fchmod(descriptor, 0o600)  # a file left by a crash may have another mode
                file.write(content + "\n")
                file.flush()
                self._make_newer(descriptor)
                os.fsync(descriptor)
            os.rename(new, self._path)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise TokenFileError(f"cannot write {self._path}: {error.strerror}") from None
        self._load()

    def _make_newer(self, descriptor: int) -> None:
        # Otherwise two changes within one tick of the file system's clock may have the same signature: the
        # third file may get the inode of the first.
        if self._signature is not None:
            moment = max(os.fstat(descriptor).st_mtime_ns, self._signature[2] + 1)
            os.utime(descriptor, ns=(moment, moment))


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
