"""The seccomp filters of sandboxed commands: the system calls that are refused. Pure.

All other system calls are allowed. A refused call fails with EPERM. A call by another architecture's entry,
where the numbers mean other calls, ends the process with SIGSYS (exit 159).

Rules of this module:

1. A flag or number that the kernel takes as 32 bits is compared as 32 bits: the caller could fill the upper
   half of the register to evade a comparison of all 64 bits.
2. Where new flags may be added (`unshare`), the harmless flags are listed and all others refused.
3. The chain of comparisons is flat: the kernel keeps answers that depend only on the number in a bitmap, so
   that the length of the chain costs nothing.
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
"""Number -1, by which a debugger skips a call; not an x32 call."""

_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_AF_VSOCK = 40
_IPPROTO_TCP = 6
_SOCK_STREAM = 1
_SOCK_SEQPACKET = 5
_SOCK_TYPE_MASK = 0xF
"""The other bits of `type` are SOCK_CLOEXEC and SOCK_NONBLOCK."""

_PRIO_PROCESS = 0
_IOPRIO_WHO_PROCESS = 1

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_CLONE_NEW = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. `clone` cannot make a time namespace:
CLONE_NEWTIME (0x80) lies in the bits of its exit signal."""

_UNSHARE_HARMLESS = 0x0005_0F00
"""CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: unshare what threads share."""


class UnknownArchitectureError(Exception):
    """The machine has no table of system calls."""


ALWAYS_REFUSED = (
    # A ring makes calls that the filter does not see.
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    # A large attack surface that no sandboxed command needs.
    "bpf",
    # Keyrings belong to the user, not to the sandbox.
    "keyctl",
    "add_key",
    "request_key",
    # It copies descriptors of other processes, also of process 1.
    "pidfd_getfd",
)
"""And `ioctl` with TIOCSTI or TIOCLINUX, which insert input into the caller's terminal. And `TRACING` and
`pidfd_open` of process 1: in a pid namespace that is bubblewrap, which has no filter and whose program is a
file of the host."""

TRACING = ("ptrace", "process_vm_readv", "process_vm_writev")
"""Calls of debuggers."""

REFUSED_WITHOUT_NETWORK = (
    # Other processes may have the network.
    *TRACING,
    "connect",
    "accept",
    "accept4",
    "bind",
    "listen",
)
"""And `sendto` with an address, and `socket` and `socketpair` except for Unix streams and sequenced packets.

The remaining calls suffice for socket pairs, and reach no other socket:

- `send` is `sendto` without an address; threads of asyncio and `child_process` of Node need it.
- The address of `sendmsg` and `sendmmsg` lies in memory, which a filter cannot read. With an address the
  kernel fails for a stream (EISCONN, or EOPNOTSUPP without a peer), and sends sequenced packets to the peer
  anyway. A datagram would go to any Unix socket of the host, so datagrams are refused, also in pairs.
- The others (`shutdown`, `getsockopt`, `setsockopt`, `getsockname`, `getpeername`, `recv…`) take no address.
"""

REFUSED_OF_PROXIES = ("execve", "execveat", *TRACING)
"""By the filter of a network proxy itself (`for_proxies`), beside those of a sandbox without namespaces: it
parses what a confined command sends, and has the network of the host."""

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
"""And `unshare` and `clone` with flags for namespaces. `clone3`, whose flags lie in memory, fails with
ENOSYS: C libraries then use `clone`.

And limits, priorities and CPU affinity of a process given by number, because processes outside can be named
here; so a thread cannot change those of another thread. And RLIMIT_RTTIME, by which listeners recognize
confined processes (`local_peers.py`). And, with the network on, Unix sockets except pairs: nothing
else hides the host's sockets."""


def program(
    *,
    network: bool,
    files_limited: bool,
    namespaces_denied: bool = False,
    unix_sockets: bool | None = None,
    tracing: bool = True,
    managed: bool = False,
    architecture: str = platform.machine(),
) -> bytes:
    """The filter for a policy, as an array of `struct sock_filter`.

    Args:
        network: whether the network may be used.
        files_limited: whether the policy limits files.
        namespaces_denied: whether to refuse namespaces, mounts and `chroot` too, if nothing else does.
        unix_sockets: with the network, whether Unix sockets may be made, as the host's are hidden; None if
            that depends on `namespaces_denied`.
        tracing: with a network, whether a command may trace its own processes (`TRACING`).
        managed: whether it has a network namespace of its own, which is left through a proxy only. Internet
            sockets for TCP are all that it gets then; `network` is false.
        architecture: as `platform.machine()` returns it.

    Raises:
        UnknownArchitectureError: the architecture has no table.
        ValueError: neither files nor the network are limited.

    `ALWAYS_REFUSED` does not depend on limits on files: inserting input into the caller's terminal would
    evade any limit. `files_limited` decides only whether there is a filter while the network is enabled.
    """
    if network and not files_limited:
        raise ValueError("a policy that limits neither files nor the network has no seccomp filter")
    machine = _machine(architecture)
    unix = not namespaces_denied if unix_sockets is None else unix_sockets
    return _built(machine, network, managed, namespaces_denied, unix, tracing and (network or managed))


@functools.cache
def for_proxies(architecture: str = platform.machine()) -> bytes:
    """The filter of a network proxy. It marks the proxy as confined, too: no listener of a daemon takes it
    for a client (`local_peers.py`).

    Raises:
        UnknownArchitectureError: the architecture has no table.
    """
    refused = [*ALWAYS_REFUSED, *REFUSED_OF_PROXIES, *REFUSED_WITHOUT_NAMESPACES]
    return _assemble(_machine(architecture), refused, _examined_without_namespaces())


def _machine(architecture: str) -> Architecture:
    try:
        return ARCHITECTURES[architecture]
    except KeyError:
        raise UnknownArchitectureError(
            f"no seccomp filter for the architecture {architecture!r}: there are tables for "
            f"{' and '.join(ARCHITECTURES)}; use a policy of type 'disabled' or 'external' with the network "
            "enabled and not managed, or run the daemon on one of these"
        ) from None


_Examined = list[tuple[tuple[str, ...], Callable[[Assembler], None]]]
"""Calls that are refused by their arguments, and the code that examines these."""


@functools.lru_cache(maxsize=8)
def _built(
    machine: Architecture, network: bool, managed: bool, namespaces_denied: bool, unix: bool, tracing: bool
) -> bytes:
    refused = list(ALWAYS_REFUSED)
    examined: _Examined = [
        (("ioctl",), _examine_ioctl),
        (("pidfd_open",), functools.partial(_examine_first_process, index=0)),
    ]
    if managed:
        examined += [
            (("socket",), _examine_tcp),
            (("socketpair",), _examine_socket),
            (("sendto",), _examine_no_address),
        ]
    elif not network:
        refused += REFUSED_WITHOUT_NETWORK
        examined += [
            (("socket", "socketpair"), _examine_socket),
            (("sendto",), _examine_no_address),
        ]
    elif not unix:
        examined += [(("socketpair",), _examine_pair), (("socket",), _examine_no_unix)]
    else:
        examined.append((("socket", "socketpair"), _examine_vsock))
    if tracing:
        examined += [
            (("ptrace",), functools.partial(_examine_first_process, index=1)),
            (TRACING[1:], functools.partial(_examine_first_process, index=0)),
        ]
    elif network or managed:
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
    """Load 32 bits of an argument, by default the lower ones: both machines are little-endian."""
    code.load(_ARGUMENTS + 8 * index + 4 * upper)


def _examine_first_process(code: Assembler, *, index: int) -> None:
    """Refuse calls for process 1."""
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
    """For `prlimit64`: allow the caller's own limits, except its tag, and reading other processes' limits."""
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


def _examine_tcp(code: Assembler) -> None:
    """For `socket` with a managed network: a Unix socket could lead out of the network namespace, and nothing
    but TCP leads to the proxy.
    """
    _load_argument(code, 0)
    code.if_equal(_AF_INET, then="internet")
    code.if_equal(_AF_INET6, otherwise="refuse")
    code.label("internet")
    _load_argument(code, 1)
    code.mask(_SOCK_TYPE_MASK)
    code.if_equal(_SOCK_STREAM, otherwise="refuse")
    _load_argument(code, 2)
    code.if_equal(0, then="tcp")  # the default of a stream is TCP
    code.if_equal(_IPPROTO_TCP, otherwise="refuse")
    code.label("tcp")
    code.leave(ALLOW)


def _examine_no_address(code: Assembler) -> None:
    """For `sendto`: allow only a null address, a 64-bit pointer; the kernel ignores its length then."""
    for upper in (False, True):
        _load_argument(code, 4, upper=upper)
        code.if_equal(0, otherwise="refuse")
    code.leave(ALLOW)


def _examine_pair(code: Assembler) -> None:
    """For `socketpair` with the network: a pair of Unix datagrams could send to any socket of the host."""
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
    """For `clone` and `unshare`: refuse flags of namespaces, in the first argument on both machines.

    The kernel ignores its upper 32 bits (`clone`) or fails if one is set (`unshare`).
    """
    _load_argument(code, 0)
    code.if_any_bit(forbidden, then="refuse")
    code.leave(ALLOW)
