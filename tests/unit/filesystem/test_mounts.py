from __future__ import annotations

import subprocess
import sys

import pytest

from execserver.filesystem.mounts import table_can_hang

_ROOT = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"


def _line(kind: bytes, target: bytes = b"/mnt") -> bytes:
    return b"30 27 0:25 / " + target + b" rw shared:1 master:2 - " + kind + b" source rw\n"


@pytest.mark.parametrize("kind", [b"tmpfs", b"proc", b"overlay", b"xfs", b"btrfs", b"cgroup2", b"devpts"])
def test_a_local_file_system_cannot_hang(kind: bytes) -> None:
    assert not table_can_hang(_ROOT + _line(kind))


@pytest.mark.parametrize(
    "kind",
    [b"nfs", b"nfs4", b"cifs", b"fuse", b"fuse.sshfs", b"fuseblk", b"9p", b"ceph", b"virtiofs", b"new"],
)
def test_a_network_mount_or_an_unknown_one_can_hang(kind: bytes) -> None:
    assert table_can_hang(_ROOT + _line(kind))


def test_an_automount_point_can_hang_but_for_the_one_of_the_kernel() -> None:
    assert table_can_hang(_ROOT + _line(b"autofs", b"/net"))
    assert not table_can_hang(_ROOT + _line(b"autofs", b"/proc/sys/fs/binfmt_misc"))


def test_the_name_of_a_mount_point_is_not_taken_for_its_kind() -> None:
    assert not table_can_hang(_line(b"tmpfs", b"/a\\040-\\040nfs"))


_WATCH_TABLE = """
import asyncio, subprocess, sys, uvloop
from execserver.filesystem.mounts import MountTable

async def main():
    mounts = MountTable()
    loop = asyncio.get_running_loop()
    refreshed = asyncio.Queue()
    def refresh():
        mounts.refresh()
        refreshed.put_nowait(mounts.can_hang)
    loop.add_reader(mounts.fileno(), refresh)
    for _ in range(3):
        await asyncio.sleep(0)  # The loop asks for the descriptor at its next turn.
    before = mounts._read()
    for step in (["mount", "-t", "tmpfs", "one", sys.argv[1]], ["umount", sys.argv[1]]):
        subprocess.run(step, check=True)
        await asyncio.wait_for(refreshed.get(), 10)
        changed = mounts._read()
        assert changed != before, step
        before = changed
    await asyncio.sleep(0.05)
    assert refreshed.empty(), "told of each change once"

uvloop.run(main())
print("told of both changes")
"""


def test_a_change_of_the_mounts_is_told_to_the_loop(tmp_path: object) -> None:
    command = ["unshare", "-rm", sys.executable, "-c", _WATCH_TABLE, str(tmp_path)]

    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=30).stdout

    assert output == "told of both changes\n"
