from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.directories import create_directory
from execserver.filesystem.tree_operations import CopyOptions, copy
from tests.support.mounts import Mount

DEFAULT_OPTIONS = CopyOptions()


def _copy(
    source: Path, destination: Path, *, recursive: bool = False, options: CopyOptions = DEFAULT_OPTIONS
) -> bool:
    return copy(str(source), str(destination), recursive=recursive, stop=threading.Event(), options=options)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("size", [0, 1, 40 << 20])
def test_a_file_is_copied_with_its_permissions(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "from").write_bytes(content)
    (tmp_path / "from").chmod(0o451)

    _copy(tmp_path / "from", tmp_path / "to")

    assert (tmp_path / "to").read_bytes() == content
    assert _mode(tmp_path / "to") == 0o451


def test_a_file_is_replaced_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "from").write_text("new")
    (tmp_path / "to").write_text("a much longer old content")
    os.setxattr(tmp_path / "to", "user.note", b"stays")
    (tmp_path / "link").symlink_to("to")

    with open(tmp_path / "to", "rb") as old:
        in_place = _copy(tmp_path / "from", tmp_path / "link")
        assert old.read() == b"a much longer old content"

    assert not in_place
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "to").read_text() == "new"
    assert os.getxattr(tmp_path / "to", "user.note") == b"stays"
    assert sorted(os.listdir(tmp_path)) == ["from", "link", "to"]


def test_a_link_to_nothing_gets_its_target(tmp_path: Path) -> None:
    (tmp_path / "from").write_text("new")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/made")

    _copy(tmp_path / "from", tmp_path / "link")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "made").read_text() == "new"


def test_a_copy_that_keeps_modes_is_as_one_of_cp(tmp_path: Path) -> None:
    (tmp_path / "from").write_text("new")
    (tmp_path / "from").chmod(0o4755)
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o600)

    for name in ("old", "new"):
        _copy(tmp_path / "from", tmp_path / name, options=CopyOptions(keep_mode=True))

    assert (_mode(tmp_path / "old"), _mode(tmp_path / "new")) == (0o600, 0o755)


def test_times_are_kept_on_files_links_and_folders(tmp_path: Path) -> None:
    tree = tmp_path / "from"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed" / "file").write_text("content")
    (tree / "link").symlink_to("nothing")
    (tree / "closed").chmod(0o555)
    times = {".": 111_222_333_444, "closed": 5, "closed/file": 1_700_000_000_123_456_789, "link": -7}
    for name, time in times.items():
        os.utime(tree / name, ns=(time + 1, time), follow_symlinks=False)

    _copy(tree, tmp_path / "to", recursive=True, options=CopyOptions(preserve_times=True))
    _copy(tree / "closed" / "file", tmp_path / "alone", options=CopyOptions(preserve_times=True))

    for name, time in times.items():
        assert os.stat(tmp_path / "to" / name, follow_symlinks=False).st_mtime_ns == time, name
    assert (tmp_path / "to" / "closed" / "file").stat().st_atime_ns == times["closed/file"] + 1
    assert (tmp_path / "alone").stat().st_mtime_ns == times["closed/file"]
    for folder in (tree / "closed", tmp_path / "to" / "closed"):
        folder.chmod(0o755)


def test_holes_stay_holes(tmp_path: Path) -> None:
    with open(tmp_path / "from", "wb") as file:
        file.truncate(256 << 20)
        for offset in (5 << 20, 200 << 20):
            file.seek(offset)
            file.write(b"data" * 4096)

    _copy(tmp_path / "from", tmp_path / "to")

    assert (tmp_path / "to").stat().st_blocks <= (tmp_path / "from").stat().st_blocks + 16
    assert (tmp_path / "to").read_bytes() == (tmp_path / "from").read_bytes()


@pytest.mark.parametrize("way", ["itself", "hard link", "link"])
def test_a_file_onto_itself_is_refused_and_stays(tmp_path: Path, way: str) -> None:
    (tmp_path / "itself").write_text("content")
    os.link(tmp_path / "itself", tmp_path / "hard link")
    (tmp_path / "link").symlink_to("itself")

    with pytest.raises(InvalidRequest, match="to itself"):
        _copy(tmp_path / "itself", tmp_path / way)

    assert (tmp_path / "itself").read_text() == "content"


def test_set_id_bits_are_kept_where_they_give_the_same_rights(tmp_path: Path) -> None:
    (tmp_path / "from").write_text("program")
    (tmp_path / "from").chmod(0o4755)

    _copy(tmp_path / "from", tmp_path / "to")
    assert _mode(tmp_path / "to") == 0o4755

    if os.geteuid() == 0:
        os.chown(tmp_path / "from", 1234, 1234)
        (tmp_path / "from").chmod(0o6755)
        _copy(tmp_path / "from", tmp_path / "roots")
        assert _mode(tmp_path / "roots") == 0o755


def test_content_goes_from_one_file_system_to_another(mount: Mount, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "from").write_bytes(content)
    folder = mount("tmpfs", "size=8m")

    _copy(tmp_path / "from", folder / "there")
    _copy(folder / "there", tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == content


def test_a_file_that_does_not_tell_its_size_is_copied_whole(tmp_path: Path) -> None:
    _copy(Path("/proc/version"), tmp_path / "version")

    assert (tmp_path / "version").read_bytes() == Path("/proc/version").read_bytes()


def test_a_device_takes_the_content(tmp_path: Path) -> None:
    (tmp_path / "from").write_text("content")
    mode = Path("/dev/null").stat().st_mode

    _copy(tmp_path / "from", Path("/dev/null"))

    assert Path("/dev/null").stat().st_mode == mode


def test_a_link_is_copied_as_a_link_even_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, target in (("to_folder", "folder"), ("to_nothing", "nothing")):
        (tmp_path / name).symlink_to(target)
        _copy(tmp_path / name, tmp_path / f"copy of {name}", recursive=True)
        assert os.readlink(tmp_path / f"copy of {name}") == target
        with pytest.raises(FileExistsError):
            _copy(tmp_path / name, tmp_path / "folder")


def test_a_tree_is_copied_with_its_links_and_modes_and_without_special_files(tmp_path: Path) -> None:
    source = tmp_path / "from"
    (source / "closed" / "deeper").mkdir(parents=True)
    (source / "closed" / "file").write_text("content")
    (source / "link").symlink_to("/does/not/exist")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    (source / "closed").chmod(0o555)
    source.chmod(0o700)

    _copy(source, tmp_path / "missing" / "parents" / "to", recursive=True)

    made = tmp_path / "missing" / "parents" / "to"
    assert sorted(os.listdir(made)) == ["closed", "link"]
    assert (made / "closed" / "file").read_text() == "content"
    assert (made / "closed" / "deeper").is_dir()
    assert os.readlink(made / "link") == "/does/not/exist"
    assert (_mode(made), _mode(made / "closed")) == (0o700, 0o555)
    for folder in (source / "closed", made / "closed"):
        folder.chmod(0o755)


def test_a_tree_deeper_than_the_interpreter_recurses_is_copied(memory_folder: Path) -> None:
    depth = 1100
    memory_folder.joinpath("from").mkdir()
    create_directory(str(memory_folder.joinpath("from", *["d"] * depth)), recursive=True)

    _copy(memory_folder / "from", memory_folder / "to", recursive=True)

    assert os.path.isdir(memory_folder.joinpath("to", *["d"] * depth))


@pytest.mark.parametrize(
    "destination", ["from", "from/below", "from/a/b/c", "link", "link/below", "a/../from/x"]
)
def test_a_tree_into_itself_is_refused_by_whatever_path(tmp_path: Path, destination: str) -> None:
    (tmp_path / "from" / "a").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("from/a")

    with pytest.raises(InvalidRequest, match="cannot copy a directory to itself or one of its descendants"):
        _copy(tmp_path / "from", tmp_path / destination, recursive=True)

    assert os.listdir(tmp_path / "from") == ["a"]
    assert os.listdir(tmp_path / "from" / "a") == []


def test_a_tree_that_contains_its_destination_by_a_bind_mount_is_not_copied_for_ever(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a bind mount in this namespace needs root")
    (tmp_path / "from" / "a").mkdir(parents=True)
    (tmp_path / "bound").mkdir()
    assert os.system(f"mount --bind {tmp_path}/from/a {tmp_path}/bound") == 0
    try:
        with pytest.raises(InvalidRequest, match="cannot copy a directory to itself"):
            _copy(tmp_path / "from", tmp_path / "bound" / "to", recursive=True)
    finally:
        assert os.system(f"umount {tmp_path}/bound") == 0


def test_a_tree_needs_recursive_and_a_free_place(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()

    with pytest.raises(InvalidRequest, match="requires recursive: true when sourcePath is a directory"):
        _copy(tmp_path / "from", tmp_path / "to")
    for name in ("file", "folder"):
        with pytest.raises(FileExistsError):
            _copy(tmp_path / "from", tmp_path / name, recursive=True)


def test_a_file_needs_a_parent_and_no_directory_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "from").touch()

    with pytest.raises(FileNotFoundError):
        _copy(tmp_path / "from", tmp_path / "missing" / "to")
    with pytest.raises(IsADirectoryError):
        _copy(tmp_path / "from", tmp_path)


def test_a_special_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(InvalidRequest, match="only supports regular files, directories, and symlinks"):
        _copy(tmp_path / "fifo", tmp_path / "to")


def test_a_cancelled_copy_ends(memory_folder: Path) -> None:
    stop = threading.Event()
    stop.set()
    (memory_folder / "tree").mkdir()
    (memory_folder / "large").touch()
    os.truncate(memory_folder / "large", 64 << 20)

    for name in ("tree", "large"):
        source, destination = str(memory_folder / name), str(memory_folder / f"copy of {name}")
        with pytest.raises(RequestCancelled):
            copy(source, destination, recursive=True, stop=stop)

    assert sorted(os.listdir(memory_folder)) == ["large", "tree"]
