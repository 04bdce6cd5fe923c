"""`execserver policy check`: judge a command by the rules, without running it."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from execclient.commands.failures import CommandExit, current_folder, print_message
from execclient.connection.connection import Json
from execclient.errors import PolicyError
from execclient.govern.approval_policy import ApprovalPolicy, approval_policy
from execclient.govern.policy.decision import Requirement, decide
from execclient.govern.policy.policy import Policy, default_home
from execclient.govern.policy.rule_files import find_rule_files, load_rules
from execclient.govern.policy.rules import Argv, RuleMatch, RuleSet, report
from execclient.govern.policy.scripts import literal_commands, unreadable
from execclient.govern.sandbox import WorkspaceWrite
from execclient.tools.environment import exec_environment, explicit_repositories
from execprotocol.command_line import printable

UNUSABLE = 1
"""A rule file cannot be used, so there is no decision."""

STATUS = {"skip": 0, "ask": 10, "forbidden": 20}
"""Exit statuses, higher for stricter decisions, and distinct from those of shells and other commands."""

_WORDS = {"skip": "run", "ask": "ask", "forbidden": "refuse"}


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of the command."""

    argv: list[str]
    files: Sequence[Path] | Path
    """Rule files, or the home with the rule files."""
    cwd: Path
    """The working directory of the command; may be relative to the current one."""
    approval: ApprovalPolicy
    resolve: bool
    parity: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    files: Sequence[Path]
    rules: RuleSet
    requirement: Requirement
    hidden: Sequence[Argv]
    """Commands of the script that only rules that ask or forbid look at."""
    unreadable: bool


def rule_files(files: Sequence[Path] | None, home: Path | None) -> Sequence[Path] | Path:
    """The rule files, or the home, of `--rules` and `--home`.

    Raises:
        ValueError: both are given, or the home does not exist.
    """
    if files and home is not None:
        raise ValueError("--rules and --home exclude each other: --rules replaces the files of a home")
    if home is not None and not home.is_dir():
        raise ValueError(f"--home: {home} is not a directory")
    return files or home or default_home()


def approval_named(text: str) -> ApprovalPolicy:
    """The policy that `--approval` names.

    Raises:
        ValueError: there is none.
    """
    try:
        return approval_policy(json.loads(text) if text.lstrip().startswith("{") else text)
    except ValueError as error:
        raise ValueError(f"--approval: {error}") from error


async def check(options: CheckOptions, *, as_json: bool) -> int:
    """Print the decision; returns its exit status.

    Raises:
        CommandExit: a rule file cannot be used, or `cwd` is relative and the current directory was removed.
    """
    if not options.cwd.is_absolute():
        options = replace(options, cwd=current_folder("--cwd") / options.cwd)
    answer = _answer(options)
    if as_json:
        print(json.dumps(_as_json(options, answer), indent=2), flush=True)
    else:
        print("\n".join(printable(line) for line in _lines(options, answer)), flush=True)
    return STATUS[answer.requirement.kind]


def load_policy(chosen: Sequence[Path] | Path, *, parity: bool = False) -> tuple[Policy, Sequence[Path]]:
    """The policy of rule files, or of a home, and the files. Prints their warnings.

    Raises:
        CommandExit: a rule file cannot be used.
    """
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            files = find_rule_files(chosen) if isinstance(chosen, Path) else chosen
            policy = Policy(load_rules(files), parity=parity)
        except PolicyError as error:
            raise CommandExit(str(error), UNUSABLE) from error
    for each in warned:
        print_message(f"warning: {each.message}")
    return policy, files


def _answer(options: CheckOptions) -> _Answer:
    policy, files = load_policy(options.files, parity=options.parity)
    requirement = decide(
        options.argv,
        policy=policy,
        approval=options.approval,
        sandbox=WorkspaceWrite(),
        cwd=str(options.cwd),
        explicit_repositories=explicit_repositories(exec_environment()),
    )
    shown = {tuple(options.argv), *requirement.lowered.commands}
    hidden = [each for each in dict.fromkeys(literal_commands(options.argv)) if each not in shown]
    return _Answer(files, policy.rules, requirement, hidden, unreadable(options.argv))


# -- for scripts


def _as_json(options: CheckOptions, answer: _Answer) -> Mapping[str, Json]:
    requirement = answer.requirement
    return {
        # First the members of the reference's `execpolicy check`, for the command as given.
        **report(answer.rules.matches(options.argv, cwd=str(options.cwd), resolve=options.resolve)),
        "revision": requirement.revision,
        "files": [str(file) for file in answer.files],
        "lowering": {
            "plain": requirement.lowered.plain,
            "commands": [list(command) for command in requirement.lowered.commands],
            "hidden": [list(command) for command in answer.hidden],
            "unreadable": answer.unreadable,
        },
        "requirement": {
            "kind": requirement.kind,
            "source": requirement.source,
            "reason": requirement.reason,
            "bypassSandbox": requirement.bypass_sandbox,
            "amendment": None if requirement.amendment is None else list(requirement.amendment),
            "matchedRules": [
                {**match.to_json(), "source": None if match.source is None else str(match.source)}
                for match in requirement.matches
            ],
        },
    }


# -- for people


def _lines(options: CheckOptions, answer: _Answer) -> Iterator[str]:
    requirement = answer.requirement
    yield f"decision: {_WORDS[requirement.kind]}"
    yield f"source:   {requirement.source}"
    if requirement.reason is not None:
        yield f"reason:   {requirement.reason}"
    if requirement.amendment is not None:
        yield f"proposal: allow {shlex.join(requirement.amendment)}"
    yield f"revision: {requirement.revision}"
    yield "rules:"
    yield from _indented(_rules(requirement.matches) or ["no rule matches"])
    yield "commands:" if requirement.lowered.plain else "commands (the script is judged as a whole):"
    yield from _indented(shlex.join(command) for command in requirement.lowered.commands)
    if answer.hidden:
        seen = "checked against rules that ask or forbid"
        yield f"further commands, {'not checked' if options.parity else seen}:"
        yield from _indented(shlex.join(command) for command in answer.hidden)
    if answer.unreadable:
        yield "and commands that are known only when the script runs"
    yield "files:"
    yield from _indented([str(file) for file in answer.files] or ["none"])


def _rules(matches: Sequence[RuleMatch]) -> list[str]:
    return [
        f"{match.decision:9}  {shlex.join(match.prefix)}"
        + (f"  ({match.resolved_program})" if match.resolved_program is not None else "")
        + f"  {match.source}"
        + (f"  {match.justification}" if match.justification is not None else "")
        for match in matches
    ]


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)
