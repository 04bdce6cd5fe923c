"""Rules about commands: which of them match an argv, and what the strictest says.

Rules kept in this file:

1. A prefix rule compares whole arguments, from the first on. It knows nothing of shells, options or `sudo`:
   whoever asks has already taken those apart (`execclient.govern.policy.scripts`).
2. Every rule that matches is reported, in the order of the files; the strictest decides. A longer prefix is
   not stronger than a shorter one.
3. A program that is named by its path is looked for under that path first, and only when no rule is about it,
   under its name. No rule on a name is about a path that `host_executable` leaves out of the name's list.
4. Nothing here changes. A rule set with one more rule is another rule set, of another revision.

Nothing here does I/O; links are not followed, since the machine of the command may be another one.
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

Decision = Literal["allow", "prompt", "forbidden"]

STRICTNESS: Mapping[Decision, int] = {"allow": 0, "prompt": 1, "forbidden": 2}
"""The higher one wins."""

NetworkProtocol = Literal["http", "https", "socks5_tcp", "socks5_udp"]

Argv = tuple[str, ...]

REVISION_DIGITS = 16
"""64 bits: two rule sets that a host holds at the same time do not share a revision by chance."""


def strictest(decisions: Iterable[Decision]) -> Decision | None:
    """The decision that wins; None when there is none."""
    return max(decisions, key=STRICTNESS.__getitem__, default=None)


@dataclass(frozen=True, slots=True)
class RuleSource:
    """Where a rule was read."""

    file: str
    line: int | None = None
    """The first is 1."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """A decision about all commands that begin in one way."""

    pattern: tuple[Argv, ...]
    """For each argument what it may be. At least one argument, and at least one possibility for each."""
    decision: Decision = "allow"
    justification: str | None = None
    """For whoever is asked, or for the model that is refused."""
    source: RuleSource | None = None

    def matched(self, argv: Sequence[str]) -> Argv | None:
        """The arguments that the rule is about, or None if it is about another command."""
        prefix = tuple(argv[: len(self.pattern)])
        if len(prefix) == len(self.pattern) and all(
            argument in possible for argument, possible in zip(prefix, self.pattern, strict=True)
        ):
            return prefix
        return None

    def may_match(self, words: Sequence[str | None]) -> bool:
        """Whether the rule may be about a command with words that are not known (None).

        Such a word may become any number of words. Behind the rule's prefix it makes no difference.
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
    """A decision about a host. Carried for a proxy that would keep to it; nothing here does."""

    host: str
    """A name in lower case, or an address, without port."""
    protocol: NetworkProtocol
    decision: Decision
    justification: str | None = None
    source: RuleSource | None = None
    port: int | None = None
    """None for all of them."""


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule that is about a command."""

    prefix: Argv
    """The arguments that it is about. The first is the name, when it was found by that."""
    decision: Decision
    justification: str | None = None
    resolved_program: str | None = None
    """The absolute path of a program that was found by its name."""
    source: RuleSource | None = None

    def to_json(self) -> dict[str, Json]:
        """In the reference's form, in which there is no source."""
        members: dict[str, Json] = {"matchedPrefix": list(self.prefix), "decision": self.decision}
        if self.resolved_program is not None:
            members["resolvedProgram"] = self.resolved_program
        if self.justification is not None:
            members["justification"] = self.justification
        return {"prefixRuleMatch": members}


@dataclass(frozen=True)
class RuleSet:
    """All rules that hold together."""

    prefix_rules: tuple[PrefixRule, ...] = ()
    host_executables: Mapping[str, Argv] = field(default_factory=dict)
    """For a name the absolute paths that it may stand for. An empty one: it stands for no path."""
    network_rules: tuple[NetworkRule, ...] = ()

    @cached_property
    def revision(self) -> str:
        """Of the content: the same rules in another order, or from other files, have the same one."""
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
        """The rules that are about a command, in their order.

        Args:
            argv: the command; an empty one matches nothing.
            cwd: absolute; what a relative path of a program begins at.
            resolve: whether a program that is named by a path is also looked for by its name.
            unlisted: whether a rule that allows is then found for a name without `host_executable`, too.
                The reference does it, so that a rule for `git` allows `./git`.
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
        """Whether a rule that asks or forbids may be about a command with words that are not known (None).

        The program is looked for as it is named, and by its bare name, wherever it is.
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
        """Whether a rule that asks or forbids may be about a command that begins anywhere in some words.

        They are what a program is told that may run it: behind others, quoted, or in a language of its own.
        """
        texts = ([None] if word is None else _NAMES.findall(_QUOTES.sub("", word)) for word in words)
        names = [name for text in texts for name in text]
        for start, name in enumerate(names):
            base = "" if name is None else posixpath.basename(name)
            form = ("git", base.removeprefix("git-")) if base.startswith("git-") else (base,)
            if name and (self.may_prohibit((*form, *names[start + 1 :])) or self.may_prohibit((name,))):
                return True
        return False

    def with_rule(self, rule: PrefixRule) -> RuleSet:
        """These rules and one more, behind them."""
        return RuleSet((*self.prefix_rules, rule), self.host_executables, self.network_rules)

    def plus(self, other: RuleSet) -> RuleSet:
        """These rules, and others behind them. What the others say of a host executable replaces ours."""
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
"""What a policy has by default."""


def report(matches: Sequence[RuleMatch]) -> dict[str, Json]:
    """The matches as the reference's `execpolicy check` prints them; no decision when there is none."""
    decision = strictest(match.decision for match in matches)
    members: dict[str, Json] = {"matchedRules": [match.to_json() for match in matches]}
    return members if decision is None else {**members, "decision": decision}


def _absolute(program: str, cwd: str) -> str:
    path = posixpath.normpath(posixpath.join(cwd, program))
    return "/" + path.lstrip("/")  # POSIX lets exactly two slashes stand for something else; Linux does not
