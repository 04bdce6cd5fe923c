"""Under each policy of the vectors, searches, globs and watches show what a read shows, and no more."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.sandbox.file_views import View, Watch, files_below
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, at, glob, restricted
from tests.support.wire import ReplyError
from tests.vectors.policies import PERMISSIONS, prepare, sandbox

POLICIES = sorted(PERMISSIONS)

QUIET_MS = 500
"""A change is reported some 50 ms after it happened."""


class Place:
    """A tree, its folders, and views of it in the sandbox of a policy and without one."""

    def __init__(self, host: Host, policy: str) -> None:
        self.tree = prepare(host, policy)
        self.confined = View(host, sandbox(policy, self.tree))
        self.plain = View(host, None)
        self.folders = [self.tree.base, *(path for path in self.tree.base.rglob("*") if _is_folder(path))]
        """Each is a root: a policy may hide a folder and show what is in it."""

    @property
    def readable(self) -> set[Path]:
        """The files that `fs/readFile` reads in the sandbox."""
        return {path for path in files_below(self.tree.base) if self.confined.reads(path)}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


@pytest.mark.parametrize("policy", POLICIES)
def test_search_shows_exactly_the_files_that_a_read_shows(anyones_host: Host, policy: str) -> None:
    place = Place(anyones_host, policy)
    assert place.confined.searched(*place.folders) == place.readable
    assert place.plain.searched(place.tree.base) == files_below(place.tree.base)


@pytest.mark.parametrize("policy", POLICIES)
def test_search_of_one_file_shows_it_only_if_a_read_does(host: Host, policy: str) -> None:
    place = Place(host, policy)
    files = sorted(files_below(place.tree.base))
    assert {path for path in files if place.confined.searched(path)} == place.readable


@pytest.mark.parametrize("policy", POLICIES)
def test_glob_shows_exactly_the_names_that_a_listing_shows(anyones_host: Host, policy: str) -> None:
    place = Place(anyones_host, policy)
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


# ------------------------------------------------------------------ watches


def _watches(place: Place) -> list[Watch]:
    """As few watches in the sandbox as needed to reach every folder that can be watched."""
    watches, reached = [], set()
    for folder in sorted(place.folders):
        if folder.parent in reached and folder in place.confined.lists(folder.parent):
            reached.add(folder)
            continue
        with contextlib.suppress(ReplyError):
            watches.append(place.confined.watch(folder))
            reached.add(folder)
    return watches


def _change_everything(tree: Tree) -> set[Path]:
    """Append to every file, make a file in every folder; the paths of all of them."""
    modified = files_below(tree.base)
    for path in modified:
        with path.open("ab") as file:
            file.write(b"more\n")
    folders = [path for path in (tree.base, *tree.base.rglob("*")) if _is_folder(path)]
    created = {folder / "created" for folder in folders}
    for path in created:
        path.write_text("created\n")
    tree.user.give(tree.base)
    return modified | created


def _ended(watches: list[Watch]) -> set[Path]:
    """The paths in all changes, once there are no more; the watches are ended."""
    for watch in watches:
        while watch.more(QUIET_MS):
            pass
        watch.end()
    return {path for watch in watches for path in watch.paths()}


@pytest.mark.parametrize("policy", POLICIES)
def test_watch_shows_exactly_the_changes_of_files_that_a_read_shows(host: Host, policy: str) -> None:
    place = Place(host, policy)
    watches = _watches(place)
    changed = _change_everything(place.tree)
    assert _ended(watches) & changed == {path for path in changed if place.confined.reads(path)}


def test_watch_without_a_sandbox_shows_all_of_these_changes(host: Host) -> None:
    place = Place(host, "deny")
    watch = place.plain.watch(place.tree.base)
    changed = _change_everything(place.tree)
    assert _ended([watch]) >= changed


def test_watch_does_not_show_what_comes_later_to_a_denied_place(host: Host) -> None:
    tree = host.tree()
    tree.add({"ws/closed/old": "old\n"})
    denied = restricted(READ_ROOT, WRITE_WORKSPACE, at(tree.ws / "closed", "deny"), glob("**/private/**"))
    watch = View(host, tree.context(denied)).watch(tree.ws)

    shutil.rmtree(tree.ws / "closed")  # a mount that covered it goes with it
    tree.add({"ws/closed/new": "new\n", "ws/sub/private/key": "key\n", "ws/seen": "seen\n"})
    watch.until(tree.ws / "seen")
    shown = _ended([watch])

    assert not {path for path in shown if "closed" in path.parts and path.name != "closed"}
    assert not {path for path in shown if "private" in path.parts and path.name != "private"}
