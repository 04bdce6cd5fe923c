"""Which TCP ports the descendants of processes listen on, from /proc. Everything here blocks.

Rules of this file:

1. A process sees the ports of its own network namespace: /proc/PID/net has those of any process. A namespace
   is looked at once, through one of its processes.
2. A socket belongs to the processes that have it open; if several have, to the one with the lowest pid.
3. Of very many ports of a process the lowest are found: each watch lists all of them twice a second.
4. A process that ends meanwhile, or that the daemon may not look at, has no ports.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from execprotocol.port import Family

MAX_LISTENERS = 1000
"""Of a process with its descendants."""

_LISTEN = b"0A"  # include/net/tcp_states.h, as /proc/net/tcp has it

_TABLE_BYTES = 64 << 10
"""Read at a time of a table, which has the listening sockets first: of 100,000 connections few are read."""

_TABLES: tuple[tuple[str, Family], ...] = (("tcp", "ipv4"), ("tcp6", "ipv6"))


class Listener(NamedTuple):
    """A listening socket of a descendant of a process."""

    port: int
    address: str
    family: Family
    number: int
    """The number of the process."""
    namespace: int
    """The inode of its network namespace."""
    pid: int
    """A process that has it open."""
    name: str
    """The name of that process as the kernel has it; empty if it is gone."""
    inode: int
    """Of the socket."""


class _Socket(NamedTuple):
    """A line of /proc/net/tcp, without the peer."""

    address: str
    port: int
    family: Family
    inode: int


def own_namespace() -> int:
    """The inode of the network namespace of this process."""
    return os.stat("/proc/self/ns/net").st_ino


class Scanner:
    """Finds listening sockets.

    It remembers which are whose: while the processes of a namespace and its listening sockets are the same,
    their descriptors are not looked at again.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, list[Listener]]] = {}

    def find(self, descendants: Mapping[int, Iterable[int]]) -> list[Listener]:
        """The listening sockets of processes, by port, address and process; `MAX_LISTENERS` of each process.

        Several sockets of one process with the same address and port, as with SO_REUSEPORT, count as one.

        Args:
            descendants: pids by the number of the process.

        Raises:
            OSError: no descriptor or no memory is available.
        """
        spaces: dict[int, list[tuple[int, int]]] = {}
        for number, pids in descendants.items():
            for pid in pids:
                namespace = _namespace_of(pid)
                if namespace is not None:
                    spaces.setdefault(namespace, []).append((pid, number))
        known: dict[int, tuple[object, list[Listener]]] = {}
        for namespace, members in spaces.items():
            members.sort()
            sockets = _of_namespace(members)
            key = (members, sockets)
            before = self._known.get(namespace)
            if before is not None and before[0] == key:
                known[namespace] = before
            else:
                known[namespace] = key, list(_claimed(namespace, members, sockets))
        self._known = known
        found: dict[tuple[str, int, int, int], Listener] = {}
        for _, listeners in known.values():
            for each in listeners:
                found.setdefault((each.address, each.port, each.number, each.namespace), each)
        left = dict.fromkeys(descendants, MAX_LISTENERS)
        lowest = []
        for each in sorted(found.values()):
            if left[each.number]:
                left[each.number] -= 1
                lowest.append(each)
        return lowest


def is_listening(listener: Listener) -> bool:
    """Whether the socket still listens: an inode is that of one socket as long as that lives."""
    return any(each.inode == listener.inode for each in _listening(listener.pid))


def open_namespace(listener: Listener) -> int | None:
    """A descriptor of the network namespace of a listener; None if it is that of this process.

    Raises:
        OSError: the process that listens is gone, or no descriptor is available.
    """
    if listener.namespace == own_namespace():
        return None
    descriptor = os.open(f"/proc/{listener.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(descriptor).st_ino != listener.namespace:
        os.close(descriptor)
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return descriptor


def has_connection(listener: Listener, peer_port: int, pids: Iterable[int]) -> bool:
    """Whether one of these processes has the listener's end of a connection.

    Args:
        listener: the listening socket.
        peer_port: the port of the other end.
        pids: processes of the listener's namespace, or of others.
    """
    wanted = set()
    for name, _ in _TABLES:
        for line in _lines(f"/proc/{listener.pid}/net/{name}"):
            fields = line.split()
            local, remote = (int(fields[index].rpartition(b":")[2], 16) for index in (1, 2))
            if (local, remote) == (listener.port, peer_port):
                wanted.add(int(fields[9]))
    wanted.discard(0)  # not accepted by a process
    return bool(wanted) and any(wanted & set(_sockets_of(pid)) for pid in pids)


def _of_namespace(members: list[tuple[int, int]]) -> list[_Socket]:
    """The listening sockets of a namespace, from the first of its processes that lives."""
    for pid, _ in members:
        sockets = list(_listening(pid))
        if sockets or os.path.exists(f"/proc/{pid}"):
            return sockets
    return []


def _claimed(namespace: int, members: list[tuple[int, int]], sockets: list[_Socket]) -> Iterator[Listener]:
    """The sockets that these processes have."""
    unclaimed = {each.inode: each for each in sockets}
    for pid, number in members:
        if not unclaimed:
            return
        for inode in _sockets_of(pid):
            each = unclaimed.pop(inode, None)
            if each is not None:
                yield Listener(
                    each.port, each.address, each.family, number, namespace, pid, _name_of(pid), inode
                )


def _namespace_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _listening(pid: int) -> Iterator[_Socket]:
    for name, family in _TABLES:
        for line in _lines(f"/proc/{pid}/net/{name}"):
            fields = line.split()
            if fields[3] != _LISTEN:
                break
            address, _, port = fields[1].rpartition(b":")
            yield _Socket(_address_text(address), int(port, 16), family, int(fields[9]))


def _lines(path: str) -> Iterator[bytes]:
    """The lines of a table, without the head; none if there is no such table, as without IPv6."""
    try:
        with open(path, "rb", buffering=_TABLE_BYTES) as file:
            next(file, None)
            yield from file
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return


def _address_text(digits: bytes) -> str:
    """An address as the kernel prints it: each 32 bits in the byte order of the host."""
    words = (int(digits[at : at + 8], 16) for at in range(0, len(digits), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _sockets_of(pid: int) -> Iterator[int]:
    """The inodes of the sockets that a process has open."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().rstrip(b"\n").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
