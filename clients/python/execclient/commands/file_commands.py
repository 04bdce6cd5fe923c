"""The commands for files, with their options: `cp`, `search`, `glob`, `patch`, `watch` and `policy check`."""

from __future__ import annotations

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from execclient.commands import completion, values
from execclient.commands.options import (
    Command,
    add_color,
    add_command,
    add_daemon,
    add_json,
    add_policy,
    add_sandbox,
    command_of,
    daemon_of,
    sandbox_of,
)
from execprotocol.command_line import Parser

# -- cp


def _add_cp(parser: Parser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="what to copy, and last where to")
    add_daemon(parser)
    parser.add_argument("-r", "--recursive", action="store_true", help="copy directories")
    parser.add_argument(
        "-p", "--preserve", action="store_true", help="keep times; set modes of existing files, too"
    )
    parser.add_argument("-a", "--archive", action="store_true", help="short for -rp")
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="P",
        help="with -r: leave out what P matches, as in .gitignore; may be repeated",
    )
    add_sandbox(
        parser,
        "limit access to the daemon's machine, or copy nothing; the daemon's working directory is the "
        "workspace",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    add_json(parser)


def _cp(options: Namespace) -> int:
    *sources, destination = options.paths
    if not sources:
        options.parser.error(f"nothing to copy: there is only {destination}, and SRC and DST are needed")
    from execclient.commands import cp as copying
    from execclient.commands.failures import perform

    copied = copying.CopyOptions(
        recursive=options.recursive or options.archive,
        preserve=options.preserve or options.archive,
        quiet=options.quiet or options.as_json,
        exclude=tuple(options.exclude),
        sandbox=sandbox_of(options),
    )
    return perform(
        lambda: copying.cp(daemon_of(options), sources, destination, copied, as_json=options.as_json)
    )


CP = Command(
    "copy files to the daemon's machine, or back",
    "Copy files and directories to the daemon's machine, or back. Paths on the daemon's machine begin "
    "with ':'. '-' is stdin or stdout. Several sources are copied into a directory. New files get the modes "
    "of their sources.",
    "[OPTIONS] SRC... DST",
    _add_cp,
    _cp,
)


# -- search, glob


def _add_search(parser: Parser) -> None:
    pattern = parser.add_argument("pattern", metavar="PATTERN", help="regular expression, as of rg")
    completion.complete_with(pattern, completion.nothing)
    path = parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="directory or file on the daemon's machine (default: the daemon's working directory)",
    )
    completion.complete_with(path, completion.nothing)
    add_daemon(parser)
    parser.add_argument("-F", "--fixed-strings", action="store_true", help="PATTERN is a text")
    parser.add_argument("-i", "--ignore-case", action="store_true", help="ignore case")
    parser.add_argument("-U", "--multiline", action="store_true", help="a match may span lines")
    globs = parser.add_argument(
        "-g",
        "--glob",
        action="append",
        default=[],
        metavar="GLOB",
        help="search files that GLOB matches, as *.py or src/**/*.py; may be repeated",
    )
    completion.complete_with(globs, completion.nothing)
    parser.add_argument(
        "-C",
        "--context",
        type=int,
        default=0,
        metavar="N",
        help="print N lines around each match, at most 20",
    )
    parser.add_argument("-l", "--files-with-matches", action="store_true", help="print only names of files")
    _add_searching(parser)


def _add_glob(parser: Parser) -> None:
    globs = parser.add_argument(
        "globs", nargs="+", metavar="GLOB", help="names of files, as *.py or src/**/*.py"
    )
    completion.complete_with(globs, completion.nothing)
    path = parser.add_argument(
        "--path",
        metavar="D",
        help="directory on the daemon's machine (default: the daemon's working directory)",
    )
    completion.complete_with(path, completion.nothing)
    add_daemon(parser)
    _add_searching(parser)


def _add_searching(parser: Parser) -> None:
    parser.add_argument(
        "--hidden", action="store_true", help="include files and directories that begin with a dot"
    )
    parser.add_argument(
        "--no-ignore", action="store_true", help="include what .gitignore and other ignore files exclude"
    )
    _add_exclude_dir(parser)
    parser.add_argument(
        "-m",
        "--max-count",
        type=values.count,
        metavar="N",
        help="stop after N matches or files (default: no limit)",
    )
    parser.add_argument(
        "--timeout", type=values.duration, metavar="T", help="stop after this time (default: never)"
    )
    parser.add_argument("-0", "--null", action="store_true", help="end each name of a file with NUL")
    add_color(parser, "color paths and matches")
    add_sandbox(
        parser,
        "limit access to the daemon's machine; the daemon's working directory is the workspace",
    )
    add_json(parser)


def _add_exclude_dir(parser: Parser) -> None:
    excluded = parser.add_argument(
        "--exclude-dir",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out directories of this name, at any depth; may be repeated",
    )
    completion.complete_with(excluded, completion.nothing)


def _search(options: Namespace) -> int:
    return _perform_search(
        options,
        "fs/search",
        {
            "pattern": options.pattern or "^",
            "regex": not (options.fixed_strings and options.pattern),
            "ignoreCase": options.ignore_case,
            "multiline": options.multiline,
            "globs": options.glob,
            "contextLines": options.context,
            "output": "files" if options.files_with_matches else "lines",
        },
    )


def _glob(options: Namespace) -> int:
    return _perform_search(options, "fs/glob", {"globs": options.globs})


def _perform_search(
    options: Namespace, method: Literal["fs/search", "fs/glob"], params: Mapping[str, Any]
) -> int:
    from execclient.commands import search as searching
    from execclient.commands.failures import perform

    selected = {
        "hidden": options.hidden,
        "ignoreRules": not options.no_ignore,
        "excludeDirs": options.exclude_dir,
    }
    given = searching.SearchOptions(
        method=method,
        params={**params, **selected},
        path=options.path,
        limit=options.max_count,
        timeout=options.timeout,
        color=options.color,
        null=options.null,
        as_json=options.as_json,
        sandbox=sandbox_of(options),
    )
    return perform(lambda: searching.search(daemon_of(options), given))


SEARCH = Command(
    "search files on the daemon's machine for lines",
    "Search files on the daemon's machine for lines that match, and print them as PATH:LINE:TEXT. As with "
    "rg, hidden, ignored and binary files are left out. The exit status is 1 if nothing matches.",
    "[OPTIONS] PATTERN [PATH]",
    _add_search,
    _search,
)

GLOB = Command(
    "find files on the daemon's machine by name",
    "Find files on the daemon's machine by name. A GLOB without '/' applies to names at any depth, one with "
    "'/' to paths; ** is any number of directories. Hidden and ignored files are left out. The exit status "
    "is 1 if nothing matches.",
    "[OPTIONS] GLOB...",
    _add_glob,
    _glob,
)


# -- patch


def _add_patch(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the patch (default: '-', stdin)")
    add_daemon(parser)
    parser.add_argument(
        "--cwd", metavar="D", help="base of relative paths (default: the daemon's working directory)"
    )
    add_sandbox(
        parser,
        "limit access to the daemon's machine, or apply nothing; the directory of --cwd is the workspace",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the diff; change nothing")
    parser.add_argument("--diff", action="store_true", help="print the diff and apply the patch")
    add_color(parser, "color the diff")
    add_json(parser)


def _patch(options: Namespace) -> int:
    from execclient.commands import patch as patching
    from execclient.commands.failures import perform

    applied = patching.PatchOptions(
        cwd=options.cwd,
        dry_run=options.dry_run,
        diff=options.diff,
        color=options.color,
        as_json=options.as_json,
        sandbox=sandbox_of(options),
    )
    return perform(lambda: patching.patch(daemon_of(options), options.file, applied))


PATCH = Command(
    "apply a patch to files on the daemon's machine",
    "Apply a patch, as models write it, to files on the daemon's machine. The exit status is 0 if the "
    "patch is applied, now or before, 1 if it does not fit, 2 if it is no patch.",
    "[OPTIONS] [FILE]",
    _add_patch,
    _patch,
)


# -- watch


def _add_watch(parser: Parser) -> None:
    path = parser.add_argument("path", metavar="PATH", help="a directory or file on the daemon's machine")
    completion.complete_with(path, completion.nothing)
    add_daemon(parser)
    parser.add_argument(
        "--no-recursive", dest="recursive", action="store_false", help="watch the directory's own names only"
    )
    parser.add_argument(
        "--no-ignore",
        dest="ignore_rules",
        action="store_false",
        help="watch what .gitignore, .ignore, .rgignore and .git/info/exclude ignore, too",
    )
    _add_exclude_dir(parser)
    add_sandbox(
        parser,
        "report only what this sandbox may read; the daemon's working directory is the workspace",
    )
    parser.add_argument("--once", action="store_true", help="exit after the first changes")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no message when the watch begins")
    add_json(parser)


def _watch(options: Namespace) -> int:
    from execclient.commands import watch as watching
    from execclient.commands.failures import perform

    watched = watching.WatchOptions(
        recursive=options.recursive,
        ignore_rules=options.ignore_rules,
        exclude_dirs=tuple(options.exclude_dir),
        once=options.once,
        quiet=options.quiet,
        as_json=options.as_json,
        sandbox=sandbox_of(options),
    )
    return perform(lambda: watching.watch(daemon_of(options), options.path, watched))


WATCH = Command(
    "print changes of files on the daemon's machine",
    "Print changes of files on the daemon's machine as they happen, until Ctrl-C. The exit status is 1 if "
    "the watch ends by itself, as when PATH is removed.",
    "[OPTIONS] PATH",
    _add_watch,
    _watch,
)


# -- policy check


def _add_policy(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", prog="execserver policy", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="tell whether a command may run, and why; the command is not run",
        usage="%(prog)s [OPTIONS] [--] COMMAND...",
        description="Tell whether a command may run, and why. The command is not run. The exit status is 0 "
        "if it may run, 10 if it needs an approval, 20 if it is forbidden.",
    )
    add_command(check)
    add_policy(check)
    check.add_argument(
        "--cwd", type=Path, metavar="D", help="working directory of the command (default: the current one)"
    )
    check.add_argument(
        "--resolve-host-executables",
        action=BooleanOptionalAction,
        default=True,
        help="whether matchedRules includes rules on the name of a program that is given by its path",
    )
    check.add_argument("--parity", action="store_true", help="read scripts exactly as codex does")
    add_json(check)


def _policy(options: Namespace) -> int:
    from execclient.commands import policy as checking
    from execclient.commands.failures import perform

    try:
        checked = checking.CheckOptions(
            argv=command_of(options),
            files=checking.rule_files(options.rules, options.home),
            cwd=options.cwd or Path(),
            approval=checking.approval_named(options.approval),
            resolve=options.resolve_host_executables,
            parity=options.parity,
        )
    except ValueError as error:
        options.parser.error(str(error))
    return perform(lambda: checking.check(checked, as_json=options.as_json))


POLICY = Command(
    "check a command against the policy rules",
    "Check a command against the policy rules.",
    "check [OPTIONS] [--] COMMAND...",
    _add_policy,
    _policy,
    options_anywhere=False,
)
