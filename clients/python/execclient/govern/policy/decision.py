"""Decides on one command: run, ask, or refuse, with the source of the decision.

Rules kept in this file:

1. Rules judge each command of a script; heuristics judge only a command that no rule matches. The strictest
   verdict decides on the script.
2. Rules that ask or forbid also apply to hidden commands: in substitutions, nested shells, behind `sudo` and
   redirections. Rules that allow never do. `Policy.parity` turns this off, as in the reference.
3. A rule that allows lifts the sandbox only if the host wants that (`Policy.bypass_sandbox`), every command
   of the script has such a rule, and the sandbox does not deny reading. This also holds for a call that asks
   to run without the sandbox: a rule alone does not approve that.
4. If a word is unknown that a rule which asks or forbids would have to know, the decision is to ask.
5. A rule allows only the program that will run. A script is split into commands only for a known shell (a
   bare name, a path in the system's folders, or the account's shell). A program with a relative path, and
   `git`, which runs what the settings of a repository say, are allowed in the turn's directory only.

No I/O.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from execclient.govern.approval_policy import ApprovalPolicy, escalation_refused
from execclient.govern.policy.dangerous import Danger, dangerous
from execclient.govern.policy.policy import Policy
from execclient.govern.policy.proposals import propose
from execclient.govern.policy.rules import STRICTNESS, Argv, Decision, RuleMatch
from execclient.govern.policy.safe import co_safe, is_trusted_shell, known_safe
from execclient.govern.policy.scripts import Lowered, lower, read, script_of
from execclient.govern.sandbox import SandboxPolicy

DecisionSource = Literal["prefix_rule", "host_executable", "heuristic", "approval_policy", "sandbox_mode"]
"""The source of a decision: a rule on the program as named; a rule found by the listed paths of the program;
a guess about the command; the approval policy; or the fact that the sandbox limits the command."""

_MOVING = frozenset({"cd", "pushd", "popd"})
"""Commands that change the directory of the rest of a script."""

UNREADABLE = "its text does not tell what it runs, and there are rules about what may be run"


@dataclass(frozen=True, slots=True)
class Requirement:
    """The decision on a command, with its reason."""

    kind: Literal["skip", "ask", "forbidden"]
    source: DecisionSource
    reason: str | None
    """For the reviewer; for the model if the kind is `forbidden`."""
    bypass_sandbox: bool
    """Whether a rule lifts the sandbox for the first attempt."""
    amendment: tuple[str, ...] | None
    """The prefix of a rule that would make the question unnecessary."""
    matches: tuple[RuleMatch, ...]
    lowered: Lowered
    revision: str
    """The revision of the policy that decided."""
    refused_before: bool = False
    """Whether it was refused for the permissions that it asks for, before its commands were judged."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    decision: Decision
    source: DecisionSource
    danger: Danger | None = None
    hidden: bool = False
    """Whether the command is hidden in the script."""
    matches: tuple[RuleMatch, ...] = ()
    command: tuple[str, ...] | None = None

    @property
    def by_rule(self) -> bool:
        return self.source in ("prefix_rule", "host_executable")


def decide(
    argv: Sequence[str],
    *,
    policy: Policy,
    approval: ApprovalPolicy,
    sandbox: SandboxPolicy,
    cwd: str = "/",
    turn_cwd: str | None = None,
    user_shell: str | None = None,
    escalated: bool = False,
    prefix_rule: Sequence[str] | None = None,
    co_commands: Sequence[str] | None = None,
    explicit_repositories: bool = False,
) -> Requirement:
    """Decide on a command.

    Args:
        argv: the command, with the shell around a script.
        policy: the rules.
        approval: the approval policy.
        sandbox: the sandbox of the command.
        cwd: the working directory, absolute: the base of relative programs.
        turn_cwd: the directory of the turn, if the call may have named another one.
        user_shell: the path of the account's shell, at the executor.
        escalated: whether the call asks to run without the sandbox.
        prefix_rule: the prefix of a rule that the model proposes.
        co_commands: the trusted commands of the profile `co`, instead of those that are known to be safe.
        explicit_repositories: see `known_safe`.
    """
    argv = tuple(argv)
    lowered = _lowered(argv, user_shell, parity=policy.parity)
    if escalated and not approval.may_escalate:
        return Requirement(
            "forbidden", "approval_policy", escalation_refused(approval), False, None, (), lowered,
            policy.revision, refused_before=True,
        )  # fmt: skip
    is_moved = turn_cwd is not None and cwd != turn_cwd
    judge = _Judge(
        policy,
        approval,
        sandbox,
        cwd,
        partial(known_safe, explicit_repositories=explicit_repositories)
        if co_commands is None
        else partial(_trusted_by_co, argv, tuple(co_commands)),
        escalated=escalated and sandbox.confines,
        is_elsewhere=not policy.parity
        and (is_moved or any(command[0] in _MOVING for command in lowered.commands)),
    )
    return judge.requirement(argv, lowered, prefix_rule)


def command_line(argv: Sequence[str]) -> str:
    """A command as one line, quoted for a shell."""
    return shlex.join(argv)


# -- one command


def _lowered(argv: Argv, user_shell: str | None, *, parity: bool) -> Lowered:
    """The commands of an argv; the whole argv if its shell is not known to be one."""
    if parity or script_of(argv) is None or argv[0] == user_shell or is_trusted_shell(argv[0]):
        return lower(argv, exact=not parity)
    return Lowered((argv,), plain=False)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges the commands of one call."""

    policy: Policy
    approval: ApprovalPolicy
    sandbox: SandboxPolicy
    cwd: str
    trusted: Callable[[Argv], bool]
    escalated: bool
    """Whether the call asks to lift a sandbox."""
    is_elsewhere: bool
    """Whether a command may run in another directory than the turn's."""

    @property
    def lifts(self) -> bool:
        """Whether rules that allow may lift the sandbox."""
        return self.policy.bypass_sandbox and not self.sandbox.denies_reads

    def requirement(self, argv: Argv, lowered: Lowered, prefix_rule: Sequence[str] | None) -> Requirement:
        """The decision on a call: the strictest verdict on its commands."""
        plain = [self.verdict_on(command) for command in lowered.commands]
        verdicts = plain if self.policy.parity else [*plain, *self.hidden_verdicts(argv, lowered)]
        strictest = max(verdicts, key=lambda verdict: STRICTNESS[verdict.decision])
        matches = tuple(dict.fromkeys(match for verdict in verdicts for match in verdict.matches))

        def required(
            kind: Literal["skip", "ask", "forbidden"],
            source: DecisionSource,
            reason: str | None = None,
            *,
            bypass: bool = False,
            amendment: tuple[str, ...] | None = None,
        ) -> Requirement:
            return Requirement(
                kind, source, reason, bypass, amendment, matches, lowered, self.policy.revision
            )

        if strictest.decision == "allow":
            lifted = self.lifts and all(verdict.by_rule for verdict in plain)
            return required("skip", strictest.source, bypass=lifted)
        if strictest.decision == "forbidden":
            return required("forbidden", strictest.source, _rejection(argv, strictest, matches))

        by_rule = any(verdict.by_rule and verdict.decision == "prompt" for verdict in verdicts)
        refusal = _unaskable(self.approval, by_rule=by_rule, danger=strictest.danger)
        if refusal is not None:
            return required("forbidden", "approval_policy", refusal)
        amendment = None
        if not any(verdict.hidden for verdict in verdicts) and self.approval.asks_for_sandbox:
            # A command that a rule already allows is only asked about because of the sandbox.
            prompted = next(
                (each.command for each in plain if each.decision == "prompt" and not each.matches), None
            )
            amendment = propose(
                self.policy.rules,
                argv,
                lowered,
                prompted,
                prefix_rule,
                cwd=self.cwd,
                parity=self.policy.parity,
            )
        reason = _question(argv, matches) if by_rule else UNREADABLE if strictest.hidden else None
        return required("ask", strictest.source, reason, amendment=amendment)

    def verdict_on(self, command: Argv) -> _Verdict:
        """The verdict on a command that is not hidden."""
        matches = self._deciding(command)
        if matches:
            verdict = _by_rules(command, matches)
            # The rule allows the command in the sandbox, not without it.
            if verdict.decision == "allow" and self.escalated and not self.lifts:
                return _Verdict("prompt", "approval_policy", matches=matches, command=command)
            return verdict
        danger = dangerous(command, strict=not self.policy.parity)
        if self.escalated:
            return _Verdict("prompt", "approval_policy", danger, command=command)
        if danger is not None:
            return _Verdict(_decision(self.approval.dangerous), "heuristic", danger, command=command)
        if self.approval.trusts_known_safe and self._is_trusted(command):
            return _Verdict("allow", "heuristic", command=command)
        decision = _decision(self.approval.unmatched)
        limited = decision == "allow" and self.sandbox.confines
        return _Verdict(decision, "sandbox_mode" if limited else "approval_policy", command=command)

    def hidden_verdicts(self, argv: Argv, lowered: Lowered) -> list[_Verdict]:
        """The verdicts of rules that ask or forbid on hidden commands, program names and unknown words."""
        rules = self.policy.rules
        if all(rule.decision == "allow" for rule in rules.prefix_rules):
            return []
        found = read(argv)
        verdicts = []
        for command in dict.fromkeys((*lowered.commands, *lower(argv).commands, *found.commands)):
            strict = [match for match in self._named(command) if match.decision != "allow"]
            if strict:
                verdicts.append(_by_rules(command, strict, hidden=command not in lowered.commands))
        # A rule that allows this very script covers its unreadable parts, too.
        is_open = (
            found.unreadable
            or any(rules.may_prohibit(words) for words in found.partial)
            or any(rules.may_prohibit_within(words[1:]) for words in found.unknown)
        )
        if is_open and not all(self._deciding(command) for command in lowered.commands):
            verdicts.append(_Verdict("prompt", "heuristic", hidden=True))
        return verdicts

    def _is_trusted(self, command: Argv) -> bool:
        is_git = posixpath.basename(command[0]) == "git"
        return self.trusted(command) and not (is_git and self.is_elsewhere)

    def _deciding(self, command: Argv) -> tuple[RuleMatch, ...]:
        """The rules that decide on a command. Rules that allow must be about the program that will run."""
        matches = self._rules_on(command)
        if self.policy.parity or any(match.decision != "allow" for match in matches):
            return matches
        is_relative = "/" in command[0] and not posixpath.isabs(command[0])
        if self.is_elsewhere and (is_relative or posixpath.basename(command[0]) == "git"):
            return ()
        # The words behind a script are its `$0`, `$1` and so on.
        ends_with_script = all(script_of(match.prefix) is not None for match in matches)
        return () if ends_with_script and matches and len(command) > len(matches[0].prefix) else matches

    def _rules_on(self, command: Argv) -> tuple[RuleMatch, ...]:
        """The rules that match. A rule that allows a name does not allow a path that is not listed for it."""
        return self.policy.rules.matches(command, cwd=self.cwd, unlisted=self.policy.parity)

    def _named(self, command: Argv) -> tuple[RuleMatch, ...]:
        """The rules on a command and on the name of its program."""
        matches = self._rules_on(command)
        name = posixpath.basename(command[0])
        if name in ("", command[0]):
            return matches
        return (*matches, *self.policy.rules.matches((name, *command[1:])))


def _trusted_by_co(argv: Argv, commands: tuple[str, ...], command: Argv) -> bool:
    """Whether the profile `co` trusts a command. It judges the text of the whole script, not of a part."""
    script = script_of(argv)
    if script is not None and command == argv:
        return False  # the script was not split
    return co_safe(shlex.join(command) if script is None else script, commands)


def _by_rules(command: tuple[str, ...], matches: Sequence[RuleMatch], *, hidden: bool = False) -> _Verdict:
    deciding = max(matches, key=lambda match: STRICTNESS[match.decision])
    source: DecisionSource = "prefix_rule" if deciding.resolved_program is None else "host_executable"
    return _Verdict(deciding.decision, source, hidden=hidden, matches=tuple(matches), command=command)


def _decision(verdict: Literal["allow", "ask", "reject"]) -> Decision:
    return {"allow": "allow", "ask": "prompt", "reject": "forbidden"}[verdict]  # type: ignore[return-value]


# -- texts of the reference, which models know


def _rejection(argv: tuple[str, ...], verdict: _Verdict, matches: Sequence[RuleMatch]) -> str:
    command = f"`{command_line(argv)}` rejected: "
    if not verdict.by_rule:
        if verdict.danger == "forced_rm":
            return command + "rm -f style commands are not permitted. Use a safer approach"
        return command + "blocked by policy"
    longest = _longest(matches, "forbidden")
    if longest.justification is not None:
        return command + longest.justification
    return command + f"policy forbids commands starting with `{command_line(longest.prefix)}`"


def _question(argv: tuple[str, ...], matches: Sequence[RuleMatch]) -> str:
    longest = _longest(matches, "prompt")
    if longest.justification is not None:
        return f"`{command_line(argv)}` requires approval: {longest.justification}"
    return f"`{command_line(argv)}` requires approval by policy"


def _longest(matches: Sequence[RuleMatch], decision: Decision) -> RuleMatch:
    return max(
        (match for match in matches if match.decision == decision), key=lambda match: len(match.prefix)
    )


def _unaskable(approval: ApprovalPolicy, *, by_rule: bool, danger: Danger | None) -> str | None:
    """Why the question may not be asked; None if it may."""
    # A removal by force is asked about nevertheless, as in the reference.
    asks = approval.asks_for_rules if by_rule else approval.asks_for_sandbox or danger == "forced_rm"
    if approval.granular is None:
        asks = approval.asks_for_rules if by_rule else approval.asks_for_sandbox
        return None if asks else f"approval required by policy, but AskForApproval is set to {approval.shown}"
    if asks:
        return None
    if by_rule:
        return "approval required by policy rule, but AskForApproval::Granular.rules is false"
    return "approval required by policy, but AskForApproval::Granular.sandbox_approval is false"
