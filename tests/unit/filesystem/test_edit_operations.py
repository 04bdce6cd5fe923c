"""The steps of `fs/applyEdits` can be interrupted anywhere, and done or undone again."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest, RpcError
from execserver.edits.plan import Edit, Plan, make_plan
from execserver.filesystem import edit_operations
from execserver.filesystem.edit_model import (
    Inspection,
    Staged,
    Staging,
    Step,
    TargetState,
    path_from_json,
    path_to_json,
)
from tests.support.edits import MARK, FiveFiles, picture


class Never:
    """Work that is wanted."""

    def is_set(self) -> bool:
        return False


class _CutOffError(Exception):
    """The server is killed here."""


class Prepared:
    """A patch of five files up to its record: new files beside the old ones."""

    def __init__(self, folder: Path) -> None:
        self.files = FiveFiles(folder)
        edits = [
            Edit(str(folder / "first"), "bmV3IGZpcnN0"),
            Edit(str(folder / "link"), "bmV3IHNlY29uZA=="),
            Edit(str(folder / "new/deep/file"), "bmV3IGZpbGU=", create_parents=True),
            Edit(str(folder / "third"), "bmV3IHRoaXJk"),
            Edit(str(folder / "gone"), None),
        ]
        texts = [b"new first", b"new second", b"new file", b"new third"]
        inspections = [
            edit_operations.inspect(each.path, writes=each.writes, digest=False, mode_from=None, stop=Never())
            for each in edits
        ]
        self.plan: Plan = make_plan(edits, inspections, "word")
        staged = []
        for (_, staging), text in zip(self.plan.stagings, texts, strict=True):
            number, made = edit_operations.stage(staging, Never())
            os.write(number, text)
            os.close(number)
            staged.append(made)
        self.steps = self.plan.steps(staged)

    def clean_up(self) -> None:
        edit_operations.discard(self.plan.files, self.plan.folders)

    def done(self, count: int) -> None:
        """Do so many steps."""
        with cut_off_after(count) as between:
            edit_operations.do(self.steps, between)


@contextmanager
def cut_off_after(count: int) -> Iterator[Callable[[], None]]:
    """A callback that is killed when it is called for the `count`-th time, and with it the block."""
    calls = itertools.count(1)

    def between() -> None:
        if next(calls) == count:
            raise _CutOffError

    with suppress(_CutOffError):
        yield between


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return Prepared(tmp_path / "ws")


def test_nothing_shows_before_the_steps(prepared: Prepared) -> None:
    shown = {name: what for name, what in prepared.files.now().items() if not name.startswith(MARK)}
    assert shown == prepared.files.old
    prepared.clean_up()
    assert prepared.files.now() == prepared.files.old


@pytest.mark.parametrize("count", range(1, 6))
def test_steps_that_were_cut_off_are_done_again(prepared: Prepared, count: int) -> None:
    prepared.done(count)
    edit_operations.do(prepared.steps)
    edit_operations.do(prepared.steps)
    prepared.clean_up()
    assert prepared.files.now() == prepared.files.new


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("undone", range(1, 6))
def test_steps_that_were_cut_off_are_undone(prepared: Prepared, count: int, undone: int) -> None:
    prepared.done(count)
    with cut_off_after(undone) as between:
        edit_operations.undo(prepared.steps, between)
    edit_operations.undo(prepared.steps)
    edit_operations.undo(prepared.steps)
    prepared.clean_up()
    assert prepared.files.now() == prepared.files.old


def test_tidying_up_can_be_cut_off(prepared: Prepared) -> None:
    edit_operations.do(prepared.steps)
    edit_operations.discard(prepared.plan.files[:3], [])
    edit_operations.do(prepared.steps)
    prepared.clean_up()
    assert prepared.files.now() == prepared.files.new


def test_a_finished_step_that_another_program_changed_stays(prepared: Prepared) -> None:
    prepared.done(5)
    for name in ("first", "third"):
        other = prepared.files.folder / f"{name} of somebody else"
        other.write_text("theirs")
        other.rename(prepared.files.folder / name)
    (prepared.files.folder / "gone").unlink(missing_ok=True)
    edit_operations.do(prepared.steps)
    prepared.clean_up()
    assert (prepared.files.folder / "first").read_text() == "theirs"
    assert (prepared.files.folder / "third").read_text() == "theirs"


@pytest.mark.parametrize("name", ["first", "third", "gone"])
def test_a_target_that_another_program_replaced_stops_the_steps(prepared: Prepared, name: str) -> None:
    other = prepared.files.folder / "other"
    other.write_text("theirs")
    other.rename(prepared.files.folder / name)
    with pytest.raises(InvalidRequest, match="was changed by another program") as caught:
        edit_operations.do(prepared.steps)
    assert caught.value.name == "edit_conflict"
    edit_operations.undo(prepared.steps)
    prepared.clean_up()
    expected = {**prepared.files.old}
    expected[name] = ((prepared.files.folder / name).stat().st_mode & 0o777, b"theirs")
    assert prepared.files.now() == expected


def test_a_file_system_without_hard_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    prepared = Prepared(tmp_path / "ws")
    monkeypatch.undo()
    prepared.done(3)
    edit_operations.undo(prepared.steps)
    prepared.clean_up()
    assert prepared.files.now() == prepared.files.old


def test_a_name_in_a_folder_that_cannot_be_written_to_is_no_reason_to_keep_a_record() -> None:
    edit_operations.discard(["/proc/self/no such file"], ["/sys/no such folder"])


@pytest.mark.parametrize("path", ["/a", "/ü/\udcff", "/a b/\n"])
def test_what_is_told_survives_json_whatever_the_names(path: str) -> None:
    watched = TargetState(path, (1, 2), 3, 4)
    assert path_from_json(path_to_json(path)) == path
    for sent in (
        Inspection(path, path, (f"1:2{path}",), 1, (1, 2), 3, 4, "ab", 0o640),
        Inspection(path, "", (path,), 0, None, 0, 0, None, None),
        watched,
        Staging(watched, path, path, (path, path), 0o640),
        Staging(watched, path, "", (), None),
        Staged((1, 2), (3, 4), None),
        Step("replace", path, path, path, (1, 2), (3, 4)),
        Step("remove", path, "", path, None, (3, 4), 5),
    ):
        text = _through_json(sent.to_json())
        assert type(sent).from_json(text) == sent


@pytest.mark.parametrize(
    "text", [[], [1], ["replace", 1, "", "", None, None, 0], ["no", "", "", "", None, None, 0]]
)
def test_what_is_no_step_is_refused(text: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Step.from_json(text)


def test_a_path_through_too_many_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        edit_operations.inspect(str(tmp_path / "a"), writes=True, digest=False, mode_from=None, stop=Never())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_an_owner_that_cannot_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 1234, 1234)
    before = picture(tmp_path)
    seen = edit_operations.inspect(str(path), writes=True, digest=False, mode_from=None, stop=Never())
    plan = make_plan([Edit(str(path), "")], [seen], "word")
    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(RpcError, match=r"the owner of .* cannot be kept"):
        edit_operations.stage(plan.stagings[0][1], Never())
    edit_operations.discard(plan.files, plan.folders)
    assert picture(tmp_path) == before


def _through_json(sent: list[object]) -> list[object]:
    found: list[object] = json.loads(json.dumps(sent))
    return found
