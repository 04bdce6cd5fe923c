"""Where the output of all processes is kept: on disk while that works, in memory while it does not.

Rules kept in this file:

1. A failing disk is a state of the spool, not an error of a process: it is reported when it begins and when
   it ends, and the disk is tried again after a second.
2. No file here has a name, so nothing is ever left behind.
3. All logs together keep within the limits: the process with the most output is trimmed first.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from execserver.private_folder import FolderError, open_private
from execserver.spool.data_file import (
    DataFile,
    NotStoredError,
    create_in_memory,
    create_on_disk,
    ring_capacity,
)
from execserver.spool.process_index import MAX_POSITION
from execserver.spool.small_files import SmallOutputs
from execserver.telemetry.measures import measures

CHUNK_BYTES = 64 << 10
"""Bytes of a chunk: as much as a pipe holds unless it is made larger. Smaller ones cost a third of the
throughput."""

LARGE_CHUNK_BYTES = 2 * CHUNK_BYTES
"""Bytes of a chunk of a flood that goes to the disk: with a larger pipe, each byte takes a third less of the
processor. Twice as much fills a connection's window at once, and gains nothing."""

EXPEDITE_SECONDS = 0.02
"""How long after a message of any client no large chunk is moved: a moved chunk is sent before the next
request is read, and a small request should not wait for so much."""

RETRY_SECONDS = 1.0
"""How long a failing disk is not tried."""

_SLACK_BYTES = 1 << 20
"""The size of a ring on disk beyond the retained output: room for new output while the oldest is kept."""

_ENFORCED_FRACTION = 1024
"""One 1,024th of a limit is dropped beyond what is needed: finding the largest of thousands of logs takes
long."""

SHORT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class SpoolLimits(msgspec.Struct, frozen=True):
    """How much is kept, in bytes."""

    disk: int = 2 << 30
    """On disk, by all processes together."""
    memory: int = 256 << 20
    """In memory, by all processes together, while the disk fails or when there is none."""
    process_memory: int = 1 << 20
    """In memory, by one process."""
    small: int = 16 << 10
    """Output up to which a process has no file on disk: creating one costs as much as a short command."""


class Spool:
    """Makes the data files.

    Args:
        folder: an absolute path; created when missing. None: everything is kept in memory.
        limits: how much is kept.
        on_state: called with true and a reason when the disk begins to fail, and with false and an empty
            text when it works again.
        small_files: for the first bytes of each process; None: they go to the disk, too.
    """

    def __init__(
        self,
        folder: str | None,
        limits: SpoolLimits,
        on_state: Callable[[bool, str], None] = lambda _failing, _reason: None,
        small_files: SmallOutputs | None = None,
    ) -> None:
        self.limits = limits
        self.small_files = small_files
        self.folder_problem: str | None = None
        """Why there is no folder; None when there is one."""
        self.failing = False
        """Whether the last use of the disk failed."""
        self._on_state = on_state
        self._folder_path = folder
        self._folder: int | None = None
        self._retry_at = 0.0
        self._seen_bytes = measures.received_bytes
        """Bytes from clients at the last check."""
        self._expedited_until = 0.0
        if folder is None:
            self.folder_problem = "no folder is configured"
        else:
            try:
                self._folder = open_private(folder)
            except FolderError as error:
                self.folder_problem = str(error)

    def new_disk_file(self, retained: int) -> DataFile | None:
        """A ring on disk for so many bytes; None while there is no disk that works.

        Raises:
            OSError: no descriptor is available (EMFILE, ENFILE).
        """
        if self._folder_path is None or (self.failing and time.monotonic() < self._retry_at):
            return None
        try:
            if self._folder is None:
                self._folder = open_private(self._folder_path)
                self.folder_problem = None
            # The index cannot express the places of a larger ring.
            size = min(retained + _SLACK_BYTES, MAX_POSITION + 1)
            return create_on_disk(self._folder, ring_capacity(size))
        except FolderError as error:
            self._fail(str(error))
            self.folder_problem = str(error)
        except OSError as error:
            if error.errno in SHORT_OF_DESCRIPTORS:
                raise
            self.disk_failed(error)
            # The folder may have been removed; the next try opens it anew.
            self._close_folder()
        return None

    def new_memory_file(self, retained: int) -> DataFile:
        """A ring in memory for so many bytes, or what a process may have there.

        Raises:
            OSError: no descriptor or no memory is available.
        """
        return create_in_memory(ring_capacity(self.memory_share(retained) + CHUNK_BYTES + 1))

    def expedited(self) -> bool:
        """Whether a client sent something lately, and may send more and wait for the answer."""
        if self._seen_bytes != measures.received_bytes:
            self._seen_bytes = measures.received_bytes
            self._expedited_until = time.monotonic() + EXPEDITE_SECONDS
            return True
        return self._expedited_until > 0 and time.monotonic() < self._expedited_until

    def memory_share(self, retained: int) -> int:
        """Bytes that a process may keep in memory."""
        return min(retained, self.limits.process_memory)

    def disk_splices(self) -> bool:
        """Whether the kernel moves bytes to the disk. If not, a killed server can lose up to one chunk a
        process. Also true when there is no disk to try.

        Raises:
            OSError: no descriptors are available.
        """
        file = self.new_disk_file(0)
        if file is None:
            return True
        source, end = os.pipe()
        try:
            os.write(end, b"x")
            with suppress(OSError, NotStoredError):
                file.splice_from(source, 1)
            return file.can_splice
        finally:
            os.close(source)
            os.close(end)
            file.close()

    def disk_failed(self, error: OSError) -> None:
        """Report a failure of the disk."""
        self._fail(os.strerror(error.errno) if error.errno else str(error))

    def disk_works(self) -> None:
        """Report that the disk took bytes. Ignored within a second of a failure: overwriting a ring needs no
        space on a full disk.
        """
        if self.failing and time.monotonic() >= self._retry_at:
            self.failing = False
            self._on_state(False, "")

    def close(self) -> None:
        """Make no more files."""
        self._close_folder()

    def _fail(self, reason: str) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not self.failing:
            self.failing = True
            self._on_state(True, reason)

    def _close_folder(self) -> None:
        if self._folder is not None:
            with suppress(OSError):
                os.close(self._folder)
            self._folder = None


class BudgetedLog(Protocol):
    """The budget's view of a log."""

    disk_held: int
    memory_held: int

    def shrink_to(self, disk: int, memory: int) -> bool:
        """Drop oldest output until at most so many bytes are held on disk and in memory, and free their
        space. Returns whether any was dropped.
        """


class SpoolBudget:
    """Bytes of output kept by all processes of the daemon together."""

    def __init__(self, limits: SpoolLimits) -> None:
        self.limits = limits
        self.disk_held = 0
        self.memory_held = 0
        self._logs: set[BudgetedLog] = set()

    @property
    def held(self) -> int:
        """On disk and in memory."""
        return self.disk_held + self.memory_held

    @property
    def is_exceeded(self) -> bool:
        """Whether all logs together hold more than they should."""
        return self.disk_held > self.limits.disk or self.memory_held > self.limits.memory

    def add(self, log: BudgetedLog) -> None:
        """Count this log and its output from now on."""
        self._logs.add(log)
        self.disk_held += log.disk_held
        self.memory_held += log.memory_held

    def remove(self, log: BudgetedLog) -> None:
        """Count it no longer."""
        if log in self._logs:
            self._logs.remove(log)
            self.disk_held -= log.disk_held
            self.memory_held -= log.memory_held

    def enforce(self) -> None:
        """Drop the oldest output of the largest log until the limits are met, or no log drops any."""
        limits = self.limits
        logs = self._logs
        while self.disk_held > limits.disk and logs:
            largest = max(logs, key=lambda log: log.disk_held)
            excess = self.disk_held - limits.disk + limits.disk // _ENFORCED_FRACTION
            if not largest.shrink_to(max(0, largest.disk_held - excess), largest.memory_held):
                logs = logs - {largest}
        logs = self._logs
        while self.memory_held > limits.memory and logs:
            largest = max(logs, key=lambda log: log.memory_held)
            excess = self.memory_held - limits.memory + limits.memory // _ENFORCED_FRACTION
            if not largest.shrink_to(largest.disk_held, max(0, largest.memory_held - excess)):
                logs = logs - {largest}
