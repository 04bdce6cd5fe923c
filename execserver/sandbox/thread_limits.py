"""Start a program from a thread that took limits on, instead of from a helper program or `preexec_fn`.

`no_new_privs`, capabilities, Landlock domains and seccomp filters belong to a thread. A child on the
vfork path inherits those of the thread that called `posix_spawn`. So a fresh thread limits itself, spawns
and ends; the daemon's other threads never had the limits, and nothing runs between fork and exec.

Rules kept in this file:

1. No limit can be taken back: what limits runs in `spawn_limited` only (or in a process made for it).
2. The caller waits. What the whole process shares (the working directory, resource limits) may be set
   around the call as around any spawn; what a limit may forbid (opening a terminal) is done before it.

Not for programs that ask for a signal at their parent's death (`PR_SET_PDEATHSIG`, `bwrap
--die-with-parent`): the kernel takes the *thread* for the parent, and it is gone at once.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# include/uapi/linux/prctl.h, seccomp.h, capability.h
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x2008_0522

_INSTRUCTION_SIZE = 8  # struct sock_filter


class _SocketFilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


# effective, permitted, inheritable; twice, for 64 bits
_NoCapabilities = ctypes.c_uint32 * 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Attempt(Generic[T]):
    """What the thread does, and what came of it."""

    def __init__(self, limit: Callable[[], None], spawn: Callable[[], T]) -> None:
        self._limit = limit
        self._spawn = spawn
        self._results: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._limit()
            self._results.append(self._spawn())
        except BaseException as error:  # raised again, in the caller
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]


def spawn_limited(limit: Callable[[], None], spawn: Callable[[], T]) -> T:
    """Run `limit` and then `spawn` in a fresh thread, and wait for it.

    Blocks for as long as they take (a spawn: below a millisecond).

    Args:
        limit: takes the limits on, for the calling thread. If it raises, `spawn` is not called.
        spawn: starts the program and returns what tells it. It can do only what the limits leave.

    Returns:
        What `spawn` returned.

    Raises:
        RuntimeError: no thread can be started.
        BaseException: whatever `limit` or `spawn` raised.
    """
    attempt = _Attempt(limit, spawn)
    thread = threading.Thread(target=attempt.run, name="limited spawn")
    # A collection in the thread would run finalizers of the whole daemon under the limits.
    collects = gc.isenabled()
    gc.disable()
    try:
        thread.start()
        thread.join()
    finally:
        if collects:
            gc.enable()
    return attempt.result()


def deny_new_privileges() -> None:
    """Make set-uid bits and file capabilities of no effect for the calling thread and what it starts.

    Raises:
        OSError: the kernel refused.
    """
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "set no_new_privs")


def drop_capabilities() -> None:
    """Give up all capabilities of the calling thread. After `deny_new_privileges` no program that it starts
    has any either, also as uid 0.

    Raises:
        OSError: the kernel refused.
    """
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(_NoCapabilities())), "drop the capabilities")


def install_filter(program: bytes) -> None:
    """Put a seccomp filter on the calling thread. It needs `deny_new_privileges` first.

    Args:
        program: of `seccomp.program`.

    Raises:
        OSError: the kernel has no seccomp filters or refused this one.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    described = _SocketFilterProgram(len(program) // _INSTRUCTION_SIZE, ctypes.addressof(instructions))
    _checked(
        _libc.prctl(
            _PR_SET_SECCOMP,
            ctypes.c_ulong(_SECCOMP_MODE_FILTER),
            ctypes.byref(described),
            *[ctypes.c_ulong(0)] * 2,
        ),
        "install a seccomp filter",
    )


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")
