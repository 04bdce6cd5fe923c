from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from execserver.filesystem.metadata import canonicalize, metadata


def _kinds(path: Path) -> tuple[bool, bool, bool]:
    found = metadata(str(path))
    return found["isDirectory"], found["isFile"], found["isSymlink"]


def test_kinds_are_those_of_the_target_but_for_the_link_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "to_file").symlink_to("file")
    (tmp_path / "to_folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))

    assert _kinds(tmp_path / "file") == (False, True, False)
    assert _kinds(tmp_path) == (True, False, False)
    assert _kinds(tmp_path / "to_file") == (False, True, True)
    assert _kinds(tmp_path / "to_folder") == (True, False, True)
    for special in (tmp_path / "fifo", tmp_path / "socket", Path("/dev/null")):
        assert _kinds(special) == (False, False, False)


@pytest.mark.parametrize(
    ("nanoseconds", "milliseconds"),
    [(1_600_000_000_123_999_999, 1_600_000_000_123), (0, 0), (999_999, 0), (-5_000_000_000, 0)],
)
def test_times_are_cut_to_milliseconds_and_unknown_before_1970(
    tmp_path: Path, nanoseconds: int, milliseconds: int
) -> None:
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", ns=(0, nanoseconds))

    found = metadata(str(tmp_path / "file"))

    assert found["modifiedAtMs"] == milliseconds
    assert found["createdAtMs"] == 0


def test_a_link_to_nothing_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")

    for look in (metadata, canonicalize):
        with pytest.raises(FileNotFoundError):
            look(str(tmp_path / "link"))


def test_all_links_of_a_path_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "folder" / "to_file").symlink_to("../link/file")

    assert canonicalize(str(tmp_path / "link" / "to_file")) == str(tmp_path / "folder" / "file")
    assert canonicalize("/") == "/"


def test_any_kind_of_file_has_a_canonical_path_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "secret").touch(mode=0)

    for name in ("fifo", "secret"):
        assert canonicalize(str(tmp_path / name)) == str(tmp_path / name)


def test_a_name_that_looks_like_that_of_a_removed_file_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "file (deleted)").touch()

    assert canonicalize(str(tmp_path / "file (deleted)")) == str(tmp_path / "file (deleted)")


def test_a_thousand_links_in_a_row_are_a_loop_to_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    for number in range(1, 1000):
        (tmp_path / str(number)).symlink_to(str(number - 1))

    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        canonicalize(str(tmp_path / "999"))
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        metadata(str(tmp_path / "999"))


def test_names_are_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff\n")
    Path(name).write_text("1234")

    assert metadata(name)["size"] == 4
    assert canonicalize(name) == name
