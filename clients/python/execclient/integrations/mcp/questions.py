"""Approvals by elicitation: the user of the host answers.

There are two ways for a question, by the version of the protocol. Up to 2025-11-25 the server sends a request
of its own while the call waits. From 2026-07-28 on the call returns with the question, and the host calls
again with the answer; the first call keeps running until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcp.server.session import ServerSession
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult

from execclient.govern.approvals import ACCEPT, ACCEPT_FOR_SESSION, DECLINE, ApprovalRequest, Review
from execclient.govern.queue_approver import PendingApproval

ANSWER_SECONDS = 600.0
"""How long a question waits for its answer. The call is then refused."""

KEY = "approval"
"""The name of the question in the protocol from 2026-07-28 on."""

NO_ELICITATION = (
    "it needs an approval, and this host cannot ask its user (it has no elicitation). Nothing was run. The "
    "user can permit it by a rule in {rules}, or start `execserver mcp` with --writable DIR, --network or "
    "--sandbox danger-full-access"
)
UNANSWERED = Review("denied", f"the user did not answer within {ANSWER_SECONDS:g} s")
DISMISSED = Review("denied", "the user dismissed the question")

_ONCE, _FOR_SESSION = "this time", "in this session"


@dataclass(eq=False)
class Questions:
    """The questions of one call. A `Reviewer` for it."""

    asks: bool
    """Whether the host can ask its user."""
    rules: str
    """Where the rules are, for the refusal."""
    waiting: asyncio.Queue[PendingApproval] = field(default_factory=asyncio.Queue)

    async def review(self, request: ApprovalRequest) -> Review | None:
        """Wait for the answer."""
        if not self.asks:
            return Review("denied", NO_ELICITATION.format(rules=self.rules))
        pending = PendingApproval(request)
        self.waiting.put_nowait(pending)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await pending.answered()
        except TimeoutError:
            return UNANSWERED
        finally:
            pending.withdraw()


def can_ask(session: ServerSession) -> bool:
    """Whether the host shows forms to its user."""
    capabilities = session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    # Without members it is a form (2025-06-18).
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def question(request: ApprovalRequest) -> ElicitRequest:
    """The form for a request."""
    lines = [
        request.prompt or "The model asks to change files.",
        "",
        request.command or "\n".join(request.paths),
    ]
    if request.reason:
        lines += ["", f"Reason: {request.reason}"]
    if request.permits:
        lines += ["", "This permits:", *(f"- {each}" for each in request.permits)]
    if request.diff:
        lines += ["", request.diff]
    schema = {
        "type": "object",
        "properties": {
            "remember": {
                "type": "string",
                "title": "How long the approval holds",
                "enum": [_ONCE, _FOR_SESSION],
                "default": _ONCE,
            }
        },
    }
    params = ElicitRequestFormParams(message="\n".join(lines), requested_schema=schema)
    return ElicitRequest(params=params)


def answer(result: ElicitResult) -> Review:
    """The review for an answer of the host."""
    if result.action == "decline":
        return DECLINE
    if result.action == "cancel":
        return DISMISSED
    content: Mapping[str, object] = result.content or {}
    return ACCEPT_FOR_SESSION if content.get("remember") == _FOR_SESSION else ACCEPT
