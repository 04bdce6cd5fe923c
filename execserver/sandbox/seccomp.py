"""The seccomp filters of sandboxed commands, as programs for the kernel. Pure.

Which system calls a sandboxed command may not make. What is not named here is allowed. A refused call
fails with EPERM; a call through another architecture's gate, where the numbers mean other things, ends
the process with SIGSYS (exit 159).

Rules kept in this file:

1. A flag or number that the kernel takes as 32 bits is compared as 32 bits: the upper half of the register
   is the caller's to fill, and a comparison of all 64 bits could be walked around with it.
2. Where new flags may come (`unshare`), the harmless ones are named and all others refused.
3. The chain of comparisons is flat: for numbers whose answer does not depend on arguments the kernel keeps
   the answer in a bitmap, so that its length costs nothing.
"""

from __future__ import annotations

import errno
import functools
import platform
import resource
from collections.abc import Callable, Sequence

from execserver.sandbox.seccomp_bpf import Assembler
from execserver.sandbox.seccomp_numbers import ARCHITECTURES, Architecture

ALLOW = 0x7FFF_0000  # SECCOMP_RET_ALLOW
KILL_PROCESS = 0x8000_0000  # SECCOMP_RET_KILL_PROCESS
_FAIL = 0x0005_0000  # SECCOMP_RET_ERRNO
REFUSE = _FAIL | errno.EPERM
NOT_IMPLEMENTED = _FAIL | errno.ENOSYS

_NUMBER = 0  # offsets in struct seccomp_data
_ARCHITECTURE = 4
_ARGUMENTS = 16

_X32_BIT = 0x4000_0000
_NO_CALL = 0xFFFF_FFFF
"""Number -1: a debugger put it there to skip a call. It is no call of the x32 gate."""

_AF_UNIX = 1
_AF_VSOCK = 40
_SOCK_STREAM = 1
_SOCK_SEQPACKET = 5
_SOCK_TYPE_MASK = 0xF
"""The rest of `type` are SOCK_CLOEXEC and SOCK_NONBLOCK."""

_PRIO_PROCESS = 0
_IOPRIO_WHO_PROCESS = 1

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_CLONE_NEW = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. CLONE_NEWTIME (0x80) lies where `clone`
has the exit signal, so that `clone` cannot make one."""

_UNSHARE_HARMLESS = 0x0005_0F00
"""CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: own copies of what threads share."""


class UnknownArchitectureError(Exception):
    """There is no table of system calls for this machine."""


ALWAYS_REFUSED = (
    # A ring does what the filter refuses, unseen by it.
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    # Much kernel code that nothing in a sandbox needs.
    "bpf",
    # Keyrings belong to the user, not to the sandbox.
    "keyctl",
    "add_key",
    "request_key",
    # It takes descriptors out of other processes, the first one among them.
    "pidfd_getfd",
)
"""And `ioctl` with TIOCSTI or TIOCLINUX: they type into the terminal that the caller reads. And `TRACING` and
`pidfd_open` of process 1: in a pid namespace that is bubblewrap, which has no filter and was opened on the
host."""

TRACING = ("ptrace", "process_vm_readv", "process_vm_writev")
"""What debuggers do to other processes."""

REFUSED_WITHOUT_NETWORK = (
    # Other processes may have the network.
    *TRACING,
    "connect",
    "accept",
    "accept4",
    "bind",
    "listen",
)
"""And `sendto` with an address, and `socket` and `socketpair` but for Unix streams and sequenced packets.

What remains makes the two ends of a pair work wholly, and reaches nothing else:

- `send` is `sendto` without an address; threads of asyncio and `child_process` of Node need it.
- The address of `sendmsg` and `sendmmsg` lies in memory, where a filter cannot look. The kernel fails for a
  stream that has one (EISCONN, or EOPNOTSUPP without a peer), and sends sequenced packets to the peer all the
  same. A datagram would go to any Unix socket of the host, so that there are no datagrams, in pairs either.
- The others (`shutdown`, `getsockopt`, `setsockopt`, `getsockname`, `getpeername`, `recv…`) take no address.
"""

REFUSED_WITHOUT_NAMESPACES = (
    "mount",
    "umount2",
    "pivot_root",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "fsopen",
    "fsmount",
    "fsconfig",
    "fspick",
    "mount_setattr",
    "setns",
    "chroot",
)
"""And `unshare` and `clone` of namespaces. `clone3`, whose flags lie in memory, is not implemented: C
libraries then use `clone`.

And limits, priorities and processors of processes that the caller names: the user's own outside have numbers
here. So a thread can be given none of these by another thread. And RLIMIT_RTTIME, by which listeners tell
what is confined (`transports/local_peers.py`); and, with the network on, Unix sockets but for pairs: nothing
else covers those of the host."""


def program(
    *,
    network: bool,
    files_limited: bool,
    namespaces_denied: bool = False,
    tracing: bool = True,
    architecture: str = platform.machine(),
) -> bytes:
    """The filter for a policy, as an array of `struct sock_filter`.

    Args:
        network: whether the network may be used.
        files_limited: whether the policy limits files.
        namespaces_denied: refuse the making and entering of namespaces, mounts and `chroot` too, where
            nothing else does.
        tracing: with the network, whether a command may trace its own processes (`TRACING`).
        architecture: as `platform.machine()` has it.

    Raises:
        UnknownArchitectureError: no table for the architecture.
        ValueError: neither files nor network are limited, so that nothing is to be refused.

    What is always refused is refused without limits on files too: typing into the terminal of the caller
    would be a way around any limit. Otherwise `files_limited` decides only whether there is a filter while
    the network is enabled.
    """
    if network and not files_limited:
        raise ValueError("a policy that limits neither files nor the network has no seccomp filter")
    try:
        machine = ARCHITECTURES[architecture]
    except KeyError:
        raise UnknownArchitectureError(
            f"no seccomp filter for the architecture {architecture!r}: there are tables for "
            f"{' and '.join(ARCHITECTURES)}; use a policy of type 'disabled' or 'external' with the network "
            "enabled, or run the daemon on one of these"
        ) from None
    return _built(machine, network, namespaces_denied, tracing and network)


_Examined = list[tuple[tuple[str, ...], Callable[[Assembler], None]]]
"""Calls whose arguments decide, and the instructions that do."""


@functools.lru_cache(maxsize=8)
def _built(machine: Architecture, network: bool, namespaces_denied: bool, tracing: bool) -> bytes:
    refused = list(ALWAYS_REFUSED)
    examined: _Examined = [
        (("ioctl",), _examine_ioctl),
        (("pidfd_open",), functools.partial(_examine_first_process, index=0)),
    ]
    if not network:
        refused += REFUSED_WITHOUT_NETWORK
        examined += [
            (("socket", "socketpair"), _examine_socket),
            (("sendto",), _examine_no_address),
        ]
    elif namespaces_denied:
        examined += [(("socketpair",), _examine_pair), (("socket",), _examine_no_unix)]
    else:
        examined.append((("socket", "socketpair"), _examine_vsock))
    if tracing:
        examined += [
            (("ptrace",), functools.partial(_examine_first_process, index=1)),
            (TRACING[1:], functools.partial(_examine_first_process, index=0)),
        ]
    elif network:
        refused += TRACING
    if namespaces_denied:
        refused += REFUSED_WITHOUT_NAMESPACES
        examined += _examined_without_namespaces()
    return _assemble(machine, refused, examined)


def _examined_without_namespaces() -> _Examined:
    return [
        (("clone",), functools.partial(_examine_flags, forbidden=_CLONE_NEW)),
        (("unshare",), functools.partial(_examine_flags, forbidden=~_UNSHARE_HARMLESS & 0xFFFF_FFFF)),
        (("clone3",), lambda code: code.leave(NOT_IMPLEMENTED)),
        (("prlimit64",), _examine_limits),
        (("setrlimit",), _examine_own_limit),
        (
            ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
            functools.partial(_examine_arguments, values=(0,)),
        ),
        (("setpriority",), functools.partial(_examine_arguments, values=(_PRIO_PROCESS, 0))),
        (("ioprio_set",), functools.partial(_examine_arguments, values=(_IOPRIO_WHO_PROCESS, 0))),
    ]


def _assemble(
    machine: Architecture,
    refused: list[str],
    examined: _Examined,
) -> bytes:
    code = Assembler()
    code.load(_ARCHITECTURE)
    code.if_equal(machine.audit, otherwise="kill")
    code.load(_NUMBER)
    if machine.has_x32:
        code.if_equal(_NO_CALL, then="allow")
        code.if_any_bit(_X32_BIT, then="kill")
    for name in refused:
        code.if_equal(machine.numbers[name], then="refuse")
    for names, _ in examined:
        for name in names:
            code.if_equal(machine.numbers[name], then=names[0])
    code.label("allow")
    code.leave(ALLOW)
    for names, examine in examined:
        code.label(names[0])
        examine(code)
    code.label("refuse")
    code.leave(REFUSE)
    code.label("kill")
    code.leave(KILL_PROCESS)
    return code.assemble()


def _load_argument(code: Assembler, index: int, *, upper: bool = False) -> None:
    """32 bits of an argument, the lower ones unless told otherwise: both machines are little-endian."""
    code.load(_ARGUMENTS + 8 * index + 4 * upper)


def _examine_first_process(code: Assembler, *, index: int) -> None:
    """Refuse what is done to process 1."""
    _load_argument(code, index)
    code.if_equal(1, then="refuse")
    code.leave(ALLOW)


def _examine_arguments(code: Assembler, *, values: Sequence[int]) -> None:
    """Allow only these first arguments."""
    for index, value in enumerate(values):
        _load_argument(code, index)
        code.if_equal(value, otherwise="refuse")
    code.leave(ALLOW)


def _examine_limits(code: Assembler) -> None:
    """Of `prlimit64`: the caller's own but for its tag, and reading those of others."""
    _load_argument(code, 1)
    code.if_equal(resource.RLIMIT_RTTIME, then="new limit")
    _load_argument(code, 0)
    code.if_equal(0, then="own limits")
    code.label("new limit")
    for upper in (False, True):
        _load_argument(code, 2, upper=upper)  # the new limit, a pointer
        code.if_equal(0, otherwise="refuse")
    code.label("own limits")
    code.leave(ALLOW)


def _examine_ioctl(code: Assembler) -> None:
    _load_argument(code, 1)
    code.if_equal(_TIOCSTI, then="refuse")
    code.if_equal(_TIOCLINUX, then="refuse")
    code.leave(ALLOW)


def _examine_own_limit(code: Assembler) -> None:
    _load_argument(code, 0)
    code.if_equal(resource.RLIMIT_RTTIME, then="refuse")
    code.leave(ALLOW)


def _examine_socket(code: Assembler) -> None:
    _load_argument(code, 0)
    code.if_equal(_AF_UNIX, otherwise="refuse")
    _examine_type(code)


def _examine_no_address(code: Assembler) -> None:
    """Of `sendto`: only without an address, which is a pointer of 64 bits; its length means nothing then."""
    for upper in (False, True):
        _load_argument(code, 4, upper=upper)
        code.if_equal(0, otherwise="refuse")
    code.leave(ALLOW)


def _examine_pair(code: Assembler) -> None:
    """Of `socketpair` with the network: one of Unix datagrams could send to any socket of the host."""
    _load_argument(code, 0)
    code.if_equal(_AF_VSOCK, then="refuse")
    code.if_equal(_AF_UNIX, otherwise="allow stream")
    _examine_type(code)


def _examine_no_unix(code: Assembler) -> None:
    _load_argument(code, 0)
    code.if_equal(_AF_UNIX, then="refuse")
    code.if_equal(_AF_VSOCK, then="refuse")
    code.leave(ALLOW)


def _examine_type(code: Assembler) -> None:
    _load_argument(code, 1)
    code.mask(_SOCK_TYPE_MASK)
    code.if_equal(_SOCK_STREAM, then="allow stream")
    code.if_equal(_SOCK_SEQPACKET, otherwise="refuse")
    code.label("allow stream")
    code.leave(ALLOW)


def _examine_vsock(code: Assembler) -> None:
    _load_argument(code, 0)
    code.if_equal(_AF_VSOCK, then="refuse")
    code.leave(ALLOW)


def _examine_flags(code: Assembler, *, forbidden: int) -> None:
    """Of `clone` and `unshare`: on both machines the flags are the first argument, and of its 64 bits the
    kernel either ignores the upper 32 (`clone`) or fails if one is set (`unshare`).
    """
    _load_argument(code, 0)
    code.if_any_bit(forbidden, then="refuse")
    code.leave(ALLOW)
