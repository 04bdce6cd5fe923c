"""Confinement of requests: policies, and the backends that enforce them.

    SandboxContext ──resolve──▶ Policy ───read the disk───▶ View ──▶ arguments of a backend ──▶ spawn
      (the wire)    (policy.py)        (view.py, protected.py,      (bubblewrap.py, landlock.py,
                                        tree.py, glob_search.py, disk.py)  seccomp.py, seatbelt.py)

A request that asks for confinement is confined or refused (`refused`). It never runs unconfined.
"""

from __future__ import annotations

from execprotocol.errors import InvalidRequest

ENTRIES_FIELD = "sandbox.permissions.file_system.entries"
"""The parameter that names the entries of a policy, for errors."""


def refused(reason: str, field: str = ENTRIES_FIELD) -> InvalidRequest:
    """The error of a request whose sandbox cannot be made. Other requests may still be confined.

    Args:
        reason: what is wrong, and the fix.
        field: the parameter at fault.
    """
    return InvalidRequest(f"failed to prepare process sandbox: {reason}", name="sandbox_refused", field=field)
