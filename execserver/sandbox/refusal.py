"""The error of a request whose sandbox cannot be made."""

from __future__ import annotations

from execprotocol.errors import InvalidRequest


def refused(reason: str, field: str) -> InvalidRequest:
    """Refuse *this* request: another one could be confined.

    Args:
        reason: what is wrong, and the way out.
        field: the parameter at fault.
    """
    return InvalidRequest(f"failed to prepare process sandbox: {reason}", name="sandbox_refused", field=field)
