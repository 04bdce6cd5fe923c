"""Which of the daemon's variables a command inherits. `docs/protocol.md`, "Environment policy"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from execclient.connection.connection import Json

Inherit = Literal["all", "core", "none"]


@dataclass(frozen=True, slots=True)
class EnvironmentPolicy:
    """A selection of the daemon's variables. The daemon applies it: their values never reach the client.

    Patterns have `*` for any text and `?` for any character, and ignore case. The steps are taken in the
    order of the fields; the variables of a call (`env`) are then added.
    """

    inherit: Inherit = "all"
    """The whole environment of the daemon, its core (HOME, PATH, …), or nothing."""
    default_excludes: bool = False
    """Whether to remove names that contain KEY, SECRET or TOKEN."""
    exclude: tuple[str, ...] = ()
    """Patterns of names to remove."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Variables to add."""
    include_only: tuple[str, ...] = ()
    """If not empty: remove names that match none of these, including those just added."""

    def wire(self) -> dict[str, Json]:
        """The policy in the form of `process/start`."""
        return {
            "inherit": self.inherit,
            "ignoreDefaultExcludes": not self.default_excludes,
            "exclude": list(self.exclude),
            "set": dict(self.set),
            "includeOnly": list(self.include_only),
        }


def environment_policy(value: str | Mapping[str, Json] | EnvironmentPolicy) -> EnvironmentPolicy:
    """The policy in a configuration.

    Args:
        value: `all`, `core` or `none`, or an object with members named as the fields.

    Raises:
        ValueError: it is neither; the message names the member and the possible values.
    """
    if isinstance(value, EnvironmentPolicy):
        return value
    members: Mapping[str, Json] = {"inherit": value} if isinstance(value, str) else value
    known = {each.name for each in fields(EnvironmentPolicy)}
    for name, member in members.items():
        if name not in known:
            raise ValueError(f"{name}: unknown; there are {', '.join(sorted(known))}")
        if name == "inherit" and member not in get_args(Inherit):
            raise ValueError(f"inherit: {member!r} is none of {', '.join(get_args(Inherit))}")
        if name in ("exclude", "include_only") and not _are_strings(member):
            raise ValueError(f"{name}: a list of patterns is needed")
        if name == "set" and not (isinstance(member, Mapping) and _are_strings([*member, *member.values()])):
            raise ValueError("set: an object of strings is needed")
        if name == "default_excludes" and not isinstance(member, bool):
            raise ValueError(f"default_excludes: {member!r} is neither true nor false")
    plain: dict[str, Json] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in members.items()
    }
    return EnvironmentPolicy(**plain)


def _are_strings(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
