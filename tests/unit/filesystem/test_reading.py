from __future__ import annotations

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from execprotocol.errors import InternalError, InvalidRequest, NotFound
from execprotocol.limits import MAX_READ_FILE_BYTES
from execserver.filesystem.reading import PIECE_BYTES
from execserver.rpc.handlers import StreamedResult
from tests.unit.filesystem.caller import StubCaller
from tests.unit.filesystem.conftest import open_descriptors


@pytest.fixture
async def stream(caller: StubCaller, large_file: Path) -> AsyncIterator[StreamedResult]:
    result = await caller.begin("fs/readFile", path=large_file)  # type: ignore[misc]
    assert isinstance(result, StreamedResult)
    yield result
    await result.pieces.aclose()


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(10 * PIECE_BYTES + 1))
    return path


async def _read(caller: StubCaller, path: Path) -> bytes:
    return base64.b64decode((await caller.call("fs/readFile", path=path))["dataBase64"], validate=True)


async def _closed(path: Path) -> None:
    """Files are closed in threads: a close can wait for a network."""
    while open_descriptors(path):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "size",
    [0, 1, 2, 3, 4, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 5 * PIECE_BYTES + 2],
)
async def test_a_file_is_read_whole_whatever_its_size(caller: StubCaller, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "link").symlink_to("file")

    assert await _read(caller, tmp_path / "link") == content
    await _closed(tmp_path / "file")


@pytest.mark.parametrize(
    "path", ["/proc/self/status", "/proc/kallsyms", "/sys/kernel/mm/transparent_hugepage/enabled"]
)
async def test_a_file_that_does_not_tell_its_size_is_read_to_its_end(caller: StubCaller, path: str) -> None:
    if not os.path.exists(path):
        pytest.skip(f"this kernel has no {path}")
    data = await _read(caller, Path(path))

    expected = await asyncio.to_thread(Path(path).read_bytes)
    assert len(data) > 0
    assert data.split()[:1] == expected.split()[:1]
    assert path != "/proc/kallsyms" or data == expected


async def test_what_is_no_file_is_refused_without_waiting(caller: StubCaller, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path)

    for path in (tmp_path, tmp_path / "link", tmp_path / "fifo", Path("/dev/null")):
        with pytest.raises(InvalidRequest) as refused:
            await caller.call("fs/readFile", path=path)
        assert refused.value.message == f"path `{path}` is not a file"


async def test_a_socket_cannot_be_opened(caller: StubCaller, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))

    with pytest.raises(InternalError, match=r"\(os error 6\)"):
        await caller.call("fs/readFile", path=tmp_path / "socket")


async def test_a_missing_file_is_not_found(caller: StubCaller, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await caller.call("fs/readFile", path=tmp_path / "missing")


async def test_a_name_that_is_no_utf8_is_quoted_as_text(caller: StubCaller, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    path.mkdir()

    with pytest.raises(InvalidRequest, match="/bad\ufffd` is not a file"):
        await caller.call("fs/readFile", path=path)


async def test_half_a_gibibyte_is_the_limit(caller: StubCaller, tmp_path: Path) -> None:
    for name, size in (("fits", MAX_READ_FILE_BYTES), ("too large", MAX_READ_FILE_BYTES + 1)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)

    result = await caller.begin("fs/readFile", path=tmp_path / "fits")  # type: ignore[misc]
    assert isinstance(result, StreamedResult)
    await result.pieces.aclose()
    with pytest.raises(InvalidRequest, match=r"^file is too large to read: limit is 536870912 bytes$"):
        await caller.call("fs/readFile", path=tmp_path / "too large")


async def test_a_reply_that_the_peer_would_not_take_is_refused_with_the_way_out(
    caller: StubCaller, tmp_path: Path
) -> None:
    caller.max_reply_bytes = 3 << 20
    (tmp_path / "fits").write_bytes(bytes(2 << 20))
    (tmp_path / "too large").write_bytes(bytes(9 << 18))

    assert len(await _read(caller, tmp_path / "fits")) == 2 << 20
    with pytest.raises(InvalidRequest, match="fs/open and fs/readBlock"):
        await caller.call("fs/readFile", path=tmp_path / "too large")
    assert open_descriptors(tmp_path / "too large") == 0


async def test_an_abandoned_stream_closes_its_file(stream: StreamedResult, large_file: Path) -> None:
    await anext(stream.pieces)
    assert open_descriptors(large_file) == 1

    await stream.pieces.aclose()

    await _closed(large_file)
    assert [piece async for piece in stream.pieces] == []


async def test_a_stream_that_never_began_closes_its_file(stream: StreamedResult, large_file: Path) -> None:
    await stream.pieces.aclose()

    await _closed(large_file)


async def test_the_end_of_the_connection_closes_the_file(
    caller: StubCaller, stream: StreamedResult, large_file: Path
) -> None:
    await anext(stream.pieces)

    caller.close()

    await _closed(large_file)


async def test_a_file_that_shrinks_ends_the_stream_early(stream: StreamedResult, large_file: Path) -> None:
    content = large_file.read_bytes()
    os.truncate(large_file, 100)

    data = base64.b64decode(b"".join([piece async for piece in stream.pieces]), validate=True)

    assert data == content[:100]


async def test_a_file_that_grows_is_read_as_large_as_it_was(stream: StreamedResult, large_file: Path) -> None:
    content = large_file.read_bytes()
    with large_file.open("ab") as file:
        file.write(bytes(PIECE_BYTES))

    assert base64.b64decode(b"".join([piece async for piece in stream.pieces]), validate=True) == content


async def test_no_more_is_read_ahead_than_a_few_pieces(stream: StreamedResult, large_file: Path) -> None:
    first = await anext(stream.pieces)
    await asyncio.sleep(0.05)
    large_file.write_bytes(bytes(10 * PIECE_BYTES + 1))

    pieces = [first] + [piece async for piece in stream.pieces]

    assert b"".join(pieces[4:]).strip(b"A=") == b""


async def test_neither_a_fifo_nor_a_large_file_holds_up_the_loop(
    caller: StubCaller, tmp_path: Path, slowest_turn: Callable[[], float]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 400 << 20)
    result = await caller.begin("fs/readFile", path=tmp_path / "large")  # type: ignore[misc]
    assert isinstance(result, StreamedResult)
    received = 0

    async for piece in result.pieces:
        received += len(piece)
        if received % (32 << 20) < len(piece):
            with pytest.raises(InvalidRequest):
                await caller.call("fs/readFile", path=tmp_path / "fifo")
        assert (await caller.call("fs/getMetadata", path=tmp_path / "large"))["size"] == 400 << 20

    assert received == (400 << 20) // 3 * 4 + 4
    assert slowest_turn() < 0.2
