"""Numbers of system calls by machine, for seccomp filters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Architecture(msgspec.Struct, frozen=True, eq=False):
    """The constants of a machine that a filter needs."""

    audit: int
    """AUDIT_ARCH_…, by which the kernel tells the entry of a call."""

    numbers: Mapping[str, int]
    """System call numbers by name."""

    has_x32: bool = False
    """Whether a bit of the number selects a second table under the same audit value."""


# Calls since Linux 5.1 have the same numbers on every machine.
_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "open_tree_attr": 467,
}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "x86_64": Architecture(
            0xC000_003E,
            MappingProxyType(
                _COMMON
                | {
                    "ioctl": 16,
                    "socket": 41,
                    "connect": 42,
                    "accept": 43,
                    "sendto": 44,
                    "bind": 49,
                    "listen": 50,
                    "socketpair": 53,
                    "clone": 56,
                    "execve": 59,
                    "ptrace": 101,
                    "setpriority": 141,
                    "sched_setparam": 142,
                    "sched_setscheduler": 144,
                    "pivot_root": 155,
                    "setrlimit": 160,
                    "chroot": 161,
                    "mount": 165,
                    "umount2": 166,
                    "sched_setaffinity": 203,
                    "add_key": 248,
                    "request_key": 249,
                    "keyctl": 250,
                    "ioprio_set": 251,
                    "unshare": 272,
                    "accept4": 288,
                    "prlimit64": 302,
                    "setns": 308,
                    "process_vm_readv": 310,
                    "process_vm_writev": 311,
                    "sched_setattr": 314,
                    "bpf": 321,
                    "execveat": 322,
                }
            ),
            has_x32=True,
        ),
        "aarch64": Architecture(
            0xC000_00B7,
            MappingProxyType(
                _COMMON
                | {
                    "ioctl": 29,
                    "ioprio_set": 30,
                    "umount2": 39,
                    "mount": 40,
                    "pivot_root": 41,
                    "chroot": 51,
                    "unshare": 97,
                    "ptrace": 117,
                    "sched_setparam": 118,
                    "sched_setscheduler": 119,
                    "sched_setaffinity": 122,
                    "setpriority": 140,
                    "setrlimit": 164,
                    "socket": 198,
                    "socketpair": 199,
                    "bind": 200,
                    "listen": 201,
                    "accept": 202,
                    "connect": 203,
                    "sendto": 206,
                    "add_key": 217,
                    "request_key": 218,
                    "keyctl": 219,
                    "clone": 220,
                    "execve": 221,
                    "accept4": 242,
                    "prlimit64": 261,
                    "setns": 268,
                    "process_vm_readv": 270,
                    "process_vm_writev": 271,
                    "sched_setattr": 274,
                    "bpf": 280,
                    "execveat": 281,
                }
            ),
        ),
    }
)
