"""Starts the process of a worker: an interpreter, perhaps in a sandbox, with the socket as descriptor 0."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from execserver.fault_points import reach
from execserver.fsworker.bundle import bundle
from execserver.sandbox.thread_limits import spawn_limited, tagged_spawn

_MAX_STDERR_BYTES = 4096

_DEFAULT_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCHLD,
)
"""Signals that the daemon ignores or handles. They would stay ignored in the worker."""


class WorkerProcess:
    """The process of a worker, or of the launcher of its sandbox.

    Args:
        pid: its process id.
        pidfd: readable when it has ended; then call `release`.
        connection: our end of the socket, non-blocking.
        stderr: the file that receives its standard error.
        on_release: called at the end of `release`.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        connection: socket.socket,
        stderr: int,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.socket = connection
        self._stderr = stderr
        self.short_lived = False
        """Whether to end it soon: its sandbox needs folders that are visible in the user's workspace."""
        self._on_release = on_release
        self._released = False

    def kill(self) -> None:
        """Send SIGKILL to it and the processes that it has started; no error if it has ended."""
        if not self._released:
            kill_program(self.pid, self.pidfd)

    def stderr_text(self) -> str:
        """The end of its standard error."""
        if self._released:
            return ""
        size = os.fstat(self._stderr).st_size
        data = os.pread(self._stderr, _MAX_STDERR_BYTES, max(0, size - _MAX_STDERR_BYTES))
        return data.decode("utf-8", "replace").strip()

    def release(self) -> None:
        """Reap the process, which has ended, and close its descriptors (idempotent). Never raises."""
        if self._released:
            return
        self._released = True
        kill_program(self.pid, self.pidfd)
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        self.socket.close()
        os.close(self.pidfd)
        os.close(self._stderr)
        self._on_release()


def spawn(
    argv: Sequence[str],
    *,
    program: str | None = None,
    environment: Mapping[str, str] | None = None,
    inherit: Sequence[int] = (),
    tag: int | None = None,
    limit: Callable[[], None] | None = None,
    on_release: Callable[[], None] = lambda: None,
    code: bytes | None = None,
) -> WorkerProcess:
    """Start a worker, and send it its code.

    Args:
        argv: the launcher of the sandbox with its arguments, if any, and then `interpreter.command()`.
        program: the file to be run, if it is not the first of `argv`.
        environment: the launcher's variables; the worker needs none.
        inherit: descriptors for the launcher, which keep their numbers. They stay open here.
        tag: the ownership tag of the process (`execserver.descendants`); None inherits the daemon's.
        limit: sets limits in the thread that starts the process (`spawn_limited`).
        on_release: called when the process was reaped; not if this function raises.
        code: the code of another program (`bundle.pack`); None for that of an fs worker.

    Raises:
        OSError: the program is missing, or the system is out of something.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    stderr = -1
    try:
        ours.setblocking(False)
        stderr = os.memfd_create("fsworker")
        # The kernel's buffer holds all of it: there is no need to wait until the worker reads it.
        _send_whole(ours, bundle() if code is None else code)
        # Opened here: the limits of the thread may forbid it.
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            standard = theirs.fileno(), null, stderr
            with tagged_spawn(tag):
                pid = spawn_program(program or argv[0], argv, environment or {}, standard, inherit, limit)
        finally:
            os.close(null)
        return WorkerProcess(pid, open_pidfd(pid), ours, stderr, on_release)
    except BaseException:
        ours.close()
        if stderr >= 0:
            os.close(stderr)
        raise
    finally:
        theirs.close()


def spawn_program(
    program: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
    standard: tuple[int, int, int],
    inherit: Sequence[int] = (),
    limit: Callable[[], None] | None = None,
) -> int:
    """Start a process in a session of its own; its process id.

    Args:
        program: the file to be run.
        argv: its arguments.
        environment: its variables.
        standard: its descriptors 0, 1 and 2.
        inherit: further descriptors, which keep their numbers.
        limit: sets limits in the thread that starts it.

    Raises:
        OSError: the program is missing, or the system is out of something.
    """
    start = partial(
        os.posix_spawn,
        program,
        list(argv),
        environment,
        setsid=True,
        setsigdef=_DEFAULT_SIGNALS,
        setsigmask=[],
        file_actions=[
            *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(standard)),
            *((os.POSIX_SPAWN_DUP2, fd, fd) for fd in inherit),
        ],
    )
    pid = start() if limit is None else spawn_limited(limit, start)
    reach("program-spawned")
    return pid


def _send_whole(connection: socket.socket, data: bytes) -> None:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 4 * len(data):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(data))
    if connection.send(data) != len(data):
        raise OSError("the socket's buffer has no room for the fs worker's code: raise net.core.wmem_max")


def kill_program(pid: int, pidfd: int) -> None:
    """Kill the process of `spawn_program` and its process group; no error if it has ended.

    Bubblewrap's inner process asks to end with the outer one only after its preparations: if only the outer
    one were killed before that, the inner one would wait forever, or run the command.

    Args:
        pid: its process id. If it is reaped, the number may be that of another process, and is not used.
        pidfd: a descriptor of it.
    """
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    with suppress(ChildProcessError, ProcessLookupError, PermissionError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it is reaped
        os.killpg(pid, signal.SIGKILL)


def open_pidfd(pid: int) -> int:
    """Open a descriptor of a child; if that fails, kill and reap the child.

    Raises:
        OSError: the system is out of descriptors.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        # Out of descriptors. A child that cannot be watched must not run.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
