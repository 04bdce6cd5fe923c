"""Start a program whose first instruction waits until the caller has done something to its process.

`posix_spawn` opens files in the child before the exec. The first one here is a named pipe (`mkfifo`) without
a writer: the open waits for one. Meanwhile the child is a process with a pid, which can be moved into a
control group; a writer then lets it exec. No program of ours runs in the child, so its arguments, environment
and descriptors are exactly those of any other spawn, and an exec that fails is reported as usual.

The kernel suspends the thread that calls `posix_spawn` until the exec, and `os.posix_spawn` would suspend all
threads with it. So the C library's function is called from a thread of its own, without the interpreter lock.

Until its exec the child has copies of all descriptors of the server, and waits for the server alone. So it
must end with the server: the kernel kills it when the writing end of a pipe is closed, which only the server
has.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

FileAction = tuple[int | str, ...]
"""As for `os.posix_spawn`."""

# include/uapi and spawn.h; the same in glibc and musl
_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80

_OBJECT_BYTES = 1024
"""Room for a `posix_spawnattr_t` or a `posix_spawn_file_actions_t`: 336 and 80 bytes in glibc."""

_POLL_SECONDS = 0.00005
_MOST_ATTEMPTS = 1000

_libc = ctypes.CDLL(None)


class GatedSpawn:
    """One spawn, in two steps: `start` and `finish`."""

    def __init__(self) -> None:
        self.reaped = False
        """Whether the child has ended before its exec, and is reaped."""
        self._gate: int | None = None
        self._lifeline: tuple[int, int] | None = None
        """The pipe whose end kills the child."""
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._limit: Callable[[], None] | None = None
        self._outcome: int | BaseException | None = None
        """The error number, or 0."""

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        actions: Iterable[FileAction],
        signals: Iterable[int],
        limit: Callable[[str], None] | None = None,
    ) -> int:
        """Fork, in a new session; the child waits. What the child inherits may change as soon as this
        returns.

        Args:
            program: its path.
            arguments: its `argv`.
            environment: its variables.
            actions: for its descriptors.
            signals: those with the default action; none is blocked.
            limit: limits the calling thread and its children (`sandbox/thread_limits.py`); they open the file
                of which it gets the path.

        Returns:
            Its pid.

        Raises:
            OSError: no process or no descriptor is available.
            ValueError: a NUL byte, or an invalid variable name.
        """
        argv, envp = _strings(arguments), _strings(_assignments(environment))
        path = _encoded(program)
        gate = self._gate = _make_gate()
        try:
            lifeline = self._lifeline = os.pipe()
        except OSError:
            self._close()
            raise
        self._limit = None if limit is None else partial(limit, _path(gate))
        files, attributes = (ctypes.create_string_buffer(_OBJECT_BYTES) for _ in range(2))
        own = [(os.POSIX_SPAWN_CLOSE, lifeline[1]), (os.POSIX_SPAWN_OPEN, 0, _path(gate), os.O_RDONLY, 0)]
        _make_actions(files, [*own, *actions])
        _make_attributes(attributes, signals)
        pid = ctypes.c_int()

        def spawn() -> int:
            error: int = _libc.posix_spawn(ctypes.byref(pid), path, files, attributes, argv, envp)
            _libc.posix_spawn_file_actions_destroy(files)
            _libc.posix_spawnattr_destroy(attributes)
            return error

        self._thread = threading.Thread(target=self._run, args=(spawn,), name="gated spawn", daemon=True)
        self._pid = self._begin(self._thread, lifeline[0])
        return self._pid

    def finish(self, enter: Callable[[int], None]) -> None:
        """Call `enter` with the pid, then let the child exec; blocking. If it raises, the child is killed.

        Raises:
            OSError: raised by `enter`, or the program cannot be executed.
        """
        assert self._thread is not None
        assert self._gate is not None
        try:
            try:
                enter(self._pid)
            except BaseException:
                os.kill(self._pid, signal.SIGKILL)  # nothing has reaped it yet
                self._thread.join()
                raise
            # Open until the exec: the child may not have got to the gate yet.
            writer = os.open(_path(self._gate), os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self._thread.join()
            finally:
                os.close(writer)
        finally:
            self._close()
        self._raise_outcome()

    def _begin(self, thread: threading.Thread, lifeline: int) -> int:
        """Start the thread, and bind its child to the lifeline; the pid of the child."""
        if self._limit is not None:
            _collector.pause()
        try:
            thread.start()
            pid = self._wait_for_child(thread)
            _kill_at_end_of(lifeline, pid)
        except BaseException:
            self._end_lifeline()
            if not _kill_child(thread):
                self._gate = None  # open for good, so that the child never begins
            self._close()
            raise
        return pid

    def _wait_for_child(self, thread: threading.Thread) -> int:
        """The pid of the child, once it is forked."""
        while True:
            ended = not thread.is_alive()
            if pid := _child_of(thread):
                return pid
            if ended:
                self._raise_outcome()
                raise ChildProcessError("the child ended before it could be moved into its control group")
            time.sleep(_POLL_SECONDS)

    def _run(self, spawn: Callable[[], int]) -> None:
        try:
            if self._limit is not None:
                self._limit()
            self._outcome = spawn()
        except BaseException as error:  # raised again, in the caller
            self._outcome = error

    def _raise_outcome(self) -> None:
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            self.reaped = True
            raise outcome
        if outcome:
            self.reaped = True  # by the C library
            raise OSError(outcome, os.strerror(outcome))

    def _close(self) -> None:
        if self._limit is not None:
            _collector.resume()
        self._end_lifeline()
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None

    def _end_lifeline(self) -> None:
        if self._lifeline is not None:
            # First: another child may have a copy of the reading end, so that closing it would not do.
            fcntl.fcntl(self._lifeline[0], fcntl.F_SETOWN, 0)
            for end in self._lifeline:
                os.close(end)
            self._lifeline = None


class _Collector:
    """Pauses garbage collection: in a thread that has limited itself, it would run finalizers of the whole
    daemon under the limits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._collects = False

    def pause(self) -> None:
        with self._lock:
            if not self._pauses:
                self._collects = gc.isenabled()
                gc.disable()
            self._pauses += 1

    def resume(self) -> None:
        with self._lock:
            self._pauses -= 1
            if not self._pauses and self._collects:
                gc.enable()


_collector = _Collector()


def _child_of(thread: threading.Thread) -> int | None:
    """The pid of the child of a thread, if it has one.

    Raises:
        OSError: no descriptor is available.
    """
    try:
        with open(f"/proc/self/task/{thread.native_id}/children", "rb") as file:
            pids = file.read().split()
    except FileNotFoundError:
        return None
    return int(pids[0]) if pids else None


def _kill_child(thread: threading.Thread) -> bool:
    """Kill and reap the child that waits for its gate, if the thread makes one.

    Returns:
        Whether the thread has ended; False if no descriptor is free to find its child.
    """
    attempts = _MOST_ATTEMPTS
    while thread.is_alive() and attempts:
        try:
            if pid := _child_of(thread):
                os.kill(pid, signal.SIGKILL)
                thread.join()
                os.waitpid(pid, 0)
        except OSError:
            attempts -= 1
        time.sleep(_POLL_SECONDS)
    return not thread.is_alive()


def _kill_at_end_of(pipe: int, pid: int) -> None:
    """Have the kernel kill a process when the last writing end of a pipe is closed.

    Args:
        pipe: its reading end, of which the process has a copy.
        pid: the process, which is not reaped.
    """
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, pid)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _make_gate() -> int:
    """A descriptor of a named pipe that has no writer, and no name any more."""
    # An unnamed pipe would not do: it can be opened without a writer.
    folder = tempfile.mkdtemp(prefix="execserver-")
    path = f"{folder}/gate"
    try:
        os.mkfifo(path, 0o600)
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.unlink(path)
    finally:
        os.rmdir(folder)


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _make_actions(files: ctypes.Array[ctypes.c_char], actions: Iterable[FileAction]) -> None:
    _libc.posix_spawn_file_actions_init(files)
    for kind, *rest in actions:
        if kind == os.POSIX_SPAWN_OPEN:
            fd, path, flags, mode = rest
            error = _libc.posix_spawn_file_actions_addopen(
                files, fd, _encoded(str(path)), flags, ctypes.c_uint(int(mode))
            )
        elif kind == os.POSIX_SPAWN_CLOSE:
            error = _libc.posix_spawn_file_actions_addclose(files, *rest)
        else:
            error = _libc.posix_spawn_file_actions_adddup2(files, *rest)
        if error:
            raise OSError(error, os.strerror(error))


def _make_attributes(attributes: ctypes.Array[ctypes.c_char], signals: Iterable[int]) -> None:
    _libc.posix_spawnattr_init(attributes)
    chosen = ctypes.create_string_buffer(_OBJECT_BYTES)
    _libc.sigemptyset(chosen)
    _libc.posix_spawnattr_setsigmask(attributes, chosen)
    for number in signals:
        _libc.sigaddset(chosen, int(number))
    _libc.posix_spawnattr_setsigdefault(attributes, chosen)
    _libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID))


def _assignments(environment: Mapping[str, str]) -> list[str]:
    if any(not name or "=" in name for name in environment):
        raise ValueError("illegal environment variable name")
    return [f"{name}={value}" for name, value in environment.items()]


def _strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [_encoded(text) for text in texts]
    return (ctypes.c_char_p * (len(encoded) + 1))(*encoded, None)


def _encoded(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("embedded null byte")
    return os.fsencode(text)
