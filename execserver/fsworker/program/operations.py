"""What a worker can be asked to do: each operation gives a body, and perhaps an opened file.

The work itself is that of `execserver.filesystem`, which the daemon calls too when there is no sandbox.
Modules that are seldom needed are imported when they are: the worker starts the sooner.
"""

from __future__ import annotations

import errno
import os
import stat

from execserver.filesystem import directories, opening
from execserver.filesystem import metadata as looking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from execserver.filesystem.cancel import Stop
    from execserver.filesystem.walk import Seen

    Outcome = tuple[bytes, int | None]

# File systems whose files are commands to the kernel. It asks who *writes*, and that would be the daemon.
_KERNEL_FILES = frozenset(
    b"binfmt_misc bpf cgroup cgroup2 configfs debugfs efivarfs fusectl nfsd proc pstore resctrl rpc_pipefs "
    b"securityfs selinuxfs smackfs sysfs tracefs".split()
)


class Operations:
    """The operations by name; every argument that is a path is bytes."""

    def __init__(self, stop: Stop) -> None:
        """Raises:
        OSError: there is no /proc.
        """
        self._stop = stop
        self._kernel_devices = _kernel_devices()
        self.table: dict[str, Callable[..., Outcome]] = {
            "open_to_read": self.open_to_read,
            "open_to_write": self.open_to_write,
            "open_to_replace": self.open_to_replace,
            "metadata": self.metadata,
            "set_metadata": self.set_metadata,
            "canonicalize": self.canonicalize,
            "create_directory": self.create_directory,
            "read_directory": self.read_directory,
            "walk": self.walk,
            "remove": self.remove,
            "copy": self.copy,
            "install": self.install,
            "rename": self.rename,
            "edit": self.edit,
        }

    def open_to_read(self, path: bytes) -> Outcome:
        """Body: the path of what was opened, without links."""
        number, _ = opening.open_to_read(os.fsdecode(path))
        try:
            resolved = os.fsencode(os.readlink(f"/proc/self/fd/{number}"))
            if resolved.endswith(b"/mem") and self._is_the_kernels(number):
                # Our own memory: it has what other connections asked for.
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except BaseException:
            os.close(number)
            raise
        return resolved, number

    def open_to_write(self, path: bytes) -> Outcome:
        """No body."""
        number = opening.open_to_write(os.fsdecode(path))
        self._refuse_kernel_files(number)
        return b"", number

    def open_to_replace(self, path: bytes, permissions: int | None) -> Outcome:
        """No body."""
        number = opening.open_to_replace(os.fsdecode(path), permissions)
        self._refuse_kernel_files(number)
        return b"", number

    def metadata(self, path: bytes) -> Outcome:
        """Body: is a directory, is a file, is a link, size, time of the last change; as numbers. Then the
        extension members.
        """
        found = looking.metadata(os.fsdecode(path), extended=True)
        numbers = (
            found["isDirectory"], found["isFile"], found["isSymlink"], found["size"], found["modifiedAtMs"],
            found["permissions"], found["modifiedAtNs"], found["accessedAtNs"],
        )  # fmt: skip
        return b"%d %d %d %d %d %d %d %d" % numbers, None

    def set_metadata(self, path: bytes, *numbers: int | None) -> Outcome:
        """No body. The numbers are those of `Attributes`, in its order."""
        from execserver.filesystem.replacing import Attributes

        Attributes(*numbers).set(os.fsdecode(path))
        return b"", None

    def canonicalize(self, path: bytes) -> Outcome:
        """Body: the path without links."""
        return os.fsencode(looking.canonicalize(os.fsdecode(path))), None

    def create_directory(self, path: bytes, recursive: bool, permissions: int | None) -> Outcome:
        """No body."""
        directories.create_directory(os.fsdecode(path), recursive=recursive, permissions=permissions)
        return b"", None

    def read_directory(self, path: bytes) -> Outcome:
        """Body: `listing.entries_of`."""
        body = bytearray()
        for name, kind in directories.entries(os.fsdecode(path), self._stop):
            body += b"d" if kind == stat.S_IFDIR else b"f" if kind == stat.S_IFREG else b"o"
            body += os.fsencode(name)
            body += b"\0"
        return bytes(body), None

    def walk(self, path: bytes, *limits: int) -> Outcome:
        """Body: `listing.seen_of`. The limits are those of `WalkLimits`, in its order."""
        from execserver.filesystem.walk import WalkLimits, visit

        max_depth, max_directories, max_entries, follow_links, prune_hidden = limits
        how_far = WalkLimits(max_depth, max_directories, max_entries, bool(follow_links), bool(prune_hidden))
        return _written(visit(os.fsdecode(path), how_far, self._stop)), None

    def remove(self, path: bytes, recursive: bool, force: bool) -> Outcome:
        """No body."""
        from execserver.filesystem.remove import remove

        remove(os.fsdecode(path), recursive=recursive, force=force)
        return b"", None

    def copy(self, source: bytes, destination: bytes, recursive: bool, *wish: int) -> Outcome:
        """Body: something if a file was written in place. The wish is that of `Wish`, in its order."""
        from execserver.filesystem.tree_operations import Wish, copy

        what = Wish(*map(bool, wish))
        paths = os.fsdecode(source), os.fsdecode(destination)
        return b"1" if copy(*paths, recursive=recursive, stop=self._stop, wish=what) else b"", None

    def install(self, source: bytes, destination: bytes, *numbers: int | None) -> Outcome:
        """Body: something if the file was written in place. The numbers are those of `Attributes`."""
        from execserver.filesystem.replacing import Attributes, install

        paths = os.fsdecode(source), os.fsdecode(destination)
        return b"1" if install(*paths, Attributes(*numbers), self._stop) else b"", None

    def rename(self, source: bytes, destination: bytes, overwrite: bool) -> Outcome:
        """No body."""
        from execserver.filesystem.rename import rename

        rename(os.fsdecode(source), os.fsdecode(destination), overwrite=overwrite)
        return b"", None

    def edit(self, part: str, given: bytes) -> Outcome:
        """A part of `fs/applyEdits`, by the name that it has in `fsworker.edits`."""
        from execserver.fsworker import edits

        return edits.PARTS[part](given, self._stop, self._refuse_kernel_device)

    def _refuse_kernel_device(self, device: int) -> None:
        if device in self._kernel_devices:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _refuse_kernel_files(self, number: int) -> None:
        if self._is_the_kernels(number):
            os.close(number)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _is_the_kernels(self, number: int) -> bool:
        return os.fstat(number).st_dev in self._kernel_devices


def _written(found: Iterable[Seen]) -> bytes:
    body = bytearray()
    for what, path in found:
        body += what[0].encode() if isinstance(what, str) else b"%d" % what
        body += os.fsencode(path)
        body += b"\0"
    return bytes(body)


def _kernel_devices() -> frozenset[int]:
    """The device numbers of the mounts whose files are the kernel's."""
    with open("/proc/self/mountinfo", "rb", 0) as table:
        lines = table.readall().splitlines()
    devices = set()
    for line in lines:
        # ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS [TAG…] - TYPE SOURCE SUPER_OPTIONS
        mount, _, source = line.partition(b" - ")
        if source.split(b" ", 1)[0] in _KERNEL_FILES:
            major, _, minor = mount.split(b" ", 3)[2].partition(b":")
            devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)
