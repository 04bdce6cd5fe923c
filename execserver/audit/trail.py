"""Writes the audit folder.

Rules kept in this file:

1. A line is written by one call. After it, the state beside the files is overwritten (`chain.py`).
2. If acts are refused while they cannot be written down, the space of the line of each open act is reserved
   before the act: an act that has happened can be written down, also on a full disk.
3. Lines that cannot be written are counted, and the next line that can be written has their number as
   `missed`. So are acts that were going on when the server was killed, as `unfinished`: at most so many, for
   the line of one may have been written.
4. A folder that cannot be used when a new server takes over does not end the server, with its processes: it
   is tried again with each act.
5. Lines are not synced: after a power failure the newest can be missing, and the kernel decides which.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from execprotocol.errors import InternalError
from execserver.audit.chain import (
    STATE_NAME,
    Link,
    State,
    decode_state,
    file_name,
    file_names,
    link_of,
    sealed,
)
from execserver.fault_points import reach
from execserver.private_folder import FolderError, lock, lock_folder, open_private
from execserver.spool.process_index import now_ms
from execserver.spool.system_calls import reserve_space
from execserver.telemetry.logs import Logger

log = Logger()

MAX_LINE_BYTES = 32 << 10
"""The longest line. A longer one is written without its variable members, and with `cut`."""

RESERVED_BYTES = 1 << 20
"""How much space is reserved at a time."""

_STATE_BYTES = 160
"""The state has one length, so that none leaves a part of a longer one; JSON may end with spaces."""

_CUT_MEMBERS = ("session", "peer", "method", "decision", "outcome", "missed", "unfinished")
"""The members that a line without the others has."""

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_STATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class AuditError(Exception):
    """The audit folder cannot be used; the text is for people, and names the way out."""


class AuditTrail:
    """The audit folder of a daemon. Nothing is opened before `open` or the first act.

    Args:
        path: the folder, absolute. It is created (mode 0700) if it is missing.
        max_bytes: a file of this size is followed by a new one.
        stop: whether acts are refused while they could not be written down.
    """

    def __init__(self, path: str, max_bytes: int, *, stop: bool) -> None:
        self.problem: str | None = None
        """Why acts cannot be written down now; None if they can."""
        self._path = path
        self._max_bytes = max_bytes
        self._stop = stop
        self._opened = ExitStack()
        self._folder = self._state = self._file = -1
        self._open_acts = 0
        self._size = self._reserved = 0
        self._link = Link()
        self._missed = self._unfinished = 0

    @property
    def last(self) -> Link:
        """The place of the newest line."""
        return self._link

    def open(self, *, wait: bool) -> None:
        """Open the folder, and find the end of the chain.

        Args:
            wait: whether to wait up to 5 s for the end of the server before this one, which blocks.

        Raises:
            AuditError: it cannot be used.
        """
        try:
            with ExitStack() as opened:
                self._folder = open_private(self._path)
                opened.callback(os.close, self._folder)
                if wait:
                    lock_folder(self._folder, self._path)
                elif not lock(self._folder):
                    raise FolderError(f"folder {self._path} is locked by another program")
                self._state = os.open(STATE_NAME, _STATE_FLAGS, 0o600, dir_fd=self._folder)
                opened.callback(os.close, self._state)
                self._find_end()
                self._opened = opened.pop_all()
        except (OSError, ValueError, FolderError) as error:
            raise AuditError(
                f"acts cannot be written down in the audit folder {self._path}: {_text(error)}"
            ) from None

    def begin(self) -> None:
        """An act is about to happen; `end` follows.

        Raises:
            InternalError: it could not be written down, and must not happen.
        """
        try:
            self._prepare()
        except (OSError, AuditError) as error:
            self.report(error)
            if self._stop:
                raise InternalError(
                    f"the daemon cannot write down what is done ({self.problem}), so nothing is done: mend "
                    "that, or let it only warn (setting audit_failure)"
                ) from None
        self._open_acts += 1
        if self._file >= 0:
            self._write_state()

    def end(self, members: Mapping[str, Any]) -> int | None:
        """The act has happened, or has failed; write it down. Returns its number, or None if that failed."""
        self._open_acts -= 1
        try:
            if self._file < 0:  # `begin` has reported it
                self._missed += 1
                return None
            self._append(members)
        except OSError as error:
            self._missed += 1
            self._write_state()
            self.report(error)
            return None
        return self._link.n

    def report(self, error: Exception) -> None:
        """Log why acts cannot be written down, if that is new."""
        reason = _text(error)
        if self.problem is None:
            log.error("acts cannot be written down", folder=self._path, reason=reason, refused=self._stop)
        self.problem = reason

    def close(self) -> None:
        """Free what is reserved, and close the files."""
        if self._file >= 0:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            os.close(self._file)
        self._opened.close()

    # -- the end of the chain

    def _find_end(self) -> None:
        state = decode_state(os.pread(self._state, 4096, 0)) or State()
        names = file_names(self._folder)
        last, size = Link(), 0
        for name in names[-2:]:  # a server that is killed leaves a new file without a line
            found, size = self._end_of(name)
            last = found or last
        if state.link.n > last.n:
            log.error(
                "acts are missing in the audit folder", folder=self._path, found=last.n, last=state.link.n
            )
            last = state.link  # so that they are seen to be missing for ever
        name = names[-1] if names else file_name(last.n + 1)
        self._file = os.open(name, _APPEND, 0o600, dir_fd=self._folder)
        self._size = self._reserved = size
        self._link, self._missed = last, self._missed + state.missed
        self._unfinished = state.unfinished

    def _end_of(self, name: str) -> tuple[Link | None, int]:
        """The place of the last whole line of a file, and where it ends. What a server that was killed, or a
        power failure, has left of a line after it is removed.
        """
        file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            size = os.fstat(file).st_size
            start = max(0, size - 2 * MAX_LINE_BYTES)
            *lines, rest = os.pread(file, size - start, start).split(b"\n")
            if rest:
                log.warning(
                    "an audit file ended within a line, which is removed", file=f"{self._path}/{name}"
                )
                size -= len(rest)
                os.ftruncate(file, size)
        finally:
            os.close(file)
        try:
            return link_of(lines[-1])[0] if lines else None, size
        except ValueError as error:
            raise ValueError(
                f"the last line of {name}: {error}; look at it with `execserver audit verify`, and move the "
                "folder elsewhere to begin a new one"
            ) from None

    # -- writing

    def _prepare(self) -> None:
        if self._file < 0:
            self.open(wait=False)
        if self._size >= self._max_bytes:
            self._rotate()
        if self._stop:
            self._reserve()
            if self._missed:
                self._append({"method": "audit"})

    def _append(self, members: Mapping[str, Any]) -> None:
        if self._missed:
            members = {**members, "missed": self._missed}
        if self._unfinished:
            members = {**members, "unfinished": self._unfinished}
        members = {"at": now_ms(), **members}
        line, link = sealed(members, self._link)
        if len(line) > MAX_LINE_BYTES:
            kept = {name: members[name] for name in ("at", *_CUT_MEMBERS) if name in members}
            line, link = sealed({**kept, "cut": True}, self._link)
        reach("audit-before-line")
        if os.write(self._file, line) < len(line):
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reach("audit-after-line")
        self._size += len(line)
        self._link = link
        self._missed = self._unfinished = 0
        self._write_state()
        if self.problem is not None:
            self.problem = None
            log.info("acts can be written down again", folder=self._path)

    def _write_state(self) -> None:
        content = msgspec.json.encode(State(self._link, self._missed, self._open_acts + self._unfinished))
        with suppress(OSError):  # a state that is too old is noticed, too
            os.pwrite(self._state, content.ljust(_STATE_BYTES), 0)

    def _reserve(self) -> None:
        """Reserve the space of the lines of all open acts, of one more, and of the number of missed ones."""
        needed = (self._open_acts + 2) * MAX_LINE_BYTES
        if self._size + needed <= self._reserved:
            return
        length = needed + RESERVED_BYTES
        try:
            reserve_space(self._file, self._size, length)
        except OSError as error:
            # Where nothing can be reserved, an act that could not be written down stops the acts after it.
            if error.errno != errno.EOPNOTSUPP:
                raise
        self._reserved = self._size + length

    def _rotate(self) -> None:
        """Begin a new file. If that fails, the old one goes on."""
        old = self._file, self._size, self._reserved
        name = file_name(self._link.n + 1)
        self._file = os.open(name, _APPEND | os.O_EXCL, 0o600, dir_fd=self._folder)
        reach("audit-new-file")
        self._size = self._reserved = 0
        try:
            if self._stop:
                self._reserve()
        except OSError:
            os.close(self._file)
            self._file, self._size, self._reserved = old
            os.unlink(name, dir_fd=self._folder)
            raise
        with suppress(OSError):
            os.ftruncate(old[0], old[1])
        os.close(old[0])


def check_folder(path: str) -> str | None:
    """Why acts cannot be written down in a folder, apart from missing space; None if they can, or if it is
    missing, and will be made. Blocks.
    """
    if not os.path.lexists(path):
        return None
    try:
        folder = open_private(path)
        try:
            for name in file_names(folder)[-1:]:
                os.close(os.open(name, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))
        finally:
            os.close(folder)
    except (OSError, FolderError) as error:
        return _text(error)
    return None


def check_space(path: str) -> str | None:
    """Why a folder, or the place of a missing one, takes no acts; None if it does. Blocks, and leaves nothing
    behind.
    """
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    try:
        file = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            reserve_space(file, 0, RESERVED_BYTES)
        finally:
            os.close(file)
    except OSError as error:
        return None if error.errno == errno.EOPNOTSUPP else _text(error)
    return None


def _text(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
