"""Small file operations on the loop: the outcome is the same as in a thread, and the loop does not wait."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execprotocol.errors import RpcError
from execserver.filesystem import small
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.small import MAX_BYTES, MAX_ENTRIES
from execserver.rpc.handlers import Encoded
from tests.support.mounts import Mount
from tests.unit.filesystem.caller import StubCaller

Outcome = Callable[..., Any]


def at_once(caller: StubCaller, method: str, **params: Any) -> bool:
    """Whether the loop does it; an operation for a thread is not begun."""
    result = caller.begin(method, **params)
    if isinstance(result, Encoded):
        return True
    result.close()  # type: ignore[union-attr]  # a coroutine
    return False


def make_tree(folder: Path) -> None:
    """One of every kind."""
    folder.mkdir()
    for name, content in {"text": b"text", "empty": b"", "full": b"x" * MAX_BYTES}.items():
        (folder / name).write_bytes(content)
    (folder / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    with (folder / "sparse").open("wb") as file:
        file.truncate(3000)
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("text")
    (folder / "dangling").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff")).write_bytes(b"odd")
    (folder / "closed").write_bytes(b"closed")
    (folder / "closed").chmod(0)


NAMES = ("text", "empty", "full", "large", "sparse", "folder", "link", "dangling", "loop", "fifo", "socket",
         os.fsdecode(b"bad\xff"), "closed", "missing", "text/below", "x" * 300, "")  # fmt: skip


@pytest.fixture
def outcome(caller: StubCaller, mounts: MountTable) -> Outcome:
    """The outcome of a request, on the loop or in a thread: its result or its error."""

    async def outcome(method: str, *, in_thread: bool, **params: Any) -> Any:
        mounts.can_hang = in_thread
        try:
            result = await caller.call(method, **params)
        except RpcError as error:
            return error.code, error.message.replace(str(params["path"]), "PATH")
        if method == "fs/readDirectory":
            result["entries"].sort(key=lambda entry: entry["fileName"])
        return result

    return outcome


@pytest.mark.parametrize("method", ["fs/readFile", "fs/readDirectory"])
@pytest.mark.parametrize("name", NAMES)
async def test_the_outcome_is_that_of_a_thread(
    method: str, name: str, outcome: Outcome, tmp_path: Path
) -> None:
    make_tree(tmp_path / "tree")
    path = tmp_path / "tree" / name
    mine, threads = [await outcome(method, in_thread=way, path=path) for way in (False, True)]
    assert mine == threads


@pytest.mark.parametrize("content", ["QUJD", "", "QUJ", "!!!!", "QUJDRA==", "QUJDRB==", "QUJDRA==QUJD"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_write_leaves_what_it_leaves_in_a_thread(
    name: str, content: str, outcome: Outcome, tmp_path: Path
) -> None:
    seen = []
    for way in (False, True):
        folder = tmp_path / ("thread" if way else "loop")
        make_tree(folder)
        result = await outcome("fs/writeFile", in_thread=way, path=folder / name, dataBase64=content)
        files = {}
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.is_symlink():
                files[file.name] = (file.read_bytes(), file.stat().st_mode)
        seen.append((result, files))
    assert seen[0] == seen[1]


async def test_what_is_small_is_done_on_the_loop_and_what_is_not_in_a_thread(
    caller: StubCaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "SLOW_SECONDS", 60.0)
    make_tree(tmp_path / "tree")
    for name, on_loop in {"text": True, "full": True, "large": False, "link": True, "empty": False}.items():
        assert at_once(caller, "fs/readFile", path=tmp_path / "tree" / name) is on_loop, name
    assert at_once(caller, "fs/readDirectory", path=tmp_path / "tree")
    assert not at_once(caller, "fs/readFile", path="file:///proc/self/status")
    for size in (MAX_BYTES, MAX_BYTES + 3):
        content = base64.b64encode(b"y" * size).decode()
        on_loop = at_once(caller, "fs/writeFile", path=tmp_path / "new", dataBase64=content)
        assert on_loop is (size == MAX_BYTES)
    for number in range(MAX_ENTRIES + 1):
        (tmp_path / f"{number}").touch()
    assert not at_once(caller, "fs/readDirectory", path=tmp_path)


@pytest.mark.parametrize("folder", ["/dev/shm", ""])
async def test_files_in_memory_are_read_on_the_loop(
    folder: str, caller: StubCaller, memory_folder: Path
) -> None:
    (memory_folder / "file").write_bytes(b"text")
    assert at_once(caller, "fs/readFile", path=memory_folder / "file")


async def test_a_thread_reads_what_the_page_cache_has_not(
    caller: StubCaller, mounts: MountTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "SLOW_SECONDS", 60.0)
    path = tmp_path / "file"
    path.write_bytes(b"z" * 9000)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert path.stat().st_dev not in mounts.in_memory, "this test needs a disk below /tmp"
    assert not at_once(caller, "fs/readFile", path=path)
    assert base64.b64decode((await caller.call("fs/readFile", path=path))["dataBase64"]) == b"z" * 9000
    assert at_once(caller, "fs/readFile", path=path)


async def test_nothing_is_done_on_the_loop_while_a_mount_can_hang(
    caller: StubCaller, mounts: MountTable, tmp_path: Path
) -> None:
    mounts.can_hang = True
    (tmp_path / "file").write_bytes(b"text")
    assert not at_once(caller, "fs/readFile", path=tmp_path / "file")
    assert not at_once(caller, "fs/readDirectory", path=tmp_path)
    assert not at_once(caller, "fs/writeFile", path=tmp_path / "new", dataBase64="QUJD")
    assert not (tmp_path / "new").exists()


async def test_neither_a_fifo_nor_a_device_makes_the_loop_wait(caller: StubCaller, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/full")
    for name in ("fifo", "device"):
        assert not at_once(caller, "fs/writeFile", path=tmp_path / name, dataBase64="QUJD")


# A holder of a lease, which releases it half a second after the request.
LEASE = """
import fcntl, os, signal, sys, time

def let_go(*_):
    time.sleep(0.5)
    fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_UNLCK)

signal.signal(signal.SIGIO, let_go)
number = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_RDLCK)
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_lease_makes_a_thread_wait_and_not_the_loop(
    caller: StubCaller, slowest_turn: Callable[[], float], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-I", "-c", LEASE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        assert not at_once(caller, "fs/writeFile", path=path, dataBase64="QUJD")
        assert path.read_bytes() == b"old"
        holder.stdin.close()
        holder.send_signal(signal.SIGTERM)
    assert slowest_turn() < 0.2


async def test_a_slow_disk_sends_the_next_operations_of_its_kind_to_threads(
    caller: StubCaller, mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("a slow mount needs the right to open /dev/fuse")
    monkeypatch.setattr(small, "REST_SECONDS", 60.0)
    (tmp_path / "fast").write_bytes(b"fast")
    (tmp_path / "empty").mkdir()
    (tmp_path / "disk").symlink_to(mount("fuse", "slow"))  # the fixture counts it as local

    assert at_once(caller, "fs/readFile", path=tmp_path / "fast")
    slow = await caller.call("fs/readFile", path=tmp_path / "disk" / "file")
    assert base64.b64decode(slow["dataBase64"]) == b"slow"

    assert not at_once(caller, "fs/readFile", path=tmp_path / "fast")
    assert at_once(caller, "fs/readDirectory", path=tmp_path / "empty")
    monkeypatch.setattr(small, "perf_counter", lambda: time.perf_counter() + 60)
    assert at_once(caller, "fs/readFile", path=tmp_path / "fast")


async def test_a_folder_of_links_that_take_long_to_follow_is_for_a_thread(
    caller: StubCaller, tmp_path: Path
) -> None:
    target = "end"
    for folder in ("a", "end", "links"):
        (tmp_path / folder).mkdir()
    for number in range(36):
        (tmp_path / f"hop{number}").symlink_to("a/../" * ((4000 - len(target)) // 5) + target)
        target = f"hop{number}"
    for number in range(MAX_ENTRIES):
        (tmp_path / "links" / f"{number}").symlink_to(tmp_path / target)
    began = time.thread_time()
    assert not at_once(caller, "fs/readDirectory", path=(tmp_path / "links").as_uri())
    assert time.thread_time() - began < 0.5, "all of them take seconds"
    result = await caller.call("fs/readDirectory", path=(tmp_path / "links").as_uri())
    assert [entry["isDirectory"] for entry in result["entries"]] == [True] * MAX_ENTRIES
