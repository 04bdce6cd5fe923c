"""The list of clients that an executor admits: a file of key fingerprints.

    # comments and empty lines are ignored
    3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed  # the laptop

The file is read again when it has changed. While it cannot be used, no client is admitted.
`docs/protocol.md`, "Relay".
"""

from __future__ import annotations

import os
import string
import time
from pathlib import Path

from execprotocol.trust import UntrustedError, check_file

MAX_BYTES = 1 << 20
"""Some ten thousand clients with comments. Without a limit, a device would be read for ever."""

FINGERPRINT_DIGITS = 64

SETTLED_NANOSECONDS = 2_000_000_000
"""A younger file is read each time: it may change again within the same tick of the file system's clock, of
two seconds at worst, without a change of its times."""

_DIGITS = frozenset(string.hexdigits)


class AllowedClientsError(Exception):
    """The file cannot be used. The message names the file, the line and the remedy."""


class AllowedClients:
    """A file of fingerprints. The methods read the disk and may block.

    Args:
        path: the file; symbolic links are followed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The file's identity and its fingerprints in one attribute: two threads may read two states of it.
        self._known: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())

    def admits(self, fingerprint: str) -> bool:
        """Whether a client with this key is admitted.

        Raises:
            AllowedClientsError: the file cannot be used.
        """
        return fingerprint in self.read()

    def read(self) -> frozenset[str]:
        """The fingerprints, in lower case. The file is read if it has changed.

        Raises:
            AllowedClientsError: the file is missing, is not a regular file, is too large, may be written by
                other users, or has an invalid line.
        """
        try:
            # O_NONBLOCK: opening a pipe must not block.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                # The descriptor is checked, not the name: what was checked is what is read.
                status = os.fstat(descriptor)
                seen = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
                known, fingerprints = self._known
                if seen != known:
                    self._check(descriptor, status)
                    fingerprints = self._parsed(_content(descriptor))
                    changed = max(status.st_mtime_ns, status.st_ctime_ns)
                    if time.time_ns() - changed > SETTLED_NANOSECONDS:
                        self._known = (seen, fingerprints)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AllowedClientsError(
                f"cannot read the list of clients {self._path}: {error.strerror}"
            ) from None
        return fingerprints

    def _check(self, descriptor: int, status: os.stat_result) -> None:
        try:
            check_file(str(self._path), descriptor)
        except UntrustedError as error:
            raise AllowedClientsError(
                f"the list of clients {self._path} decides who may come in: {error}"
            ) from None
        if status.st_size > MAX_BYTES:
            raise AllowedClientsError(f"the list of clients {self._path} has more than {MAX_BYTES} bytes")

    def _parsed(self, content: bytes) -> frozenset[str]:
        found = set()
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            fingerprint = line.partition("#")[0].strip()
            if not fingerprint:
                continue
            if len(fingerprint) != FINGERPRINT_DIGITS or not _DIGITS.issuperset(fingerprint):
                raise AllowedClientsError(
                    f"{self._path}:{number}: must be {FINGERPRINT_DIGITS} hexadecimal digits, as "
                    "`execserver relay key FILE` prints them"
                )
            found.add(fingerprint.lower())
        return frozenset(found)


def _content(descriptor: int) -> bytes:
    content = b""
    while len(content) <= MAX_BYTES and (part := os.read(descriptor, MAX_BYTES)):
        content += part
    return content
