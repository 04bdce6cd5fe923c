"""Replacing files: whole or not at all, and in place where nothing else is possible."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.filesystem import replacing
from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.replacing import Attributes, install, put
from execserver.filesystem.tree_operations import copy
from tests.support.mounts import Mount

MIB = 1 << 20


class StopsAfter:
    """A stop flag that is set when it is checked for the N-th time."""

    def __init__(self, count: int) -> None:
        self.count = count

    def is_set(self) -> bool:
        self.count -= 1
        return self.count < 0


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _install(source: Path, destination: Path, wanted: Attributes | None = None) -> bool:
    return install(str(source), str(destination), wanted or Attributes(), threading.Event())


def _copy(source: Path, destination: Path, *, recursive: bool = False) -> bool:
    return copy(str(source), str(destination), recursive=recursive, stop=threading.Event())


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- copies


@pytest.mark.parametrize("old", [b"", b"old content" * 1000, None])
def test_a_copy_that_finds_no_room_leaves_what_was_there(
    mount: Mount, tmp_path: Path, old: bytes | None
) -> None:
    disk = mount("tmpfs", "size=256k")
    (tmp_path / "from").write_bytes(os.urandom(MIB))
    if old is not None:
        (disk / "to").write_bytes(old)

    with pytest.raises(OSError, match="No space left"):
        _copy(tmp_path / "from", disk / "to")

    assert os.listdir(disk) == ([] if old is None else ["to"])
    assert old is None or (disk / "to").read_bytes() == old


def test_a_copy_above_the_size_limit_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(bytes(MIB))
    (tmp_path / "to").write_bytes(b"old")

    for target in ("to", "new"):
        with _files_of_at_most(MIB // 2), pytest.raises(OSError, match="File too large"):
            _copy(tmp_path / "from", tmp_path / target)

    assert (tmp_path / "to").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["from", "to"]


def test_a_tree_that_finds_no_room_leaves_nothing(mount: Mount, tmp_path: Path) -> None:
    disk = mount("tmpfs", "size=512k")
    (tmp_path / "from" / "closed").mkdir(parents=True)
    for name in ("a", "closed/b", "closed/c"):
        (tmp_path / "from" / name).write_bytes(os.urandom(MIB // 4))
    (tmp_path / "from" / "closed").chmod(0o555)

    with pytest.raises(OSError, match="No space left"):
        _copy(tmp_path / "from", disk / "to", recursive=True)

    assert os.listdir(disk) == []
    (tmp_path / "from" / "closed").chmod(0o755)


def test_a_copy_that_is_given_up_leaves_what_was_there(memory_folder: Path) -> None:
    (memory_folder / "from").write_bytes(bytes(40 * MIB))
    (memory_folder / "to").write_bytes(b"old")
    (memory_folder / "tree").mkdir()
    (memory_folder / "tree" / "file").write_bytes(bytes(40 * MIB))

    for source, target in (("from", "to"), ("from", "new"), ("tree", "tree2")):
        with pytest.raises(RequestCancelled):
            copy(f"{memory_folder}/{source}", f"{memory_folder}/{target}", recursive=True, stop=StopsAfter(2))

    assert (memory_folder / "to").read_bytes() == b"old"
    assert sorted(os.listdir(memory_folder)) == ["from", "to", "tree"]


_COPIES = """
import sys, threading
from execserver.filesystem.tree_operations import copy
print("begins", flush=True)
while True:
    copy(sys.argv[1], sys.argv[2], recursive=True, stop=threading.Event())
"""


def test_a_killed_copy_of_a_file_leaves_the_old_or_the_new_content_and_no_other_name(tmp_path: Path) -> None:
    contents = [bytes([number]) * 8 * MIB for number in (1, 2)]
    (tmp_path / "to").write_bytes(contents[0])
    (tmp_path / "from").write_bytes(contents[1])
    for delay in (0.0, 0.003, 0.01, 0.02, 0.05):
        command = [sys.executable, "-c", _COPIES, str(tmp_path / "from"), str(tmp_path / "to")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            threading.Event().wait(delay)
            process.kill()

        assert (tmp_path / "to").read_bytes() in contents
        left = [name for name in os.listdir(tmp_path) if name.startswith(".")]
        for name in left:
            # Only between two system calls it has a name, and then all of the content.
            assert (tmp_path / name).read_bytes() == contents[1]
            (tmp_path / name).unlink()
        assert sorted(os.listdir(tmp_path)) == ["from", "to"]


def test_a_killed_copy_of_a_tree_leaves_a_hidden_folder_that_the_next_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "from").mkdir()
    for number in range(3000):  # takes long enough to be stopped in the middle
        (tmp_path / "from" / str(number)).write_bytes(b"x")
    (tmp_path / "into").mkdir()
    command = [sys.executable, "-c", _COPIES, str(tmp_path / "from"), str(tmp_path / "into" / "to")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            while not any((tmp_path / "into").glob("*/*")):  # it is locked before anything is put into it
                assert process.poll() is None
            process.send_signal(signal.SIGSTOP)
            (hidden,) = os.listdir(tmp_path / "into")
            assert hidden.startswith(".execserver-copy-")
            (tmp_path / "small").mkdir()
            monkeypatch.setattr(replacing, "_LOCK_DELAY_SECONDS", 0.0)

            _copy(tmp_path / "small", tmp_path / "into" / "first", recursive=True)
            assert sorted(os.listdir(tmp_path / "into")) == [hidden, "first"]
        finally:
            process.kill()
    _copy(tmp_path / "small", tmp_path / "into" / "second", recursive=True)

    assert sorted(os.listdir(tmp_path / "into")) == ["first", "second"]


_REPLACES = """
import os, sys, threading
from execserver.filesystem.replacing import Attributes, put

def wait(*paths, **named):
    print(flush=True)
    sys.stdin.readline()

os.rename = wait  # the temporary file has its name
put(sys.argv[1], b"new", None, Attributes(), keep_mode=True, stop=threading.Event())
"""


def test_the_name_that_a_killed_process_left_for_a_file_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").write_bytes(b"old")
    command = [sys.executable, "-c", _REPLACES, str(tmp_path / "old")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert len(os.listdir(tmp_path)) == 2
    (tmp_path / ".execserver-copy-folder").mkdir()
    for delay in (replacing._LOCK_DELAY_SECONDS, 0.0):
        monkeypatch.setattr(replacing, "_LOCK_DELAY_SECONDS", delay)
        put(str(tmp_path / "old"), b"new", None, Attributes(), keep_mode=True, stop=threading.Event())
        assert len(os.listdir(tmp_path)) == (3 if delay else 2), "another process may use a new one"
    assert (tmp_path / "old").read_bytes() == b"new"


def test_a_growing_file_is_copied_as_large_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * MIB)
    ended = threading.Event()

    def grow() -> None:
        with open(tmp_path / "log", "ab", 0) as file:
            while not ended.wait(0.001):  # paced: a disk takes gigabytes until the five copies are made
                file.write(b"y" * 65536)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        sizes = []
        for number in range(5):
            before = (tmp_path / "log").stat().st_size
            _copy(tmp_path / "log", tmp_path / f"copy {number}")
            sizes.append(((tmp_path / f"copy {number}").stat().st_size, before))
    finally:
        ended.set()
        writer.join()

    for number, (size, before) in enumerate(sizes):
        assert size >= before
        with open(tmp_path / "log", "rb") as log:
            assert (tmp_path / f"copy {number}").read_bytes() == log.read(size)


# -- in place


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file that is a mount point, with the content `old`."""
    if os.geteuid() != 0:
        pytest.skip("a bind mount in this namespace needs root")
    (tmp_path / "elsewhere").write_bytes(b"old content")
    (tmp_path / "hosts").touch()
    subprocess.run(["mount", "--bind", tmp_path / "elsewhere", tmp_path / "hosts"], check=True)
    yield tmp_path / "hosts"
    subprocess.run(["umount", tmp_path / "hosts"], check=True)


def test_a_mount_point_is_written_in_place(mounted: Path, tmp_path: Path) -> None:
    for content in (b"new", b"new and longer than the old one", b""):
        (tmp_path / "from").write_bytes(content)
        assert _copy(tmp_path / "from", mounted)
        assert mounted.read_bytes() == content
        assert _install(tmp_path / "from", mounted)
        assert mounted.read_bytes() == content

    assert (tmp_path / "elsewhere").read_bytes() == b""
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "hosts"]


def test_a_mount_point_gets_its_old_content_back(mounted: Path, tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(bytes(MIB))
    inode = mounted.stat().st_ino

    with _files_of_at_most(MIB // 2), pytest.raises(OSError, match="File too large"):
        _copy(tmp_path / "from", mounted)
    assert mounted.read_bytes() == b"old content"
    (tmp_path / "from").write_bytes(bytes(40 * MIB))
    source, target = str(tmp_path / "from"), str(mounted)
    with pytest.raises(RequestCancelled):
        copy(source, target, recursive=False, stop=StopsAfter(1))
    assert mounted.read_bytes() == b"old content"
    with pytest.raises(RequestCancelled):
        install(source, target, Attributes(), StopsAfter(1))
    assert mounted.read_bytes() == b"old content"

    assert mounted.stat().st_ino == inode
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "from", "hosts"]


_AS_ANOTHER = """
import os, sys, threading
from execserver.filesystem.tree_operations import copy
os.setgid(1234); os.setuid(1234)
print(copy(sys.argv[1], sys.argv[2], recursive=False, stop=threading.Event()))
"""


def test_what_another_user_may_write_but_not_replace_is_written_in_place(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user is needed")
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    (tmp_path / "from").write_bytes(b"new")
    for folder, mode in (("closed", 0o755), ("sticky", 0o1777), ("open", 0o777)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder).chmod(mode)
        (tmp_path / folder / "file").write_bytes(b"old")
        (tmp_path / folder / "file").chmod(0o666)

        command = [sys.executable, "-c", _AS_ANOTHER, f"{tmp_path}/from", f"{tmp_path}/{folder}/file"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

        assert (done.stdout, done.stderr) == ("True\n", "")
        assert (tmp_path / folder / "file").read_bytes() == b"new"
        assert (tmp_path / folder / "file").stat().st_uid == 0
        assert os.listdir(tmp_path / folder) == ["file"]


def test_a_file_that_must_not_be_written_stays(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user is needed")
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    (tmp_path / "from").write_bytes(b"new")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "file").write_bytes(b"old")
    os.chown(tmp_path / "open" / "file", 1234, 1234)
    (tmp_path / "open" / "file").chmod(0o444)

    command = [sys.executable, "-c", _AS_ANOTHER, f"{tmp_path}/from", f"{tmp_path}/open/file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "PermissionError" in done.stderr
    assert (tmp_path / "open" / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path / "open") == ["file"]


# -- finished files


def test_a_finished_file_takes_the_place_and_the_mode_of_another_one(tmp_path: Path) -> None:
    (tmp_path / "to").write_bytes(b"old")
    (tmp_path / "to").chmod(0o640)
    (tmp_path / "link").symlink_to("to")
    (tmp_path / "part").write_bytes(b"new")
    (tmp_path / "part").chmod(0o600)

    assert not _install(tmp_path / "part", tmp_path / "link", Attributes(None, 5, 6))

    assert (tmp_path / "to").read_bytes() == b"new"
    assert _mode(tmp_path / "to") == 0o640
    assert (tmp_path / "to").stat().st_mtime_ns == 5
    assert sorted(os.listdir(tmp_path)) == ["link", "to"]


def test_a_finished_file_gets_what_is_asked_for(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / "part").write_bytes(b"new")
        (tmp_path / "old").touch()
        _install(tmp_path / "part", tmp_path / name, Attributes(0o751))
        assert _mode(tmp_path / name) == 0o751
    (tmp_path / "part").touch()
    (tmp_path / "part").chmod(0o604)
    _install(tmp_path / "part", tmp_path / "third")
    assert _mode(tmp_path / "third") == 0o604


def test_only_a_regular_file_can_be_moved_to_a_regular_one(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"new")
    os.link(tmp_path / "part", tmp_path / "same")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(IsADirectoryError):
        _install(tmp_path / "part", tmp_path / "folder")
    for source, target in (("part", "fifo"), ("fifo", "new"), ("folder", "new"), ("part", "same")):
        with pytest.raises(InvalidRequest):
            _install(tmp_path / source, tmp_path / target)
    with pytest.raises(FileNotFoundError):
        _install(tmp_path / "part", tmp_path / "none" / "file")
    (tmp_path / "part link").symlink_to("part")
    with pytest.raises(OSError) as raised:
        _install(tmp_path / "part link", tmp_path / "new")
    assert raised.value.errno == errno.ELOOP

    (tmp_path / "part link").unlink()
    assert sorted(os.listdir(tmp_path)) == before
