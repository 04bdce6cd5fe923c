from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from execprotocol.errors import InvalidRequest
from execprotocol.path_uri import path_to_uri
from execserver.filesystem import listing
from execserver.filesystem import walk as walk_module
from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.listing import walk_json
from execserver.filesystem.walk import WalkLimits, check_limits, visit


def _walk(root: Path, **options: Any) -> dict[str, Any]:
    limits = WalkLimits(
        options.get("maxDepth", 64),
        options.get("maxDirectories", 10_000),
        options.get("maxEntries", 50_000),
        options.get("followDirectorySymlinks", False),
        options.get("pruneHiddenDirectories", False),
    )
    check_limits(limits.max_depth, limits.max_directories, limits.max_entries)
    result = walk_json(visit(str(root), limits, threading.Event()))
    return dict(json.loads(result))


def _names(root: Path, result: dict[str, Any]) -> list[str]:
    start = len(path_to_uri(str(root))) + 1
    mark = {"file": "", "directory": "/"}
    return [unquote(entry["path"][start:]) + mark[entry["kind"]] for entry in result["entries"]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "b" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "b" / "file").touch()
    (tmp_path / ".hidden" / "below").mkdir(parents=True)
    (tmp_path / "a file").touch()
    (tmp_path / "to_b").symlink_to("b")
    (tmp_path / "to_file").symlink_to("a file")
    (tmp_path / "to_nothing").symlink_to("nothing")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def test_breadth_comes_first_and_names_are_in_order(tree: Path) -> None:
    result = _walk(tree)

    assert _names(tree, result) == [
        ".hidden/", "a file", "b/", ".hidden/below/", "b/deep/", "b/file", "b/deep/deeper/",
    ]  # fmt: skip
    assert (result["errors"], result["truncated"]) == ([], False)


def test_names_are_ordered_by_their_bytes(tmp_path: Path) -> None:
    for name in (b"\xff", "\uffff".encode(), "\U00010000".encode(), b"B", b"a", b"\x80"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()

    uris = [entry["path"].rpartition("/")[2] for entry in _walk(tmp_path)["entries"]]

    assert uris == ["B", "a", "%80", "%EF%BF%BF", "%F0%90%80%80", "%FF"]


def test_depth_ends_the_walk_without_a_word(tree: Path) -> None:
    assert _names(tree, _walk(tree, maxDepth=0)) == [".hidden/", "a file", "b/"]
    result = _walk(tree, maxDepth=1)
    assert _names(tree, result)[3:] == [".hidden/below/", "b/deep/", "b/file"]
    assert not result["truncated"]


def test_entries_are_counted_as_they_are_looked_at(tree: Path) -> None:
    """Also those that are not listed: a walk over a million fifos must end."""
    # .hidden, a file, b, fifo, to_b, to_file, and below: 4.
    assert _walk(tree, maxEntries=10)["truncated"] is False
    result = _walk(tree, maxEntries=9)
    assert result["truncated"] is True
    assert _names(tree, result)[-1] == "b/file"
    assert _names(tree, _walk(tree, maxEntries=4)) == [".hidden/", "a file", "b/"]


def test_a_directory_too_many_stays_listed(tree: Path) -> None:
    result = _walk(tree, maxDirectories=2)

    assert _names(tree, result) == [".hidden/", "a file", "b/", ".hidden/below/"]
    assert result["truncated"] is True
    assert _walk(tree, maxDirectories=6)["truncated"] is False


def test_hidden_directories_are_listed_and_not_entered_when_pruned(tree: Path) -> None:
    assert ".hidden/below/" not in _names(tree, _walk(tree, pruneHiddenDirectories=True))
    assert ".hidden/" in _names(tree, _walk(tree, pruneHiddenDirectories=True))
    assert _names(tree / ".hidden", _walk(tree / ".hidden", pruneHiddenDirectories=True)) == ["below/"]


def test_each_real_directory_is_entered_once_by_whatever_links(tree: Path) -> None:
    (tree / "b" / "loop").symlink_to("..")

    names = _names(tree, _walk(tree, followDirectorySymlinks=True))

    assert "to_b/" in names
    assert "to_file" not in names
    assert [name for name in names if name.endswith("deep/")] == ["b/deep/"]
    assert "b/loop/" in names


def test_a_link_as_root_is_walked_only_when_links_are_followed(tree: Path) -> None:
    root = tree / "to_b"

    assert _names(root, _walk(root, followDirectorySymlinks=True)) == ["deep/", "file", "deep/deeper/"]
    assert _walk(root) == {"entries": [], "errors": [], "truncated": False}


@pytest.mark.parametrize("name", ["a file", "fifo", "to_file", "to_nothing"])
def test_a_root_that_is_no_directory_gives_nothing(tree: Path, name: str) -> None:
    assert _walk(tree / name) == {"entries": [], "errors": [], "truncated": False}


@pytest.mark.parametrize(("name", "follow"), [("missing", False), ("missing", True), ("to_nothing", True)])
def test_a_missing_root_is_an_error(tree: Path, name: str, follow: bool) -> None:
    with pytest.raises(FileNotFoundError):
        _walk(tree / name, followDirectorySymlinks=follow)


def test_the_root_directory_has_no_double_slash() -> None:
    result = _walk(Path("/"), maxDepth=0)

    assert all(entry["path"].startswith("file:///") for entry in result["entries"])
    assert not any(entry["path"].startswith("file:////") for entry in result["entries"])


def test_a_directory_that_cannot_be_read_is_told_and_the_walk_goes_on(tmp_path: Path) -> None:
    # A path that is longer than the kernel takes: no right of any user helps against that.
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("d" * 250, dir_fd=folder)
        deeper = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "file").touch()

    result = _walk(tmp_path)

    assert [error["message"] for error in result["errors"]] == ["File name too long (os error 36)"]
    assert result["errors"][0]["path"] == result["entries"][-1]["path"]
    assert "z/file" in _names(tmp_path, result)


@pytest.mark.parametrize("name", ["maxDirectories", "maxEntries"])
def test_a_limit_of_zero_is_refused_even_for_a_missing_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be greater than zero"):
        _walk(tmp_path / "missing", **{name: 0})


@pytest.mark.parametrize(
    ("name", "value"), [("maxDepth", 65), ("maxDirectories", 10_001), ("maxEntries", 50_001)]
)
def test_a_limit_above_its_maximum_is_refused(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match="maximums: depth=64, directories=10000, entries=50000"):
        _walk(tmp_path, **{name: value})


def test_only_the_first_names_of_a_huge_directory_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_module, "_MAX_NAMES", 20)
    for number in range(100):
        (tmp_path / f"{number:03}").touch()

    assert _names(tmp_path, _walk(tmp_path, maxEntries=10)) == [f"{number:03}" for number in range(10)]


def test_a_reply_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        (tmp_path / str(number)).touch()
    size = len(path_to_uri(str(tmp_path / "0")))
    monkeypatch.setattr(listing, "MAX_PATH_BYTES", 4 * size)

    result = _walk(tmp_path)

    assert (len(result["entries"]), result["truncated"]) == (4, True)


def test_a_cancelled_walk_ends(tree: Path) -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(RequestCancelled):
        walk_json(visit(str(tree), WalkLimits(1, 9, 9, False, False), stop))
