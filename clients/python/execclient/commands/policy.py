"""`execserver policy check`: what the rules say of a command, which is not run."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from execclient.commands.failures import Failure, complain, current_folder
from execclient.commands.terminal import printable
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

UNUSABLE = 1
"""A rule file cannot be used, so nobody knows what may run."""

STATUS = {"skip": 0, "ask": 10, "forbidden": 20}
"""The stricter, the higher, and none that a shell or the other commands use."""

_WORDS = {"skip": "run", "ask": "ask", "forbidden": "refuse"}


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be found out."""

    argv: list[str]
    files: Sequence[Path] | Path
    """Rule files, or the home that has them."""
    cwd: Path
    """A relative one begins in the folder that we are in."""
    approval: ApprovalPolicy
    resolve: bool
    parity: bool


@dataclass(frozen=True, slots=True)
class _Answer:
    files: Sequence[Path]
    rules: RuleSet
    requirement: Requirement
    hidden: Sequence[Argv]
    """Commands of the script that only rules that ask or forbid see."""
    unreadable: bool


def rule_files(files: Sequence[Path] | None, home: Path | None) -> Sequence[Path] | Path:
    """What `--rules` and `--home` come to.

    Raises:
        ValueError: both are given, or the home is not there.
    """
    if files and home is not None:
        raise ValueError("--rules and --home exclude each other: --rules replaces the files of a home")
    if home is not None and not home.is_dir():
        raise ValueError(f"--home: {home} is no folder")
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


async def check(question: Question, *, as_json: bool) -> int:
    """Print the answer; returns the status that stands for it.

    Raises:
        Failure: a rule file cannot be used, or a relative folder begins in one that was removed.
    """
    if not question.cwd.is_absolute():
        question = replace(question, cwd=current_folder("--cwd") / question.cwd)
    answer = _answer(question)
    if as_json:
        print(json.dumps(_as_json(question, answer), indent=2), flush=True)
    else:
        print("\n".join(printable(line) for line in _lines(question, answer)), flush=True)
    return STATUS[answer.requirement.kind]


def _answer(question: Question) -> _Answer:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            files = find_rule_files(question.files) if isinstance(question.files, Path) else question.files
            policy = Policy(load_rules(files), parity=question.parity)
        except PolicyError as error:
            raise Failure(str(error), UNUSABLE) from error
    for each in warned:
        complain(f"warning: {each.message}")
    requirement = decide(
        question.argv,
        policy=policy,
        approval=question.approval,
        sandbox=WorkspaceWrite(),
        cwd=str(question.cwd),
        explicit_repositories=explicit_repositories(exec_environment()),
    )
    shown = {tuple(question.argv), *requirement.lowered.commands}
    hidden = [each for each in dict.fromkeys(literal_commands(question.argv)) if each not in shown]
    return _Answer(files, policy.rules, requirement, hidden, unreadable(question.argv))


# -- for scripts


def _as_json(question: Question, answer: _Answer) -> Mapping[str, Json]:
    requirement = answer.requirement
    return {
        # First what the reference's `execpolicy check` prints, of the command as it was given.
        **report(answer.rules.matches(question.argv, cwd=str(question.cwd), resolve=question.resolve)),
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


def _lines(question: Question, answer: _Answer) -> Iterator[str]:
    requirement = answer.requirement
    yield f"decision: {_WORDS[requirement.kind]}"
    yield f"source:   {requirement.source}"
    if requirement.reason is not None:
        yield f"reason:   {requirement.reason}"
    if requirement.amendment is not None:
        yield f"proposal: allow {shlex.join(requirement.amendment)}"
    yield f"revision: {requirement.revision}"
    yield "rules:"
    yield from _indented(_rules(requirement.matches) or ["none of them matches"])
    yield "commands:" if requirement.lowered.plain else "commands, with a script that is judged as a whole:"
    yield from _indented(shlex.join(command) for command in requirement.lowered.commands)
    if answer.hidden:
        seen = "which only rules that ask or forbid look at"
        yield f"further commands, {'not looked at' if question.parity else seen}:"
        yield from _indented(shlex.join(command) for command in answer.hidden)
    if answer.unreadable:
        yield "and some that only show when it runs"
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
