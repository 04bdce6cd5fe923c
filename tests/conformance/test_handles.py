"""Block handles: `fs/open`, `fs/readBlock`, `fs/writeBlock`, `fs/close`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.support.wire import Client, Json, ReplyError, at_most, decode, encode, path_uri

BLOCK = 1 << 20
BAD_DESCRIPTOR = (-32603, "Bad file descriptor (os error 9)")


class Handles:
    """The four methods, with their errors as values."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client, self.folder = client, folder

    def _call(self, method: str, params: Json) -> Json:
        try:
            return self.client.call(method, params)
        except ReplyError as error:
            return error.code, error.message

    def open(self, handle: str, name: str, **members: Json) -> Json:
        params = {"handleId": handle, "path": path_uri(self.folder / name), **members}
        return self._call("fs/open", params)

    def read(self, handle: str, offset: int, length: int) -> Json:
        result = self._call("fs/readBlock", {"handleId": handle, "offset": offset, "len": length})
        return (decode(result["chunk"]), result["eof"]) if isinstance(result, dict) else result

    def write(self, handle: str, offset: int, data: bytes) -> Json:
        params = {"handleId": handle, "offset": offset, "chunk": encode(data)}
        return self._call("fs/writeBlock", params)

    def close(self, handle: str) -> Json:
        return self._call("fs/close", {"handleId": handle})


@pytest.fixture
def handles(client: Client, here: Path) -> Handles:
    (here / "f").write_bytes(b"0123456789")
    return Handles(client, here)


def unknown(handle: str) -> tuple[int, str]:
    return -32004, f"unknown file handle `{handle}`"


@pytest.mark.everywhere
@pytest.mark.statement("G1", "G6", "G8")
def test_read_in_blocks(handles: Handles) -> None:
    assert handles.open("h", "f") == {"handleId": "h"}
    assert handles.read("h", 0, 4) == (b"0123", False)
    assert handles.read("h", 8, 4) == (b"89", True)
    assert handles.read("h", 5, 5) == (b"56789", False)
    assert handles.read("h", 10, 5) == (b"", True)
    assert handles.read("h", 10**12, 5) == (b"", True)
    assert handles.close("h") == {}
    assert handles.read("h", 0, 1) == unknown("h")


@pytest.mark.everywhere
@pytest.mark.statement("G1", "G10")
def test_write_in_blocks(handles: Handles, here: Path) -> None:
    assert handles.open("w", "new", mode="replace") == {"handleId": "w"}
    assert (here / "new").read_bytes() == b""
    assert handles.write("w", 0, b"abc") == {}
    assert handles.write("w", 5, b"Z") == {}
    assert handles.write("w", 1, b"Q") == {}
    assert (here / "new").read_bytes() == b"aQc\0\0Z"
    assert handles.write("w", 0, b"k" * BLOCK) == {}
    assert (here / "new").stat().st_size == BLOCK
    assert handles.close("w") == {}


@pytest.mark.statement("G1")
def test_replace_empties_in_place_at_the_open(handles: Handles, here: Path) -> None:
    (here / "link").symlink_to("f")
    (here / "f").chmod(0o640)
    inode = (here / "f").stat().st_ino
    assert handles.open("w", "link", mode="replace") == {"handleId": "w"}
    assert (here / "f").read_bytes() == b""
    assert (here / "link").is_symlink()
    assert ((here / "f").stat().st_ino, (here / "f").stat().st_mode & 0o777) == (inode, 0o640)


@pytest.mark.statement("G2", "G4")
def test_what_cannot_be_opened(handles: Handles, here: Path) -> None:
    (here / "d").mkdir()
    os.mkfifo(here / "fifo")
    missing = (-32004, "No such file or directory (os error 2)")
    assert handles.open("h", "missing") == missing
    assert handles.open("h", "f/x") == (-32603, "Not a directory (os error 20)")
    with at_most(5):
        for name in ("d", "fifo", "/dev/null"):
            assert handles.open("h", name) == (-32600, f"path `{here / name}` is not a file")
        assert handles.open("h", "d", mode="replace") == (-32603, "Is a directory (os error 21)")
        assert handles.open("h", "fifo", mode="replace")[0] == -32603
        text = "path `/dev/null` is not a file"
        assert handles.open("h", "/dev/null", mode="replace") == (-32600, text)
    assert handles.open("h", "no/f", mode="replace") == missing
    assert handles.open("h", "f", mode="append")[0] == -32602
    assert handles.open("h", "f", mode="read") == {"handleId": "h"}


@pytest.mark.statement("G3")
def test_length_of_ids(handles: Handles) -> None:
    for handle in ("", "q" * 32, "ü" * 16):
        assert handles.open(handle, "f") == {"handleId": handle}
        assert handles.read(handle, 0, 1) == (b"0", False)
    for handle in ("q" * 33, "ü" * 17):
        assert handles.open(handle, "f") == (-32600, "file handle ID must not exceed 32 bytes")


@pytest.mark.statement("G4")
def test_id_in_use(handles: Handles, here: Path) -> None:
    (here / "other").write_text("other")
    handles.open("h", "f")
    assert handles.open("h", "other") == (-32600, "file handle `h` already exists")
    assert handles.read("h", 0, 3) == (b"012", False)
    assert handles.open("h", "f", mode="replace") == (-32600, "file handle `h` already exists")
    assert (here / "f").read_bytes() == b"0123456789"
    handles.close("h")
    assert handles.open("h", "other") == {"handleId": "h"}


@pytest.mark.statement("G5")
def test_128_handles_a_connection(handles: Handles) -> None:
    for number in range(128):
        assert handles.open(str(number), "f") == {"handleId": str(number)}
    text = "at most 128 file handles may be open per connection"
    assert handles.open("more", "f") == (-32600, text)
    handles.close("5")
    assert handles.open("more", "f") == {"handleId": "more"}


@pytest.mark.statement("G6")
def test_close_of_anything(handles: Handles) -> None:
    assert handles.close("never opened") == {}
    assert handles.write("never opened", 0, b"x") == unknown("never opened")
    assert handles.read("never opened", 0, 1) == unknown("never opened")


@pytest.mark.statement("G7", "B2")
def test_length_of_reads(handles: Handles, here: Path) -> None:
    (here / "big").write_bytes(b"k" * (BLOCK + 1))
    handles.open("h", "big")
    refusal = (-32600, "file read block length must be between 1 and 1048576")
    for length in (0, BLOCK + 1, 2**63):
        assert handles.read("h", 0, length) == refusal
    assert handles.read("no such handle", 0, 0) == refusal
    assert handles.read("h", 0, BLOCK) == (b"k" * BLOCK, False)
    assert handles.read("h", BLOCK, BLOCK) == (b"k", True)
    assert handles.read("h", -1, 1)[0] == -32602


@pytest.mark.statement("G9")
def test_handle_stays_with_its_file(handles: Handles, here: Path) -> None:
    handles.open("h", "f")
    (here / "f").rename(here / "elsewhere")
    with (here / "elsewhere").open("ab") as file:
        file.write(b"more")
    assert handles.read("h", 8, 10) == (b"89more", True)
    (here / "elsewhere").unlink()
    assert handles.read("h", 8, 10) == (b"89more", True)


@pytest.mark.statement("G10", "G11")
def test_ranges_of_writes(handles: Handles) -> None:
    handles.open("w", "new", mode="replace")
    refusal = (-32600, "file write block length must be between 1 and 1048576")
    assert handles.write("w", 0, b"") == refusal
    assert handles.write("w", 0, b"k" * (BLOCK + 1)) == refusal
    beyond = (-32600, "file write range exceeds the signed 64-bit file offset limit")
    for offset in (2**63 - 1, 2**63, 2**64 - 1):
        assert handles.write("w", offset, b"x") == beyond
    assert handles.write("w", 0, b"still there") == {}


@pytest.mark.statement("G12")
def test_handles_of_the_wrong_mode(handles: Handles) -> None:
    handles.open("r", "f")
    assert handles.write("r", 0, b"x") == BAD_DESCRIPTOR
    assert handles.read("r", 0, 4) == (b"0123", False)
    handles.open("w", "new", mode="replace")
    assert handles.read("w", 0, 4) == BAD_DESCRIPTOR
    assert handles.write("w", 0, b"x") == unknown("w")


@pytest.mark.statement("G12")
def test_failed_read_closes_the_handle(handles: Handles) -> None:
    handles.open("r", "f")
    assert handles.read("r", 2**63, 1)[0] == -32600
    assert handles.read("r", 0, 1) == unknown("r")


@pytest.mark.statement("G13")
def test_handles_belong_to_their_connection(endpoint: Endpoint, here: Path) -> None:
    (here / "one").write_text("1")
    (here / "two").write_text("2")
    one, two = Handles(endpoint.connect(), here), Handles(endpoint.connect(), here)
    assert one.open("same", "one") == two.open("same", "two") == {"handleId": "same"}
    two.close("same")
    assert one.read("same", 0, 5) == (b"1", True)
    assert two.read("same", 0, 5) == unknown("same")
