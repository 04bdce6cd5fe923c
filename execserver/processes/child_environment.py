"""The environment of a child: what is inherited, dropped, set and overlaid.

Pure functions on mappings. `docs/protocol.md`, "Environment policy".
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from execprotocol.errors import InvalidParams

if TYPE_CHECKING:
    from execprotocol.process import EnvPolicy


CORE_VARIABLES = frozenset(
    {
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TEMP",
        "TMP",
        "TMPDIR",
        "USER",
        "USERNAME",
    }
)
"""The variables that `inherit: "core"` keeps."""

MAX_PATTERN_CHARACTERS = 4096
"""In one list of patterns, each counted with a separator. Compiling them blocks all clients."""

DEFAULT_EXCLUDES = ("*KEY*", "*SECRET*", "*TOKEN*")

_REMOVED_NAMES = frozenset(
    {
        # The reference's list: credentials of the executor itself.
        "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
        "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
        "OPENAI_IDENTITY_TOKEN_FILE",
        "OPENAI_FEDERATION_RULE_ID",
        # A service manager sets these for the daemon alone: a child that answers NOTIFY_SOCKET or uses
        # LISTEN_FDS would act in the daemon's name.
        "NOTIFY_SOCKET",
        "JOURNAL_STREAM",
        "CREDENTIALS_DIRECTORY",
    }
)
_REMOVED_PREFIXES = ("LISTEN_", "WATCHDOG_", "EXECSERVER_")


def is_always_removed(name: str) -> bool:
    """Whether this variable is kept from every child, whatever its source."""
    return name in _REMOVED_NAMES or name.startswith(_REMOVED_PREFIXES)


def is_dropped(name: str, policy: EnvPolicy | None) -> bool:
    """Whether a policy keeps an inherited variable of this name from the child.

    Raises:
        InvalidParams: the patterns of the policy are too many or too long.
    """
    return policy is not None and name not in _apply({name: ""}, replace(policy, inherit="all", set={}))


def child_environment(
    own: Mapping[str, str], policy: EnvPolicy | None, overlay: Mapping[str, str]
) -> dict[str, str]:
    """The child's variables.

    Args:
        own: the daemon's own environment at launch.
        policy: how to use it; None inherits nothing.
        overlay: laid over the result, unfiltered.

    Raises:
        InvalidParams: the patterns of the policy are too many or too long.
    """
    variables = {} if policy is None else _apply(own, policy)
    variables.update(overlay)
    removed = [name for name in variables if is_always_removed(name)]
    for name in removed:
        del variables[name]
    return variables


def _apply(own: Mapping[str, str], policy: EnvPolicy) -> dict[str, str]:
    if policy.inherit == "all":
        variables = dict(own)
    elif policy.inherit == "core":
        variables = {name: value for name, value in own.items() if name.upper() in CORE_VARIABLES}
    else:
        variables = {}
    if not policy.ignore_default_excludes:
        variables = _without(variables, DEFAULT_EXCLUDES)
    if policy.exclude:
        variables = _without(variables, _bounded(policy.exclude, "exclude"))
    variables.update(policy.set)
    if policy.include_only:
        keep = _matcher(_bounded(policy.include_only, "includeOnly"))
        variables = {name: value for name, value in variables.items() if keep.match(name)}
    return variables


def _bounded(patterns: list[str], member: str) -> tuple[str, ...]:
    if sum(map(len, patterns)) + len(patterns) > MAX_PATTERN_CHARACTERS:
        raise InvalidParams(
            f"the patterns of envPolicy.{member} have more than {MAX_PATTERN_CHARACTERS} characters; "
            "use fewer or shorter ones",
            field=f"envPolicy.{member}",
        )
    return tuple(patterns)


def _without(variables: dict[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    drop = _matcher(patterns)
    return {name: value for name, value in variables.items() if not drop.match(name)}


@lru_cache(maxsize=64)
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Case-insensitive globs with `*` and `?`; square brackets are themselves."""
    globs = (fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns)
    return re.compile("|".join(globs), re.IGNORECASE)
