"""Modes, times and targets of transfers; also with older servers."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from execclient import Copied, Executor, Progress, Refused, SystemFailure, TransferFailed, Unsupported

MIB = 1 << 20
LONG_AGO = 1_000_000_000_987_654_321

OF_THIS_VERSION = {
    "fs/install", "fs/setMetadata", "fs/digest.size", "fs/open.permissions", "fs/createDirectory.permissions",
    "fs/copy.keepMode", "fs/copy.preserveTimes",
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder for this side, while the other side has the one around it."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def watching(pattern: Callable[[], list[Path]], seen: list[int]) -> Callable[[Progress], None]:
    """Notes the modes of part files while a transfer is under way."""
    return lambda _: seen.extend(mode(path) for path in pattern())


async def test_a_secret_is_at_no_time_readable_by_others(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    (here / "key").write_bytes(os.urandom(5 * MIB))
    (here / "key").chmod(0o640)
    there: list[int] = []
    back: list[int] = []

    up = await executor.fs.upload(
        here / "key", "key", progress=watching(lambda: [*tmp_path.glob(".key.*.part")], there)
    )
    down = await executor.fs.download(
        "key", here / "back", progress=watching(lambda: [*here.glob(".back.*.part")], back)
    )

    assert set(there) == set(back) == {0o600}
    assert mode(tmp_path / "key") == mode(here / "back") == 0o640
    assert up == down == Copied(5 * MIB)


async def test_times_come_along_when_asked_for(executor: Executor, tmp_path: Path, here: Path) -> None:
    (here / "file").write_bytes(b"x")
    (here / "file").chmod(0o700)
    os.utime(here / "file", ns=(7, LONG_AGO))
    for path in (tmp_path / "copy", here / "back"):
        path.touch()
        path.chmod(0o644)

    await executor.fs.upload(here / "file", "copy", preserve_times=True)
    found = await executor.fs.stat("copy")
    assert (found.mode, found.modified_ns, found.accessed_ns) == (0o700, LONG_AGO, 7)
    await executor.fs.download("copy", here / "back", preserve_times=True)

    status = (here / "back").stat()
    assert (mode(here / "back"), status.st_mtime_ns, status.st_atime_ns) == (0o700, LONG_AGO, 7)


async def test_a_program_that_runs_is_replaced(executor: Executor, tmp_path: Path, here: Path) -> None:
    (here / "new").write_bytes(b"new")
    for path in (tmp_path / "there", here / "mine"):
        shutil.copy("/bin/sleep", path)
        with subprocess.Popen([path, "60"]) as process:
            if path.parent == here:
                copied = await executor.fs.download(here / "new", path)
            else:
                copied = await executor.fs.upload(here / "new", path)
            process.kill()

        assert (path.read_bytes(), mode(path), copied.in_place) == (b"new", 0o755, False)


async def test_modes_and_times_are_set_and_directories_made_with_them(
    executor: Executor, tmp_path: Path
) -> None:
    fs = executor.fs
    await fs.mkdir("a/b", parents=True, mode=0o700)
    await fs.chmod("a/b", 0o1750)
    await fs.utime("a/b", ns=(1, -2))

    status = (tmp_path / "a/b").stat()
    assert (mode(tmp_path / "a/b"), status.st_atime_ns, status.st_mtime_ns) == (0o1750, 1, -2)
    for bad in (-1, 0o10000):
        with pytest.raises(ValueError, match="mode"):
            await fs.chmod("a/b", bad)


async def test_a_server_of_an_earlier_version_gets_the_usual_modes_and_that_is_told(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    executor._session.capabilities -= OF_THIS_VERSION
    (here / "new").write_bytes(os.urandom(MIB + 1))
    (here / "new").chmod(0o600)
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(0o751)

    assert await executor.fs.upload(here / "new", "old") == Copied(MIB + 1)
    assert await executor.fs.upload(here / "new", "fresh") == Copied(MIB + 1, mode_kept=False)

    assert mode(tmp_path / "old") == 0o751
    assert (tmp_path / "fresh").read_bytes() == (here / "new").read_bytes()
    for act in (
        executor.fs.upload(here / "new", "x", preserve_times=True),
        executor.fs.download("old", here / "x", preserve_times=True),
        executor.fs.copy("old", "x", preserve_times=True),
        executor.fs.copy("old", "x", keep_mode=True),
        executor.fs.chmod("old", 0),
        executor.fs.mkdir("x", mode=0),
    ):
        with pytest.raises(Unsupported):
            await act
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("old_server", [False, True])
async def test_a_file_that_grows_is_downloaded_as_it_was(
    executor: Executor, tmp_path: Path, here: Path, old_server: bool
) -> None:
    if old_server:
        executor._session.capabilities -= OF_THIS_VERSION
    data = os.urandom(12 * MIB)
    (tmp_path / "log").write_bytes(data)

    def grow(_: Progress) -> None:
        with open(tmp_path / "log", "ab") as log:
            log.write(b"more")

    for local in (here / "copy", io.BytesIO()):
        size = (tmp_path / "log").stat().st_size
        assert (await executor.fs.download("log", local, progress=grow)).size == size

    assert (here / "copy").read_bytes() == data


async def test_a_file_that_shrinks_is_no_success_and_leaves_what_was_there(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    for folder in (tmp_path, here):
        (folder / "file").write_bytes(os.urandom(30 * MIB))
        (folder / "old").write_bytes(b"old")

    def shrink(path: Path) -> Callable[[Progress], None]:
        return lambda _: os.truncate(path, MIB)

    with pytest.raises(TransferFailed, match="shrank"):
        await executor.fs.download("file", here / "old", progress=shrink(tmp_path / "file"))
    with pytest.raises(TransferFailed, match="shrank"):
        await executor.fs.upload(here / "file", "old", progress=shrink(here / "file"))

    for folder in (tmp_path, here):
        assert (folder / "old").read_bytes() == b"old"
        assert not list(folder.glob(".*.part"))


async def test_waiting_for_a_pipe_can_be_cancelled(executor: Executor, tmp_path: Path, here: Path) -> None:
    os.mkfifo(here / "fifo")
    (tmp_path / "file").write_bytes(b"x")

    for transfer in (executor.fs.upload(here / "fifo", "copy"), executor.fs.download("file", here / "fifo")):
        task = asyncio.create_task(transfer)
        await asyncio.sleep(0.3)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    assert not (tmp_path / "copy").exists()
    assert [path.name for path in here.iterdir()] == ["fifo"]


async def test_only_files_and_pipes_are_copied(executor: Executor, tmp_path: Path, here: Path) -> None:
    (here / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(IsADirectoryError):
        await executor.fs.upload(here / "folder", "copy")
    with pytest.raises(OSError, match="endless"):
        await executor.fs.upload("/dev/zero", "copy")
    with pytest.raises(IsADirectoryError):
        await executor.fs.download("file", here / "folder")
    for path in ("fifo", "/dev/zero"):
        with pytest.raises(Refused, match="is not a file"):
            await executor.fs.download(path, here / "copy")

    assert not (tmp_path / "copy").exists()
    assert os.listdir(here) == ["folder"]


@pytest.mark.parametrize("url", ["unix"], indirect=True)
async def test_a_mount_point_keeps_its_old_content_when_there_is_no_room(
    executor: Executor, tmp_path: Path, here: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts in this namespace need root")
    (tmp_path / "disk").mkdir()
    (tmp_path / "hosts").touch()
    (here / "new").write_bytes(os.urandom(MIB))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path / "disk"], check=True)
    try:
        (tmp_path / "disk" / "real").write_bytes(b"old" * 1000)
        subprocess.run(["mount", "--bind", tmp_path / "disk" / "real", tmp_path / "hosts"], check=True)
        try:
            with pytest.raises(SystemFailure, match="No space left"):
                await executor.fs.upload(here / "new", "hosts")
            with pytest.raises(SystemFailure, match="No space left"):
                await executor.fs.copy(here / "new", "hosts")
            with pytest.raises(OSError, match="No space left"):
                await executor.fs.download(here / "new", tmp_path / "hosts")
            assert (tmp_path / "hosts").read_bytes() == b"old" * 1000

            def grow(progress: Progress) -> None:
                if progress.done == MIB:
                    with (tmp_path / "hosts").open("ab") as file:
                        file.write(b"more")

            with pytest.raises(OSError, match="No space left"):
                await executor.fs.download(here / "new", tmp_path / "hosts", progress=grow)
            assert (tmp_path / "hosts").read_bytes() == b"old" * 1000 + b"more"
            (here / "new").write_bytes(b"fits")
            assert (await executor.fs.upload(here / "new", "hosts")).in_place
            assert (tmp_path / "hosts").read_bytes() == b"fits"
        finally:
            subprocess.run(["umount", tmp_path / "hosts"], check=True)
    finally:
        subprocess.run(["umount", tmp_path / "disk"], check=True)
    assert not list(tmp_path.glob(".*"))
