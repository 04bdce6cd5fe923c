"""A disk without room."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.faults.service import Serve, eventually
from tests.support.edits import records, write
from tests.support.servers import open_files
from tests.support.wire import Client, decode, encode, path_uri

DISK_KIB = 1024
KIB = 1024
SOURCE_BYTES = 256 << 20


@pytest.fixture
def launcher(folder: Path) -> list[str]:
    """Starts a program in a mount namespace of its own, where `folder/disk` is a tiny file system. It
    goes with the last process in it, whatever becomes of the test.
    """
    (folder / "disk").mkdir()
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = f'mount -t tmpfs -o size={DISK_KIB}k tmpfs {folder}/disk && exec "$@"'
    command = [*unshare, "/bin/sh", "-c", mount, "sh"]
    done = subprocess.run([*command, "/bin/true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"a mount namespace is needed, as root or with unprivileged ones allowed: {done.stderr}")
    return command


def _write(client: Client, path: Path, content: bytes) -> int:
    return client.request("fs/writeFile", {"path": path_uri(path), "dataBase64": encode(content)})


def _read(client: Client, path: Path) -> bytes:
    return decode(client.call("fs/readFile", {"path": path_uri(path)})["dataBase64"])


def test_a_write_that_finds_no_room_keeps_the_old_content(
    transport: str, serve: Serve, folder: Path, launcher: list[str]
) -> None:
    client, disk = serve(transport, launcher=launcher).connect(), folder / "disk"
    old = os.urandom(300 * KIB)
    client.result(_write(client, disk / "file", old))
    client.result(_write(client, disk / "filler", bytes(600 * KIB)))

    refusal = client.failure(_write(client, disk / "file", os.urandom(500 * KIB)))
    assert (refusal.code, refusal.message) == (-32603, "No space left on device (os error 28)")
    assert _read(client, disk / "file") == old

    new = os.urandom(310 * KIB)
    client.result(_write(client, disk / "file", new))
    assert _read(client, disk / "file") == new
    client.call("fs/remove", {"path": path_uri(disk / "filler")})
    client.result(_write(client, disk / "file", old + new))
    assert _read(client, disk / "file") == old + new


@pytest.mark.over("unix")
def test_a_new_file_that_finds_no_room_is_left_empty(
    transport: str, serve: Serve, folder: Path, launcher: list[str]
) -> None:
    client, disk = serve(transport, launcher=launcher).connect(), folder / "disk"
    refusal = client.failure(_write(client, disk / "file", bytes(2048 * KIB)))
    assert refusal.message == "No space left on device (os error 28)"
    assert client.call("fs/getMetadata", {"path": path_uri(disk / "file")})["size"] == 0
    client.result(_write(client, disk / "other", bytes(900 * KIB)))


@pytest.mark.over("unix")
def test_a_copy_that_finds_no_room_leaves_what_was_there(
    transport: str, serve: Serve, folder: Path, launcher: list[str]
) -> None:
    client, disk = serve(transport, launcher=launcher).connect(), folder / "disk"
    old = os.urandom(100 * KIB)
    client.result(_write(client, disk / "file", old))
    client.result(_write(client, disk / "source", os.urandom(500 * KIB)))
    client.call("fs/createDirectory", {"path": path_uri(disk / "tree")})
    moved = {"sourcePath": path_uri(disk / "source"), "destinationPath": path_uri(disk / "tree/a")}
    client.call("fs/rename", moved)
    names = client.call("fs/readDirectory", {"path": path_uri(disk)})

    copies = (("tree/a", "file", False), ("tree/a", "new", False), ("tree", "other", True))
    for source, target, recursive in copies:
        paths = {"sourcePath": path_uri(disk / source), "destinationPath": path_uri(disk / target)}
        refusal = client.refused("fs/copy", {**paths, "recursive": recursive})
        assert (refusal.code, refusal.message) == (-32603, "No space left on device (os error 28)")
        assert client.call("fs/readDirectory", {"path": path_uri(disk)}) == names
    assert _read(client, disk / "file") == old


@pytest.mark.over("unix")
@pytest.mark.parametrize("target", ["old", "new"])
def test_a_server_that_is_killed_while_it_copies_leaves_what_was_there(
    transport: str, serve: Serve, folder: Path, target: str
) -> None:
    service = serve(transport, may_fail=True)
    client = service.connect()
    (folder / "old").write_bytes(b"old")
    with open(folder / "source", "wb") as file:
        for _ in range(32):
            file.write(os.urandom(SOURCE_BYTES // 32))
    before = sorted(os.listdir(folder))
    paths = {"sourcePath": path_uri(folder / "source"), "destinationPath": path_uri(folder / target)}
    for _ in range(20):
        client.request("fs/copy", {**paths, "recursive": False})
        # The temporary file has no name, and shows as one that was deleted.
        begun = eventually(lambda: any(f"{folder}/#" in link for link in open_files(service.server_pid)), 2)
        service.signal_server(signal.SIGKILL)
        service.wait_for_new_server()
        made = (folder / target).exists() and (folder / target).stat().st_size == SOURCE_BYTES
        if begun and not made:
            break
        (folder / "new").unlink(missing_ok=True)
        (folder / "old").write_bytes(b"old")
        client = service.connect()
    else:
        pytest.fail("each copy was over before the kill")

    assert (folder / "old").read_bytes() == b"old"
    assert sorted(os.listdir(folder)) == before
    (folder / "source").unlink()


@pytest.mark.over("unix")
def test_edits_that_find_no_room_change_nothing_and_leave_nothing(
    transport: str, serve: Serve, folder: Path, launcher: list[str]
) -> None:
    client, disk = serve(transport, launcher=launcher).connect(), folder / "disk"
    old = os.urandom(200 * KIB)
    client.result(_write(client, disk / "one", old))
    client.result(_write(client, disk / "two", old))
    names = client.call("fs/readDirectory", {"path": path_uri(disk)})
    edits = [
        write(disk / "one", os.urandom(300 * KIB)),
        write(disk / "new/three", os.urandom(100 * KIB), createParents=True),
        write(disk / "two", os.urandom(400 * KIB)),
    ]

    refusal = client.refused("fs/applyEdits", {"edits": edits})
    assert (refusal.code, refusal.message.rpartition(": ")[2]) == (
        -32603,
        "No space left on device (os error 28)",
    )
    assert refusal.message.startswith(f"edits[2] ({disk}/two): ")
    assert _read(client, disk / "one") == _read(client, disk / "two") == old
    assert client.call("fs/readDirectory", {"path": path_uri(disk)}) == names
    assert records(folder / "state/execserver") == []

    client.call("fs/applyEdits", {"edits": edits[:2]})
    assert _read(client, disk / "two") == old
    assert len(_read(client, disk / "new/three")) == 100 * KIB
