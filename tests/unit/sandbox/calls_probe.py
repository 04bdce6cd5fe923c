"""A program that makes every system call that a filter may refuse, and prints the results.

    calls_probe.py [FILTER_FILE]      install the filter first; without it, a filter is already installed or
    not wanted

With these arguments a call does nothing, and fails with another errno than EPERM if the kernel checks
arguments before privileges. Prints JSON: name → [result, errno].
"""

from __future__ import annotations

import ctypes
import json
import platform
import sys
from pathlib import Path

from execserver.sandbox.seccomp_numbers import ARCHITECTURES
from execserver.sandbox.thread_limits import deny_new_privileges, install_filter

HIGH = 1 << 40
TIOCSTI, TIOCLINUX, FIONREAD = 0x5412, 0x541C, 0x541B
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40
STREAM, DGRAM, RAW, SEQPACKET = 1, 2, 3, 5
CLONE_NEWUSER, CLONE_FS, NO_FLAG = 0x10000000, 0x200, 0x1000

ALWAYS: dict[str, tuple[int, ...]] = {
    "io_uring_setup": (0, 0),
    "io_uring_enter": (-1,),
    "io_uring_register": (-1,),
    "bpf": (0, 0, 1 << 20),
    "keyctl": (0, -3, 0),
    "add_key": (),
    "request_key": (),
    "pidfd_getfd": (-1,),
    "pidfd_open 1": (1, 1 << 30),
    "ptrace 1": (0x7777, 1),
    "ptrace 1 with upper bits": (0x7777, 1 | HIGH),
    "process_vm_readv 1": (1, 0, 0, 0, 0, 1),
    "process_vm_writev 1": (1, 0, 0, 0, 0, 1),
    "ioctl TIOCSTI": (-1, TIOCSTI),
    "ioctl TIOCLINUX": (-1, TIOCLINUX),
    "ioctl TIOCSTI with upper bits": (-1, TIOCSTI | HIGH),
}
OTHER_PROCESSES: dict[str, tuple[int, ...]] = {
    "ptrace": (0x7777, 0x7FFFFFFF),
    "process_vm_readv": (0x7FFFFFFF,),
    "process_vm_writev": (0x7FFFFFFF,),
}
WITHOUT_NETWORK: dict[str, tuple[int, ...]] = {
    "connect": (-1,),
    "accept": (-1,),
    "accept4": (-1,),
    "bind": (-1,),
    "listen": (-1,),
    "sendto an address": (-1, 0, 0, 0, 0x1000),
    "sendto an address with upper bits only": (-1, 0, 0, 0, HIGH),
    "socket INET": (INET, STREAM),
    "socket INET with upper bits": (INET | HIGH, STREAM),
    "socket INET datagram": (INET, DGRAM),
    "socket INET6": (INET6, STREAM),
    "socket NETLINK": (NETLINK, DGRAM),
    "socket ALG": (ALG, SEQPACKET),
    "socketpair INET": (INET, STREAM),
}
PACKETS: dict[str, tuple[int, ...]] = {"socket PACKET": (PACKET, RAW)}  # of root only, filter or not
VSOCKETS: dict[str, tuple[int, ...]] = {"socket VSOCK": (VSOCK, STREAM), "socketpair VSOCK": (VSOCK, STREAM)}
WITHOUT_NAMESPACES: dict[str, tuple[int, ...]] = {
    "mount": (),
    "umount2": (0, 0xFFFF),
    "pivot_root": (),
    "move_mount": (-1, 0, -1, 0, 1 << 30),
    "open_tree": (-1, 0, 1 << 30),
    "open_tree_attr": (-1, 0, 1 << 30),
    "fsopen": (),
    "fsmount": (-1,),
    "fsconfig": (-1,),
    "fspick": (-1, 0, 1 << 30),
    "mount_setattr": (-1, 0, 1 << 30),
    "setns": (-1,),
    "chroot": (),
    "unshare NEWUSER": (CLONE_NEWUSER | NO_FLAG,),
    "unshare NEWUSER with upper bits": (CLONE_NEWUSER | HIGH,),
    "clone NEWUSER": (CLONE_NEWUSER | CLONE_FS,),
}
OF_OTHERS: dict[str, tuple[int, ...]] = {
    "prlimit64": (0x7FFFFFFF, 0, 0x1000),
    "prlimit64 of the tag": (0, 15, 1),
    "setrlimit of the tag": (15, 1),
    "setpriority": (0, 0x7FFFFFFF),
    "setpriority of a group": (1, 0x7FFFFFFF),
    "setpriority of a user": (2, 0x7FFFFFFF),
    "ioprio_set": (1, 0x7FFFFFFF, 0),
    "sched_setaffinity": (0x7FFFFFFF,),
    "sched_setattr": (0x7FFFFFFF,),
    "sched_setparam": (0x7FFFFFFF,),
    "sched_setscheduler": (0x7FFFFFFF,),
}
UNIX_SOCKETS: dict[str, tuple[int, ...]] = {
    "socket UNIX stream": (UNIX, STREAM),
    "socket UNIX packets": (UNIX, SEQPACKET),
}
UNIX_DATAGRAMS: dict[str, tuple[int, ...]] = {
    "socket UNIX datagram": (UNIX, DGRAM),
    "socket UNIX raw": (UNIX, RAW),
    "socketpair UNIX datagram": (UNIX, DGRAM),
}
NOT_THERE: dict[str, tuple[int, ...]] = {"clone3": ()}
PAIRS: dict[str, tuple[int, ...]] = {
    "sendto": (-1,),
    "sendmsg": (-1,),
    "recvfrom": (-1,),
    "recvmsg": (-1,),
    "shutdown": (-1,),
    "getsockname": (-1,),
    "getpeername": (-1,),
    "getsockopt": (-1,),
    "setsockopt": (-1,),
}
"""A number that is no descriptor."""
HARMLESS: dict[str, tuple[int, ...]] = {
    "ioctl FIONREAD": (-1, FIONREAD),
    "pidfd_open 2": (0x7FFFFFFF, 1 << 30),
    "prlimit64 to read": (0x7FFFFFFF, 0, 0, 0),
    "unshare FS": (CLONE_FS,),
}
OF_PAIRS = {
    "x86_64": {
        "sendmsg": 46, "recvfrom": 45, "recvmsg": 47, "shutdown": 48, "getsockname": 51, "getpeername": 52,
        "getsockopt": 55, "setsockopt": 54,
    },
    "aarch64": {
        "sendmsg": 211, "recvfrom": 207, "recvmsg": 212, "shutdown": 210, "getsockname": 204,
        "getpeername": 205, "getsockopt": 209, "setsockopt": 208,
    },
}  # fmt: skip
"""Numbers in no filter."""
CALLS = (
    *(ALWAYS, OTHER_PROCESSES, WITHOUT_NETWORK, UNIX_DATAGRAMS, PACKETS, VSOCKETS),
    *(WITHOUT_NAMESPACES, OF_OTHERS, NOT_THERE, PAIRS, UNIX_SOCKETS, HARMLESS),
)


def main() -> None:
    numbers = {**ARCHITECTURES[platform.machine()].numbers, **OF_PAIRS[platform.machine()]}
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if len(sys.argv) > 1:
        deny_new_privileges()
        install_filter(Path(sys.argv[1]).read_bytes())
    found = {}
    for group in CALLS:
        for name, arguments in group.items():
            pair = (ctypes.c_int * 2)()
            padded = list(map(ctypes.c_long, [*arguments, *[0] * (6 - len(arguments))]))
            if name.startswith("socketpair"):
                padded[3] = ctypes.c_long(ctypes.addressof(pair))
            ctypes.set_errno(0)
            result = libc.syscall(ctypes.c_long(numbers[name.split()[0]]), *padded)
            found[name] = [result, ctypes.get_errno() if result < 0 else 0]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
