"""Renaming, digests, walks, and copies between two machines."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from execclient import (
    Executor,
    NotFound,
    OutcomeUnknown,
    Progress,
    SystemFailure,
    TransferFailed,
    Unsupported,
    WalkEntry,
    WalkIncomplete,
    connect,
)
from execclient.local_files import Attributes, LocalTarget
from tests.support.servers import open_files
from tests.support.wire import PATIENCE

MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder for this side, while the other side has the one around it."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def random_file(path: Path, size: int) -> bytes:
    data = os.urandom(size)
    path.write_bytes(data)
    return data


async def test_paths_are_asked_about(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    fs = executor.fs

    assert [await fs.exists(name) for name in ("file", "link", "dangling", "none", "/")] == [1, 1, 0, 0, 1]
    assert [await fs.is_file(name) for name in ("file", "link", "dangling", "none", "/")] == [1, 1, 0, 0, 0]
    assert [await fs.is_dir(name) for name in ("file", "link", "dangling", "none", "/")] == [0, 0, 0, 0, 1]
    assert await fs.resolve("link") == os.path.realpath(tmp_path / "file")
    with pytest.raises(NotFound):
        await fs.resolve("dangling")


async def test_a_tree_is_walked_level_by_level(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "tree/b/deep").mkdir(parents=True)
    (tmp_path / "tree/.hidden").mkdir()
    for name in ("a", "b/file", "b/deep/file", ".hidden/file"):
        (tmp_path / "tree" / name).write_bytes(b"")

    def names(entries: list[WalkEntry]) -> list[tuple[str, bool]]:
        return [(entry.path.removeprefix(f"{tmp_path}/tree/"), entry.is_dir) for entry in entries]

    top = [(".hidden", True), ("a", False), ("b", True)]
    below = [("b/deep", True), ("b/file", False)]
    deep = [("b/deep/file", False)]
    assert names(await executor.fs.walk("tree")) == [*top, (".hidden/file", False), *below, *deep]
    assert names(await executor.fs.walk("tree", hidden=False)) == [*top, *below, *deep]
    assert names(await executor.fs.walk("tree", max_depth=0)) == top


@pytest.mark.parametrize("url", ["unix"], indirect=True)
async def test_a_tree_that_is_too_large_gives_what_there_is(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    for number in range(50_001):
        os.mknod(tmp_path / "large" / str(number))

    with pytest.raises(WalkIncomplete) as raised:
        await executor.fs.walk("large")

    assert len(raised.value.entries) == 50_000


async def test_names_are_changed_in_one_step(executor: Executor, tmp_path: Path) -> None:
    fs = executor.fs
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")

    with pytest.raises(SystemFailure, match="File exists"):
        await fs.rename("a", "b", overwrite=False)
    await fs.rename("a", "b")

    assert (tmp_path / "b").read_text() == "a"
    with pytest.raises(NotFound):
        await fs.rename("a", "c")


async def test_the_digest_is_that_of_the_file(executor: Executor, tmp_path: Path) -> None:
    data = random_file(tmp_path / "file", 3 * MIB + 5)
    expected = hashlib.sha256(data).hexdigest()

    assert await executor.fs.digest("file") == expected
    executor._session.capabilities -= {"fs/digest"}
    assert await executor.fs.digest("file") == expected


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 20 * MIB, 20 * MIB + 7])
async def test_files_of_all_sizes_go_there_and_back(
    executor: Executor, tmp_path: Path, here: Path, size: int
) -> None:
    data = random_file(here / "file", size)
    there: list[Progress] = []
    back: list[Progress] = []

    await executor.fs.upload(here / "file", "copy", progress=there.append)
    await executor.fs.download("copy", here / "back", progress=back.append)

    assert (tmp_path / "copy").read_bytes() == data
    assert (here / "back").read_bytes() == data
    for steps in (there, back):
        assert [step.done for step in steps] == [*range(MIB, size, MIB), *([size] if size else [])]
        assert {step.total for step in steps} <= {size}
    assert sorted(os.listdir(here)) == ["back", "file"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


async def test_open_files_are_transferred_too(executor: Executor, tmp_path: Path) -> None:
    data = os.urandom(2 * MIB + 3)
    target = io.BytesIO()
    steps: list[Progress] = []

    await executor.fs.upload(io.BytesIO(data), "copy", progress=steps.append)
    await executor.fs.download("copy", target)

    assert target.getvalue() == data
    assert steps[-1] == (len(data), None)


async def test_what_reports_no_size_is_downloaded_to_its_end(executor: Executor, here: Path) -> None:
    await executor.fs.download("/proc/cpuinfo", here / "cpuinfo", verify=False)

    assert (here / "cpuinfo").read_bytes().startswith(b"processor")


async def test_a_replaced_file_keeps_its_mode_and_a_link_stays(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    (here / "new").write_text("new")
    for folder in (tmp_path, here):
        (folder / "tool").write_text("old")
        (folder / "tool").chmod(0o750)
        (folder / "link").symlink_to("tool")

    await executor.fs.upload(here / "new", "link")
    await executor.fs.download(tmp_path / "tool", here / "link")

    for folder in (tmp_path, here):
        assert (folder / "tool").read_text() == "new"
        assert (folder / "tool").stat().st_mode & 0o777 == 0o750
        assert (folder / "link").is_symlink()


async def test_a_failed_transfer_leaves_everything_as_it_was(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    (here / "file").write_text("new")
    (tmp_path / "folder").mkdir()
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(TransferFailed, match="not a regular file"):
        await executor.fs.upload(here / "file", "folder")
    with pytest.raises(NotFound):
        await executor.fs.upload(here / "file", "missing/file")
    with pytest.raises(NotFound):
        await executor.fs.download("missing", here / "file")
    with pytest.raises(FileNotFoundError):
        await executor.fs.upload(here / "missing", "file")

    assert (here / "file").read_text() == "new"
    assert os.listdir(here) == ["file"]
    assert sorted(os.listdir(tmp_path)) == before


def interfering(act: Callable[[], object], at: int) -> Callable[[Progress], None]:
    """Does something once, when a transfer has come as far as that."""
    done = False

    def progress(step: Progress) -> None:
        nonlocal done
        if step.done >= at and not done:
            done = True
            act()

    return progress


async def test_a_file_that_changes_on_its_way_is_no_success(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    random_file(tmp_path / "file", 20 * MIB)
    (here / "file").write_text("old")

    def change() -> None:
        with open(tmp_path / "file", "r+b") as file:
            file.write(b"changed")

    with pytest.raises(TransferFailed):
        await executor.fs.download("file", here / "file", progress=interfering(change, 2 * MIB))

    assert (here / "file").read_text() == "old"
    assert os.listdir(here) == ["file"]


async def test_a_damaged_part_is_noticed_and_the_target_is_as_it_was(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    random_file(here / "file", 20 * MIB)
    (tmp_path / "file").write_text("old")

    def damage() -> None:
        (part,) = tmp_path.glob(".file.*.part")
        with open(part, "r+b") as file:
            file.write(b"damaged")

    with pytest.raises(TransferFailed, match="the new file differs from the sent data"):
        await executor.fs.upload(here / "file", "file", progress=interfering(damage, 3 * MIB))

    assert (tmp_path / "file").read_text() == "old"
    assert list(tmp_path.glob(".file.*")) == []


async def test_cancelling_a_transfer_leaves_everything_as_it_was(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    random_file(here / "file", 30 * MIB)
    random_file(tmp_path / "other", 30 * MIB)

    async def cancelled(transfer: Callable[[Callable[[Progress], None]], object]) -> None:
        task: asyncio.Task[None]
        task = asyncio.create_task(transfer(interfering(lambda: task.cancel(), 2 * MIB)))  # type: ignore[arg-type]
        with pytest.raises(asyncio.CancelledError):
            await task

    await cancelled(lambda progress: executor.fs.upload(here / "file", "copy", progress=progress))
    await cancelled(lambda progress: executor.fs.download("other", here / "copy", progress=progress))

    assert os.listdir(here) == ["file"]
    assert not (tmp_path / "copy").exists()
    assert list(tmp_path.glob(".*.part")) == []


@pytest.mark.parametrize("url", ["unix", "ws"], indirect=True)
async def test_memory_does_not_grow_with_the_file(executor: Executor, tmp_path: Path, here: Path) -> None:
    with open(here / "file", "wb") as file:
        file.truncate(300 * MIB)
    tracemalloc.start()
    try:
        await executor.fs.upload(here / "file", "copy", verify=False)
        await executor.fs.download("copy", here / "back", verify=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (here / "back").stat().st_size == 300 * MIB
    assert peak < 60 * MIB


async def test_a_download_goes_on_over_lost_connections(shared_url: str, tmp_path: Path, here: Path) -> None:
    data = random_file(tmp_path / "file", 40 * MIB)
    async with connect(shared_url) as executor:
        cuts = iter(range(5 * MIB, 40 * MIB, 7 * MIB))
        at = next(cuts)

        def cut(step: Progress) -> None:
            nonlocal at
            if step.done >= at:
                at = next(cuts, 1 << 60)
                executor.drop_connection()

        await executor.fs.download(tmp_path / "file", here / "file", progress=cut)

        assert (here / "file").read_bytes() == data
        assert executor.recoveries >= 3


async def test_a_download_does_not_mix_two_files_over_a_lost_connection(
    shared_url: str, tmp_path: Path, here: Path
) -> None:
    random_file(tmp_path / "file", 40 * MIB)
    async with connect(shared_url) as executor:

        def change() -> None:
            random_file(tmp_path / "file", 40 * MIB + 1)
            executor.drop_connection()

        with pytest.raises(TransferFailed):
            await executor.fs.download(
                tmp_path / "file", here / "file", progress=interfering(change, 3 * MIB), verify=False
            )

    assert os.listdir(here) == []


async def test_an_upload_over_a_lost_connection_is_not_sent_twice(
    shared_url: str, tmp_path: Path, here: Path
) -> None:
    random_file(here / "file", 30 * MIB)
    (tmp_path / "file").write_text("old")
    async with connect(shared_url) as executor:
        with pytest.raises(OutcomeUnknown):
            await executor.fs.upload(
                here / "file",
                tmp_path / "file",
                progress=interfering(executor.drop_connection, 3 * MIB),
            )

    assert (tmp_path / "file").read_text() == "old"
    assert list(tmp_path.glob(".file.*")) == []


async def test_what_cannot_be_renamed_into_place_is_not_begun(executor: Executor, here: Path) -> None:
    (here / "file").write_text("x")
    executor._session.capabilities = frozenset()

    with pytest.raises(Unsupported, match="fs/rename"):
        await executor.fs.upload(here / "file", "copy")
    with pytest.raises(Unsupported, match="fs/rename"):
        await executor.fs.rename("a", "b")


async def test_a_download_that_is_cancelled_while_its_file_gets_its_name_is_whole(
    executor: Executor, tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x" * MIB)
    commit, begun = LocalTarget.commit, threading.Event()

    def slowly(target: LocalTarget, preserved: Attributes | None) -> bool:
        begun.set()
        time.sleep(0.2)
        return commit(target, preserved)

    monkeypatch.setattr(LocalTarget, "commit", slowly)
    task = asyncio.create_task(executor.fs.download("file", here / "copy"))
    await asyncio.to_thread(begun.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(here) == ["copy"]
    assert (here / "copy").stat().st_size == MIB


async def test_a_transfer_that_is_cancelled_as_it_begins_leaves_nothing(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    server = (await executor.call("server/health", {}))["pid"]
    (tmp_path / "file").write_bytes(b"x" * MIB)
    for number in range(80):
        task = asyncio.create_task(executor.fs.download("file", here / "copy"))
        # Its part file is being made, its file opened, its metadata asked for, its first block read, …
        await asyncio.sleep(number * 0.0001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if (here / "copy").exists():  # the cancellation came at the very end
            assert (here / "copy").stat().st_size == MIB
            (here / "copy").unlink()

    assert os.listdir(here) == []
    async with asyncio.timeout(PATIENCE):
        while str(tmp_path / "file") in open_files(server):
            await asyncio.sleep(0.02)
