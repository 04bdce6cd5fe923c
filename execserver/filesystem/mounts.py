"""The mount table, and whether any mount can hang.

A lookup on a local file system takes microseconds, and runs on the loop's thread. A lookup on a network
mount, or on one that a user process serves, may never return. The mount of a path is not known without a
lookup: if there is one such mount anywhere, all lookups run in threads.
"""

from __future__ import annotations

import os
import select

# File systems that depend on neither a network nor a user process. Any other counts as one that can hang: a
# missing name costs speed, a wrong name may hang the service.
_LOCAL = frozenset(
    b"bcachefs bdev binder binfmt_misc bpf btrfs cgroup cgroup2 configfs cpuset cramfs debugfs devpts "
    b"devtmpfs ecryptfs efivarfs erofs exfat ext2 ext3 ext4 f2fs fusectl hfs hfsplus hugetlbfs iso9660 jfs "
    b"minix mqueue msdos nilfs2 nsfs ntfs ntfs3 overlay pipefs proc pstore ramfs reiserfs resctrl rootfs "
    b"rpc_pipefs securityfs selinuxfs smackfs sockfs squashfs sysfs tmpfs tracefs ubifs udf ufs vfat xfs "
    b"zfs".split()
)

# The only automount point that every systemd host has; it leads to a file system of the kernel.
_HARMLESS_AUTOMOUNT = b"/proc/sys/fs/binfmt_misc"


class MountTable:
    """The mounts of this process, kept up to date.

    `fileno()` becomes readable when a mount came or went; the owner then calls `refresh()`:

        loop.add_reader(mounts.fileno(), mounts.refresh)

    The kernel reports each change once, to the first reader, and an event loop reads when a descriptor is
    added. A change between the making of this table and that would be noticed only with the next one. So the
    owner calls `refresh()` once more when its loop runs.
    """

    can_hang: bool
    """Whether the lookup of some path may never return."""

    in_memory: frozenset[int]
    """The devices (`st_dev`) whose files are in memory only."""

    devices_that_can_hang: frozenset[int]
    """The devices of the mounts that can hang. The kernel does not report all of their changes."""

    def __init__(self) -> None:
        # The kernel reports a change as an exceptional condition, which `add_reader` does not wait for. An
        # epoll descriptor turns it into a readable one.
        self._table = os.open("/proc/self/mountinfo", os.O_RDONLY)
        self._changes = select.epoll()
        self._changes.register(self._table, select.EPOLLPRI | select.EPOLLERR)
        self.refresh()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._changes.fileno()

    def refresh(self) -> None:
        """Read the table again."""
        self._changes.poll(0)
        table = self._read()
        self.can_hang = table_can_hang(table)
        self.in_memory = devices_in_memory(table)
        self.devices_that_can_hang = devices_that_can_hang(table) if self.can_hang else frozenset()

    def close(self) -> None:
        """Close the table."""
        self._changes.close()
        os.close(self._table)

    def _read(self) -> bytes:
        os.lseek(self._table, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._table, 1 << 16):
            parts.append(part)
        return b"".join(parts)


def table_can_hang(mountinfo: bytes) -> bool:
    """Whether a table in the format of `/proc/self/mountinfo` has a mount that can hang."""
    return any(_mount_can_hang(line) for line in mountinfo.splitlines())


def devices_in_memory(mountinfo: bytes) -> frozenset[int]:
    """The devices (`st_dev`) of the mounts whose files are in memory only."""
    return frozenset(
        _device(line)
        for line in mountinfo.splitlines()
        if line.partition(b" - ")[2].split(b" ", 1)[0] in (b"tmpfs", b"ramfs")
    )


def devices_that_can_hang(mountinfo: bytes) -> frozenset[int]:
    """The devices (`st_dev`) of the mounts that can hang."""
    return frozenset(_device(line) for line in mountinfo.splitlines() if _mount_can_hang(line))


def _device(line: bytes) -> int:
    major, minor = line.split(b" ", 3)[2].split(b":")
    return os.makedev(int(major), int(minor))


def _mount_can_hang(line: bytes) -> bool:
    # ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [TAG…] - TYPE SOURCE SUPER_OPTIONS
    mount, _, source = line.partition(b" - ")
    kind = source.split(b" ", 1)[0]
    if kind in _LOCAL:
        return False
    return kind != b"autofs" or mount.split(b" ")[4] != _HARMLESS_AUTOMOUNT
