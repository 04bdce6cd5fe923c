"""Writes the audit file.

Rules kept in this file:

1. A line is written by one call. After it, the state beside the file is overwritten (`chain.py`).
2. If acts stop without an audit file, the space of the line of each open act is reserved before the act: an
   act that has happened can be written down, also on a full disk.
3. If they do not, lines that cannot be written are counted, and the next line that can be written has their
   number as `missed`.
4. Lines are not synced: after a power failure the newest can be missing, and the kernel decides which.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from execprotocol.errors import InternalError
from execserver.audit.chain import NUMBER_DIGITS, STATE_SUFFIX, Link, link_of, read_state, sealed
from execserver.spool.system_calls import reserve_space
from execserver.telemetry.logs import Logger

log = Logger()

MAX_LINE_BYTES = 32 << 10
"""The longest line. A longer one is written without its variable members, and with `cut`."""

RESERVED_BYTES = 1 << 20
"""How much space is reserved at a time."""

LOCK_SECONDS = 2.0
"""How long a server waits for the end of the one before it."""

_CUT_MEMBERS = ("session", "peer", "method", "decision", "outcome")
"""The members that a line without the others has."""


class AuditError(Exception):
    """The audit file cannot be used; the text is for people, and names the way out."""


class AuditTrail:
    """An open audit file.

    Args:
        path: an absolute path. The file is created (mode 0600) if it is missing.
        max_bytes: a file of this size is renamed, and a new one begun.
        stop: whether acts are refused while they could not be written down.

    Raises:
        AuditError: the file cannot be opened, is not private, or is in use by another daemon.
    """

    def __init__(self, path: str, max_bytes: int, *, stop: bool) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._stop = stop
        self._open_acts = 0
        self._missed = 0
        self._failing = False
        try:
            self._fd = _open(path)
            self._state = os.open(path + STATE_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._begin()
        except (OSError, ValueError) as error:
            raise AuditError(f"the audit file {path} cannot be used: {_text(error)}") from None

    def _begin(self) -> None:
        self._size = self._reserved = os.fstat(self._fd).st_size
        state = read_state(self._path) if os.fstat(self._state).st_size else None
        last = self._last_line()
        if state is not None and state.n > last.n:
            log.error(
                "acts are missing at the end of the audit file", path=self._path, found=last.n, last=state.n
            )
            last = state  # so that they are seen to be missing for ever
        self._link = last
        self._first = last.n + 1 if not self._size else None
        """The number of the first act of the file; None if it has to be read."""

    def _last_line(self) -> Link:
        """The place of the last whole line. What a power failure has left of a line after it is removed."""
        size = self._size
        start = max(0, size - 2 * MAX_LINE_BYTES)
        *lines, rest = os.pread(self._fd, size - start, start).split(b"\n")
        if rest:
            log.warning("the audit file ended within a line, which is removed", path=self._path)
            self._size = self._reserved = size - len(rest)
            os.ftruncate(self._fd, self._size)
        return link_of(lines[-1])[0] if lines else Link()

    def begin(self) -> None:
        """An act is about to happen; `end` follows.

        Raises:
            InternalError: it could not be written down, and must not happen.
        """
        try:
            if self._size >= self._max_bytes and not self._open_acts:
                self._rotate()
            if self._stop:
                self._reserve((self._open_acts + 1) * MAX_LINE_BYTES)
        except OSError as error:
            self._report(error)
            if self._stop:
                raise InternalError(
                    f"the audit file of the daemon cannot be written ({_text(error)}), so nothing is done: "
                    "make room for it, or let the daemon only warn (setting audit_failure)"
                ) from None
        self._open_acts += 1

    def end(self, members: Mapping[str, Any]) -> int | None:
        """The act has happened, or has failed; write it down. Returns its number, or None if that failed."""
        self._open_acts -= 1
        if self._missed:
            members = {**members, "missed": self._missed}
        members = {"at": time.time_ns() // 1_000_000, **members}
        line, link = sealed(members, self._link)
        if len(line) > MAX_LINE_BYTES:
            kept = {name: members[name] for name in ("at", *_CUT_MEMBERS) if name in members}
            line, link = sealed({**kept, "cut": True}, self._link)
        try:
            if os.write(self._fd, line) < len(line):
                os.ftruncate(self._fd, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._missed += 1
            self._report(error)
            return None
        self._size += len(line)
        self._link = link
        self._missed = 0
        self._write_state()
        if self._failing:
            self._failing = False
            log.info("the audit file can be written again", path=self._path)
        return link.n

    @property
    def last(self) -> Link:
        """The place of the newest line."""
        return self._link

    def close(self) -> None:
        """Free what is reserved, and close the file."""
        with suppress(OSError):
            os.ftruncate(self._fd, self._size)
        os.close(self._fd)
        os.close(self._state)

    def _write_state(self) -> None:
        # Of one length, so that a shorter one leaves nothing of a longer one; JSON may end with spaces.
        with suppress(OSError):  # a state that is too old is noticed, too
            os.pwrite(self._state, msgspec.json.encode(self._link).ljust(128), 0)

    def _reserve(self, needed: int) -> None:
        if self._size + needed <= self._reserved:
            return
        length = needed + RESERVED_BYTES
        try:
            reserve_space(self._fd, self._size, length)
        except OSError as error:
            # Where nothing can be reserved, a failed write stops the acts after it.
            if error.errno != errno.EOPNOTSUPP or self._missed:
                raise
            return
        self._reserved = self._size + length

    def _rotate(self) -> None:
        first = self._first or self._first_number()
        old = self._fd
        os.rename(self._path, f"{self._path}.{first:0{NUMBER_DIGITS}d}")
        try:
            self._fd = _open(self._path)
        except BaseException:
            os.rename(f"{self._path}.{first:0{NUMBER_DIGITS}d}", self._path)
            raise
        with suppress(OSError):
            os.ftruncate(old, self._size)
        os.close(old)
        self._size = self._reserved = 0
        self._first = self._link.n + 1

    def _first_number(self) -> int:
        line = os.pread(self._fd, MAX_LINE_BYTES, 0).split(b"\n", 1)[0]
        try:
            return link_of(line)[0].n
        except ValueError as error:
            raise OSError(errno.EBADMSG, f"its first line: {error}") from None

    def _report(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            log.error("the audit file cannot be written", path=self._path, reason=_text(error))


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError(f"it is open to other users: chown it to user {os.geteuid()}, and chmod 600")
        _lock(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _lock(fd: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ValueError("another daemon writes it: each daemon needs a file of its own") from None
            time.sleep(0.02)
        else:
            return


def _text(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
