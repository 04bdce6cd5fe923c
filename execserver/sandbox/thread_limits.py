"""Starts a program from a thread that limited itself, instead of by a helper program or `preexec_fn`.

`no_new_privs`, capabilities, Landlock domains and seccomp filters belong to a thread. A child on the vfork
path inherits those of the thread that called `posix_spawn`. So a new thread limits itself, spawns and ends.
Other threads of the daemon are not limited, and no Python code runs between fork and exec.

Rules of this module:

1. Limits cannot be removed, so functions that set them run only in `spawn_limited` (or in a process made for
   it).
2. The caller waits. Attributes of the whole process (the working directory, resource limits) may be set
   around the call as around any spawn; calls that a limit may forbid (opening a terminal) come before it.

Not for programs that want a signal when their parent dies (`PR_SET_PDEATHSIG`, `bwrap --die-with-parent`):
for the kernel the *thread* is the parent, and it ends at once.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from execserver import descendants

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
    """The work of the thread, and its result."""

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


_tagged_spawn = threading.Lock()


@contextmanager
def tagged_spawn(tag: int | None) -> Iterator[None]:
    """Have this ownership tag (`execserver.descendants`) for a spawn, and the service's own after it.

    So the child has it from its first instruction: a server that dies just after the spawn leaves no process
    that the next one cannot find.

    Args:
        tag: None where there are no tags, and for a program of the server itself that a thread starts: with
            the tag of the process that the loop's thread starts at that moment it would end with that.
    """
    with _tagged_spawn:
        if tag is None:
            yield
            return
        descendants.set_own_tag(tag)
        try:
            yield
        finally:
            descendants.set_own_tag(descendants.service_tag(tag))


def spawn_limited(limit: Callable[[], None], spawn: Callable[[], T]) -> T:
    """Run `limit` and then `spawn` in a new thread, and wait for it.

    Blocks until both are done (a spawn takes less than a millisecond).

    Args:
        limit: limits the calling thread. If it raises, `spawn` is not called.
        spawn: starts the program, within the limits.

    Returns:
        The result of `spawn`.

    Raises:
        RuntimeError: no thread can be started.
        BaseException: raised by `limit` or `spawn`.
    """
    attempt = _Attempt(limit, spawn)
    thread = threading.Thread(target=attempt.run, name="limited spawn")
    # A garbage collection in the thread would run finalizers of the whole daemon under the limits.
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
    """Disable set-uid bits and file capabilities for the calling thread and its children.

    Raises:
        OSError: the kernel refused.
    """
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "set no_new_privs")


def drop_capabilities() -> None:
    """Give up all capabilities of the calling thread.

    After `deny_new_privileges` its children have none either, also as uid 0.

    Raises:
        OSError: the kernel refused.
    """
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(_NoCapabilities())), "drop the capabilities")


def install_filter(program: bytes) -> None:
    """Install a seccomp filter for the calling thread, after `deny_new_privileges`.

    Args:
        program: the result of `seccomp.program`.

    Raises:
        OSError: the kernel has no seccomp filters, or refused this one.
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
