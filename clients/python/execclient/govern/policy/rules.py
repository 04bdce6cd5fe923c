"""Rules about commands: matches an argv with rules, and finds the strictest decision.

Rules kept in this file:

1. A prefix rule compares whole arguments, from the first on. It does not know shells, options or `sudo`: the
   caller splits those (`execclient.govern.policy.scripts`).
2. All matching rules are reported, in the order of the files; the strictest decides. A longer prefix is not
   stronger than a shorter one.
3. A program that is given by its path is looked up by the path first, and only if no rule matches, by its
   name. A rule on a name does not match a path that `host_executable` does not list for the name.
4. Rule sets are immutable. A rule set with one more rule is another rule set, with another revision.

No I/O; links are not followed, since the command may run on another machine.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from execclient.connection.connection import Json
from execclient.govern.network import NetworkProtocol, NetworkTarget

Decision = Literal["allow", "prompt", "forbidden"]

STRICTNESS: Mapping[Decision, int] = {"allow": 0, "prompt": 1, "forbidden": 2}
"""The decision with the higher number wins."""

Argv = tuple[str, ...]
"""A program and its arguments."""

REVISION_DIGITS = 16
"""64 bits: no two rule sets of a host have the same revision by chance."""


def strictest(decisions: Iterable[Decision]) -> Decision | None:
    """The strictest decision; None without decisions."""
    return max(decisions, key=STRICTNESS.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class RuleSource:
    """The file and line of a rule."""

    file: str
    line: int | None = None
    """From 1."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """A decision on all commands with a prefix."""

    pattern: tuple[Argv, ...]
    """The possible values of each argument: at least one argument, with at least one value."""
    decision: Decision = "allow"
    justification: str | None = None
    """For the reviewer, or for the model whose command is refused."""
    source: RuleSource | None = None

    def matched(self, argv: Sequence[str]) -> Argv | None:
        """The prefix of a command that the rule matches; None if it does not match."""
        prefix = tuple(argv[: len(self.pattern)])
        if len(prefix) == len(self.pattern) and all(
            argument in possible for argument, possible in zip(prefix, self.pattern, strict=True)
        ):
            return prefix
        return None

    def may_match(self, words: Sequence[str | None]) -> bool:
        """Whether the rule may match a command with unknown words (None).

        An unknown word may become any number of words.
        """
        for position, possible in enumerate(self.pattern):
            if position == len(words):
                return False
            word = words[position]
            if word is None:
                return True
            if word not in possible:
                return False
        return True


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """A decision on a host, for the network proxy of a command."""

    host: str
    """As the proxy names it: a name in lower case, or an address, without port."""
    protocol: NetworkProtocol
    decision: Decision
    justification: str | None = None
    source: RuleSource | None = None
    port: int | None = None
    """None for all ports."""

    def is_about(self, target: NetworkTarget) -> bool:
        """Whether the rule is about the host and the port of a target."""
        return self.host == target.host and self.port in (None, target.port)


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule that matches a command."""

    prefix: Argv
    """The matched arguments. The first is the name of the program if the rule was found by the name."""
    decision: Decision
    justification: str | None = None
    resolved_program: str | None = None
    """The absolute path of a program whose rule was found by the name."""
    source: RuleSource | None = None

    def to_json(self) -> dict[str, Json]:
        """The match as JSON in the reference's form, which has no source."""
        members: dict[str, Json] = {"matchedPrefix": list(self.prefix), "decision": self.decision}
        if self.resolved_program is not None:
            members["resolvedProgram"] = self.resolved_program
        if self.justification is not None:
            members["justification"] = self.justification
        return {"prefixRuleMatch": members}


@dataclass(frozen=True)
class RuleSet:
    """A set of rules."""

    prefix_rules: tuple[PrefixRule, ...] = ()
    host_executables: Mapping[str, Argv] = field(default_factory=dict)
    """The absolute paths of a program by its name. An empty tuple means no path."""
    network_rules: tuple[NetworkRule, ...] = ()

    @cached_property
    def revision(self) -> str:
        """A digest of the content, which does not depend on the order of rules or on their files."""
        prefix_rules = {
            json.dumps([rule.pattern, rule.decision, rule.justification]) for rule in self.prefix_rules
        }
        network_rules = {
            json.dumps([rule.host, rule.port, rule.protocol, rule.decision, rule.justification])
            for rule in self.network_rules
        }
        content = [sorted(prefix_rules), sorted(self.host_executables.items()), sorted(network_rules)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:REVISION_DIGITS]

    @cached_property
    def _by_program(self) -> Mapping[str, Sequence[PrefixRule]]:
        found: dict[str, list[PrefixRule]] = {}
        for rule in self.prefix_rules:
            for program in dict.fromkeys(rule.pattern[0]):
                found.setdefault(program, []).append(rule)
        return found

    def matches(
        self, argv: Sequence[str], *, cwd: str = "/", resolve: bool = True, unlisted: bool = True
    ) -> tuple[RuleMatch, ...]:
        """The rules that match a command, in order.

        Args:
            argv: the command; an empty one matches no rule.
            cwd: the base of a relative path of the program, absolute.
            resolve: whether to look up a program that is given by its path by its name, too.
            unlisted: whether that also finds rules that allow, for a name without `host_executable`. The
                reference does it, so that a rule for `git` allows `./git`.
        """
        if not argv:
            return ()
        exact = self._matching(argv, None)
        if exact or not resolve or "/" not in argv[0]:
            return exact
        path = _absolute(argv[0], cwd)
        name = posixpath.basename(path)
        listed = self.host_executables.get(name)
        if not name or (listed is not None and path not in listed):
            return ()
        found = self._matching((name, *argv[1:]), path)
        if listed is None and not unlisted:
            return tuple(match for match in found if match.decision != "allow")
        return found

    def may_prohibit(self, words: Sequence[str | None]) -> bool:
        """Whether a rule that asks or forbids may match a command with unknown words (None).

        The program is looked up as given, and by its name.
        """
        if not words or words[0] is None:
            return False
        names = dict.fromkeys((words[0], posixpath.basename(words[0])))
        return any(
            rule.decision != "allow" and rule.may_match((name, *words[1:]))
            for name in names
            for rule in self._by_program.get(name, ())
        )

    def may_prohibit_within(self, words: Sequence[str | None]) -> bool:
        """Whether a rule that asks or forbids may match a command that begins anywhere in some words.

        The words are the arguments of a program that may run the command: behind other words, quoted, or in a
        language of its own.
        """
        texts = ([None] if word is None else _NAMES.findall(_QUOTES.sub("", word)) for word in words)
        names = [name for text in texts for name in text]
        for start, name in enumerate(names):
            base = "" if name is None else posixpath.basename(name)
            form = ("git", base.removeprefix("git-")) if base.startswith("git-") else (base,)
            if name and (self.may_prohibit((*form, *names[start + 1 :])) or self.may_prohibit((name,))):
                return True
        return False

    def network_match(self, target: NetworkTarget) -> NetworkRule | None:
        """The rule that decides on a host: the strictest of those about it; None if there is none.

        Rules of the same protocol count before others. Of other protocols only those count that ask or
        forbid: a tunnel carries any protocol.
        """
        about = [rule for rule in self.network_rules if rule.is_about(target)]
        matching = [rule for rule in about if rule.protocol == target.protocol]
        matching = matching or [rule for rule in about if rule.decision != "allow"]
        return max(matching, key=lambda rule: STRICTNESS[rule.decision], default=None)

    def with_rule(self, rule: PrefixRule | NetworkRule) -> RuleSet:
        """A rule set with one more rule at the end."""
        if isinstance(rule, NetworkRule):
            return RuleSet(self.prefix_rules, self.host_executables, (*self.network_rules, rule))
        return RuleSet((*self.prefix_rules, rule), self.host_executables, self.network_rules)

    def plus(self, other: RuleSet) -> RuleSet:
        """A rule set with other rules at the end; its host executables replace those of the same name."""
        return RuleSet(
            self.prefix_rules + other.prefix_rules,
            {**self.host_executables, **other.host_executables},
            self.network_rules + other.network_rules,
        )

    def _matching(self, argv: Sequence[str], path: str | None) -> tuple[RuleMatch, ...]:
        matches = []
        for rule in self._by_program.get(argv[0], ()):
            prefix = rule.matched(argv)
            if prefix is not None:
                matches.append(RuleMatch(prefix, rule.decision, rule.justification, path, rule.source))
        return tuple(matches)


_QUOTES = re.compile(r"""['"\\]""")
_NAMES = re.compile(r"[^\s;&|<>(){}$`!+:=,@#\[\]]+")

NO_RULES = RuleSet()
"""The default of a policy."""


def report(matches: Sequence[RuleMatch]) -> dict[str, Json]:
    """The matches in the form of the reference's `execpolicy check`; without matches there is no decision."""
    decision = strictest(match.decision for match in matches)
    members: dict[str, Json] = {"matchedRules": [match.to_json() for match in matches]}
    return members if decision is None else {**members, "decision": decision}


def _absolute(program: str, cwd: str) -> str:
    path = posixpath.normpath(posixpath.join(cwd, program))
    return "/" + path.lstrip("/")  # in POSIX exactly two slashes may be special; in Linux they are not
