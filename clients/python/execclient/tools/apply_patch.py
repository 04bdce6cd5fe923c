"""`apply_patch`: edits files of the executor, as a tool of its own and inside a shell command.

    text ──> parse ──> plan: read the files, compute the result ──> approve ──> write, within the sandbox

Rules kept in this file:

1. No shell runs a patch: a command that calls `apply_patch` without a valid patch is an error for the model.
2. A patch that does not fit needs no approval: it is an error.
3. If the sandbox allows to write all files, a patch is applied like any command of the turn. Otherwise it
   needs an approval; then only the files that the sandbox does not allow to write are written without it. The
   others are written within it: a command may replace their folders by links at any time.
4. The request shows each file by its path in the patch and, if a link leads elsewhere, by the path that would
   be written. If a path leads elsewhere by the time of the answer, nothing is written.
5. Rules are about commands. Rules on `apply_patch` apply to a patch inside a shell command and to the tool of
   that name, if they ask or forbid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from execclient.connection.connection import Json
from execclient.govern.approvals import ApprovalCache, ApprovalRequest
from execclient.govern.orchestrator import SandboxAttempt, SandboxPreference, Trace
from execclient.govern.policy.decision import Requirement
from execclient.govern.policy.rules import STRICTNESS
from execclient.govern.policy.scripts import Lowered
from execclient.govern.sandbox_entries import may_write
from execclient.patch import (
    Applied,
    Beyond,
    Intercepted,
    Patch,
    PatchConflict,
    PatchError,
    Plan,
    TurnDiff,
    apply,
    intercept,
    parse_patch,
    plan_at,
)
from execclient.patch.files import RemoteFiles
from execclient.tools import exec_text
from execclient.tools.arguments import ApplyPatchArguments, parse
from execclient.tools.command_call import approval_scope
from execclient.tools.command_record import decision_of
from execclient.tools.context import CallContext, InterceptedCall
from execclient.tools.errors import Rejected, RespondToModel
from execclient.tools.function_handler import context_of
from execclient.tools.payloads import CustomPayload, FunctionPayload, ToolPayload
from execclient.tools.registry import ToolInvocation, ToolKind
from execclient.tools.result import CallRecord, failed

NAME = "apply_patch"


class PatchRuntime:
    """Carries out one patch. A `orchestrator.ToolRuntime`."""

    sandbox_preference: SandboxPreference = "auto"
    escalate_on_failure = False

    def __init__(self, context: CallContext, plan: Plan, call_id: str) -> None:
        self._context = context
        self._plan = plan
        self._call_id = call_id
        self._targets: dict[str, str] = {}
        """The target of each path, as shown to the approver."""
        self._beyond = frozenset(path for path in plan.paths if not self._may_write(path))
        self.escalated = bool(self._beyond)
        """Whether some file cannot be written within the sandbox."""

    async def find_targets(self) -> None:
        """Find the targets of the paths, which links may lead elsewhere."""
        self._targets = await self._current_targets()

    def requirement(self) -> Requirement:
        """The decision on the patch: run, ask or refuse."""
        approval = self._context.approval
        ruled = self._by_rules()
        if ruled is not None:
            return ruled
        if self.escalated:
            if approval.may_escalate:
                return self._required("ask")
            return self._required("forbidden", exec_text.PATCH_REJECTED_READ_ONLY)
        return self._required("ask" if approval.patches == "ask" else "skip")

    def approval_keys(self) -> Sequence[str]:
        """One key for each file."""
        return tuple(ApprovalCache.key_of_file(path, scope=self._scope()) for path in self._paths)

    def approval_request(
        self, requirement: Requirement, permits: Sequence[str], *, retry: bool
    ) -> ApprovalRequest:
        """The question, with all changes."""
        return ApprovalRequest(
            call_id=self._call_id,
            tool=NAME,
            kind="patch",
            command="",
            argv=(),
            cwd=self._plan.cwd,
            reason=requirement.reason,
            amendment=None,
            permits=tuple(permits),
            retry=retry,
            paths=self._paths,
            diff=self._plan.diff(),
        )

    async def run(self, attempt: SandboxAttempt) -> Applied:
        """Write the files. Raises `PatchError`."""
        context = self._context
        await self._require_same_targets()
        # A target in a folder that commands may write stays within the sandbox: commands may move the link.
        paths = frozenset(path for path in self._beyond if not self._may_write(self._targets.get(path, path)))
        lifted = attempt.policy.context(context.cwd, context.workspace_roots)
        return await apply(
            self._plan, context.executor, sandbox=self._sandbox(), beyond=Beyond(paths, lifted)
        )

    def denied(self, output: Applied) -> bool:
        """Never: a failed write raises."""
        return False

    async def _require_same_targets(self) -> None:
        """Raise PatchConflict if a path has another target than the approved one."""
        if not self._targets:
            return
        now = await self._current_targets()
        for path, target in self._targets.items():
            if now[path] != target:
                raise PatchConflict(
                    f"{path} led to {target} when the patch was approved, and now leads to {now[path]}: "
                    "send the patch again",
                    path,
                )

    async def _current_targets(self) -> dict[str, str]:
        files = RemoteFiles(self._context.executor, self._sandbox())
        return {path: await files.target(path) for path in self._plan.paths}

    def _sandbox(self) -> Mapping[str, Json] | None:
        context = self._context
        return context.sandbox.context(context.cwd, context.workspace_roots)

    def _may_write(self, path: str) -> bool:
        context = self._context
        return may_write(
            context.sandbox.permissions(), path, cwd=context.cwd, workspace_roots=context.workspace_roots
        )

    @property
    def _paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._plan.paths, *self._targets.values())))

    def _scope(self) -> dict[str, Json] | None:
        context = self._context
        if context.services.policy.parity:
            return None
        scope = approval_scope(context.executor, context.sandbox, context.workspace_roots)
        return {**scope, "escalated": self.escalated}

    def _by_rules(self) -> Requirement | None:
        """The decision of rules that ask about `apply_patch` or forbid it."""
        policy, approval = self._context.services.policy, self._context.approval
        found = () if policy.parity else policy.rules.matches((NAME,))
        strict = [match for match in found if match.decision != "allow"]
        if not strict:
            return None
        deciding = max(strict, key=lambda match: STRICTNESS[match.decision])
        if deciding.decision == "forbidden":
            why = deciding.justification or f"policy forbids `{NAME}`"
            required = self._required("forbidden", f"patch rejected: {why}")
        elif not approval.asks_for_rules or (self.escalated and not approval.may_escalate):
            why = "approval required by policy rule, but the approval policy allows no questions"
            required = self._required("forbidden", f"patch rejected: {why}")
        else:
            required = self._required("ask", deciding.justification)
        return replace(required, source="prefix_rule", matches=tuple(strict))

    def _required(self, kind: Literal["skip", "ask", "forbidden"], reason: str | None = None) -> Requirement:
        return Requirement(
            kind,
            "sandbox_mode" if kind == "skip" else "approval_policy",
            reason,
            False,
            None,
            (),
            Lowered((), plain=True),
            self._context.services.policy.revision,
        )


async def apply_patch(
    context: CallContext,
    patch: Patch,
    call_id: str,
    tool: str,
    *,
    cwd: str,
    tracker: object = None,
) -> CallRecord:
    """Carry out a patch.

    Args:
        context: the context of the call.
        patch: the patch.
        call_id: the id of the call.
        tool: the name of the tool that was called.
        cwd: the base of relative paths, absolute.
        tracker: a `TurnDiff` that gets the edits.

    Raises:
        RespondToModel: the patch does not fit; nothing was changed, and no approval was asked for.
        TurnAborted: a reviewer ended the turn.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    target = context.in_environment(context, patch.environment_id)
    if target.executor is not context.executor:
        context, cwd = target, target.cwd
    context.events.begin((NAME,), cwd)
    plan = await _plan(context, patch, cwd)
    trace, runtime = Trace(), PatchRuntime(context, plan, call_id)
    if runtime.requirement().kind == "ask":
        await runtime.find_targets()
    record = CallRecord(call_id, tool, command=(NAME,), cwd=cwd)

    def known(record: CallRecord) -> CallRecord:
        how = decision_of(trace, context.sandbox, "none")
        return replace(record, phases=tuple(trace.phases), decided=how, duration=clock() - began)

    try:
        applied = (await context.orchestrator().run(runtime, context.events, trace)).output
    except Rejected as refusal:
        reason = str(refusal)
        if not reason.startswith("patch "):
            by_user = reason == exec_text.REJECTED_BY_USER
            reason = exec_text.PATCH_REJECTED_BY_USER if by_user else f"patch rejected: {reason}"
        return failed(known(record), "rejected", reason, terminal=True)
    except PatchError as error:
        _track(tracker, error.edits)
        text = exec_text.patch_envelope(error.applet_text, wall_seconds=clock() - began, exit_code=1)
        return failed(replace(known(record), exit_code=1, text=text), "patch", str(error))
    _track(tracker, applied.edits)
    text = exec_text.patch_envelope(applied.text, wall_seconds=clock() - began)
    return replace(known(record), exit_code=0, text=text, stdout=applied.text, aggregated=applied.text)


async def _plan(context: CallContext, patch: Patch, cwd: str) -> Plan:
    """The edits of a patch. Raises `RespondToModel` for a patch that does not fit."""
    try:
        return await plan_at(
            context.executor,
            patch,
            cwd=cwd,
            sandbox=context.sandbox.context(context.cwd, context.workspace_roots),
        )
    except PatchError as error:
        parity = context.services.policy.parity
        raise RespondToModel(error.tool_text if parity else _with_repair(error)) from error


async def intercepted_patch(call: InterceptedCall) -> CallRecord | None:
    """Carry out a command that is a patch; None for any other command.

    Raises:
        RespondToModel: the command is a patch that cannot be carried out.
    """
    found = intercept(call.argv, call.cwd)
    if found is None:
        return None
    if not isinstance(found, Intercepted):
        raise RespondToModel(found.tool_text)
    try:
        patch = found.parse()
    except PatchError as error:
        raise RespondToModel(error.tool_text) from error
    record = await apply_patch(
        call.context,
        patch,
        call.call_id,
        call.tool,
        cwd=found.cwd,
        tracker=call.context.tracker,
    )
    if call.tool == "exec_command" and record.exit_code is not None:
        # That tool puts its own envelope around every result.
        return record.with_text(exec_text.session_envelope(record.text, wall_seconds=0.0))
    return record


class ApplyPatchHandler:
    """Handles patches as plain text and as the argument of a function."""

    kind: ToolKind = "custom"

    def matches_kind(self, payload: ToolPayload) -> bool:
        """See `ToolHandler`."""
        return isinstance(payload, CustomPayload | FunctionPayload)

    async def is_mutating(self, invocation: ToolInvocation) -> bool:
        """Always."""
        return True

    async def handle(self, invocation: ToolInvocation) -> CallRecord:
        """Carry out the patch."""
        context, payload = context_of(invocation), invocation.payload
        if isinstance(payload, CustomPayload):
            text = payload.input
        else:
            assert isinstance(payload, FunctionPayload)
            text = parse(ApplyPatchArguments, payload.arguments).input
        try:
            patch = parse_patch(text)
        except PatchError as error:
            raise RespondToModel(error.tool_text) from error
        return await apply_patch(
            context, patch, invocation.call_id, invocation.tool_name, cwd=context.cwd, tracker=context.tracker
        )


def _track(tracker: object, edits: Sequence[object]) -> None:
    if isinstance(tracker, TurnDiff):
        tracker.add(edits)  # type: ignore[arg-type]


def _with_repair(error: PatchError) -> str:
    """The text of the contract, followed by the nearest places in the file."""
    repair = getattr(error, "repair", None)
    return error.tool_text if repair is None else f"{error.tool_text}\n\n{repair.describe()}"
