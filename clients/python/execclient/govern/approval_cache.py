"""What was approved for the rest of a session, by key.

A command's key is the JSON array `[ARGV, CWD, TTY, SANDBOX_PERMISSIONS, ADDITIONAL]`: the arguments with the
shell around them, the folder, whether there is a terminal, `use_default`, `require_escalated` or
`with_additional_permissions`, and the additional permissions or null. Whatever in it differs makes it another
command. A grant for any folder has null in the place of CWD. The key of a file of a patch is the object
`{"file": PATH}`.

Where these would let an answer hold for more than was asked, the tools add a sixth member, or the member
`scope` of the object: an object with the executor, the sandbox, the folders of the workspace and the
environment policy, of a patch with `escalated` too. What was approved under one sandbox, at one executor, is
asked about again under another. A policy with parity has keys without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from execclient.connection.connection import Json


class ApprovalCache:
    """The grants of one session."""

    def __init__(self) -> None:
        self._granted: set[str] = set()

    @staticmethod
    def key_of(
        argv: Sequence[str],
        cwd: str,
        tty: bool,
        escalated: bool,
        additional: Mapping[str, Json] | None = None,
        *,
        scope: Mapping[str, Json] | None = None,
    ) -> str:
        """The key of a command."""
        permissions = "require_escalated" if escalated else "use_default"
        if additional is not None:
            permissions = "with_additional_permissions"
        members = [list(argv), cwd, tty, permissions, additional]
        return _canonical(members if scope is None else [*members, scope])

    @staticmethod
    def key_of_file(path: str, *, scope: Mapping[str, Json] | None = None) -> str:
        """The key of one file of a patch."""
        return _canonical({"file": path} if scope is None else {"file": path, "scope": scope})

    @staticmethod
    def key_of_input(process_id: str, *, scope: Mapping[str, Json]) -> str:
        """The key of what is typed into a process."""
        return _canonical({"input": process_id, "scope": scope})

    def covers(self, keys: Sequence[str]) -> bool:
        """Whether all of these were granted. No keys are never granted: there is nothing that they name."""
        return bool(keys) and all(key in self._granted or _anywhere(key) in self._granted for key in keys)

    def remember(self, keys: Iterable[str], *, any_cwd: bool = False) -> None:
        """Grant these, in any folder if that was said."""
        self._granted.update(_anywhere(key) if any_cwd else key for key in keys)


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _anywhere(key: str) -> str:
    members = json.loads(key)
    if isinstance(members, list):
        members[1] = None
    return _canonical(members)
