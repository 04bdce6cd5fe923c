"""The registry's requests and answers: what each must have, for whoever makes or reads it.

Requests have exactly their members; of answers, members that we do not know are ignored. No I/O.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from execprotocol.relay.keys import InvalidKeyError, PublicKeys
from execprotocol.relay.noise import MAX_AUTHORIZATION_BYTES

SECURITY_PROFILE = "noise_hybrid_ik_v1"

REGISTRATION_CONFLICT = "registration_conflict"
"""With 503, the answer that makes a stock executor try again: another one holds the environment."""

AUTHENTICATION_UNAVAILABLE = "authentication_service_unavailable"
"""With 502, the other one."""

ENVIRONMENT_OFFLINE = "environment_offline"
"""With 409: no executor now. A stock harness goes on trying."""

MAX_BODY_BYTES = 16 << 10
"""Of a request. The largest that is right has about 6 KiB."""

MAX_ID_BYTES = 256
"""Of a registration id. Ours are shorter; it goes into the prologue of each handshake."""

STREAM_ID_HEADER = "x-codex-noise-stream-id"
"""Of a validate: which stream asks, when its id is a UUID."""

REJECTION_REASON_HEADER = "x-codex-rendezvous-rejection-reason"
"""Of a refused upgrade: a word for logs."""

_ENVIRONMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")


class ContractError(Exception):
    """A body or an id is not as agreed; the message names the field, and has no secret in it."""


def check_environment_id(text: str) -> str:
    """The id, if it is one: letters, digits, `-` and `_`, at most 256.

    Raises:
        ContractError: it is none.
    """
    if not _ENVIRONMENT_ID.match(text):
        raise ContractError(f"`environment_id` must be 1 to 256 letters, digits, - or _, not {text[:40]!r}")
    return text


def path(environment_id: str, action: str) -> str:
    """Where a request goes, below the base URL; `action` is register, connect or validate."""
    return f"/cloud/environment/{environment_id}/{action}"


@dataclass(frozen=True, slots=True)
class RegisterRequest:
    """An executor wants to be found."""

    key: PublicKeys

    def to_json(self) -> dict[str, object]:
        """The body."""
        return {"security_profile": SECURITY_PROFILE, "executor_public_key": self.key.to_json()}

    @classmethod
    def parse(cls, body: bytes) -> RegisterRequest:
        """Read the body. Raises ContractError."""
        members = _request(body, ("security_profile", "executor_public_key"))
        _same(members, "security_profile", SECURITY_PROFILE)
        return cls(_key(members, "executor_public_key"))


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    """Where it is to dial, as often as it likes."""

    environment_id: str
    url: str
    registration_id: str

    def to_json(self) -> dict[str, object]:
        """The body."""
        return {
            "environment_id": self.environment_id,
            "url": self.url,
            "security_profile": SECURITY_PROFILE,
            "executor_registration_id": self.registration_id,
        }

    @classmethod
    def parse(cls, body: bytes) -> RegisterAnswer:
        """Read the body. Raises ContractError."""
        members = _object(body)
        _same(members, "security_profile", SECURITY_PROFILE)
        return cls(_text(members, "environment_id"), _web_socket_url(members), _registration_id(members))


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A harness wants to reach the environment's executor."""

    key: PublicKeys

    def to_json(self) -> dict[str, object]:
        """The body."""
        return {"harness_public_key": self.key.to_json()}

    @classmethod
    def parse(cls, body: bytes) -> ConnectRequest:
        """Read the body. Raises ContractError."""
        return cls(_key(_request(body, ("harness_public_key",)), "harness_public_key"))


@dataclass(frozen=True, slots=True)
class ConnectAnswer:
    """Where it is to dial, once, and what the executor will want to see."""

    environment_id: str
    url: str
    registration_id: str
    executor_key: PublicKeys
    authorization: str

    def to_json(self) -> dict[str, object]:
        """The body."""
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
        """Read the body. Raises ContractError."""
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
    """An executor asks whether the harness that knocked was sent by the registry."""

    registration_id: str
    harness_key: PublicKeys
    authorization: str

    def to_json(self) -> dict[str, object]:
        """The body."""
        return {
            "executor_registration_id": self.registration_id,
            "harness_public_key": self.harness_key.to_json(),
            "harness_key_authorization": self.authorization,
        }

    @classmethod
    def parse(cls, body: bytes) -> ValidateRequest:
        """Read the body. Raises ContractError."""
        names = ("executor_registration_id", "harness_public_key", "harness_key_authorization")
        members = _request(body, names)
        return cls(_registration_id(members), _key(members, "harness_public_key"), _authorization(members))


def parse_validity(body: bytes) -> bool:
    """The answer to a validate. Raises ContractError."""
    valid = _object(body).get("valid")
    if not isinstance(valid, bool):
        raise ContractError("`valid` must be true or false")
    return valid


def error_body(code: str, message: str) -> dict[str, object]:
    """The body of a refusal."""
    return {"error": {"code": code, "message": message}}


def error_of(body: bytes) -> tuple[str, str]:
    """Code and message of a refusal; empty ones when it says nothing that is understood."""
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
    except UnicodeEncodeError:  # JSON may hold halves of surrogate pairs, which no UTF-8 has
        raise ContractError(f"`{name}` holds what is no character") from None
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
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not url.isascii() or any(character <= " " for character in url):
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
