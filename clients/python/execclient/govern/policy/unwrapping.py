"""Finds the commands that a command runs: `sudo cat x` runs `cat x`, `bash -c 'cat x'` runs a script.

A word that is not literal is None. Programs are known by their base names; the tables tell how each of them
gets the command that it runs. They do not tell whether an option takes the next word as its value: both
readings are returned, since a needless command costs a question, and a missed one evades the rule.
Interpreters of languages other than a shell's are not in the tables: the script does not tell what Python,
Perl, AWK or a makefile runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from execclient.govern.policy.git import HARMLESS_EDITOR, Words, git_runs, option_values

_SHELLS = "sh bash rbash zsh dash ash ksh mksh oksh yash posh fish csh tcsh"

SHELLS = frozenset(_SHELLS.split())
"""The shells whose scripts are read, as scripts of bash."""

OTHER_SHELLS = frozenset({"pwsh", "powershell", "cmd", "nu", "xonsh", "elvish"})
"""The shells whose scripts cannot be read here."""

_AT_ONCE = """
    ! sudo doas pkexec su runuser sg env command builtin exec coproc noglob nocorrect nohup nice
    time ionice setsid stdbuf xargs parallel watch entr hyperfine strace ltrace fakeroot unbuffer
    rlwrap chronic caffeinate eatmydata numactl prlimit setpriv unshare nsenter bwrap firejail
    systemd-run systemd-inhibit dbus-run-session xvfb-run torsocks tsocks proxychains proxychains4
    busybox toybox genv gnice gnohup gtime gxargs gstdbuf - valgrind catchsegv ssh-agent linux32
    linux64 i386 x86_64 daemonize run-one cpulimit cgexec faketime start-stop-daemon perf tmux
    screen choom chpst tini run0 setarch npx
"""
_BEHIND_ONE = "timeout gtimeout chroot taskset chrt flock gosu su-exec repeat runcon script ssh"

OPERANDS_BEFORE = {**dict.fromkeys(_AT_ONCE.split(), 0), **dict.fromkeys(_BEHIND_ONE.split(), 1)}
"""Programs that run the command behind their options, with the number of operands that come before it."""

_ANYWHERE = """
    bwrap coproc systemd-run parallel nsenter firejail valgrind daemonize cpulimit cgexec faketime
    start-stop-daemon perf tmux screen choom chpst tini run0 setarch npx
"""
ANY_SUFFIX = frozenset(_ANYWHERE.split())
"""Programs of `OPERANDS_BEFORE` whose options take several values, or whose command may begin anywhere."""

JOINED = frozenset(
    {"watch", "parallel", "entr", "hyperfine", "sg", "su", "runuser", "tmux", "screen", "ssh", "npx"}
)
"""The programs of `OPERANDS_BEFORE` that pass their command to a shell."""

FLAGS = {
    "sudo": frozenset("AbEHknS"),
    "env": frozenset("i0v"),
    "xargs": frozenset("0oprtx"),
    "time": frozenset("pv"),
    "exec": frozenset("cl"),
}
"""Letters of options without a value, for programs that agents use often: they avoid a second reading."""

APPENDS = frozenset({"xargs", "gxargs", "parallel"})
"""The programs of `OPERANDS_BEFORE` that append arguments from stdin."""

_ENVIRONMENTS = "uv poetry pipenv pdm rye hatch conda mamba micromamba devbox"
_CONTAINERS = "docker podman nerdctl docker-compose podman-compose"
_CLUSTERS = "kubectl oc microk8s k3s"
BEHIND_SUBCOMMAND: dict[str, frozenset[str]] = {
    **dict.fromkeys(_ENVIRONMENTS.split(), frozenset({"run"})),
    **dict.fromkeys(("bundle", "direnv", "mise"), frozenset({"exec", "x"})),
    **dict.fromkeys(_CONTAINERS.split(), frozenset({"exec", "run", "create"})),
    **dict.fromkeys(_CLUSTERS.split(), frozenset({"exec", "run", "debug"})),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"exec", "x", "dlx"})),
}
"""Programs that run the command behind a subcommand and its options and operands."""

QUERIES = {"command": frozenset("vV")}
"""Options with which a program only prints information about a command."""

SCRIPT_OPTIONS: dict[str, tuple[str, ...]] = {
    "su": ("-c", "--command", "--session-command"),
    "runuser": ("-c", "--command", "--session-command"),
    "script": ("-c", "--command"),
    "flock": ("-c", "--command"),
    "sg": ("-c",),
    "env": ("-S", "--split-string"),
    "genv": ("-S", "--split-string"),
    "rg": ("--pre", "--hostname-bin"),
    "ag": ("--pager",),
    "man": ("-P", "--pager"),
    "sort": ("--compress-program",),
    "split": ("--filter",),
    "tar": (
        *("-I", "-F", "--use-compress-program", "--to-command"),
        *("--info-script", "--new-volume-script", "--rsh-command"),
    ),
    "rsync": ("-e", "--rsh"),
    "scp": ("-S",),
    **dict.fromkeys(("mapfile", "readarray", "complete"), ("-C",)),
    "compgen": ("-C", "-W"),
    "fc": ("-e",),
    "capsh": ("-c",),
    **dict.fromkeys(("npm", "npx", "pnpm"), ("-c", "--call")),
    "nix-shell": ("--run", "--command"),
    "fd": ("-x", "-X", "--exec", "--exec-batch"),
    "fdfind": ("-x", "-X", "--exec", "--exec-batch"),
}
"""Options whose value is a command line."""

SETTING_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ssh", "scp", "sftp"), ("-o",)),
    "tar": ("--checkpoint-action",),
}
"""Options whose value is a setting `NAME=VALUE`; its value may be a command line."""

FOLLOWED_BY_COMMAND = {
    "find": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "gfind": frozenset({"-exec", "-execdir", "-ok", "-okdir"}),
    "fd": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
    "fdfind": frozenset({"-x", "-X", "--exec", "--exec-batch"}),
}
"""Options that are followed by a whole command, up to `;` or `+`."""

_OPERANDS = """
    : [ [[ test true false echo printf pwd cd pushd popd dirs ls dir tree stat file du df cat tac
    head tail more wc cut paste sort uniq comm join tr nl rev fold fmt column diff cmp grep
    egrep fgrep rg ag ack jq yq touch mkdir rmdir rm mv cp ln install chmod chown chgrp dd sync
    truncate mktemp readlink realpath basename dirname which whereis type command hash man info help
    history date cal sleep seq yes kill pkill killall pgrep ps top free uptime uname hostname id
    whoami who groups tee md5sum sha1sum sha256sum base64 xxd od strings gzip gunzip zcat bzip2 xz
    zstd unzip read unset shift return exit break continue wait jobs fg bg umask ulimit export local
    declare typeset readonly set shopt getopts alias unalias printenv apt apt-get apt-cache dpkg yum
    dnf rpm apk pacman brew pip pip3 npm pnpm yarn bun bundle gem cargo rustup go gh glab hub svn hg
    docker podman kubectl helm terraform systemctl journalctl service pytest ruff black mypy flake8
    isort eslint prettier tsc jest vitest gcc g++ cc clang rustc javac curl wget ping dig host
    nslookup expr let bc numfmt codespell sed awk gawk mawk nawk git crontab
"""
TAKES_OPERANDS = frozenset(_OPERANDS.split())
"""Programs that run none of their operands, except as listed here. Any other program may run a command behind
it."""

_SHELL_VARIABLES = """
    BASH_ENV ENV BASH_ALIASES BASH_CMDS BASH_LOADABLES_PATH PROMPT_COMMAND PS0 PS1 PS2 PS4 SHELLOPTS
    BASHOPTS ZDOTDIR LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES TAR_OPTIONS RIPGREP_CONFIG_PATH
"""
SHELL_VARIABLES = frozenset(_SHELL_VARIABLES.split())
"""Variables that make a shell or another program run something else."""

_GIT_VARIABLES = """
    AUTHOR_NAME AUTHOR_EMAIL AUTHOR_DATE COMMITTER_NAME COMMITTER_EMAIL COMMITTER_DATE
    TERMINAL_PROMPT OPTIONAL_LOCKS TRACE TRACE_PACKET TRACE_PERFORMANCE TRACE_SETUP TRACE2
    TRACE_CURL CURL_VERBOSE MERGE_AUTOEDIT INDEX_FILE LITERAL_PATHSPECS ICASE_PATHSPECS PAGER EDITOR
    SEQUENCE_EDITOR LFS_SKIP_SMUDGE CEILING_DIRECTORIES HTTP_USER_AGENT SSL_NO_VERIFY
    CLONE_PROTECTION_ACTIVE ADVICE CONFIG_NOSYSTEM FLUSH DISCOVERY_ACROSS_FILESYSTEM
"""
GIT_VARIABLES = frozenset(f"GIT_{name}" for name in _GIT_VARIABLES.split())
"""Variables of git that run nothing, or whose value is read as a script. Any other one may run something."""


class Inner(NamedTuple):
    """The commands that a command runs."""

    commands: tuple[Words, ...] = ()
    scripts: tuple[str, ...] = ()
    """Scripts for a shell."""
    unreadable: bool = False
    """Whether it runs more, which only a running shell knows."""
    reads_script: bool = False
    """Whether it is a shell that reads its script from stdin, or from a file that is created on the way."""
    unknown: bool = False
    """Whether the program is unknown, so that it may run its operands."""


NOTHING = Inner()

RUN_FROM_ENVIRONMENT = re.compile(
    r"(PAGER|EDITOR|VISUAL|BROWSER|ASKPASS|COMMAND|SSH|RSH|DIFF|LESSOPEN|LESSCLOSE)$"
)
"""Names of variables whose values other programs run."""

_EDITOR_NAMES = re.compile(r"(PAGER|EDITOR|VISUAL|BROWSER|ASKPASS|RSH|LESSOPEN|LESSCLOSE)$")
"""Variables that only name a program. An editor may write commands that are run, as in a rebase."""

SUBSTITUTION = re.compile(r"\$\(|`")

_SHELL_QUERIES = frozenset({"--version", "--help"})
_SHELL_FILES = frozenset({"--rcfile", "--init-file"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=", re.ASCII)
_STANDARD_INPUT = re.compile(r"-|/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")
_LOADER = re.compile(r"ld(-linux.*|-musl.*|\d*)?\.so(\.\d+)?")
"""The dynamic linker, which runs the program in its arguments."""
_PLACEHOLDER = "{}"

_RESERVED = "{ } if then elif else fi for select while until do done case esac function"
RESERVED_WORDS = frozenset(_RESERVED.split())
"""Words that a shell treats as reserved in the place of a program's name, and the parser does not."""

_ASSIGNING = """
    env genv sudo doas export declare typeset local readonly read printf mapfile readarray getopts
    let wait set systemd-run docker podman time !
"""
ASSIGNING = frozenset(_ASSIGNING.split())
"""Programs that set variables."""

_DECLARED = re.compile(r"^\w+\+?=\(.*(\$\(|`)", re.DOTALL)
"""An array in quotes, which `declare` expands again."""

_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:\\.|[^/\\\n])*/[IM]*)"
_SED_COMMAND = re.compile(
    rf"[\s;}}]*(?:{_SED_ADDRESS}(?:\s*,\s*[+~]?{_SED_ADDRESS})?)?\s*!?\s*"
    r"(?:[=dDgGhHnNpPxzF{]|[qQlL]\s*\d*|[btT:]\s*[\w-]*|[aicrRwW][^\n]*|\#[^\n]*"
    r"|[sy](?P<mark>[^\w\s\\])(?:\\.|(?!(?P=mark))[^\\])*(?P=mark)(?:\\.|(?!(?P=mark))[^\\])*(?P=mark)"
    r"(?:[gpiImM\d]|w[^\n]*)*)?\s*(?:[;\n}]+|$)",
    re.DOTALL,
)
"""A command of sed that runs nothing: all but `e`, and `s` with the flag `e`."""

_AWK_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[(,!~{;|&])\s*/(?:[^/\\\n]|\\.)*/', re.DOTALL)
_AWK_RUNS = re.compile(r"\bsystem\b|(?<!\|)\|(?!\|)|@load|@\w+\s*\(")
_NAMES_PLACEHOLDER = ("-I", "-J")

MAX_READINGS = 64
"""Readings of one command line. Real command lines have two or three."""


def program(word: str) -> str:
    """The base name of a program."""
    return word.rpartition("/")[2]


def inner(words: Words) -> Inner:
    """The commands that a command runs directly."""
    if not words or words[0] is None:
        return NOTHING
    if _ASSIGNMENT.match(words[0]):  # behind a redirection
        return Inner((rest,) if (rest := words[1:]) else (), _values(words[0]), steers(words[0]))
    name, rest = program(words[0]), words[1:]
    if name in SHELLS:
        return _shell(rest)
    if name in RESERVED_WORDS or name.lower().removesuffix(".exe") in OTHER_SHELLS:
        return Inner(unreadable=True)
    if _LOADER.fullmatch(name):
        return Inner(tuple(rest[start:] for start in itertools.islice(_every_start(rest), MAX_READINGS)))
    if name.startswith("git-"):
        return Inner((("git", name.removeprefix("git-"), *rest),))
    special = _special(name, rest)
    if special is not None:
        return special
    subcommands = BEHIND_SUBCOMMAND.get(name, frozenset())
    commands = [*_following(name, rest), *_behind_subcommand(subcommands, rest)]
    scripts = [*option_values(rest, SCRIPT_OPTIONS.get(name, ())), *_setting_values(name, rest)]
    unreadable = None in scripts or any(not subcommands and command[0] is None for command in commands)
    if name in OPERANDS_BEFORE and not _only_asks(name, rest):
        behind = _behind_options(name, rest)
        commands += behind
        if name in JOINED:
            scripts += [" ".join(word for word in each if word is not None) for each in behind]
        # A word that is not literal may be an option's value, except for the last word.
        certain = behind[:1] if name in ANY_SUFFIX else behind[-1:]
        unreadable = unreadable or any(each[0] is None for each in certain)
    if name in ASSIGNING:
        assigned = [word for word in rest if word is not None]
        scripts += itertools.chain.from_iterable(map(_values, assigned))
        unreadable = unreadable or any(steers(word) or _DECLARED.search(word) for word in assigned)
    return Inner(
        tuple(commands[:MAX_READINGS]),
        tuple(script for script in scripts[:MAX_READINGS] if script is not None),
        unreadable or len(commands) > MAX_READINGS or len(scripts) > MAX_READINGS,
        unknown=not (name in TAKES_OPERANDS or name in OPERANDS_BEFORE or name in BEHIND_SUBCOMMAND),
    )


def _special(name: str, rest: Words) -> Inner | None:
    """The commands of a program with a syntax of its own; None for any other program."""
    match name:
        case "eval":
            return _joined(rest)
        case "trap":
            operands = rest[1:] if rest[:1] == ("--",) else rest
            return _joined(operands[:1]) if len(operands) > 1 else NOTHING
        case "source" | ".":
            return Inner((rest,) if rest else (), reads_script=bool(rest) and _is_made_on_the_way(rest[0]))
        case "git":
            return Inner(*git_runs(rest))
        case "alias":
            # An alias applies to later commands, which do not show it.
            values = tuple(word.partition("=")[2] for word in rest if word is not None and "=" in word)
            return Inner(scripts=values, unreadable=bool(values) or None in rest)
        case "hash":
            known = rest[1:2] if rest[:1] == ("-p",) else ()
            return Inner(tuple((each, None) for each in known), unreadable=known == (None,))
        case "at" | "batch":
            return Inner(reads_script=True)
        case "parallel" | "ssh" if sum(word is None or not word.startswith("-") for word in rest) < 2:
            return Inner(
                scripts=tuple(filter(None, _setting_values(name, rest))),
                reads_script=True,
                unreadable=None in _setting_values(name, rest),
            )
        case "ed" | "red" | "ex":
            return Inner(unreadable=True)
        case "crontab":
            return Inner(unreadable="-l" not in rest)
        case "sed" | "gsed":
            return Inner(unreadable=any(map(_sed_runs, _sed_scripts(rest))))
        case "awk" | "gawk" | "mawk" | "nawk":
            texts = [_AWK_QUOTED.sub('""', word) for word in rest if word is not None]
            return Inner(unreadable=any(_AWK_RUNS.search(text) for text in texts))
        case "tar" | "bsdtar" | "gtar" if rest and rest[0] and not rest[0].startswith("-"):
            # Options in the old style, with their values behind all of them.
            return None if {"I", "F"}.isdisjoint(rest[0]) else Inner(unreadable=True)
    return None


def _sed_scripts(rest: Words) -> Iterator[str]:
    given = [value for value in option_values(rest, ("-e", "--expression")) if value is not None]
    operands = (word for word in rest if word is None or not word.startswith("-"))
    yield from given or filter(None, itertools.islice(operands, 1))


def _sed_runs(script: str) -> bool:
    at = 0
    while at < len(script):
        command = _SED_COMMAND.match(script, at)
        if command is None or command.end() == at:
            return True
        at = command.end()
    return False


def _behind_subcommand(subcommands: frozenset[str], rest: Words) -> Iterator[Words]:
    found = (start for start, word in enumerate(rest, 1) if word in subcommands)
    start = next((start for start in found if start == 1 or rest[start - 1] != "x"), None)  # `npm x`
    if start is not None:
        operands = rest[start:]
        yield from (operands[start:] for start in itertools.islice(_every_start(operands), MAX_READINGS + 1))


def steers(assignment: str) -> bool:
    """Whether an assignment makes programs run something that it does not show."""
    name = re.split(r"[^\w%]", assignment, maxsplit=1)[0]
    value = assignment.partition("=")[2]
    if _EDITOR_NAMES.search(name) and not HARMLESS_EDITOR.fullmatch(value):
        return True
    if name.startswith("GIT_"):
        return name not in GIT_VARIABLES and not name.startswith("GIT_TRACE")
    return name in SHELL_VARIABLES or name.startswith("BASH_FUNC_")


def is_run_from_environment(name: str) -> bool:
    """Whether programs run the value of a variable."""
    return RUN_FROM_ENVIRONMENT.search(name) is not None


def _values(assignment: str) -> tuple[str, ...]:
    """The value of `NAME=VALUE` if programs run it, or if a shell may run its substitutions."""
    name, _, value = assignment.partition("=")
    is_run = value and (is_run_from_environment(name) or SUBSTITUTION.search(value))
    return (value,) if is_run else ()


def _behind_options(name: str, rest: Words) -> list[Words]:
    """The commands that may begin behind a program's options, at most `MAX_READINGS` and one."""
    if name in APPENDS:
        rest = (*_without_placeholders(name, rest), None)
    starts = _every_start(rest) if name in ANY_SUFFIX else _starts(name, rest)
    behind = [rest[start:] for start in itertools.islice(starts, MAX_READINGS + 1)]
    # Only appended arguments: without a command, `xargs` only prints.
    return [each for each in behind if name not in APPENDS or each != (None,)]


def _every_start(rest: Words) -> Iterator[int]:
    return (start for start, word in enumerate(rest) if word is None or not word.startswith("-"))


def _starts(name: str, rest: Words) -> Iterator[int]:
    """Where a command may begin, up to the place where it certainly has begun."""
    operands, flags = OPERANDS_BEFORE[name], FLAGS.get(name, frozenset())
    may_be_value = False
    seen = certain = 0
    for start, word in enumerate(rest):
        if word is not None and word.startswith("-") and word != "-":
            # A value that is no word of its own follows its letter, as in `-n1` and `-I{}`.
            has_value = "=" in word or (len(word) > 2 and word[1] != "-" and not word[2:].isalpha())
            may_be_value = word != "--" and not has_value and not flags.issuperset(word[1:])
            continue
        if word is not None and _ASSIGNMENT.match(word):
            may_be_value = False
            continue
        seen += 1
        certain += not may_be_value
        may_be_value = False
        if seen > operands:
            yield start
        if certain > operands:
            return


def _without_placeholders(name: str, rest: Words) -> Iterator[str | None]:
    """The words with None for those that have a placeholder for input."""
    placeholders = {_PLACEHOLDER} if name == "parallel" or {"-i", "--replace"} & set(rest) else set()
    for word, following in _with_next(rest):
        if word in _NAMES_PLACEHOLDER and following:
            placeholders.add(following)
        elif word is not None and word.startswith(("-I", "-i", "--replace=")):
            placeholders.add(word.removeprefix("--replace=") if word[1] == "-" else word[2:])
    placeholders.discard("")
    before: str | None = None
    for word in rest:
        is_fixed = word is None or word.startswith("-") or before in _NAMES_PLACEHOLDER
        is_replaced = word is not None and not is_fixed and any(each in word for each in placeholders)
        yield None if is_replaced else word
        before = word


def _following(name: str, rest: Words) -> Iterator[Words]:
    markers = FOLLOWED_BY_COMMAND.get(name, frozenset())
    starts = (start for start, word in enumerate(rest, 1) if word in markers)
    for start in itertools.islice(starts, MAX_READINGS + 1):
        words = itertools.takewhile(lambda word: word not in (";", "+"), rest[start:])
        command = tuple(None if word is not None and _PLACEHOLDER in word else word for word in words)
        if command:
            yield command


def _setting_values(name: str, rest: Words) -> Iterator[str | None]:
    """The values of settings in options: of `-o ProxyCommand=CMD` the part behind the equals sign."""
    for value in option_values(rest, SETTING_OPTIONS.get(name, ())):
        yield None if value is None else re.split(r"[=\s]", value, maxsplit=1)[-1]


def _with_next(rest: Words, last: str | None = None) -> Iterator[tuple[str | None, str | None]]:
    return itertools.zip_longest(rest, rest[1:], fillvalue=last)


def _only_asks(name: str, rest: Words) -> bool:
    first = rest[0] if rest else None
    return (
        first is not None
        and first.startswith("-")
        and not QUERIES.get(name, frozenset()).isdisjoint(first[1:])
    )


def _joined(words: Sequence[str | None]) -> Inner:
    known = [word for word in words if word is not None]
    return Inner(scripts=(" ".join(known),) if known else (), unreadable=len(known) < len(words))


def _shell(rest: Words) -> Inner:
    if not _SHELL_QUERIES.isdisjoint(rest):
        return NOTHING
    takes_script = reads = may_be_value = False
    scripts: list[str] = []
    for at, word in enumerate(rest):
        if word == "-":  # ends the options, as `--` does
            may_be_value = False
            continue
        if word is not None and word[:1] in ("-", "+") and len(word) > 1:
            if takes_script:  # not every shell has options behind `-c`
                scripts.append(word)
            letters = "" if word[:2] == "--" else word[1:]
            takes_script = takes_script or "c" in letters
            reads = reads or "s" in letters
            may_be_value = "o" in letters or "O" in letters or word in _SHELL_FILES
            continue
        if takes_script and word is not None:
            scripts.append(word)
        if not may_be_value:
            if takes_script:
                return Inner(scripts=tuple(scripts), unreadable=word is None)
            # A file that is not in the directory is looked up in `PATH`, like a program.
            return Inner((rest[at:],), (), word is None, reads or _is_made_on_the_way(word))
        may_be_value = False
    return Inner(scripts=tuple(scripts), reads_script=not takes_script)


def _is_made_on_the_way(file: str | None) -> bool:
    return file is None or _STANDARD_INPUT.fullmatch(file) is not None
