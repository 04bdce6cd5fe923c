"""The registry's bodies: what each must have, that both ends agree, and that a refusal names the fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execprotocol.relay import contract
from execprotocol.relay.contract import (
    ConnectAnswer,
    ConnectRequest,
    ContractError,
    PoolConnectRequest,
    PoolEntry,
    RegisterAnswer,
    RegisterRequest,
    StatusRequest,
    ValidateRequest,
    check_environment_id,
    error_body,
    error_of,
    parse_validity,
    path,
)
from execprotocol.relay.keys import KeyPair

KEY = KeyPair.from_seed(bytes(range(96))).public
URL = "wss://relay.example:8443/base/cloud/environment/place/harness?ticket=abc"


class Body(Protocol):
    """What all bodies have."""

    def to_json(self) -> dict[str, object]: ...


BODIES: dict[str, Body] = {
    "register request": RegisterRequest(KEY),
    "register answer": RegisterAnswer("place", URL, "registration"),
    "connect request": ConnectRequest(KEY),
    "connect answer": ConnectAnswer("place", URL, "registration", KEY, "authorization"),
    "validate request": ValidateRequest("registration", KEY, "authorization"),
    "pool connect request": PoolConnectRequest(KEY, {"gpu": None, "zone": "eu"}),
    "status request": StatusRequest("registration", 3, 7, draining=True),
}
PARSERS: dict[str, Callable[[bytes], Body]] = {
    "register request": RegisterRequest.parse,
    "register answer": RegisterAnswer.parse,
    "connect request": ConnectRequest.parse,
    "connect answer": ConnectAnswer.parse,
    "validate request": ValidateRequest.parse,
    "pool connect request": PoolConnectRequest.parse,
    "status request": StatusRequest.parse,
}
OF_POOLS = ("pool connect request", "status request")
REQUESTS = [name for name in BODIES if name.endswith("request")]
ANSWERS = [name for name in BODIES if name.endswith("answer")]
# An answer's environment is compared with the requested one by the caller.
MEMBERS = [(name, member) for name, body in BODIES.items() for member in body.to_json()]


def body_of(name: str, **members: Any) -> bytes:
    """A body that is right but for some members."""
    return json.dumps({**BODIES[name].to_json(), **members}).encode()


def without(name: str, member: str) -> bytes:
    return json.dumps({key: value for key, value in BODIES[name].to_json().items() if key != member}).encode()


def tried(name: str, **members: Any) -> tuple[Body | None, str]:
    """What a parser makes of such a body, or what it says against it."""
    try:
        return PARSERS[name](body_of(name, **members)), ""
    except ContractError as error:
        return None, str(error)


# -- as on the wire


def test_bodies_have_the_members_of_the_wire() -> None:
    key = {
        "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
        "x25519_public_key": KEY.to_json()["x25519_public_key"],
        "mlkem768_public_key": KEY.to_json()["mlkem768_public_key"],
    }
    profile = "noise_hybrid_ik_v1"
    assert {name: body.to_json() for name, body in BODIES.items()} == {
        "register request": {"security_profile": profile, "executor_public_key": key},
        "register answer": {
            "environment_id": "place",
            "url": URL,
            "security_profile": profile,
            "executor_registration_id": "registration",
        },
        "connect request": {"harness_public_key": key},
        "connect answer": {
            "environment_id": "place",
            "url": URL,
            "security_profile": profile,
            "executor_registration_id": "registration",
            "executor_public_key": key,
            "harness_key_authorization": "authorization",
        },
        "validate request": {
            "executor_registration_id": "registration",
            "harness_public_key": key,
            "harness_key_authorization": "authorization",
        },
        "pool connect request": {"harness_public_key": key, "labels": {"gpu": None, "zone": "eu"}},
        "status request": {
            "executor_registration_id": "registration",
            "sessions": 3,
            "opened": 7,
            "draining": True,
        },
    }


def test_words_are_those_of_the_wire() -> None:
    assert contract.REGISTRATION_CONFLICT == "registration_conflict"
    assert contract.AUTHENTICATION_UNAVAILABLE == "authentication_service_unavailable"
    assert contract.ENVIRONMENT_OFFLINE == "environment_offline"
    assert contract.STREAM_ID_HEADER == "x-codex-noise-stream-id"
    assert contract.REJECTION_REASON_HEADER == "x-codex-rendezvous-rejection-reason"


def test_the_words_of_pools_are_our_own() -> None:
    assert contract.POOL_FULL == "pool_full"
    assert contract.STALE_REGISTRATION == "stale_registration"
    assert contract.pool_path("gpu") == "/cloud/pool/gpu/connect"


def test_only_a_member_of_a_pool_sends_the_member_pool() -> None:
    entry = PoolEntry({"gpu": "", "zone": "eu"}, 8, "0.2.0")
    body = RegisterRequest(KEY, entry).to_json()

    assert body == RegisterRequest(KEY).to_json() | {
        "pool": {"labels": {"gpu": "", "zone": "eu"}, "capacity": 8, "version": "0.2.0"}
    }
    assert RegisterRequest.parse(json.dumps(body).encode()) == RegisterRequest(KEY, entry)


@pytest.mark.parametrize(
    "pool",
    [
        None,
        [],
        {},
        {"labels": {}, "capacity": 1},
        {"labels": {}, "capacity": 1, "version": "", "more": 1},
        {"labels": {"gpu": None}, "capacity": 1, "version": ""},
        {"labels": {"gpu": 1}, "capacity": 1, "version": ""},
        {"labels": {"g p u": ""}, "capacity": 1, "version": ""},
        {"labels": {"": ""}, "capacity": 1, "version": ""},
        {"labels": {"gpu": "x" * 64}, "capacity": 1, "version": ""},
        {"labels": {f"l{n}": "" for n in range(33)}, "capacity": 1, "version": ""},
        {"labels": {}, "capacity": 0, "version": ""},
        {"labels": {}, "capacity": True, "version": ""},
        {"labels": {}, "capacity": 1.5, "version": ""},
        {"labels": {}, "capacity": 1_000_001, "version": ""},
        {"labels": {}, "capacity": 1, "version": "a\nb"},
        {"labels": {}, "capacity": 1, "version": "v" * 65},
    ],
)
def test_a_description_of_a_member_that_is_invalid_is_refused(pool: object) -> None:
    with pytest.raises(ContractError, match="`pool"):
        RegisterRequest.parse(body_of("register request", pool=pool))


@pytest.mark.parametrize(
    ("name", "member", "value"),
    [
        ("pool connect request", "labels", ["gpu"]),
        ("pool connect request", "labels", {"gpu": 1}),
        ("pool connect request", "labels", {"gpu=": "1"}),
        ("status request", "sessions", -1),
        ("status request", "sessions", False),
        ("status request", "sessions", 10**10),
        ("status request", "opened", "3"),
        ("status request", "draining", 1),
    ],
)
def test_an_invalid_member_of_a_pools_request_is_named(name: str, member: str, value: object) -> None:
    assert f"`{member}`" in tried(name, **{member: value})[1]


@pytest.mark.parametrize("action", ["register", "connect", "validate", "status"])
def test_an_action_has_its_path(action: str) -> None:
    assert path("my_place-1", action) == f"/cloud/environment/my_place-1/{action}"


@pytest.mark.parametrize("name", BODIES)
def test_a_body_comes_back_as_it_was(name: str) -> None:
    assert PARSERS[name](body_of(name)) == BODIES[name]


def test_the_largest_request_fits_the_limit() -> None:
    body = ValidateRequest("r" * 256, KEY, "a" * 4096).to_json()
    assert len(json.dumps(body)) <= contract.MAX_BODY_BYTES == 16_384


# -- what is refused


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_a_missing_member_is_named(name: str, member: str) -> None:
    with pytest.raises(ContractError, match=member):
        PARSERS[name](without(name, member))


@pytest.mark.parametrize(("name", "member"), MEMBERS)
@pytest.mark.parametrize("value", [None, 1, True, "", [], {}, ["text"]], ids=repr)
def test_a_member_of_another_kind_is_named(name: str, member: str, value: object) -> None:
    if type(value) is type(BODIES[name].to_json()[member]) and name in OF_POOLS:
        return  # valid there; a test of its own has the invalid ones
    with pytest.raises(ContractError, match=member):
        PARSERS[name](body_of(name, **{member: value}))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_has_no_other_members_and_the_odd_one_is_named(name: str) -> None:
    with pytest.raises(ContractError, match=r"environment_name"):
        PARSERS[name](body_of(name, environment_name="x"))


@pytest.mark.parametrize("name", ANSWERS)
def test_members_of_an_answer_that_we_do_not_know_are_ignored(name: str) -> None:
    assert PARSERS[name](body_of(name, expires_in=3600, region={"x": [1]})) == BODIES[name]


@pytest.mark.parametrize("name", [name for name, member in MEMBERS if member == "security_profile"])
@pytest.mark.parametrize(
    "profile", ["noise_hybrid_ik_v2", "NOISE_HYBRID_IK_V1", "noise_hybrid_ik_v1 ", "direct"]
)
def test_another_security_profile_is_refused(name: str, profile: str) -> None:
    with pytest.raises(ContractError, match="security_profile"):
        PARSERS[name](body_of(name, security_profile=profile))


@pytest.mark.parametrize(
    ("name", "member"), [(name, member) for name, member in MEMBERS if member.endswith("public_key")]
)
def test_a_key_with_a_fault_is_named_down_to_its_member(name: str, member: str) -> None:
    key = {**KEY.to_json(), "x25519_public_key": "short"}
    with pytest.raises(ContractError, match=f"{member}.x25519_public_key"):
        PARSERS[name](body_of(name, **{member: key}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nothing",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"1" * 10_000,
        b'{"harness_public_key": \xff}',
    ],
    ids=lambda body: repr(body[:20]),
)
@pytest.mark.parametrize("parse", [*PARSERS.values(), parse_validity])
def test_what_is_no_json_object_is_refused(parse: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(ContractError):
        parse(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_our_words(body: bytes) -> None:
    for parse in (*PARSERS.values(), parse_validity):
        with pytest.raises(ContractError):
            parse(body)
    assert error_of(body) == ("", "")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(MEMBERS), json_values)
def test_any_value_of_a_member_is_taken_as_it_is_or_refused(which: tuple[str, str], value: object) -> None:
    name, member = which
    parsed, refusal = tried(name, **{member: value})
    assert parsed.to_json()[member] == value if parsed else member in refusal


# -- texts


@pytest.mark.statement("R7")
@pytest.mark.parametrize("name", ["connect answer", "validate request"])
def test_an_authorization_has_4096_bytes_at_most_as_the_executor_wants_it(name: str) -> None:
    member = "harness_key_authorization"
    for text in ("a" * 4096, "é" * 2048):
        assert PARSERS[name](body_of(name, **{member: text})).to_json()[member] == text
    for text in ("a" * 4097, "é" * 2049):
        with pytest.raises(ContractError, match=f"{member}.*4096"):
            PARSERS[name](body_of(name, **{member: text}))


@pytest.mark.parametrize("name", ["register answer", "connect answer", "validate request"])
def test_a_registration_id_has_256_bytes_at_most(name: str) -> None:
    member = "executor_registration_id"
    for text in ("r" * 256, "é" * 128):
        assert PARSERS[name](body_of(name, **{member: text})).to_json()[member] == text
    for text in ("r" * 257, "é" * 129):
        with pytest.raises(ContractError, match=f"{member}.*256"):
            PARSERS[name](body_of(name, **{member: text}))


@pytest.mark.parametrize(
    ("name", "member"), [pair for pair in MEMBERS if pair[1].endswith(("_id", "authorization"))]
)
def test_a_text_that_utf8_cannot_hold_is_refused(name: str, member: str) -> None:
    """JSON may have half a surrogate pair; what is hashed or sent is UTF-8."""
    with pytest.raises(ContractError, match=member):
        PARSERS[name](body_of(name, **{member: "\ud800"}))


GOOD_URLS = [
    "ws://127.0.0.1:1/x",
    "ws://[::1]:8080/x?y=z",
    "wss://relay.example",
    "WSS://relay.example/a?ticket=a%20b",
]
BAD_URLS = [
    "http://relay.example/x",
    "https://relay.example/x",
    "relay.example",
    "//relay.example/x",
    "ws:",
    "ws://",
    "ws:///x",
    "ws://:80/x",
    "ws://host:99999/x",
    "ws://host:port/x",
    "ws://host:0/x",
    "ws://[::1/x",
    "ws://host/a b",
    "ws://host/a\nb",
    "ws://host/\x00",
    " ws://host/x",
    "ws://hóst/x",
    "file:///etc/passwd",
    "javascript:alert(1)",
]


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("url", GOOD_URLS)
def test_the_address_of_a_web_socket_is_taken(name: str, url: str) -> None:
    assert PARSERS[name](body_of(name, url=url)).to_json()["url"] == url


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("url", BAD_URLS)
def test_any_other_address_is_refused(name: str, url: str) -> None:
    with pytest.raises(ContractError, match="`url`"):
        PARSERS[name](body_of(name, url=url))


# -- no secret in a refusal


SECRET = "s3cret"


@pytest.mark.parametrize(("name", "member"), MEMBERS)
def test_a_refusal_does_not_repeat_what_stood_in_the_member(name: str, member: str) -> None:
    values = (f"http://host/?ticket={SECRET}", [SECRET], {"suite": SECRET}, SECRET * 1000)
    for value in values:
        parsed, refusal = tried(name, **{member: value})
        assert parsed is not None or SECRET not in refusal


def test_a_refusal_stays_short() -> None:
    for refused in (
        lambda: ConnectRequest.parse(body_of("connect request", **{"x" * 9000: 1})),
        lambda: check_environment_id("x" * 9000),
    ):
        with pytest.raises(ContractError) as error:
            refused()
        assert len(str(error.value)) < 300


# -- ids of environments


@pytest.mark.parametrize("text", ["a", "0", "-", "_", "My_place-01", "x" * 256])
def test_letters_digits_dashes_and_underscores_are_an_id(text: str) -> None:
    assert check_environment_id(text) == text


@pytest.mark.statement("R1")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 257,
        "a/b",
        "..",
        ".",
        "a b",
        " a",
        "a ",
        "a\n",
        "\n",
        "a%2fb",
        "é",
        "a?b",
        "a#b",
        "a\0",
        "\u0663",
    ],
    ids=ascii,
)
def test_any_other_id_is_refused_with_what_it_may_be(text: str) -> None:
    with pytest.raises(ContractError, match=r"environment_id.*256 letters, digits, - or _"):
        check_environment_id(text)


# -- the other answers


def test_a_validity_is_true_or_false() -> None:
    assert parse_validity(b'{"valid": true}') is True
    assert parse_validity(b'{"valid": false, "more": 1}') is False


@pytest.mark.parametrize("body", [b"{}", b'{"valid": 1}', b'{"valid": "true"}', b'{"valid": null}', b"true"])
def test_nothing_else_makes_a_harness_valid(body: bytes) -> None:
    with pytest.raises(ContractError):
        parse_validity(body)


def test_a_refusal_is_read_as_it_was_written() -> None:
    body = json.dumps(error_body("registration_conflict", "Another executor is there.")).encode()
    assert json.loads(body) == {
        "error": {"code": "registration_conflict", "message": "Another executor is there."}
    }
    assert error_of(body) == ("registration_conflict", "Another executor is there.")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", ("", "")),
        (b"<html>502 Bad Gateway</html>", ("", "")),
        (b"[]", ("", "")),
        (b"{}", ("", "")),
        (b'{"error": "text"}', ("", "")),
        (b'{"error": null}', ("", "")),
        (b'{"error": {"code": 1, "message": []}}', ("", "")),
        (b'{"error": {"code": "c"}}', ("c", "")),
        (b'{"error": {"message": "m"}}', ("", "m")),
    ],
)
def test_a_refusal_that_says_nothing_is_read_as_nothing(body: bytes, found: tuple[str, str]) -> None:
    assert error_of(body) == found
