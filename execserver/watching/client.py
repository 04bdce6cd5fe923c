"""The daemon's client of one program of a watch: starts it, and receives its frames on the loop."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import marshal
import os
from contextlib import suppress
from functools import cache
from typing import Protocol

from execprotocol.errors import InternalError, InvalidRequest, RpcError, file_error
from execprotocol.limits import MAX_POLLED_ENTRIES
from execserver.fsworker import bundle
from execserver.fsworker.process import WorkerProcess
from execserver.watching import frames

SILENT_SECONDS = 30.0
"""How long a program may be silent before it is ready; it reports each second."""

_PIECE_BYTES = 16 << 10
"""Read from the socket at a time: some hundred changes, which the loop processes in a few milliseconds."""

_MODULES = (
    "execserver.inotify",
    "execserver.watching.frames",
    "execserver.watching.program.changes",
    "execserver.watching.program.folders",
    "execserver.watching.program.ignore_rules",
    "execserver.watching.program.polling",
    "execserver.watching.program.tree",
    "execserver.watching.program.main",
)
"""All modules of ours that the program can import. An import contract has the same list."""

_PACKAGES = ("execserver", "execserver.watching", "execserver.watching.program")

_LIBRARY = "pathspec"

_LIMITS = {
    errno.ENOSPC: (
        ("fs.inotify.max_user_watches", "user.max_inotify_watches"),
        "a watch for each directory",
        "watch fewer directories (excludeDirs, ignoreRules)",
    ),
    errno.EMFILE: (
        ("fs.inotify.max_user_instances", "user.max_inotify_instances"),
        "an instance for each watch",
        "end other watches (fs/unwatch)",
    ),
}
"""Errors of inotify: limits of the user and of the user namespace, what they count, and another way out."""


@cache
def program_code(*, ignore_rules: bool) -> bytes:
    """The code of the program, with the library for ignore rules if they count. The first call reads files.

    Raises:
        RuntimeError: the installation is incomplete.
    """
    modules, packages = _library_modules() if ignore_rules else ((), ())
    return bundle.pack("execserver.watching.program.main", (*_MODULES, *modules), (*_PACKAGES, *packages))


def _library_modules() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules and packages of the library."""
    spec = importlib.util.find_spec(_LIBRARY)
    if spec is None or spec.origin is None:
        raise RuntimeError(
            f"the package {_LIBRARY} is missing: pip install {_LIBRARY}, or send ignoreRules false"
        )
    top = os.path.dirname(spec.origin)
    modules, packages = [], []
    for folder, _, names in os.walk(top):
        package = ".".join([_LIBRARY, *os.path.relpath(folder, top).split("/")]).removesuffix("..")
        if "__init__.py" in names:
            packages.append(package)
            modules += [
                f"{package}.{name[:-3]}" for name in names if name.endswith(".py") and name != "__init__.py"
            ]
    return tuple(sorted(modules)), tuple(sorted(packages))


class Receiver(Protocol):
    """What the frames are for."""

    def begun(self, mode: str, real: str) -> None:
        """Every folder is watched; the root without links. Called before the first change."""

    def changed(self, members: list[bytes]) -> None:
        """The members of a frame of changes."""

    def ended(self, reason: str, text: str) -> None:
        """The watch has ended. Nothing is called after it."""


class ProgramClient:
    """A running program.

    Args:
        process: owned by this object from now on.
        order: what to watch (`frames.Order`).
        receiver: gets the changes.
    """

    def __init__(self, process: WorkerProcess, order: frames.Order, receiver: Receiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._receiver = receiver
        self._fd = process.socket.fileno()
        self._received = bytearray()
        self._over = False
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done when every folder is watched; fails with an `RpcError`."""
        self.exited: asyncio.Future[None] = self._loop.create_future()
        """Done when the process has ended."""
        self._silence = self._loop.call_later(SILENT_SECONDS, self._silent)
        payload = marshal.dumps(order)
        # After the code, whose socket buffer has room for this too, unless the program is gone already.
        with suppress(OSError):
            process.socket.send(len(payload).to_bytes(4, "little") + payload)
        self._loop.add_reader(self._fd, self._readable)
        self._loop.add_reader(process.pidfd, self._exited)

    def end(self) -> None:
        """Kill the program; the receiver is not called any more (idempotent)."""
        if self._over:
            return
        self._over = True
        self._silence.cancel()
        self._loop.remove_reader(self._fd)
        self._process.kill()
        if not self.ready.done():
            self.ready.cancel()

    # -- frames

    def _readable(self) -> bool:
        """Read a piece. Returns whether there may be more."""
        try:
            data = self._process.socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lost("its program ended")
            return False
        self._received += data
        while not self._over and self._take_frame():
            pass
        return not self._over

    def _take_frame(self) -> bool:
        received = self._received
        if len(received) < frames.HEAD_BYTES:
            return False
        size = frames.HEAD_BYTES + int.from_bytes(received[1 : frames.HEAD_BYTES], "little")
        if size > frames.MAX_BODY_BYTES:
            self._lost("its program sent a frame that is too large")
            return False
        if len(received) < size:
            return False
        kind, body = received[0], bytes(received[frames.HEAD_BYTES : size])
        del received[:size]
        self._take(kind, body.split(b"\0"))
        return True

    def _take(self, kind: int, members: list[bytes]) -> None:
        if kind == frames.CHANGES and self.ready.done():
            self._receiver.changed(members)
        elif kind == frames.READY and not self.ready.done() and len(members) == 2:
            self._silence.cancel()
            self._receiver.begun(members[0].decode("ascii", "replace"), os.fsdecode(members[1]))
            self.ready.set_result(None)
        elif kind == frames.ALIVE and not self.ready.done():
            self._silence.cancel()
            self._silence = self._loop.call_later(SILENT_SECONDS, self._silent)
        elif kind in (frames.ENDED, frames.REFUSED) and len(members) == 3:
            reason, number, text = (member.decode("utf-8", "replace") for member in members)
            code = int(number) if number.isdecimal() else None
            self._finish(reason, _text(reason, code, text), _error(reason, code, text))
        else:
            self._lost("its program sent an unknown frame")

    # -- the end

    def _silent(self) -> None:
        self._lost(f"its program did not answer for {SILENT_SECONDS:g} s; is a mount below it dead?")

    def _lost(self, what: str) -> None:
        stderr = self._process.stderr_text()
        text = f"the watch failed: {what}" + (f": {stderr}" if stderr else "")
        self._finish("failed", text, InternalError(text))

    def _finish(self, reason: str, text: str, error: RpcError) -> None:
        if self._over:
            return
        started = self.ready.done()
        if not started:
            self.ready.set_exception(error)
            # The caller may be gone; the error must not count as unhandled.
            self.ready.exception()
        self.end()
        if started:
            self._receiver.ended(reason, text)

    def _exited(self) -> None:
        """The process has ended. Its last frames may still be in the socket."""
        self._loop.remove_reader(self._process.pidfd)
        while not self._over and self._readable():
            pass
        self._lost("its program ended")
        with suppress(OSError):
            self._process.release()
        if not self.exited.done():
            self.exited.set_result(None)


def _text(reason: str, code: int | None, text: str) -> str:
    """Why a watch ended, and the way out."""
    if reason == "watchLimit" and code in _LIMITS:
        settings, counted, other = _LIMITS[code]
        value, setting = min((_limit(setting), setting) for setting in settings)
        return (
            f"inotify has no more room for {counted} ({setting} = {value}): raise the limit with "
            f"`sysctl {setting}={2 * value}`, or {other}"
        )
    if reason == "tooManyEntries":
        return (
            f"{text}, and on a network mount or FUSE at most {MAX_POLLED_ENTRIES} are polled: watch a "
            "smaller directory, or leave directories out with excludeDirs"
        )
    return text


def _error(reason: str, code: int | None, text: str) -> RpcError:
    """The error of a watch that could not begin."""
    if reason == "watchLimit" and code in _LIMITS:
        return InvalidRequest(_text(reason, code, text), name="watch_limit", field="path")
    if reason == "tooManyEntries":
        return InvalidRequest(_text(reason, code, text), name="too_many_entries", field="path")
    if code is not None:
        return file_error(OSError(code, os.strerror(code)))
    return InternalError(text)


def _limit(setting: str) -> int:
    """A limit of the kernel; a very high one if it is not known."""
    try:
        with open(f"/proc/sys/{setting.replace('.', '/')}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 2**31 - 1
