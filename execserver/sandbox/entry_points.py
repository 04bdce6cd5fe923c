"""Backends of other packages, from entry points.

Such a backend is code in the daemon, with the daemon's rights. Rules of this module:

1. An entry point is loaded only if the setting `sandbox_backend` names it.
2. A method that raises is an error of that call. One that hangs is left alone in its thread, and the backend
   is not used any more until the daemon is started again.
3. A backend's files lie in a folder for each sandbox. The launcher holds its lock, so that the next daemon
   removes the folders of sandboxes that have ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from msgspec.structs import replace

from execserver.launch_spec import LaunchSpec
from execserver.private_folder import leads_to
from execserver.sandbox.backend import ENTRY_POINTS, BackendError, Inspection, Sandbox, SandboxBackend
from execserver.sandbox.view import View

T = TypeVar("T")

CALL_SECONDS = 5.0
"""How long a method may take. `wrap` takes a millisecond."""

_PREFIX = "sandbox-"


def load(name: str) -> SandboxBackend:
    """Load a backend. May block.

    Raises:
        BackendError: no package or several have it, it cannot be loaded, or its object lacks a method.
    """
    from importlib.metadata import entry_points  # slow to load, and rarely needed

    found = [*entry_points(group=ENTRY_POINTS, name=name)]
    if len(found) != 1:
        known = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})
        packages = sorted(entry.dist.name for entry in found if entry.dist is not None)
        installed = (
            f"installed are: {', '.join(known)}" if known else "no package with a backend is installed"
        )
        problem = f"several packages have it: {', '.join(packages)}" if found else installed
        own = "" if found else "; without a package: auto, bubblewrap, landlock"
        raise BackendError(f"the setting sandbox_backend names {name!r}, and {problem}{own}")
    guarded = GuardedBackend(name, lambda: found[0].load()())
    guarded.start()
    return guarded


class GuardedBackend(SandboxBackend):
    """A backend from an entry point, whose calls end in time and raise only known errors.

    Args:
        name: its name.
        make: makes the object of the package.
        timeout: seconds for each call.
    """

    def __init__(
        self, name: str, make: Callable[[], SandboxBackend], *, timeout: float = CALL_SECONDS
    ) -> None:
        self._name = name
        self._make = make
        self.timeout = timeout
        self._hung: str | None = None
        self.namespaces = False

    def start(self) -> None:
        """Make the object.

        Raises:
            BackendError: it cannot be made, or lacks a method.
        """
        self._backend = self._call("its constructor", self._make)
        for method in ("inspect", "unstatable", "wrap"):
            if not callable(getattr(self._backend, method, None)):
                raise BackendError(f"the sandbox backend {self._name} has no method {method}")
        self.namespaces = bool(self._call("namespaces", lambda: self._backend.namespaces))

    def inspect(self) -> Inspection:
        """See `SandboxBackend`.

        Raises:
            BackendError: see the module.
        """
        return self._checked("inspect", Inspection, self._call("inspect", self._backend.inspect))

    def unstatable(self, view: View) -> str | None:
        """See `SandboxBackend`.

        Raises:
            BackendError: see the module.
        """
        reason = self._call("unstatable", lambda: self._backend.unstatable(view))
        return None if reason is None else self._checked("unstatable", str, reason)

    def wrap(self, command: LaunchSpec, sandbox: Sandbox) -> LaunchSpec:
        """See `SandboxBackend`.

        Raises:
            BackendError: see the module.
        """
        made = self._call("wrap", lambda: self._backend.wrap(command, sandbox), close_launch)
        launch = self._checked("wrap", LaunchSpec, made)
        if self.namespaces and launch.status is None:
            close_launch(launch)
            raise BackendError(f"the sandbox backend {self._name} returned a launch without a status file")
        return replace(launch, tty=command.tty, pipe_stdin=command.pipe_stdin, size=command.size)

    def _checked(self, what: str, kind: type[T], value: object) -> T:
        if not isinstance(value, kind):
            raise BackendError(
                f"the sandbox backend {self._name} returned {type(value).__name__} from {what}, not "
                f"{kind.__name__}"
            )
        return value

    def _call(self, what: str, function: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        if self._hung is not None:
            raise BackendError(self._hung)
        call = _Call(function, undo)
        threading.Thread(target=call.run, name=f"sandbox backend {self._name}", daemon=True).start()
        if not call.wait(self.timeout):
            self._hung = (
                f"the sandbox backend {self._name} hung in {what} for {self.timeout:g} s; it is not used "
                "until the daemon is started again"
            )
            raise BackendError(self._hung)
        if isinstance(call.error, OSError | ValueError) and what == "wrap":
            raise call.error
        if call.error is not None:
            raised = f"{type(call.error).__name__}: {call.error}"
            raise BackendError(f"the sandbox backend {self._name} raised in {what}: {raised}")
        return call.results[0]


class _Call(Generic[T]):
    """A call in a thread of its own, which may be abandoned."""

    def __init__(self, function: Callable[[], T], undo: Callable[[T], None] | None) -> None:
        self._function = function
        self._undo = undo
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._abandoned = False
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            result = self._function()
        except BaseException as error:  # raised again, in the caller
            self.error = error
        else:
            with self._lock:
                self.results.append(result)
                if self._abandoned and self._undo is not None:
                    self._undo(result)
        self._ended.set()

    def wait(self, timeout: float) -> bool:
        """Whether it has ended in time; if not, a later result is undone."""
        if self._ended.wait(timeout):
            return True
        with self._lock:
            self._abandoned = not self.results
        return not self._abandoned


def close_launch(launch: LaunchSpec) -> None:
    """Close the descriptors of a launch that is not spawned."""
    for fd in (*launch.passed, launch.status, launch.gate):
        if fd is not None:
            os.close(fd)


class SandboxFolder:
    """A private folder for the files of one sandbox.

    Args:
        state_folder: the daemon's own.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, state_folder: str) -> None:
        # Until it is locked, each sweep may lock and remove it: of another daemon, or our own.
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=state_folder)
            self._lock: int | None = None
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            except FileNotFoundError:
                continue
            except BaseException:
                self.release()
                raise
            if leads_to(self.path, self._lock):
                return
            os.close(self._lock)

    def take_lock(self) -> tuple[int, ...]:
        """The descriptor that locks it, once; for the launcher, and then the caller's."""
        lock, self._lock = self._lock, None
        return () if lock is None else (lock,)

    def release(self) -> None:
        """Remove it with its files (idempotent). May block for a moment."""
        for lock in self.take_lock():
            os.close(lock)
        shutil.rmtree(self.path, ignore_errors=True)


def sweep(state_folder: str) -> None:
    """Remove the folders of sandboxes that have ended under another daemon. Never raises."""
    with suppress(OSError), os.scandir(state_folder) as entries:
        for path in [entry.path for entry in entries if entry.name.startswith(_PREFIX)]:
            with suppress(OSError):
                _remove_unlocked(path)


def _remove_unlocked(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)
