"""What is to become of one command: run, ask, or refuse; and which of five sources says so.

Rules kept in this file:

1. Each command of a script is judged by the rules; only one that no rule matches is judged by heuristics.
   The strictest verdict is the script's.
2. Rules that ask or forbid also see the commands that plain reading does not: those in substitutions, nested
   shells, behind `sudo` and redirections. Rules that allow never do. `Policy.parity` turns this off, as the
   reference has it.
3. An allowing rule lifts the sandbox only if that is the host's wish (`Policy.bypass_sandbox`), every command
   of the script has one, and the sandbox does not deny reading. That holds for a call that asks to be run
   without it, too: a rule alone is no answer to that.
4. Where the text leaves a word open that a rule which asks or forbids would have to see, somebody is asked.
5. What is allowed is allowed for the program that will run. A script is only taken apart for a shell that is
   known to be one (a bare name, one of the system's folders, the account's own); a program with a relative
   path, and `git`, which runs what a repository's settings say, are those of the turn's folder.

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
from execclient.govern.policy.rules import STRICTNESS, Decision, RuleMatch
from execclient.govern.policy.safe import co_safe, is_trusted_shell, known_safe
from execclient.govern.policy.scripts import Lowered, lower, read, script_of
from execclient.govern.sandbox import SandboxPolicy

Source = Literal["prefix_rule", "host_executable", "heuristic", "approval_policy", "sandbox_mode"]
"""What decided: a rule on the program as it was named; one that was found through a list of the paths a
program has; a guess about what a command does; the policy that says when to ask; or that the sandbox limits
whatever is run."""

Argv = tuple[str, ...]

_MOVING = frozenset({"cd", "pushd", "popd"})
"""Behind these a script is in another folder."""

UNREADABLE = "what it runs cannot be told from its text, and there are rules about what may be run"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What has to happen before a command may run."""

    kind: Literal["skip", "ask", "forbidden"]
    source: Source
    reason: str | None
    """For the one who is asked; of `forbidden` for the model."""
    bypass_sandbox: bool
    """Whether the first attempt does without the sandbox, by a rule."""
    amendment: tuple[str, ...] | None
    """A rule that would make the question unnecessary."""
    matches: tuple[RuleMatch, ...]
    lowered: Lowered
    revision: str
    """Of the policy that this was decided by."""
    refused_before: bool = False
    """Whether it was refused for what it asks for, before any command was looked at."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    decision: Decision
    source: Source
    danger: Danger | None = None
    hidden: bool = False
    """Whether plain reading does not show it."""
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
    """Judge a command.

    Args:
        argv: what would be run, the shell around a script included.
        policy: the rules.
        approval: when to ask.
        sandbox: what the command would run under.
        cwd: absolute; where relative programs are looked for.
        turn_cwd: the folder that the host has named, if the call may have named another one.
        user_shell: the path of the account's shell, at the executor.
        escalated: whether it asks to run without the sandbox.
        prefix_rule: a rule that the model proposes.
        co_commands: of the profile `co`: the commands that it trusts instead of those known to be safe.
        explicit_repositories: as for `known_safe`.
    """
    argv = tuple(argv)
    lowered = _lowered(argv, user_shell, parity=policy.parity)
    if escalated and not approval.may_escalate:
        return Requirement(
            "forbidden", "approval_policy", escalation_refused(approval), False, None, (), lowered,
            policy.revision, refused_before=True,
        )  # fmt: skip
    is_moved = turn_cwd is not None and cwd != turn_cwd
    judging = _Judging(
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
    return judging.requirement(argv, lowered, prefix_rule)


def shown(argv: Sequence[str]) -> str:
    """A command as one line, quoted for a shell."""
    return shlex.join(argv)


# -- one command


def _lowered(argv: Argv, user_shell: str | None, *, parity: bool) -> Lowered:
    """The commands of an argv; of one for a shell that may be no shell, it as a whole."""
    if parity or script_of(argv) is None or argv[0] == user_shell or is_trusted_shell(argv[0]):
        return lower(argv, exact=not parity)
    return Lowered((argv,), plain=False)


@dataclass(frozen=True, slots=True)
class _Judging:
    """What the commands of one call are judged by."""

    policy: Policy
    approval: ApprovalPolicy
    sandbox: SandboxPolicy
    cwd: str
    trusted: Callable[[Argv], bool]
    escalated: bool
    """Whether it asks to run without a sandbox that there is."""
    is_elsewhere: bool
    """Whether a command may run in another folder than the turn's."""

    @property
    def lifts(self) -> bool:
        """Whether rules that allow may lift the sandbox."""
        return self.policy.bypass_sandbox and not self.sandbox.denies_reads

    def requirement(self, argv: Argv, lowered: Lowered, prefix_rule: Sequence[str] | None) -> Requirement:
        """The strictest verdict on the commands of a call, as what has to happen before it may run."""
        plain = [self.judged(command) for command in lowered.commands]
        verdicts = plain if self.policy.parity else [*plain, *self.hidden(argv, lowered)]
        strictest = max(verdicts, key=lambda verdict: STRICTNESS[verdict.decision])
        matches = tuple(dict.fromkeys(match for verdict in verdicts for match in verdict.matches))

        def requirement(
            kind: Literal["skip", "ask", "forbidden"],
            source: Source,
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
            return requirement("skip", strictest.source, bypass=lifted)
        if strictest.decision == "forbidden":
            return requirement("forbidden", strictest.source, _rejection(argv, strictest, matches))

        by_rule = any(verdict.by_rule and verdict.decision == "prompt" for verdict in verdicts)
        refusal = _unaskable(self.approval, by_rule=by_rule, danger=strictest.danger)
        if refusal is not None:
            return requirement("forbidden", "approval_policy", refusal)
        amendment = None
        if not any(verdict.hidden for verdict in verdicts) and self.approval.asks_for_sandbox:
            # A command that a rule allows already is asked about for the sandbox's sake.
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
        return requirement("ask", strictest.source, reason, amendment=amendment)

    def judged(self, command: Argv) -> _Verdict:
        """A command that plain reading shows."""
        matches = self._deciding(command)
        if matches:
            verdict = _by_rules(command, matches)
            # It may run without a question where it would run anyway, and not where it asks to run.
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

    def hidden(self, argv: Argv, lowered: Lowered) -> list[_Verdict]:
        """What rules that ask or forbid say beyond plain reading.

        Of hidden commands, of programs anywhere, and of what they cannot see.
        """
        rules = self.policy.rules
        if all(rule.decision == "allow" for rule in rules.prefix_rules):
            return []
        found = read(argv)
        verdicts = []
        for command in dict.fromkeys((*lowered.commands, *lower(argv).commands, *found.commands)):
            strict = [match for match in self._named(command) if match.decision != "allow"]
            if strict:
                verdicts.append(_by_rules(command, strict, hidden=command not in lowered.commands))
        # A rule that allows this very script has seen what cannot be read in it.
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
        """The rules that decide on a command; those that only allow have to be about what will run."""
        matches = self._rules_on(command)
        if self.policy.parity or any(match.decision != "allow" for match in matches):
            return matches
        is_relative = "/" in command[0] and not posixpath.isabs(command[0])
        if self.is_elsewhere and (is_relative or posixpath.basename(command[0]) == "git"):
            return ()
        # What follows a script is what it makes of `$0` and `$1`.
        ends_with_script = all(script_of(match.prefix) is not None for match in matches)
        return () if ends_with_script and matches and len(command) > len(matches[0].prefix) else matches

    def _rules_on(self, command: Argv) -> tuple[RuleMatch, ...]:
        """The rules that match; those that allow a name do not allow a path that nobody has listed for it."""
        return self.policy.rules.matches(command, cwd=self.cwd, unlisted=self.policy.parity)

    def _named(self, command: Argv) -> tuple[RuleMatch, ...]:
        """The rules on a command and on its bare name, wherever its program is."""
        matches = self._rules_on(command)
        name = posixpath.basename(command[0])
        if name in ("", command[0]):
            return matches
        return (*matches, *self.policy.rules.matches((name, *command[1:])))


def _trusted_by_co(argv: Argv, commands: tuple[str, ...], command: Argv) -> bool:
    """By its whole script, whose text that profile judges; a part of it says nothing there."""
    script = script_of(argv)
    if script is not None and command == argv:
        return False  # it was not taken apart
    return co_safe(shlex.join(command) if script is None else script, commands)


def _by_rules(command: tuple[str, ...], matches: Sequence[RuleMatch], *, hidden: bool = False) -> _Verdict:
    deciding = max(matches, key=lambda match: STRICTNESS[match.decision])
    source: Source = "prefix_rule" if deciding.resolved_program is None else "host_executable"
    return _Verdict(deciding.decision, source, hidden=hidden, matches=tuple(matches), command=command)


def _decision(verdict: Literal["allow", "ask", "reject"]) -> Decision:
    return {"allow": "allow", "ask": "prompt", "reject": "forbidden"}[verdict]  # type: ignore[return-value]


# -- texts, which models know from the reference


def _rejection(argv: tuple[str, ...], verdict: _Verdict, matches: Sequence[RuleMatch]) -> str:
    command = f"`{shown(argv)}` rejected: "
    if not verdict.by_rule:
        if verdict.danger == "forced_rm":
            return command + "rm -f style commands are not permitted. Use a safer approach"
        return command + "blocked by policy"
    longest = _longest(matches, "forbidden")
    if longest.justification is not None:
        return command + longest.justification
    return command + f"policy forbids commands starting with `{shown(longest.prefix)}`"


def _question(argv: tuple[str, ...], matches: Sequence[RuleMatch]) -> str:
    longest = _longest(matches, "prompt")
    if longest.justification is not None:
        return f"`{shown(argv)}` requires approval: {longest.justification}"
    return f"`{shown(argv)}` requires approval by policy"


def _longest(matches: Sequence[RuleMatch], decision: Decision) -> RuleMatch:
    return max(
        (match for match in matches if match.decision == decision), key=lambda match: len(match.prefix)
    )


def _unaskable(approval: ApprovalPolicy, *, by_rule: bool, danger: Danger | None) -> str | None:
    """Why nobody may be asked, or None if somebody may."""
    # A removal by force is asked about all the same, as the reference does.
    asks = approval.asks_for_rules if by_rule else approval.asks_for_sandbox or danger == "forced_rm"
    if approval.granular is None:
        asks = approval.asks_for_rules if by_rule else approval.asks_for_sandbox
        return None if asks else f"approval required by policy, but AskForApproval is set to {approval.shown}"
    if asks:
        return None
    if by_rule:
        return "approval required by policy rule, but AskForApproval::Granular.rules is false"
    return "approval required by policy, but AskForApproval::Granular.sandbox_approval is false"
