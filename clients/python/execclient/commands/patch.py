"""`execserver patch`: a patch as models write it, applied to files at the daemon.

The whole patch is fitted to the files before any of them is written. Its text is read before there is a
connection: a mistake in it needs no daemon to be found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from execclient import CallFailed, Executor
from execclient.commands.daemon import Daemon
from execclient.commands.failures import Failure, complain
from execclient.commands.signals import Signals
from execclient.commands.terminal import printable
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

STREAM = "-"

NOT_APPLIED = 1
"""The patch does not fit the files that there are, or they cannot be written."""

UNUSABLE = 2
"""No patch, or no folder for it: it would fail whatever the files are, as a wrong command line does."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done with a patch, and how it is told."""

    cwd: str | None
    """Where relative paths begin, at the daemon; None for the daemon's own folder."""
    dry_run: bool
    diff: bool
    """Print it also when the patch is applied."""
    color: When
    as_json: bool


def patch(daemon: Daemon, file: Path | None, wish: Wish) -> Coroutine[None, None, int]:
    """Apply the patch in a file, or on standard input; the result of the coroutine is the exit status.

    The text is read here and now: what waits on the loop cannot be interrupted while it reads.

    Raises:
        Failure: the file cannot be read, or is no text.
    """
    return _patch(daemon, _read(file), wish)


def _read(file: Path | None) -> str:
    from_stream = file is None or str(file) == STREAM
    name = "standard input" if from_stream else str(file)
    try:
        # By its number: whoever closed it before we began has none in `sys`.
        with open(0 if from_stream else name, "rb", closefd=not from_stream) as source:
            return source.read().decode()
    except OSError as error:
        raise Failure(f"{name}: {error.strerror}", UNUSABLE) from error
    except UnicodeDecodeError as error:
        raise Failure(f"{name}: no patch: not UTF-8 from offset {error.start} on", UNUSABLE) from error


async def _patch(daemon: Daemon, text: str, wish: Wish) -> int:
    try:
        parsed = parse_patch(text)
    except PatchSyntaxError as error:
        return _refused(error, wish)
    async with daemon.connect() as executor:
        with Signals() as signals:
            return await signals.unless_signalled(_carry_out(executor, parsed, wish))


async def _carry_out(executor: Executor, parsed: Patch, wish: Wish) -> int:
    cwd = executor.cwd if wish.cwd is None else await _folder(executor, wish.cwd)
    try:
        plan = await plan_at(executor, parsed, cwd=cwd, entry="command")
    except PatchError as error:
        return _refused(error, wish)
    if wish.dry_run:
        _tell_plan(plan, wish)
        return 0
    try:
        applied = await apply(plan, executor)
    except PatchError as error:
        return _refused(error, wish, done=error.edits)
    _tell_applied(applied, wish)
    return 0


async def _folder(executor: Executor, given: str) -> str:
    """The folder that `--cwd` names; a patch would make one that is only misspelled."""
    cwd = absolute(given, executor.cwd)
    try:
        is_folder = (await executor.fs.stat(cwd)).is_dir
    except CallFailed as error:
        raise Failure(f"--cwd: {cwd}: {error.message}", UNUSABLE) from error
    if not is_folder:
        raise Failure(f"--cwd: {cwd} is no folder at the daemon", UNUSABLE)
    return cwd


# -- what came of it


def _tell_plan(plan: Plan, wish: Wish) -> None:
    diff = plan.diff()
    if wish.as_json:
        _print_json(_outcome(plan, diff, was_atomic=None))
    elif plan.already_applied:
        complain(*plan.text.rstrip().split("\n"))
    elif diff:
        _print(shown(diff, wish.color))
    else:
        complain("the patch fits, and would leave every file as it is")


def _tell_applied(applied: Applied, wish: Wish) -> None:
    if wish.as_json:
        _print_json(_outcome(applied, applied.diff(), was_atomic=applied.was_atomic))
        return
    summary = visible(applied.text) if is_for_people(wish.color) else applied.text
    _print((shown(applied.diff(), wish.color) if wish.diff else "") + summary)


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


# -- why nothing did


def _refused(error: PatchError, wish: Wish, done: Sequence[Edit] | None = None) -> int:
    """Say why; `done` is what was carried out before, None when nothing was begun."""
    if wish.as_json:
        _print_json({"error": _error(error), "files": _files(done or ())})
    complain(*"\n".join(_explained(error, done)).split("\n"))
    return UNUSABLE if isinstance(error, PatchSyntaxError | EmptyPatch) else NOT_APPLIED


def _explained(error: PatchError, done: Sequence[Edit] | None) -> Iterable[str]:
    reason = error.reason if isinstance(error, PatchFileError) else ""
    yield f"{error.applet_text}: {reason}" if reason else error.applet_text
    if isinstance(error, PatchMismatch):
        yield error.repair.describe()
    if done is None:
        yield "Nothing is changed."
    elif done:
        yield "Changed before that:"
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
    """The same with the names of members as all JSON of this program has them."""
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

When = Literal["auto", "always", "never"]

_IN_HUNK = {"+": "green", "-": "red", "@": "cyan", "\\": "dim", " ": ""}
"""By the mark in front of a line: what a reader of git's diffs is used to."""

_FILE_HEADER = "bold"
_OBJECT_NAMES = "dim"
"""For programs, and in the way of whoever looks for the name of the file."""


def is_colored(when: When) -> bool:
    """Whether stdout gets colors: by default on a terminal that has them, unless `NO_COLOR` is set."""
    if when == "auto":
        return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return when == "always"


def is_for_people(when: When) -> bool:
    """Whether what is printed is looked at, and not handed to another program."""
    return os.isatty(1) or is_colored(when)


def visible(text: str) -> str:
    """The text with every character that cannot be seen by its number, but for line ends and tabs."""
    return printable(text, keep="\n\t")


def shown(diff: str, when: When) -> str:
    """A diff as it is printed: for other programs as it is, byte for byte."""
    if not is_for_people(when):
        return diff
    diff = visible(diff)
    return _colored(diff) if is_colored(when) else diff


def _colored(diff: str) -> str:
    # Slow to load, and needed for people alone.
    from rich.color import ColorSystem
    from rich.style import Style

    # Only the styles: a console would wrap lines, and replace tabs.
    return "".join(
        Style.parse(style).render(line, color_system=ColorSystem.STANDARD) + "\n"
        for line, style in _styles(diff)
    )


def _styles(diff: str) -> Iterator[tuple[str, str]]:
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
    # Bytes: other programs take a diff as the files have it, whatever our locale.
    with open(1, "wb", closefd=False) as stdout:
        stdout.write(text.encode(errors="surrogateescape"))


def _print_json(members: Mapping[str, Json]) -> None:
    _print(json.dumps(members, indent=2) + "\n")
