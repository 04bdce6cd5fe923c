from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from execprotocol.errors import InvalidRequest
from execserver.filesystem import writing
from execserver.filesystem.writing import write_file
from tests.support.mounts import Mount
from tests.unit.filesystem.caller import StubCaller

PIECE_CHARS = 256 << 10


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.parametrize("old", [None, b"", b"a much longer old content", b"x"])
@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE_CHARS * 3 // 4, PIECE_CHARS * 3 // 4 + 1, 1_000_000])
@pytest.mark.parametrize("as_view", [False, True])
def test_the_content_is_replaced(tmp_path: Path, old: bytes | None, size: int, as_view: bool) -> None:
    content = os.urandom(size)
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)

    text = _text(content)
    write_file(str(path), memoryview(text.encode()) if as_view else text)

    assert path.read_bytes() == content


def test_inode_mode_and_links_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o751)
    inode = path.stat().st_ino
    (tmp_path / "link").symlink_to("file")
    os.link(path, tmp_path / "second name")

    write_file(str(tmp_path / "link"), _text(b"new"))

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "second name").read_bytes() == b"new"
    assert path.stat().st_ino == inode
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


def test_a_new_file_gets_the_default_mode_less_the_umask(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    old = os.umask(0o026)
    try:
        write_file(str(tmp_path / "link"), "")
    finally:
        os.umask(old)

    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o640


_FULL = "A" * PIECE_CHARS

_INVALID = {
    "not the alphabet": "!!",
    "url-safe alphabet": "-_-_",
    "no padding": "QQ",
    "one digit": "QUJDR",
    "padding alone": "====",
    "too much padding": "Q===",
    "white space": "QUJD\nREVG",
    "beyond ascii": "QUJDé",
    "bits that are not zero": "QR==",
    "padding before the end": "QQ==QUJD",
    "padding before the end of a piece": _FULL[:-4] + "QQ==" + "QUJD",
    "padding at the end of the piece before the last": _FULL + _FULL[:-1] + "=" + _FULL,
    "a fault in the last piece": _FULL + "QUJ*",
    "cut off after a full piece": _FULL + "QU",
}


@pytest.mark.parametrize("text", _INVALID.values(), ids=_INVALID)
def test_invalid_base64_touches_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text("old")

    for name in ("file", "new"):
        with pytest.raises(InvalidRequest, match=r"^fs/writeFile requires valid base64 dataBase64: "):
            write_file(str(tmp_path / name), text)

    assert (tmp_path / "file").read_text() == "old"
    assert not (tmp_path / "new").exists()


@given(
    st.one_of(
        st.text("ABab01+/= \n-", max_size=20),
        st.binary(max_size=20).map(_text),
        st.lists(st.sampled_from(["QUJD", "QQ==", "QUI=", "QR==", "Q", "="]), max_size=4).map("".join),
    )
)
@example("QQ==QQ==")
def test_exactly_what_an_encoder_makes_is_valid(text: str) -> None:
    try:
        expected = _text(base64.b64decode(text)) == text
    except ValueError:
        expected = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_PIECE_CHARS", 8)
        try:
            size = writing._decoded_size(memoryview(text.encode()))
        except InvalidRequest:
            assert not expected
        else:
            assert expected
            assert size == len(base64.b64decode(text))


def test_a_directory_and_a_missing_parent_are_errors(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_file(str(tmp_path), "QUJD")
    with pytest.raises(FileNotFoundError):
        write_file(str(tmp_path / "missing" / "file"), "QUJD")


def test_a_fifo_takes_the_content_with_a_reader_and_no_call_waits_otherwise(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="No such device or address"):
        write_file(str(tmp_path / "fifo"), "QUJD")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    write_file(str(tmp_path / "fifo"), "QUJD")

    assert os.read(reader, 10) == b"ABC"
    os.close(reader)


def test_a_device_takes_the_content() -> None:
    write_file("/dev/null", "QUJD")
    with pytest.raises(OSError, match="No space left on device"):
        write_file("/dev/full", "QUJD")


@pytest.mark.parametrize("old_size", [10, 30_000])
def test_a_full_disk_keeps_the_old_content(mount: Mount, old_size: int) -> None:
    path = mount("tmpfs", "size=64k") / "file"
    old = os.urandom(old_size)
    path.write_bytes(old)

    with pytest.raises(OSError, match="No space left on device"):
        write_file(str(path), _text(bytes(100_000)))

    assert path.read_bytes() == old
    write_file(str(path), _text(b"n" * 60_000))
    assert path.read_bytes() == b"n" * 60_000


def test_a_hole_of_the_old_content_is_not_taken_for_space(mount: Mount) -> None:
    folder = mount("tmpfs", "size=64k")
    (folder / "other").write_bytes(bytes(40_000))
    (folder / "file").write_bytes(b"old")
    os.truncate(folder / "file", 60_000)

    with pytest.raises(OSError, match="No space left on device"):
        write_file(str(folder / "file"), _text(b"n" * 60_000))

    assert (folder / "file").read_bytes() == b"old".ljust(60_000, b"\0")


def test_a_new_file_on_a_full_disk_is_not_left_half_written(mount: Mount) -> None:
    path = mount("tmpfs", "size=64k") / "file"

    with pytest.raises(OSError, match="No space left on device"):
        write_file(str(path), _text(b"n" * 100_000))

    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("old", "new"), [(b"old", b"n" * 100_000), (b"o" * 100_000, b"new"), (b"old", b"new")]
)
def test_a_file_system_that_cannot_reserve_space_is_written_all_the_same(
    mount: Mount, old: bytes, new: bytes
) -> None:
    path = mount("ramfs") / "file"
    path.write_bytes(old)

    write_file(str(path), _text(new))

    assert path.read_bytes() == new


async def test_what_was_written_is_read_again(caller: StubCaller, tmp_path: Path) -> None:
    text = _text(os.urandom(3_000_001))

    assert await caller.call("fs/writeFile", path=tmp_path / "file", dataBase64=text) == {}

    assert await caller.call("fs/readFile", path=tmp_path / "file") == {"dataBase64": text}


async def test_a_program_can_be_run_as_soon_as_it_is_written(caller: StubCaller, tmp_path: Path) -> None:
    program = tmp_path / "program"
    for _ in range(50):
        await caller.call("fs/writeFile", path=program, dataBase64=_text(b"#!/bin/true\n"))
        program.chmod(0o755)
        pid = os.posix_spawn(program, [str(program)], {})
        assert os.waitpid(pid, 0)[1] == 0
