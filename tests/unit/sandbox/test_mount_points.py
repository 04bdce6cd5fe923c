"""Folders for mounts, made and removed by one daemon."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from execserver.sandbox.mount_points import acquire
from execserver.sandbox.mount_points.registry import MountPoints
from tests.support.mounts import Mount
from tests.unit.sandbox.mount_point_daemons import (
    NAMES,
    Daemon,
    descriptors,
    entries,
    seen,
)


def test_missing_names_exist_as_empty_folders_until_the_release(
    points: MountPoints, workspace: Path, state: Path
) -> None:
    paths = [f"{workspace}/{name}" for name in NAMES]
    lease = points.acquire(paths)
    assert lease.made == tuple(paths)
    assert lease.foreign == ()
    assert sorted(os.listdir(workspace)) == sorted(["a.txt", *NAMES])
    assert [os.listdir(path) for path in paths] == [[]] * len(NAMES)
    assert len(entries(state)) == len(NAMES)
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


@pytest.mark.parametrize("whose", ["another registry's", "ours", "the user's"])
@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH], ids=["exclusive", "shared"])
def test_a_command_that_locks_a_folder_holds_up_no_other_sandbox(
    points: MountPoints,
    workspace: Path,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whose: str,
    kind: int,
) -> None:
    monkeypatch.setattr(acquire, "_TIMEOUT_S", 60.0)
    path = f"{workspace}/.agents"
    registry = state if whose == "ours" else tmp_path / "other"
    registry.mkdir(mode=0o700, exist_ok=True)
    if whose == "the user's":
        os.mkdir(path)
    else:
        maker = Daemon(registry)
        maker("acquire", path)
        maker.kill()
    locked = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(locked, kind | fcntl.LOCK_NB)
        begin = time.monotonic()
        lease = points.acquire([path, f"{workspace}/.codex"])
        assert time.monotonic() - begin < 30
        again = points.acquire([path])
        again.release()
        lease.release()
    finally:
        os.close(locked)
    points.sweep()
    MountPoints(str(registry)).sweep()
    # That of another registry, of which nothing but its mark was known, has become the user's.
    stays = whose == "the user's" or (whose == "another registry's" and kind == fcntl.LOCK_EX)
    assert os.path.isdir(path) == stays
    assert not os.path.lexists(f"{workspace}/.codex")
    assert entries(state) == []


def test_the_last_of_several_users_removes_it(points: MountPoints, workspace: Path) -> None:
    path = f"{workspace}/.git"
    first, second = points.acquire([path, path]), points.acquire([path])
    assert second.made == (path,)
    first.release()
    first.release()  # which lets nothing of the second one's go
    assert os.path.isdir(path)
    second.release()
    assert not os.path.lexists(path)


def test_one_folder_by_two_spellings_is_one_folder(points: MountPoints, workspace: Path) -> None:
    (workspace.parent / "link").symlink_to(workspace)
    direct = points.acquire([f"{workspace}/.git"])
    linked = points.acquire([f"{workspace.parent}/link/.git"])
    assert linked.made == (f"{workspace.parent}/link/.git",)
    direct.release()
    assert os.listdir(workspace / ".git") == []
    linked.release()
    assert os.listdir(workspace) == ["a.txt"]


@pytest.mark.parametrize("kind", ["file", "folder", "empty folder", "link", "dangling link"])
def test_files_of_the_user_are_foreign_and_stay(
    kind: str, points: MountPoints, workspace: Path, state: Path
) -> None:
    path = workspace / ".git"
    match kind:
        case "file":
            path.write_text("gitdir: elsewhere\n")
        case "folder":
            path.mkdir()
            (path / "HEAD").write_text("x")
        case "empty folder":
            path.mkdir()
        case "link":
            path.symlink_to(workspace)
        case "dangling link":
            path.symlink_to("nowhere")
    before = seen(path)
    lease, again = points.acquire([str(path)]), points.acquire([str(path)])
    assert (lease.made, lease.foreign) == ((), (str(path),))
    assert (again.made, again.foreign) == ((), (str(path),))
    assert entries(state) == []
    lease.release()
    again.release()
    assert points.sweep() == []
    assert seen(path) == before


def test_a_folder_that_is_not_empty_stays(points: MountPoints, workspace: Path, state: Path) -> None:
    path = workspace / ".git"
    first = points.acquire([str(path)])
    made = path.stat().st_mtime_ns
    while path.stat().st_mtime_ns == made:  # the clock of files has ticks of some milliseconds
        (path / "HEAD").write_text("x")
        (path / "HEAD").unlink()
    (path / "HEAD").write_text("x")
    second = points.acquire([str(path)])
    assert second.foreign == (str(path),)
    first.release()
    second.release()
    assert (path / "HEAD").read_text() == "x"
    assert entries(state) == []
    (path / "HEAD").unlink()
    assert points.sweep() == []
    assert path.is_dir()


def test_a_folder_that_was_emptied_again_is_removed(points: MountPoints, workspace: Path) -> None:
    lease = points.acquire([f"{workspace}/.git"])
    (workspace / ".git" / "x").write_text("x")
    (workspace / ".git" / "x").unlink()
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]


def test_a_folder_removed_in_use_is_made_again_for_the_next_user(
    points: MountPoints, workspace: Path, state: Path
) -> None:
    path = workspace / ".git"
    first = points.acquire([str(path)])
    path.rmdir()
    second = points.acquire([str(path)])
    assert second.made == (str(path),)
    first.release()
    assert path.is_dir()
    second.release()
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


def test_a_folder_that_replaced_ours_stays(points: MountPoints, workspace: Path, state: Path) -> None:
    path = workspace / ".git"
    lease = points.acquire([str(path)])
    path.rename(workspace / "moved")
    path.mkdir()
    other = points.acquire([str(path)])
    assert other.foreign == (str(path),)
    lease.release()
    other.release()
    assert sorted(os.listdir(workspace)) == [".git", "a.txt", "moved"]
    assert entries(state) == []


def test_a_link_in_the_place_of_the_parent_is_not_followed(points: MountPoints, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    lease = points.acquire([f"{tmp_path}/real/.git"])
    (tmp_path / "real").rename(tmp_path / "other")
    (tmp_path / "real").symlink_to(tmp_path / "other")
    lease.release()
    assert os.listdir(tmp_path / "other") == [".git"]


@pytest.mark.parametrize("what", ["workspace", "registry", "both"])
def test_a_release_after_everything_was_deleted_is_silent(
    what: str, points: MountPoints, workspace: Path, state: Path
) -> None:
    lease = points.acquire([f"{workspace}/.git", f"{workspace}/.aws"])
    gone = {"workspace": [workspace], "registry": [state], "both": [workspace, state]}[what]
    subprocess.run(["rm", "-rf", *gone], check=True)
    lease.release()
    assert not workspace.exists() or os.listdir(workspace) == ["a.txt"]
    workspace.mkdir(exist_ok=True)
    points.acquire([f"{workspace}/.git"]).release()
    assert not (workspace / ".git").exists()
    assert entries(state) == []


def test_any_bytes_may_be_in_a_path(points: MountPoints, workspace: Path, daemons: list[Daemon]) -> None:
    odd = os.fsdecode(b"\xff\n\"\\ \xc3\xa9'")
    (workspace / odd).mkdir()
    lease = points.acquire([f"{workspace}/{odd}/.git", f"{workspace}/{odd}/{odd}"])
    assert len(os.listdir(workspace / odd)) == 2
    lease.release()
    assert os.listdir(workspace / odd) == []
    daemons[0]("acquire", f"{workspace}/{odd}/{odd}")
    daemons[0].kill()
    assert points.sweep() == [f"{workspace}/{odd}/{odd}"]
    assert os.listdir(workspace / odd) == []


def test_a_folder_within_a_folder_goes_first(points: MountPoints, workspace: Path, state: Path) -> None:
    paths = [f"{workspace}/a", f"{workspace}/a/b"]
    first, second = points.acquire(paths), points.acquire(paths)
    first.release()
    assert os.path.isdir(paths[1])
    second.release()
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o277, 0o777], ids=oct)
def test_the_umask_does_not_matter(umask: int, points: MountPoints, workspace: Path, state: Path) -> None:
    before = os.umask(umask)
    try:
        lease = points.acquire([f"{workspace}/.git"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((workspace / ".git").stat().st_mode) == 0o755
    assert stat.S_IMODE((state / "mount-points").stat().st_mode) == 0o700
    for name in os.listdir(state / "mount-points"):
        assert stat.S_IMODE((state / "mount-points" / name).stat().st_mode) & 0o700 == 0o600
    lease.release()
    assert os.listdir(workspace) == ["a.txt"]


def test_two_descriptors_a_folder_are_open_and_none_is_inherited_or_left(
    points: MountPoints, workspace: Path
) -> None:
    before = descriptors()
    (workspace / "mine").mkdir()
    paths = [*(f"{workspace}/{name}" for name in NAMES), f"{workspace}/mine"]
    leases = [points.acquire(paths) for _ in range(10)]
    opened = descriptors() - before
    # Entry and folder; only the folder of the foreign one; the registry and its lock.
    assert len(opened) == 2 * len(NAMES) + 1 + 2
    assert not any(os.get_inheritable(descriptor) for descriptor in opened)
    for lease in leases:
        lease.release()
    points.close()
    assert descriptors() == before


def test_threads_share_what_they_use(points: MountPoints, workspace: Path) -> None:
    path = f"{workspace}/.git"
    missing = []

    def use() -> None:
        for _ in range(50):
            lease = points.acquire([path])
            if not os.path.isdir(path):
                missing.append(path)
            lease.release()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == []
    assert os.listdir(workspace) == ["a.txt"]


# Failures.


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing/.git", errno.ENOENT),
        ("a.txt/.git", errno.ENOTDIR),
        ("loop/.git", errno.ELOOP),
        ("x" * 300, errno.ENAMETOOLONG),
        ("zero\0byte", errno.EINVAL),
        ("sub/..", errno.EINVAL),
        ("sub/", errno.EINVAL),
    ],
)
def test_an_impossible_path_is_named_and_nothing_is_left(
    path: str, error: int, points: MountPoints, workspace: Path, state: Path
) -> None:
    (workspace / "loop").symlink_to("loop")
    (workspace / "sub").mkdir()
    shared = points.acquire([f"{workspace}/.codex"])
    with pytest.raises(OSError) as refused:
        points.acquire([f"{workspace}/.codex", f"{workspace}/.git", f"{workspace}/{path}"])
    assert (refused.value.errno, refused.value.filename) == (error, f"{workspace}/{path}")
    assert sorted(os.listdir(workspace)) == [".codex", "a.txt", "loop", "sub"]
    assert len(entries(state)) == 1
    shared.release()
    assert entries(state) == []


def test_a_relative_path_is_refused(points: MountPoints) -> None:
    with pytest.raises(OSError, match="absolute"):
        points.acquire([".git"])


def test_a_parent_that_cannot_be_written_is_named(
    points: MountPoints, workspace: Path, state: Path, mount: Mount
) -> None:
    readonly = mount("tmpfs", "ro")
    with pytest.raises(OSError) as refused:
        points.acquire([f"{workspace}/.git", f"{readonly}/.git"])
    assert (refused.value.errno, refused.value.filename) == (errno.EROFS, f"{readonly}/.git")
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(state) == []


@pytest.mark.parametrize("left", ["no block", "no inode"])
def test_a_registry_on_a_full_disk_leaves_nothing(left: str, workspace: Path, mount: Mount) -> None:
    disk = mount("tmpfs", "size=64k" if left == "no block" else "nr_inodes=5")
    points = MountPoints(str(disk / "state"))
    points.sweep()
    disk.joinpath("filler").touch()
    if left == "no block":
        with pytest.raises(OSError):
            (disk / "filler").write_bytes(bytes(2**20))
    with pytest.raises(OSError) as refused:
        points.acquire([f"{workspace}/.git", f"{workspace}/.aws"])
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, f"{workspace}/.git")
    assert os.listdir(workspace) == ["a.txt"]
    assert entries(disk / "state") == []

    (disk / "filler").unlink()
    points.acquire([f"{workspace}/.git"]).release()
    assert os.listdir(workspace) == ["a.txt"]
    points.close()


def test_a_workspace_on_a_full_disk_leaves_nothing(points: MountPoints, state: Path, mount: Mount) -> None:
    disk = mount("tmpfs", "nr_inodes=3")
    with pytest.raises(OSError) as refused:
        points.acquire([f"{disk}/{name}" for name in NAMES])
    assert refused.value.errno == errno.ENOSPC
    assert os.listdir(disk) == []
    assert entries(state) == []
    points.close()  # waits for the last descriptors: until then the disk counts what is gone
    points.acquire([f"{disk}/.git"]).release()
    assert os.listdir(disk) == []


def test_a_registry_open_to_others_is_refused(points: MountPoints, workspace: Path, state: Path) -> None:
    (state / "mount-points").mkdir(parents=True)
    (state / "mount-points").chmod(0o777)
    with pytest.raises(OSError, match="mode 0777") as refused:
        points.acquire([f"{workspace}/.git"])
    assert refused.value.filename == f"{state}/mount-points"
    assert os.listdir(workspace) == ["a.txt"]
