"""What a command inherits of the daemon's environment. `docs/protocol.md`, "Environment policy"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from execclient.connection.connection import Json

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


def environment_policy(value: str | Mapping[str, Json] | EnvironmentPolicy) -> EnvironmentPolicy:
    """The policy that a configuration names.

    Args:
        value: what is inherited (`all`, `core` or `none`), or an object with members named as the fields.

    Raises:
        ValueError: it is neither; the message names the member and what is possible.
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
        if name in ("exclude", "include_only") and not _is_texts(member):
            raise ValueError(f"{name}: a list of patterns is needed")
        if name == "set" and not (isinstance(member, Mapping) and _is_texts([*member, *member.values()])):
            raise ValueError("set: an object of strings is needed")
        if name == "default_excludes" and not isinstance(member, bool):
            raise ValueError(f"default_excludes: {member!r} is neither true nor false")
    plain: dict[str, Json] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in members.items()
    }
    return EnvironmentPolicy(**plain)


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
