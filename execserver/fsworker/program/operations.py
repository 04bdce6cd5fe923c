"""The requests that a worker answers: each gives a body, and some an open file.

Most are operations of the table (`execserver.filesystem.operations`). The others open a file for the daemon,
or are parts of `fs/applyEdits`, whose arguments and results are JSON.
"""

from __future__ import annotations

import errno
import os

from execserver.filesystem import opening
from execserver.filesystem.operations import OPERATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from execserver.filesystem.cancel import StopFlag

    Outcome = tuple[bytes, int | None]

# File systems whose files are commands to the kernel. It checks the writer, which would be the daemon.
_KERNEL_FILES = frozenset(
    b"binfmt_misc bpf cgroup cgroup2 configfs debugfs efivarfs fusectl nfsd proc pstore resctrl rpc_pipefs "
    b"securityfs selinuxfs smackfs sysfs tracefs".split()
)


class Handlers:
    """The handlers of all requests. Paths are passed as bytes."""

    def __init__(self, stop: StopFlag) -> None:
        """Raises:
        OSError: there is no /proc.
        """
        self._stop = stop
        self._kernel_devices = _kernel_devices()
        self._others: dict[str, Callable[..., Outcome]] = {
            "open_to_read": self.open_to_read,
            "open_to_write": self.open_to_write,
            "open_to_replace": self.open_to_replace,
            "edit": self.edit,
        }

    def answer(self, name: str, arguments: list[object]) -> Outcome:
        """Carry out a request. The body is the result of an operation of the table, or as described below."""
        operation = OPERATIONS.get(name)
        if operation is None:
            return self._others[name](*arguments)
        values = [_decoded(value) for value in arguments]
        return operation.result.encode(operation.function(self._stop, *values)), None

    def open_to_read(self, path: bytes) -> Outcome:
        """Body: the path of the open file, without links."""
        fd, _ = opening.open_to_read(os.fsdecode(path))
        try:
            resolved = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
            if resolved.endswith(b"/mem") and self._is_kernel_file(fd):
                # The memory of this process contains the requests of other connections.
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except BaseException:
            os.close(fd)
            raise
        return resolved, fd

    def open_to_write(self, path: bytes) -> Outcome:
        """No body."""
        fd = opening.open_to_write(os.fsdecode(path))
        self._refuse_kernel_files(fd)
        return b"", fd

    def open_to_replace(self, path: bytes, permissions: int | None) -> Outcome:
        """No body."""
        fd = opening.open_to_replace(os.fsdecode(path), permissions)
        self._refuse_kernel_files(fd)
        return b"", fd

    def edit(self, part: str, given: bytes) -> Outcome:
        """A part of `fs/applyEdits` (`edit_operations.py`). Body: its result, if it has one."""
        import json

        from execserver.filesystem import edit_operations as edits
        from execserver.filesystem.edit_model import Staging, Step, TargetState, path_from_json

        arguments = json.loads(given)
        match part:
            case "inspect":
                path, writes, digest, mode_from = arguments
                found = edits.inspect(
                    path_from_json(path),
                    writes=writes,
                    digest=digest,
                    mode_from=None if mode_from is None else path_from_json(mode_from),
                    stop=self._stop,
                    refuse=self._refuse_kernel_device,
                )
                return json.dumps(found.to_json()).encode(), None
            case "stage":
                fd, staged = edits.stage(Staging.from_json(arguments), self._stop)
                self._refuse_kernel_files(fd)
                return json.dumps(staged.to_json()).encode(), fd
            case "require_unchanged":
                edits.require_unchanged([TargetState.from_json(each) for each in arguments])
            case "do":
                edits.do([Step.from_json(each) for each in arguments])
            case "undo":
                edits.undo([Step.from_json(each) for each in arguments])
            case "discard_files":
                edits.discard([path_from_json(path) for path in arguments], [])
            case "discard_folders":
                edits.discard([], [path_from_json(path) for path in arguments])
            case "sync":
                edits.sync([path_from_json(path) for path in arguments])
            case _:
                raise ValueError(f"no part of fs/applyEdits: {part}")
        return b"", None

    def _refuse_kernel_device(self, device: int) -> None:
        if device in self._kernel_devices:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _refuse_kernel_files(self, fd: int) -> None:
        if self._is_kernel_file(fd):
            os.close(fd)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _is_kernel_file(self, fd: int) -> bool:
        return os.fstat(fd).st_dev in self._kernel_devices


def _decoded(argument: object) -> object:
    """An argument of an operation of the table (`frames.py`)."""
    if isinstance(argument, bytes):
        return os.fsdecode(argument)
    return argument[0] if isinstance(argument, tuple) else argument


def _kernel_devices() -> frozenset[int]:
    """The device numbers of mounts of a kernel file system."""
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
