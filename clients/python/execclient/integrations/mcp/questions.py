"""Approvals by elicitation: the user of the host answers.

There are two ways for a question, by the version of the protocol. Up to 2025-11-25 the server sends a request
of its own while the call waits. From 2026-07-28 on a server sends no requests: the call ends with the
question, nothing having run, and the host makes the same call with the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp_types import ElicitRequestFormParams, ElicitResult, InputResponses

from execclient.govern.approvals import (
    ACCEPT,
    ACCEPT_FOR_SESSION,
    CANCEL,
    DECLINE,
    ApprovalRequest,
    Review,
)
from execclient.govern.terminal_approver import HEADLINES, length_note, network_lines, quoted, visible

ANSWER_SECONDS = 600.0
"""How long a question waits for its answer. The call is then refused."""

NO_ELICITATION = (
    "it needs an approval, and this host cannot ask its user (it has no elicitation). Nothing was run. The "
    "user can permit it by a rule in {rules}, or start `execserver mcp` with --writable DIR, --network or "
    "--sandbox danger-full-access"
)
ASK_AGAIN = (
    "this host can be asked only before a command runs: to run it without the sandbox, call again with "
    'sandbox_permissions "require_escalated"'
)
NOT_WHILE_RUNNING = (
    "this host can be asked only before a command runs: the user can allow the host by a rule, or by "
    "--network-allow of `execserver mcp`"
)
NO_CALL = (
    "the call that started the command has ended, and the user can be asked during a call only: the user can "
    "allow the host by a rule, or by --network-allow of `execserver mcp`"
)
UNANSWERED = Review("denied", f"the user did not answer within {ANSWER_SECONDS:g} s")
DISMISSED = Review("denied", "the user dismissed the question")

_ONCE, _FOR_SESSION = "this time", "in this session"


@dataclass(eq=False)
class Questions:
    """The questions of one call: a `Reviewer` for it.

    Args:
        context: the request of the host.
        answers: the answers that came with the request, by the name of the question.
        rules: where the rules are, for a refusal.
    """

    context: ServerRequestContext[object, object]
    answers: InputResponses
    rules: str
    open: tuple[str, ElicitRequestFormParams] | None = None
    """The name and the form of the question with which the call ended."""

    async def review(self, request: ApprovalRequest) -> Review | None:
        """Get the answer, or end the call if it has to come with another one."""
        session = self.context.session
        if not can_ask(session):
            return Review("denied", NO_ELICITATION.format(rules=self.rules))
        form = question(request)
        if session.can_send_request:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    result = await session.elicit_form(
                        form.message, form.requested_schema, self.context.request_id
                    )
            except TimeoutError:
                return UNANSWERED
            return review_of(result)
        if request.kind == "network":
            return Review("denied", NOT_WHILE_RUNNING)
        if request.retry:
            return Review("denied", ASK_AGAIN)
        # An answer holds for its question only.
        name = f"approval-{hashlib.sha256(form.message.encode()).hexdigest()[:16]}"
        answer = self.answers.get(name)
        if isinstance(answer, ElicitResult):
            return review_of(answer)
        self.open = (name, form)
        return CANCEL


def can_ask(session: ServerSession) -> bool:
    """Whether the host shows forms to its user."""
    capabilities = session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    # Without members it is a form (2025-06-18).
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def question(request: ApprovalRequest) -> ElicitRequestFormParams:
    """The form for a request.

    No text of the model looks like a line of the form, and its invisible characters are escaped.
    """
    lines = [visible(request.prompt or HEADLINES[request.kind]), "", *quoted("", request.command)]
    if request.network is not None:
        lines = [lines[0], "", *network_lines(request.network), *lines[1:]]
    if length := length_note(request.command):
        lines.append(f"Length: {length}")
    lines += [f"File: {visible(path)}" for path in request.paths]
    lines.append(f"Folder: {visible(request.cwd)}")
    if request.reason:
        lines.append(f"Reason: {visible(request.reason)}")
    if request.permits:
        lines += ["", "This permits:", *(f"- {visible(each)}" for each in request.permits)]
    if request.diff:
        lines += ["", *quoted("", request.diff)]
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
    return ElicitRequestFormParams(message="\n".join(lines), requested_schema=schema)


def review_of(result: ElicitResult) -> Review:
    """The review for an answer of the host."""
    if result.action == "decline":
        return DECLINE
    if result.action == "cancel":
        return DISMISSED
    content: Mapping[str, object] = result.content or {}
    return ACCEPT_FOR_SESSION if content.get("remember") == _FOR_SESSION else ACCEPT
