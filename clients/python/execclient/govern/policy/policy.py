"""The policy of a host: its rules, and how they are applied.

A rule set is replaced as a whole and never changed, so that a decision stays valid for its revision.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from execclient.govern.policy.amendments import allow_rule, append_rule, network_rule
from execclient.govern.policy.rule_files import FOLDER, find_rule_files, load_rules
from execclient.govern.policy.rules import NO_RULES, NetworkRule, PrefixRule, RuleSet, RuleSource

AMENDMENTS = "default.rules"
"""The file in the folder of rules to which programs add rules at run time."""

HOME_VARIABLE = "EXECSERVER_POLICY_HOME"


def default_home() -> Path:
    """The default home of rules of this user.

    `EXECSERVER_POLICY_HOME`, else `execserver` in `XDG_CONFIG_HOME` or `~/.config`.
    """
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given)
    settings = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(settings) if os.path.isabs(settings) else Path.home() / ".config") / "execserver"


@dataclass(slots=True)
class Policy:
    """The rules of a host, and how they are applied."""

    rules: RuleSet = NO_RULES
    parity: bool = False
    """Whether rules that ask or forbid ignore hidden commands of a script, as in the reference."""
    bypass_sandbox: bool = False
    """Whether a command that rules allow runs without the sandbox."""
    amendments: Path | None = None
    """The file to which `amend` adds rules; None to keep them in memory only."""

    @classmethod
    def load(
        cls,
        home: Path,
        *,
        projects: Sequence[Path] = (),
        parity: bool = False,
        bypass_sandbox: bool = False,
    ) -> Policy:
        """Load the policy of a home. `amend` adds rules to a file of the home.

        Args:
            home: a folder with the rule files `rules/*.rules`; there may be none.
            projects: folders with trusted rules, which may allow commands: `.codex/rules/*.rules`.
            parity: see the member.
            bypass_sandbox: see the member.

        Raises:
            PolicyError: a rule file cannot be used.
        """
        rules = load_rules(find_rule_files(home, projects))
        return cls(rules, parity, bypass_sandbox, home / FOLDER / AMENDMENTS)

    @property
    def revision(self) -> str:
        """Changes with the rules and the flags: 16 hexadecimal digits, and letters for the flags."""
        flags = ("p" if self.parity else "") + ("b" if self.bypass_sandbox else "")
        return f"{self.rules.revision}-{flags}" if flags else self.rules.revision

    def amend(self, prefix: Sequence[str]) -> None:
        """Allow all commands with a prefix, in this process and, with `amendments`, in later ones.

        Waits for the disk.

        Args:
            prefix: at least one argument.

        Raises:
            ValueError: the prefix is empty, or not text that a rule file can hold.
            OSError: the rule could not be saved, and is not in force.
        """
        source = self._save(allow_rule(prefix))
        pattern = tuple((each,) for each in prefix)
        if not any(rule.pattern == pattern and rule.decision == "allow" for rule in self.rules.prefix_rules):
            self.rules = self.rules.with_rule(PrefixRule(pattern, source=source))

    def amend_network(self, rule: NetworkRule) -> None:
        """Add a rule on a host, as `amend` adds one on commands. Waits for the disk.

        Raises:
            ValueError: the host is not text that a rule file can hold.
            OSError: the rule could not be saved, and is not in force.
        """
        rule = replace(rule, source=self._save(network_rule(rule)))
        if rule not in self.rules.network_rules:
            self.rules = self.rules.with_rule(rule)

    def _save(self, line: str) -> RuleSource | None:
        """Save a rule with `amendments`; its source. A rule that cannot be saved is not in force, either."""
        if self.amendments is None:
            return None
        append_rule(self.amendments, line)
        return RuleSource(str(self.amendments))
