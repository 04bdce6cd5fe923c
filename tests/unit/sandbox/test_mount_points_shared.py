"""Folders for mounts that several daemons use at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.sandbox.mount_points import acquire, held
from execserver.sandbox.mount_points.registry import MountPoints
from tests.unit.sandbox.mount_point_daemons import (
    NAMES,
    Daemon,
    entries,
    kept_inode,
    takes_marks,
)


def test_daemons_share_a_folder_and_the_last_one_removes_it(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    first, second = daemons
    path = f"{workspace}/.git"
    assert first("acquire", path) == [[path], []]
    assert second("acquire", path) == [[path], []]
    first("release")
    assert os.path.isdir(path)
    assert first("sweep") == []
    second("release")
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_the_folder_outlives_the_daemon_that_made_it_while_another_one_uses_it(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    first, second = daemons
    path = f"{workspace}/.git"
    first("acquire", path)
    second("acquire", path)
    first.kill()
    assert second("sweep") == []
    assert os.path.isdir(path)
    second("release")
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_a_folder_made_anew_by_one_daemon_is_removed_by_the_other(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    first, second = daemons
    path = f"{workspace}/.git"
    first("acquire", path)
    with kept_inode(path):
        os.rmdir(path)
        assert second("acquire", path) == [[path], []]
    second("release")
    assert os.path.isdir(path)
    first("release")
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_an_entry_in_a_registry_that_was_made_anew_is_not_the_old_ones_to_remove(
    daemons: list[Daemon], workspace: Path, state: Path
) -> None:
    first, second = daemons
    path = f"{workspace}/.git"
    first("acquire", path)
    with kept_inode(path):
        os.rmdir(path)
        subprocess.run(["rm", "-rf", state / "mount-points"], check=True)
        assert second("acquire", path) == [[path], []]
        first("release")
        assert len(entries(state)) == 1
        assert os.path.isdir(path)
    second("release")
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_the_next_start_removes_what_the_killed_left_and_nothing_else(
    daemons: list[Daemon], points: MountPoints, workspace: Path, state: Path
) -> None:
    living, killed = daemons
    (workspace / "mine").mkdir()
    living("acquire", f"{workspace}/.git")
    killed("acquire", *(f"{workspace}/{name}" for name in NAMES))
    killed.kill()
    assert sorted(points.sweep()) == [f"{workspace}/{name}" for name in sorted(NAMES[1:])]
    assert sorted(os.listdir(workspace)) == [".git", "a.txt", "mine"]
    living.kill()
    assert points.sweep() == [f"{workspace}/.git"]
    assert sorted(os.listdir(workspace)) == ["a.txt", "mine"]
    assert entries(state) == []


def test_a_folder_of_a_killed_daemon_is_taken_over_by_the_next_user(
    daemons: list[Daemon], points: MountPoints, workspace: Path, state: Path
) -> None:
    path = f"{workspace}/.git"
    daemons[0]("acquire", path)
    inode = os.stat(path).st_ino
    daemons[0].kill()
    lease = points.acquire([path])
    assert lease.made == (path,)
    assert os.stat(path).st_ino == inode
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_a_guest_that_is_removed_while_it_is_locked_is_made_anew(
    points: MountPoints, workspace: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workspace / ".git"
    path.mkdir()
    take_lock = held.share_lock

    def remove_before(descriptor: int) -> None:
        monkeypatch.undo()
        path.rmdir()
        take_lock(descriptor)

    monkeypatch.setattr(acquire, "share_lock", remove_before)
    lease = points.acquire([str(path)])
    assert lease.made == (str(path),)
    assert len(entries(state)) == 1
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]


# Two forked daemons of one registry each, which may be the same one, use the same names again and again.
# Each must find what it holds, and in the end nothing may be left.
_RIVALS = """
import os, sys
from execserver.sandbox.mount_points.registry import MountPoints

rounds, *arguments = sys.argv[1:]
states, paths = arguments[:2], arguments[2:]
children = []
for state in states:
    child = os.fork()
    if child == 0:
        points = MountPoints(state)
        for _ in range(int(rounds)):
            lease = points.acquire(paths)
            held = [os.stat(path).st_ino for path in paths]
            for _ in range(5):
                os.sched_yield()
                if [os.stat(path).st_ino for path in paths] != held:
                    os._exit(1)
            lease.release()
        os._exit(0)
    children.append(child)
statuses = [os.waitpid(child, 0)[1] for child in children]
workspace = os.path.dirname(paths[0])
left = len(os.listdir(workspace))
for state in states:
    MountPoints(state).sweep()
print(*statuses, left - len(os.listdir(workspace)))
"""


@pytest.mark.parametrize("other", ["state", "other state"])
def test_rivals_never_take_each_others_folders_away(other: str, workspace: Path, tmp_path: Path) -> None:
    states = [str(tmp_path / "state"), str(tmp_path / other)]
    paths = [f"{workspace}/.git", f"{workspace}/.aws"]
    result = subprocess.run(
        [sys.executable, "-c", _RIVALS, "100", *states, *paths], capture_output=True, text=True, check=True
    )
    *statuses, swept = map(int, result.stdout.split())
    assert statuses == [0, 0], result.stderr
    assert swept == 0 or not takes_marks(workspace)  # then the last daemon may leave it to a sweep
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(tmp_path / "state") == entries(tmp_path / other) == []
