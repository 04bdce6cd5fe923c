"""Parts of files, listings with their status, and files that must not exist before."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from execclient import ConnectionFailed, Executor, OutcomeUnknown, Progress, connect
from tests.conftest import StartServer
from tests.support.cutting_proxy import Cut, cutting

MIB = 1 << 20


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, None),
        (None, 10),
        (MIB - 1, MIB + 1),
        (-5, None),
        (None, -MIB),
        (5, 3 * MIB + 99),
        (9, 4),
        (2**40, None),
    ],
)
async def test_a_part_of_a_file_is_what_a_slice_is(
    executor: Executor, tmp_path: Path, start: int | None, stop: int | None
) -> None:
    data = os.urandom(3 * MIB + 7)
    (tmp_path / "file").write_bytes(data)

    assert await executor.fs.read_bytes("file", start, stop) == data[start:stop]


async def test_a_part_of_what_reports_no_size_is_read(executor: Executor) -> None:
    content = Path("/proc/version").read_bytes()

    assert await executor.fs.read_bytes("/proc/version", 3, -3) == content[3:-3]


async def test_a_part_is_read_over_lost_connections(shared_url: str, tmp_path: Path) -> None:
    data = os.urandom(30 * MIB)
    (tmp_path / "file").write_bytes(data)
    async with connect(shared_url) as executor:
        reading = asyncio.create_task(executor.fs.read_bytes("file", 1, -1))
        for _ in range(3):
            await asyncio.sleep(0.02)
            executor.drop_connection()

        assert await reading == data[1:-1]


@pytest.mark.parametrize("batches", [True, False])
async def test_a_listing_has_the_status_of_each_name(
    executor: Executor, tmp_path: Path, batches: bool
) -> None:
    for number in range(300):
        (tmp_path / "folder" / str(number)).parent.mkdir(exist_ok=True)
        (tmp_path / "folder" / str(number)).write_bytes(bytes(number))
    (tmp_path / "folder/directory").mkdir(mode=0o700)
    (tmp_path / "folder/link").symlink_to("directory")
    (tmp_path / "folder/dangling").symlink_to("nothing")
    if not batches:
        executor._session.capabilities -= {"fs/getFiles"}

    found = await executor.fs.scandir("folder")

    assert found.keys() == {*map(str, range(300)), "directory", "link"}
    assert [found[str(number)].size for number in range(300)] == list(range(300))
    for name in ("7", "directory", "link"):
        alone = await executor.fs.stat(f"folder/{name}")
        assert replace(found[name], created=None, modified=alone.modified) == replace(alone, created=None)
        assert abs(found[name].modified - alone.modified) < 0.001


@pytest.mark.parametrize("preserve", [False, True])
async def test_a_file_that_must_be_new_gets_the_attributes_of_its_source(
    executor: Executor, tmp_path: Path, preserve: bool
) -> None:
    (tmp_path / "source").write_bytes(b"data")
    (tmp_path / "source").chmod(0o751)
    os.utime(tmp_path / "source", ns=(1, 2))

    await executor.fs.upload(tmp_path / "source", "new", overwrite=False, preserve_times=preserve)

    assert (tmp_path / "new").read_bytes() == b"data"
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o751
    assert ((tmp_path / "new").stat().st_mtime_ns == 2) is preserve


async def test_an_existing_file_is_not_overwritten(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "dangling").symlink_to("nothing")
    before = sorted(os.listdir(tmp_path))

    for name in ("file", "dangling"):
        with pytest.raises(FileExistsError) as caught:
            await executor.fs.upload(tmp_path / "source", name, overwrite=False)
        assert caught.value.filename == str(tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == before


async def test_of_uploads_at_the_same_time_one_creates_the_file(executor: Executor, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / str(number)).write_text(str(number))

    uploads = [executor.fs.upload(tmp_path / str(n), "lock", overwrite=False) for n in range(8)]
    outcomes = await asyncio.gather(*uploads, return_exceptions=True)

    (winner,) = (n for n, outcome in enumerate(outcomes) if not isinstance(outcome, FileExistsError))
    assert not isinstance(outcomes[winner], BaseException)
    assert (tmp_path / "lock").read_text() == str(winner)
    assert list(tmp_path.glob(".lock.*")) == []


async def test_no_part_stays_if_the_connection_is_lost_anywhere_in_a_failing_upload(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"data")
    server = start_server(f"unix://{tmp_path}/daemon")

    def fail(progress: Progress) -> None:
        raise LookupError

    async def cuts(sent: int) -> bool:
        """Upload while the connection is cut after so many bytes; whether there were as many."""
        plan: list[Cut] = [("to server", sent)]
        async with cutting(server.url, tmp_path, lambda: plan.pop() if plan else None) as proxy:
            try:
                executor = await connect(proxy.url)
            except ConnectionFailed:
                return True  # in the handshake
            with pytest.raises((LookupError, OutcomeUnknown)):
                await executor.fs.upload(tmp_path / "source", "file", progress=fail)
            has_cut = proxy.cuts > 0
            await executor.close()
            return has_cut

    # No request fits in 30 bytes: one of the cuts is in the request that removes the part.
    sent = 30
    while await cuts(sent):
        assert [path.name for path in tmp_path.glob(".file.*")] == []
        sent += 30
