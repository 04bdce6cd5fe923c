"""The policy of a host: its rules, and how far they reach.

The rules are replaced as a whole and never changed, so what was decided by a revision stays true of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from execclient.govern.policy.amendments import allow_rule, append_allow_rule
from execclient.govern.policy.rule_files import FOLDER, find_rule_files, load_rules
from execclient.govern.policy.rules import NO_RULES, PrefixRule, RuleSet, RuleSource

AMENDMENTS = "default.rules"
"""In the folder of rules: what was allowed while programs ran."""

HOME_VARIABLE = "EXECSERVER_POLICY_HOME"


def default_home() -> Path:
    """The home whose rules the programs of this user go by.

    `EXECSERVER_POLICY_HOME`, else `execserver` in the folder of settings: `XDG_CONFIG_HOME` or `~/.config`.
    """
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given)
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(settings) if os.path.isabs(settings) else Path.home() / ".config") / "execserver"


@dataclass(slots=True)
class Policy:
    """What rules say of commands."""

    rules: RuleSet = NO_RULES
    parity: bool = False
    """Whether rules that ask or forbid see no more of a script than those that allow, as in the reference."""
    bypass_sandbox: bool = False
    """Whether a command that rules allow runs without the sandbox."""
    amendments: Path | None = None
    """The file to which `amend` adds; None to forget with the process."""

    @classmethod
    def load(
        cls,
        home: Path,
        *,
        projects: Sequence[Path] = (),
        parity: bool = False,
        bypass_sandbox: bool = False,
    ) -> Policy:
        """The policy of a home, which remembers there what is allowed later.

        Args:
            home: its rule files are `rules/*.rules`. None need be there.
            projects: folders whose rules are trusted, too: `.codex/rules/*.rules`. They may allow.
            parity: see the member.
            bypass_sandbox: see the member.

        Raises:
            PolicyError: a rule file cannot be used.
        """
        rules = load_rules(find_rule_files(home, projects))
        return cls(rules, parity, bypass_sandbox, home / FOLDER / AMENDMENTS)

    @property
    def revision(self) -> str:
        """Changes with everything that a decision may depend on: 16 hexadecimal digits, and flags."""
        flags = ("p" if self.parity else "") + ("b" if self.bypass_sandbox else "")
        return f"{self.rules.revision}-{flags}" if flags else self.rules.revision

    def amend(self, prefix: Sequence[str]) -> None:
        """Allow all commands that begin with a prefix, from now on and for later processes.

        Waits for the disk.

        Args:
            prefix: at least one argument.

        Raises:
            ValueError: the prefix is empty, or not text that a rule file can hold.
            OSError: it could not be written down, and is not in force.
        """
        allow_rule(prefix)  # what cannot be written down is not allowed for this process, either
        source = None
        if self.amendments is not None:
            append_allow_rule(self.amendments, prefix)
            source = RuleSource(str(self.amendments))
        pattern = tuple((each,) for each in prefix)
        if not any(rule.pattern == pattern and rule.decision == "allow" for rule in self.rules.prefix_rules):
            self.rules = self.rules.with_rule(PrefixRule(pattern, source=source))
