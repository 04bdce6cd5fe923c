"""Errors and results: they can be pickled, and are subclasses of Python's errors."""

from __future__ import annotations

import copy
import errno
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import execclient
from execclient import errors
from execclient.errors import ExecServerError, call_failed
from execclient.patch import errors as patch_errors
from execclient.patch.model import Repair
from execclient.results import Page, RunResult
from execclient.tools import errors as tool_errors

ROOT = Path(__file__).parents[3]
RESULT = RunResult(3, b"out", b"err", b"outerr", 0.5, False, "normal", denial={"likely": False})
REPAIR = Repair("/f", 1, 1, 3, "lines", ("a",), 1, (), already_applied=False)

SPECIAL: dict[type[ExecServerError], tuple[Any, ...]] = {
    errors.EnvironmentOffline: ("offline", "env"),
    errors.AccessDenied: ("denied", 403),
    errors.CallTimeout: ("fs/readFile", 1.5),
    errors.PoolFull: ("full", "gpu"),
    errors.Unsupported: ("fs/digest",),
    errors.OutputGap: (7, RESULT),
    errors.CommandFailed: ("make", RESULT),
    errors.CommandTimedOut: ("make", RESULT),
    errors.WalkIncomplete: ("/tree", [execclient.WalkEntry("/tree/a", False)]),
    errors.PolicyError: ("a.rules", 3, "wrong"),
    patch_errors.PatchSyntaxError: ("no patch", 2),
    patch_errors.EmptyPatch: (),
    patch_errors.PatchMismatch: ("does not fit", REPAIR),
    patch_errors.PatchFileError: ("Failed to read /f", "/f", "Is a directory (os error 21)"),
    patch_errors.PatchConflict: ("changed", "/f"),
    tool_errors.TimedOut: ("late", "output"),
    tool_errors.SandboxDenied: ("denied", "output"),
    tool_errors.KilledBySignal: ("killed", 9),
    tool_errors.PolicyChanged: ("1", "2"),
}
"""What makes an error whose parameters are not one text."""


def kinds(kind: type[ExecServerError] = ExecServerError) -> list[type[ExecServerError]]:
    below = [each for each in kind.__subclasses__() if each.__module__.startswith("execclient")]
    return [kind, *(each for child in below for each in kinds(child))]


def made(kind: type[ExecServerError]) -> ExecServerError:
    if issubclass(kind, errors.CallFailed):
        return kind("process/start", -32603, "No such file or directory (os error 2)", "it is gone")
    return kind(*SPECIAL.get(kind, ("a text",)))


WAYS: list[Callable[[Any], Any]] = [
    *(lambda it, protocol=protocol: pickle.loads(pickle.dumps(it, protocol)) for protocol in range(2, 6)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize(
    ("stderr", "shown"),
    [
        (b"", ""),
        (b" \n\n", ""),
        (b"\none\n", ": one"),
        (b"one\r\ntwo\n", ":\n    one\n    two"),
        (b"x\n" * 3 + b"y\n" * 8, ":" + "\n    y" * 8),
        (b"x" * 5000, ": " + "x" * 1000),
        (b"\xff", ": \ufffd"),
    ],
)
def test_a_failed_command_shows_the_last_lines_of_its_errors(stderr: bytes, shown: str) -> None:
    result = RunResult(3, b"out", stderr, stderr, 0.5, False)
    assert str(errors.CommandFailed("make", result)) == f"make exited with 3{shown}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_passes_with_its_attributes_and_notes(
    kind: type[ExecServerError], way: Callable[[Any], Any]
) -> None:
    error = made(kind).about(program="prog", path="/p", cwd="/w", errno=errno.ENOENT)
    error.add_note("a note")
    error.__cause__ = RuntimeError(lambda: None)  # which cannot be pickled

    twin: Any = way(error)

    assert type(twin) is kind
    assert (str(twin), twin.args, twin.__dict__) == (str(error), error.args, error.__dict__)
    assert (twin.program, twin.path, twin.cwd, twin.errno) == (error.program, error.path, "/w", error.errno)
    assert None not in (error.program, error.path, error.errno)
    assert twin.__notes__ == ["a note"]
    if isinstance(error, OSError):
        assert isinstance(twin, OSError)
        assert (twin.filename, twin.strerror) == (error.path, "No such file or directory")


def test_the_manual_has_the_bases_of_each_class_that_is_not_for_import() -> None:
    page = (ROOT / "docs/how-to/client.md").read_text()
    hidden = [kind for kind in kinds() if kind.__module__ == errors.__name__]
    hidden = [kind for kind in hidden if kind.__name__ not in execclient.__all__]
    assert errors.StartMissing in hidden
    for kind in hidden:
        base, python = (each.__name__ for each in kind.__bases__)
        assert f"| `{kind.__name__}` | `{python}` | `{base}` |" in page


class Foreign(errors.CommandFailed):
    """A program's own error."""

    def __init__(self, *, ticket: int) -> None:
        super().__init__("make", RESULT)
        self.ticket = ticket


def test_an_error_of_another_program_passes() -> None:
    twin = pickle.loads(pickle.dumps(Foreign(ticket=7)))

    assert (twin.ticket, twin.result, str(twin)) == (7, RESULT, "make exited with 3: err")


@pytest.mark.parametrize("name", execclient.__all__)
def test_every_public_name_can_be_pickled(name: str) -> None:
    public = getattr(execclient, name)

    assert pickle.loads(pickle.dumps(public)) is public
    assert copy.deepcopy(public) is public


@pytest.mark.parametrize(
    "value",
    [
        RESULT,
        execclient.Stat(False, True, False, 1, 2.0, None),
        execclient.Entry("a", False, True),
        execclient.WalkEntry("/a", False, None),
        execclient.Chunk("stdout", b"a"),
        execclient.TextChunk("stdout", "a"),
        Page.decode({"chunks": [], "nextSeq": 1, "exited": False, "closed": False, "failure": None}),
        execclient.Progress(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_can_be_pickled_and_copied(value: object) -> None:
    for way in WAYS:
        assert way(value) == value


@pytest.mark.parametrize(
    ("kind", "python"),
    [
        (errors.NotFound, FileNotFoundError),
        (errors.SystemFailure, OSError),
        (errors.ConnectionFailed, ConnectionError),
        (errors.DaemonNotRunning, ConnectionRefusedError),
        (errors.AccessDenied, PermissionError),
        (errors.ConnectionLost, ConnectionError),
        (errors.CallTimeout, TimeoutError),
        (errors.WaitTimeout, TimeoutError),
        (errors.NoSuchProcess, ProcessLookupError),
        (tool_errors.TimedOut, TimeoutError),
    ],
)
def test_an_error_is_also_one_of_pythons(kind: type[ExecServerError], python: type[OSError]) -> None:
    assert issubclass(kind, python)


@pytest.mark.parametrize(
    ("code", "number", "kind", "python"),
    [
        (-32004, errno.ENOENT, errors.NotFound, FileNotFoundError),
        (-32603, errno.ENOENT, errors.SystemFailure, FileNotFoundError),
        (-32603, errno.EACCES, errors.SystemFailure, PermissionError),
        (-32600, errno.EACCES, errors.Refused, PermissionError),
        (-32600, errno.EPERM, errors.Refused, PermissionError),
        (-32603, errno.EEXIST, errors.SystemFailure, FileExistsError),
        (-32603, errno.EISDIR, errors.SystemFailure, IsADirectoryError),
        (-32603, errno.ENOTDIR, errors.SystemFailure, NotADirectoryError),
        (-32603, errno.ENOSPC, errors.SystemFailure, OSError),
    ],
)
def test_an_error_reply_is_one_of_pythons_by_its_number(
    code: int, number: int, kind: type[errors.CallFailed], python: type[OSError]
) -> None:
    error = call_failed(
        "fs/x", code, f"Text (os error {number})", {"path": "/p", "reason": "so", "code": "x"}
    )

    assert isinstance(error, kind)
    assert isinstance(error, python)
    assert (error.code, error.errno, error.path, error.reason) == (kind.code, number, "/p", "so")
    assert error.message == f"Text (os error {number})"
    assert str(error) == f"/p: Text (os error {number}): so"


@pytest.mark.parametrize("data", [None, {}, {"reason": 3, "path": []}, {"code": "x"}])
def test_an_error_reply_without_a_number_has_none(data: dict[str, object] | None) -> None:
    error = call_failed("fs/x", -32603, "the number (os error 2) stands elsewhere", data)

    assert (type(error), error.errno, error.path, error.reason) == (errors.SystemFailure, None, None, None)
