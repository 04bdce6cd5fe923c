from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from execclient import Entry, Executor, NotFound, Refused, SystemFailure, WorkspaceWrite, sync


async def test_bytes_and_text_go_in_and_come_out(executor: Executor, tmp_path: Path) -> None:
    await executor.fs.write_bytes(tmp_path / "a", b"\0\xff\r\n")
    await executor.fs.write_text("relative ü#%.txt", "grün\r\n")

    assert (tmp_path / "a").read_bytes() == b"\0\xff\r\n"
    assert await executor.fs.read_bytes(str(tmp_path / "a")) == b"\0\xff\r\n"
    assert (tmp_path / "relative ü#%.txt").read_bytes() == "grün\r\n".encode()
    assert await executor.fs.read_text("relative ü#%.txt") == "grün\r\n"


async def test_missing_folders_above_a_file_are_created_if_asked_for(
    executor: Executor, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        await executor.fs.write_text("one/two/file", "text")
    assert not (tmp_path / "one").exists()

    await executor.fs.write_text("one/two/file", "text", parents=True)
    await executor.fs.write_bytes(tmp_path / "three/file", b"data", parents=True)
    await executor.fs.write_bytes("file", b"data", parents=True)

    assert (tmp_path / "one/two/file").read_text() == "text"
    assert (tmp_path / "three/file").read_bytes() == (tmp_path / "file").read_bytes() == b"data"


@pytest.mark.parametrize("size", [0, 32 << 20, (32 << 20) + 1, 70_000_000])
async def test_large_files_go_in_and_come_out(executor: Executor, tmp_path: Path, size: int) -> None:
    data = os.urandom(1_000_003) * (size // 1_000_003 + 1)
    data = data[:size]

    await executor.fs.write_bytes(tmp_path / "large", data)

    assert (tmp_path / "large").read_bytes() == data
    assert await executor.fs.read_bytes(tmp_path / "large") == data


async def test_stat_tells_what_a_path_is(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.utime(tmp_path / "file", (1, 1_700_000_000.25))
    (tmp_path / "link").symlink_to("file")

    file, link, folder = [await executor.fs.stat(tmp_path / name) for name in ("file", "link", "")]

    assert (file.is_file, file.is_dir, file.is_symlink, file.size) == (True, False, False, 5)
    assert file.modified == 1_700_000_000.25
    assert (link.is_file, link.is_symlink) == (True, True)
    assert (folder.is_dir, folder.is_file) == (True, False)


async def test_directories_are_made_listed_copied_and_removed(executor: Executor, tmp_path: Path) -> None:
    fs = executor.fs
    await fs.mkdir("one/two", parents=True)
    await fs.mkdir("one/two", parents=True)
    await fs.write_text("one/file", "x")

    assert sorted(await fs.iterdir("one")) == [Entry("file", False, True), Entry("two", True, False)]
    with pytest.raises(SystemFailure):
        await fs.mkdir("one/two")
    with pytest.raises(NotFound):
        await fs.mkdir("missing/two")

    await fs.copy("one/file", "one/copy")
    with pytest.raises(Refused):
        await fs.copy("one", "another")
    await fs.copy("one", "another", recursive=True)
    assert sorted(name for name, _, _ in await fs.iterdir("another")) == ["copy", "file", "two"]

    with pytest.raises(SystemFailure, match="not empty"):
        await fs.remove("another")
    await fs.remove("another", recursive=True)
    with pytest.raises(NotFound):
        await fs.remove("another")
    await fs.remove("another", missing_ok=True)
    assert not (tmp_path / "another").exists()


async def test_what_is_not_there_is_not_found(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"No such file or directory \(os error 2\)") as raised:
        await executor.fs.read_bytes(tmp_path / "missing")

    assert raised.value.wire_code == -32004
    with pytest.raises(NotFound):
        await executor.fs.write_bytes(tmp_path / "missing" / "file", b"")
    with pytest.raises(Refused, match="is not a file"):
        await executor.fs.read_bytes(tmp_path)


async def test_a_name_that_is_no_utf_8_is_exact(executor: Executor, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    await executor.fs.write_bytes(tmp_path / name, b"x")

    assert os.listdir(os.fsencode(tmp_path)).count(b"caf\xe9") == 1
    assert await executor.fs.read_bytes(tmp_path / name) == b"x"


async def test_files_take_a_sandbox_or_none_as_commands_do(executor: Executor, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    policy = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True)
    files = executor.files(policy, workspace=tmp_path / "own")

    await files.write_text("own/file", "inside")
    with pytest.raises(SystemFailure) as caught:
        await files.write_text("file", "outside")
    assert caught.value.errno == errno.EROFS
    await executor.files(None).write_text("file", "no limits")

    assert (tmp_path / "own/file").read_text() == "inside"
    assert (tmp_path / "file").read_text() == "no limits"


def test_blocking_files_take_a_sandbox_or_none(url: str, tmp_path: Path) -> None:
    policy = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True)
    (tmp_path / "own").mkdir()
    with sync.connect(url) as executor:
        executor.files(None).write_text("file", "no limits")
        with pytest.raises(SystemFailure):
            executor.files(policy, workspace=tmp_path / "own").write_text("file", "outside")

        assert (tmp_path / "file").read_text() == "no limits"
