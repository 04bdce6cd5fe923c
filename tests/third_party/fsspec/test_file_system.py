"""Names, kinds, contents and errors, as fsspec's own local file system has them."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest
from fsspec.callbacks import Callback

from execclient import ReadOnly, WorkspaceWrite
from execclient.integrations.fsspec import ExecServerFileSystem
from execclient.sync import connect

ODD_NAMES = [
    "a b ",
    "ü",
    "x:1",
    "%41",
    "#?&",
    "new\nline",
    "back\\slash",
    "[ab]*?",
    "-rf",
    "~",
    "'\"",
    "{x}",
    "a::b",
]


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that the default sandbox only lets a client read."""
    with tempfile.TemporaryDirectory(dir=sys.prefix) as folder:
        (Path(folder) / "file").write_bytes(b"outside")
        yield Path(folder)


@pytest.mark.parametrize(
    ("url", "path", "daemon"),
    [
        ("execserver:///work/a b", "/work/a b", None),
        ("execserver:///work/", "/work", None),
        ("execserver:///", "/", None),
        ("execserver://", "", None),
        ("execserver://notes.txt", "notes.txt", None),
        ("execserver://host:8765/work/a:1", "/work/a:1", "ws://host:8765"),
        ("execserver://[::1]:8765", "/", "ws://[::1]:8765"),
        ("execserver://./a:1", "./a:1", None),
        ("/work//", "/work", None),
        ("a:1/b", "a:1/b", None),
    ],
)
@pytest.mark.without_chaos
def test_a_url_has_a_path_and_perhaps_the_daemon(url: str, path: str, daemon: str | None) -> None:
    kind = fsspec.get_filesystem_class("execserver")

    assert kind._strip_protocol(url) == path
    assert kind._get_kwargs_from_urls(url) == ({} if daemon is None else {"daemon_url": daemon})


@pytest.mark.parametrize("path", ["/work/a", "a/b", "a:1/b", "/", ""])
@pytest.mark.without_chaos
def test_a_path_and_its_url_are_the_same_file(fs: ExecServerFileSystem, path: str) -> None:
    url = fs.unstrip_protocol(path)

    assert os.path.normpath(fs._strip_protocol(url)) == os.path.normpath(path)
    assert fs._get_kwargs_from_urls(url) == {}


def test_relative_paths_begin_at_the_working_directory_of_the_daemon(
    fs: ExecServerFileSystem, url: str
) -> None:
    with connect(url) as executor:
        cwd = executor.cwd
    fs.pipe_file("relative/file", b"data")
    try:
        assert fs.cat_file(f"{cwd}/relative/file") == b"data"
        assert fs.ls("relative", detail=False) == ["relative/file"]
        assert "relative" in fs.ls("", detail=False)
        assert fs.find("relative") == fs.glob("relative/*") == ["relative/file"]
        assert [fs._parent(path) for path in ("relative/file", "relative", "/a/b", "/a")] == [
            "relative",
            "",
            "/a",
            "/",
        ]
    finally:
        fs.rm("relative", recursive=True)
    assert not fs.exists("relative")


@pytest.mark.without_chaos
def test_the_default_sandbox_lets_a_client_read_and_not_change_other_folders(
    fs: ExecServerFileSystem, outside: Path, folder: Path
) -> None:
    file = str(outside / "file")
    (folder / "local").write_bytes(b"new")
    changes = {
        "pipe": lambda fs: fs.pipe_file(file, b"new"),
        "create": lambda fs: fs.pipe_file(f"{file}.new", b"new", mode="create"),
        "put": lambda fs: fs.put_file(str(folder / "local"), file),
        "copy": lambda fs: fs.cp_file(file, f"{file}.copy"),
        "move": lambda fs: fs.mv(file, f"{file}.moved"),
        "mkdir": lambda fs: fs.mkdir(str(outside / "new")),
        "rm_file": lambda fs: fs.rm_file(file),
        "rm": lambda fs: fs.rm(str(outside), recursive=True),
    }

    assert fs.cat_file(file) == b"outside"
    for name, change in changes.items():
        with pytest.raises(OSError) as caught:
            change(fs)
        assert caught.value.errno in (errno.EROFS, errno.EBUSY), name
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_bytes() == b"outside"

    free = ExecServerFileSystem(fs.daemon_url, sandbox=None)
    for change in changes.values():
        (outside).mkdir(exist_ok=True)
        (outside / "file").write_bytes(b"outside")
        change(free)
    assert not outside.exists()
    outside.mkdir()


@pytest.mark.without_chaos
def test_the_sandbox_is_a_policy_or_its_name(url: str, folder: Path) -> None:
    (folder / "secret").write_bytes(b"secret")
    denying = ExecServerFileSystem(url, sandbox=WorkspaceWrite(deny_read=(f"{folder}/secret",)))
    with pytest.raises(PermissionError):
        denying.cat_file(f"{folder}/secret")

    for sandbox in (ReadOnly(), "read-only"):
        reader = ExecServerFileSystem(url, sandbox=sandbox)
        assert reader.cat_file(f"{folder}/secret") == b"secret"
        with pytest.raises(OSError, match="Read-only"):
            reader.touch(f"{folder}/new")

    (folder / "granted").mkdir()
    configured = {"type": "workspace-write", "exclude_slash_tmp": True, "exclude_tmpdir_env_var": True}
    granting = ExecServerFileSystem(url, sandbox={**configured, "writable_roots": [f"{folder}/granted"]})
    granting.touch(f"{folder}/granted/new")
    with pytest.raises(OSError, match="Read-only"):
        granting.touch(f"{folder}/new")


@pytest.mark.without_chaos
def test_wrong_options_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="none of read-only, workspace-write"):
        ExecServerFileSystem(url, sandbox="readonly")
    with pytest.raises(ValueError, match="writable_root is unknown"):
        ExecServerFileSystem(url, sandbox={"type": "workspace-write", "writable_root": []})
    with pytest.raises(TypeError, match="sandox is no storage option"):
        ExecServerFileSystem(url, sandox="read-only")
    assert ExecServerFileSystem(url, use_listings_cache=False).isdir("/")


@pytest.mark.without_chaos
def test_options_come_from_the_configuration_of_fsspec(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "execserver", {})
    monkeypatch.setenv("FSSPEC_EXECSERVER_SANDBOX", "read-only")
    monkeypatch.setenv("FSSPEC_EXECSERVER_DAEMON_URL", url)
    fsspec.config.set_conf_env(fsspec.config.conf)

    with pytest.raises(OSError, match="Read-only"):
        fsspec.filesystem("execserver").touch(f"{folder}/new")


def test_a_file_is_touched(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    os.utime(folder / "file", (1, 1))

    fs.touch(f"{folder}/file", truncate=False)
    assert time.time() - (folder / "file").stat().st_mtime < 60
    assert (folder / "file").read_bytes() == b"data"
    fs.touch(f"{folder}/file")
    assert (folder / "file").read_bytes() == b""
    fs.touch(f"{folder}/new", truncate=False)
    assert (folder / "new").exists()


@pytest.mark.without_chaos
def test_the_workspace_is_the_folder_that_can_be_changed(url: str, folder: Path) -> None:
    (folder / "inside").mkdir()
    policy = WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir=True)
    fs = ExecServerFileSystem(url, sandbox=policy, workspace=f"{folder}/inside")

    fs.pipe_file(f"{folder}/inside/file", b"data")
    with pytest.raises(OSError, match="Read-only"):
        fs.pipe_file(f"{folder}/file", b"data")


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.without_chaos
def test_names_may_have_any_character(fs: ExecServerFileSystem, folder: Path, name: str) -> None:
    path = f"{folder}/{name}"
    fs.pipe_file(path, b"data")

    assert (folder / name).read_bytes() == b"data"
    assert [info["name"] for info in fs.ls(str(folder))] == fs.find(str(folder)) == [path]
    with fs.open(fs.unstrip_protocol(path)) as file:
        assert file.read() == b"data"
    fs.mv(path, f"{path}2")
    fs.rm_file(f"{path}2")
    assert list(folder.iterdir()) == []


@pytest.mark.without_chaos
def test_a_listing_says_the_same_as_a_look_at_each_path(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"12345")
    (folder / "file").chmod(0o640)
    (folder / "directory").mkdir()
    (folder / "link").symlink_to("file")
    (folder / "dangling").symlink_to("nothing")
    os.mkfifo(folder / "fifo")

    infos = {Path(info["name"]).name: info for info in fs.ls(str(folder))}
    assert infos == {name: fs.info(f"{folder}/{name}") for name in ("directory", "fifo", "file", "link")}
    assert {name: info["type"] for name, info in infos.items()} == {
        "directory": "directory",
        "fifo": "other",
        "file": "file",
        "link": "file",
    }
    assert infos["file"]["size"] == infos["link"]["size"] == 5
    assert infos["file"]["mode"] == stat.S_IFREG | 0o640
    assert [name for name, info in infos.items() if info["islink"]] == ["link"]
    assert fs.ls(f"{folder}/file") == [infos["file"]]
    assert fs.ls(f"{folder}/file", detail=False) == [f"{folder}/file"]


@pytest.mark.without_chaos
def test_links_to_directories_are_not_walked_and_not_removed_with_their_target(
    fs: ExecServerFileSystem, folder: Path
) -> None:
    (folder / "target").mkdir()
    (folder / "target/file").write_bytes(b"data")
    (folder / "tree").mkdir()
    (folder / "tree/loop").symlink_to("..")
    (folder / "tree/dangling").symlink_to("nothing")
    (folder / "link").symlink_to("target")

    assert fs.isdir(f"{folder}/link")
    assert fs.find(f"{folder}/tree") == [f"{folder}/tree/loop"]
    with pytest.raises(NotADirectoryError):
        fs.rmdir(f"{folder}/link")
    fs.rm_file(f"{folder}/link")
    fs.rm(f"{folder}/tree", recursive=True)
    assert [path.name for path in folder.iterdir()] == ["target"]
    assert (folder / "target/file").read_bytes() == b"data"


@pytest.mark.without_chaos
def test_a_dangling_link_does_not_exist_and_can_be_removed(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "dangling").symlink_to("nothing")

    assert not fs.exists(f"{folder}/dangling")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{folder}/dangling", b"data", mode="create")
    fs.rm(f"{folder}/dangling")
    assert list(folder.iterdir()) == []


def test_a_link_is_copied_as_the_file_behind_it(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    (folder / "link").symlink_to("file")

    fs.cp_file(f"{folder}/link", f"{folder}/new/copy")

    assert not (folder / "new/copy").is_symlink()
    assert (folder / "new/copy").read_bytes() == b"data"


@pytest.mark.without_chaos
def test_errors_are_those_of_python(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    (folder / "full").mkdir()
    (folder / "full/file").write_bytes(b"data")
    at = str(folder)

    for missing in (fs.info, fs.ls, fs.cat_file, fs.rm_file, fs.rmdir, fs.rm, fs.modified, fs.open):
        with pytest.raises(FileNotFoundError):
            missing(f"{at}/missing")
    for directory in (fs.cat_file, fs.open, fs.rm_file, lambda path: fs.pipe_file(path, b"")):
        with pytest.raises(IsADirectoryError):
            directory(f"{at}/full")
    for file in (fs.rmdir, lambda path: fs.pipe_file(f"{path}/below", b"")):
        with pytest.raises(NotADirectoryError):
            file(f"{at}/file")
    for existing in (fs.mkdir, fs.makedirs):
        with pytest.raises(FileExistsError):
            existing(f"{at}/full")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{at}/full")
    assert not fs.exists(f"{at}/file/below")
    assert not fs.isdir(f"{at}/file/below")
    with pytest.raises(ValueError, match="'overwrite' or 'create'"):
        fs.pipe_file(f"{at}/file", b"", mode="append")
    with pytest.raises(ValueError, match="maxdepth"):
        fs.rm(at, recursive=True, maxdepth=1)
    with pytest.raises(NotImplementedError):
        fs.open(f"{at}/file", "r+b")
    os.mkfifo(folder / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        fs.open(f"{at}/fifo")
    assert (folder / "file").read_bytes() == b"data"


@pytest.mark.without_chaos
def test_missing_parents_are_an_error_if_they_are_not_to_be_made(url: str, folder: Path) -> None:
    fs = ExecServerFileSystem(url, auto_mkdir=False)

    with pytest.raises(FileNotFoundError):
        fs.pipe_file(f"{folder}/new/file", b"data")
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{folder}/new/directory", create_parents=False)
    assert list(folder.iterdir()) == []


@pytest.mark.without_chaos
def test_times_are_those_of_the_file(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    os.utime(folder / "file", (1, 2.5))

    assert fs.modified(f"{folder}/file") == datetime.fromtimestamp(2.5, UTC)
    with connect(fs.daemon_url) as executor:
        created = executor.fs.stat(folder / "file").created
    if created is None:
        with pytest.raises(NotImplementedError, match="does not record"):
            fs.created(f"{folder}/file")
    else:
        assert fs.created(f"{folder}/file").timestamp() == created


@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (0, 5), (3, None), (-4, None), (None, -4), (-9, -2), (8, 99), (7, 3)]
)
@pytest.mark.without_chaos
def test_a_part_of_a_file_is_what_a_slice_is(
    fs: ExecServerFileSystem, folder: Path, start: int | None, end: int | None
) -> None:
    data = b"0123456789"
    (folder / "file").write_bytes(data)

    assert fs.cat_file(f"{folder}/file", start, end) == data[start:end]


@pytest.mark.without_chaos
def test_files_without_a_size_are_read_to_their_end(fs: ExecServerFileSystem) -> None:
    content = Path("/proc/version").read_bytes()

    assert fs.cat_file("/proc/version") == content
    assert fs.cat_file("/proc/version", 2, -2) == content[2:-2]


def test_more_files_are_read_at_once_than_a_connection_has_handles(
    fs: ExecServerFileSystem, folder: Path
) -> None:
    names = [f"{folder}/{number}" for number in range(300)]
    for name in names:
        Path(name).write_text(name)

    parts = fs.cat_ranges(names, 1, 10_000)

    assert parts == [name[1:].encode() for name in names]
    assert fs.cat(names) == {name: name.encode() for name in names}


def test_threads_share_a_file_system(fs: ExecServerFileSystem, folder: Path) -> None:
    def write_and_read(number: int) -> bytes:
        path = f"{folder}/{number % 4}/{number}"
        with fs.open(path, "wb") as file:
            file.write(b"%d" % number)
        return bytes(fs.cat_file(path))

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(write_and_read, range(64))) == [b"%d" % number for number in range(64)]


def test_of_those_that_create_a_file_exactly_one_succeeds(fs: ExecServerFileSystem, folder: Path) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        try:
            fs.pipe_file(f"{folder}/lock", b"the same", mode="create")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create, range(8))) == 1
    assert (folder / "lock").read_bytes() == b"the same"


def test_a_file_is_moved_by_renaming(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "tree").mkdir()
    (folder / "tree/file").write_bytes(b"data")
    (folder / "into").mkdir()
    inode = (folder / "tree/file").stat().st_ino

    fs.mv(f"{folder}/tree/file", f"{folder}/tree/renamed")
    fs.mv(f"{folder}/tree", f"{folder}/into")
    fs.mv(f"{folder}/into/tree", f"{folder}/new/place")
    fs.mv(f"{folder}/new", f"{folder}/new")

    assert (folder / "new/place/renamed").stat().st_ino == inode
    assert [path.name for path in (folder / "into").iterdir()] == []
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{folder}/missing", f"{folder}/new")


def test_a_move_between_two_folders_of_the_sandbox_copies(fs: ExecServerFileSystem, folder: Path) -> None:
    # The workspace and the folder for temporary files are two mounts in a sandbox.
    (folder / "tree/below").mkdir(parents=True)
    (folder / "tree/below/file").write_bytes(b"data")
    (folder / "tree/link").symlink_to("below")

    (folder / "[t]ree").mkdir()
    fs.mv(f"{folder}/[t]ree", "empty")
    assert [path.name for path in folder.iterdir()] == ["tree"]

    fs.mv(f"{folder}/tree", "moved")
    try:
        assert fs.cat_file("moved/below/file") == b"data"
        assert fs.info("moved/link")["islink"]
        assert list(folder.iterdir()) == []
    finally:
        fs.rm(["moved", "empty"], recursive=True)


class Count(Callback):
    """What a progress bar shows: files of a tree, and bytes of each."""

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[Callback] = []

    def branched(self, path_1: str, path_2: str, **kwargs: object) -> Callback:
        self.branches.append(Callback())
        return self.branches[-1]


def test_trees_are_copied_in_both_directions_with_progress(
    fs: ExecServerFileSystem, folder: Path, tmp_path: Path
) -> None:
    here, back = tmp_path / "here", tmp_path / "back"
    contents = {f"{number % 5}/{number}": os.urandom(number * 300) for number in range(60)}
    for name, data in contents.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(data)
    (here / "empty").mkdir()

    sent, received = Count(), Count()
    fs.put(str(here), f"{folder}/tree", recursive=True, callback=sent)
    fs.get(f"{folder}/tree", str(back), recursive=True, callback=received)

    for place in (folder / "tree", back):
        files = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
        assert {name: path.read_bytes() for name, path in files.items()} == contents
        assert (place / "empty").is_dir()
    assert sent.size == sent.value == len(contents)
    for count in (sent, received):
        assert sum(branch.value for branch in count.branches) == sum(map(len, contents.values()))


def test_a_file_of_several_blocks_survives_both_ways(
    fs: ExecServerFileSystem, folder: Path, tmp_path: Path
) -> None:
    data = os.urandom(3_500_000)
    (tmp_path / "local").write_bytes(data)

    fs.put_file(str(tmp_path / "local"), f"{folder}/file")
    fs.get_file(f"{folder}/file", str(tmp_path / "new/back"))

    assert (folder / "file").read_bytes() == (tmp_path / "new/back").read_bytes() == data
    with fs.open(f"{folder}/file", block_size=500_000) as file:
        assert b"".join(iter(lambda: file.read(123_456), b"")) == data
        file.seek(-10, io.SEEK_END)
        assert file.read() == data[-10:]
