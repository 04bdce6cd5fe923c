"""`apply_patch`: edits of the executor's files, as a tool of its own and in a shell's clothes.

    text ──> parse ──> plan: read the files, compute the result ──> approve ──> write, within the sandbox

Rules kept in this file:

1. A patch is never run by a shell: what calls `apply_patch` and is no patch is an error for the model.
2. Nobody is asked about a patch that does not fit.
3. Where all files may be written anyway, a patch is applied like any command of the turn. Elsewhere somebody
   has to agree, and only then those files that the sandbox does not let be written are written without it.
   The others stay within it: a command may put a link in the place of their folders at any moment.
4. Who is asked is shown each file by its path in the patch and, where a link leads elsewhere, by the path
   that would be written. If a path leads elsewhere by the time of the answer, nothing is written.
5. Rules are about commands. Those on `apply_patch` hold for a patch in a shell's clothes, as they would for
   the command; the tool of that name is no command.
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
from execclient.tools.command_record import decided
from execclient.tools.context import CallContext, InterceptedCall
from execclient.tools.errors import Rejected, RespondToModel
from execclient.tools.function_handler import context_of
from execclient.tools.payloads import CustomPayload, FunctionPayload, ToolPayload
from execclient.tools.registry import ToolInvocation, ToolKind
from execclient.tools.result import CallRecord, failed

NAME = "apply_patch"


class PatchRuntime:
    """Carries out one patch, as `orchestrator.ToolRuntime` has it."""

    sandbox_preference: SandboxPreference = "auto"
    escalate_on_failure = False

    def __init__(self, context: CallContext, plan: Plan, call_id: str) -> None:
        self._context = context
        self._plan = plan
        self._call_id = call_id
        self._leads: dict[str, str] = {}
        """What each path leads to, as the approver was asked about it."""
        self._beyond = frozenset(path for path in plan.paths if not self._may_write(path))
        self.escalated = bool(self._beyond)
        """Whether some file cannot be written within the sandbox."""

    async def find_targets(self) -> None:
        """Find out which files would be written, where that is another than the patch says."""
        self._leads = await self._look()

    def requirement(self) -> Requirement:
        """Whether somebody has to agree."""
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
        """One for each file."""
        return tuple(ApprovalCache.key_of_file(path, scope=self._scope()) for path in self._paths)

    def approval_request(
        self, requirement: Requirement, permits: Sequence[str], *, retry: bool
    ) -> ApprovalRequest:
        """The question, with all that would change."""
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
        """Write it. Raises `PatchError`."""
        context = self._context
        await self._require_same_targets()
        # What leads into a folder that commands may write to is theirs to lead elsewhere.
        paths = frozenset(path for path in self._beyond if not self._may_write(self._leads.get(path, path)))
        lifted = attempt.policy.context(context.cwd, context.workspace_roots)
        return await apply(
            self._plan, context.executor, sandbox=self._sandbox(), beyond=Beyond(paths, lifted)
        )

    def denied(self, output: Applied) -> bool:
        """Never: what could not be written has raised."""
        return False

    async def _require_same_targets(self) -> None:
        """Raises PatchConflict: a path leads elsewhere than who agreed was shown."""
        if not self._leads:
            return
        now = await self._look()
        for path, target in self._leads.items():
            if now[path] != target:
                raise PatchConflict(
                    f"{path} led to {target} when the patch was approved, and now leads to {now[path]}: "
                    "send the patch again",
                    path,
                )

    async def _look(self) -> dict[str, str]:
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
        return tuple(dict.fromkeys((*self._plan.paths, *self._leads.values())))

    def _scope(self) -> dict[str, Json] | None:
        context = self._context
        if context.services.policy.parity:
            return None
        scope = approval_scope(context.executor, context.sandbox, context.workspace_roots)
        return {**scope, "escalated": self.escalated}

    def _by_rules(self) -> Requirement | None:
        """What rules say that ask about `apply_patch`, or forbid it."""
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
            why = "approval required by policy rule, but the approval policy lets nobody be asked"
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
        context: of the call.
        patch: what to do.
        call_id: the call.
        tool: the front door that it came through.
        cwd: absolute; where its relative paths begin.
        tracker: a `TurnDiff` that is told of what was done.

    Raises:
        RespondToModel: the patch does not fit; nothing was changed, and nobody was asked.
        TurnAborted: somebody wants the turn to end.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    elsewhere = context.elsewhere(context, patch.environment_id)
    if elsewhere.executor is not context.executor:
        context, cwd = elsewhere, elsewhere.cwd
    context.events.begin((NAME,), cwd)
    plan = await _planned(context, patch, cwd)
    trace, runtime = Trace(), PatchRuntime(context, plan, call_id)
    if runtime.requirement().kind == "ask":
        await runtime.find_targets()
    record = CallRecord(call_id, tool, command=(NAME,), cwd=cwd)

    def known(record: CallRecord) -> CallRecord:
        how = decided(trace, context.sandbox, "none")
        return replace(record, phases=tuple(trace.phases), decided=how, duration=clock() - began)

    try:
        applied = (await context.orchestrator().run(runtime, context.events, trace)).output
    except Rejected as refusal:
        reason = str(refusal)
        if not reason.startswith("patch "):
            told = reason == exec_text.REJECTED_BY_USER
            reason = exec_text.PATCH_REJECTED_BY_USER if told else f"patch rejected: {reason}"
        return failed(known(record), "rejected", reason, terminal=True)
    except PatchError as error:
        _track(tracker, error.edits)
        text = exec_text.patch_envelope(error.applet_text, wall_seconds=clock() - began, exit_code=1)
        return failed(replace(known(record), exit_code=1, text=text), "patch", str(error))
    _track(tracker, applied.edits)
    text = exec_text.patch_envelope(applied.text, wall_seconds=clock() - began)
    return replace(known(record), exit_code=0, text=text, stdout=applied.text, aggregated=applied.text)


async def _planned(context: CallContext, patch: Patch, cwd: str) -> Plan:
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
    """What came of a command that is a patch; None for another one.

    Raises:
        RespondToModel: it is a patch, and cannot be carried out as it is.
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
        # That tool puts its own envelope around whatever comes of a call.
        return record.with_text(exec_text.session_envelope(record.text, wall_seconds=0.0))
    return record


class ApplyPatchHandler:
    """Takes patches as plain text, and as the argument of a function."""

    kind: ToolKind = "custom"

    def matches_kind(self, payload: ToolPayload) -> bool:
        """Whether it takes such a payload."""
        return isinstance(payload, CustomPayload | FunctionPayload)

    async def is_mutating(self, invocation: ToolInvocation) -> bool:
        """Always."""
        return True

    async def handle(self, invocation: ToolInvocation) -> CallRecord:
        """Carry it out."""
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
    """The contract's text, and behind it what would make the patch fit."""
    repair = getattr(error, "repair", None)
    return error.tool_text if repair is None else f"{error.tool_text}\n\n{repair.describe()}"
