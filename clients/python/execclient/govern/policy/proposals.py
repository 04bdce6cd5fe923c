"""Proposes a rule that would make a question unnecessary the next time.

Rules kept in this file:

1. A proposal covers only the question: it allows all commands of the call, or those that caused the question.
   If a rule asked, nothing is proposed: a rule that allows would not win against it.
2. No proposal allows nearly everything: interpreters, shells and programs that run other programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from execclient.govern.policy.rules import Argv, PrefixRule, RuleSet
from execclient.govern.policy.scripts import Lowered
from execclient.govern.policy.unwrapping import ANY_SUFFIX, BEHIND_SUBCOMMAND, inner, program

_RUNS_TEXT: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("bash", "sh", "zsh", "dash", "ksh", "fish"), ("-c", "-lc")),
    **dict.fromkeys(("python", "pythonw", "pypy"), ("-", "-c", "-m")),
    **dict.fromkeys(("py", "pyw"), ("-", "-c", "-3", "-m")),
    **dict.fromkeys(("node", "nodejs"), ("-e", "-p", "--eval", "--print")),
    "bun": ("-e", "run"),
    "deno": ("eval", "run"),
    "perl": ("-e", "-E"),
    "ruby": ("-e",),
    "php": ("-r",),
    "lua": ("-e",),
    "julia": ("-e",),
    "Rscript": ("-e",),
    "osascript": ("-e",),
    **dict.fromkeys(("elvish", "nu", "xonsh", "ipython", "tclsh", "expect", "scala", "groovy", "swift"), ()),
    **dict.fromkeys(("awk", "gawk", "mawk", "gdb", "lldb", "java", "busybox"), ()),
    **dict.fromkeys(("vi", "vim", "nvim", "emacs"), ()),
    **dict.fromkeys(("powershell", "pwsh"), ("-Command", "-c", "-EncodedCommand", "-e", "-File")),
    "cmd": ("/c", "/k"),
}
"""Interpreters, with the arguments after which they take a program."""

_RUNS_PROGRAMS: Final = (
    ("env",), ("sudo",), ("doas",), ("su",), ("xargs",), ("nohup",), ("nice",), ("timeout",), ("time",),
    ("exec",), ("command",), ("builtin",), ("eval",), ("setsid",), ("stdbuf",), ("ssh",),
    ("npm", "run"), ("pnpm", "run"), ("yarn", "run"), ("npx",), ("make",),
    ("chroot",), ("flock",), ("taskset",), ("chrt",), ("script",), ("parallel",), ("find",), ("tar",),
    ("rsync",), ("sed",), ("less",), ("man",), ("at",), ("batch",), ("crontab",), ("docker",), ("podman",),
    ("go", "run"), ("cargo", "run"), ("dotnet", "run"), ("nix", "run"), ("pipx", "run"), ("uvx",),
    ("nix-shell",), ("gradle",), ("mvn",), ("rake",), ("just",), ("git", "config"), ("busybox", "sh"),
)  # fmt: skip
"""Programs that run the words behind them, or what a file of the project says."""

_TOO_MUCH: Final = (("git",), ("rm",), ("dd",))
"""Programs with both harmless and irreversible uses."""

BANNED_PREFIXES: Final[frozenset[Argv]] = frozenset(
    [(name,) for name in _RUNS_TEXT]
    + [(name, argument) for name, arguments in _RUNS_TEXT.items() for argument in arguments]
    + [*_RUNS_PROGRAMS, *_TOO_MUCH]
)
"""Never proposed. A longer prefix may be: `git status`."""

_NEXT: Final = "\0next"
"""Stands for the words behind a prefix; no command has such a word."""

_VERSION = re.compile(r"(?<=[a-z])[0-9]+(\.[0-9]+)*$")
"""`python3.12` is `python`."""


def is_banned(prefix: Sequence[str]) -> bool:
    """Whether a rule that allows this prefix would allow nearly everything.

    A program counts by its name, without folder, version and `.exe`. An interpreter is banned with options,
    too. So are prefixes that run the next word: `sudo -n`, `nice -n 5`, `find . -exec`.
    """
    if not prefix:
        return True
    name = program(prefix[0]).removesuffix(".exe")
    plain = _VERSION.sub("", name)
    if (plain, *prefix[1:]) in BANNED_PREFIXES or (name, *prefix[1:]) in BANNED_PREFIXES:
        return True
    only_options = all(word.startswith("-") for word in prefix[1:])
    return (only_options and (plain,) in BANNED_PREFIXES) or _runs_what_follows(prefix)


def _runs_what_follows(prefix: Sequence[str]) -> bool:
    ran = inner((*prefix, _NEXT))
    name = program(prefix[0])
    # If the command may begin at any word, only the first word counts.
    commands = ran.commands[:1] if name in ANY_SUFFIX or name in BEHIND_SUBCOMMAND else ran.commands
    return _NEXT in ran.scripts or any(command[:1] == (_NEXT,) for command in commands)


def propose(
    rules: RuleSet,
    argv: Sequence[str],
    lowered: Lowered,
    prompted: Argv | None,
    requested: Sequence[str] | None,
    *,
    cwd: str,
    parity: bool = False,
) -> Argv | None:
    """The prefix of a rule to propose with a question, or None for no proposal.

    Args:
        rules: the current rules.
        argv: the command, with the shell around a script.
        lowered: its commands.
        prompted: the first command that is asked about without a rule; None if the question has another
            cause.
        requested: the prefix that the model proposes.
        cwd: the working directory, absolute: the base of relative programs.
        parity: whether to propose banned prefixes, too, as the reference does: `git` for the bare command
            `git`.
    """
    matches = [match for command in lowered.commands for match in rules.matches(command, cwd=cwd)]
    if any(match.decision != "allow" for match in matches):
        return None
    if requested and not matches and not is_banned(requested) and _allows_all(rules, lowered, requested, cwd):
        return tuple(requested)
    if prompted is None:
        return None
    proposed = prompted if lowered.plain else tuple(argv)
    return None if is_banned(proposed) and not parity else proposed


def _allows_all(rules: RuleSet, lowered: Lowered, prefix: Sequence[str], cwd: str) -> bool:
    amended = rules.with_rule(PrefixRule(tuple((each,) for each in prefix)))
    return all(amended.matches(command, cwd=cwd) for command in lowered.commands)
