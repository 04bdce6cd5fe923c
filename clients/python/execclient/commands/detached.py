"""The record of the sessions that `run --detach` left, for daemons that list only the client's own processes.

A file a session, in `$XDG_STATE_HOME/execserver/detached`, for its owner only: through a relay, a client with
the id of a session and a token for its environment can resume the session. The time of the file is that of
the last connection to the session.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from execclient.commands.failures import print_message
from execclient.connection.address import state_home
from execclient.private_files import make_state_folder, write_private
from execprotocol.relay.pools import pool_of
from execprotocol.trust import UntrustedError, read_trusted

KEPT_AFTER_END_SECONDS = 24 * 3600.0
"""How long a record outlives the time to live of its session, so that a command can report the end."""

MAX_RECORDS = 1000
"""Above it, the records of the sessions that were left first are removed."""

MAX_BYTES = 64 << 10


Seconds = Annotated[float, Meta(ge=0, le=1e11)]
"""Up to the year 5138: later times are a mistake, and overflow calendars."""


class UnusableRecord(Exception):
    """The file is not a record of a session, or another user could have written or read it."""


class DetachedSession(msgspec.Struct, frozen=True):
    """A session that was left with a process."""

    url: str
    session_id: str
    process_id: str
    started_at: Seconds
    """Seconds since 1970."""
    ttl: Seconds | None
    """Seconds for which the daemon keeps the session without a connection; None if it did not report it."""

    @property
    def file(self) -> Path:
        """The record's file. Its name is a digest: the ids and the URL may contain any character."""
        import hashlib  # takes 3 ms, which listing does not need

        name = hashlib.sha256(f"{self.url}\0{self.session_id}\0{self.process_id}".encode()).hexdigest()
        return _folder() / f"{name[:32]}.json"

    def keep(self) -> None:
        """Write the record, and remove old ones.

        Raises:
            OSError, UntrustedError: the record cannot be written in a place that is the user's own.
        """
        make_state_folder(_folder())
        _prune(_folder())
        write_private(self.file, msgspec.json.encode(self))

    def seen(self) -> None:
        """The session was connected to until now: its time begins anew."""
        with suppress(OSError):
            os.utime(self.file)

    def drop(self) -> None:
        """Remove the record: its session has ended."""
        with suppress(OSError):
            self.file.unlink()


def recorded(url: str) -> list[DetachedSession]:
    """The recorded sessions of a daemon, or of the pool that it is in, the oldest first. A message names each
    file that cannot be used.
    """
    found = []
    for path in _files(_folder()):
        try:
            found.append(_load(path))
        except FileNotFoundError:
            continue
        except UnusableRecord as error:
            print_message(f"the record of a detached session cannot be used; remove it: {path}: {error}")
    group = _group(url)
    return sorted((each for each in found if _group(each.url) == group), key=lambda each: each.started_at)


def _group(url: str) -> str:
    """The URL of the pool of a relay's executor; any other URL unchanged."""
    base, _, environment_id = url.partition("?environment=")
    pool = pool_of(environment_id)
    return url if pool is None else f"{base}?pool={pool}"


def _folder() -> Path:
    return Path(state_home(), "execserver", "detached")


def _files(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.suffix == ".json"]
    except OSError:
        return []


def _load(path: Path) -> DetachedSession:
    """Read a record.

    Raises:
        UnusableRecord: it is damaged, or another user could have written or read it.
        FileNotFoundError: another command has removed it.
    """
    try:
        return msgspec.json.decode(
            read_trusted(str(path), secret=True, limit=MAX_BYTES), type=DetachedSession
        )
    except FileNotFoundError:
        raise
    except (OSError, UntrustedError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableRecord(str(error)) from error


def _prune(folder: Path) -> None:
    """Remove the records of sessions that ended long ago, and the oldest above `MAX_RECORDS`."""
    now = time.time()
    left: list[tuple[float, Path]] = []
    for path in _files(folder):
        with suppress(OSError, UnusableRecord):
            seen_at = path.stat().st_mtime
            if now > seen_at + (_load(path).ttl or 0.0) + KEPT_AFTER_END_SECONDS:
                path.unlink()
            else:
                left.append((seen_at, path))
    for _, path in sorted(left)[: max(0, len(left) - MAX_RECORDS + 1)]:
        with suppress(OSError):
            path.unlink()
