"""A watch of files that change without pause: bounded memory, and the same tree at the end.

`EXECSERVER_SOAK_CHANGES` is the number of changes; `make soak` makes a million.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from execclient import connect
from tests.conftest import StartServer
from tests.support.mirror import Mirror
from tests.support.wire import PATIENCE

CHANGES = int(os.environ.get("EXECSERVER_SOAK_CHANGES", "10000"))
FILES = 500
MOST_GROWTH_MIB = 64
"""Of the daemon with the program of the watch, and of this process with the client. The log of a watch has at
most 65,536 changes and 16 MiB."""
QUIET_SECONDS = 2.0

WRITER = """
import os, sys
root, changes, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(changes // 2):
    path = f"{root}/{number % files}"
    os.symlink(str(number), path + ".new")
    os.unlink(path + ".new") if number % 7 == 0 else os.rename(path + ".new", path)
"""


def resident_mib(pid: int) -> float:
    """The memory of a process and all below it."""
    total = 0
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / (1 << 20)


@pytest.mark.soak
@pytest.mark.timeout(120 + CHANGES // 500)
@pytest.mark.parametrize("reads", [True, False], ids=["read as they come", "not read until the end"])
async def test_changes_without_pause_are_bounded_in_memory(
    start_server: StartServer, tmp_path: Path, *, reads: bool
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    server = start_server(f"unix://{tmp_path}/s")
    async with connect(server.url) as executor, executor.watch(root) as watch:
        mirror = Mirror(root)
        (root / "first").touch()
        mirror.apply(await anext(watch))
        before, own = resident_mib(server.pid), psutil.Process()
        own_before, most, own_most = own.memory_info().rss / (1 << 20), 0.0, 0.0
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root), str(CHANGES), str(FILES)])
        while writer.poll() is None or (batch := await watch.batch(QUIET_SECONDS)):
            if writer.returncode is None:
                batch = await watch.batch(0.05) if reads else []
                await asyncio.sleep(0.05)
            for change in batch:
                mirror.apply(change)
            most = max(most, resident_mib(server.pid) - before)
            own_most = max(own_most, own.memory_info().rss / (1 << 20) - own_before)
        until = time.monotonic() + PATIENCE
        while mirror.differences() and time.monotonic() < until:
            for change in await watch.batch(QUIET_SECONDS):
                mirror.apply(change)

        print(f"{mirror.changes} changes, {mirror.rescans} gaps, {most:.0f} and {own_most:.0f} MiB more")
        assert writer.returncode == 0
        assert most <= MOST_GROWTH_MIB
        assert own_most <= MOST_GROWTH_MIB
        assert mirror.differences() == []
