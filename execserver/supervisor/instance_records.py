"""Records of living instances, so that the next start can sweep after a double kill.

Supervisor and server watch each other; when both are killed at once nobody is left to kill
what they ran. So each instance leaves a file `instances/NUMBER`, locked by a descriptor that
supervisor *and* server hold: a free lock says that both are gone. Whoever finds one kills the
members of that instance and removes the record.

Looking at locks and creating a record happen under the folder's lock: a record is never seen
between its creation and its locking.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from execserver.descendants import kill_descendants, new_instance
from execserver.private_folder import lock, lock_folder, open_private, runtime_folder, state_folder


class Record:
    """One instance's file, open and locked by us."""

    def __init__(self, instance: int, path: str, descriptor: int) -> None:
        self.instance = instance
        self.descriptor = descriptor
        self._path = path

    def remove(self) -> None:
        """The instance left nothing behind: remove the file, then give the lock back."""
        try:
            os.unlink(self._path)
        except OSError:
            return  # removed by hand, or its folder was: there is nothing left to remove
        finally:
            self.close()

    def close(self) -> None:
        """Give the lock back; the file stays for the next start."""
        os.close(self.descriptor)


def claim(environment: Mapping[str, str], instance: int | None = None) -> tuple[Record, list[Record]]:
    """A record for a new instance, and those of instances that ended without a farewell.

    Args:
        environment: says where records are.
        instance: the number to take, if there is no record of it.

    Raises:
        FolderError: the folder is not private.
        OSError: it cannot be written.
    """
    base = runtime_folder(environment) or state_folder(environment)
    # systemd creates $RUNTIME_DIRECTORY with 0755: nobody else may *write* it, `instances` is ours alone.
    os.close(open_private(base, forbidden=0o022))
    path = f"{base}/instances"
    folder = open_private(path)
    try:
        lock_folder(folder, path)
        stale = [record for name in os.listdir(folder) if (record := _take(path, name)) is not None]
        return _create(path, instance or new_instance()), stale
    finally:
        os.close(folder)


def sweep(stale: list[Record]) -> list[int]:
    """Kill what those instances left; returns the pids that did not die, whose records stay."""
    survivors = []
    for record in stale:
        living = kill_descendants(record.instance)
        if living:
            survivors += living
            record.close()
        else:
            record.remove()
    return survivors


def _take(folder: str, name: str) -> Record | None:
    """The record of that name if its instance is dead."""
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
    return Record(int(name), path, descriptor)


def _create(folder: str, instance: int) -> Record:
    while True:
        path = f"{folder}/{instance}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            instance = new_instance()
            continue
        if not lock(descriptor):
            raise OSError(f"{path} cannot be locked: its filesystem has no locks")
        return Record(instance, path, descriptor)
