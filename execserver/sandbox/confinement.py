"""How one command is confined: what a backend makes of its program, arguments and variables.

The backends themselves are in `backends.py`, which is imported when the first sandbox is made.

Sandboxes.prepare ──▶ Confinement ──wrap, on the loop's thread──▶ Wrapped ──▶ spawn
 (in a thread)            └── release, once nothing runs inside any more
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from execserver.sandbox.description import VERSION, Backend, Description, written
from execserver.sandbox.policy import Policy

if TYPE_CHECKING:
    from execserver.sandbox.mount_points import Lease


class Command(msgspec.Struct, frozen=True):
    """What is to be run, as it would be without a sandbox."""

    program: str
    """Its path."""

    arguments: Sequence[str]
    """The first one is the name that the program sees as its own."""

    cwd: str
    environment: Mapping[str, str]
    tty: bool


class Wrapped(msgspec.Struct, frozen=True):
    """What is spawned in its place. The descriptors belong to the caller from now on."""

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    passed: tuple[int, ...] = ()
    """Descriptors that the child gets under the same numbers, and that the caller closes afterwards."""

    status: int | None = None
    """The file into which the launcher writes its report (`processes/inside.py`); to be read by offset."""

    limit: Callable[[str | None], None] | None = None
    """Takes the limits on, for the thread that spawns (`limited_thread.py`). It is told the path of the
    command's terminal, if it gets one.
    """

    null: str | None = None
    """What to open as an empty standard input, if not `/dev/null`."""

    takes_terminal: bool = False
    """Whether the command makes its terminal its own by itself, inside."""


class Confinement(ABC):
    """One command's sandbox."""

    backend: Backend
    namespaces: bool
    """Whether it has processes of its own, all of which end with its first one."""

    def __init__(self, policy: Policy, cwd: str, lease: Lease | None) -> None:
        self.policy = policy
        self.cwd = cwd
        self._lease = lease

    @abstractmethod
    def wrap(self, command: Command, *, dies_with_parent: bool = False) -> Wrapped:
        """Prepare the spawn.

        Raises:
            OSError: no descriptor is to be had.
            ValueError: something cannot be an argument.
        """

    @property
    def releases_at_once(self) -> bool:
        """Whether `release` cannot block."""
        return self._lease is None

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
        if self._lease is not None:
            self._lease.release()
