"""What becomes of a request that asks for a sandbox: enforced or refused, never run open."""

from __future__ import annotations

from execserver.protocol.errors import InvalidRequest
from execserver.protocol.sandbox import SandboxContext


def refuse_unenforceable(sandbox: SandboxContext | None) -> None:
    """Refuse a context that this build cannot enforce.

    Raises:
        InvalidRequest: the context limits anything. `docs/protocol.md`, "Sandbox context".
    """
    if sandbox is not None and sandbox.needs_enforcement():
        raise InvalidRequest(
            "failed to prepare process sandbox: this build of execserver has no sandbox backend; "
            "run the request without a sandbox or on an executor that has one"
        )
