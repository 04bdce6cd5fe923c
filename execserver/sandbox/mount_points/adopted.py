"""Sandboxes that a dead server made: their commands run, and the new server has to clean up after them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.bare_roots import Watched
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.mount_points.description import Description
from execserver.sandbox.mount_points.registry import Lease, MountPoints
from execserver.sandbox.policy import Policy


class Adopted(Confinement):
    """One whose description was understood: all is as if this server had made it."""

    def __init__(self, description: Description, lease: Lease | None, watched: Watched | None = None) -> None:
        super().__init__(description.policy, description.cwd, lease, watched)
        self.backend = description.backend
        self.namespaces = description.namespaces

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False) -> LaunchSpec:
        """Raises:
        ValueError: always.
        """
        raise _runs()


class Opaque(Confinement):
    """One whose description says nothing to us. It has no policy to hold a failure against, so nothing is
    ever evidence of a denial; its locks are given back at its end, and what is free then is swept.
    """

    backend = "bubblewrap"
    namespaces = False

    def __init__(self, description: object, descriptors: Sequence[int], registry: MountPoints | None) -> None:
        super().__init__(Policy(unrestricted=True, network=True), "/", None)
        self._description: Any = description
        self._descriptors = list(descriptors)
        self._registry = registry

    def wrap(self, command: LaunchSpec, *, dies_with_parent: bool = False) -> LaunchSpec:
        """Raises:
        ValueError: always.
        """
        raise _runs()

    @property
    def releases_at_once(self) -> bool:
        """See `Confinement`."""
        return not self._descriptors

    def kept(self) -> tuple[dict[str, object], list[int]]:
        """See `Confinement`: what another one may understand."""
        return self._description, list(self._descriptors)

    def release(self) -> None:
        """See `Confinement`."""
        descriptors, self._descriptors = self._descriptors, []
        if self._registry is None:
            for descriptor in descriptors:
                os.close(descriptor)
        elif descriptors:
            with suppress(OSError):  # a later sweep does it
                self._registry.abandon(descriptors)


def _runs() -> ValueError:
    return ValueError("the command of this sandbox has been started, by another server")
