"""The bodies of the registry's requests and answers. No I/O.

Requests must have exactly their members; unknown members of answers are ignored. Pools are an extension of
execserver: stock peers neither send nor get anything of them. `docs/protocol.md`, "Relay" and "Pools".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard
from urllib.parse import SplitResult, urlsplit

from execprotocol.relay.keys import InvalidKeyError, PublicKeys
from execprotocol.relay.noise import MAX_AUTHORIZATION_BYTES
from execprotocol.relay.pools import MAX_CAPACITY, check_labels, check_pool_name

SECURITY_PROFILE = "noise_hybrid_ik_v1"

REGISTRATION_CONFLICT = "registration_conflict"
"""With 503: another executor holds the environment. A stock executor retries after this error."""

AUTHENTICATION_UNAVAILABLE = "authentication_service_unavailable"
"""With 502: the other error after which a stock executor retries."""

ENVIRONMENT_OFFLINE = "environment_offline"
"""With 409: no executor is connected. A stock harness retries."""

POOL_FULL = "pool_full"
"""With 503: each executor of the pool that matches has as many sessions as it takes, or is draining."""

STALE_REGISTRATION = "stale_registration"
"""With 409: a status names a registration that another one has replaced."""

MAX_SESSIONS = 1_000_000_000
MAX_VERSION = 64
"""Characters of an executor's version."""

MAX_BODY_BYTES = 16 << 10
"""Limit of a request. The largest valid one has about 6 KiB."""

MAX_ID_BYTES = 256
"""Limit of a registration id, which is part of the prologue of each handshake."""

STREAM_ID_HEADER = "x-codex-noise-stream-id"
"""Header of a validate: the stream id, if it is a UUID."""

REJECTION_REASON_HEADER = "x-codex-rendezvous-rejection-reason"
"""Header of a refused upgrade: one word, for logs."""

REGISTRY_UNAVAILABLE = "registry_unavailable"
"""In that header with 503, and in the close frame of a socket: the store of the relay's registry does not
answer. It may within seconds, for example when NATS has elected a leader."""

_ENVIRONMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")


class ContractError(Exception):
    """A body or an id is invalid. The message names the field, and contains no secret."""


def check_environment_id(text: str) -> str:
    """Return the id if it is valid: 1 to 256 letters, digits, `-` and `_`.

    Raises:
        ContractError: it is not.
    """
    if not _ENVIRONMENT_ID.match(text):
        raise ContractError(f"`environment_id` must be 1 to 256 letters, digits, - or _, not {text[:40]!r}")
    return text


def split_url(url: str, *schemes: str) -> SplitResult | None:
    """The parts of a URL with a host and one of the schemes; None for any other text."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if valid and url.isascii() and not any(character <= " " for character in url) else None


def check_pool(text: str) -> str:
    """Return the name of a pool if it is valid. Raises ContractError."""
    try:
        return check_pool_name(text)
    except ValueError as error:
        raise ContractError(f"the name of the pool {error}") from None


def path(environment_id: str, action: str) -> str:
    """The path of a request below the base URL; `action` is register, connect, validate or status."""
    return f"/cloud/environment/{environment_id}/{action}"


def pool_path(pool: str) -> str:
    """The path of a `connect` to a pool below the base URL."""
    return f"/cloud/pool/{pool}/connect"


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """What an executor tells of itself when it registers as a member of a pool."""

    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: int | None = None
    """How many sessions it takes, at least 1; None: any number."""
    version: str = ""
    """Of its execserver."""

    def to_json(self) -> dict[str, object]:
        """The JSON object."""
        return {"labels": dict(self.labels), "capacity": self.capacity, "version": self.version}

    @classmethod
    def from_json(cls, value: object) -> PoolEntry:
        """Parse the member `pool`. Raises ContractError."""
        if not isinstance(value, dict) or set(value) != {"labels", "capacity", "version"}:
            raise ContractError("`pool` must be an object of `labels`, `capacity` and `version`")
        labels = {}
        for name, text in _labels(value, "pool.labels").items():
            if text is None:
                raise ContractError("`pool.labels` must have texts as values")
            labels[name] = text
        capacity, version = value["capacity"], value["version"]
        if capacity is not None and not _is_whole(capacity, 1, MAX_CAPACITY):
            raise ContractError(f"`pool.capacity` must be null or a whole number from 1 to {MAX_CAPACITY}")
        if (
            not isinstance(version, str)
            or len(version) > MAX_VERSION
            or not (version.isascii() and version.isprintable())
        ):
            raise ContractError(f"`pool.version` must be at most {MAX_VERSION} printable ASCII characters")
        return cls(labels, capacity, version)


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """The body of `register`: an executor's key, and its description if it is a member of a pool."""

    key: PublicKeys
    pool: PoolEntry | None = None

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        body: dict[str, object] = {
            "security_profile": SECURITY_PROFILE,
            "executor_public_key": self.key.to_json(),
        }
        return body if self.pool is None else body | {"pool": self.pool.to_json()}

    @classmethod
    def parse(cls, body: bytes) -> RegisterRequest:
        """Parse a body. Raises ContractError."""
        members = _request(body, ("security_profile", "executor_public_key"), ("pool",))
        _same(members, "security_profile", SECURITY_PROFILE)
        pool = PoolEntry.from_json(members["pool"]) if "pool" in members else None
        return cls(_key(members, "executor_public_key"), pool)


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    """The answer to `register`: the URL that the executor may dial repeatedly."""

    environment_id: str
    url: str
    registration_id: str

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {
            "environment_id": self.environment_id,
            "url": self.url,
            "security_profile": SECURITY_PROFILE,
            "executor_registration_id": self.registration_id,
        }

    @classmethod
    def parse(cls, body: bytes) -> RegisterAnswer:
        """Parse a body. Raises ContractError."""
        members = _object(body)
        _same(members, "security_profile", SECURITY_PROFILE)
        return cls(_text(members, "environment_id"), _web_socket_url(members), _registration_id(members))


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """The body of `connect`: a harness's key."""

    key: PublicKeys

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {"harness_public_key": self.key.to_json()}

    @classmethod
    def parse(cls, body: bytes) -> ConnectRequest:
        """Parse a body. Raises ContractError."""
        return cls(_key(_request(body, ("harness_public_key",)), "harness_public_key"))


@dataclass(frozen=True, slots=True)
class PoolConnectRequest:
    """The body of a `connect` to a pool: a harness's key, and the labels that the executor must have."""

    key: PublicKeys
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """None: the label with any value."""

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {"harness_public_key": self.key.to_json(), "labels": dict(self.labels)}

    @classmethod
    def parse(cls, body: bytes) -> PoolConnectRequest:
        """Parse a body. Raises ContractError."""
        members = _request(body, ("harness_public_key", "labels"))
        return cls(_key(members, "harness_public_key"), _labels(members, "labels"))


@dataclass(frozen=True, slots=True)
class ConnectAnswer:
    """The answer to `connect`: a URL to dial once, the executor's key, and an authorization for it."""

    environment_id: str
    url: str
    registration_id: str
    executor_key: PublicKeys
    authorization: str

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {
            "environment_id": self.environment_id,
            "url": self.url,
            "security_profile": SECURITY_PROFILE,
            "executor_registration_id": self.registration_id,
            "executor_public_key": self.executor_key.to_json(),
            "harness_key_authorization": self.authorization,
        }

    @classmethod
    def parse(cls, body: bytes) -> ConnectAnswer:
        """Parse a body. Raises ContractError."""
        members = _object(body)
        _same(members, "security_profile", SECURITY_PROFILE)
        return cls(
            _text(members, "environment_id"),
            _web_socket_url(members),
            _registration_id(members),
            _key(members, "executor_public_key"),
            _authorization(members),
        )


@dataclass(frozen=True, slots=True)
class ValidateRequest:
    """The body of `validate`: the harness's key and authorization from a handshake with the executor."""

    registration_id: str
    harness_key: PublicKeys
    authorization: str

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {
            "executor_registration_id": self.registration_id,
            "harness_public_key": self.harness_key.to_json(),
            "harness_key_authorization": self.authorization,
        }

    @classmethod
    def parse(cls, body: bytes) -> ValidateRequest:
        """Parse a body. Raises ContractError."""
        names = ("executor_registration_id", "harness_public_key", "harness_key_authorization")
        members = _request(body, names)
        return cls(_registration_id(members), _key(members, "harness_public_key"), _authorization(members))


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """The body of `status`: the load of a registered executor."""

    registration_id: str
    sessions: int
    """Its sessions, detached ones included."""
    opened: int
    """How many sessions were opened since its server began. Shows which clients `sessions` contains."""
    draining: bool
    """Whether it takes no further sessions."""

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {
            "executor_registration_id": self.registration_id,
            "sessions": self.sessions,
            "opened": self.opened,
            "draining": self.draining,
        }

    @classmethod
    def parse(cls, body: bytes) -> StatusRequest:
        """Parse a body. Raises ContractError."""
        members = _request(body, ("executor_registration_id", "sessions", "opened", "draining"))
        draining = members["draining"]
        if not isinstance(draining, bool):
            raise ContractError("`draining` must be true or false")
        sessions, opened = _count(members, "sessions"), _count(members, "opened")
        return cls(_registration_id(members), sessions, opened, draining)


def parse_validity(body: bytes) -> bool:
    """Parse the answer to `validate`. Raises ContractError."""
    valid = _object(body).get("valid")
    if not isinstance(valid, bool):
        raise ContractError("`valid` must be true or false")
    return valid


def error_body(code: str, message: str) -> dict[str, object]:
    """The body of an error response."""
    return {"error": {"code": code, "message": message}}


def error_of(body: bytes) -> tuple[str, str]:
    """Code and message of an error response; empty strings if its body is not understood."""
    try:
        error = _object(body).get("error")
    except ContractError:
        return "", ""
    if not isinstance(error, dict):
        return "", ""
    code, message = error.get("code"), error.get("message")
    return code if isinstance(code, str) else "", message if isinstance(message, str) else ""


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise ContractError("the body is no JSON") from None
    if not isinstance(value, dict):
        raise ContractError("the body must be a JSON object")
    return value


def _request(body: bytes, names: Collection[str], optional: Collection[str] = ()) -> dict[str, object]:
    members = _object(body)
    for name in names:
        if name not in members:
            raise ContractError(f"`{name}` is missing")
    for name in members:
        if name not in names and name not in optional:
            raise ContractError(f"`{name[:40]}` is unknown here; there are {', '.join((*names, *optional))}")
    return members


def _labels(members: Mapping[str, object], name: str) -> dict[str, str | None]:
    labels = members[name.rpartition(".")[2]]
    if not isinstance(labels, dict) or not all(
        value is None or isinstance(value, str) for value in labels.values()
    ):
        raise ContractError(f"`{name}` must be an object of texts")
    try:
        check_labels(labels)
    except ValueError as error:
        raise ContractError(f"`{name}` {error}") from None
    return labels


def _count(members: Mapping[str, object], name: str) -> int:
    value = members[name]
    if not _is_whole(value, 0, MAX_SESSIONS):
        raise ContractError(f"`{name}` must be a whole number from 0 to {MAX_SESSIONS}")
    return value


def _is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _text(members: dict[str, object], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise ContractError(f"`{name}` must be a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON may have halves of surrogate pairs
        raise ContractError(f"`{name}` holds an invalid character") from None
    return value


def _registration_id(members: dict[str, object]) -> str:
    value = _text(members, "executor_registration_id")
    if len(value.encode()) > MAX_ID_BYTES:
        raise ContractError(f"`executor_registration_id` has more than {MAX_ID_BYTES} bytes")
    return value


def _authorization(members: dict[str, object]) -> str:
    value = _text(members, "harness_key_authorization")
    if len(value.encode()) > MAX_AUTHORIZATION_BYTES:
        raise ContractError(f"`harness_key_authorization` has more than {MAX_AUTHORIZATION_BYTES} bytes")
    return value


def _web_socket_url(members: dict[str, object]) -> str:
    url = _text(members, "url")
    if split_url(url, "ws", "wss") is None:
        raise ContractError("`url` must be a ws:// or wss:// URL")
    return url


def _same(members: dict[str, object], name: str, wanted: str) -> None:
    if members.get(name) != wanted:
        raise ContractError(f"`{name}` must be {wanted}")


def _key(members: dict[str, object], name: str) -> PublicKeys:
    try:
        return PublicKeys.from_json(members.get(name), name)
    except InvalidKeyError as error:
        raise ContractError(str(error)) from None
