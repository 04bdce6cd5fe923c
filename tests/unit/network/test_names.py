"""Names, with a name server of the tests in a network namespace of its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import names_lab
from tests.support.names_lab import PRIVATE, PUBLIC

LOCAL = [["deny", "baseline_policy", "not_allowed_local"]]
ALLOWED = [["allow", "baseline_policy", "allow"]]

Results = dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return names_lab.run(tmp_path_factory.mktemp("names"))


@pytest.mark.parametrize("name", ["ok.test", PUBLIC])
def test_a_permitted_name_is_reached(results: Results, name: str) -> None:
    got = results[name]
    assert (got["status"], got["body"], got["decisions"]) == (200, PUBLIC, ALLOWED)


@pytest.mark.statement("Q2")
@pytest.mark.parametrize("name", ["private.test", "metadata.test", "mixed.test", "loop.test"])
def test_a_permitted_name_with_a_local_address_is_denied(results: Results, name: str) -> None:
    got = results[name]
    assert (got["status"], got["decisions"]) == (403, LOCAL)
    assert "Sandbox policy blocks local/private network addresses." in got["body"]


@pytest.mark.statement("Q2")
def test_a_name_with_a_denied_address_is_denied(results: Results) -> None:
    assert results["denied-address.test"]["decisions"] == [["deny", "baseline_policy", "denied"]]


@pytest.mark.statement("Q2")
def test_a_name_that_changes_its_address_is_connected_to_where_it_was_judged(results: Results) -> None:
    assert results["rebinding.test"]["body"] == PUBLIC
    assert results["questions"].count("rebinding.test") == 1


@pytest.mark.statement("Q2")
def test_the_resolver_does_not_make_another_name_of_the_one_that_was_judged(results: Results) -> None:
    assert results["wiki.corp.test"]["status"] == 200
    assert results["wiki"]["decisions"] == LOCAL
    assert results["questions"].count("wiki.corp.test") == 1


def test_an_address_that_does_not_answer_gives_way_to_the_next(results: Results) -> None:
    assert (results["two.test"]["status"], results["two.test"]["body"]) == (200, PUBLIC)


@pytest.mark.parametrize(
    ("name", "why"), [("missing.test", "Name or service not known"), ("silent.test", "1 seconds")]
)
def test_a_name_without_an_address_is_denied_with_the_reason(results: Results, name: str, why: str) -> None:
    got = results[name]
    assert (got["status"], got["decisions"]) == (403, LOCAL)
    assert f"Cannot look up {name}: " in got["body"]
    assert why in got["body"]


def test_where_local_addresses_are_permitted_names_may_have_them(results: Results) -> None:
    assert results["local private.test"]["body"] == PRIVATE
    assert results["local loop.test"]["body"] == "127.0.0.1"
    assert results["local missing.test"]["status"] == 502


@pytest.mark.statement("Q2")
def test_a_name_that_is_not_permitted_is_not_looked_up(results: Results) -> None:
    assert results["unlisted"]["decisions"] == [["deny", "baseline_policy", "not_allowed"]]
    assert results["questions about unlisted"] == []


def test_a_name_is_asked_about_first_and_its_addresses_are_judged_all_the_same(results: Results) -> None:
    assert results["asked"] == ["ok.test", "private.test", "missing.test"]
    assert results["asked ok.test"]["decisions"] == [["allow", "decider", "not_allowed"]]
    assert results["asked private.test"]["decisions"] == LOCAL
    assert results["asked missing.test"]["decisions"] == LOCAL
