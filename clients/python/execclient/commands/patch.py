"""`execserver patch`: apply a patch, as models write it, to files on the daemon's machine.

The whole patch is matched with the files before any of them is written. Its text is parsed before the
connection is made: a syntax error is found without a daemon.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from execclient import CallFailed, Executor, SandboxRequired
from execclient.commands.daemon import DaemonOptions
from execclient.commands.failures import SANDBOX_OPTION, CommandExit, print_message
from execclient.commands.sandboxes import file_sandbox
from execclient.commands.signals import Signals
from execclient.commands.terminal import When, is_colored, is_for_people, visible
from execclient.connection.connection import Json
from execclient.patch import (
    Applied,
    Edit,
    EmptyPatch,
    Patch,
    PatchError,
    PatchFileError,
    PatchMismatch,
    PatchSyntaxError,
    Plan,
    apply,
    parse_patch,
    plan_at,
)
from execclient.patch.plan import absolute

if TYPE_CHECKING:
    from execclient.govern.sandbox import SandboxPolicy

STREAM = "-"

NOT_APPLIED = 1
"""The patch does not fit the files, or they cannot be written."""

UNUSABLE = 2
"""The text is no patch, or `--cwd` is no directory: as for a wrong command line."""


@dataclass(frozen=True, slots=True)
class PatchOptions:
    """The options of the command."""

    cwd: str | None
    """The base of relative paths, on the daemon's machine; None for the daemon's working directory."""
    dry_run: bool
    diff: bool
    """Whether to print the diff of a patch that is applied, too."""
    color: When
    as_json: bool
    sandbox: SandboxPolicy | None = None
    """The limits on the daemon's machine; `cwd` is the workspace."""


def patch(daemon: DaemonOptions, file: Path | None, options: PatchOptions) -> Coroutine[None, None, int]:
    """Apply the patch in a file or on stdin; the coroutine returns the exit status.

    The text is read before the coroutine runs: a read on the event loop could not be interrupted.

    Raises:
        CommandExit: the file cannot be read, or is no text.
    """
    return _patch(daemon, _read(file), options)


def _read(file: Path | None) -> str:
    from_stream = file is None or str(file) == STREAM
    name = "stdin" if from_stream else str(file)
    try:
        # By its number: `sys.stdin` is None if it was closed at the start.
        with open(0 if from_stream else name, "rb", closefd=not from_stream) as source:
            return source.read().decode()
    except OSError as error:
        raise CommandExit(f"{name}: {error.strerror}", UNUSABLE) from error
    except UnicodeDecodeError as error:
        raise CommandExit(f"{name}: no patch: not UTF-8 at offset {error.start}", UNUSABLE) from error


async def _patch(daemon: DaemonOptions, text: str, options: PatchOptions) -> int:
    try:
        parsed = parse_patch(text)
    except PatchSyntaxError as error:
        return _report_error(error, options)
    async with daemon.connect() as executor:
        with Signals() as signals:
            return await signals.unless_signalled(_apply(executor, parsed, options))


async def _apply(executor: Executor, parsed: Patch, options: PatchOptions) -> int:
    cwd = executor.cwd if options.cwd is None else await _folder(executor, options.cwd)
    sandbox = await file_sandbox(executor, options.sandbox, cwd)
    try:
        plan = await plan_at(executor, parsed, cwd=cwd, sandbox=sandbox, entry="command")
    except PatchError as error:
        return _report_error(error, options)
    if options.dry_run:
        _print_plan(plan, options)
        return 0
    try:
        applied = await apply(plan, executor, sandbox=sandbox)
    except PatchError as error:
        return _report_error(error, options, done=error.edits)
    _print_applied(applied, options)
    return 0


async def _folder(executor: Executor, given: str) -> str:
    """The directory that `--cwd` names. It must exist: a patch would create a misspelled one."""
    cwd = absolute(given, executor.cwd)
    try:
        is_directory = (await executor.fs.stat(cwd)).is_dir
    except CallFailed as error:
        raise CommandExit(f"--cwd: {cwd}: {error.message}", UNUSABLE) from error
    if not is_directory:
        raise CommandExit(f"--cwd: {cwd} is not a directory on the daemon's machine", UNUSABLE)
    return cwd


# -- the result


def _print_plan(plan: Plan, options: PatchOptions) -> None:
    diff = plan.diff()
    if options.as_json:
        _print_json(_outcome(plan, diff, was_atomic=None))
    elif plan.already_applied:
        print_message(*plan.text.rstrip().split("\n"))
    elif diff:
        _print(format_diff(diff, options.color))
    else:
        print_message("the patch fits and changes no file")


def _print_applied(applied: Applied, options: PatchOptions) -> None:
    if options.as_json:
        _print_json(_outcome(applied, applied.diff(), was_atomic=applied.was_atomic))
        return
    summary = visible(applied.text) if is_for_people(options.color) else applied.text
    _print((format_diff(applied.diff(), options.color) if options.diff else "") + summary)


def _outcome(done: Plan | Applied, diff: str, *, was_atomic: bool | None) -> Mapping[str, Json]:
    return {
        "dryRun": isinstance(done, Plan),
        "alreadyApplied": done.already_applied,
        "wasAtomic": was_atomic,
        "inPlace": list(done.in_place) if isinstance(done, Applied) else [],
        "files": _files(done.edits),
        "diff": diff,
    }


def _files(edits: Iterable[Edit]) -> list[Json]:
    return [
        {
            "kind": edit.kind,
            "path": edit.target,
            "movedFrom": None if edit.move_to is None else edit.path,
            "sha256Before": edit.before_digest,
            "sha256": edit.after_digest,
        }
        for edit in edits
    ]


# -- the error


def _report_error(error: PatchError, options: PatchOptions, done: Sequence[Edit] | None = None) -> int:
    """Print why the patch failed; `done` are the edits that were made before, None if none was tried."""
    if options.as_json:
        _print_json({"error": _error(error), "files": _files(done or ())})
    print_message(*"\n".join(_error_lines(error, done)).split("\n"))
    return UNUSABLE if isinstance(error, PatchSyntaxError | EmptyPatch) else NOT_APPLIED


def _error_lines(error: PatchError, done: Sequence[Edit] | None) -> Iterable[str]:
    reason = error.reason if isinstance(error, PatchFileError) else ""
    yield f"{error.applet_text}: {reason}" if reason else error.applet_text
    if isinstance(error.__cause__, SandboxRequired):
        yield SANDBOX_OPTION
    if isinstance(error, PatchMismatch):
        yield error.repair.describe()
    if done is None:
        yield "Nothing was changed."
    elif done:
        yield "Changed before the error:"
        yield from (f"  {edit.target} ({edit.kind})" for edit in done)


def _error(error: PatchError) -> Mapping[str, Json]:
    members: dict[str, Json] = {"code": error.code, "message": error.applet_text}
    if isinstance(error, PatchSyntaxError):
        members["line"] = error.line
    elif isinstance(error, PatchFileError):
        members |= {"path": error.path, "reason": error.reason or None}
    elif isinstance(error, PatchMismatch):
        members["repair"] = _camel_case(asdict(error.repair))
    return members


def _camel_case(value: Json) -> Json:
    """The value with its member names in camel case, like all JSON of this program."""
    match value:
        case dict():
            return {_camel_cased(name): _camel_case(member) for name, member in value.items()}
        case list() | tuple():
            return [_camel_case(each) for each in value]
    return value


def _camel_cased(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


# -- diffs for people

_GREEN, _RED, _CYAN, _BOLD, _DIM, _RESET = (f"\x1b[{code}m" for code in (32, 31, 36, 1, 2, 0))

_IN_HUNK = {"+": _GREEN, "-": _RED, "@": _CYAN, "\\": _DIM, " ": ""}
"""Colors by the first character of a line, as in git's diffs."""

_FILE_HEADER = _BOLD
_OBJECT_NAMES = _DIM
"""The `index` lines, which only programs read."""


def format_diff(diff: str, when: When) -> str:
    """The diff for stdout: unchanged for programs, with colors and escaped characters for people."""
    if not is_for_people(when):
        return diff
    diff = visible(diff)
    return _colored(diff) if is_colored(when) else diff


def _colored(diff: str) -> str:
    return "".join(
        f"{style}{line}{_RESET}\n" if style and line else f"{line}\n" for line, style in _styles(diff)
    )


def _styles(diff: str) -> Iterator[tuple[str, str]]:
    # By the place of a line, not by its first characters alone: below a `@@` line, `--- x` is the removed
    # line `-- x`.
    in_hunk = False
    for line in diff.removesuffix("\n").split("\n") if diff else []:
        mark = line[:1]
        in_hunk = mark in _IN_HUNK if in_hunk else line.startswith("@@ ")
        if in_hunk:
            yield line, _IN_HUNK[mark]
        else:
            yield line, _OBJECT_NAMES if line.startswith("index ") else _FILE_HEADER


# -- stdout


def _print(text: str) -> None:
    # Bytes: a diff has the encoding of the files, whatever the locale is.
    with open(1, "wb", closefd=False) as stdout:
        stdout.write(text.encode(errors="surrogateescape"))


def _print_json(members: Mapping[str, Json]) -> None:
    _print(json.dumps(members, indent=2) + "\n")
