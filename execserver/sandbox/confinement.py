"""One command's confinement.

The backends that make it are in `backends.py`, which is imported when the first sandbox is made.

Sandboxes.prepare ──▶ Confinement ──wrap, on the loop's thread──▶ LaunchSpec ──▶ spawn
 (in a thread)            └── release, after the last process inside has ended
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.mount_points import description
from execserver.sandbox.mount_points.description import VERSION, Description
from execserver.sandbox.policy import Access, Policy

if TYPE_CHECKING:
    from execserver.sandbox.bare_roots import WatchedRoots
    from execserver.sandbox.mount_points.registry import Lease


class Confinement(ABC):
    """One command's sandbox."""

    backend: str
    """Its name: `bubblewrap`, `landlock`, `seccomp`, `seatbelt`, or that of an entry point."""
    namespaces: bool
    """Whether it has a pid namespace, in which all processes end with the first one."""

    def __init__(
        self, policy: Policy, cwd: str, lease: Lease | None, watched: WatchedRoots | None = None
    ) -> None:
        self.policy = policy
        self.cwd = cwd
        self._lease = lease
        self._watched = watched

    @abstractmethod
    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """Prepare the spawn.

        Args:
            command: the command.
            dies_with_parent: whether it is killed when the thread that spawns it ends.
            gated: whether it waits, where the backend can do that, until the `gate` of the result is opened.

        Raises:
            OSError: no descriptor is left.
            ValueError: an argument, variable or path cannot be passed.
        """

    @property
    def own_processes(self) -> int:
        """The processes of the backend itself, beside those of the command."""
        return 1 + self.namespaces if self.backend == "bubblewrap" or self.namespaces else 0

    @property
    def releases_at_once(self) -> bool:
        """Whether `release` cannot block."""
        return self._lease is None and self._watched is None

    @property
    def shows(self) -> bool:
        """Whether it has made folders on the host, which stay until it is released."""
        return self._lease is not None and bool(self._lease.made)

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """The missing paths for which the command sees empty read-only folders."""
        return () if self._lease is None else self._lease.made

    def spellings(self) -> dict[str, str]:
        """The folders that the command may write, by their real paths where these are other ones. May block
        for a moment.
        """
        folders = [rule.path for rule in self.policy.rules if rule.access is Access.WRITE]
        return {real: path for path in folders if (real := os.path.realpath(path)) != path}

    def recovery_state(self) -> tuple[dict[str, object], list[int]]:
        """State from which a new server can adopt this sandbox (`Sandboxes.adopt`) if this server dies.

        Call it while the command runs.

        Returns:
            A description for JSON, and descriptors to keep copies of; they still belong to this object.
        """
        points, descriptors = self._lease.recovery_state() if self._lease is not None else ([], [])
        watched = self._watched.folders if self._watched is not None else ()
        known = Description(
            VERSION, self.backend, self.namespaces, self.cwd, self.policy, tuple(points), watched
        )
        return description.serialize(known), descriptors

    def release(self) -> None:
        """Release what the sandbox used on the host. May block for a moment; idempotent."""
        for taken in (self._watched, self._lease):
            if taken is not None:
                taken.release()
