"""Public keys on the wire, their fingerprints, and key pairs made of a seed."""

from __future__ import annotations

import base64
from dataclasses import FrozenInstanceError
from hashlib import sha256
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import pytest

from execprotocol.relay.keys import SUITE, InvalidKeyError, KeyPair, PublicKeys, encapsulate

SEED = bytes(range(96))
PAIR = KeyPair.from_seed(SEED)
PUBLIC = PAIR.public
JSON = PUBLIC.to_json()
FIELD = "executor_public_key"


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def changed(**members: Any) -> dict[str, Any]:
    return {**JSON, **members}


# -- on the wire


def test_public_keys_have_the_three_members_of_the_wire() -> None:
    assert {
        "suite": "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256",
        "x25519_public_key": text_of(PUBLIC.x25519),
        "mlkem768_public_key": text_of(PUBLIC.mlkem768),
    } == JSON
    assert (len(PUBLIC.x25519), len(PUBLIC.mlkem768)) == (32, 1184)


def test_public_keys_come_back_from_json_as_they_were() -> None:
    assert PublicKeys.from_json(JSON, FIELD) == PUBLIC


@pytest.mark.parametrize("value", [None, "text", 1, [], [JSON], True])
def test_what_is_no_object_is_no_key(value: object) -> None:
    with pytest.raises(InvalidKeyError, match=FIELD):
        PublicKeys.from_json(value, FIELD)


@pytest.mark.parametrize("name", JSON)
def test_a_missing_member_is_named(name: str) -> None:
    with pytest.raises(InvalidKeyError, match=f"{FIELD}.*{name}"):
        PublicKeys.from_json({key: value for key, value in JSON.items() if key != name}, FIELD)


def test_a_member_too_many_is_named() -> None:
    with pytest.raises(InvalidKeyError, match=f"{FIELD}.*comment"):
        PublicKeys.from_json(changed(comment=""), FIELD)


@pytest.mark.parametrize(
    "suite",
    ["", "Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256", SUITE.lower(), SUITE + " ", None, 1, [SUITE]],
)
def test_another_suite_is_refused(suite: object) -> None:
    with pytest.raises(InvalidKeyError, match=f"{FIELD}.suite"):
        PublicKeys.from_json(changed(suite=suite), FIELD)


def not_base64(right: str) -> dict[str, object]:
    """What must not pass for a key's text, though some decoders take it."""
    raw = base64.b64decode(right)
    return {
        "nothing": "",
        "null": None,
        "a number": 1,
        "a list": [right],
        "no padding": right.rstrip("="),
        "a byte short": text_of(raw[:-1]),
        "a byte long": text_of(raw + b"\0"),
        "a newline inside": right[:8] + "\n" + right[8:],
        "a newline behind": right + "\n",
        "a blank before": " " + right,
        "padding twice": right + "====",
        "the alphabet of URLs": base64.urlsafe_b64encode(b"\xff" * len(raw)).decode(),
        "a letter that is none": "é" + right[1:],
        "hexadecimal": raw.hex(),
        "a NUL": right + "\0",
    }


@pytest.mark.parametrize("name", ["x25519_public_key", "mlkem768_public_key"])
@pytest.mark.parametrize("case", not_base64(JSON["x25519_public_key"]))
def test_a_key_that_is_not_its_bytes_in_base64_is_named(name: str, case: str) -> None:
    with pytest.raises(InvalidKeyError, match=f"{FIELD}.{name}"):
        PublicKeys.from_json(changed(**{name: not_base64(JSON[name])[case]}), FIELD)


def test_a_text_whose_padding_hides_bits_is_refused() -> None:
    """The same 32 bytes in another text would be another fingerprint's disguise."""
    right, digits = JSON["x25519_public_key"], f"{ascii_uppercase}{ascii_lowercase}0123456789+/"
    other = f"{right[:-2]}{digits[digits.index(right[-2]) ^ 1]}="
    assert base64.b64decode(other) == PUBLIC.x25519
    with pytest.raises(InvalidKeyError, match="x25519_public_key"):
        PublicKeys.from_json(changed(x25519_public_key=other), FIELD)


def test_bytes_that_are_no_ml_kem_key_are_refused() -> None:
    """A coefficient above the modulus: right in length, but nothing can be encapsulated to it."""
    with pytest.raises(InvalidKeyError, match=f"{FIELD}.mlkem768_public_key"):
        PublicKeys.from_json(changed(mlkem768_public_key=text_of(b"\xff" * 1184)), FIELD)


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    with pytest.raises(InvalidKeyError) as error:
        PublicKeys.from_json(changed(x25519_public_key="bearer-token-in-a-wrong-place"), FIELD)
    assert "bearer" not in str(error.value)


def test_a_refusal_stays_short_whatever_was_sent() -> None:
    with pytest.raises(InvalidKeyError) as error:
        PublicKeys.from_json({"x" * 10_000: 1}, FIELD)
    assert len(str(error.value)) < 400


def test_members_that_are_no_text_are_refused() -> None:
    members: dict[Any, Any] = dict(JSON)
    members[1] = 2
    with pytest.raises(InvalidKeyError, match=FIELD):
        PublicKeys.from_json(members, FIELD)


# -- fingerprints


def test_a_fingerprint_is_the_digest_of_both_keys() -> None:
    assert PUBLIC.fingerprint == sha256(PUBLIC.x25519 + PUBLIC.mlkem768).hexdigest()
    assert len(PUBLIC.fingerprint) == 64


def test_a_fingerprint_changes_with_either_key() -> None:
    other = KeyPair.generate().public
    prints = {
        PUBLIC.fingerprint,
        PublicKeys(other.x25519, PUBLIC.mlkem768).fingerprint,
        PublicKeys(PUBLIC.x25519, other.mlkem768).fingerprint,
    }
    assert len(prints) == 3


def test_public_keys_can_be_compared_and_not_changed() -> None:
    assert {PUBLIC, KeyPair.from_seed(SEED).public} == {PUBLIC}
    with pytest.raises(FrozenInstanceError):
        PUBLIC.x25519 = b""  # type: ignore[misc]


# -- pairs


def test_a_pair_is_the_same_for_the_same_seed() -> None:
    assert PAIR.seed == SEED
    assert KeyPair.from_seed(PAIR.seed).public == PUBLIC


def test_new_pairs_are_all_different() -> None:
    pairs = [KeyPair.generate() for _ in range(10)]
    assert len({pair.seed for pair in pairs}) == len({pair.public for pair in pairs}) == 10
    assert all(KeyPair.from_seed(pair.seed).public == pair.public for pair in pairs)


@pytest.mark.parametrize("size", [0, 32, 64, 95, 97])
def test_a_seed_of_another_length_is_refused_without_being_told(size: int) -> None:
    with pytest.raises(InvalidKeyError, match=f"96 bytes, not {size}"):
        KeyPair.from_seed(b"s" * size)


def test_both_sides_of_an_exchange_get_the_same_secret() -> None:
    other = KeyPair.generate()
    secret = PAIR.exchange(other.public.x25519)
    assert secret == other.exchange(PUBLIC.x25519)
    assert len(secret) == 32


@pytest.mark.parametrize("point", [b"", b"short", bytes(31), bytes(33), bytes(32), b"\x01" + bytes(31)])
def test_an_exchange_with_what_is_no_key_is_refused(point: bytes) -> None:
    with pytest.raises(ValueError):
        PAIR.exchange(point)


def test_the_owner_finds_the_secret_that_was_encapsulated() -> None:
    secret, ciphertext = encapsulate(PUBLIC.mlkem768)
    assert (len(secret), len(ciphertext)) == (32, 1088)
    assert PAIR.decapsulate(ciphertext) == secret
    assert encapsulate(PUBLIC.mlkem768) != (secret, ciphertext)


def test_another_key_pair_gets_another_secret() -> None:
    secret, ciphertext = encapsulate(PUBLIC.mlkem768)
    assert KeyPair.generate().decapsulate(ciphertext) != secret
    forged = bytes([ciphertext[0] ^ 1]) + ciphertext[1:]
    assert PAIR.decapsulate(forged) not in (secret, PAIR.decapsulate(ciphertext))


@pytest.mark.parametrize("size", [0, 1087, 1089])
def test_a_ciphertext_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        PAIR.decapsulate(bytes(size))


@pytest.mark.parametrize("key", [b"", bytes(1183), bytes(1185), b"\xff" * 1184])
def test_nothing_is_encapsulated_to_what_is_no_key(key: bytes) -> None:
    with pytest.raises(ValueError):
        encapsulate(key)


def test_a_pair_shows_no_secret_when_it_is_printed() -> None:
    shown = repr(PAIR) + str(PAIR)
    assert SEED.hex() not in shown
    assert repr(SEED) not in shown
