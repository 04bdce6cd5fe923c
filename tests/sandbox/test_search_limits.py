"""Searches that ask for much: long lines, expensive patterns, large numbers, many cursors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from benchmarks.process_tree import memory
from tests.sandbox.file_views import View
from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import wait_for
from tests.sandbox.profiles import WORKSPACE
from tests.support.servers import searching
from tests.support.wire import Json, ReplyError, decode, path_uri


@pytest.fixture
def view(host: Host, tree: Tree) -> View:
    tree.add({"ws/plain.txt": "a plain word\n"})
    return View(host, tree.context(WORKSPACE))


@pytest.fixture
def plain(host: Host) -> View:
    return View(host, None)


LINE = 10_000_000


def test_line_of_ten_megabytes_is_cut_and_said_to_be(view: View, tree: Tree) -> None:
    (tree.ws / "long.txt").write_bytes(b"x" * LINE + b" needle " + b"y" * LINE + b"\nshort needle\n")
    tree.user.give(tree.base)
    page = view.call("search", tree.ws / "long.txt", pattern="needle")
    long, short = page["files"][0]["matches"]
    assert long["cut"] is True
    assert len(long.get("text") or decode(long["textBase64"])) < LINE
    assert (short["line"], short["text"]) == (2, "short needle")
    assert "cut" not in short or short["cut"] is False


def test_thousands_of_long_lines_do_not_make_the_daemon_grow(host: Host, plain: View, tree: Tree) -> None:
    (tree.ws / "long.txt").write_bytes((b"needle " * 150_000 + b"\n") * 100)
    tree.user.give(tree.base)
    plain.call("search", tree.ws / "a.txt", pattern="a")
    before = memory(host.server.pid).anonymous
    page = plain.call("search", tree.ws / "long.txt", pattern="needle")
    assert page["truncated"] == "bytes"
    for _ in range(3):
        page = plain.call("search", tree.ws / "long.txt", pattern="needle", cursor=page["cursor"])
    assert memory(host.server.pid).anonymous - before < 64


CATASTROPHES = (
    r"(a+)+$",
    r"(a|aa)+$",
    r"(?:a?){200}a{200}",
    r"(x+x+)+y",
    r"((((((a{1,100}){1,100}){1,100}){1,100}){1,100}){1,100})",
    r"\pL{1000}",
)


@pytest.mark.parametrize("pattern", CATASTROPHES)
def test_expensive_regular_expression_ends_in_time(view: View, tree: Tree, pattern: str) -> None:
    (tree.ws / "victim.txt").write_bytes((b"a" * 5000 + b"!\n" + b"x" * 5000 + b"\n") * 50)
    tree.user.give(tree.base)
    begun = time.monotonic()
    with contextlib.suppress(ReplyError):  # too large: refused
        view.call("search", tree.ws, pattern=pattern, regex=True, timeMs=2000)
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize(
    "pattern", ["{" * 200 + "a" + "}" * 200, "{a,b}" * 40, "*" * 500 + "x", "**/" * 300 + "x", "[" * 1000]
)
def test_expensive_glob_ends_in_time(view: View, tree: Tree, pattern: str) -> None:
    tree.add({f"ws/{'deep/' * 20}{'a' * 200}{number}": "x" for number in range(50)})
    begun = time.monotonic()
    with contextlib.suppress(ReplyError):
        view.call("glob", tree.ws, globs=[pattern], timeMs=2000)
    with contextlib.suppress(ReplyError):
        view.call("search", tree.ws, pattern="plain", globs=[pattern], timeMs=2000)
    assert time.monotonic() - begun < 8
    assert tree.ws / "plain.txt" in view.globbed(tree.ws)


def test_number_far_above_a_limit_is_refused(view: View, tree: Tree) -> None:
    limits: dict[str, Callable[[], Json]] = {
        "maxMatches": lambda: view.call("search", tree.ws, pattern="x", maxMatches=10**9),
        "maxBytes": lambda: view.call("search", tree.ws, pattern="x", maxBytes=10**12),
        "timeMs": lambda: view.call("search", tree.ws, pattern="x", timeMs=10**9),
        "contextLines": lambda: view.call("search", tree.ws, pattern="x", contextLines=10**6),
        "maxFiles": lambda: view.call("glob", tree.ws, globs=["*"], maxFiles=10**9),
    }
    for name, call in limits.items():
        with pytest.raises(ReplyError, match=name):
            call()


def test_cursor_of_another_session_or_a_guessed_one_shows_nothing(host: Host, view: View, tree: Tree) -> None:
    tree.add({f"ws/many/{number}.txt": "a plain word\n" for number in range(20)})
    page = View(host, None).call("search", tree.ws, pattern="plain word", maxMatches=2)
    assert page["truncated"] == "matches"
    params = {"path": path_uri(tree.ws), "pattern": "plain word", "cursor": page["cursor"]}
    with host.another_client() as other:
        other.refused("fs/search", params)
    with pytest.raises(ReplyError):  # the cursor of a search without a sandbox, in one with a sandbox
        view.call("search", tree.ws, pattern="plain word", cursor=page["cursor"])
    with pytest.raises(ReplyError):
        view.call("search", tree.ws, pattern="other", cursor=page["cursor"])


def test_searches_that_are_begun_and_left_do_not_add_up(host: Host, view: View, tree: Tree) -> None:
    """At most four are open in a session; their programs end with the others."""
    tree.add({f"ws/many/{number}.txt": "a plain word\n" * 2000 for number in range(20)})
    for _ in range(12):
        assert view.call("search", tree.ws, pattern="plain word", maxMatches=1)["cursor"] is not None
    wait_for(lambda: len(searching(host.server.pid)) <= 4, "the end of earlier searches")
