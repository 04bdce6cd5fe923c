"""Which commands of a shell call are patches, and what the model is told of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from execclient.patch import Intercepted, PatchError, UnknownDirectory, intercept, plan
from tests.support.wire import Json
from tests.vectors.cases import load
from tests.vectors.test_apply_patch import carry_out, read

VECTORS = load("apply_patch_intercept")

DIFFERENCES: tuple[tuple[str, Callable[[Json], bool]], ...] = (
    (
        "the reference makes a folder with the name ~; we refuse, as only the shell knows the home",
        lambda case: re.match(r"\s*cd\s+~", case["args"]["cmd"]) is not None,
    ),
)
"""Where we differ on purpose, why, and in which cases."""

WRAPPED = re.compile(
    r"Wall time: <SECS> seconds\nOutput:\nExit code: 0\nWall time: <SECS> seconds\nOutput:\n", re.ASCII
)


def differs(case: Json) -> bool:
    return any(applies(case) for _, applies in DIFFERENCES)


def answer(argv: list[str], folder: Path) -> str | None:
    """What the model is told, without the envelope of a tool call; None when a shell is to run."""
    call = intercept(argv, str(folder))
    if call is None:
        return None
    if not isinstance(call, Intercepted):
        return call.tool_text
    try:
        planned = plan(call.parse(), read, cwd=call.cwd)
    except PatchError as error:
        return error.tool_text
    for edit in planned.edits:
        carry_out(edit)
    return planned.text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of all cases."""
    (tmp_path / "a.txt").write_text("hello\n")
    (tmp_path / "d1").mkdir()
    (tmp_path / "my dir").mkdir()
    return tmp_path


@pytest.mark.parametrize("case", VECTORS.cases, ids=VECTORS.ids(lambda case: str(case["name"])))
def test_a_call_is_taken_or_left_as_by_the_reference(case: Json, folder: Path) -> None:
    if "cmd" not in case["args"]:
        pytest.fail(f"a case without a command: {case['args']}")
    argv = ["/bin/bash", "-lc", case["args"]["cmd"].replace("<CWD>", str(folder))]

    folder = folder / case["args"].get("workdir", "")
    if differs(case):
        assert isinstance(intercept(argv, str(folder)), UnknownDirectory)
        return
    told = answer(argv, folder)

    if case["handled_by"] == "shell":
        assert told is None
    else:
        assert told == WRAPPED.sub("", case["output"]).replace("<CWD>", str(folder))


def test_a_file_moved_to_itself_is_there_afterwards(folder: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a.txt\n*** Move to: a.txt\n-hello\n+HELLO\n*** End Patch"

    answer(["apply_patch", patch], folder)

    assert (folder / "a.txt").read_text() == "HELLO\n"
