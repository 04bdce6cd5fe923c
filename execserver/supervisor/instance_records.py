"""Records of running instances, so that the next start can kill the processes of an instance that was killed.

Supervisor and server watch each other, but if both are killed at once, their processes survive. So each
instance has a file `instances/NUMBER`, locked by a descriptor that supervisor *and* server hold: a free lock
means that both are gone. The next daemon that starts kills the processes of that instance and removes the
record.

Records are checked and created under the folder's lock, so no record is seen between its creation and its
lock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from execserver.descendants import kill_descendants, new_instance
from execserver.private_folder import (
    lock,
    lock_folder,
    open_folder,
    open_private,
    runtime_folder,
    state_folder,
)
from execserver.supervisor.control_socket import SUFFIX


class InstanceRecord:
    """The file of an instance, open and locked by us."""

    def __init__(self, instance: int, path: str, descriptor: int) -> None:
        self.instance = instance
        self.descriptor = descriptor
        self._path = path

    @property
    def control_path(self) -> str:
        """The path of the instance's control socket."""
        return f"{self._path}{SUFFIX}"

    def remove(self) -> None:
        """Remove the files and release the lock, if no process of the instance is left."""
        try:
            if os.path.lexists(self.control_path):
                os.unlink(self.control_path)
            os.unlink(self._path)
        except OSError:
            return  # the file or its folder was removed by hand
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock; the file stays for the next start."""
        os.close(self.descriptor)


def claim(
    environment: Mapping[str, str], instance: int | None = None
) -> tuple[InstanceRecord, list[InstanceRecord]]:
    """Create a record for a new instance; also returns the records of instances that were killed.

    Args:
        environment: selects the folder of the records.
        instance: the number to use, unless it has a record.

    Raises:
        FolderError: the folder is not private.
        OSError: it cannot be written.
    """
    base = runtime_folder(environment) or state_folder(environment)
    # systemd creates $RUNTIME_DIRECTORY with 0755: only we may *write* it, and only we may read `instances`.
    os.close(open_private(base, forbidden=0o022))
    path = f"{base}/instances"
    folder = open_private(path)
    try:
        lock_folder(folder, path)
        stale = [record for name in os.listdir(folder) if (record := _take(path, name)) is not None]
        return _create(path, instance or new_instance()), stale
    finally:
        os.close(folder)


def examine(path: str) -> tuple[list[str], list[InstanceRecord]]:
    """The records in a folder `instances`: the paths of running instances, and dead ones, locked by us.

    Raises:
        FolderError: another program holds the lock of the folder.
    """
    if not os.path.isdir(path):
        return [], []
    folder = open_folder(path)
    try:
        lock_folder(folder, path)
        names = sorted(name for name in os.listdir(folder) if name.isascii() and name.isdigit())
        dead = [record for name in names if (record := _take(path, name)) is not None]
    finally:
        os.close(folder)
    known = {str(record.instance) for record in dead}
    return [f"{path}/{name}" for name in names if name not in known], dead


def sweep(stale: list[InstanceRecord]) -> list[int]:
    """Kill the processes of dead instances; returns the pids of survivors, whose records stay."""
    survivors = []
    for record in stale:
        living = kill_descendants(record.instance)
        if living:
            survivors += living
            record.close()
        else:
            record.remove()
    return survivors


def _take(folder: str, name: str) -> InstanceRecord | None:
    """The record with this name if its instance is dead."""
    if not (name.isascii() and name.isdigit()):
        return None
    path = f"{folder}/{name}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if not lock(descriptor):
        os.close(descriptor)
        return None
    return InstanceRecord(int(name), path, descriptor)


def _create(folder: str, instance: int) -> InstanceRecord:
    while True:
        path = f"{folder}/{instance}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            instance = new_instance()
            continue
        if not lock(descriptor):
            raise OSError(f"{path} cannot be locked: its filesystem has no locks")
        return InstanceRecord(instance, path, descriptor)
