"""Command policy: splits an argv into commands, matches rules, and decides whether it may run."""

from execclient.govern.policy.dangerous import Danger, dangerous
from execclient.govern.policy.decision import Requirement, decide
from execclient.govern.policy.policy import Policy, default_home
from execclient.govern.policy.rule_files import load_rules, parse_rules
from execclient.govern.policy.rules import NO_RULES, Argv, NetworkRule, PrefixRule, RuleMatch, RuleSet
from execclient.govern.policy.safe import CO_SAFE_COMMANDS, co_safe, co_safe_prefix, known_safe
from execclient.govern.policy.scripts import (
    Lowered,
    literal_commands,
    lower,
    plain_commands,
    script_of,
    unreadable,
)

__all__ = [
    "CO_SAFE_COMMANDS",
    "NO_RULES",
    "Argv",
    "Danger",
    "Lowered",
    "NetworkRule",
    "Policy",
    "PrefixRule",
    "Requirement",
    "RuleMatch",
    "RuleSet",
    "co_safe",
    "co_safe_prefix",
    "dangerous",
    "decide",
    "default_home",
    "known_safe",
    "literal_commands",
    "load_rules",
    "lower",
    "parse_rules",
    "plain_commands",
    "script_of",
    "unreadable",
]
