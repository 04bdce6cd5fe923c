"""Git: which of its subcommands only read, and which commands a git command line runs.

A subcommand that does not only read, such as `push`, is judged like any other command: by the rules, the
heuristics and the approval policy (`decision.py`).

Git runs programs in so many places that a list of them is never complete. The lists here name what is
harmless; any other setting, option or subcommand may run something that its words do not show.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from execclient.govern.policy.safe_arguments import ArgumentGuard, without

Words = tuple[str | None, ...]


class GitRuns(NamedTuple):
    """The commands that a git command line runs."""

    commands: tuple[Words, ...]
    """The command line without git's own options, and the commands that git runs."""
    scripts: tuple[str, ...]
    """The scripts that git passes to a shell."""
    unreadable: bool
    """Whether git may run more than the words show."""


_NAMES = """
    add am annotate apply archive bisect blame branch bugreport bundle cat-file check-attr check-ignore
    check-mailmap check-ref-format checkout checkout-index cherry cherry-pick clean clone column commit
    commit-graph commit-tree config count-objects describe diagnose diff diff-files diff-index diff-tree
    difftool fast-export fast-import fetch fetch-pack filter-branch fmt-merge-msg for-each-ref for-each-repo
    format-patch fsck gc get-tar-commit-id grep hash-object help index-pack init init-db
    interpret-trailers log ls-files ls-remote ls-tree mailinfo mailsplit maintenance merge merge-base
    merge-file merge-index merge-tree mergetool mktag mktree multi-pack-index mv name-rev notes pack-objects
    pack-refs patch-id prune prune-packed pull push range-diff read-tree rebase reflog remote repack replace
    request-pull rerere reset restore rev-list rev-parse revert rm send-email send-pack shortlog show
    show-branch show-index show-ref sparse-checkout stage stash status stripspace submodule subtree switch
    symbolic-ref tag unpack-file unpack-objects update-index update-ref update-server-info var verify-commit
    verify-pack verify-tag version whatchanged worktree write-tree
"""
_SUBCOMMANDS = frozenset(_NAMES.split())
"""Git's own subcommands, which no alias replaces. Any other one may be an alias for any of these."""

_VALUED_OPTIONS = frozenset({"-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix"}) | frozenset(
    {"-c", "--config-env", "--attr-source", "--shallow-file", "--exec-path"}
)
"""Options of git itself that take the next word as their value."""

_OPTIONS = """
    -C -c -P -p -h -v --paginate --no-pager --no-replace-objects --no-lazy-fetch --no-optional-locks
    --bare --no-advice --literal-pathspecs --glob-pathspecs --noglob-pathspecs --icase-pathspecs
    --html-path --man-path --info-path --exec-path --version --help --work-tree --namespace
    --attr-source
"""
_HARMLESS_OPTIONS = frozenset(_OPTIONS.split())
"""Options of git itself, without their values. Settings (`-c`) are judged by their names."""

_HARMLESS_SETTINGS = re.compile(
    r"(user|author|committer|color|column|advice|safe|i18n|index|pack|repack|status|log|push|fetch|pull"
    r"|branch|rebase|rerere|feature|checkout|clean|format|stash|blame|versionsort|worktree)\.[^=]*"
    r"|core\.(quotepath|autocrlf|eol|safecrlf|filemode|ignorecase|precomposeunicode|abbrev|longpaths|symlinks"
    r"|preloadindex|compression|looseCompression|untrackedcache|commentchar|whitespace|packedgitlimit"
    r"|sharedrepository|logallrefupdates|checkstat|trustctime|bigfilethreshold|sparsecheckout|multipackindex)"
    r"|diff\.(algorithm|renames?|renamelimit|context|interhunkcontext|colormoved|colormovedws|mnemonicprefix"
    r"|noprefix|relative|submodule|ignoresubmodules|statgraphwidth|wserrorhighlight|indentheuristic)"
    r"|merge\.(conflictstyle|ff|renames|renamelimit|autostash|stat|log|directoryrenames)"
    r"|(commit|tag)\.(gpgsign|verbose|cleanup|status|sort)|grep\.\w+|pager\.\w+|submodule\.(recurse|fetchjobs)"
    r"|http\.(.*\.)?(sslverify|postbuffer|extraheader|version|lowspeedlimit|lowspeedtime|proxy|useragent)"
    r"|protocol\.version|transfer\.\w+|maintenance\.auto|receive\.deny\w+|init\.defaultbranch|gc\.auto\w*",
    re.IGNORECASE,
)
"""Settings that run nothing, or whose value is read as a script (`pager.*`)."""

HARMLESS_EDITOR = re.compile(
    r"|:|true|cat|more|less( -\w+)?|vim?|nvim|nano|emacs|code( --wait)?|delta|bat|false"
)
"""Editors and pagers that run nothing by themselves."""

_EDITORS = re.compile(r"(core|sequence)\.(editor|pager)|pager\.\w+", re.IGNORECASE)
"""Settings whose value is a script."""

_BOOLEAN = re.compile(r"true|false|yes|no|on|off|[01]|", re.IGNORECASE)
_SWITCHES = re.compile(r"core\.(fsmonitor|bare)|pager\.\w+|credential\.(.*\.)?helper", re.IGNORECASE)
"""Settings that run nothing if they are only on, off or empty."""

_UPLOAD = ("-u", "--upload-pack", "--exec")
_FILTERS = ("--env-filter", "--tree-filter", "--index-filter", "--parent-filter", "--msg-filter")

_SCRIPT_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "rebase": ("-x", "--exec"),
    "difftool": ("-x", "--extcmd"),
    "filter-branch": (*_FILTERS, "--commit-filter", "--tag-name-filter", "--setup"),
    **dict.fromkeys(("fetch", "pull"), ("--upload-pack",)),
    **dict.fromkeys(("clone", "ls-remote", "fetch-pack"), _UPLOAD),
    **dict.fromkeys(("push", "send-pack"), ("--receive-pack", "--exec")),
    "archive": ("--exec",),
    "grep": ("-O", "--open-files-in-pager"),
    "send-email": ("--smtp-server", "--sendmail-cmd", "--to-cmd", "--cc-cmd", "--header-cmd"),
}
"""Options of subcommands whose value is a command line; long options may be abbreviated."""

_TRANSPORT = re.compile(r"(?:--?[\w-]+=)?ext::(.*)", re.DOTALL)
"""An address that is a command line."""


def git_runs(rest: Sequence[str | None]) -> GitRuns:
    """The commands of a git command line, from the words behind `git`."""
    start = next(_behind_options(rest))
    subcommand, behind = rest[start : start + 1], tuple(rest[start + 1 :])
    commands: list[Words] = []
    scripts: list[str | None] = []
    unreadable = _has_unknown_option(rest[:start])
    if 0 < start < len(rest):
        commands.append(("git", *subcommand, *behind))
    settings = list(_settings(rest[:start]))
    match (*subcommand, *behind[:1]):
        case ("clone", *_):
            settings += _settings(behind, "--config")
        case ("config", *_):
            settings += _configured(behind)
        case ("bisect", "run"):
            commands.append(behind[1:])
        case ("submodule", _, *_):
            words = [word for word in behind if word is None or not word.startswith("-")]
            if words[:1] == ["foreach"]:
                known = [word for word in words[1:] if word is not None]
                scripts.append(" ".join(known) if len(known) == len(words) - 1 else None)
        case ("subtree", *_) if "push" in behind:
            commands.append(("git", "push"))
        case ("for-each-repo", *_):
            commands += (("git", *behind[at:]) for at in _operands(behind))
        case (str(name), *_) if name not in _SUBCOMMANDS:
            commands.append(("git", None))
    if subcommand and subcommand[0] in _SCRIPT_OPTIONS:
        scripts += option_values(behind, _SCRIPT_OPTIONS[subcommand[0] or ""])
    scripts += (found[1] for word in behind if word and (found := _TRANSPORT.fullmatch(word)))
    for key, value in settings:
        if key.lower().startswith("alias."):
            commands += _alias(value, behind)
            scripts += [f'{value[1:]} "$@"'] if value is not None and value.startswith("!") else []
        elif value is not None and (_EDITORS.fullmatch(key) or not _is_harmless(key, value)):
            scripts.append(value.removeprefix("!"))
        unreadable = unreadable or not _is_harmless(key, value)
    return GitRuns(
        tuple(command for command in commands if command),
        tuple(script for script in scripts if script),
        unreadable or None in scripts,
    )


def option_values(rest: Sequence[str | None], options: Sequence[str]) -> Iterator[str | None]:
    """The values of options that take command lines; None for a value that is not literal.

    Args:
        rest: the words behind the program.
        options: long options, which may be abbreviated, and short options, which may be in a cluster.
    """
    for word, following in itertools.zip_longest(rest, rest[1:], fillvalue=""):
        if word is None or not word.startswith("-"):
            continue
        for option in options:
            if option.startswith("--"):
                given, equals, value = word.partition("=")
                if len(given) > 2 and option.startswith(given):
                    yield value if equals else following
            elif not word.startswith("--") and option[1] in word:
                yield word.partition(option[1])[2] or following


def _behind_options(rest: Sequence[str | None]) -> Iterator[int]:
    """The position of the subcommand; the end if there is none. Yields once."""
    is_value = False
    for position, word in enumerate(rest):
        if is_value:
            is_value = False
        elif word is None or not word.startswith("-"):
            yield position
            return
        else:
            is_value = word in _VALUED_OPTIONS
    yield len(rest)


def _operands(behind: Words) -> Iterator[int]:
    return (at for at, word in enumerate(behind) if word is None or not word.startswith("-"))


def _has_unknown_option(options: Sequence[str | None]) -> bool:
    """Whether one of git's own options is not known to be harmless."""
    is_value = False
    for before, word in itertools.pairwise((None, *options)):
        if is_value:
            is_value = False
            if word is None and before == "-c":
                return True
            continue
        if word is None:
            return True
        name, equals, _ = word.partition("=")
        is_setting = word.startswith(("-c", "-C")) and not word.startswith("--")
        if not is_setting and (name not in _HARMLESS_OPTIONS or (equals and name == "--exec-path")):
            return True
        is_value = word in _VALUED_OPTIONS
    return False


def _settings(words: Sequence[str | None], long_option: str = "-c") -> Iterator[tuple[str, str | None]]:
    """The settings that options make; the value is `true` if it is missing."""
    for word, following in itertools.zip_longest(words, words[1:]):
        if word is None or not word.startswith("-"):
            continue
        if word.startswith("-c"):
            text = word[2:] or following
        elif len(word) > 3 and long_option.startswith(word.partition("=")[0]):
            text = word.partition("=")[2] or following
        else:
            continue
        key, equals, value = (text or "").partition("=")
        yield key, None if text is None else value if equals else "true"


_ACTIONS = frozenset({"get", "set", "unset", "list", "edit", "rename-section", "remove-section"})


def _configured(behind: Words) -> Iterator[tuple[str, str | None]]:
    """The setting that `git config` makes, in each possible reading."""
    operands = [behind[at] for at in _operands(behind)]
    if None in operands and operands[0] is None:
        yield "", None
        return
    for name, value in itertools.pairwise(operands):
        if name is not None and "." in name and name not in _ACTIONS:
            yield name, value


def _alias(value: str | None, behind: Words) -> Iterator[Words]:
    """The command of an alias that is not a script."""
    if value is None:
        yield ("git", None)
    elif not value.startswith("!"):
        try:
            yield ("git", *shlex.split(value), *behind)
        except ValueError:
            yield ("git", None)


def _is_harmless(key: str, value: str | None) -> bool:
    if key.lower().startswith("alias."):
        return value is not None
    if value is not None and _BOOLEAN.fullmatch(value) and _SWITCHES.fullmatch(key):
        return True
    if _EDITORS.fullmatch(key):
        return value is not None and HARMLESS_EDITOR.fullmatch(value) is not None
    return _HARMLESS_SETTINGS.fullmatch(key) is not None


# -- subcommands that only read


LISTING_BRANCHES = frozenset(
    {"--list", "-l", "--show-current", "-a", "--all", "-r", "--remotes", "-v", "-vv", "--verbose"}
)
"""The safe options of `git branch`, besides `--format=…`."""

READING_SUBCOMMANDS = frozenset({"status", "log", "diff", "show", "branch"})

EXPLICIT_REPOSITORIES = ("safe.bareRepository", "explicit")
"""A setting of git. Without it, a folder that looks like a bare repository can make git run programs."""


def reads_only(arguments: Sequence[str]) -> bool:
    """Whether git has a subcommand that only reads, behind harmless options."""
    for position, word in enumerate(arguments):
        if word in _READING_OPTIONS or (word == "-c" and is_explicit(arguments[position:])):
            continue
        if position and arguments[position - 1] == "-c":
            continue
        return word in READING_SUBCOMMANDS and READING_GUARDS[word](arguments[position + 1 :])
    return False


def is_explicit(arguments: Sequence[str]) -> bool:
    """Whether `-c safe.bareRepository=explicit` begins the options of git."""
    return tuple(arguments[:2]) == ("-c", "=".join(EXPLICIT_REPOSITORIES))


def reads_only_here(arguments: Sequence[str]) -> bool:
    """Like `reads_only`, and does not enter submodules, whose settings may be anything."""
    subcommand = next((word for word in arguments if word in READING_SUBCOMMANDS), None)
    descends = subcommand in ("status", "diff") and "--ignore-submodules=all" not in arguments
    shows = any(re.match(r"--sub|--recurse", word) and word != "--submodule=short" for word in arguments)
    return reads_only(arguments) and not descends and not shows


_READING_OPTIONS = frozenset(
    {"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--no-lazy-fetch"}
    | {"--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs"}
)

_harmless_reading_options = without(
    "--output",
    "--ext-diff",
    "--textconv",
    "--exec",
    "--show-signature",
    "--remerge-diff",
    letters="o",
    valued="SGLOUnMCBlX",
)


_SIGNATURE = re.compile("%[-+ ]?G")
"""In a format; the sign before the letter only controls the treatment of an empty value."""


_DIFF_OF_MERGES = re.compile(
    r"--diff-merges=(off|none|on|m|1|c|cc|first-parent|separate|combined|dense-combined)"
)


def _reads(arguments: Sequence[str]) -> bool:
    """Whether a subcommand only reads. Checking signatures runs a program, and remerging writes objects."""
    return _harmless_reading_options(arguments) and not any(
        _SIGNATURE.search(word)
        or "signature" in word
        or (word.startswith("--diff-m") and not _DIFF_OF_MERGES.fullmatch(word))
        for word in arguments
    )


def _lists_branches(arguments: Sequence[str]) -> bool:
    return all(
        word in LISTING_BRANCHES or (word.startswith("--format=") and "signature" not in word)
        for word in arguments
    )


def _lists_tags(arguments: Sequence[str]) -> bool:
    """Whether `git tag` only lists: else an operand is a new tag."""
    lists = any(re.fullmatch(r"-l|--list|-n\d*", word) for word in arguments)
    options = re.compile(r"-l|--list|-n\d*|--(sort|format|column)=.*", re.DOTALL)
    return not any("signature" in word for word in arguments) and all(
        options.fullmatch(word) or (lists and not word.startswith("-")) for word in arguments
    )


READING_GUARDS: dict[str, ArgumentGuard] = {
    "status": _reads,
    "log": _reads,
    "diff": _reads,
    "show": _reads,
    "blame": _reads,
    "branch": _lists_branches,
    "tag": _lists_tags,
}
