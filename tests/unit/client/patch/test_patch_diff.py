"""Unified diffs: git applies them, and their cost is bounded."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from execclient.patch.diff import TurnDiff, unified_diff
from execclient.patch.line_diff import changed_blocks
from execclient.patch.model import Edit, FileChange

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n"]), max_size=14)


@settings(max_examples=300, deadline=None)
@given(LINES, LINES)
def test_the_blocks_are_all_that_differs(old: list[str], new: list[str]) -> None:
    blocks = changed_blocks(old, new)

    rebuilt: list[str] = []
    at = new_at = 0
    for block in blocks:
        assert old[at : block.start] == new[new_at : block.new_start], "what lies between stays"
        assert (block.start, block.new_start) > (at, new_at) or not rebuilt, "neighbors are joined"
        rebuilt += old[at : block.start] + new[block.new_start : block.new_end]
        at, new_at = block.end, block.new_end
    assert rebuilt + old[at:] == new


def test_few_changes_in_a_large_file_are_shown_as_few() -> None:
    old = [f"line {number % 1000}\n" for number in range(50_000)]
    new = list(old)
    new[10] = "other\n"
    del new[30_000:30_005]
    new.insert(45_000, "more\n")

    blocks = changed_blocks(old, new)

    assert [(each.end - each.start, each.new_end - each.new_start) for each in blocks] == [
        (1, 1),
        (5, 0),
        (0, 1),
    ]


def test_texts_that_have_nothing_in_order_take_no_time() -> None:
    chance = random.Random(2)
    old, new = ([chance.choice("ab") for _ in range(40_000)] for _ in range(2))
    begin = time.process_time()

    changed_blocks(old, new)

    assert time.process_time() - begin < 2


def in_git(folder: Path, diff: str) -> None:
    subprocess.run(["git", "apply", "-"], cwd=folder, input=diff.encode(), check=True, timeout=10)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
def test_git_applies_a_diff_of_every_kind(tmp_path: Path) -> None:
    before = {
        "changed": b"".join(b"%d\n" % number for number in range(40)),
        "unended": b"a\nb",
        "ended": b"a\nb\n",
        "gone": b"x\n",
        "moved and changed": b"1\n2\n3\n4\n",
        "only moved": b"same\n",
        "emptied": b"x\n",
        'quoted "\\\t': b"q\n",
        "crlf": b"a\r\nb\r\n",
        "d/ü": "grün\n".encode(),
    }
    after = {
        "changed": before["changed"].replace(b"\n3\n", b"\nthree\n").replace(b"\n30\n", b"\n"),
        "unended": b"a\nB",
        "ended": b"a\nb",
        "new/deep": b"n\n",
        "target": b"1\n2\n3\nfour\n",
        "other": b"same\n",
        "emptied": b"",
        'quoted "\\\t': b"Q\n",
        "crlf": b"a\r\nB\r\n",
        "d/ü": b"blau\n",
    }
    moves = {"target": "moved and changed", "other": "only moved"}
    for name, content in before.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    changes = [
        FileChange(
            f"/root/{name}",
            before.get(name),
            after.get(name),
            f"/root/{moves[name]}" if name in moves else None,
        )
        for name in {**before, **after}
    ]

    diff = unified_diff(changes, root="/root")
    in_git(tmp_path, diff)

    assert tree(tmp_path) == after
    assert "rename from only moved\nrename to other\n" in diff
    assert "similarity index 100%" in diff


TEXTS = st.lists(
    st.sampled_from(
        ["a", "b", " ", "\t", "\n", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\ufeff"]
    ),
    max_size=12,
).map("".join)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_git_applies_a_diff_of_any_line_ends(before: str, after: str) -> None:
    diff = unified_diff([FileChange("/w/f", before.encode(), after.encode())], root="/w")

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(before.encode())
        if diff:
            in_git(Path(folder), diff)
        assert (Path(folder) / "f").read_bytes() == after.encode()


def test_what_is_no_text_is_only_named() -> None:
    diff = unified_diff([FileChange("/w/f", b"\xff", b"a\n"), FileChange("/w/g", None, b"\0")], root="/w")

    assert "Binary files a/f and b/f differ\n" in diff
    assert "Binary files /dev/null and b/g differ\n" in diff
    assert "@@" not in diff


@pytest.mark.parametrize(
    ("before", "after", "hunk"),
    [
        (None, b"a\n", "@@ -0,0 +1 @@\n+a\n"),
        (b"a\nb\n", None, "@@ -1,2 +0,0 @@\n-a\n-b\n"),
        (b"1\n2\n3\n4\n5\n", b"1\n2\n3\n4\nx\n5", "@@ -2,4 +2,5 @@\n 2\n 3\n 4\n-5\n+x\n+5\n"),
    ],
)
def test_a_hunk_says_where_it_is(before: bytes | None, after: bytes | None, hunk: str) -> None:
    assert hunk in unified_diff([FileChange("/w/f", before, after)], root="/w")


def test_a_path_outside_of_the_root_is_shown_in_full() -> None:
    diff = unified_diff([FileChange("/etc/f", None, b"a\n")], root="/w")

    assert diff.startswith("diff --git a/etc/f b/etc/f\nnew file mode 100644\n")


def change(path: str, before: bytes | None, after: bytes | None) -> Edit:
    return Edit("update", path, path, before, after)


def moved(path: str, target: str, before: bytes, after: bytes) -> Edit:
    return Edit("move", path, target, before, after, move_to=target)


def test_a_turn_shows_the_first_and_the_last_content() -> None:
    turn = TurnDiff("/w")
    turn.add([change("/w/f", b"a\n", b"b\n")])
    turn.add([change("/w/f", b"b\n", b"c\n")])

    assert "-a\n+c\n" in turn.text
    assert list(turn.digests) == ["/w/f"]


def test_a_change_that_was_taken_back_is_none() -> None:
    turn = TurnDiff("/w")
    turn.add([change("/w/f", b"a\n", b"b\n"), Edit("add", "/w/g", "g", None, b"x\n")])
    turn.add([change("/w/f", b"b\n", b"a\n"), Edit("delete", "/w/g", "g", b"x\n", None)])

    assert turn.text == ""
    assert turn.digests == {}


def test_a_file_that_was_moved_twice_and_changed_was_moved_once() -> None:
    turn = TurnDiff("/w")
    turn.add([moved("/w/a", "/w/b", b"1\n2\n", b"1\n3\n")])
    turn.add([moved("/w/b", "/w/c", b"1\n3\n", b"1\n3\n")])
    turn.add([change("/w/c", b"1\n3\n", b"1\n4\n")])

    assert "rename from a\nrename to c\n" in turn.text
    assert "-2\n+4\n" in turn.text
    assert "b/b" not in turn.text
    assert turn.digests["/w/a"] is None


def test_a_file_that_was_moved_there_and_back_was_not_moved() -> None:
    turn = TurnDiff("/w")
    turn.add([moved("/w/a", "/w/b", b"1\n", b"1\n")])
    turn.add([moved("/w/b", "/w/a", b"1\n", b"1\n")])

    assert turn.text == ""


def test_two_files_that_come_from_one_are_one_moved_and_one_new() -> None:
    turn = TurnDiff("/w")
    turn.add([moved("/w/a", "/w/b", b"1\n", b"1\n")])
    turn.add([Edit("add", "/w/a", "a", None, b"2\n")])
    turn.add([moved("/w/a", "/w/c", b"2\n", b"2\n")])

    assert turn.text.count("rename from a\n") == 1
    assert "new file mode 100644" in turn.text
