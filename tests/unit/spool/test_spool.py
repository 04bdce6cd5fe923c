"""Where data files come from, and what happens when the disk fails."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from execserver.spool.spool import Spool, SpoolLimits

Told = list[tuple[bool, str]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def spool(tmp_path: Path, told: Told) -> Iterator[Spool]:
    spool = Spool(
        str(tmp_path / "state" / "spool"), SpoolLimits(), lambda failing, why: told.append((failing, why))
    )
    yield spool
    spool.close()


def retry_now(spool: Spool) -> None:
    spool._retry_at = 0.0


def test_the_folder_is_made_for_us_alone_and_stays_empty(spool: Spool, tmp_path: Path) -> None:
    file = spool.new_disk_file(64 << 20)
    assert file is not None
    assert file.capacity == 65 << 20
    assert (tmp_path / "state" / "spool").stat().st_mode & 0o777 == 0o700
    assert os.listdir(tmp_path / "state" / "spool") == []
    file.close()


def test_without_a_folder_everything_is_in_memory(told: Told) -> None:
    spool = Spool(None, SpoolLimits(), lambda failing, why: told.append((failing, why)))
    assert spool.new_disk_file(1) is None
    assert spool.folder_problem is not None
    assert told == [], "that is a choice, not a failure"
    file = spool.new_memory_file(64 << 20)
    assert 1 << 20 < file.capacity <= (1 << 20) + (128 << 10)
    file.close()


def test_a_folder_that_others_may_read_is_not_used_until_that_is_mended(tmp_path: Path, told: Told) -> None:
    tmp_path.chmod(0o755)
    spool = Spool(str(tmp_path), SpoolLimits(), lambda failing, why: told.append((failing, why)))
    assert "0755" in str(spool.folder_problem)
    assert spool.new_disk_file(1) is None
    assert [failing for failing, _ in told] == [True]
    tmp_path.chmod(0o700)
    assert spool.new_disk_file(1) is None, "not before a second is over"
    retry_now(spool)
    file = spool.new_disk_file(1)
    assert file is not None
    assert spool.folder_problem is None
    file.close()
    spool.close()


def test_a_failing_disk_is_left_alone_for_a_second_and_told_once(spool: Spool, told: Told) -> None:
    for _ in range(3):
        spool.disk_failed(OSError(errno.ENOSPC, ""))
    assert spool.new_disk_file(1) is None
    assert told == [(True, "No space left on device")]
    retry_now(spool)
    file = spool.new_disk_file(1)
    assert file is not None
    file.close()
    assert spool.failing, "that a file can be made does not mean that it can be written"
    for _ in range(2):
        spool.disk_works()
    assert told == [(True, "No space left on device"), (False, "")]


def test_a_ring_that_is_overwritten_does_not_make_a_full_disk_work(spool: Spool, told: Told) -> None:
    spool.disk_failed(OSError(errno.ENOSPC, ""))
    spool.disk_works()
    assert spool.failing
    assert len(told) == 1


def test_no_ring_is_larger_than_the_index_can_express(spool: Spool) -> None:
    file = spool.new_disk_file(1 << 50)
    assert file is not None
    assert file.capacity == 256 << 30
    file.close()


def test_a_folder_that_was_removed_is_made_again(spool: Spool, tmp_path: Path, told: Told) -> None:
    shutil.rmtree(tmp_path / "state")
    file = spool.new_disk_file(1)
    if file is None:  # on a tmpfs a file without a name can still be made
        assert [failing for failing, _ in told] == [True]
        retry_now(spool)
        file = spool.new_disk_file(1)
    assert file is not None
    file.close()


def test_a_full_descriptor_table_is_no_failure_of_the_disk(spool: Spool, told: Told) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            spool.new_disk_file(1)
        with pytest.raises(OSError, match="Too many open files"):
            spool.new_memory_file(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    assert told == []


def test_whether_the_kernel_moves_bytes_to_the_disk_can_be_asked(spool: Spool) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert spool.disk_splices()
    assert len(os.listdir("/proc/self/fd")) == before
