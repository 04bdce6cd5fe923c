"""The names of pools and of their members, and labels."""

from __future__ import annotations

import pytest

from execprotocol.relay.pools import (
    MAX_NAME,
    check_labels,
    check_pool_name,
    member_id,
    parse_labels,
    pool_of,
)

FINGERPRINT = "0123456789abcdef" + "0" * 48


def test_a_members_id_names_its_pool_and_its_key() -> None:
    assert member_id("gpu", FINGERPRINT) == "gpu--0123456789abcdef"
    assert pool_of("gpu--0123456789abcdef") == "gpu"
    assert pool_of("a--b---0123456789abcdef") == "a--b-"


@pytest.mark.parametrize(
    "environment_id",
    ["gpu", "--0123456789abcdef", "gpu-0123456789abcdef", "gpu--0123456789abcde", "gpu--0123456789ABCDEF"],
)
def test_other_ids_are_no_members(environment_id: str) -> None:
    assert pool_of(environment_id) is None


def test_the_longest_pool_has_members_with_the_longest_environment_id() -> None:
    assert len(member_id(check_pool_name("p" * MAX_NAME), FINGERPRINT)) == 256


@pytest.mark.parametrize("name", ["", "a/b", "a b", "\u00e9", "p" * (MAX_NAME + 1), "a--0123456789abcdef"])
def test_an_invalid_name_of_a_pool_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        check_pool_name(name)


def test_labels_have_values_or_are_only_named() -> None:
    assert parse_labels(["gpu", "zone=eu", "empty=", "gpu"]) == {"gpu": None, "zone": "eu", "empty": ""}


@pytest.mark.parametrize("text", ["", "=x", "a b", "a=b=c", "a=" + "x" * 64, "n" * 64])
def test_an_invalid_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        parse_labels([text])


@pytest.mark.parametrize("texts", [("zone=eu", "zone=us"), ("gpu", "gpu=a100")])
def test_a_label_with_two_values_is_refused(texts: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="one value for each name"):
        parse_labels(texts)


def test_too_many_labels_are_refused() -> None:
    check_labels({f"l{number}": None for number in range(32)})
    with pytest.raises(ValueError, match="at most 32"):
        check_labels({f"l{number}": None for number in range(33)})
