"""Input for bubblewrap: the arguments for a view, files in memory, and a sealed copy of its own program.

Bubblewrap makes the namespaces and mounts, loads the seccomp program and execs the command; no helper of
ours runs inside. All arguments are passed by a descriptor (`--args`), because every user can read a process's
command line, and it would show the variables of the command and the paths of the policy. Bubblewrap itself
runs with an empty environment: a command's variables for the loader must not affect an unconfined program.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Collection, Mapping, Sequence

import msgspec

from execserver.sandbox.backend import Sources
from execserver.sandbox.devices import NODES
from execserver.sandbox.policy import is_below
from execserver.sandbox.view import Bind, Mask, Mount, Symlink, Tmpfs, View

MAX_ARGUMENTS = 8900
"""Bubblewrap takes 9,000."""

_MFD_EXEC = 0x10
"""Linux 6.3: the file is to be executed. `vm.memfd_noexec` may forbid it."""

_F_SEAL_EXEC = 0x20
"""Linux 6.3: the owner cannot take the right to execute away, nor give it."""

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_ELF = b"\x7fELF"


class SandboxedCommand(msgspec.Struct, frozen=True):
    """The command as bubblewrap execs it."""

    arguments: Sequence[str]
    """The program, looked up in the `PATH` of `environment` when it is a bare name, and its arguments."""

    cwd: str
    environment: Mapping[str, str]
    new_session: bool = True
    """Whether bubblewrap starts it in a new session. A command that takes a terminal calls setsid itself, and
    a session leader cannot do that; without a pid namespace no process of bubblewrap lies in between.
    """

    dies_with_parent: bool = False
    """For fs workers. Commands outlive the server."""


def options(
    view: View,
    sources: Sources,
    *,
    root_user: bool,
    held: Mapping[str, int] | None = None,
    made: Collection[str] = (),
) -> list[str]:
    """The options that make the view.

    Args:
        view: the mounts of the sandbox.
        sources: files for masks, and device nodes.
        root_user: whether the daemon is uid 0.
        held: descriptors of writable mounts by path (`--bind-fd`, where bubblewrap has that).
        made: the view's mount points that are empty folders made by the daemon.
    """
    result = _base(view)
    if sources.devices is not None and view.base != "host":
        for name in NODES:
            result += ["--dev-bind", f"{sources.devices}/{name}", f"/dev/{name}"]
    hollow = []
    for mount in view.mounts:
        if mount.target in made:
            # A tmpfs, so that changes to it do not reach the host. It takes half the time of a bind mount.
            result += ["--perms", "0555", "--tmpfs", mount.target]
            continue
        result += _mount(mount, sources, held or {})
        if isinstance(mount, Tmpfs):
            hollow.append(mount.target)
    result += _namespaces(view, sources, root_user=root_user)
    # Deep ones first: no mount point can be made in a read-only mount.
    for target in reversed(hollow):
        result += ["--remount-ro", target]
    if view.base == "empty":
        result += ["--remount-ro", "/"]
    return result


def read_only(view: View, folders: Collection[str]) -> list[str]:
    """The options that make folders of the host read-only, where the view makes something of them writable.

    Without a pid namespace the files are not limited, and the command could undo it.
    """
    if not view.namespaces:
        return []
    writable = [mount.target for mount in view.mounts if isinstance(mount, Bind) and mount.writable]
    writable += ["/"] if view.base == "write" else []
    result: list[str] = []
    for folder in folders:
        if any(is_below(folder, target) or is_below(target, folder) for target in writable):
            result += ["--ro-bind", folder, folder]
    return result


def arguments(
    made: Sequence[str],
    inside: SandboxedCommand,
    seccomp: int,
    status: int,
    gate: tuple[int, int] | None = None,
) -> bytes:
    """Everything for `--args`: the options of the view and the command.

    Args:
        made: the result of `options`.
        inside: the command.
        seccomp: descriptor of the seccomp program.
        status: descriptor for the child's pid and, if setup succeeded, its exit code.
        gate: the ends of a pipe; the command begins once a byte is in it. Needs a pid namespace, whose first
            process holds the writing end: without that, the death of the server would let the command begin.

    Raises:
        ValueError: a NUL byte, or more arguments than bubblewrap takes.
    """
    result = [
        *(["--new-session"] if inside.new_session else []),
        *made,
        "--seccomp",
        str(seccomp),
        "--json-status-fd",
        str(status),
        "--chdir",
        inside.cwd,
    ]
    if inside.dies_with_parent:
        result.append("--die-with-parent")
    if gate is not None:
        result += ["--block-fd", str(gate[0]), "--sync-fd", str(gate[1])]
    for name, value in inside.environment.items():
        if not name or "=" in name:
            raise ValueError("illegal environment variable name")
        result += ["--setenv", name, value]
    count = len(result) + len(inside.arguments)
    if count > MAX_ARGUMENTS:
        raise ValueError(
            f"the sandbox needs {count} arguments and bubblewrap takes {MAX_ARGUMENTS}: "
            "fewer entries, matches of patterns, environment variables, or arguments of the command, which "
            f"has {len(inside.arguments)}"
        )
    if any("\0" in text for text in (*result, *inside.arguments)):
        raise ValueError("embedded null byte")
    return b"".join(os.fsencode(text) + b"\0" for text in result)


def memory_file(content: bytes) -> int:
    """A close-on-exec descriptor of a file in memory, positioned at its start.

    Raises:
        OSError: no descriptor or no memory is left.
    """
    fd = os.memfd_create("execserver", os.MFD_CLOEXEC)
    try:
        _write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


class SealedProgram:
    """A copy of a program in memory, which cannot be changed and has no path in the file system.

    `/proc/PID/exe` of a process that runs the copy leads to the copy, not to a file of the host. The copy
    lives as long as this object.

    Args:
        path: the program.

    Raises:
        OSError: the program cannot be read, or no copy can be made: ENOEXEC for a script, EACCES where the
            kernel executes no file in memory (`vm.memfd_noexec=2`).
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        self._fd = -1
        with open(path, "rb") as file:
            content = file.read()
        if not content.startswith(_ELF):
            # The kernel would run the script's interpreter, a file of the host.
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), path)
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            writable = os.memfd_create("bwrap", flags | _MFD_EXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            writable = os.memfd_create("bwrap", flags)
        try:
            _write(writable, content)
            os.fchmod(writable, 0o555)
            _seal(writable)
            # A file that is open for writing cannot be executed.
            self._fd = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(writable)

    def fileno(self) -> int:
        """The close-on-exec descriptor of the copy."""
        return self._fd

    @property
    def path(self) -> str:
        """The copy's path in this process, and in a child until its exec."""
        return f"/proc/self/fd/{self._fd}"

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _base(view: View) -> list[str]:
    match view.base:
        case "host":
            return ["--dev-bind", "/", "/"]
        case "write":
            return ["--bind", "/", "/", "--dev", "/dev"]
        case "read":
            return ["--ro-bind", "/", "/", "--dev", "/dev"]
        case "empty":
            return ["--perms", "0755", "--tmpfs", "/", "--dev", "/dev"]


def _mount(mount: Mount, sources: Sources, held: Mapping[str, int]) -> list[str]:
    match mount:
        case Bind(source, target, True, False) if source in held:
            return ["--bind-fd", str(held[source]), target]
        case Bind(source, target, writable, device):
            option = "--dev-bind" if device and writable else "--bind" if writable else "--ro-bind"
            return [option, source, target]
        case Mask(target, directory):
            return ["--ro-bind", sources.empty_folder if directory else sources.empty_file, target]
        case Tmpfs(target, mode):
            return ["--perms", f"{mode:04o}", "--tmpfs", target]
        case Symlink(target, text):
            return ["--symlink", text, target]


def _namespaces(view: View, sources: Sources, *, root_user: bool) -> list[str]:
    if not view.namespaces:
        # Files are not limited: root keeps its capabilities and sees the host's processes.
        return ["--cap-add", "ALL"] if root_user else ["--unshare-user", "--cap-drop", "ALL"]
    result = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--disable-userns"]
    if not view.network:
        result.append("--unshare-net")
    # Process 1 is bubblewrap. Its program was opened on the host, and /proc/1/exe would lead to that file,
    # past every read-only mount.
    result += ["--proc", "/proc", "--ro-bind", sources.empty_folder, "/proc/1"]
    if root_user:
        # To change a setting of the whole machine, the kernel requires only uid 0.
        result += ["--ro-bind", "/proc/sys", "/proc/sys"]
    return [*result, "--cap-drop", "ALL"]


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _seal(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | _F_SEAL_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
