"""How one command is confined: what a backend makes of its program, arguments and variables.

The backends themselves are in `backends.py`, which is imported when the first sandbox is made.

Sandboxes.prepare ──▶ Confinement ──wrap, on the loop's thread──▶ LaunchSpec ──▶ spawn
 (in a thread)            └── release, once nothing runs inside any more
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.mount_points.description import VERSION, Backend, Description, written
from execserver.sandbox.policy import Policy

if TYPE_CHECKING:
    from execserver.sandbox.bare_roots import Watched
    from execserver.sandbox.mount_points.registry import Lease


class Confinement(ABC):
    """One command's sandbox."""

    backend: Backend
    namespaces: bool
    """Whether it has processes of its own, all of which end with its first one."""

    def __init__(self, policy: Policy, cwd: str, lease: Lease | None, watched: Watched | None = None) -> None:
        self.policy = policy
        self.cwd = cwd
        self._lease = lease
        self._watched = watched

    @abstractmethod
    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False) -> LaunchSpec:
        """Prepare the spawn.

        Raises:
            OSError: no descriptor is to be had.
            ValueError: something cannot be an argument.
        """

    @property
    def releases_at_once(self) -> bool:
        """Whether `release` cannot block."""
        return self._lease is None and self._watched is None

    @property
    def shows(self) -> bool:
        """Whether there are folders on the host because of it, until it is released."""
        return self._lease is not None and bool(self._lease.made)

    def kept(self) -> tuple[dict[str, object], list[int]]:
        """What a later server needs to go on with this sandbox (`Sandboxes.adopt`), should this one die: a
        description to be written down, which JSON can carry, and descriptors for somebody to keep copies of.
        They still belong to this object. To be asked while the command runs.
        """
        points, descriptors = self._lease.kept() if self._lease is not None else ([], [])
        return (
            written(
                Description(VERSION, self.backend, self.namespaces, self.cwd, self.policy, tuple(points))
            ),
            descriptors,
        )

    def release(self) -> None:
        """Give back what the sandbox needed on the host. May block for a moment; idempotent."""
        for taken in (self._watched, self._lease):
            if taken is not None:
                taken.release()
