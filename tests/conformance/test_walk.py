"""`fs/walk`."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.wire import Client, Json, path_uri

OPTIONS: dict[str, Json] = {
    "maxDepth": 10,
    "maxDirectories": 100,
    "maxEntries": 100,
    "followDirectorySymlinks": False,
}


@pytest.fixture
def tree(here: Path) -> Path:
    """Files, hidden ones, links and a fifo, three levels deep."""
    (here / "d" / "sub").mkdir(parents=True)
    (here / ".hidden").mkdir()
    for name in ("d/sub/x", "d/y", "a.txt", ".hidden/z", ".dot", "Z", "é"):
        (here / name).touch()
    (here / "link").symlink_to("a.txt")
    (here / "dirlink").symlink_to("d")
    os.mkfifo(here / "fifo")
    return here


def walk(client: Client, root: Path, **options: Json) -> Json:
    result = client.call("fs/walk", {"path": path_uri(root), "options": OPTIONS | options})
    assert set(result) == {"entries", "errors", "truncated"}
    return result


def names(result: Json, base: Path) -> list[str]:
    """Entries below `base`, directories with a slash behind them."""
    found = []
    for entry in result["entries"]:
        assert set(entry) == {"path", "kind"}
        name = unquote(entry["path"]).removeprefix(f"file://{base}/")
        found.append(name + {"file": "", "directory": "/"}[entry["kind"]])
    return found


EVERYTHING = [".dot", ".hidden/", "Z", "a.txt", "d/", "é", ".hidden/z", "d/sub/", "d/y", "d/sub/x"]


@pytest.mark.everywhere
@pytest.mark.statement("K1")
def test_breadth_first_in_the_order_of_bytes(client: Client, tree: Path) -> None:
    result = walk(client, tree)
    assert names(result, tree) == EVERYTHING
    assert (result["errors"], result["truncated"]) == ([], False)


@pytest.mark.statement("K2")
def test_depth(client: Client, tree: Path) -> None:
    for depth, wanted in ((0, ["sub/", "y"]), (1, ["sub/", "y", "sub/x"]), (64, ["sub/", "y", "sub/x"])):
        result = walk(client, tree / "d", maxDepth=depth)
        assert names(result, tree / "d") == wanted
        assert result["truncated"] is False


@pytest.mark.statement("K3")
def test_limits_truncate(client: Client, tree: Path) -> None:
    for name in ("link", "dirlink", "fifo"):
        (tree / name).unlink()
    for options, count, truncated in (
        ({"maxEntries": 2}, 2, True),
        ({"maxEntries": len(EVERYTHING) - 1}, len(EVERYTHING) - 1, True),
        ({"maxDirectories": 1}, 6, True),
        ({"maxDirectories": 4}, len(EVERYTHING), False),
    ):
        result = walk(client, tree, **options)
        assert names(result, tree) == EVERYTHING[:count]
        assert result["truncated"] is truncated, options


@pytest.mark.statement("K4", "K1")
def test_links_are_followed_when_asked_for(client: Client, tree: Path) -> None:
    found = names(walk(client, tree, followDirectorySymlinks=True), tree)
    assert "dirlink/" in found
    assert "link" not in found
    assert sum(name.endswith("/y") for name in found) == 1


@pytest.mark.statement("K4")
def test_loop_ends(client: Client, tree: Path) -> None:
    (tree / "d" / "loop").symlink_to(".")
    (tree / "d" / "up").symlink_to("..")
    found = names(walk(client, tree / "d", followDirectorySymlinks=True), tree / "d")
    assert found[:4] == ["loop/", "sub/", "up/", "y"]
    assert len(found) < 40


@pytest.mark.statement("K5")
def test_hidden_directories(client: Client, tree: Path) -> None:
    found = names(walk(client, tree, pruneHiddenDirectories=True), tree)
    assert found == [name for name in EVERYTHING if name != ".hidden/z"]
    assert names(walk(client, tree / ".hidden", pruneHiddenDirectories=True), tree) == [".hidden/z"]


@pytest.mark.statement("K6", "K4")
def test_roots(client: Client, tree: Path) -> None:
    for name in ("a.txt", "fifo", "dirlink", "link"):
        assert walk(client, tree / name) == {"entries": [], "errors": [], "truncated": False}
    followed = walk(client, tree / "dirlink", followDirectorySymlinks=True)
    assert names(followed, tree / "dirlink") == ["sub/", "y", "sub/x"]
    failure = client.refused("fs/walk", {"path": path_uri(tree / "missing"), "options": OPTIONS})
    assert (failure.code, failure.message) == (-32004, "No such file or directory (os error 2)")


@pytest.mark.statement("K7")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every directory")
def test_directory_that_cannot_be_read(client: Client, tree: Path) -> None:
    (tree / "d" / "sub").chmod(0)
    try:
        result = walk(client, tree)
    finally:
        (tree / "d" / "sub").chmod(0o755)
    assert names(result, tree) == EVERYTHING[:-1]
    assert [set(error) for error in result["errors"]] == [{"path", "message"}]


@pytest.mark.statement("K8", "K9", "E11")
def test_options_are_checked(client: Client, here: Path) -> None:
    def refusal(options: dict[str, Json]) -> tuple[int, str]:
        failure = client.refused("fs/walk", {"path": path_uri(here), "options": options})
        return failure.code, failure.message

    for name in OPTIONS:
        without = {other: value for other, value in OPTIONS.items() if other != name}
        assert refusal(without) == (-32602, f"missing field `{name}`")
    for name in ("maxDirectories", "maxEntries"):
        assert refusal(OPTIONS | {name: 0}) == (-32600, "filesystem walk limits must be greater than zero")
    text = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000"
    for name, value in (("maxDepth", 65), ("maxDirectories", 10_001), ("maxEntries", 50_001)):
        assert refusal(OPTIONS | {name: value}) == (-32600, text)
    largest = {"maxDepth": 64, "maxDirectories": 10_000, "maxEntries": 50_000}
    assert walk(client, here, **largest)["entries"] == []


@pytest.mark.statement("K1", "K3")
def test_thousands_of_files(client: Client, here: Path) -> None:
    for folder in range(20):
        (here / f"{folder:02}").mkdir()
        for file in range(100):
            (here / f"{folder:02}" / f"{file:02}").touch()
    result = walk(client, here, maxEntries=50_000)
    assert len(result["entries"]) == 20 + 2000
    assert result["truncated"] is False
