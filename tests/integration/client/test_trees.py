"""Whole trees: there and back, what is left out, lost connections, full disks, earlier servers."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import execclient.sync
from execclient import (
    Executor,
    LeftOut,
    SystemFailure,
    TransferFailed,
    TreeCopied,
    TreeProgress,
    Unsupported,
    connect,
)
from tests.conftest import StartServer
from tests.integration.client.test_transfer_modes import OF_THIS_VERSION
from tests.support.cutting_proxy import Cut, cutting
from tests.support.mounts import small_disk

BATCHES = {"fs/putFiles", "fs/getFiles"}
KIB = 1 << 10
LONG_AGO = 1_000_000_000_987_654_321


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder for this side, while the other side has the one around it."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def tree(here: Path) -> Path:
    """A tree with big and small files, odd names, and directories that forbid things."""
    top = here / "tree"
    modes = {"": 0o750, "closed": 0o555, "closed/secret": 0o700, "empty": 0o711, "ü/日本": 0o755}
    deep = "/".join("deep" for _ in range(30))
    for name in (*modes, deep):
        (top / name).mkdir(parents=True, exist_ok=True)
    files: dict[str, tuple[bytes | int, int]] = {
        "closed/secret/key": (b"k", 0o400), "closed/run": (b"#!/bin/sh", 0o755), "nothing": (b"", 0o644),
        "ü/日本/\U0001f600 [x]\n": (b"odd", 0o640), f"{deep}/bottom": (b"b", 0o600),
        "large": (2 * KIB * KIB + 1, 0o644), "middle": (300 * KIB, 0o604), "limit": (256 * KIB, 0o644),
        "guess": (100 * KIB, 0o644), ".hidden": (b".", 0o644),
    }  # fmt: skip
    files |= {f"many/{number}": (b"%d" % number, 0o644) for number in range(300)}
    (top / "many").mkdir()
    for name, (content, bits) in files.items():
        (top / name).write_bytes(os.urandom(content) if isinstance(content, int) else content)
        (top / name).chmod(bits)
        os.utime(top / name, ns=(5, LONG_AGO + len(name)))
    (top / "link").symlink_to("large")
    for name, bits in reversed(modes.items()):
        (top / name).chmod(bits)
        os.utime(top / name, ns=(7, LONG_AGO))
    return top


Found = dict[str, tuple[int, bytes | None, int | None]]


def found_in(top: Path, *, times: bool = False) -> Found:
    """Mode, content and time of everything in a tree."""
    return {
        str(path.relative_to(top)): (
            stat.S_IMODE(path.stat().st_mode),
            path.read_bytes() if path.is_file() else None,
            path.stat().st_mtime_ns if times else None,
        )
        for path in (top, *top.rglob("*"))
    }


def earlier(executor: Executor, *without: str) -> None:
    """Let the client take the server for an earlier one."""
    executor._session.capabilities -= set(without)


@pytest.mark.parametrize(("preserve", "old_server"), [(False, False), (True, False), (True, True)])
async def test_a_tree_goes_there_and_back(
    executor: Executor, tmp_path: Path, here: Path, tree: Path, preserve: bool, old_server: bool
) -> None:
    if old_server:
        earlier(executor, *BATCHES)
    fs = executor.fs

    up = await fs.upload_tree(tree, tmp_path / "new" / "there", preserve_times=preserve)
    down = await fs.download_tree(tmp_path / "new" / "there", here / "new" / "back", preserve_times=preserve)

    wanted = found_in(tree, times=preserve)
    assert found_in(tmp_path / "new" / "there", times=preserve) == wanted
    assert found_in(here / "new" / "back", times=preserve) == wanted
    files = [path for path in tree.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    assert up == down == TreeCopied(len(files), len(wanted) - len(files), size)
    assert not [
        path for path in tmp_path.rglob("*") if ".part" in path.name or "execserver-copy" in path.name
    ]
    # Again: everything is replaced, and nothing else changes.
    assert await fs.upload_tree(tree, tmp_path / "new" / "there", preserve_times=preserve) == up
    assert found_in(tmp_path / "new" / "there", times=preserve) == wanted


async def test_a_tree_is_merged_into_one_that_exists(executor: Executor, tmp_path: Path, here: Path) -> None:
    def lay_out(source: Path, target: Path) -> None:
        for folder in (source, target):
            (folder / "d").mkdir(parents=True)
            (folder / "d" / "both").write_text(folder.name)
            (folder / "d" / folder.name).write_text("x")
        (source / "d").chmod(0o700)
        (source / "d" / "both").chmod(0o755)
        (target / "d").chmod(0o770)
        (target / "d" / "both").chmod(0o600)

    lay_out(here / "source", tmp_path / "there")
    lay_out(tmp_path / "source2", here / "back")
    for copy, source, target in (
        (executor.fs.upload_tree, here / "source", tmp_path / "there"),
        (executor.fs.download_tree, tmp_path / "source2", here / "back"),
    ):
        for preserve, folder_mode, file_mode in ((False, 0o770, 0o600), (True, 0o700, 0o755)):
            await copy(source, target, preserve_times=preserve)
            assert sorted(os.listdir(target / "d")) == sorted(["both", source.name, target.name])
            assert (target / "d" / "both").read_text() == source.name
            assert stat.S_IMODE((target / "d").stat().st_mode) == folder_mode
            assert stat.S_IMODE((target / "d" / "both").stat().st_mode) == file_mode


async def test_a_server_without_modes_is_told_of(executor: Executor, tmp_path: Path, tree: Path) -> None:
    earlier(executor, *BATCHES, *OF_THIS_VERSION)

    copied = await executor.fs.upload_tree(tree, tmp_path / "there")

    assert not copied.modes_kept
    assert {name: found[1] for name, found in found_in(tmp_path / "there").items()} == {
        name: found[1] for name, found in found_in(tree).items()
    }
    with pytest.raises(Unsupported):
        await executor.fs.upload_tree(tree, "x", preserve_times=True)
    with pytest.raises(Unsupported):
        await executor.fs.download_tree(tree, tmp_path / "x", preserve_times=True)


# -- what is left out


async def test_names_that_are_not_text_are_uploaded_and_reported_on_the_way_back(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    (here / "tree" / os.fsdecode(b"d\xff")).mkdir(parents=True)
    (here / "tree" / os.fsdecode(b"d\xff") / os.fsdecode(b"\xfe")).write_text("x")

    up = await executor.fs.upload_tree(here / "tree", tmp_path / "there")
    down = await executor.fs.download_tree(tmp_path / "there", here / "back")

    assert found_in(tmp_path / "there") == found_in(here / "tree")
    assert (up.files, up.left_out) == (1, [])
    assert [(each.reason, each.remote) for each in down.left_out] == [
        ("it is gone, or its name is not UTF-8", True)
    ]


@pytest.mark.parametrize("old_server", [False, True])
async def test_what_cannot_be_copied_is_reported_and_the_rest_is_copied(
    executor: Executor, tmp_path: Path, here: Path, old_server: bool
) -> None:
    if old_server:
        earlier(executor, *BATCHES)
    for top in (here / "tree", tmp_path / "source"):
        (top / "d").mkdir(parents=True)
        (top / "file").write_text("x")
        (top / "blocked").write_text("y")
        os.mkfifo(top / "fifo")
        (top / "links").symlink_to("d")
    for target in (tmp_path / "there", here / "back"):
        (target / "blocked").mkdir(parents=True)
        (target / "in the way").write_text("z")
    for top in (here / "tree", tmp_path / "source"):
        (top / "in the way" / "below").mkdir(parents=True)
        for name in ("x", "below/y"):
            (top / "in the way" / name).write_text("x")

    up = await executor.fs.upload_tree(here / "tree", tmp_path / "there")
    down = await executor.fs.download_tree(tmp_path / "source", here / "back")

    is_directory = "Is a directory"
    for copied, source, target, remote in (
        (up, here / "tree", tmp_path / "there", True),
        (down, tmp_path / "source", here / "back", False),
    ):
        left = {each.path: each for each in copied.left_out}
        blocked = left.pop(str(target / "blocked"), None) or left.pop(str(source / "blocked"))
        assert left.pop(str(target / "in the way")).reason.startswith("File exists")
        assert (target / "in the way").read_text() == "z"
        assert is_directory in blocked.reason or "not a regular file" in blocked.reason
        assert left == {
            str(source / "fifo"): LeftOut(str(source / "fifo"), "neither a file nor a directory", not remote),
            str(source / "links"): LeftOut(
                str(source / "links"), "a link to a directory is not copied", not remote
            ),
        }
        assert sorted(os.listdir(target)) == ["blocked", "d", "file", "in the way"]
        assert (copied.files, copied.directories) == (1, 2)


async def test_files_that_vanish_or_grow_on_their_way(executor: Executor, tmp_path: Path, here: Path) -> None:
    """The progress is first reported when the tree is listed, and no file is open yet."""
    for top in (here / "tree", tmp_path / "source"):
        top.mkdir()
        for number in range(3):
            (top / f"{number}").write_bytes(bytes(200 * KIB))

    def meddle(top: Path, act: Callable[[Path], None]) -> Callable[[TreeProgress], None]:
        def show(progress: TreeProgress) -> None:
            if progress.total_files is not None and not progress.files and (top / "1").exists():
                act(top / "1")

        return show

    def grow(path: Path) -> None:
        if path.stat().st_size == 200 * KIB:
            path.write_bytes(bytes(300 * KIB))

    up = await executor.fs.upload_tree(
        here / "tree", tmp_path / "there", progress=meddle(here / "tree", grow)
    )
    assert (up.files, up.size, up.left_out) == (3, 700 * KIB, [])
    up = await executor.fs.upload_tree(
        here / "tree", tmp_path / "there", progress=meddle(here / "tree", os.unlink)
    )
    assert [(each.path, each.remote) for each in up.left_out] == [(str(here / "tree" / "1"), False)]
    down = await executor.fs.download_tree(
        tmp_path / "source", here / "back", progress=meddle(tmp_path / "source", grow)
    )
    assert (down.files, down.size) == (3, (here / "back" / "1").stat().st_size + 400 * KIB)
    for number in range(3):
        (tmp_path / "source" / f"{number}").write_bytes(bytes(400 * KIB))
    down = await executor.fs.download_tree(
        tmp_path / "source", here / "back2", progress=meddle(tmp_path / "source", os.unlink)
    )
    assert [(each.path, each.remote) for each in down.left_out] == [(str(tmp_path / "source" / "1"), True)]
    assert sorted(os.listdir(here / "back2")) == ["0", "2"]


async def test_many_files_that_grow_on_their_way_do_not_exceed_a_batch(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    (here / "tree").mkdir()
    files = [here / "tree" / f"{number}" for number in range(25)]
    for file in files:
        file.write_bytes(b"x")

    def grow(progress: TreeProgress) -> None:
        if not progress.files:
            for file in files:
                file.write_bytes(file.name.encode() * 100 * KIB)

    copied = await executor.fs.upload_tree(here / "tree", tmp_path / "there", progress=grow)

    assert (copied.files, copied.left_out) == (25, [])
    assert found_in(tmp_path / "there") == found_in(here / "tree")


async def test_a_file_that_is_written_to_is_copied_as_it_was_at_some_time(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    (tmp_path / "logs").mkdir()
    logs = [tmp_path / "logs" / f"{number}" for number in range(20)]
    ended = threading.Event()

    def write() -> None:
        files = [open(log, "ab", 0) for log in logs]  # noqa: SIM115 - closed below
        while not ended.is_set():
            for file in files:
                file.write(b"a line\n" * 100)
            if files[0].tell() > 500 * KIB:
                break
        for file in files:
            file.close()

    for log in logs:
        log.write_bytes(b"a line\n")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(2):
            down = await executor.fs.download_tree("logs", here / f"down {turn}")
            up = await executor.fs.upload_tree(tmp_path / "logs", f"up {turn}")
            assert (down.files, down.left_out, up.files, up.left_out) == (20, [], 20, [])
    finally:
        ended.set()
        writer.join()

    for copy in (*here.glob("down */*"), *tmp_path.glob("up */*")):
        text = copy.read_bytes()
        assert text == (b"a line\n" * (len(text) // 7 + 1))[: len(text)]


@pytest.mark.parametrize("way", ["patterns", "function"])
async def test_what_is_ignored_is_neither_copied_nor_reported(
    executor: Executor, tmp_path: Path, here: Path, way: str
) -> None:
    names = (
        "a.pyc", "keep.pyc", "a.py", "build/x", "d/build/x", "node_modules/m/x.js", "d/node_modules/x.js",
        "d/a.pyc", "docs/x.tmp", "d/docs/x.tmp",
    )  # fmt: skip
    for name in names:
        (here / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "tree" / name).write_text(name)
    os.mkfifo(here / "tree" / "node_modules" / "fifo")
    patterns = ["*.pyc", "!keep.pyc", "# a comment", "/build", "node_modules/", "docs/*.tmp", ""]
    ignore: Any = patterns
    asked: list[str] = []
    if way == "function":

        def ignore(path: str, is_directory: bool) -> bool:
            asked.append(path)
            name = path.rpartition("/")[2]
            return (
                (path.endswith(".pyc") and path != "keep.pyc")
                or path in ("build", "docs/x.tmp")
                or (is_directory and name == "node_modules")
            )

    up = await executor.fs.upload_tree(here / "tree", tmp_path / "there", ignore=ignore)
    down = await executor.fs.download_tree(here / "tree", here / "back", ignore=ignore)

    for target in (tmp_path / "there", here / "back"):
        files = sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file())
        assert files == ["a.py", "d/build/x", "d/docs/x.tmp", "keep.pyc"]
    assert up.left_out == down.left_out == []
    assert not [path for path in asked if path.startswith(("build/", "node_modules/"))]
    with pytest.raises(TypeError, match="a list of patterns"):
        await executor.fs.upload_tree(here / "tree", "x", ignore="*.pyc")


async def test_only_directories_are_trees(executor: Executor, tmp_path: Path, here: Path) -> None:
    (here / "file").write_text("x")
    (here / "d").mkdir()

    with pytest.raises(NotADirectoryError):
        await executor.fs.upload_tree(here / "file", "there")
    with pytest.raises(FileNotFoundError):
        await executor.fs.upload_tree(here / "no", "there")
    with pytest.raises(TransferFailed, match="not a directory"):
        await executor.fs.download_tree(here / "file", here / "back")
    with pytest.raises(FileNotFoundError):
        await executor.fs.download_tree(here / "no", here / "back")
    with pytest.raises(FileExistsError):
        await executor.fs.upload_tree(here / "d", here / "file")
    with pytest.raises(FileExistsError):
        await executor.fs.download_tree(here / "d", here / "file")
    assert sorted(os.listdir(here)) == ["d", "file"]
    assert not (tmp_path / "there").exists()


# -- progress, and the same without an event loop


def test_progress_is_reported_in_the_calling_thread(url: str, tmp_path: Path, tree: Path) -> None:
    shown: list[TreeProgress] = []
    threads = set()

    def show(progress: TreeProgress) -> None:
        shown.append(progress)
        threads.add(threading.get_ident())

    with execclient.sync.connect(url) as executor:
        up = executor.fs.upload_tree(tree, tmp_path / "there", progress=show)
        last_up = shown[-1]
        down = executor.fs.download_tree(tmp_path / "there", tmp_path / "back", progress=show)

    assert threads == {threading.get_ident()}
    assert last_up == shown[-1] == TreeProgress(up.files, up.size, up.files, up.size)
    assert (down.files, down.size) == (up.files, up.size)
    assert all(each.done <= (each.total or each.done) for each in shown)


# -- requests


@asynccontextmanager
async def counting(url: str, folder: Path) -> AsyncIterator[tuple[str, list[int]]]:
    """A way to a daemon at a Unix socket that counts the requests, and the turns of the line: how often a
    request came after an answer.
    """
    counts = [0, 0]
    answered = False
    connections: list[asyncio.Task[Any]] = []

    async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, asks: bool) -> None:
        nonlocal answered
        while data := await source.read(1 << 16):
            if asks:
                counts[0] += data.count(b"\n")
                counts[1] += answered
            answered = not asks
            sink.write(data)
        sink.close()
        with suppress(OSError):
            await sink.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.append(task)
        there_reader, there_writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
        await asyncio.gather(
            forward(reader, there_writer, asks=True), forward(there_reader, writer, asks=False)
        )

    async with await asyncio.start_unix_server(serve, folder / "counted"):
        yield f"unix://{folder}/counted", counts
        await asyncio.gather(*connections)  # the client has closed them


@pytest.mark.parametrize("url", ["unix"], indirect=True)
async def test_a_hundred_small_files_take_a_few_requests(url: str, tmp_path: Path, here: Path) -> None:
    (here / "tree").mkdir()
    for number in range(100):
        (here / "tree" / f"{number}").write_bytes(os.urandom(1000))
    async with counting(url, tmp_path) as (counted, counts), connect(counted) as executor:
        assert not await executor.fs.exists("there")  # what opened the session is done
        counts[:] = [0, 0]
        await executor.fs.upload_tree(here / "tree", tmp_path / "there")
        up = [*counts]
        counts[:] = [0, 0]
        await executor.fs.download_tree(tmp_path / "there", here / "back")
        down = [*counts]
        earlier(executor, *BATCHES)
        counts[:] = [0, 0]
        await executor.fs.upload_tree(here / "tree", tmp_path / "there 2")
        await executor.fs.download_tree(tmp_path / "there 2", here / "back 2")

    # Is it there? Its parents, itself, its files, its mode.
    assert up[0] <= 5
    # What is it? Its names, its files.
    assert down[0] <= 3
    assert up[1] + down[1] <= 8
    # With an earlier server each file takes several, and many are under way.
    assert counts[0] > 1000
    assert counts[1] < counts[0] / 4
    for copy in (here / "back", here / "back 2"):
        assert found_in(copy) == found_in(here / "tree")


# -- faults


def lay_out_many(top: Path, count: int = 900) -> Path:
    for number in range(count):
        folder = top / f"{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}").write_bytes(b"%d " % number * 400)
    (top / "large").write_bytes(os.urandom(2 * KIB * KIB))
    (top / "3").chmod(0o711)
    return top


@pytest.mark.parametrize("direction", ["to server", "to client"])
@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_connection_that_is_cut_again_and_again_costs_no_file(
    url: str, tmp_path: Path, here: Path, direction: Any, way: str
) -> None:
    source = lay_out_many(here / "tree")
    cuts = iter([100_000, 700_000, 9_000, 1_000_000])
    if (way, direction) in (("up", "to client"), ("down", "to server")):
        cuts = iter([9_000, 10_000])  # little is sent in this direction

    def plan() -> Cut | None:
        size = next(cuts, None)
        return None if size is None else (direction, size)

    async with cutting(url, tmp_path, plan) as proxy, connect(proxy.url) as executor:
        if way == "up":
            copied = await executor.fs.upload_tree(source, tmp_path / "copy")
        else:
            copied = await executor.fs.download_tree(source, tmp_path / "copy")
        assert proxy.cuts >= 1

    assert copied.left_out == []
    assert found_in(tmp_path / "copy") == found_in(source)


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_server_that_is_killed_on_the_way_costs_no_file(
    start_server: StartServer, tmp_path: Path, here: Path, way: str
) -> None:
    source = lay_out_many(here / "tree")
    server = start_server(f"unix://{tmp_path}/s")
    killed: list[int] = []

    def kill(progress: TreeProgress) -> None:
        if progress.files >= 200 * (len(killed) + 1) and len(killed) < 2:
            for child in psutil.Process(server.pid).children():  # none while it is started again
                with suppress(ProcessLookupError):  # it is the one before
                    os.kill(child.pid, signal.SIGKILL)
                    killed.append(child.pid)

    async with connect(server.url) as executor:
        if way == "up":
            copied = await executor.fs.upload_tree(source, tmp_path / "copy", progress=kill)
        else:
            copied = await executor.fs.download_tree(source, tmp_path / "copy", progress=kill)

    assert killed
    assert copied.left_out == []
    assert found_in(tmp_path / "copy") == found_in(source)


@pytest.mark.parametrize("url", ["unix"], indirect=True)
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("old_server", [False, True])
async def test_a_full_disk_ends_the_copy_and_leaves_whole_files_only(
    executor: Executor, tmp_path: Path, here: Path, way: str, old_server: bool
) -> None:
    if old_server:
        earlier(executor, *BATCHES)
    (here / "tree").mkdir()
    for number in range(400):
        (here / "tree" / f"{number:03}").write_bytes(b"%03d " % number * 2000)
    with small_disk(tmp_path / "disk") as disk:
        (disk / "copy").mkdir()
        (disk / "copy" / "399").write_bytes(b"old")
        copy = executor.fs.upload_tree if way == "up" else executor.fs.download_tree
        with pytest.raises(SystemFailure if way == "up" else OSError, match="No space left"):
            await copy(here / "tree", disk / "copy")
        copied = {path.name: path.read_bytes() for path in (disk / "copy").iterdir()}
        for name, content in copied.items():
            assert content == f"{name} ".encode() * 2000 or (name, content) == ("399", b"old"), name
        assert 50 < len(copied) < 400


def set_when_begun(begun: asyncio.Event, progress: TreeProgress) -> None:
    if progress.files:
        begun.set()


async def test_a_cancelled_copy_leaves_whole_files_only(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    source = lay_out_many(here / "tree")
    for copy, target in (
        (executor.fs.upload_tree, tmp_path / "there"),
        (executor.fs.download_tree, here / "back"),
    ):
        begun = asyncio.Event()
        task = asyncio.create_task(copy(source, target, progress=partial(set_when_begun, begun)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wanted = found_in(source)
        for name, (_, content, _) in found_in(target).items():
            assert content == wanted[name][1]


async def test_a_server_that_damages_contents_is_noticed(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    """The client compares what it receives. What it sends is compared by the server
    (`tests/conformance/test_batches.py`).
    """
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"right")
    call = executor._session.call
    single: list[str] = []

    async def damage(method: str, params: Any, **options: Any) -> Any:
        result = await call(method, params, **options)
        if method == "fs/getFiles":
            result["entries"][0]["dataBase64"] = "d3Jvbmc="
        single.append(method)
        return result

    executor._session.call = damage  # type: ignore[method-assign]
    copied = await executor.fs.download_tree("source", here / "back")

    assert (here / "back" / "file").read_bytes() == b"right"
    assert (copied.files, copied.left_out) == (1, [])
    assert "fs/readBlock" in single


@pytest.mark.parametrize(
    "entries", [[], [{}, {}], "x", None, [5], [{"error": 5}], [{"error": {"code": "x"}}], [{"isFile": True}]]
)
async def test_an_answer_that_is_not_of_the_protocol_is_a_fault(
    executor: Executor, tmp_path: Path, here: Path, entries: Any
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(b"x")
    call = executor._session.call

    async def lie(method: str, params: Any, **options: Any) -> Any:
        result = await call(method, params, **options)
        return {"entries": entries} if method == lying else result

    executor._session.call = lie  # type: ignore[method-assign]
    lying = "fs/getFiles"
    with pytest.raises(execclient.ProtocolFault):
        await executor.fs.download_tree("source", here / "back")
    lying = "fs/putFiles"
    if entries != [{"isFile": True}]:  # without an error all is well
        with pytest.raises(execclient.ProtocolFault):
            await executor.fs.upload_tree(tmp_path / "source", "there")


@pytest.mark.parametrize("time", [1 << 70, 10**40, -(10**40)])
async def test_a_time_that_no_file_can_have_leaves_out_its_file_and_no_other(
    executor: Executor, tmp_path: Path, here: Path, time: int
) -> None:
    (tmp_path / "source").mkdir()
    for name in ("file", "other"):
        (tmp_path / "source" / name).write_text(name)
    call = executor._session.call

    async def lie(method: str, params: Any, **options: Any) -> Any:
        result = await call(method, params, **options)
        if method == "fs/getFiles":
            result["entries"][0]["accessedAtNs"] = time
        return result

    executor._session.call = lie  # type: ignore[method-assign]
    copied = await executor.fs.download_tree("source", here / "back", preserve_times=True)

    assert found_in(here / "back").keys() >= {"other"}
    assert [os.path.basename(each.path) for each in copied.left_out] in (["file"], [])
    assert sorted(os.listdir(here / "back")) == (["other"] if copied.left_out else ["file", "other"])
