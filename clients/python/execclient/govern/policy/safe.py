"""Commands that are known to only read: hints for `is_mutating`, and for policies that ask about all others.

There are two separate lists. `known_safe` judges an argv by the former list of the reference, `co_safe`
judges a command line by prefixes. Both close known gaps of their models; `known_safe(parity=True)` and
`co_safe_prefix` keep them. A command that is not known to be safe is not therefore dangerous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from execclient.govern.policy import git
from execclient.govern.policy import safe_arguments as arguments_of
from execclient.govern.policy.rules import Argv
from execclient.govern.policy.safe_arguments import ArgumentGuard, anything, only, without
from execclient.govern.policy.scripts import SHELLS, lower, plain_commands, script_of

TRUSTED_FOLDERS = frozenset({"/bin", "/usr/bin"})
"""The folders of trusted programs that are given by their paths. Folders such as `/usr/local/bin` and
Homebrew's belong to ordinary users on some systems. The executor looks up a bare name in its own `PATH`."""

_READING = """
    cat cut echo expr false grep head id ls nl paste pwd rev seq stat tail tr true wc which whoami numfmt tac
"""
_CO_READING = "ls cat head tail grep wc cut echo printf pwd whoami which id du df"

_GUARDS: dict[str, ArgumentGuard] = {
    **dict.fromkeys(_READING.split(), anything),
    "cd": lambda arguments: len(arguments) <= 1,
    "uname": without(letters="S"),
    "uniq": arguments_of.uniq,
    "base64": arguments_of.base64,
    "find": arguments_of.find,
    "rg": arguments_of.rg,
    "git": git.reads_only_here,
    "sed": arguments_of.sed,
}

CO_SAFE_COMMANDS: tuple[str, ...] = (
    "ls",
    "tree",
    "find",
    "fd",
    "cat",
    "head",
    "tail",
    "grep",
    "rg",
    "ag",
    "wc",
    "sort",
    "uniq",
    "cut",
    "jq",
    "echo",
    "printf",
    "pwd",
    "whoami",
    "hostname",
    "uname",
    "date",
    "env",
    "which",
    "file",
    "id",
    "du",
    "df",
    "git status",
    "git diff",
    "git log",
    "git show",
    "git branch",
    "git tag",
    "git blame",
)
"""The prefixes that need no approval: 28 programs and 7 forms of git."""

_CO_GUARDS: dict[str, ArgumentGuard] = {
    **dict.fromkeys(_CO_READING.split(), anything),
    "tree": without("--output", letters="oR"),
    "find": arguments_of.find,
    "fd": arguments_of.fd,
    "rg": arguments_of.rg,
    "ag": without("--pager"),
    "sort": without("--output", "--compress-program", "--temporary-directory", letters="oT"),
    "uniq": arguments_of.uniq,
    "jq": without("--in-place", letters="i"),
    "hostname": only(r"-[sfdiIAay]+|--(short|fqdn|long|domain|ip-address|all-ip-addresses|all-fqdns|alias)"),
    "uname": _GUARDS["uname"],
    "date": arguments_of.date,
    "env": only(r"-0|--null"),
    "file": without(
        "--compile",
        "--uncompress",
        "--uncompress-noreport",
        "--no-sandbox",
        "--preserve-date",
        letters="CzZSp",
    ),
    **{f"git {name}": guard for name, guard in git.READING_GUARDS.items()},
}

_CHAINING = re.compile(r"[;&|><`\n]|\$\(")


def known_safe(argv: Sequence[str], *, parity: bool = False, explicit_repositories: bool = False) -> bool:
    """Whether a command is known to write nothing and to run nothing else.

    A script is safe if it consists of plain commands that are all safe.

    Args:
        argv: a program and its arguments, or a shell with `-c` or `-lc` and a script.
        parity: whether to judge as the reference did: base names only, no abbreviations, no clusters.
        explicit_repositories: whether the environment of the command has git's setting
            `safe.bareRepository=explicit`. Without it, git is safe only if the command sets it, since any
            folder may look like a bare repository and make git run something.
    """
    judged: Sequence[Argv] = (tuple(argv),)
    if script_of(argv) is not None:
        lowered = lower(argv, exact=not parity)
        if not lowered.plain or not (parity or is_trusted_shell(argv[0])):
            return False
        judged = lowered.commands
    if parity:
        return bool(argv) and all(_was_known_safe(command) for command in judged)
    programs = {PurePosixPath(command[0]).name for command in judged if command}
    # Another folder may be a repository whose settings make git run any program.
    return not programs.issuperset({"cd", "git"}) and all(
        _is_known_safe(command) and (explicit_repositories or not _is_misled(command)) for command in judged
    )


def is_trusted_shell(program: str) -> bool:
    """Whether a program is a known shell, by its bare name or in a trusted folder."""
    return _is_trusted(program, SHELLS)


def co_safe_prefix(command: str, prefixes: Sequence[str] = CO_SAFE_COMMANDS) -> bool:
    """Whether a command line begins with one of some prefixes, followed by a blank or its end.

    Only characters are compared: `find . -delete` begins with `find`. See `co_safe`.

    Args:
        command: a command line for a shell. With `;`, `&`, `|`, `>`, `<`, a backquote, `$(` or a newline it
            is not safe.
        prefixes: words with single blanks between them.
    """
    return _prefix(command, prefixes) is not None


def co_safe(command: str, prefixes: Sequence[str] = CO_SAFE_COMMANDS) -> bool:
    """Whether a command line begins with a safe prefix and is safe with its arguments.

    It must be one plain command without variables, globs or assignments, so that its arguments are known. For
    the prefixes of `CO_SAFE_COMMANDS`, the arguments must neither write nor run anything; with other
    prefixes, all arguments are safe.

    Args:
        command: see `co_safe_prefix`.
        prefixes: see `co_safe_prefix`.
    """
    prefix = _prefix(command, prefixes)
    if prefix is None:
        return False
    commands = plain_commands(command, exact=True)
    if commands is None or len(commands) != 1:
        return False
    words, (argv,) = prefix.split(), commands
    return list(argv[: len(words)]) == words and _CO_GUARDS.get(prefix, anything)(argv[len(words) :])


def _prefix(command: str, prefixes: Sequence[str]) -> str | None:
    if _CHAINING.search(command):
        return None
    stripped = command.strip()
    matching = (prefix for prefix in prefixes if prefix and (stripped + " ").startswith(prefix + " "))
    return max(matching, key=len, default=None)


def _is_trusted(name: str, names: frozenset[str]) -> bool:
    """Whether a program is one of some names, as a bare name or in a trusted folder."""
    folder, slash, base = name.rpartition("/")
    return base in names and (not slash or folder in TRUSTED_FOLDERS)


def _is_known_safe(argv: Argv) -> bool:
    if not argv or any("\0" in word for word in argv) or not _is_trusted(argv[0], frozenset(_GUARDS)):
        return False
    return _GUARDS[PurePosixPath(argv[0]).name](argv[1:])


def _is_misled(argv: Argv) -> bool:
    """Whether it is git without the setting that any folder is not taken for a bare repository."""
    return PurePosixPath(argv[0]).name == "git" and not git.is_explicit(argv[1:])


def _was_known_safe(argv: Argv) -> bool:
    """Whether a command is safe by the reference's list."""
    name, rest = PurePosixPath(argv[0]).name, argv[1:]
    match name:
        case "base64":
            return not any(word.startswith(("-o", "--output")) for word in rest)
        case "find":
            return _FIND_ACTIONS.isdisjoint(rest)
        case "rg":
            return not any(
                word in _RG_OPTIONS or word.startswith(("--pre=", "--hostname-bin=")) for word in rest
            )
        case "git":
            return _was_safe_git(rest)
        case "sed":
            return (
                len(rest) in (2, 3)
                and rest[0] == "-n"
                and re.fullmatch(r"[0-9]+(,[0-9]+)?p", rest[1], re.ASCII) is not None
            )
    return name in _GUARDS


_FIND_ACTIONS = frozenset(
    {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fls", "-fprint", "-fprint0", "-fprintf"}
)
_RG_OPTIONS = frozenset({"--pre", "--hostname-bin", "--search-zip", "-z"})
_GIT_ELSEWHERE = frozenset(
    {"--config-env", "--exec-path", "--git-dir", "--namespace", "--super-prefix", "--work-tree"}
    | {"-p", "--paginate"}
)
_GIT_WRITING = frozenset({"--output", "--ext-diff", "--textconv", "--exec"})


def _was_safe_git(rest: Argv) -> bool:
    words = iter(rest)
    for word in words:
        if word.startswith(("-C", "-c")) or word.partition("=")[0] in _GIT_ELSEWHERE:
            return False
        if word == "branch":
            return all(each in git.LISTING_BRANCHES or each.startswith("--format=") for each in words)
        if word in git.READING_SUBCOMMANDS:
            return not any(
                each in _GIT_WRITING or each.startswith(("--output=", "--exec=")) for each in words
            )
        if not word.startswith("-"):
            return False
    return False
