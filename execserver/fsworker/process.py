"""Starting a worker: a command that ends up in its interpreter, with the socket as descriptor 0."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from execserver import descendants
from execserver.fsworker.bundle import bundle
from execserver.sandbox.thread_limits import spawn_limited

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
"""What the daemon ignores or handles would stay ignored in the worker."""


class WorkerProcess:
    """A worker that was started, or the program that sets its sandbox up.

    `socket` is our end, non-blocking; `pidfd` becomes readable when the process has ended, and then
    `release` is to be called. Both are closed by `release`.
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
        """Whether it should not be kept long: while it lives there are folders in the workspace that its
        sandbox needs and that nobody wants to see."""
        self._on_release = on_release
        self._released = False

    def kill(self) -> None:
        """SIGKILL it and what it has started; no error if it has ended."""
        if not self._released:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self._kill_group()

    def _kill_group(self) -> None:
        """Kill what the process has started, if it is not reaped: until then the group's number is ours.

        Bubblewrap's inner process waits for the outer one before it has itself end with it: if the outer one
        is killed just then, it would wait for ever.
        """
        with suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it is
            os.killpg(self.pid, signal.SIGKILL)

    def stderr_text(self) -> str:
        """What the process wrote to its standard error, the end of it; empty when nothing."""
        if self._released:
            return ""
        size = os.fstat(self._stderr).st_size
        data = os.pread(self._stderr, _MAX_STDERR_BYTES, max(0, size - _MAX_STDERR_BYTES))
        return data.decode("utf-8", "replace").strip()

    def release(self) -> None:
        """Reap the process, which has ended, and close what belongs to it; once is enough."""
        if self._released:
            return
        self._released = True
        self._kill_group()
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
) -> WorkerProcess:
    """Start a worker; its code is sent to it at once.

    Args:
        argv: the launcher with its arguments and then `interpreter.command()`, or that alone.
        program: the file to be run, if it is another than the first of `argv`.
        environment: the launcher's variables; the worker needs none.
        inherit: descriptors that the launcher is to have too, by the same numbers. They stay open here.
        tag: the membership tag that it is to bear (`execserver.descendants`); None leaves ours to it.
        limit: takes limits on for the thread that starts it (`spawn_limited`).
        on_release: called when the process has ended and was reaped; not when this raises.

    Raises:
        OSError: the program is missing, or the system is out of something.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    stderr = null = -1
    try:
        ours.setblocking(False)
        # Opened here: the limits of a thread may not let it.
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        stderr = os.memfd_create("fsworker")
        # The kernel's buffer holds it all: nobody has to wait for the worker to read it.
        _send_whole(ours, bundle())
        if tag is not None:
            descendants.set_own_tag(tag)
        start = partial(
            os.posix_spawn,
            program or argv[0],
            list(argv),
            environment or {},
            setsid=True,
            setsigdef=_DEFAULT_SIGNALS,
            setsigmask=[],
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
                *((os.POSIX_SPAWN_DUP2, number, number) for number in inherit),
            ],
        )
        pid = start() if limit is None else spawn_limited(limit, start)
        return WorkerProcess(pid, _open_pidfd(pid), ours, stderr, on_release)
    except BaseException:
        ours.close()
        if stderr >= 0:
            os.close(stderr)
        raise
    finally:
        theirs.close()
        if null >= 0:
            os.close(null)


def _send_whole(connection: socket.socket, data: bytes) -> None:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 4 * len(data):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(data))
    if connection.send(data) != len(data):
        raise OSError("the socket's buffer has no room for the fs worker's code: raise net.core.wmem_max")


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # Out of descriptors: a child that cannot be watched must not run.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
