from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from execprotocol.relay.key_files import KeyFileError, load_key_pair
from execprotocol.relay.keys import KeyPair


def test_a_missing_file_is_made_for_its_owner_alone_and_holds_the_same_pair_ever_after(
    tmp_path: Path,
) -> None:
    old = os.umask(0o777)
    try:
        made = load_key_pair(tmp_path / "key", create=True)
    finally:
        os.umask(old)
    again = load_key_pair(tmp_path / "key", create=True)
    read = load_key_pair(tmp_path / "key", create=False)

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert made.public == again.public == read.public
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


def test_the_file_is_one_line_with_the_seed(tmp_path: Path) -> None:
    pair = load_key_pair(tmp_path / "key", create=True)

    line = (tmp_path / "key").read_bytes()

    assert line == base64.b64encode(pair.seed) + b"\n"
    assert KeyPair.from_seed(base64.b64decode(line)).public == pair.public


def test_a_file_without_its_newline_is_as_good(tmp_path: Path) -> None:
    pair = KeyPair.generate()
    key = private(tmp_path / "key", base64.b64encode(pair.seed))

    assert load_key_pair(key, create=False).public == pair.public


def test_a_missing_file_that_is_not_to_be_made_is_an_error_with_the_command_that_makes_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        KeyFileError, match=r"no key file .*/key: make one with `execserver relay key .*/key`"
    ):
        load_key_pair(tmp_path / "key", create=False)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_have_access_to_is_refused(tmp_path: Path, mode: int) -> None:
    load_key_pair(tmp_path / "key", create=True)
    (tmp_path / "key").chmod(mode)

    with pytest.raises(KeyFileError, match=rf"mode {mode:04o}.*chmod 600"):
        load_key_pair(tmp_path / "key", create=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"c2VjcmV0\n", base64.b64encode(bytes(96)) + b"\n\n", b"!" * 128, b"A" * 1_000_000],
    ids=["empty", "a newline", "short", "two lines", "no base64", "a megabyte"],
)
def test_what_is_no_key_is_refused_and_neither_shown_nor_replaced(tmp_path: Path, content: bytes) -> None:
    key = private(tmp_path / "key", content)

    with pytest.raises(KeyFileError, match="holds no key pair") as raised:
        load_key_pair(key, create=True)

    assert "c2VjcmV0" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert key.read_bytes() == content


def test_a_fifo_and_a_folder_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir(0o700)

    with pytest.raises(KeyFileError, match="no regular file"):
        load_key_pair(tmp_path / "fifo", create=True)
    with pytest.raises(KeyFileError, match="folder"):
        load_key_pair(tmp_path / "folder", create=True)


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="its folder must exist"):
        load_key_pair(tmp_path / "none" / "key", create=True)

    assert list(tmp_path.iterdir()) == []


def test_a_link_to_nothing_is_followed(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "vault" / "key")

    pair = load_key_pair(tmp_path / "link", create=True)

    assert (tmp_path / "link").is_symlink()
    assert load_key_pair(tmp_path / "vault" / "key", create=False).public == pair.public


def test_two_who_make_it_at_once_get_the_same_pair(tmp_path: Path) -> None:
    together = Barrier(4)

    def load(key: Path) -> str:
        together.wait()
        return load_key_pair(key, create=True).public.fingerprint

    with ThreadPoolExecutor(4) as threads:
        for number in range(10):
            found = set(threads.map(load, [tmp_path / str(number)] * 4))
            assert len(found) == 1


def private(path: Path, content: bytes) -> Path:
    path.touch(0o600)
    path.write_bytes(content)
    return path
