"""Notes for a model beside the output of a command: on paths that the sandbox denied, on processes that it
ended, on `apply_patch`, which is no program, and on a script that is too long.

A note is added only where its case occurs, and never with parity.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from execclient.errors import CallFailed
from execclient.govern.policy.scripts import read
from execclient.govern.policy.unwrapping import program
from execclient.tools import exec_text
from execclient.tools.command_call import CommandCall
from execclient.tools.context import CallContext
from execclient.tools.exec_session import ExecSession

PATCH_NAMES = ("apply_patch", "applypatch", "apply-patch")

_NO_PATCH_PROGRAM = re.compile(
    r"(?:{names})['\u2019]?: (?:(?:command )?not found|No such file or directory)"
    r"|(?:command not found|Unknown command):? ['\u2018]?(?:{names})\b".format(names="|".join(PATCH_NAMES))
)
"""As bash, dash, busybox, zsh and fish report a missing program."""

_WITHOUT_PERMISSIONS = ("run_shell_command",)
"""Tools without the argument `sandbox_permissions`."""

_TO_THE_END = ("shell", "container.exec", "local_shell")
"""Tools that take a program and its arguments."""


def notes(
    context: CallContext, call: CommandCall, session: ExecSession, output: str, *, denied: bool
) -> list[str]:
    """The notes on a command that has ended.

    Args:
        context: the context of the call that gets the answer.
        call: the call that started the command.
        session: its process.
        output: the output in this answer.
        denied: whether the sandbox was probably the reason for its failure.
    """
    if context.services.policy.parity:
        return []
    found: list[str] = []
    found += network_notes(context, call)
    if denied:
        found += _denial(context, call, session.process.denial or {})
    ended = session.process.ended_with_sandbox
    if ended is not None:
        found.append(_ended(context, call, ended))
    if _NO_PATCH_PROGRAM.search(output) and _calls_patch(call.params.command):
        found.append(_no_patch_program(context, call))
    return found


def network_notes(context: CallContext, call: CommandCall) -> list[str]:
    """The note on hosts that were denied since the last answer about the command, which may still run."""
    if call.network is None or context.services.policy.parity:
        return []
    hosts = call.network.take_denied()
    return [exec_text.denied_hosts(hosts)] if hosts else []


def start_note(context: CallContext, call: CommandCall, error: CallFailed) -> str | None:
    """The note on a command that could not be started; None if there is none."""
    if error.errno == errno.E2BIG:
        return exec_text.TOO_LONG
    if error.errno == errno.ENOENT and program(call.params.command[0]) in PATCH_NAMES:
        return _no_patch_program(context, call)
    return None


def _calls_patch(argv: Sequence[str]) -> bool:
    """Whether a command runs a program named `apply_patch`, by itself or in its script."""
    return any(program(command[0]) in PATCH_NAMES for command in read(argv).commands if command)


def _no_patch_program(context: CallContext, call: CommandCall) -> str:
    """The note on a command that calls `apply_patch` in a form that only a shell could carry out."""
    if context.services.config.apply_patch:
        advice = exec_text.PATCH_BY_TOOL
    elif call.tool in _TO_THE_END:
        advice = exec_text.PATCH_BY_ARGUMENTS
    else:
        advice = exec_text.PATCH_BY_SCRIPT
    return exec_text.NO_PATCH_PROGRAM.format(advice=advice)


def _denial(context: CallContext, call: CommandCall, denial: Mapping[str, Any]) -> Iterable[str]:
    evidence: Sequence[Mapping[str, str]] = denial.get("evidence") or ()
    reasons: dict[str, list[str]] = {}
    for item in evidence:
        reason = item.get("reason", item["kind"])
        reasons.setdefault(reason, []).append(item.get("protectedPath") or item.get("path") or "")
    texts = [
        exec_text.DENIALS[reason].format(paths=", ".join(dict.fromkeys(paths)))
        for reason, paths in reasons.items()
        if reason in exec_text.DENIALS
    ]
    if not texts:
        return
    if any(warning.startswith(exec_text.RETRY_REFUSED) for warning in context.warnings):
        way_out = ""  # the user has just been asked
    elif context.approval.may_escalate and call.tool not in _WITHOUT_PERMISSIONS:
        way_out = exec_text.ASK_TO_ESCALATE.format(tool=call.tool)
    else:
        way_out = exec_text.TELL_THE_USER
    yield f"Warning: {' '.join(texts)} {way_out}".rstrip()


def _ended(context: CallContext, call: CommandCall, ended: Mapping[str, Any]) -> str:
    if context.services.config.shell_type == "unified_exec":
        advice = exec_text.KEEP_IN_FOREGROUND
    elif context.approval.may_escalate and call.tool not in _WITHOUT_PERMISSIONS:
        advice = exec_text.KEEP_BY_ESCALATION.format(tool=call.tool)
    else:
        advice = exec_text.KEEP_IN_ONE_COMMAND
    return exec_text.ended_with_sandbox(ended["count"], ended["names"], advice)
