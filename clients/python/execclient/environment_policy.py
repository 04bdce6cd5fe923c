"""What a command inherits of the daemon's environment. `docs/protocol.md`, "Environment policy"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from execclient.connection import Json

Inherit = Literal["all", "core", "none"]


@dataclass(frozen=True, slots=True)
class EnvironmentPolicy:
    """A choice of the daemon's variables, made by the daemon: their values never come here.

    Patterns have `*` for any text and `?` for any character, and ignore case. The steps are taken in the
    order of the fields; the variables that a call sets by itself are laid over what they give.
    """

    inherit: Inherit = "all"
    """All of the daemon's environment, its core (HOME, PATH, …), or nothing."""
    default_excludes: bool = False
    """Whether names with KEY, SECRET or TOKEN in them go."""
    exclude: tuple[str, ...] = ()
    """Patterns of names that go."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added."""
    include_only: tuple[str, ...] = ()
    """If not empty: names that match none of these go, those that were just added too."""

    def wire(self) -> dict[str, Json]:
        """As `process/start` takes it."""
        return {
            "inherit": self.inherit,
            "ignoreDefaultExcludes": not self.default_excludes,
            "exclude": list(self.exclude),
            "set": dict(self.set),
            "includeOnly": list(self.include_only),
        }
