"""The Landlock backend: enforces a view by limits of a thread, without namespaces or mounts.

Landlock has only grants: below a granted folder nothing can be denied, and no mount can be shown.
`unstatable` returns why a view needs more than that. The other views are enforced by a `Ruleset`, together
with the loss of all capabilities and a seccomp filter.

This is weaker than bubblewrap: the command sees the names of processes and folders, reaches System V objects
of the host, can change permissions, owners and times of the user's own files, cannot make a pseudo-terminal,
cannot use `/dev/shm`, and its background processes outlive it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.policy import is_below
from execserver.sandbox.seccomp_numbers import ARCHITECTURES
from execserver.sandbox.thread_limits import deny_new_privileges, drop_capabilities, install_filter
from execserver.sandbox.view import Bind, Mask, Symlink, Tmpfs, View

MINIMUM_ABI = 6
"""The first version that keeps commands from signalling processes outside (Linux 6.12). Before version 3
commands could even truncate files."""

_KNOWN_ABI = 9

# The same on all machines that have Landlock.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH

# include/uapi/linux/landlock.h: LANDLOCK_ACCESS_FS_…
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FIRST_RIGHTS = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV, _RESOLVE_UNIX = 1 << 13, 1 << 14, 1 << 15, 1 << 16
_RIGHTS_SINCE = {1: _FIRST_RIGHTS, 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV, 9: _RESOLVE_UNIX}
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
"""The rights for a path that is not a folder; the kernel refuses a rule with more (EINVAL)."""
_DEVICE = _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_TCP = 0b11  # LANDLOCK_ACCESS_NET_BIND_TCP, CONNECT_TCP: ABI 4
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1  # ABI 6

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""Devices that programs may write to under every policy. `/dev/pts` is not among them: it holds the terminals
of all the user's sessions."""

_DEVICES_FOLDER = "/dev"

_NOTHING = DaemonPaths()

_libc = ctypes.CDLL(None, use_errno=True)


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def abi() -> int:
    """The kernel's version of Landlock; 0 if it has none or it is disabled."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def unavailable() -> str | None:
    """Why Landlock cannot enforce any view here, with the fix; None if it can."""
    if (found := abi()) < MINIMUM_ABI:
        what = f"speaks Landlock ABI {found}" if found else "has no Landlock, or it is not among its `lsm=`"
        return f"the kernel {what}: ABI {MINIMUM_ABI} is needed (Linux 6.12); use bubblewrap instead"
    if (machine := os.uname().machine) not in ARCHITECTURES:
        return f"there is no seccomp filter for the architecture {machine!r}; use bubblewrap on another host"
    return None


def unstatable(view: View, own: DaemonPaths = _NOTHING) -> str | None:
    """Why Landlock cannot enforce a view; None if it can.

    Args:
        view: the view of any policy.
        own: the daemon's own files. If the network is off, a mask over one of them can be enforced: all paths
            around it are granted. The *names* in it can be listed nevertheless.
    """
    if view.base == "write":
        return "Landlock cannot enforce a writable root: what is narrower below it would be writable too"
    if view.mount_points:
        return f"Landlock cannot keep {view.mount_points[0]} from being made in a writable folder"
    ours = _real((*own.folders, *own.files))
    writable = [each.target for each in view.mounts if isinstance(each, Bind) and each.writable]
    for mount in view.mounts:
        match mount:
            case Mask(target):
                reason = _unstatable_mask(target, view, ours, writable)
            case Tmpfs(target):
                reason = f"Landlock cannot show an empty folder in the place of {target}"
            case Bind():
                reason = _unstatable_bind(mount, writable)
            case Symlink():
                reason = None  # on the way to a granted path; the host has the link too
        if reason is not None:
            return reason
    return None


def _unstatable_mask(target: str, view: View, ours: Sequence[str], writable: Sequence[str]) -> str | None:
    if target not in ours:
        return f"Landlock cannot deny {target} below a folder that may be read"
    if view.base == "host" or any(is_below(target, folder) for folder in writable):
        return f"Landlock cannot hide the daemon's own {target} in a folder that may be written to"
    if view.network:
        return f"Landlock cannot hide the sockets in the daemon's own {target} while the network is enabled"
    return None


def _unstatable_bind(mount: Bind, writable: Sequence[str]) -> str | None:
    if mount.source != mount.target:
        return f"Landlock cannot show {mount.source} at another path, {mount.target}"
    if not mount.writable:
        for folder in writable:
            if is_below(mount.target, folder):
                return (
                    f"Landlock cannot make {mount.target} read-only: it lies in {folder}, which is writable"
                )
    return None


class Ruleset:
    """The rights that a thread keeps when it gives up all others. Holds one descriptor until `close`.

    Args:
        read: files and folders that may be read and executed, with everything below. Missing paths are
            ignored.
        write: files and folders that may also be written.
        devices: files that may be opened for writing and controlled by `ioctl`.
        hidden: exceptions from `read`: everything around them is granted instead, as it is now. They can
            still be listed, and so can the folders above them.
        network: if False, TCP and abstract Unix sockets of processes outside cannot be used either.

    Raises:
        OSError: the kernel has no Landlock, or an existing path that may be seen cannot be opened.
        ValueError: a hidden path lies in a writable folder.
    """

    def __init__(
        self,
        read: Sequence[str],
        write: Sequence[str],
        *,
        network: bool,
        devices: Sequence[str] = DEVICES,
        hidden: Sequence[str] = (),
    ) -> None:
        version = min(abi(), _KNOWN_ABI)
        self._handled = 0
        for since, rights in _RIGHTS_SINCE.items():
            self._handled |= rights if since <= version else 0
        hidden = _real(hidden)
        read, write = _real(read), _real(write)
        for path in hidden:
            if any(is_below(path, folder) for folder in write):
                raise ValueError(f"{path} cannot be hidden: it lies in a writable folder")
        self._fd = self._create(version, network)
        try:
            self._grant(read, write, devices, hidden)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_view(
        cls,
        view: View,
        *,
        own: DaemonPaths = _NOTHING,
        terminal: str | None = None,
        gate: str | None = None,
    ) -> Self:
        """The rules for a view whose files are limited.

        Args:
            view: a view for which `unstatable(view, own)` is None.
            own: the daemon's own files, as for `unstatable`.
            terminal: the slave of the command's pseudo-terminal, which the command may open.
            gate: another file that its process opens before it becomes the command.

        Raises:
            OSError, ValueError: as for the class; ValueError also if the view cannot be enforced.
        """
        reason = unstatable(view, own)
        if reason is not None or view.base == "host":
            raise ValueError(reason or "files are not limited: a seccomp filter alone is enough")
        binds = [each for each in view.mounts if isinstance(each, Bind)]
        # Programs need these in every sandbox.
        read = ["/"] if view.base == "read" else ["/proc"]
        write = [each.target for each in binds if each.writable]
        hidden = [each.target for each in view.mounts if isinstance(each, Mask)]
        # A readable root must not give access to raw disks, or to the input of other terminals.
        if not any(is_below(_DEVICES_FOLDER, folder) for folder in write):
            hidden.append(_DEVICES_FOLDER)
        return cls(
            read + [each.target for each in binds if not each.writable],
            write,
            network=view.network,
            devices=[*DEVICES, *(path for path in (terminal, gate) if path is not None)],
            hidden=hidden,
        )

    def restrict_self(self, program: bytes) -> None:
        """Limit the calling thread and its children permanently.

        The limits: no new privileges, no capabilities, these rules, and a seccomp filter
        (`seccomp.program(…, namespaces_denied=True)`).

        Raises:
            OSError: the kernel refused; the thread may have some of the limits.
        """
        deny_new_privileges()
        drop_capabilities()
        _call(_RESTRICT_SELF, ctypes.c_int(self._fd), ctypes.c_uint32(0))
        install_filter(program)

    def close(self) -> None:
        """Close the descriptor (idempotent). Limited threads stay limited."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self, version: int, network: bool) -> int:
        attributes = _RulesetAttributes(self._handled)
        size = _RulesetAttributes.handled_access_net.offset
        if version >= 4:
            attributes.handled_access_net = 0 if network else _TCP
            size = _RulesetAttributes.scoped.offset
        if version >= 6:
            attributes.scoped = _SCOPE_SIGNAL | (0 if network else _SCOPE_ABSTRACT_UNIX_SOCKET)
            size = ctypes.sizeof(_RulesetAttributes)
        # An older kernel accepts the longer structure only if the unknown part is zero; the exact size avoids
        # the question. The descriptor is close-on-exec.
        return _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))

    def _grant(
        self, read: Iterable[str], write: Iterable[str], devices: Iterable[str], hidden: Sequence[str]
    ) -> None:
        for path in read:
            inside = [each for each in hidden if is_below(each, path)]
            if inside and path not in inside:
                self._add(path, _READ_DIR)
            for piece in _around(path, inside):
                self._add(piece, _READ)
        for path in write:
            self._add(path, self._handled)
        for path in _real(devices):
            self._add(path, _DEVICE)

    def _add(self, path: str, rights: int) -> None:
        try:
            # The paths have no links. A link that has appeared since must not be followed.
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                return
            raise
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISLNK(mode):
                return
            if not stat.S_ISDIR(mode):
                rights &= _OF_FILES
            rule = _PathBeneath(rights & self._handled, fd)
            if rule.allowed_access:
                _call(
                    _ADD_RULE, ctypes.c_int(self._fd), _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0)
                )
        finally:
            os.close(fd)


def _around(root: str, hidden: Sequence[str]) -> Iterator[str]:
    """Paths that together contain everything below a folder except the hidden paths in it.

    Links are left out, because a rule for a link applies to its target. Folders that cannot be listed grant
    nothing.
    """
    if not hidden:
        yield root
        return
    if root in hidden:
        return
    try:
        with os.scandir(root) as entries:
            found = [entry.path for entry in entries if not entry.is_symlink()]
    except OSError:
        return
    for path in found:
        yield from _around(path, [each for each in hidden if is_below(each, path)])


def _real(paths: Iterable[str]) -> list[str]:
    return [os.path.realpath(path) for path in paths]


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
