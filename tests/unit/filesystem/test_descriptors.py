from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from execserver.filesystem.cancel import RequestCancelled
from execserver.filesystem.descriptors import Descriptor, Descriptors
from tests.unit.filesystem.conftest import open_descriptors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("content")
    return tmp_path / "file"


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def test_a_close_waits_for_the_borrower(path: Path) -> None:
    descriptor = Descriptor(_open(path))

    with descriptor.borrow() as number:
        descriptor.close()
        assert os.pread(number, 7, 0) == b"content"
    assert open_descriptors(path) == 0


def test_the_last_of_several_borrowers_closes(path: Path) -> None:
    descriptor = Descriptor(_open(path))

    with descriptor.borrow():
        with descriptor.borrow():
            descriptor.close()
        assert open_descriptors(path) == 1
    assert open_descriptors(path) == 0


def test_a_closed_descriptor_cannot_be_borrowed(path: Path) -> None:
    descriptor = Descriptor(_open(path))
    descriptor.close()

    with pytest.raises(OSError, match="Bad file descriptor") as raised, descriptor.borrow():
        pass
    assert raised.value.errno == errno.EBADF


def test_closing_twice_does_not_close_the_file_that_has_the_number_now(path: Path) -> None:
    descriptor = Descriptor(_open(path))
    descriptor.close()
    successor = _open(path)

    descriptor.close()

    assert os.pread(successor, 7, 0) == b"content"
    os.close(successor)


def test_many_threads_that_borrow_during_a_close_never_see_another_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("another")
    wrong: list[bytes] = []

    for _ in range(200):
        descriptor = Descriptor(_open(path))

        def read(descriptor: Descriptor = descriptor) -> None:
            try:
                with descriptor.borrow() as number:
                    data = os.pread(number, 7, 0)
            except OSError:
                return
            if data != b"content":
                wrong.append(data)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        descriptor.close()
        number = _open(tmp_path / "other")
        for thread in threads:
            thread.join()
        os.close(number)

    assert wrong == []
    assert open_descriptors(path) == 0


async def test_the_descriptors_of_a_connection_end_with_it(path: Path) -> None:
    descriptors = Descriptors()
    for _ in range(3):
        descriptors.adopt(_open(path))
    descriptors.release(descriptors.adopt(_open(path)))
    assert open_descriptors(path) == 3

    descriptors.close()

    while open_descriptors(path):
        await asyncio.sleep(0.001)


def test_a_descriptor_that_comes_too_late_is_closed(path: Path) -> None:
    descriptors = Descriptors()
    descriptors.close()

    with pytest.raises(RequestCancelled):
        descriptors.adopt(_open(path))
    assert open_descriptors(path) == 0
