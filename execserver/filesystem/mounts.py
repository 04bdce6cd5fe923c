"""What is mounted, and whether any of it can hang.

A lookup on a local file system costs microseconds and is done on the loop's thread. A lookup
on a network mount or on one that a user process serves may never come back. Which path leads
to which mount cannot be told without looking it up, so the question is asked of the whole
table: with one such mount anywhere, every lookup goes to a thread.
"""

from __future__ import annotations

import os
import select

# File systems that depend on neither a network nor a user process. What is not named here
# counts as able to hang: a name that is missing costs speed, one too many costs the service.
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

    The kernel tells of each change once, to whoever asks first, and an event loop asks when it
    takes on a descriptor: a change between that and the making of this table is noticed only with
    the next one. So the owner calls `refresh()` once more when its loop is running.
    """

    can_hang: bool
    """Whether a lookup of some path may never come back."""

    in_memory: frozenset[int]
    """The devices (`st_dev`) whose files are in memory only."""

    def __init__(self) -> None:
        # The kernel tells of a change by an exceptional condition on the table's own file, which
        # a loop's add_reader does not ask for; an epoll descriptor makes it a readable one.
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

    def close(self) -> None:
        """Let go of the table."""
        self._changes.close()
        os.close(self._table)

    def _read(self) -> bytes:
        os.lseek(self._table, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._table, 1 << 16):
            parts.append(part)
        return b"".join(parts)


def table_can_hang(mountinfo: bytes) -> bool:
    """Whether a table in the format of `/proc/self/mountinfo` names a mount that can hang."""
    return any(_mount_can_hang(line) for line in mountinfo.splitlines())


def devices_in_memory(mountinfo: bytes) -> frozenset[int]:
    """The devices (`st_dev`) of the mounts whose files are in memory only."""
    found = set()
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(b" - ")
        if source.split(b" ", 1)[0] in (b"tmpfs", b"ramfs"):
            major, minor = mount.split(b" ")[2].split(b":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)


def _mount_can_hang(line: bytes) -> bool:
    # ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [TAG…] - TYPE SOURCE SUPER_OPTIONS
    mount, _, source = line.partition(b" - ")
    kind = source.split(b" ", 1)[0]
    if kind in _LOCAL:
        return False
    return kind != b"autofs" or mount.split(b" ")[4] != _HARMLESS_AUTOMOUNT
