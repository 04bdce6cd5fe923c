"""The bodies of the registry's requests and answers. No I/O.

Requests must have exactly their members; unknown members of answers are ignored.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from execprotocol.relay.keys import InvalidKeyError, PublicKeys
from execprotocol.relay.noise import MAX_AUTHORIZATION_BYTES

SECURITY_PROFILE = "noise_hybrid_ik_v1"

REGISTRATION_CONFLICT = "registration_conflict"
"""With 503: another executor holds the environment. A stock executor retries after this error."""

AUTHENTICATION_UNAVAILABLE = "authentication_service_unavailable"
"""With 502: the other error after which a stock executor retries."""

ENVIRONMENT_OFFLINE = "environment_offline"
"""With 409: no executor is connected. A stock harness retries."""

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

REGISTRY_UNAVAILABLE = "registry_unavailable"
"""In that header, with 503: the relay cannot read or change its registry now."""

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


def path(environment_id: str, action: str) -> str:
    """The path of a request below the base URL; `action` is register, connect or validate."""
    return f"/cloud/environment/{environment_id}/{action}"


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """The body of `register`: an executor's key."""

    key: PublicKeys

    def to_json(self) -> dict[str, object]:
        """The JSON body."""
        return {"security_profile": SECURITY_PROFILE, "executor_public_key": self.key.to_json()}

    @classmethod
    def parse(cls, body: bytes) -> RegisterRequest:
        """Parse a body. Raises ContractError."""
        members = _request(body, ("security_profile", "executor_public_key"))
        _same(members, "security_profile", SECURITY_PROFILE)
        return cls(_key(members, "executor_public_key"))


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


def _request(body: bytes, names: Collection[str]) -> dict[str, object]:
    members = _object(body)
    for name in names:
        if name not in members:
            raise ContractError(f"`{name}` is missing")
    for name in members:
        if name not in names:
            raise ContractError(f"`{name[:40]}` is unknown here; there are {', '.join(names)}")
    return members


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
