"""Under each policy of the vectors, searches and globs show what a read shows, and no more."""

from __future__ import annotations

import pytest

from tests.sandbox.file_views import POLICIES, Place, files_below
from tests.sandbox.host import Host


@pytest.mark.parametrize("policy", POLICIES)
def test_search_shows_exactly_the_files_that_a_read_shows(anyones_host: Host, policy: str) -> None:
    place = Place(anyones_host, policy)
    assert place.confined.searched(*place.folders) == place.readable
    assert place.plain.searched(place.tree.base) == files_below(place.tree.base)


@pytest.mark.parametrize("policy", ["deny", "min", "readroot", "rwindeny"])
def test_search_of_one_file_shows_it_only_if_a_read_does(host: Host, policy: str) -> None:
    place = Place(host, policy)
    files = sorted(files_below(place.tree.base))
    assert {path for path in files if place.confined.searched(path)} == place.readable


@pytest.mark.parametrize("policy", POLICIES)
def test_glob_shows_exactly_the_names_that_a_listing_shows(host: Host, policy: str) -> None:
    place = Place(host, policy)
    listed = {path for folder in place.folders for path in place.confined.lists(folder)}
    names = files_below(place.tree.base)
    assert place.confined.globbed(*place.folders) == listed & names
    assert place.plain.globbed(place.tree.base) == names


def test_no_policy_lets_a_search_into_the_state_of_the_daemon(host: Host) -> None:
    private = files_below(host.base / "daemon")
    assert private
    for policy in POLICIES:
        place = Place(host, policy)
        readable = {path for path in private if place.confined.reads(path)}
        for root in (host.base / "daemon", host.base):
            assert place.confined.searched(root) & private <= readable, policy
            assert place.confined.globbed(root) & private <= readable, policy
