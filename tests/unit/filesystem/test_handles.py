from __future__ import annotations

import asyncio
import base64
import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from execprotocol.errors import InternalError, InvalidRequest, NotFound
from tests.support.mounts import Mount
from tests.unit.filesystem.caller import StubCaller
from tests.unit.filesystem.conftest import open_descriptors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content")
    return tmp_path / "file"


async def _open(caller: StubCaller, handle_id: str, path: Path, mode: str = "read") -> Any:
    return await caller.call("fs/open", handleId=handle_id, path=path, mode=mode)


async def _read(caller: StubCaller, handle_id: str, offset: int, length: int) -> tuple[bytes, bool]:
    block = await caller.call("fs/readBlock", handleId=handle_id, offset=offset, len=length)
    return base64.b64decode(block["chunk"]), block["eof"]


async def _write(caller: StubCaller, handle_id: str, offset: int, data: bytes) -> Any:
    chunk = base64.b64encode(data).decode()
    return await caller.call("fs/writeBlock", handleId=handle_id, offset=offset, chunk=chunk)


async def test_the_end_of_a_file_is_told_by_a_short_block(caller: StubCaller, file: Path) -> None:
    assert await _open(caller, "h", file) == {"handleId": "h"}

    assert await _read(caller, "h", 0, 4) == (b"cont", False)
    assert await _read(caller, "h", 4, 3) == (b"ent", False)
    assert await _read(caller, "h", 7, 3) == (b"", True)
    assert await _read(caller, "h", 4, 9) == (b"ent", True)
    assert await _read(caller, "h", 2**62, 1) == (b"", True)


async def test_blocks_are_written_where_they_belong(caller: StubCaller, file: Path) -> None:
    await _open(caller, "h", file, "replace")
    assert file.read_bytes() == b""

    assert await _write(caller, "h", 5, b"Z") == {}
    await _write(caller, "h", 0, b"abc")

    assert file.read_bytes() == b"abc\0\0Z"


async def test_a_handle_id_is_short_and_used_once(caller: StubCaller, file: Path) -> None:
    for handle_id in ("", "q" * 32, "ü" * 16):
        await _open(caller, handle_id, file)
        with pytest.raises(InvalidRequest, match=f"^file handle `{handle_id}` already exists$"):
            await _open(caller, handle_id, file)
    for handle_id in ("q" * 33, "ü" * 17):
        with pytest.raises(InvalidRequest, match=r"^file handle ID must not exceed 32 bytes$"):
            await _open(caller, handle_id, file)


async def test_a_failed_open_leaves_the_id_free(caller: StubCaller, file: Path) -> None:
    with pytest.raises(NotFound):
        await _open(caller, "h", file.with_name("missing"))

    await _open(caller, "h", file)


async def test_no_more_than_128_are_open_even_when_asked_for_at_once(caller: StubCaller, file: Path) -> None:
    results = await asyncio.gather(
        *(_open(caller, str(number), file) for number in range(140)), return_exceptions=True
    )

    refused = [result for result in results if isinstance(result, InvalidRequest)]
    assert len(refused) == 12
    assert {error.message for error in refused} == {"at most 128 file handles may be open per connection"}
    assert open_descriptors(file) == 128
    await caller.call("fs/close", handleId="0")
    await _open(caller, "free again", file)


async def test_a_closed_handle_is_unknown_and_its_file_closed(caller: StubCaller, file: Path) -> None:
    await _open(caller, "h", file)

    assert await caller.call("fs/close", handleId="h") == {}

    assert open_descriptors(file) == 0
    assert await caller.call("fs/close", handleId="h") == {}
    with pytest.raises(NotFound, match=r"^unknown file handle `h`$"):
        await _read(caller, "h", 0, 1)
    with pytest.raises(NotFound, match=r"^unknown file handle `h`$"):
        await _write(caller, "h", 0, b"x")


@pytest.mark.parametrize("length", [0, 1_048_577])
async def test_a_block_has_1_byte_to_1_mib(caller: StubCaller, file: Path, length: int) -> None:
    await _open(caller, "h", file)

    with pytest.raises(InvalidRequest, match=r"^file read block length must be between 1 and 1048576$"):
        await _read(caller, "unknown", 0, length)
    with pytest.raises(InvalidRequest, match=r"^file write block length must be between 1 and 1048576$"):
        await _write(caller, "unknown", 0, bytes(length))
    assert await _read(caller, "h", 0, 1_048_576) == (b"content", True)


async def test_a_write_beyond_the_largest_offset_is_refused(caller: StubCaller, file: Path) -> None:
    await _open(caller, "h", file, "replace")

    with pytest.raises(InvalidRequest, match="exceeds the signed 64-bit file offset limit"):
        await _write(caller, "h", 2**63 - 1, b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**62, hard))  # a tmpfs has no other limit
    try:
        with pytest.raises(InternalError, match=r"\(os error 27\)"):
            await _write(caller, "h", 2**63 - 2, b"x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await _write(caller, "h", 0, b"the handle is still there")


async def test_a_read_that_fails_ends_the_handle(caller: StubCaller, file: Path) -> None:
    await _open(caller, "far", file)
    await _open(caller, "writing", file.with_name("other"), "replace")

    with pytest.raises(InvalidRequest, match=r"\(os error 22\)"):
        await _read(caller, "far", 2**63, 1)
    with pytest.raises(InternalError, match=r"^Bad file descriptor \(os error 9\)$"):
        await _read(caller, "writing", 0, 1)

    for handle_id in ("far", "writing"):
        with pytest.raises(NotFound):
            await _read(caller, handle_id, 0, 1)
    assert open_descriptors(file) == 0


async def test_a_write_that_fails_leaves_the_handle(caller: StubCaller, file: Path, mount: Mount) -> None:
    await _open(caller, "reading", file)
    with pytest.raises(InternalError, match=r"^Bad file descriptor \(os error 9\)$"):
        await _write(caller, "reading", 0, b"x")
    assert await _read(caller, "reading", 0, 7) == (b"content", False)

    await _open(caller, "full", mount("tmpfs", "size=16k") / "new", "replace")
    with pytest.raises(InternalError, match=rf"\(os error {errno.ENOSPC}\)"):
        await _write(caller, "full", 0, bytes(100_000))
    await _write(caller, "full", 0, b"x")


async def test_a_handle_stays_with_its_file(caller: StubCaller, file: Path) -> None:
    await _open(caller, "h", file)
    with file.open("a") as appending:
        appending.write(" and more")
    file.rename(file.with_name("elsewhere"))
    file.with_name("elsewhere").unlink()

    assert await _read(caller, "h", 0, 100) == (b"content and more", True)


async def test_only_regular_files_are_opened(caller: StubCaller, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    for path in (tmp_path, tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(InvalidRequest, match=f"^path `{path}` is not a file$"):
            await _open(caller, "h", path)
    with pytest.raises(InvalidRequest, match=r"^path `/dev/null` is not a file$"):
        await _open(caller, "h", Path("/dev/null"), "replace")
    with pytest.raises(InternalError, match=r"\(os error 21\)"):
        await _open(caller, "h", tmp_path, "replace")
    with pytest.raises(InternalError, match=r"\(os error 6\)"):
        await _open(caller, "h", tmp_path / "fifo", "replace")
    assert open_descriptors(tmp_path) == 0


async def test_handles_belong_to_their_connection(
    caller: StubCaller, other_caller: StubCaller, file: Path
) -> None:
    await _open(caller, "h", file)
    await _open(other_caller, "h", file)

    caller.close()

    while open_descriptors(file) > 1:
        await asyncio.sleep(0.001)
    assert await _read(other_caller, "h", 0, 7) == (b"content", False)


async def test_a_program_can_be_run_as_soon_as_its_handle_is_closed(
    caller: StubCaller, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    for _ in range(50):
        await _open(caller, "h", program, "replace")
        await _write(caller, "h", 0, b"#!/bin/true\n")
        await caller.call("fs/close", handleId="h")
        program.chmod(0o755)
        assert os.waitpid(os.posix_spawn(program, [str(program)], {}), 0)[1] == 0
