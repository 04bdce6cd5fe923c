"""Workers in the running loop; the same operations in a worker and in this process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from execprotocol.filesystem import Metadata
from execserver.filesystem import operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.descriptors import Descriptors
from execserver.filesystem.files import DirectFiles, Files
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.small import SmallFiles
from execserver.fsworker.confined_files import ConfinedFiles, ConfinedRequests
from execserver.fsworker.pool import WorkerPool
from execserver.sandbox.policy import Policy
from tests.support.fs_workers import BareLauncher
from tests.support.mounts import Mount, mounting


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """The loop that the server runs on."""
    return {"uvloop": uvloop.new_event_loop}


def look(files: Files, path: str = "/") -> Awaitable[Metadata]:
    """The cheapest request."""
    return files.run(operations.metadata, path, False)


class Connection:
    """The objects that a connection has for `fs/*`."""

    def __init__(self) -> None:
        self.calls = BlockingCalls()
        self.descriptors = Descriptors()
        self.requests = ConfinedRequests()
        self.mounts = MountTable()
        self.direct = DirectFiles(self.calls, self.descriptors)

    def confined(self, pool: WorkerPool, policy: Policy) -> ConfinedFiles:
        small = SmallFiles(self.mounts)
        return ConfinedFiles(pool, policy, self.requests, self.calls, self.descriptors, small)

    def close(self) -> None:
        self.requests.close()
        self.calls.close()
        self.descriptors.close()
        self.mounts.close()


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    made = Connection()
    yield made
    made.close()


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    yield from mounting(tmp_path_factory)


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory, for tests that are slow on a disk."""
    folder = tempfile.mkdtemp(dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def launcher() -> BareLauncher:
    return BareLauncher()


@pytest.fixture
async def pool(launcher: BareLauncher) -> AsyncIterator[WorkerPool]:
    made = WorkerPool(launcher)
    yield made
    await made.close()
