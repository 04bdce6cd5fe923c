"""Patches applied as the reference applies them: the same tree, the same words, the same exit code."""

from __future__ import annotations

import base64
import os
import posixpath
from collections.abc import Callable
from pathlib import Path

import pytest

from execclient.patch import CannotRead, Edit, PatchError, UpdateFile, parse_patch, plan
from tests.support.wire import Json
from tests.vectors.cases import filled, load

VECTORS = load("apply_patch")


def moves_to_itself(case: Json) -> bool:
    """Whether a file is moved to the path that it has."""
    try:
        hunks = parse_patch(case["patch"]).hunks
    except PatchError:
        return False
    return any(
        isinstance(hunk, UpdateFile)
        and hunk.move_to is not None
        and posixpath.normpath(hunk.path) == posixpath.normpath(hunk.move_to)
        for hunk in hunks
    )


DIFFERENCES: tuple[tuple[str, Callable[[Json], bool]], ...] = (
    ("the reference writes the file and then removes it; we change it in place", moves_to_itself),
)
"""Where we differ on purpose, why, and in which cases."""


def differs(case: Json) -> bool:
    return any(applies(case) for _, applies in DIFFERENCES)


def build(folder: Path, case: Json) -> None:
    for name, content in case["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_bytes(content))
    for name, target in case.get("symlinks", {}).items():
        (folder / name).symlink_to(target)
    for name, mode in case.get("modes", {}).items():
        (folder / name).chmod(int(mode, 8))


def as_bytes(content: Json) -> bytes:
    return base64.b64decode(content["base64"]) if isinstance(content, dict) else str(content).encode()


def read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise CannotRead(f"path `{path}` is not a file") from None
    except OSError as error:
        raise CannotRead(f"{error.strerror} (os error {error.errno})") from None


def carry_out(edit: Edit) -> None:
    if edit.after is not None:
        target = Path(edit.target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(edit.after)
    if edit.after is None or edit.move_to is not None:
        Path(edit.path).unlink()


def run(text: str, folder: Path) -> tuple[int, str, str]:
    """As the stand-alone command: exit code, standard output and standard error."""
    try:
        planned = plan(parse_patch(text), read, cwd=str(folder), entry="applet")
    except PatchError as error:
        for edit in error.edits:
            carry_out(edit)
        return 1, "", f"{error.applet_text}\n"
    for edit in planned.edits:
        try:
            carry_out(edit)
        except OSError:
            return 1, "", f"Failed to write file {edit.target}\n"
    return 0, planned.text, ""


def tree(folder: Path) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = {"symlink": os.readlink(path)}
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def wanted_tree(case: Json) -> dict[str, Json]:
    return {
        name: content if isinstance(content, dict) and "symlink" in content else as_bytes(content)
        for name, content in case["after"].items()
    }


@pytest.mark.parametrize(
    "case",
    [case for case in VECTORS.cases if not differs(case)],
    ids=lambda case: f"apply_patch::{case['name']}",
)
def test_a_patch_is_applied_as_the_reference_applies_it(case: Json, tmp_path: Path) -> None:
    folder = tmp_path / "cwd"
    folder.mkdir()
    build(folder, case)

    result = run(filled(case["patch"], {"CWD": str(folder)}), folder)

    expected = [case["stdout"], case["stderr"]]
    assert list(result) == [case["exit"], *(text.replace("<CWD>", str(folder)) for text in expected)]
    assert tree(folder) == wanted_tree(case)
    for name, mode in case.get("modes_after", {}).items():
        assert (folder / name).stat().st_mode & 0o777 == int(mode, 8)


@pytest.mark.parametrize("name", ["f", "./f"])
def test_a_file_moved_to_itself_is_changed_and_stays(name: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\n")
    text = f"*** Begin Patch\n*** Update File: f\n*** Move to: {name}\n@@\n-a\n+b\n*** End Patch"

    assert moves_to_itself({"patch": text})
    assert run(text, tmp_path) == (0, f"Success. Updated the following files:\nM {name}\n", "")
    assert tree(tmp_path) == {"f": b"b\n"}
