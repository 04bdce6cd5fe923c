"""Which changes a request's sandbox may see.

The program of a watch runs in the sandbox, but inotify reports the names in a visible folder, also those that
the sandbox covers, and those of files that are made later and match a denying pattern. So each change is
checked against the policy, too.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from execserver.sandbox.glob_patterns import matches
from execserver.sandbox.policy import Access, Policy


class Visibility:
    """What a policy shows. Blocks while it is made: the paths of the policy are looked up.

    Args:
        policy: limits files.
    """

    def __init__(self, policy: Policy) -> None:
        self._globs = policy.deny_globs
        self._as_named = policy
        rules = [replace(rule, path=os.path.realpath(rule.path)) for rule in policy.rules]
        # Of two rules for one path the narrower one counts last; deeper ones after shallow ones.
        rules.sort(key=lambda rule: (rule.path.count("/"), len(rule.path) > 1, -rule.access))
        self._real = replace(policy, rules=tuple(rules))

    def shows(self, real: str, requested: str) -> bool:
        """Whether a path may be seen.

        Args:
            real: without links.
            requested: as the client names it.
        """
        if self._globs and (matches(self._globs, real) or matches(self._globs, requested)):
            return False
        return self._real.access(real) is not Access.DENY


def reading_only(policy: Policy) -> Policy:
    """A policy without writing: a watch needs none, and then no mount points for what stays protected."""
    rules = tuple(replace(rule, access=min(rule.access, Access.READ)) for rule in policy.rules)
    globs = tuple(replace(glob, access=min(glob.access, Access.READ)) for glob in policy.globs)
    return replace(policy, rules=rules, globs=globs)
