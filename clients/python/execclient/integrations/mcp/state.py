"""The state of a server, in a file that it locks. After a kill the next server finds the commands by it.

The files are in `$XDG_STATE_HOME/execserver/mcp`, for their owner only. Servers with the same key (the
daemon, the workspace and the host) have files with different numbers: a server takes the first one that no
running server has locked, so two servers never share a session.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from execclient.connection.address import state_home
from execclient.private_files import make_state_folder, write_private
from execclient.tools.saved_sessions import SavedSession
from execprotocol.trust import UntrustedError, read_trusted

log = logging.getLogger(__name__)

MAX_SERVERS = 64
"""Servers with the same key at the same time."""

MAX_BYTES = 1 << 20
"""64 sessions, each with a script of some kilobytes."""


class StateUnusable(Exception):
    """The state cannot be kept; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The contents of the file."""

    session_id: str
    """The session of the daemon."""
    sessions: tuple[SavedSession, ...] = ()
    url: str | None = None
    """Of the daemon that has the session: one of a pool, or as it was given. None in files of version 0.2."""


class StateFile:
    """The file of this server. Its lock ends with the process.

    Args:
        key: everything by which servers differ.

    Raises:
        StateUnusable: the folder cannot be used, or all numbers are taken.
    """

    def __init__(self, key: Sequence[str]) -> None:
        folder = Path(state_home(), "execserver", "mcp")
        name = hashlib.sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()[:32]
        try:
            make_state_folder(folder)
            for number in range(MAX_SERVERS):
                self._path = folder / f"{name}-{number}.json"
                self._lock = os.open(
                    self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
                )
                with suppress(BlockingIOError):
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                os.close(self._lock)
        except OSError as error:
            raise StateUnusable(f"the state in {folder} cannot be used: {error.strerror}") from error
        raise StateUnusable(
            f"{MAX_SERVERS} servers of this host and workspace run: name this one with --name"
        )

    def read(self) -> Saved | None:
        """The state that the last server left; None if there is none, or it cannot be used."""
        try:
            value = json.loads(read_trusted(str(self._path), secret=True, limit=MAX_BYTES))
            sessions = tuple(map(SavedSession.from_json, value["sessions"]))
            return Saved(value["sessionId"], sessions, value.get("url"))
        except FileNotFoundError:
            return None
        except (OSError, UntrustedError, ValueError, KeyError, TypeError) as error:
            log.warning("the state cannot be used, and is replaced: %s: %s", self._path, error)
            return None

    def write(self, saved: Saved) -> None:
        """Replace the state. A failure is logged: the server works without."""
        sessions = [each.to_json() for each in saved.sessions]
        data = json.dumps({"sessionId": saved.session_id, "url": saved.url, "sessions": sessions}).encode()
        try:
            write_private(self._path, data)
        except (OSError, UntrustedError) as error:
            log.warning("the state cannot be written: %s: %s", self._path, error)

    def remove(self) -> None:
        """Remove the state: its session has ended."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the lock. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
