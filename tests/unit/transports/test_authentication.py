"""Who may upgrade: the table of `docs/protocol.md`, and the options that lead to it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from execserver.transports.authentication import (
    EXPIRED,
    INVALID_JWT,
    MALFORMED,
    MISSING,
    NOT_YET_VALID,
    WRONG_AUDIENCE,
    WRONG_ISSUER,
    WRONG_TOKEN,
    AuthenticationOptions,
    CapabilityToken,
    ConfigurationError,
    NoAuthentication,
    SignedBearerToken,
    authenticator_from,
)

SECRET = b"0123456789abcdef0123456789abcdef"
NOW = 1_800_000_000
GOOD = {"exp": NOW + 60, "iss": "us", "aud": "them"}


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(claims: Any, secret: bytes = SECRET, algorithm: str = "HS256", digest: str = "sha256") -> str:
    signed = (
        part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode()) + "." + part(json.dumps(claims).encode())
    )
    return signed + "." + part(hmac.new(secret, signed.encode(), digest).digest())


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in GOOD.items() if key != name}


@pytest.fixture
def signed() -> SignedBearerToken:
    return SignedBearerToken(SECRET, "us", "them", 30, now=lambda: NOW + 0.9)


def test_without_authentication_no_credentials_are_needed() -> None:
    assert NoAuthentication().refusal(None) is None


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        (None, MISSING),
        ("Bearer s3cret", None),
        ("bearer s3cret", None),
        ("BEARER   s3cret  ", None),
        ("Bearer nope", WRONG_TOKEN),
        ("Bearer s3cret x", WRONG_TOKEN),
        ("Basic s3cret", MALFORMED),
        ("s3cret", MALFORMED),
        ("Bearer", MALFORMED),
        ("Bearer  ", MALFORMED),
        ("", MALFORMED),
        ("Bearers3cret", MALFORMED),
        ("Bearer s3cr\xe9t", MALFORMED),
    ],
)
def test_a_capability_token_is_compared(header: str | None, refusal: str | None) -> None:
    assert CapabilityToken(hashlib.sha256(b"s3cret").digest()).refusal(header) == refusal


@pytest.mark.parametrize(
    ("claims", "refusal"),
    [
        (GOOD, None),
        ({**GOOD, "aud": ["others", "them"]}, None),
        ({**GOOD, "exp": NOW - 30}, None),
        ({**GOOD, "exp": NOW - 31}, EXPIRED),
        ({**GOOD, "nbf": NOW + 30}, None),
        ({**GOOD, "nbf": NOW + 31}, NOT_YET_VALID),
        ({**GOOD, "nbf": None, "iat": "x", "sub": 5, "jti": 5}, None),
        ({**GOOD, "iss": "you"}, WRONG_ISSUER),
        (without("iss"), WRONG_ISSUER),
        ({**GOOD, "aud": "others"}, WRONG_AUDIENCE),
        ({**GOOD, "aud": []}, WRONG_AUDIENCE),
        (without("aud"), WRONG_AUDIENCE),
        (without("exp"), INVALID_JWT),
        ({**GOOD, "exp": "soon"}, INVALID_JWT),
        ({**GOOD, "exp": True}, INVALID_JWT),
        ({**GOOD, "exp": float(NOW + 60) + 0.5}, INVALID_JWT),
        ({**GOOD, "iss": 5}, INVALID_JWT),
        ({**GOOD, "aud": [5]}, INVALID_JWT),
        ([], INVALID_JWT),
        ({"exp": NOW - 31, "nbf": NOW + 31}, EXPIRED),
        ({"exp": NOW, "nbf": NOW + 31}, NOT_YET_VALID),
        ({"exp": NOW}, WRONG_ISSUER),
    ],
)
def test_the_claims_of_a_signed_token_are_checked_in_order(
    signed: SignedBearerToken, claims: Any, refusal: str | None
) -> None:
    assert signed.refusal("Bearer " + token(claims)) == refusal


@pytest.mark.parametrize(
    "text",
    [
        token(GOOD, secret=b"x" * 32),
        token(GOOD, algorithm="HS512", digest="sha512"),
        token(GOOD, algorithm="none"),
        token(GOOD).rpartition(".")[0] + ".",
        "a.b.c",
        "garbage",
        f"{part(b'[]')}.{part(b'{}')}.{part(b'x')}",
    ],
)
def test_a_token_that_is_not_signed_by_us_is_invalid(signed: SignedBearerToken, text: str) -> None:
    assert signed.refusal("Bearer " + text) == INVALID_JWT


def test_the_header_is_checked_before_the_token(signed: SignedBearerToken) -> None:
    assert signed.refusal(None) == MISSING
    assert signed.refusal("Basic x") == MALFORMED


def test_issuer_and_audience_are_ignored_unless_configured() -> None:
    lenient = SignedBearerToken(SECRET, now=lambda: NOW)

    assert lenient.refusal("Bearer " + token({"exp": NOW, "iss": "x", "aud": "y"})) is None
    assert lenient.refusal("Bearer " + token({"exp": NOW})) is None


def test_secrets_do_not_show_in_a_printed_authenticator() -> None:
    assert "0123" not in repr(SignedBearerToken(SECRET))
    assert "x00" not in repr(CapabilityToken(bytes(32)))


def options(folder: Path, **given: Any) -> Any:
    (folder / "token").write_text("  s3cret\n")
    (folder / "secret").write_bytes(SECRET + b"\n")
    (folder / "short").write_bytes(SECRET[:31] + b"\n")
    (folder / "blank").write_bytes(b" \n")
    return authenticator_from(AuthenticationOptions(**given), folder)


def test_the_options_make_an_authenticator(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"s3cret").hexdigest()

    assert isinstance(options(tmp_path), NoAuthentication)
    for given in (
        {"ws_token_file": "token"},
        {"ws_token_sha256": digest},
        {"ws_token_sha256": digest.upper()},
    ):
        capability = options(tmp_path, ws_auth="capability-token", **given)
        assert capability.refusal("Bearer s3cret") is None
    signed = options(
        tmp_path, ws_auth="signed-bearer-token", ws_shared_secret_file=str(tmp_path / "secret"),
        ws_issuer="us", ws_audience="them", ws_max_clock_skew_seconds=5,
    )  # fmt: skip
    assert (signed.secret, signed.issuer, signed.audience, signed.clock_skew_seconds) == (
        SECRET,
        "us",
        "them",
        5,
    )
    plain = options(tmp_path, ws_auth="signed-bearer-token", ws_shared_secret_file="secret")
    assert plain.clock_skew_seconds == 30


CAPABILITY = {"ws_auth": "capability-token", "ws_token_file": "token"}
SIGNED = {"ws_auth": "signed-bearer-token", "ws_shared_secret_file": "secret"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ws_auth": "magic"}, "--ws-auth must be"),
        ({"ws_token_file": "token"}, "--ws-token-file needs --ws-auth"),
        ({"ws_issuer": "us"}, "--ws-issuer needs --ws-auth"),
        ({"ws_auth": "capability-token"}, "exactly one of --ws-token-file and --ws-token-sha256"),
        ({**CAPABILITY, "ws_token_sha256": "0" * 64}, "exactly one of"),
        ({"ws_auth": "capability-token", "ws_token_sha256": "0" * 63}, "64 hexadecimal digits"),
        ({"ws_auth": "capability-token", "ws_token_file": "missing"}, "cannot read"),
        ({"ws_auth": "capability-token", "ws_token_file": "blank"}, "is empty"),
        ({**CAPABILITY, "ws_shared_secret_file": "secret"}, "needs --ws-auth signed-bearer-token"),
        ({**CAPABILITY, "ws_audience": "a"}, "--ws-audience needs --ws-auth signed-bearer-token"),
        ({**CAPABILITY, "ws_max_clock_skew_seconds": 0}, "--ws-max-clock-skew-seconds needs"),
        ({"ws_auth": "signed-bearer-token"}, "needs --ws-shared-secret-file"),
        ({**SIGNED, "ws_token_file": "token"}, "--ws-token-file needs --ws-auth capability-token"),
        ({**SIGNED, "ws_token_sha256": "0" * 64}, "--ws-token-sha256 needs --ws-auth capability-token"),
        ({**SIGNED, "ws_shared_secret_file": "short"}, "at least 32 bytes"),
        ({**SIGNED, "ws_shared_secret_file": "blank"}, "is empty"),
        ({**SIGNED, "ws_max_clock_skew_seconds": -1}, "must not be negative"),
        ({**SIGNED, "ws_issuer": ""}, "--ws-issuer must not be empty"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        options(tmp_path, **given)
