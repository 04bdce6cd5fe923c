"""Start a child on the vfork path, in a session of its own, with exactly the named descriptors.

The loop's thread changes the directory and calls `os.posix_spawn`: no Python runs between fork and exec,
the parent's heap is not copied, and no other thread of the daemon uses a relative path. All descriptors of
the daemon are close-on-exec.

The ownership tag (`execserver.descendants`) and the descriptor limit are set on the daemon itself just before
the spawn, so that the child has them from its first instruction.
"""

from __future__ import annotations

import os
import pty
import resource
import signal
import termios
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from execserver.fault_points import reach
from execserver.launch_spec import LaunchSpec
from execserver.sandbox import thread_limits

# A signal that the daemon ignores would stay ignored in the child.
_DEFAULT_SIGNALS = [
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
]


class Spawned(msgspec.Struct):
    """A running child and our ends of its descriptors, all non-blocking."""

    pid: int
    pidfd: int
    stdin: int | None
    outputs: list[int]
    """`[stdout, stderr]`, or `[master]` of a terminal, which takes the input, too (then `stdin` is None)."""
    relay: tuple[int, int, int, int] | None = None
    """Of a terminal: the ends (read, write) of the inner pipes for its output and its input. `splice` moves
    nothing between a terminal and a file."""
    status: int | None = None
    """The file for the report of a sandbox's launcher."""
    gate: int | None = None
    """For `open_gate`."""

    def kept(self) -> list[int]:
        """The descriptors in the order in which the supervisor keeps them, the pidfd first."""
        ends = [*self.outputs, *(self.relay or ())]
        return [self.pidfd, *ends] if self.stdin is None else [self.pidfd, *ends, self.stdin]

    def close(self) -> None:
        """Close all descriptors."""
        for fd in (*self.kept(), self.status, self.gate):
            if fd is not None:
                os.close(fd)

    @classmethod
    def from_kept(cls, pid: int, descriptors: Sequence[int], *, tty: bool) -> Spawned:
        """Restore the result of `kept`.

        Raises:
            ValueError: descriptors are missing.
        """
        pidfd, *ends = descriptors
        if tty:
            master, read, write, in_read, in_write = ends
            return cls(pid, pidfd, None, [master], (read, write, in_read, in_write))
        stdout, stderr, *stdin = ends
        return cls(pid, pidfd, stdin[0] if stdin else None, [stdout, stderr])


class Spawner:
    """Spawns children.

    Args:
        home: descriptor of the daemon's own working directory.
        null: `/dev/null`, open for reading and writing.
        nofile: the soft descriptor limit of children; None for the daemon's.
    """

    def __init__(self, home: int, null: int, nofile: int | None) -> None:
        self._home = home
        self._null = null
        self._nofile = nofile
        self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def spawn(self, spec: LaunchSpec, tag: int | None, undo: Callable[[int], None]) -> Spawned:
        """Start the child.

        Args:
            spec: the program. Its descriptors are closed, but for the status file and the gate.
            tag: the ownership tag of the child and its descendants; None for none.
            undo: called with the pid of a child that runs and cannot be watched: kills it and its
                descendants, and reaps it.

        Raises:
            OSError: the program or the directory is missing, or the system is out of a resource.
            ValueError: a NUL byte, or an invalid variable name.
        """
        opened = [fd for fd in (spec.status, spec.gate) if fd is not None]
        try:
            spawn = self._spawn_terminal if spec.tty else self._spawn_pipes
            spawned = spawn(spec, tag, undo, opened)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        finally:
            for fd in spec.passed:
                os.close(fd)
        spawned.status, spawned.gate = spec.status, spec.gate
        return spawned

    def _spawn_pipes(
        self, spec: LaunchSpec, tag: int | None, undo: Callable[[int], None], opened: list[int]
    ) -> Spawned:
        out_read, out_write = _pipe(opened)
        err_read, err_write = _pipe(opened)
        if spec.pipe_stdin:
            child_stdin, stdin = _pipe(opened)
            os.set_blocking(stdin, False)
        else:
            child_stdin, stdin = self._null, None
        first: tuple[int | str, ...] = (os.POSIX_SPAWN_DUP2, child_stdin, 0)
        if stdin is None and spec.null is not None:
            first = (os.POSIX_SPAWN_OPEN, 0, spec.null, os.O_RDWR, 0)
        pid = self._run(
            spec,
            tag,
            [first, (os.POSIX_SPAWN_DUP2, out_write, 1), (os.POSIX_SPAWN_DUP2, err_write, 2)],
        )
        theirs = (out_write, err_write) if stdin is None else (out_write, err_write, child_stdin)
        pidfd = self._open_pidfd(pid, theirs, undo, opened)
        os.set_blocking(out_read, False)
        os.set_blocking(err_read, False)
        return Spawned(pid, pidfd, stdin, [out_read, err_read])

    def _spawn_terminal(
        self, spec: LaunchSpec, tag: int | None, undo: Callable[[int], None], opened: list[int]
    ) -> Spawned:
        master, slave = pty.openpty()
        opened += (master, slave)
        relay = (*_pipe(opened), *_pipe(opened))
        termios.tcsetwinsize(slave, spec.size)
        terminal = os.ttyname(slave)
        # A session leader without a terminal gets the first one that it opens, unless O_NOCTTY is set.
        flags = os.O_RDWR | (os.O_NOCTTY if spec.takes_terminal else 0)
        pid = self._run(
            spec,
            tag,
            [
                (os.POSIX_SPAWN_OPEN, 0, terminal, flags, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ],
            terminal,
        )
        pidfd = self._open_pidfd(pid, (slave,), undo, opened)
        for fd in (master, *relay):
            os.set_blocking(fd, False)
        return Spawned(pid, pidfd, None, [master], relay)

    def _run(
        self,
        spec: LaunchSpec,
        tag: int | None,
        file_actions: Sequence[tuple[int | str, ...]],
        terminal: str | None = None,
    ) -> int:
        # A dup2 onto itself passes a descriptor under its own number.
        passed = [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in (*spec.passed, *spec.shared)]

        actions = [*file_actions, *passed]

        def spawn() -> int:
            return os.posix_spawn(
                spec.program,
                spec.arguments,
                spec.environment,
                setsid=True,
                setsigdef=_DEFAULT_SIGNALS,
                setsigmask=[],
                file_actions=actions,
            )

        os.chdir(spec.cwd)
        try:
            with thread_limits.tagged_spawn(tag):
                self._limit_descriptors(self._nofile)
                limit = None if spec.limit is None else partial(spec.limit, terminal)
                reach("before-spawn")
                if spec.spawn is not None:
                    return spec.spawn(
                        spec.program, spec.arguments, spec.environment, actions, _DEFAULT_SIGNALS, limit
                    )
                return spawn() if limit is None else thread_limits.spawn_limited(limit, spawn)
        finally:
            self._limit_descriptors(None)
            os.fchdir(self._home)

    def _open_pidfd(
        self, pid: int, theirs: Sequence[int], undo: Callable[[int], None], opened: list[int]
    ) -> int:
        """Close the child's ends and open its pidfd. Without one the child is ended."""
        # The ends first: then a table that was just big enough for them has room for the pidfd, and the child
        # need not be killed.
        for fd in theirs:
            opened.remove(fd)
            os.close(fd)
        reach("before-pidfd")
        try:
            return os.pidfd_open(pid)
        except OSError:
            # No descriptor: a child that cannot be watched must not run.
            undo(pid)
            raise

    def _limit_descriptors(self, soft: int | None) -> None:
        """Set our own soft limit for the moment of a spawn, so that the child has it from its first
        instruction. The interpreter lock is held meanwhile: only a thread inside the kernel could fail to get
        a descriptor above the limit.
        """
        if self._nofile is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._hard if soft is None else soft, self._hard))


def open_gate(gate: int) -> None:
    """Let a sandboxed command begin that waits for its start to be recorded, and close the descriptor."""
    try:
        os.write(gate, b"\0")
    except BrokenPipeError:
        pass  # it has begun, or its sandbox has ended
    finally:
        os.close(gate)


def _pipe(opened: list[int]) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    opened += ends
    return ends
