"""Sandboxes that a dead server made: their commands still run, and the new server cleans up after them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.bare_roots import WatchedRoots
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.mount_points.description import Description
from execserver.sandbox.mount_points.registry import Lease, MountPoints
from execserver.sandbox.policy import Policy


class AdoptedSandbox(Confinement):
    """A sandbox with a valid description, which behaves as if this server had made it."""

    def __init__(
        self, description: Description, lease: Lease | None, watched: WatchedRoots | None = None
    ) -> None:
        super().__init__(description.policy, description.cwd, lease, watched)
        self.backend = description.backend
        self.namespaces = description.namespaces

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """Raises:
        ValueError: always.
        """
        raise _runs()


class UnknownSandbox(Confinement):
    """A sandbox whose description cannot be parsed.

    Its policy is unknown, so its commands never have evidence of a denial. At its end its locks are released
    and unused mount points are removed.
    """

    backend = "bubblewrap"
    namespaces = False

    def __init__(self, description: object, descriptors: Sequence[int], registry: MountPoints | None) -> None:
        super().__init__(Policy(unrestricted=True, network=True), "/", None)
        self._description: Any = description
        self._descriptors = list(descriptors)
        self._registry = registry

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False, gated: bool = False) -> LaunchSpec:
        """Raises:
        ValueError: always.
        """
        raise _runs()

    @property
    def releases_at_once(self) -> bool:
        """See `Confinement`."""
        return not self._descriptors

    def recovery_state(self) -> tuple[dict[str, object], list[int]]:
        """See `Confinement`. A server of another version may understand the description."""
        return self._description, list(self._descriptors)

    def release(self) -> None:
        """See `Confinement`."""
        descriptors, self._descriptors = self._descriptors, []
        if self._registry is None:
            for descriptor in descriptors:
                os.close(descriptor)
        elif descriptors:
            with suppress(OSError):  # a later sweep removes the mount points
                self._registry.abandon(descriptors)


def _runs() -> ValueError:
    return ValueError("the command of this sandbox has been started, by another server")
