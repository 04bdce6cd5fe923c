"""The file of clients that are let in."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from execserver.relay.executor.allowed_clients import MAX_BYTES, AllowedClients, AllowedClientsError

ONE, OTHER = "1" * 64, "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "clients"
    path.write_text("")
    path.chmod(0o600)
    return path


def fault(path: Path) -> str:
    with pytest.raises(AllowedClientsError) as caught:
        AllowedClients(path).read()
    return str(caught.value)


def test_fingerprints_stand_one_a_line_between_comments(path: Path) -> None:
    path.write_text(f"# our clients\n\n  {ONE}  # the laptop\n{OTHER.upper()}\n")
    clients = AllowedClients(path)
    assert clients.read() == {ONE, OTHER}
    assert clients.admits(OTHER)
    assert not clients.admits("2" * 64)


def test_an_empty_file_admits_no_client(path: Path) -> None:
    assert not AllowedClients(path).admits(ONE)


def test_a_change_is_seen_without_being_told(path: Path) -> None:
    clients = AllowedClients(path)
    assert not clients.admits(ONE)
    path.write_text(f"{ONE}\n")
    assert clients.admits(ONE)
    replacement = path.with_name("new")
    replacement.write_text(f"{OTHER}\n")
    replacement.rename(path)
    assert not clients.admits(ONE)


@pytest.mark.parametrize("line", ["1" * 63, "1" * 65, "g" * 64, f"{ONE} {OTHER}", "\udcff", "\u0661" * 64])
def test_a_line_that_is_no_fingerprint_is_named(path: Path, line: str) -> None:
    path.write_text(f"{ONE}\n{line}\n", errors="surrogateescape")
    assert fault(path).startswith(f"{path}:2: must be 64 hexadecimal digits")


def test_a_list_that_became_invalid_admits_no_client_until_it_is_fixed(path: Path) -> None:
    path.write_text(f"{ONE}\n")
    clients = AllowedClients(path)
    assert clients.admits(ONE)
    path.write_text("what?\n")
    for _ in range(2):
        with pytest.raises(AllowedClientsError):
            clients.admits(ONE)
    path.write_text(f"{ONE}\n# mended\n")
    assert clients.admits(ONE)


def test_a_change_that_looks_the_same_is_seen_while_the_file_is_young(path: Path) -> None:
    path.write_text(f"{ONE}\n")
    clients = AllowedClients(path)
    before = path.stat()
    assert clients.admits(ONE)
    same = os.stat_result(
        [*before[:10]], {"st_mtime_ns": before.st_mtime_ns, "st_ctime_ns": before.st_ctime_ns}
    )
    path.write_text(f"{OTHER}\n")  # as long as before, and within a tick of the clock for all we see
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fstat", lambda _: same)
        assert not clients.admits(ONE)


def test_a_thread_that_is_late_with_an_old_file_does_not_bring_it_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(f"{ONE}\n")
    later = time.time_ns() + 10_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)  # the file is settled
    clients = AllowedClients(path)
    read = os.read
    nested: list[bool] = []

    def slow(descriptor: int, size: int) -> bytes:
        content = read(descriptor, size)
        if content and not nested:
            nested.append(True)
            replacement = path.with_name("new")
            replacement.write_text(f"{OTHER}\n")
            replacement.rename(path)
            assert clients.admits(OTHER)  # the other thread, which is faster
        return content

    monkeypatch.setattr(os, "read", slow)
    clients.read()
    assert not clients.admits(ONE)
    assert clients.admits(OTHER)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/none: No such file" in fault(tmp_path / "none")


def test_what_others_may_write_is_refused(path: Path) -> None:
    path.chmod(0o620)
    assert "chmod go-w" in fault(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_others_is_refused(path: Path) -> None:
    os.chown(path, 12345, -1)
    assert "uid 12345" in fault(path)


def test_a_pipe_and_a_device_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "no regular file" in fault(tmp_path / "pipe")
    assert "no regular file" in fault(Path("/dev/zero"))


def test_a_huge_file_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert f"more than {MAX_BYTES} bytes" in fault(path)
