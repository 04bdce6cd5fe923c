"""Connections without a transport, and mounts that end with the test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from execserver.filesystem.mounts import MountTable
from tests.support.mounts import NO_FUSE, Mount, can_hang, mounting
from tests.support.noise import noise_watched
from tests.support.servers import open_files
from tests.unit.filesystem.caller import StubCaller


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """The loop that the server runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def mounts() -> Iterator[MountTable]:
    table = MountTable()
    # The machine may have any mounts. A test that needs one that hangs sets it.
    table.can_hang = False
    yield table
    table.close()


@pytest.fixture
async def caller(mounts: MountTable) -> AsyncIterator[StubCaller]:
    connection = StubCaller(mounts)
    yield connection
    connection.close()


@pytest.fixture
async def other_caller(mounts: MountTable) -> AsyncIterator[StubCaller]:
    connection = StubCaller(mounts)
    yield connection
    connection.close()


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """`mount("tmpfs", "size=64k")` gives a folder."""
    yield from mounting(tmp_path_factory)


@pytest.fixture
def dead_mount(mount: Mount) -> Path:
    """A mount whose server never answers: every lookup in it hangs until the test ends."""
    if not can_hang():
        pytest.skip(NO_FUSE)
    return mount("fuse")


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory, for tests that are slow on a disk. It may hold trees deeper than pytest's own
    way to remove its folders can go.
    """
    folder = tempfile.mkdtemp(dir="/dev/shm")
    yield Path(folder)
    subprocess.run(["rm", "-rf", folder], check=True)


@pytest.fixture
async def slowest_turn() -> AsyncIterator[Callable[[], float]]:
    """Seconds that the loop took for its slowest turn since the test began, less what this machine may
    have taken by itself.
    """
    slowest = 0.0

    async def run_turns() -> None:
        nonlocal slowest
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0.001)
            slowest = max(slowest, loop.time() - began)

    with noise_watched() as noise:
        task = asyncio.create_task(run_turns())
        yield lambda: slowest - noise.allowance
        task.cancel()


def open_descriptors(path: Path) -> int:
    """How many descriptors of this process lead to a file."""
    return open_files(os.getpid()).count(os.path.realpath(path))
