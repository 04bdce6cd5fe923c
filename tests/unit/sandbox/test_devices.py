"""The device nodes of root's sandboxes."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from execserver.sandbox import devices
from execserver.sandbox.devices import NODES, OWNER, Devices
from tests.support.mounts import Mount
from tests.unit.sandbox.rig import Rig, workspace

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")


@pytest.fixture
def private(base: Path) -> Path:
    folder = base / "private"
    folder.mkdir(mode=0o700)
    return folder


def are_right(folder: str | None) -> bool:
    assert folder is not None
    for name, numbers in NODES.items():
        status, of_host = os.lstat(f"{folder}/{name}"), os.stat(f"/dev/{name}")
        assert status.st_rdev == of_host.st_rdev == os.makedev(*numbers), name
        assert (status.st_mode, status.st_uid) == (stat.S_IFCHR | 0o666, OWNER), name
    return sorted(os.listdir(folder)) == sorted(NODES)


@needs_root
def test_the_nodes_are_those_of_the_host_with_another_owner(private: Path) -> None:
    made = Devices(str(private))
    folder = made.folder()

    assert folder == f"{private}/devices"
    assert are_right(folder)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    with Path(folder, "zero").open("rb") as zero:
        assert zero.read(3) == b"\0\0\0"
    assert made.reason == ""


@needs_root
@pytest.mark.parametrize(
    "spoil",
    [
        "rm full",
        "chmod 600 full",
        "chown 0 full",
        "rm full; touch full",
        "ln -sf /dev/null full",
    ],
)
def test_a_node_that_is_not_right_is_made_anew(private: Path, spoil: str) -> None:
    made = Devices(str(private))
    folder = made.folder()
    subprocess.run(["sh", "-c", spoil], cwd=folder, check=True)

    assert made.folder() == folder
    assert are_right(folder)


@needs_root
def test_many_that_make_them_at_once_leave_the_nodes_and_nothing_else(private: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: Devices(str(private)).folder(), range(32)))

    assert len(set(folders)) == 1
    assert are_right(folders[0])


@needs_root
def test_where_no_device_may_be_opened_they_are_made_elsewhere(
    mount: Mount, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = mount("tmpfs", "mode=0700")
    monkeypatch.setattr(devices, "ELSEWHERE", str(private / "elsewhere"))

    made = Devices(str(closed))

    assert are_right(made.folder())
    assert made.folder() == f"{private}/elsewhere"


@needs_root
def test_without_any_place_for_them_the_reason_is_said(mount: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = mount("tmpfs", "mode=0700")
    monkeypatch.setattr(devices, "ELSEWHERE", f"{closed}/elsewhere")

    made = Devices(str(closed))

    assert made.folder() is None
    assert f"no device nodes in {closed}/devices: " in made.reason


def test_a_user_that_does_not_own_the_host_s_nodes_needs_none(private: Path) -> None:
    not_ours = private / "node"
    not_ours.touch()
    os.chmod(not_ours, 0o600)
    if os.geteuid() == 0:
        os.chown(not_ours, OWNER, OWNER)
    else:
        not_ours = Path(os.devnull)

    made = Devices(str(private), str(not_ours))

    assert made.folder() is None
    assert made.reason == ""
    assert not (private / "devices").exists()


USE: Sequence[str] = (
    "echo lost > /dev/null",
    'test "$(head -c 2 /dev/zero | od -An -tx1)" = " 00 00"',
    "! echo x > /dev/full",
    'test "$(head -c 4 /dev/urandom | wc -c)" = 4',
    'test "$(stat -c %t:%T /dev/random)" = 1:8',
)


@pytest.mark.parametrize("script", USE)
def test_in_a_sandbox_they_do_what_devices_do(rig: Rig, base: Path, script: str) -> None:
    (base / "w").mkdir()

    assert rig.run(workspace(base / "w"), script).status == 0
