from __future__ import annotations

import json

import pytest

from execclient.govern.approvals import ApprovalCache

ARGV = ("bash", "-lc", "make")
KEY = ApprovalCache.key_of(ARGV, "/w", False, False)


def test_a_key_is_the_documented_tuple_as_json() -> None:
    assert json.loads(KEY) == [["bash", "-lc", "make"], "/w", False, "use_default", None]


@pytest.mark.parametrize(
    "other",
    [
        ApprovalCache.key_of(("bash", "-c", "make"), "/w", False, False),
        ApprovalCache.key_of(("bash", "-lc make"), "/w", False, False),
        ApprovalCache.key_of(ARGV, "/v", False, False),
        ApprovalCache.key_of(ARGV, "/w", True, False),
        ApprovalCache.key_of(ARGV, "/w", False, True),
        ApprovalCache.key_of(ARGV, "/w", False, False, {"network": True}),
        ApprovalCache.key_of_file("/w"),
    ],
)
def test_whatever_differs_is_not_covered(other: str) -> None:
    cache = ApprovalCache()
    cache.remember([KEY])

    assert cache.covers([KEY])
    assert not cache.covers([other])


def test_an_escalation_that_was_granted_does_not_cover_the_plain_command() -> None:
    cache = ApprovalCache()
    cache.remember([ApprovalCache.key_of(ARGV, "/w", False, True)])

    assert not cache.covers([KEY])


def test_the_order_of_additional_permissions_makes_no_difference() -> None:
    one = ApprovalCache.key_of(ARGV, "/w", False, False, {"a": 1, "b": 2})
    other = ApprovalCache.key_of(list(ARGV), "/w", False, False, {"b": 2, "a": 1})

    assert one == other


def test_all_files_of_a_patch_must_be_covered() -> None:
    a, b = ApprovalCache.key_of_file("/w/a"), ApprovalCache.key_of_file("/w/b")
    cache = ApprovalCache()
    cache.remember([a])

    assert not cache.covers([a, b])
    cache.remember([b])
    assert cache.covers([a, b])


def test_no_keys_are_not_covered_by_anything() -> None:
    cache = ApprovalCache()
    cache.remember([KEY])

    assert not cache.covers([])


def test_a_grant_for_any_folder_covers_others_and_nothing_else() -> None:
    cache = ApprovalCache()
    cache.remember([KEY], any_cwd=True)

    assert cache.covers([ApprovalCache.key_of(ARGV, "/elsewhere", False, False)])
    assert not cache.covers([ApprovalCache.key_of(ARGV, "/w", True, False)])
    assert not cache.covers([ApprovalCache.key_of(ARGV, "/w", False, True)])


def test_a_grant_for_any_folder_means_nothing_to_files() -> None:
    cache = ApprovalCache()
    cache.remember([ApprovalCache.key_of_file("/w/a")], any_cwd=True)

    assert cache.covers([ApprovalCache.key_of_file("/w/a")])
    assert not cache.covers([ApprovalCache.key_of_file("/w/b")])


def test_names_that_are_no_text_have_keys() -> None:
    cache = ApprovalCache()
    key = ApprovalCache.key_of(("ls", "\udcff"), "/w", False, False)
    cache.remember([key], any_cwd=True)

    assert cache.covers([key])


def test_a_grant_holds_where_it_was_given_and_in_any_folder_of_that() -> None:
    cache = ApprovalCache()
    inside, full = ({"sandbox": {"type": kind}} for kind in ("workspace-write", "danger-full-access"))

    def key(cwd: str, scope: dict[str, dict[str, str]] | None) -> str:
        return ApprovalCache.key_of(ARGV, cwd, False, False, scope=scope)

    cache.remember([key("/w", inside)], any_cwd=True)
    assert cache.covers([key("/w", inside)])
    assert cache.covers([key("/elsewhere", inside)])
    assert not cache.covers([key("/w", full)])
    assert not cache.covers([key("/w", None)])


def test_keys_of_files_and_of_input_are_bound_to_where_they_were_given_too() -> None:
    scopes = ({"escalated": False}, {"escalated": True})
    files = {ApprovalCache.key_of_file("/w/a", scope=scope) for scope in scopes}
    inputs = {ApprovalCache.key_of_input("p1", scope=scope) for scope in scopes}

    assert len(files | inputs | {ApprovalCache.key_of_file("/w/a")}) == 5
