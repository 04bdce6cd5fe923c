"""Sandbox contexts as they stand on the wire."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.support.wire import Json, path_uri


def special(kind: str, access: str, **members: str) -> Json:
    """An entry for a role: `root`, `minimal`, `project_roots`, `slash_tmp`, `tmpdir`, …"""
    return {"path": {"type": "special", "value": {"kind": kind, **members}}, "access": access}


def at(path: str | os.PathLike[str], access: str) -> Json:
    """An entry for one path."""
    return {"path": {"type": "path", "path": path_uri(path)}, "access": access}


def glob(pattern: str, access: str = "deny") -> Json:
    """An entry for whatever matches."""
    return {"path": {"type": "glob_pattern", "pattern": pattern}, "access": access}


def restricted(*entries: Json, network: str = "restricted") -> Json:
    """Permissions that limit files to entries, and the network."""
    file_system = {"type": "restricted", "entries": list(entries)}
    return {"type": "managed", "file_system": file_system, "network": network}


def unrestricted(network: str = "restricted") -> Json:
    """Permissions that limit the network at most."""
    return {"type": "managed", "file_system": {"type": "unrestricted"}, "network": network}


def context(
    permissions: Json,
    *,
    cwd: str | os.PathLike[str] | None = None,
    roots: Sequence[str | os.PathLike[str]] = (),
    **members: Json,
) -> Json:
    """The `sandbox` member of a request."""
    place = {} if cwd is None else {"cwd": path_uri(cwd)}
    return {
        "permissions": permissions,
        "workspaceRoots": [path_uri(root) for root in roots],
        "windowsSandboxLevel": "disabled",
        **place,
        **members,
    }


READ_ROOT = special("root", "read")
WRITE_WORKSPACE = special("project_roots", "write")
WRITE_TMP = (special("slash_tmp", "write"), special("tmpdir", "write"))

READ_ONLY = restricted(READ_ROOT)
WORKSPACE = restricted(READ_ROOT, WRITE_WORKSPACE, *WRITE_TMP)
WORKSPACE_WITH_NETWORK = restricted(READ_ROOT, WRITE_WORKSPACE, *WRITE_TMP, network="enabled")
WORKSPACE_WITHOUT_TMP = restricted(READ_ROOT, WRITE_WORKSPACE)
MINIMAL = restricted(special("minimal", "read"), WRITE_WORKSPACE)
DISABLED: Json = {"type": "disabled"}
