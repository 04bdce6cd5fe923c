"""Rings: what comes in through a pipe is where it was said to be."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.spool import data_file
from execserver.spool.data_file import (
    PAGE_BYTES,
    DataFile,
    NotStoredError,
    create_in_memory,
    create_on_disk,
    ring_capacity,
)

CAPACITY = 2 * PAGE_BYTES


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["disk", "memory"])
def ring(request: pytest.FixtureRequest, folder: int) -> Iterator[DataFile]:
    file = create_on_disk(folder, CAPACITY) if request.param == "disk" else create_in_memory(CAPACITY)
    yield file
    file.close()


def test_bytes_go_around_the_ring_and_no_move_crosses_its_end(ring: DataFile, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"a" * 8000)
    assert (ring.splice_from(pipe[0], 65536), ring.position) == (8000, 8000)
    os.write(pipe[1], b"b" * 300)
    assert (ring.splice_from(pipe[0], 65536), ring.position) == (192, 0)
    assert (ring.splice_from(pipe[0], 65536), ring.position) == (108, 108)
    assert ring.read(8000, 300) == b"b" * 300
    assert ring.read(108, 7892) == b"a" * 7892
    assert os.fstat(ring.fd).st_size == CAPACITY


def test_a_process_that_shares_the_open_file_sees_how_far_the_kernel_got(
    ring: DataFile, pipe: tuple[int, int]
) -> None:
    os.write(pipe[1], b"x" * 5000)
    ring.splice_from(pipe[0], 5000)
    other = DataFile(os.dup(ring.fd), CAPACITY, ring.in_memory)
    assert other.position == 5000
    os.write(pipe[1], b"x" * 5000)
    other.splice_from(pipe[0], 5000)
    assert os.lseek(ring.fd, 0, os.SEEK_CUR) == 0
    other.close()


def test_a_ring_that_was_left_at_its_very_end_goes_on_at_its_beginning(ring: DataFile) -> None:
    os.lseek(ring.fd, CAPACITY, os.SEEK_SET)
    again = DataFile(os.dup(ring.fd), CAPACITY, ring.in_memory)
    assert (again.position, os.lseek(ring.fd, 0, os.SEEK_CUR)) == (0, 0)
    again.close()


def test_nothing_now_and_nothing_ever_again_are_told_apart(ring: DataFile) -> None:
    read, write = os.pipe()
    with pytest.raises(BlockingIOError):
        ring.splice_from(read, 10)
    os.close(write)
    assert ring.splice_from(read, 10) == 0
    os.close(read)


def test_what_is_no_pipe_is_copied_and_the_file_remembers(ring: DataFile, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"words")
    source = os.open(tmp_path / "source", os.O_RDONLY)
    assert ring.splice_from(source, 100) == 5
    assert not ring.can_splice
    assert ring.splice_from(source, 100) == 0
    assert (ring.read(0, 5), ring.position) == (b"words", 5)
    os.close(source)


def test_copied_bytes_that_find_no_room_are_handed_back(pipe: tuple[int, int]) -> None:
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 3)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    ring = DataFile(fd, CAPACITY, in_memory=False)
    ring.can_splice = False
    os.write(pipe[1], b"words")
    with pytest.raises(NotStoredError) as refused:
        ring.splice_from(pipe[0], 100)
    assert (refused.value.data, refused.value.cause.errno) == (b"words", errno.EPERM)
    assert (ring.position, os.lseek(fd, 0, os.SEEK_CUR)) == (0, 0)
    other = create_in_memory(PAGE_BYTES)
    assert other.store(refused.value.data) == 5
    assert other.read(0, 5) == b"words"
    ring.close()
    other.close()


def test_no_more_is_stored_than_up_to_the_end_of_the_ring(ring: DataFile) -> None:
    assert ring.store(b"x" * (CAPACITY + 100)) == CAPACITY
    assert ring.position == 0


def test_a_file_that_was_cut_gives_an_error_and_never_other_bytes(ring: DataFile) -> None:
    ring.store(b"x" * 100)
    os.ftruncate(ring.fd, 50)
    with pytest.raises(OSError, match="Input/output"):
        ring.read(20, 60)
    assert ring.read(20, 30) == b"x" * 30


def test_freed_space_is_all_but_the_newest_bytes(folder: int) -> None:
    ring = create_on_disk(folder, 64 * PAGE_BYTES)
    for place in range(100):
        ring.store(bytes([place]) * PAGE_BYTES)
    os.fsync(ring.fd)
    full = os.fstat(ring.fd).st_blocks
    ring.free_space(40 * PAGE_BYTES, 25 * PAGE_BYTES)
    assert os.fstat(ring.fd).st_blocks == full, "that is not worth it"
    ring.free_space(40 * PAGE_BYTES, 20 * PAGE_BYTES)
    assert os.fstat(ring.fd).st_blocks == full - 24 * PAGE_BYTES // 512
    for place in range(60, 100):
        assert ring.read(place * PAGE_BYTES, PAGE_BYTES) == bytes([place]) * PAGE_BYTES
    ring.free_space(0, 1)
    assert os.fstat(ring.fd).st_blocks <= full - 63 * PAGE_BYTES // 512
    ring.close()


def test_a_file_has_no_name_with_or_without_the_kernels_help(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create_on_disk(folder, CAPACITY)
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # a kernel that does not know it opens the folder
    second = create_on_disk(folder, CAPACITY)
    for file in (first, second):
        assert file.store(b"x") == 1
        status = os.fstat(file.fd)
        assert (status.st_nlink, status.st_mode & 0o777) == (0, 0o600)
        assert not os.get_inheritable(file.fd)
        file.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("size", "capacity"), [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)])
def test_a_ring_is_a_multiple_of_a_page(size: int, capacity: int) -> None:
    assert data_file.PAGE_BYTES == 4096
    assert ring_capacity(size) == capacity
