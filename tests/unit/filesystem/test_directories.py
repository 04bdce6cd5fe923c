from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.directories import create_directory, entries
from execserver.filesystem.listing import encode_array, entries_json


def _entries(path: Path) -> dict[str, tuple[bool, bool]]:
    found: list[dict[str, Any]] = json.loads(entries_json(entries(str(path), threading.Event())))
    return {entry["fileName"]: (entry["isDirectory"], entry["isFile"]) for entry in found}


def test_parents_are_made_however_many(memory_folder: Path) -> None:
    path = memory_folder.joinpath(*["d"] * 1100)

    create_directory(str(path), recursive=True)

    assert os.path.isdir(path)


def test_a_directory_that_is_there_is_no_error_when_recursive(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    create_directory(str(tmp_path), recursive=True)
    create_directory(str(tmp_path / "link" / "made"), recursive=True)
    create_directory("/", recursive=True)

    assert (tmp_path / "made").is_dir()
    with pytest.raises(FileExistsError):
        create_directory(str(tmp_path), recursive=False)


def test_only_recursive_makes_parents(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        create_directory(str(tmp_path / "a" / "b"), recursive=False)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("recursive", [True, False])
def test_a_file_or_a_link_to_nothing_in_the_way_is_an_error(tmp_path: Path, recursive: bool) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")

    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            create_directory(str(tmp_path / name), recursive=recursive)
    with pytest.raises(NotADirectoryError):
        create_directory(str(tmp_path / "file" / "below"), recursive=recursive)


def test_a_directory_gets_the_default_mode_less_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        create_directory(str(tmp_path / "a" / "b"), recursive=True)
    finally:
        os.umask(old)

    assert stat.S_IMODE(os.stat(tmp_path / "a" / "b").st_mode) == 0o750


def test_a_listing_follows_links_and_leaves_out_those_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "to_file").symlink_to("file")
    (tmp_path / "to_folder").symlink_to("folder")
    (tmp_path / "to_nothing").symlink_to("nothing")
    (tmp_path / "to_itself").symlink_to("to_itself")
    os.mkfifo(tmp_path / "fifo")

    assert _entries(tmp_path) == {
        "file": (False, True),
        "folder": (True, False),
        "to_file": (False, True),
        "to_folder": (True, False),
        "fifo": (False, False),
    }


def test_a_name_that_is_no_utf8_is_listed_as_well_as_text_can(tmp_path: Path) -> None:
    for name in (b"bad\xff", "schön\u2028".encode(), b'"\\\n'):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()

    assert set(_entries(tmp_path)) == {"bad\ufffd", "schön\u2028", '"\\\n'}


def test_a_listing_ends_with_the_connection(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stop = threading.Event()
    stop.set()

    with pytest.raises(RequestCancelled):
        entries_json(entries(str(tmp_path), stop))


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1001])
def test_an_array_that_is_encoded_in_pieces_is_whole(count: int) -> None:
    items = [{"number": number} for number in range(count)]

    assert json.loads(encode_array(items)) == items
