"""Journal entries: the durable lines are read again, and each entry has one owner."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from execprotocol.errors import InternalError
from execserver.edits.journal import EntryContents, Journal
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


def _begin(state: Path, policy: Policy | None = None) -> Journal:
    journal = Journal(str(state))
    entry = journal.begin(EntryContents(policy, ["/.a.new"], ["/.d"]))
    entry.forward(STEPS, ["/"])
    entry.leave()
    return journal


def _file(state: Path) -> Path:
    (path,) = (path for path in (state / "edits").iterdir() if path.name != "lock")
    return path


@pytest.mark.parametrize("policy", [None, POLICY])
def test_a_record_says_what_was_put_into_it(state: Path, policy: Policy | None) -> None:
    journal = _begin(state, policy)
    (found,), unknown, locked = journal.take_unfinished(())
    contents = found.contents
    assert (contents.policy, contents.files, contents.folders) == (policy, ["/.a.new"], ["/.d"])
    assert (contents.state, contents.steps, contents.touched) == ("forward", STEPS, ["/"])
    assert (unknown, locked) == ([], False)
    found.back()
    found.leave()
    (found,), _, _ = journal.take_unfinished(())
    assert found.contents.state == "back"
    found.done()
    found.remove()
    assert journal.take_unfinished(()) == ([], [], False)
    assert os.listdir(state / "edits") == ["lock"]


def test_a_record_in_work_is_left_alone(state: Path) -> None:
    journal = Journal(str(state))
    entry = journal.begin(EntryContents(None, [], []))
    assert Journal(str(state)).take_unfinished(()) == ([], [], True)
    assert Journal(str(state)).take_unfinished({entry.name}) == ([], [], False)
    entry.remove()


def test_a_torn_line_counts_as_none(state: Path) -> None:
    _begin(state)
    whole = _file(state).read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole), 7):
        _file(state).write_bytes(whole[:cut])
        (found,), _, _ = Journal(str(state)).take_unfinished(())
        assert found.contents.state == "staging"
        found.done()
        found.leave()
        (found,), _, _ = Journal(str(state)).take_unfinished(())
        assert found.contents.state == "done"
        found.leave()


def test_a_record_whose_first_line_is_torn_goes(state: Path) -> None:
    journal = _begin(state)
    path = _file(state)
    path.write_bytes(path.read_bytes()[:20])
    assert journal.take_unfinished(()) == ([], [], False)
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
    journal = _begin(state)
    path = _file(state)
    path.write_text(json.dumps(line) + "\n")
    assert journal.take_unfinished(()) == ([], [path.name], False)
    assert path.exists()


def test_a_line_that_the_disk_does_not_take_is_not_there(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal = Journal(str(state))
    entry = journal.begin(EntryContents(None, ["/.a.new"], []))
    before = _file(state).read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        entry.forward(STEPS, ["/"])
    with pytest.raises(InternalError, match="No space left"):
        journal.begin(EntryContents(None, [], []))
    monkeypatch.undo()
    assert _file(state).read_bytes() == before
    assert entry.contents.state == "staging"
    entry.remove()


def test_a_folder_that_others_may_write_to_holds_no_records(state: Path) -> None:
    (state / "edits").mkdir()
    (state / "edits").chmod(0o777)
    with pytest.raises(InternalError, match="open to others"):
        Journal(str(state)).begin(EntryContents(None, [], []))


def test_without_a_record_nothing_is_made(state: Path) -> None:
    assert Journal(str(state)).take_unfinished(()) == ([], [], False)
    assert os.listdir(state) == []
