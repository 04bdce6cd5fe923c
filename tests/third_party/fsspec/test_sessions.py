"""The life of sessions: lost and closed ones, the end of the program, forks and other processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fsspec.asyn import get_loop

from execclient.integrations.fsspec import ExecServerFileSystem
from tests.support.wire import PATIENCE


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def own_daemons() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "execserver" in " ".join(child.cmdline())]


def sockets() -> int:
    return len(psutil.Process().net_connections("unix"))


def test_a_lost_session_is_replaced(folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    fs = ExecServerFileSystem("stdio:", sandbox="read-only", skip_instance_cache=True)
    before = own_daemons()
    assert fs.cat_file(f"{folder}/file") == b"data"
    (daemon,) = (child for child in own_daemons() if child not in before)

    daemon.send_signal(signal.SIGKILL)
    daemon.wait(10)

    assert fs.cat_file(f"{folder}/file") == b"data"
    fs.close()
    assert [child for child in own_daemons() if child not in before] == []


def test_a_daemon_that_starts_late_is_found(tmp_path: Path, url: str) -> None:
    socket = tmp_path / "daemon"
    fs = ExecServerFileSystem(f"unix://{socket}", skip_instance_cache=True)
    with pytest.raises(ConnectionRefusedError):
        fs.exists("/")

    socket.symlink_to(url.removeprefix("unix://"))
    assert fs.exists("/")
    fs.close()


def test_a_closed_file_system_connects_anew(url: str) -> None:
    before = sockets()
    fs = ExecServerFileSystem(url, skip_instance_cache=True)
    for _ in range(2):
        assert fs.isdir("/")
        fs.close()
    fs.close()
    wait_until(lambda: sockets() <= before)  # the sessions of an earlier test may end meanwhile


def test_a_collected_file_system_ends_its_session(url: str) -> None:
    before = sockets()
    fs = ExecServerFileSystem(url, skip_instance_cache=True)
    assert fs.isdir("/")
    del fs
    gc.collect()
    wait_until(lambda: sockets() <= before)  # the sessions of an earlier test may end meanwhile


def test_a_program_ends_without_a_word(url: str, folder: Path) -> None:
    program = f"""
import fsspec
with fsspec.open("execserver://{folder}/file", "wb", daemon_url={url!r}) as file:
    file.write(b"data")
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        timeout=50,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (folder / "file").read_bytes() == b"data"


def write(fs: ExecServerFileSystem, path: str, data: bytes) -> None:
    fs.pipe_file(path, data)


def test_a_spawned_process_gets_a_session_of_its_own(fs: ExecServerFileSystem, folder: Path) -> None:
    assert fs.isdir(str(folder))
    process = multiprocessing.get_context("spawn").Process(target=write, args=(fs, f"{folder}/file", b"data"))
    process.start()
    process.join(50)

    assert process.exitcode == 0
    assert fs.cat_file(f"{folder}/file") == b"data"


def in_a_fork(act: Callable[[], object]) -> int:
    """The exit status of a forked child that acts."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_child_of_a_fork_makes_its_own_file_system(
    fs: ExecServerFileSystem, url: str, folder: Path
) -> None:
    assert fs.isdir(str(folder))

    def act() -> None:
        with pytest.raises(RuntimeError, match="fork"):
            fs.cat_file("/etc/hostname")
        own = ExecServerFileSystem(url)
        assert own is not fs
        own.pipe_file(f"{folder}/file", b"data")
        own.close()

    assert in_a_fork(act) == 0
    assert fs.cat_file(f"{folder}/file") == b"data"


def test_no_thread_is_left_but_that_of_fsspec(url: str) -> None:
    get_loop()
    before = threading.active_count()
    fs = ExecServerFileSystem(url, skip_instance_cache=True)
    fs.ls("/")
    fs.close()

    assert [thread.name for thread in threading.enumerate() if "execclient" in thread.name] == []
    assert threading.active_count() <= before + 1  # asyncio's for local files
