"""The registry of mount points: folders that exist in a workspace only while sandboxed commands need them.

To keep a command from creating a missing protected name (WORKSPACE/.git), the sandbox mounts over it, and a
mount needs a folder. So an empty folder is made in the user's workspace for the time of the command. It must
never be left behind, even if any process is killed at any time:

1. Each folder has an entry in a registry that all daemons of the state folder share: a file that is written
   *before* the folder is made, and that records the folder's inode afterwards (`entry.py`).
2. A daemon holds shared locks (flock) on the entry's file and on the folder while one of its commands uses
   the folder. The kernel releases them when the daemon dies. Within a daemon, leases are counted.
3. The daemon with the last lock removes folder and entry. `sweep` removes the folders of dead daemons:
   entries without a lock.
4. Entries are made, read and removed only under the lock of the registry, which is held for moments.
5. Only a folder that we made is removed, and only with rmdir: a folder that is not empty belongs to the user.
6. The locks belong to open files. The supervisor holds copies of the descriptors, and so keeps the folders
   when a server dies. It passes the copies to the new server, which adopts them (`adopt`). So locks are
   released explicitly: closing a descriptor is not enough.
7. A file or folder that is in no entry is foreign (`held.py`). It is used as it is, and removed only if a
   daemon with another registry made and marked it, and has released it.

Linux only. Safe to use from several threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue

from execserver.private_folder import FolderError, leads_to, lock, lock_folder, open_private
from execserver.sandbox.mount_points.acquire import Parents, take
from execserver.sandbox.mount_points.description import MountPoint
from execserver.sandbox.mount_points.entry import (
    Outcome,
    is_mount_point,
    key,
    open_file,
    read,
    read_again,
    restore_mode,
    unlink,
)
from execserver.sandbox.mount_points.held import HeldMountPoint, adopt, is_empty, unlock

_FOLDER = "mount-points"
_LOCK = "lock"
# Releases whose descriptors wait to be closed: some dozens of descriptors.
_MAX_CLOSING = 8


class Lease:
    """The right to mount over some folders, until `release`.

    `made`: paths with an empty folder of ours. `foreign`: paths with another file, link or folder, to be
    mounted as it is; also a folder of ours that is not empty any more.
    """

    __slots__ = ("_held", "_registry", "foreign", "made")

    def __init__(self, registry: MountPoints) -> None:
        self.made: tuple[str, ...] = ()
        self.foreign: tuple[str, ...] = ()
        self._registry = registry
        self._held: list[HeldMountPoint] = []

    def release(self) -> None:
        """Release the folders; unused ones are removed (idempotent, never raises)."""
        self._registry._release(self._held)  # noqa: SLF001  one thing in two classes

    def recovery_state(self) -> tuple[list[MountPoint], list[int]]:
        """State from which a new server can adopt this lease.

        Returns:
            The folders, and descriptors to keep copies of; they still belong to this object.
        """
        with self._registry._mutex:  # noqa: SLF001
            described = [held.recovery_state() for held in dict.fromkeys(self._held)]
        # A folder that cannot be locked needs no descriptors.
        described = [(point, descriptors) for point, descriptors in described if descriptors]
        return [point for point, _ in described], [fd for _, descriptors in described for fd in descriptors]


class MountPoints:
    """The registry, in a folder `mount-points` of the state folder (created if missing)."""

    def __init__(self, folder: str) -> None:
        """Args: folder: the state folder (`state_folder.open_state_folder`). No file is opened yet."""
        self._path = f"{folder}/{_FOLDER}"
        self._mutex = threading.Lock()
        self._descriptors: tuple[int, int] | None = None  # the folder, the lock in it
        self._held: dict[str, HeldMountPoint] = {}  # by path without symbolic links
        self._spellings: dict[str, HeldMountPoint] = {}  # by path as requested
        self._later: set[str] = set()  # names of entries whose folders could not be removed yet
        self._closer = _Closer()

    def acquire(self, paths: Sequence[str], not_shared: Collection[str] = ()) -> Lease:
        """Make sure that a file or folder exists at every path, all or nothing.

        Call it for every protected name that is missing *or an empty folder*: an empty folder may belong to
        another command, and would be removed with it. Takes about 0.1 ms per path; 0.005 ms and one lstat for
        a path that is already in use; 5 s if another daemon is stopped while it has the registry locked.

        Args:
            paths: absolute; the parent folders must exist. Symbolic links in them are followed.
            not_shared: folders that are not taken for mount points, although they are marked: commands can
                set the mark, too.

        Raises:
            OSError: not possible, with the path as `filename`; nothing is left behind. A FileNotFoundError if
                the parent is missing, or is an empty mount point that this lease does not have.
        """
        with self._mutex:
            lease = Lease(self)
            wanted = dict.fromkeys(paths)
            missing = [path for path in wanted if not self._share(path, lease)]
            try:
                if missing:
                    with self._locked() as folder, ExitStack() as stack:
                        parents = Parents(stack)
                        for path in missing:
                            self._enter(folder, parents, path, lease, not_shared)
                        self._try_again(folder)
            except BaseException:
                self._drop(lease._held)  # noqa: SLF001
                raise
            foreign = {path for path in wanted if self._is_foreign(path)}
            lease.made = tuple(path for path in wanted if path not in foreign)
            lease.foreign = tuple(path for path in wanted if path in foreign)
            return lease

    def adopt(self, points: Sequence[MountPoint], descriptors: Sequence[int]) -> Lease:
        """Adopt the mount points of a dead server. Call it before the first `acquire`.

        Args:
            points: the folders from `Lease.recovery_state`.
            descriptors: copies of its descriptors, in the same order. They belong to the lease from now on;
                copies that another lease already has are closed.

        Raises:
            ValueError: folders and descriptors do not belong together; the descriptors stay open.
        """
        with self._mutex:
            lease = Lease(self)
            for held in adopt(points, descriptors):
                known = self._held.get(held.path)
                if known is not None and known.identity == held.identity:
                    held.close()
                    held = known
                held.count += 1
                self._held.setdefault(held.path, held)
                lease._held.append(held)  # noqa: SLF001
            lease.made = tuple(held.path for held in lease._held if held.is_own)  # noqa: SLF001
            return lease

    def abandon(self, descriptors: Sequence[int]) -> None:
        """Release the locks of descriptors whose mount points are unknown, close them, and sweep.

        Raises:
            OSError: the registry cannot be used; the descriptors are closed anyway.
        """
        try:
            with self._mutex, self._locked():
                for descriptor in descriptors:
                    unlock(descriptor)
                # Some may be copies of ours.
                for held in self._held.values():
                    held.lock()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.sweep()

    def sweep(self) -> list[str]:
        """Remove the folders that no living daemon uses; returns their paths.

        Call it at the start, and best at the end too, when a daemon with another registry may have released
        folders.

        Raises:
            OSError: the registry cannot be used. Faults of single entries are ignored.
        """
        with self._mutex, self._locked() as folder:
            names = [name for name in os.listdir(folder) if name != _LOCK]
            return [path for name in names if (path := self._sweep(folder, name)) is not None]

    def close(self) -> None:
        """Close the registry's own descriptors (idempotent). Leases stay valid."""
        with self._mutex:
            self._close()
            self._closer.finish()

    # -- the registry's folder

    @contextmanager
    def _locked(self) -> Iterator[int]:
        while True:
            try:
                folder, descriptor = self._descriptors or self._open()
            except FolderError as error:
                raise OSError(errno.EACCES, str(error), self._path) from None
            try:
                lock_folder(descriptor, self._path)
            except FolderError as error:
                raise OSError(errno.ETIMEDOUT, str(error), self._path) from None
            # If the lock file was removed by hand or by a cleaner of /tmp, other daemons lock another file.
            if leads_to(f"{self._path}/{_LOCK}", descriptor):
                break
            self._close()
        try:
            yield folder
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _open(self) -> tuple[int, int]:
        folder = open_private(self._path)
        try:
            descriptor = open_file(folder, _LOCK, os.O_CREAT)
        except BaseException:
            os.close(folder)
            raise
        self._descriptors = folder, descriptor
        restore_mode(descriptor)
        return self._descriptors

    def _close(self) -> None:
        for descriptor in self._descriptors or ():
            os.close(descriptor)
        self._descriptors = None

    # -- use of a folder

    def _share(self, path: str, lease: Lease) -> bool:
        held = self._spellings.get(path)
        if held is None or not held.stands(path):
            return False
        self._count(held, path, lease)
        return True

    def _count(self, held: HeldMountPoint, path: str, lease: Lease) -> None:
        held.count += 1
        held.spellings.add(path)
        self._spellings[path] = held
        lease._held.append(held)  # noqa: SLF001

    def _is_foreign(self, path: str) -> bool:
        held = self._spellings[path]
        return not held.is_own

    def _enter(
        self, folder: int, parents: Parents, path: str, lease: Lease, not_shared: Collection[str]
    ) -> None:
        try:
            parent, canonical = parents.resolve(path)
            above = os.path.dirname(canonical)
            is_ours = any(held.path == above for held in lease._held)  # noqa: SLF001
            if not is_ours and above not in not_shared and is_mount_point(above) and is_empty(above):
                # It would not be removed with its sandbox if ours were in it. Seen anew, it is shared.
                raise OSError(errno.ENOENT, "in a mount point of another sandbox")
            held = self._held.get(canonical)
            if held is None or not held.stands(canonical):
                # The held folder has been removed; its leases release it.
                held = self._held[canonical] = take(folder, parent, canonical)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        self._count(held, path, lease)

    def _release(self, held: list[HeldMountPoint]) -> None:
        with self._mutex:
            self._drop(held)

    def _drop(self, users: list[HeldMountPoint]) -> None:
        ended = []
        while users:  # in reverse order: a folder may lie in an earlier one
            held = users.pop()
            held.count -= 1
            if not held.count:
                self._forget(held)
                ended.append(held)
        removed: list[int] = []
        if any(held.entry is not None or held.left_to_us() is not None for held in ended):
            # If the registry cannot be used, the locks are released and a later sweep removes the folders.
            with suppress(OSError), self._locked() as folder:
                for held in ended:
                    with suppress(OSError):
                        self._end(folder, held, removed)
                self._try_again(folder)
        for held in ended:
            held.unlock()
            held.close()
        if removed:
            self._closer.close(removed)

    def _forget(self, held: HeldMountPoint) -> None:
        if self._held.get(held.path) is held:
            del self._held[held.path]
        for spelling in held.spellings:
            if self._spellings.get(spelling) is held:
                del self._spellings[spelling]

    def _end(self, folder: int, held: HeldMountPoint, removed: list[int]) -> None:
        foreign = held.left_to_us()
        held.leave()
        if foreign is not None:
            foreign.remove_folder(removed.append)
        if held.entry is None or held.descriptor is None or not lock(held.descriptor):
            return  # it is foreign, or another daemon still uses it
        # Another daemon may have made it anew.
        entry = read_again(held.descriptor, held.entry)
        if entry.remove_folder(removed.append) is Outcome.LATER:
            self._later.add(key(held.path))
            return
        unlink(folder, held.path, held.descriptor)
        # The file's descriptor too: after some seconds its line has been allocated on the disk.
        removed.append(held.descriptor)
        held.descriptor = None

    # -- folders that could not be removed yet, or that dead daemons left

    def _try_again(self, folder: int) -> None:
        for name in list(self._later):
            self._sweep(folder, name)

    def _sweep(self, folder: int, name: str) -> str | None:
        try:
            descriptor = open_file(folder, name)
        except FileNotFoundError:
            self._later.discard(name)
            return None
        except OSError:
            return None  # not an entry, or no descriptor is left
        try:
            if not lock(descriptor):
                return None  # in use
            entry = read(descriptor)
            # Without a first line no folder was made.
            outcome = Outcome.NOT_OURS if entry is None or key(entry.path) != name else entry.remove_folder()
            if outcome is Outcome.LATER:
                self._later.add(name)
                return None
            os.unlink(name, dir_fd=folder)
            self._later.discard(name)
            return entry.path if entry is not None and outcome is Outcome.REMOVED else None
        except OSError:
            return None
        finally:
            os.close(descriptor)


class _Closer:
    """Closes descriptors of removed files in a thread, as some disks are slow. For one caller at a time."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self, descriptors: list[int]) -> None:
        """Close them soon, or at once if the disk is too slow."""
        if self._queue.qsize() >= _MAX_CLOSING or not self._runs():
            _close_all(descriptors)
        else:
            self._queue.put(descriptors)

    def finish(self) -> None:
        """Wait until all are closed, and end the thread; the next `close` starts a new one."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _runs(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="mount points", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (descriptors := self._queue.get()) is not None:
            _close_all(descriptors)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
