"""Authentication of WebSocket upgrades: none, a capability token, or a signed bearer token; read again on a
reload.

The wire fixes the texts of refusals (`docs/protocol.md`, "WebSocket authentication"). Tokens and their
digests are never logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol

import msgspec

from execprotocol.trust import UntrustedError, read_trusted

CAPABILITY_TOKEN, SIGNED_BEARER_TOKEN = "capability-token", "signed-bearer-token"

MIN_SECRET_BYTES = 32
"""As long as the digest of HS256; below it a secret can be guessed from one token."""

MIN_TOKEN_BYTES = 6
"""The least length of a capability token: one of five characters can be guessed over the network within
hours."""

SAFE_TOKEN_BYTES = 16
"""The server warns of shorter tokens: they can be guessed unless they are random."""

DEFAULT_CLOCK_SKEW_SECONDS = 30

MISSING = "missing websocket bearer token"
MALFORMED = "invalid authorization header"
WRONG_TOKEN = "invalid websocket bearer token"  # noqa: S105 - a text
INVALID_JWT = "invalid websocket jwt"
EXPIRED = "expired websocket jwt"
NOT_YET_VALID = "websocket jwt is not valid yet"
WRONG_ISSUER = "websocket jwt issuer mismatch"
WRONG_AUDIENCE = "websocket jwt audience mismatch"


Folder = str | os.PathLike[str]


class ConfigurationError(ValueError):
    """Options cannot be used, alone or together; the text is for the operator."""


class Authenticator(Protocol):
    """Checks the Authorization header."""

    @property
    def required(self) -> bool:
        """Whether a client must present credentials."""

    def refusal(self, authorization: str | None) -> str | None:
        """Why the peer is refused (the body of the 401), or None if it is admitted."""


class NoAuthentication:
    """Admits every peer."""

    required: ClassVar[bool] = False

    def refusal(self, authorization: str | None) -> str | None:
        """None."""
        return None


class CapabilityToken(msgspec.Struct, frozen=True):
    """Admits peers that present the token."""

    required: ClassVar[bool] = True

    sha256: bytes
    is_short: bool = False
    """Whether the token has fewer than `SAFE_TOKEN_BYTES`; false if only its digest is known."""

    def __repr__(self) -> str:
        return "CapabilityToken()"

    def refusal(self, authorization: str | None) -> str | None:
        """Why the peer is refused, or None."""
        token, refusal = bearer_token(authorization)
        if refusal is not None:
            return refusal
        same = hmac.compare_digest(hashlib.sha256(token.encode()).digest(), self.sha256)
        return None if same else WRONG_TOKEN


class SignedBearerToken(msgspec.Struct, frozen=True):
    """Admits peers with a JSON Web Token that is signed with the shared secret (HS256) and in force."""

    required: ClassVar[bool] = True

    secret: bytes
    issuer: str | None = None
    audience: str | None = None
    clock_skew_seconds: int = DEFAULT_CLOCK_SKEW_SECONDS
    now: Callable[[], float] = time.time

    def __repr__(self) -> str:
        return f"SignedBearerToken(issuer={self.issuer!r}, audience={self.audience!r})"

    def refusal(self, authorization: str | None) -> str | None:
        """Why the peer is refused, or None."""
        token, refusal = bearer_token(authorization)
        if refusal is not None:
            return refusal
        claims = self._signed_claims(token)
        return INVALID_JWT if claims is None else self._refusal_of(claims)

    def _signed_claims(self, token: str) -> dict[str, Any] | None:
        from jwt import PyJWS, PyJWTError  # 50 ms, only where it is used

        try:
            claims = json.loads(PyJWS().decode(token, self.secret, algorithms=["HS256"]))
        except (PyJWTError, ValueError, RecursionError):
            return None
        return claims if isinstance(claims, dict) and _well_typed(claims) else None

    def _refusal_of(self, claims: dict[str, Any]) -> str | None:
        now = int(self.now())
        not_before, audience = claims.get("nbf"), claims.get("aud")
        if claims["exp"] < now - self.clock_skew_seconds:
            return EXPIRED
        if not_before is not None and not_before > now + self.clock_skew_seconds:
            return NOT_YET_VALID
        if self.issuer is not None and claims.get("iss") != self.issuer:
            return WRONG_ISSUER
        audiences = [audience] if isinstance(audience, str) else audience or []
        if self.audience is not None and self.audience not in audiences:
            return WRONG_AUDIENCE
        return None


def _well_typed(claims: dict[str, Any]) -> bool:
    expiry, not_before, issuer, audience = (claims.get(name) for name in ("exp", "nbf", "iss", "aud"))
    audiences = audience if isinstance(audience, list) else [audience]
    return (
        type(expiry) is int
        and type(not_before) in (int, type(None))
        and isinstance(issuer, str | None)
        and (audience is None or all(isinstance(each, str) for each in audiences))
    )


def bearer_token(authorization: str | None) -> tuple[str, str | None]:
    """The token of an Authorization header, or the reason for a refusal."""
    if authorization is None:
        return "", MISSING
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii():
        return "", MALFORMED
    return token, None


class AuthenticationOptions(msgspec.Struct, frozen=True):
    """The `--ws-…` options as given; None for absent ones."""

    ws_auth: str | None = None
    ws_token_file: str | None = None
    ws_token_sha256: str | None = None
    ws_shared_secret_file: str | None = None
    ws_issuer: str | None = None
    ws_audience: str | None = None
    ws_max_clock_skew_seconds: int | None = None


_CAPABILITY_ONLY = ("ws_token_file", "ws_token_sha256")
_SIGNED_ONLY = ("ws_shared_secret_file", "ws_issuer", "ws_audience", "ws_max_clock_skew_seconds")


def authenticator_from(options: AuthenticationOptions, base: Folder) -> Authenticator:
    """The authenticator that the options ask for; reads the file they name.

    Args:
        options: the options as given.
        base: the folder of relative file names (the working directory of the launch).

    Raises:
        ConfigurationError: options are missing, exclude each other or belong to another mode, or the file
        cannot be used.
    """
    if options.ws_auth is None:
        _forbid(options, (*_CAPABILITY_ONLY, *_SIGNED_ONLY), "needs --ws-auth")
        return NoAuthentication()
    if options.ws_auth == CAPABILITY_TOKEN:
        _forbid(options, _SIGNED_ONLY, f"needs --ws-auth {SIGNED_BEARER_TOKEN}")
        return _capability_token(options, base)
    if options.ws_auth == SIGNED_BEARER_TOKEN:
        _forbid(options, _CAPABILITY_ONLY, f"needs --ws-auth {CAPABILITY_TOKEN}")
        return _signed_bearer_token(options, base)
    raise ConfigurationError(f"--ws-auth must be {CAPABILITY_TOKEN} or {SIGNED_BEARER_TOKEN}")


def _forbid(options: AuthenticationOptions, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ConfigurationError(f"{_flag(name)} {reason}")


def _capability_token(options: AuthenticationOptions, base: Folder) -> Authenticator:
    file, digest = options.ws_token_file, options.ws_token_sha256
    if (file is None) == (digest is None):
        raise ConfigurationError(
            f"--ws-auth {CAPABILITY_TOKEN} needs exactly one of --ws-token-file and --ws-token-sha256"
        )
    if file is not None:
        token = _secret_in(os.path.join(base, file), "--ws-token-file")
        if len(token) < MIN_TOKEN_BYTES:
            raise ConfigurationError(
                f"--ws-token-file: the token must have at least {MIN_TOKEN_BYTES} bytes, better 32: "
                "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return CapabilityToken(hashlib.sha256(token).digest(), len(token) < SAFE_TOKEN_BYTES)
    if not re.fullmatch(r"[0-9a-fA-F]{64}", (digest or "").strip()):
        raise ConfigurationError("--ws-token-sha256 must be 64 hexadecimal digits")
    return CapabilityToken(bytes.fromhex(digest or ""))


def _signed_bearer_token(options: AuthenticationOptions, base: Folder) -> Authenticator:
    if options.ws_shared_secret_file is None:
        raise ConfigurationError(f"--ws-auth {SIGNED_BEARER_TOKEN} needs --ws-shared-secret-file")
    secret = _secret_in(os.path.join(base, options.ws_shared_secret_file), "--ws-shared-secret-file")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            f"--ws-shared-secret-file: the secret must have at least {MIN_SECRET_BYTES} bytes"
        )
    skew = options.ws_max_clock_skew_seconds
    if skew is not None and skew < 0:
        raise ConfigurationError("--ws-max-clock-skew-seconds must not be negative")
    return SignedBearerToken(
        secret,
        _given(options, "ws_issuer"),
        _given(options, "ws_audience"),
        DEFAULT_CLOCK_SKEW_SECONDS if skew is None else skew,
    )


def _given(options: AuthenticationOptions, name: str) -> str | None:
    value: str | None = getattr(options, name)
    if value is not None and not value.strip():
        raise ConfigurationError(f"{_flag(name)} must not be empty")
    return value


def _secret_in(path: str, flag: str) -> bytes:
    try:
        secret = read_trusted(path, secret=True).strip()
    except UntrustedError as error:
        raise ConfigurationError(f"{flag} decides who may connect: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{flag}: cannot read {path}: {error.strerror}") from error
    if not secret:
        raise ConfigurationError(f"{flag}: {path} is empty")
    return secret


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class Credentials:
    """An `Authenticator` whose files can be read again. Connections that are open stay open."""

    def __init__(self, options: AuthenticationOptions, base: Folder) -> None:
        """Read the files that the options name; arguments and errors are those of `authenticator_from`."""
        self._options = options
        self._base = base
        self._current = authenticator_from(options, base)
        # One thread: reloads end in the order they began. Its own: the loop waits for the default threads
        # when it closes, and a dead mount would keep it from closing.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="credentials")

    @property
    def required(self) -> bool:
        """Whether a client must present credentials."""
        return self._current.required

    @property
    def has_short_token(self) -> bool:
        """Whether they are a token that can be guessed unless it is random."""
        return isinstance(self._current, CapabilityToken) and self._current.is_short

    def refusal(self, authorization: str | None) -> str | None:
        """Why the peer is refused (the body of the 401), or None if it is admitted."""
        return self._current.refusal(authorization)

    async def reload(self) -> str | None:
        """Read the files again. If they cannot be used, the old credentials stay in force.

        Returns:
            None, or the reason, for the operator.
        """
        try:
            self._current = await self._read()
        except ConfigurationError as error:
            return str(error)
        return None

    async def fault(self) -> str | None:
        """Why the files cannot be used as they are now, or None if they can. Changes nothing."""
        try:
            await self._read()
        except ConfigurationError as error:
            return str(error)
        return None

    async def _read(self) -> Authenticator:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, authenticator_from, self._options, self._base)
