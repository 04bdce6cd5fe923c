"""Watches on mounts whose changes the kernel does not report: a device of the test counts as such a mount."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from execprotocol.errors import InvalidRequest
from execprotocol.watch import WatchParams
from execserver.fsworker import interpreter
from execserver.fsworker.process import spawn
from execserver.watching import frames
from execserver.watching.client import program_code
from execserver.watching.watch import Watch
from tests.support.name_mirror import NameMirror, names_below


@asynccontextmanager
async def watching(root: Path, devices: list[int], max_polled: int = 1000) -> AsyncIterator[Watch]:
    """A watch of which some devices count as network mounts."""
    params = WatchParams(path=str(root), watch_id="w")
    watch = Watch(params, None, lambda _: None)
    order: frames.Order = (os.fsencode(root), True, True, [], devices, max_polled)
    try:
        await watch.begin(spawn(interpreter.command(), code=program_code(ignore_rules=True)), order)
        yield watch
    finally:
        exited = watch.release()
        if exited is not None:
            await asyncio.wait_for(exited, 10)


async def until(watch: Watch, done: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    """The whole log, once it is as it should be."""
    page: dict[str, object] = {}
    async with asyncio.timeout(15):
        while not page or not done(page):
            page = msgspec.json.decode(watch.page(0, 10_000))
            await asyncio.sleep(0.05)
    return page


def said(root: Path, page: dict[str, object]) -> list[str]:
    """Kinds and paths of all changes, in alphabetical order."""
    changes = page["changes"]
    assert isinstance(changes, list)
    prefix = f"file://{root}"
    return sorted(f"{each['kind']} {each['path'].removeprefix(prefix)}" for each in changes)


@pytest.mark.statement("M25")
async def test_a_tree_on_a_network_mount_is_polled(tmp_path: Path) -> None:
    (tmp_path / "sub/deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / ".gitignore").write_text("*.o\n")
    async with watching(tmp_path, [tmp_path.stat().st_dev]) as watch:
        assert watch.mode == "polling"
        mirror = NameMirror(tmp_path)
        (tmp_path / "file").write_text("changed")
        (tmp_path / "x.o").touch()
        (tmp_path / "sub/deep").rename(tmp_path / "sub/moved")
        (tmp_path / "sub/moved/new").touch()
        page = await until(watch, lambda page: bool(page["changes"]))
        assert said(tmp_path, page) == [
            "created /sub/moved", "created /sub/moved/new", "modified /file", "removed /sub/deep",
        ]  # fmt: skip
        mirror.apply_event(page)
        assert mirror.names == {
            name: is_directory
            for name, is_directory in names_below(tmp_path).items()
            if not name.endswith(".o")
        }


@pytest.mark.statement("M25")
async def test_a_polled_tree_is_bounded(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).touch()
    with pytest.raises(InvalidRequest, match="excludeDirs") as refused:
        async with watching(tmp_path, [tmp_path.stat().st_dev], max_polled=9):
            pass
    assert refused.value.name == "too_many_entries"
    async with watching(tmp_path, [tmp_path.stat().st_dev], max_polled=10) as watch:
        (tmp_path / "one more").touch()
        page = await until(watch, lambda page: page["ended"] is not None)
        assert page["ended"] == "tooManyEntries"
        assert said(tmp_path, page) == ["gap "]


@pytest.mark.statement("M25")
async def test_a_network_mount_below_the_root_is_a_gap(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if tmp_path.stat().st_dev == shm.stat().st_dev:
        pytest.skip("needs a second file system")
    async with watching(Path("/dev"), [shm.stat().st_dev]) as watch:
        assert watch.mode == "inotify"
        page = await until(watch, lambda page: bool(page["changes"]))
        assert "gap /shm" in said(Path("/dev"), page)


@pytest.mark.statement("M26")
async def test_a_polled_root_that_goes_ends_the_watch(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with watching(root, [tmp_path.stat().st_dev]) as watch:
        root.rmdir()
        assert (await until(watch, lambda page: page["ended"] is not None))["ended"] == "rootRemoved"
