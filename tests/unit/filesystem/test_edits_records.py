"""Records of edits: what is read is what was durable, and each has one owner."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from execprotocol.errors import InternalError
from execserver.edits.journal import Contents, Records
from execserver.filesystem.edit_model import Step
from execserver.sandbox.policy import Access, Glob, Policy, Rule

POLICY = Policy(
    unrestricted=False,
    network=True,
    rules=(Rule("/", Access.READ), Rule("/ws \udcff", Access.WRITE, skip_missing=True)),
    minimal=True,
    globs=(Glob("/ws/**/.env", Access.DENY),),
    glob_depth=3,
)
STEPS = [
    Step("replace", "/a", "/.a.new", "/.a.old", (1, 2), (1, 3)),
    Step("remove", "/b", "", "/.b.old", None, (1, 4), 5),
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def _begin(state: Path, policy: Policy | None = None) -> Records:
    records = Records(str(state))
    record = records.begin(Contents(policy, ["/.a.new"], ["/.d"]))
    record.forward(STEPS, ["/"])
    record.leave()
    return records


def _file(state: Path) -> Path:
    (path,) = (path for path in (state / "edits").iterdir() if path.name != "lock")
    return path


@pytest.mark.parametrize("policy", [None, POLICY])
def test_a_record_says_what_was_put_into_it(state: Path, policy: Policy | None) -> None:
    records = _begin(state, policy)
    (found,), unknown, locked = records.left(())
    contents = found.contents
    assert (contents.policy, contents.files, contents.folders) == (policy, ["/.a.new"], ["/.d"])
    assert (contents.state, contents.steps, contents.touched) == ("forward", STEPS, ["/"])
    assert (unknown, locked) == ([], False)
    found.back()
    found.leave()
    (found,), _, _ = records.left(())
    assert found.contents.state == "back"
    found.done()
    found.remove()
    assert records.left(()) == ([], [], False)
    assert os.listdir(state / "edits") == ["lock"]


def test_a_record_at_which_somebody_works_is_left_alone(state: Path) -> None:
    records = Records(str(state))
    record = records.begin(Contents(None, [], []))
    assert Records(str(state)).left(()) == ([], [], True)
    assert Records(str(state)).left({record.name}) == ([], [], False)
    record.remove()


def test_a_torn_line_counts_as_none(state: Path) -> None:
    _begin(state)
    whole = _file(state).read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole), 7):
        _file(state).write_bytes(whole[:cut])
        (found,), _, _ = Records(str(state)).left(())
        assert found.contents.state == "staging"
        found.done()
        found.leave()
        (found,), _, _ = Records(str(state)).left(())
        assert found.contents.state == "done"
        found.leave()


def test_a_record_whose_first_line_is_torn_goes(state: Path) -> None:
    records = _begin(state)
    path = _file(state)
    path.write_bytes(path.read_bytes()[:20])
    assert records.left(()) == ([], [], False)
    assert os.listdir(state / "edits") == ["lock"]


@pytest.mark.parametrize(
    "line",
    [
        {"version": 2, "policy": None, "files": [], "folders": []},
        {"version": 1, "policy": None, "files": None, "folders": []},
        {"version": 1, "policy": [], "files": [], "folders": []},
        {"version": 1, "policy": None, "files": [5], "folders": []},
        ["version"],
    ],
)
def test_a_record_that_is_not_understood_is_left_alone(state: Path, line: object) -> None:
    records = _begin(state)
    path = _file(state)
    path.write_text(json.dumps(line) + "\n")
    assert records.left(()) == ([], [path.name], False)
    assert path.exists()


def test_a_line_that_the_disk_does_not_take_is_not_there(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    records = Records(str(state))
    record = records.begin(Contents(None, ["/.a.new"], []))
    before = _file(state).read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record.forward(STEPS, ["/"])
    with pytest.raises(InternalError, match="No space left"):
        records.begin(Contents(None, [], []))
    monkeypatch.undo()
    assert _file(state).read_bytes() == before
    assert record.contents.state == "staging"
    record.remove()


def test_a_folder_that_others_may_write_to_holds_no_records(state: Path) -> None:
    (state / "edits").mkdir()
    (state / "edits").chmod(0o777)
    with pytest.raises(InternalError, match="open to others"):
        Records(str(state)).begin(Contents(None, [], []))


def test_without_a_record_nothing_is_made(state: Path) -> None:
    assert Records(str(state)).left(()) == ([], [], False)
    assert os.listdir(state) == []
