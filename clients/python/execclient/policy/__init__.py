"""Which commands may run: what an argv consists of, and how it is judged."""

from execclient.policy.dangerous import Danger, dangerous
from execclient.policy.safe import CO_SAFE_COMMANDS, co_safe, co_safe_prefix, known_safe
from execclient.policy.scripts import (
    Argv,
    Lowered,
    literal_commands,
    lower,
    plain_commands,
    script_of,
    unreadable,
)

__all__ = [
    "CO_SAFE_COMMANDS",
    "Argv",
    "Danger",
    "Lowered",
    "co_safe",
    "co_safe_prefix",
    "dangerous",
    "known_safe",
    "literal_commands",
    "lower",
    "plain_commands",
    "script_of",
    "unreadable",
]
