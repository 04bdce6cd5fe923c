"""Entries of the registry in any condition."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from execserver.sandbox.mount_points.entry import MountPointEntry
from execserver.sandbox.mount_points.registry import MountPoints
from tests.unit.sandbox.mount_point_daemons import (
    Daemon,
    entries,
    seen,
    write_entry,
)


def test_an_intent_without_an_inode_stands_for_a_younger_empty_folder_of_ours(
    points: MountPoints, workspace: Path, state: Path
) -> None:
    path = workspace / ".git"
    write_entry(state, path, {"path": str(path), "created": time.time_ns() - 10**9})
    path.mkdir()
    lease = points.acquire([str(path)])
    assert lease.made == (str(path),)
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]

    write_entry(
        state, path, {"path": str(path), "created": time.time_ns() - 10**9}, torn='{"device": 1, "ino'
    )
    path.mkdir()
    assert points.sweep() == [str(path)]
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


@pytest.mark.parametrize("why", ["older", "filled", "another's", "file", "link"])
def test_an_intent_without_an_inode_takes_nothing_of_the_users(
    why: str, points: MountPoints, workspace: Path, state: Path
) -> None:
    path = workspace / ".git"
    created = time.time_ns() - 10**9
    match why:
        case "older":
            path.mkdir()
            created = path.stat().st_ctime_ns + 1
        case "filled":
            path.mkdir()
            (path / "x").touch()
        case "another's":
            if os.geteuid():
                pytest.skip("only root can give a folder away")
            path.mkdir()
            os.chown(path, 65534, 65534)
        case "file":
            path.touch()
        case "link":
            path.symlink_to(workspace)
    write_entry(state, path, {"path": str(path), "created": created})
    before = seen(path)
    assert points.sweep() == []
    assert seen(path) == before
    assert entries(state) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{",
        b'{"path": "/x", "created": 1',
        b"null\n",
        b"[" * 20_000 + b"\n",
        b"\0" * 100_000,
        b'{"path": "relative", "created": 1}\n',
        b'{"path": "/\\u0000", "created": 1}\n',
        b'{"path": "/\\ud83d", "created": 1}\n',
        b'{"path": ["/"], "created": 1}\n',
        b'{"path": "/", "created": "now"}\n',
        b"\xff\xfe\n",
    ],
    ids=lambda content: repr(content[:40]),
)
def test_garbage_is_swept_and_does_no_harm(
    content: bytes, points: MountPoints, workspace: Path, state: Path
) -> None:
    path = workspace / ".git"
    file = write_entry(state, path)
    file.write_bytes(content)
    assert points.sweep() == []
    assert entries(state) == []
    file.write_bytes(content)
    lease = points.acquire([str(path)])
    assert lease.made == (str(path),)
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_an_entry_under_the_name_of_another_one_is_garbage(
    points: MountPoints, workspace: Path, state: Path
) -> None:
    (workspace / "mine").mkdir()
    status = (workspace / "mine").stat()
    write_entry(
        state,
        workspace / ".git",
        {"path": f"{workspace}/mine", "created": 0},
        {"device": status.st_dev, "inode": status.st_ino, "owner": status.st_uid},
    )
    assert points.sweep() == []
    assert (workspace / "mine").is_dir()
    assert entries(state) == []


def test_folders_links_and_pipes_in_the_registry_are_left_alone(points: MountPoints, state: Path) -> None:
    points.sweep()
    (state / "mount-points" / "folder").mkdir()
    (state / "mount-points" / "link").symlink_to("/etc/passwd")
    os.mkfifo(state / "mount-points" / "pipe")
    assert points.sweep() == []
    assert entries(state) == ["folder", "link", "pipe"]


def test_an_entry_whose_folder_cannot_be_removed_yet_is_kept_and_tried_again(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    # A lock on the folder itself: what another registry's daemon does, which is killed here.
    path = f"{workspace}/.git"
    daemons[0]("acquire", path)
    holder = os.open(path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_SH)
    daemons[0].kill()
    assert daemons[1]("sweep") == []
    assert len(entries(state)) == 1
    os.close(holder)
    assert daemons[1]("sweep") == [path]
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_an_entry_knows_its_folder_by_inode_and_owner_and_by_device_or_age(tmp_path: Path) -> None:
    status = tmp_path.stat()
    device, inode, owner = status.st_dev, status.st_ino, status.st_uid
    older, younger = status.st_ctime_ns - 1, status.st_ctime_ns + 1
    path = str(tmp_path)
    assert MountPointEntry(path, younger, (device, inode, owner)).describes(status)
    assert MountPointEntry(path, older, (device + 1, inode, owner)).describes(status)  # it was mounted again
    assert not MountPointEntry(path, younger, (device + 1, inode, owner)).describes(status)
    assert not MountPointEntry(path, older, (device, inode + 1, owner)).describes(status)
    assert not MountPointEntry(path, older, (device, inode, owner + 1)).describes(status)
