"""Under each policy of the vectors, a watch shows the changes that a read shows, also of a hostile tree."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Set
from pathlib import Path

import pytest

from tests.sandbox.file_views import POLICIES, Place, View, Watch, files_below, is_folder, path_of
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, at, glob, restricted
from tests.sandbox.test_search_attacks import ODD_NAMES, permissions
from tests.support.wire import PATIENCE, ReplyError, at_most

QUIET_MS = 500
"""A change is reported some 50 ms after it happened."""


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
    folders = [path for path in (tree.base, *tree.base.rglob("*")) if is_folder(path)]
    created = {folder / "created" for folder in folders}
    for path in created:
        path.write_text("created\n")
    tree.user.give(tree.base)
    return modified | created


def _ended(watches: list[Watch], wanted: Set[Path] = frozenset()) -> set[Path]:
    """The paths in all changes, once there are no more and the wanted ones came; the watches are ended."""
    deadline = time.monotonic() + PATIENCE
    while sum(len(watch.more(QUIET_MS)) for watch in watches) or (
        wanted - _shown(watches) and time.monotonic() < deadline
    ):
        pass
    for watch in watches:
        watch.end()
    return _shown(watches)


def _shown(watches: list[Watch]) -> set[Path]:
    return {path for watch in watches for path in watch.paths()}


@pytest.mark.parametrize("policy", POLICIES)
def test_watch_shows_exactly_the_changes_of_files_that_a_read_shows(host: Host, policy: str) -> None:
    place = Place(host, policy)
    watches = _watches(place)
    changed = _change_everything(place.tree)
    readable = {path for path in changed if place.confined.reads(path)}
    assert _ended(watches, readable) & changed == readable


def test_watch_without_a_sandbox_shows_all_of_these_changes(host: Host) -> None:
    place = Place(host, "deny")
    watch = place.plain.watch(place.tree.base)
    changed = _change_everything(place.tree)
    assert _ended([watch], changed) >= changed


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


# ------------------------------------------------------------------ hostile trees


@pytest.fixture
def view(host: Host, tree: Tree) -> View:
    """A view that shows neither `out` nor `.env`."""
    return View(host, tree.context(permissions(tree)))


@pytest.fixture
def plain(host: Host) -> View:
    return View(host, None)


def test_link_leads_no_watch_to_a_denied_folder(view: View, plain: View, tree: Tree) -> None:
    tree.add({"ws/sub/x": "x"}, {"ws/link": str(tree.out), "ws/sub/link": "../../out"})
    for denied in (tree.ws / "link", tree.ws / ".." / "out"):
        with pytest.raises(ReplyError):
            view.watch(denied)
    followed = plain.watch(tree.ws / "link")
    watch = view.watch(tree.ws)

    tree.add({"out/new": "x", "ws/end": "x"})
    followed.until(tree.ws / "link" / "new")
    watch.until(tree.ws / "end")
    watch.end()
    followed.end()
    assert not {path for path in watch.paths() if path.name == "new"}


def test_renames_from_and_to_denied_names_show_only_the_other_name(view: View, tree: Tree) -> None:
    tree.add({"ws/seen": "x"})
    watch = view.watch(tree.ws)
    (tree.ws / ".env").rename(tree.ws / "appeared")
    (tree.ws / "seen").rename(tree.ws / "sub" / ".env")
    tree.add({"ws/end": "x"})
    watch.until(tree.ws / "end")
    watch.end()
    kinds = {path_of(change["path"]).name: change["kind"] for change in watch.changes}
    assert (kinds["appeared"], kinds["seen"]) == ("created", "removed")
    assert ".env" not in {path.name for path in watch.paths()}


def test_watch_reports_odd_names_as_they_are(view: View, tree: Tree) -> None:
    watch = view.watch(tree.ws)
    paths = [Path(os.fsdecode(os.path.join(os.fsencode(tree.ws), name))) for name in ODD_NAMES]
    for path in paths:
        path.write_bytes(b"odd word\n")
    for path in paths:
        watch.until(path)
    watch.end()


def test_watch_is_not_held_up_by_a_fifo(view: View, tree: Tree) -> None:
    os.mkfifo(tree.ws / "fifo")
    tree.user.give(tree.base)
    with at_most(10):
        watch = view.watch(tree.ws)
        os.mkfifo(tree.ws / ".gitignore")
        tree.add({"ws/later.txt": "x"})
        watch.until(tree.ws / "later.txt")
        watch.end()


def test_watch_is_not_held_up_by_slow_patterns(view: View, tree: Tree) -> None:
    tree.add({"ws/.gitignore": "*a*a*a*a*a*a*a*a*b\n", "ws/" + "a" * 200: "x"})
    with at_most(10):
        watch = view.watch(tree.ws)
        tree.add({"ws/1" + "a" * 200: "x", "ws/later.txt": "x"})
        watch.until(tree.ws / "later.txt")
        watch.end()
