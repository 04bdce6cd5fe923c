"""Folders for mounts that daemons with different registries use: neither finds the other's entries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.sandbox.mount_points.registry import MountPoints
from tests.support.mounts import Mount
from tests.unit.sandbox.mount_point_daemons import (
    Daemon,
    descriptors,
    entries,
    seen,
    takes_marks,
    write_entry,
)

MARK = "user.execserver.mount-point"


@pytest.fixture
def marking(workspace: Path) -> None:
    if not takes_marks(workspace):
        pytest.skip("the file system of the tests has no attributes of users (tmpfs before Linux 6.6)")


@pytest.fixture
def daemons(state: Path, tmp_path: Path) -> Iterator[list[Daemon]]:
    """Two daemons of one user, with a registry each: `state` and `other state`."""
    both = [Daemon(state), Daemon(tmp_path / "other state")]
    yield both
    for daemon in both:
        daemon.kill()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[MountPoints]:
    points = MountPoints(str(tmp_path / "other state"))
    yield points
    points.close()


@pytest.mark.usefixtures("marking")
@pytest.mark.parametrize("first", ["maker", "sharer"])
def test_the_last_daemon_to_release_the_folder_removes_it(
    first: str, daemons: list[Daemon], workspace: Path, state: Path, tmp_path: Path
) -> None:
    path = f"{workspace}/.git"
    maker, sharer = daemons
    assert maker("acquire", path) == [[path], []]
    assert sharer("acquire", path) == [[], [path]]
    early, late = (maker, sharer) if first == "maker" else (sharer, maker)
    early("release")
    assert early("sweep") == []
    assert os.path.isdir(path)
    late("release")
    assert os.listdir(workspace) == ["a.txt"]
    assert maker("sweep") == sharer("sweep") == []
    assert entries(state) == entries(tmp_path / "other state") == []


@pytest.mark.usefixtures("marking")
def test_the_maker_forgets_a_folder_that_its_guest_removed_with_whatever_it_does_next(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    maker, sharer = daemons
    maker("acquire", f"{workspace}/.git")
    sharer("acquire", f"{workspace}/.git")
    maker("release")
    sharer("release")
    (workspace / ".git").mkdir()  # the user's, perhaps with the same inode
    maker("acquire", f"{workspace}/.aws")
    maker("release")
    assert sorted(os.listdir(workspace)) == [".git", "a.txt"]
    assert entries(state) == []


@pytest.mark.usefixtures("marking")
def test_a_guest_removes_what_a_killed_maker_left(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    path = f"{workspace}/.git"
    maker, sharer = daemons
    maker("acquire", path)
    sharer("acquire", path)
    maker.kill()
    assert os.path.isdir(path)
    sharer("release")
    assert os.listdir(workspace) == ["a.txt"]
    assert MountPoints(str(state)).sweep() == []
    assert entries(state) == []


@pytest.mark.usefixtures("marking")
def test_the_next_one_in_the_workspace_removes_what_maker_and_guest_left_when_both_were_killed(
    daemons: list[Daemon], workspace: Path, tmp_path: Path
) -> None:
    for daemon in daemons:
        daemon("acquire", f"{workspace}/.git")
    for daemon in daemons:
        daemon.kill()
    third = MountPoints(str(tmp_path / "third state"))
    before = descriptors()
    lease, again = (third.acquire([f"{workspace}/.git"]) for _ in range(2))
    lease.release()
    assert sorted(os.listdir(workspace)) == [".git", "a.txt"]
    again.release()
    assert os.listdir(workspace) == ["a.txt"]
    third.close()
    assert descriptors() <= before


@pytest.mark.parametrize("first", [0, 1])
def test_an_empty_folder_of_the_users_stays_in_any_order(
    first: int, daemons: list[Daemon], workspace: Path
) -> None:
    path = workspace / ".git"
    path.mkdir()
    before = seen(path)
    for daemon in daemons:
        assert daemon("acquire", str(path)) == [[], [str(path)]]
    daemons[first]("release")
    daemons[1 - first]("release")
    assert [daemon("sweep") for daemon in daemons] == [[], []]
    assert seen(path) == before
    assert not takes_marks(path) or MARK not in os.listxattr(path)


@pytest.mark.usefixtures("marking")
@pytest.mark.parametrize("last", ["maker", "sharer"])
def test_a_folder_that_the_user_filled_is_his_for_good(
    last: str, daemons: list[Daemon], workspace: Path, other: MountPoints
) -> None:
    path = workspace / ".git"
    maker, sharer = daemons
    maker("acquire", str(path))
    sharer("acquire", str(path))
    (path / "HEAD").write_text("x")
    early, late = (sharer, maker) if last == "maker" else (maker, sharer)
    early("release")
    late("release")
    assert (path / "HEAD").read_text() == "x"
    assert MARK not in os.listxattr(path)
    (path / "HEAD").unlink()
    other.acquire([str(path)]).release()
    assert maker("sweep") == sharer("sweep") == []
    assert path.is_dir()


@pytest.mark.usefixtures("marking")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_marked_folder_of_another_user_stays(workspace: Path, other: MountPoints) -> None:
    path = workspace / ".git"
    path.mkdir()
    os.setxattr(path, MARK, b"1")
    os.chown(path, 65534, 65534)
    other.acquire([str(path)]).release()
    assert path.is_dir()
    os.chown(path, 0, 0)
    other.acquire([str(path)]).release()
    assert not path.exists()


@pytest.mark.usefixtures("marking")
def test_a_guest_that_took_the_place_of_a_marked_one_stays(workspace: Path, other: MountPoints) -> None:
    path = workspace / ".git"
    path.mkdir()
    os.setxattr(path, MARK, b"1")
    lease = other.acquire([str(path)])
    path.rename(workspace / "moved")
    path.mkdir()
    os.setxattr(path, MARK, b"1")
    lease.release()
    assert sorted(os.listdir(workspace)) == [".git", "a.txt", "moved"]


@pytest.mark.usefixtures("marking")
@pytest.mark.parametrize("how", ["sweep", "acquire"])
def test_an_entry_of_a_marked_folder_is_not_for_one_without_a_mark_that_got_its_inode(
    how: str, points: MountPoints, workspace: Path, state: Path
) -> None:
    path = workspace / ".git"
    path.mkdir()
    status = path.stat()
    identity = {"device": status.st_dev, "inode": status.st_ino, "owner": status.st_uid}
    write_entry(state, path, {"path": str(path), "created": 0}, {**identity, "marked": True})
    if how == "acquire":
        lease = points.acquire([str(path)])
        assert lease.foreign == (str(path),)
        lease.release()
    assert points.sweep() == []
    assert path.is_dir()
    assert entries(state) == []


def test_without_attributes_only_the_maker_removes_its_folder(
    daemons: list[Daemon], state: Path, mount: Mount
) -> None:
    disk = mount("ramfs")
    if takes_marks(disk):
        pytest.skip("ramfs has attributes of users here")
    path = f"{disk}/.git"
    maker, sharer = daemons
    assert maker("acquire", path) == [[path], []]
    assert sharer("acquire", path) == [[], [path]]
    maker("release")
    sharer("release")
    assert os.listdir(disk) == [".git"]
    assert len(entries(state)) == 1
    assert maker("sweep") == [path]
    assert os.listdir(disk) == []
    assert entries(state) == []

    maker("acquire", path)
    sharer("acquire", path)
    sharer("release")
    assert os.listdir(disk) == [".git"]
    maker("release")
    assert os.listdir(disk) == []


# Three daemons with a registry each hold the same folders, and let them go as nearly at once as can be.
_AT_ONCE = """
import os, sys, threading
from execserver.sandbox.mount_points.registry import MountPoints

rounds, workspace, *states = sys.argv[1:]
paths = [f"{workspace}/{name}" for name in (".git", ".aws")]
before = os.listdir(workspace)
daemons = [MountPoints(state) for state in states]
for turn in range(int(rounds)):
    leases = [daemon.acquire(paths) for daemon in daemons]
    gate = threading.Barrier(len(leases))
    def let_go(lease):
        gate.wait()
        lease.release()
    threads = [threading.Thread(target=let_go, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(workspace) == before, turn
for daemon in daemons:
    assert daemon.sweep() == []
"""


@pytest.mark.usefixtures("marking")
def test_of_those_who_let_go_at_the_same_moment_one_removes_the_folder(
    workspace: Path, state: Path, tmp_path: Path
) -> None:
    states = [str(state), str(tmp_path / "other state"), str(tmp_path / "third state")]
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE, "200", str(workspace), *states],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert entries(state) == []
