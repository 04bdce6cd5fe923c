"""Files that are opened: ranges, writing at the end, transactions, compression, other loops."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import tracemalloc
from pathlib import Path

import fsspec
import pytest

from execclient.integrations.fsspec import ExecServerFileSystem

MIB = 1 << 20


def test_fsspec_opens_a_url_of_the_protocol(url: str, folder: Path) -> None:
    with fsspec.open(f"execserver://{folder}/new/text.gz", "wt", compression="infer", daemon_url=url) as file:
        file.write("one\ntwo\n")

    assert (folder / "new/text.gz").read_bytes()[:2] == b"\x1f\x8b"
    with fsspec.open(f"execserver://{folder}/new/text.gz", "rt", compression="infer", daemon_url=url) as file:
        assert list(file) == ["one\n", "two\n"]


def test_a_file_appears_when_it_is_closed(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "old").write_bytes(b"old")
    (folder / "old").chmod(0o600)
    data = os.urandom(3 * MIB)

    for name in ("old", "new"):
        with fs.open(f"{folder}/{name}", "wb", block_size=MIB) as file:
            for start in range(0, len(data), 700_000):
                file.write(data[start : start + 700_000])
            assert [path.name for path in folder.iterdir() if path.name != "new"] == ["old"]
            assert (folder / "old").stat().st_size in (3, len(data))
            assert not (folder / name).exists() or (folder / name).read_bytes() == b"old"
        assert (folder / name).read_bytes() == data
    assert (folder / "old").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_stored_fails_when_the_file_is_closed(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    file = fs.open(f"{folder}/file/below", "wb")
    file.write(b"new")

    with pytest.raises(NotADirectoryError):
        file.close()
    assert file.closed
    assert (folder / "file").read_bytes() == b"data"


def test_a_file_is_appended_to(fs: ExecServerFileSystem, folder: Path) -> None:
    for text in (b"one", b"two"):
        with fs.open(f"{folder}/log", "ab") as file:
            before = file.tell()
            file.write(text)
            assert file.tell() == before + 3

    assert (folder / "log").read_bytes() == b"onetwo"


def test_a_file_that_is_created_must_not_exist_in_the_end(fs: ExecServerFileSystem, folder: Path) -> None:
    file = fs.open(f"{folder}/file", "xb")
    file.write(b"late")
    (folder / "file").write_bytes(b"early")

    with pytest.raises(FileExistsError):
        file.close()
    assert (folder / "file").read_bytes() == b"early"


def test_a_transaction_writes_all_files_at_its_end_or_none(fs: ExecServerFileSystem, folder: Path) -> None:
    def write_both(*, fail: bool = False) -> None:
        for name in ("a", "b"):
            with fs.open(f"{folder}/{name}", "wb") as file:
                file.write(name.encode())
            assert list(folder.iterdir()) == []
        if fail:
            raise LookupError

    with pytest.raises(LookupError), fs.transaction:
        write_both(fail=True)
    assert list(folder.iterdir()) == []

    with fs.transaction:
        write_both()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"a", "b": b"b"}


def test_a_file_that_changed_since_it_was_opened_is_not_mixed(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"a" * 1000)
    file = fs.open(f"{folder}/file", block_size=10, cache_type="none")
    assert file.read(10) == b"a" * 10

    (folder / "new").write_bytes(b"b" * 1000)
    os.utime(folder / "new", ns=(1, 1))
    (folder / "new").rename(folder / "file")

    with pytest.raises(OSError, match="changed since it was opened") as caught:
        file.read(10)
    assert caught.value.errno == errno.ESTALE


def test_a_part_of_a_large_file_is_read_without_the_rest(fs: ExecServerFileSystem, folder: Path) -> None:
    with (folder / "large").open("wb") as file:
        file.truncate(200 * MIB)
        file.seek(150 * MIB)
        file.write(b"needle")

    tracemalloc.start()
    try:
        with fs.open(f"{folder}/large", block_size=MIB) as file:
            file.seek(150 * MIB)
            assert file.read(10) == b"needle\0\0\0\0"
            assert fs.cat_file(f"{folder}/large", 150 * MIB, 150 * MIB + 6) == b"needle"
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_open_files_and_file_systems_can_be_pickled(fs: ExecServerFileSystem, folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    with fs.open(f"{folder}/file") as file:
        file.read(3)
        with pickle.loads(pickle.dumps(file)) as copy:
            assert copy.read() == b"3456789"

    assert pickle.loads(pickle.dumps(fs)) is fs
    reader = ExecServerFileSystem(fs.daemon_url, sandbox="read-only")
    assert fsspec.AbstractFileSystem.from_json(reader.to_json()) is reader
    with fs.open(f"{folder}/new", "wb") as file, pytest.raises(RuntimeError):
        pickle.dumps(file)


def test_each_loop_of_a_program_has_its_own_session(url: str, folder: Path) -> None:
    async def main(number: int) -> None:
        fs = ExecServerFileSystem(url, asynchronous=True)
        path = f"{folder}/{number}"
        async with await fs.open_async(path, "wb") as file:
            await file.write(b"0123456789")
        async with await fs.open_async(path, "ab") as file:
            await file.write(b"ab")
        async with await fs.open_async(path) as file:
            assert await file.read(4) == b"0123"
            assert await file.read() == b"456789ab"
        parts = await asyncio.gather(*(fs._cat_file(path, start, start + 1) for start in range(12)))
        assert b"".join(parts) == b"0123456789ab"
        with pytest.raises(ValueError, match="modes rb, wb and ab"):
            await fs.open_async(path, "xb")
        await fs._close()

    for number in range(2):
        asyncio.run(main(number))


def test_a_cancelled_transfer_leaves_nothing_behind(url: str, folder: Path) -> None:
    async def main() -> None:
        fs = ExecServerFileSystem(url, asynchronous=True)
        storing = asyncio.create_task(fs._pipe_file(f"{folder}/file", bytes(64 * MIB)))
        while not list(folder.iterdir()):
            await asyncio.sleep(0.001)
        storing.cancel()
        await asyncio.wait([storing])
        assert storing.cancelled()
        await fs._close()

    asyncio.run(main())
    assert list(folder.iterdir()) == []
