from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from execprotocol.errors import InternalError
from execserver.filesystem.tree_operations import remove


def _remove(path: Path, *, recursive: bool = True, force: bool = True) -> None:
    remove(str(path), recursive=recursive, force=force)


def test_a_link_goes_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to("folder")

    _remove(tmp_path / "link")

    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == ["file"]


def test_a_tree_goes_with_all_kinds_of_files_but_not_what_its_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "c").mkdir()
    for number in range(100):
        (tree / "a" / str(number)).touch()
    (tree / "a" / "link").symlink_to(tmp_path / "outside")
    (tree / "a" / "to_nothing").symlink_to("nothing")
    os.mkfifo(tree / "a" / "b" / "fifo")

    _remove(tree)

    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(tmp_path / "outside") == ["file"]


def test_a_tree_deeper_than_any_path_goes(memory_folder: Path) -> None:
    (memory_folder / "tree").mkdir()
    deep = os.open(memory_folder / "tree", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("deep", dir_fd=deep)
        os.close(os.open("file", os.O_CREAT, dir_fd=deep))
        deeper = os.open("deep", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = deeper
    os.close(deep)

    _remove(memory_folder / "tree")

    assert os.listdir(memory_folder) == []


def test_without_recursive_only_an_empty_directory_goes(tmp_path: Path) -> None:
    (tmp_path / "full" / "empty").mkdir(parents=True)

    with pytest.raises(OSError, match="Directory not empty"):
        _remove(tmp_path / "full", recursive=False)
    _remove(tmp_path / "full" / "empty", recursive=False)

    assert os.listdir(tmp_path / "full") == []


def test_force_hides_that_there_is_nothing_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    _remove(tmp_path / "missing" / "deep" / "down")
    with pytest.raises(FileNotFoundError):
        _remove(tmp_path / "missing", force=False)
    with pytest.raises(NotADirectoryError):
        _remove(tmp_path / "file" / "below")


def test_the_root_is_refused_before_anything_is_removed() -> None:
    with pytest.raises(OSError, match="Device or resource busy"):
        _remove(Path("/"))


def test_two_removals_of_one_tree_at_once_both_succeed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for outer in range(20):
        for inner in range(20):
            (tree / str(outer) / str(inner)).mkdir(parents=True)
            (tree / str(outer) / str(inner) / "file").touch()
    failures: list[Exception] = []

    def remove_it() -> None:
        try:
            _remove(tree)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=remove_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert not tree.exists()


def test_a_directory_that_becomes_a_link_does_not_lead_outside(tmp_path: Path) -> None:
    (tmp_path / "outside" / "kept").mkdir(parents=True)
    (tmp_path / "outside" / "kept" / "file").touch()
    tree = tmp_path / "tree"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            try:
                os.rename(tree / "a", tree / "b")
                os.symlink(tmp_path / "outside", tree / "a")
            except OSError:
                continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            try:
                (tree / "a" / "deeper").mkdir(parents=True, exist_ok=True)
                _remove(tree)
            except (OSError, InternalError):
                # A moved directory may be missed, but no other may be removed for it.
                continue
    finally:
        stop.set()
        thread.join()

    assert (tmp_path / "outside" / "kept" / "file").exists()
