"""Checks whether the peer of a local connection is confined: a process in a sandbox may not be a client.

A client may run anything as the daemon's user. So a sandboxed command with the network, and with it Unix
sockets and loopback, could leave its sandbox by connecting to the daemon that started it, or to another one.

Rules kept in this file:

1. A process is *confined* if its pid or user namespace is neither the daemon's nor the machine's own, or if
   it has the ownership tag of an execserver (`descendants.py`) and a seccomp filter: a sandbox without
   namespaces.
2. The check reads files that the kernel shows without the right to trace the process, because the peer of a
   forwarded socket is an sshd.
3. An undecidable peer is refused: one that has ended, or that the daemon cannot see.
4. The kernel does not name the peer of a TCP connection. Its socket is searched in the tables of all
   processes. A confined process can hide it, in a message between two Unix sockets or in a new process at
   each look. It cannot hide that there is a sandbox with the daemon's network.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import struct
from typing import NamedTuple

from execserver.descendants import read_proc, tag_of

_SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h; since Linux 6.5
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_TCP_ESTABLISHED = 1

_CREDENTIALS = struct.Struct("iII")
_HEAD = struct.Struct("=IHHII")  # nlmsghdr
_ASKED = struct.Struct("=BBBxI")  # inet_diag_req_v2 up to its id
_PORTS = struct.Struct("!HH")  # inet_diag_sockid: ports, two addresses, and then
_INTERFACE, _ANY_COOKIE = struct.Struct("=I"), b"\xff" * 8
_FOUND = struct.Struct("=BBxx48x12xII")  # inet_diag_msg

_DESCRIPTORS = 2
"""What the check of a Unix peer needs: a pidfd, and one file at a time."""

_ALL_USERS = b" 4294967295\n"
"""The end of the map of the machine's own user namespace. The daemon's may be one below it; processes in the
machine's own are not confined then. Only root can give another namespace such a map, and no sandbox has
one."""

_LOOKS = 20
"""How often to look for processes that were not there before. A process that is missed each time lives
shorter than a look and hides."""

_MISSES = 2
"""Unsuccessful looks that count as absence: during a single one, a parent may end and its child begin."""

OTHER_USER = "another user"
ENDED = "the process has ended"
CONFINED = "the process is in a sandbox or a container"
HIDDEN = "the process is not to be found, and a sandbox with the network is running"


class _Socket(NamedTuple):
    """A TCP socket of this machine, as the kernel describes it."""

    family: int
    state: int
    uid: int
    inode: int


# -- Unix sockets


def unix_peer(sock: socket.socket) -> tuple[int, str | None]:
    """The pid of a peer, and why it may not be a client; None if it may.

    Raises:
        OSError: the peer is gone, or no descriptor is left for the check.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return pid, OTHER_USER if uid != os.geteuid() else _unix_fault(sock, pid)


def require_room(descriptor: int) -> None:
    """Raise OSError if there are too few descriptors to check a peer that is accepted now.

    Args:
        descriptor: any open one.
    """
    taken: list[int] = []
    try:
        taken += (os.dup(descriptor) for _ in range(1 + _DESCRIPTORS))
    finally:
        for each in taken:
            os.close(each)


def _unix_fault(sock: socket.socket, pid: int) -> str | None:
    if pid == 0:
        return CONFINED  # in a pid namespace that the daemon's does not contain
    try:
        handle = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL):
            return ENDED
        if error.errno != errno.ENOPROTOOPT:
            raise
        handle = None  # an older kernel
    try:
        confined = _is_confined(pid)
        if handle is not None and _has_ended(handle):
            return ENDED  # the process that was checked may be another one with the same pid
    except (FileNotFoundError, ProcessLookupError):
        return ENDED
    finally:
        if handle is not None:
            os.close(handle)
    return CONFINED if confined else None


# -- TCP


def tcp_fault(sock: socket.socket) -> str | None:
    """Why the peer of an accepted connection may not be a client; None if it may: it is on another machine,
    of another user, or not confined. Takes some milliseconds; for any thread.

    Raises:
        OSError: the connection is gone, or no descriptor is left for the check.
    """
    ours, theirs = sock.getsockname(), sock.getpeername()
    if not _is_local(sock.family, theirs):
        return None
    before = _find(sock.family, theirs, ours)
    if before is None and _is_established(sock) and _find(sock.family, ours, theirs) is None:
        return HIDDEN if _sandbox_exists() else None  # the own end is not found either: no sock_diag here
    if before is None or before.state != _TCP_ESTABLISHED or not before.inode:
        return ENDED
    if before.uid != os.geteuid() != 0:
        return None
    fault = _fault_of_holder(before.inode)
    return fault if _find(sock.family, theirs, ours) == before else ENDED


def _fault_of_holder(inode: int) -> str | None:
    misses = 0
    for _ in range(_LOOKS):
        holder = _holder(inode)
        if holder is None:
            misses += 1
            if misses == _MISSES:
                return HIDDEN if _sandbox_exists() else None
            continue
        try:
            return CONFINED if _is_confined(holder) else None
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, and perhaps left the socket to a child
    return HIDDEN


def _is_local(family: int, theirs: tuple[str, int]) -> bool:
    """Whether an address belongs to this machine: others cannot be bound."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((theirs[0], 0, *theirs[2:]))
        except OSError:
            return False
    return True


def _is_established(sock: socket.socket) -> bool:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_ESTABLISHED


def _find(family: int, local: tuple[str, int], remote: tuple[str, int]) -> _Socket | None:
    """The socket of a connection; None if there is none, or the kernel has no sock_diag(7)."""
    packed = (
        socket.inet_pton(family, host.partition("%")[0]).ljust(16, b"\0") for host in (local[0], remote[0])
    )
    interface = _INTERFACE.pack(local[3] if len(local) > 3 else 0)
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0) + _PORTS.pack(local[1], remote[1])
    asked += b"".join(packed) + interface + _ANY_COOKIE
    head = _HEAD.pack(_HEAD.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(head + asked)
            answer = kernel.recv(4096)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
            raise
        return None
    if _HEAD.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    return _Socket(*_FOUND.unpack_from(answer, _HEAD.size))


def _holder(inode: int) -> int | None:
    """The youngest process that has a socket in its table, among those that the daemon may inspect."""
    wanted = f"socket:[{inode}]"
    for pid in sorted(_pids(), reverse=True):
        try:
            table = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        try:
            if any(_link(name, table) == wanted for name in os.listdir(table)):
                return pid
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        finally:
            os.close(table)
    return None


def _link(name: str, table: int) -> str:
    """The text of a link. Empty if the descriptor was closed meanwhile, and for paths that do not fit a page:
    the text of a socket always does.
    """
    try:
        return os.readlink(name, dir_fd=table)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return ""


# -- processes


def _sandbox_exists() -> bool:
    """Whether there is, or may be, a confined process with the daemon's network."""
    seen: set[int] = set()
    for _ in range(_LOOKS):
        fresh = _pids() - seen
        seen |= fresh
        missed = False
        for pid in fresh:
            try:
                if _is_confined(pid) and _may_share_network(pid):
                    return True
            except (FileNotFoundError, ProcessLookupError):
                missed = True
        if not missed:
            return False
    return True


def _may_share_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return True


def _is_confined(pid: int) -> bool:
    """Whether a process is in a sandbox or a container, as seen from the daemon.

    Raises:
        FileNotFoundError, ProcessLookupError: it has ended, or /proc does not show it.
    """
    status = read_proc(f"/proc/{pid}/status")
    users = read_proc(f"/proc/{pid}/uid_map")
    if _depth(status) > _own_depth() or (users != _own_users() and not users.endswith(_ALL_USERS)):
        return True
    return b"\nSeccomp:\t2\n" in status and tag_of(pid) is not None


def _depth(status: bytes) -> int:
    """The number of pid namespaces in which a process has a visible pid."""
    start = status.index(b"\nNSpid:")
    return len(status[start : status.index(b"\n", start + 1)].split()) - 1


@functools.cache
def _own_depth() -> int:
    return _depth(read_proc("/proc/self/status"))


@functools.cache
def _own_users() -> bytes:
    return read_proc("/proc/self/uid_map")


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))
