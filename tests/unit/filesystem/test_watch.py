from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from execserver import inotify
from execserver.filesystem import watch
from execserver.filesystem.mounts import MountTable
from tests.support.servers import open_files
from tests.unit.filesystem.caller import StubCaller


async def _watch(caller: StubCaller, watch_id: int, *missing: Path, present: Path | None = None) -> bool:
    result = await caller.call("fs/watchMissing", watchId=watch_id, missing=list(missing), present=present)
    return bool(result["watching"])


async def _fired(caller: StubCaller) -> int:
    async with asyncio.timeout(10):
        method, params = await caller.notifications.get()
    assert method == "fs/missingChanged"
    assert set(params) == {"watchId"}
    return int(params["watchId"])


async def _silent(caller: StubCaller) -> None:
    """Nothing comes. An event takes well under a millisecond; there is no end of nothing to wait for."""
    await asyncio.sleep(0.05)
    assert caller.notifications.empty()


@pytest.fixture
def inotify_is_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without free inotify instances."""

    def full() -> int:
        raise OSError(errno.EMFILE, "no instance is left")

    monkeypatch.setattr(watch, "SURVEY_SECONDS", 0.05)
    monkeypatch.setattr(inotify, "open_inotify", full)  # other tests need the instances of this user


async def test_it_fires_once_when_a_path_appears(caller: StubCaller, tmp_path: Path) -> None:
    assert await _watch(caller, 1, tmp_path / "a", tmp_path / "b")

    (tmp_path / "unrelated").touch()
    await _silent(caller)
    (tmp_path / "b").touch()

    assert await _fired(caller) == 1
    (tmp_path / "a").touch()
    await _silent(caller)


@pytest.mark.parametrize("how", ["mkdir", "symlink", "rename", "link"])
async def test_it_fires_however_the_path_appears(caller: StubCaller, tmp_path: Path, how: str) -> None:
    (tmp_path / "source").touch()
    assert await _watch(caller, 1, tmp_path / "path")

    if how == "mkdir":
        (tmp_path / "path").mkdir()
    elif how == "symlink":
        (tmp_path / "path").symlink_to("nothing")
    elif how == "rename":
        (tmp_path / "source").rename(tmp_path / "path")
    else:
        os.link(tmp_path / "source", tmp_path / "path")

    assert await _fired(caller) == 1


async def test_it_fires_for_a_path_that_vanishes_at_once(caller: StubCaller, tmp_path: Path) -> None:
    assert await _watch(caller, 1, tmp_path / "path")

    (tmp_path / "path").touch()
    (tmp_path / "path").unlink()

    assert await _fired(caller) == 1


async def test_it_fires_when_a_directory_above_appears(caller: StubCaller, tmp_path: Path) -> None:
    assert await _watch(caller, 1, tmp_path / "a" / "b" / "c")

    (tmp_path / "a").mkdir()

    assert await _fired(caller) == 1


async def test_it_follows_when_directories_above_go_and_come_back(caller: StubCaller, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert await _watch(caller, 1, tmp_path / "a" / "b" / "c")

    (tmp_path / "a" / "b").rmdir()
    (tmp_path / "a").rmdir()
    await _silent(caller)
    (tmp_path / "a").mkdir()

    assert await _fired(caller) == 1


async def test_a_directory_that_was_moved_away_is_not_watched_where_it_is(
    caller: StubCaller, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    assert await _watch(caller, 1, tmp_path / "a" / "path")

    (tmp_path / "a").rename(tmp_path / "elsewhere")
    await _silent(caller)
    (tmp_path / "elsewhere" / "path").touch()
    await _silent(caller)

    (tmp_path / "elsewhere").rename(tmp_path / "a")
    assert await _fired(caller) == 1


async def test_it_fires_when_the_present_path_goes(caller: StubCaller, tmp_path: Path) -> None:
    (tmp_path / "folder" / "present").mkdir(parents=True)
    present = tmp_path / "folder" / "present"

    assert await _watch(caller, 1, tmp_path / "path", present=present)
    present.rmdir()
    assert await _fired(caller) == 1

    present.mkdir()
    assert await _watch(caller, 2, tmp_path / "path", present=present)
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    assert await _fired(caller) == 2


async def test_it_is_refused_when_there_is_nothing_to_wait_for(caller: StubCaller, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    missing = tmp_path / "missing"

    assert not await _watch(caller, 1, tmp_path / "file")
    assert not await _watch(caller, 2, missing, tmp_path / "file")
    assert not await _watch(caller, 3, tmp_path / "link")
    assert not await _watch(caller, 4)
    assert not await _watch(caller, 5, missing, present=tmp_path / "gone")
    assert not await _watch(caller, 6, tmp_path / "file" / "below")
    assert not await _watch(caller, 7, Path("/"))
    assert not await _watch(caller, 8, *(tmp_path / str(number) for number in range(65)))
    assert await _watch(
        caller, 9, *(tmp_path / str(number) for number in range(64)), present=tmp_path / "file"
    )


async def test_a_greater_id_ends_the_watch_before_even_when_refused(
    caller: StubCaller, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert await _watch(caller, 1, tmp_path / "a")
    assert await _watch(caller, 2, tmp_path / "b")
    (tmp_path / "a").touch()
    await _silent(caller)

    assert not await _watch(caller, 3, tmp_path / "file")
    (tmp_path / "b").touch()
    await _silent(caller)


async def test_an_id_that_is_not_greater_changes_nothing(caller: StubCaller, tmp_path: Path) -> None:
    assert not await _watch(caller, 0, tmp_path / "a")
    assert await _watch(caller, 5, tmp_path / "a")
    assert not await _watch(caller, 5, tmp_path / "b")
    assert not await _watch(caller, 4, tmp_path / "b")

    (tmp_path / "a").touch()

    assert await _fired(caller) == 5


async def test_the_end_of_the_connection_ends_the_watch(caller: StubCaller, tmp_path: Path) -> None:
    assert await _watch(caller, 1, tmp_path / "a")

    caller.close()
    (tmp_path / "a").touch()

    await _silent(caller)


async def test_a_link_on_the_way_may_be_turned_elsewhere(
    caller: StubCaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SURVEY_SECONDS", 0.05)
    (tmp_path / "first").mkdir()
    (tmp_path / "link").symlink_to("first")
    assert await _watch(caller, 1, tmp_path / "link" / "path")

    # Behind the link's target, where no watch is: only looking again finds it.
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "path").touch()
    (tmp_path / "first").rename(tmp_path / "old")
    (tmp_path / "second").rename(tmp_path / "first")

    assert await _fired(caller) == 1


async def test_it_looks_again_where_inotify_does_not_see_everything(
    caller: StubCaller, mounts: MountTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SURVEY_SECONDS", 0.02)
    # As when another client of a network mount makes the file: there is no event.
    read_events = inotify.read_events
    monkeypatch.setattr(inotify, "read_events", lambda number: read_events(number)[:0])
    mounts.can_hang = True
    (tmp_path / "present").touch()
    assert await _watch(caller, 1, tmp_path / "a" / "b", present=tmp_path / "present")
    await _silent(caller)

    (tmp_path / "a").mkdir()

    assert await _fired(caller) == 1
    assert await _watch(caller, 2, tmp_path / "a" / "b", present=tmp_path / "present")
    (tmp_path / "present").unlink()
    assert await _fired(caller) == 2


@pytest.mark.usefixtures("inotify_is_blind")
async def test_it_looks_again_when_inotify_is_used_up(caller: StubCaller, tmp_path: Path) -> None:
    assert await _watch(caller, 1, tmp_path / "path")

    (tmp_path / "path").touch()

    assert await _fired(caller) == 1


async def test_nothing_is_missed_while_watches_come_and_go(caller: StubCaller, tmp_path: Path) -> None:
    """The path appears at any moment of the beginning: either the watch is refused or it fires."""
    for watch_id in range(1, 200):
        path = tmp_path / str(watch_id) / "path"
        path.parent.mkdir()
        beginning = asyncio.create_task(_watch(caller, watch_id, path))
        await asyncio.sleep(0)
        await asyncio.to_thread(path.touch)
        if await beginning:
            assert await _fired(caller) == watch_id


async def test_a_watch_leaves_no_descriptor_behind(caller: StubCaller, tmp_path: Path) -> None:
    def instances() -> int:
        return sum("inotify" in link for link in open_files(os.getpid()))

    before = instances()
    for watch_id in range(1, 20):
        assert await _watch(caller, watch_id, tmp_path / "path")
    assert await _watch(caller, 20, tmp_path / "path")
    (tmp_path / "path").touch()
    assert await _fired(caller) == 20

    async with asyncio.timeout(10):
        while instances() > before:
            await asyncio.sleep(0.005)


async def test_watching_does_not_start_programs(caller: StubCaller, tmp_path: Path) -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()

    assert await _watch(caller, 1, tmp_path / "path")

    assert Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text() == children
