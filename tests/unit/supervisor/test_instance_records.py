from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.private_folder import FolderError
from execserver.supervisor.instance_records import claim, sweep


def test_a_record_is_stale_only_when_all_its_copies_are_closed(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    first, stale = claim(environment)
    assert stale == []
    servers_copy = os.dup(first.descriptor)
    first.close()
    second, stale = claim(environment)
    assert stale == []
    assert second.instance != first.instance
    os.close(servers_copy)

    third, stale = claim(environment)
    assert [record.instance for record in stale] == [first.instance]
    fourth, others = claim(environment)
    assert others == []  # two starts do not sweep the same one
    assert sweep(stale) == []
    names = {str(record.instance) for record in (second, third, fourth)}
    assert set(os.listdir(tmp_path / "execserver/instances")) == names
    for record in (second, third, fourth):
        record.remove()
    assert os.listdir(tmp_path / "execserver/instances") == []


def test_the_folder_of_the_service_manager_comes_first(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o755)  # systemd's default mode
    record, _ = claim({"RUNTIME_DIRECTORY": f"{runtime}:/other", "XDG_STATE_HOME": str(tmp_path)})
    assert os.listdir(runtime / "instances") == [str(record.instance)]
    record.remove()
    record_path = runtime / "instances"
    assert record_path.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "execserver").mkdir()
    (tmp_path / "execserver").chmod(0o777)
    with pytest.raises(FolderError, match="mode 0777"):
        claim({"XDG_STATE_HOME": str(tmp_path)})


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    record, _ = claim(environment)
    (tmp_path / "execserver/instances/notes.txt").write_text("x")
    record.remove()
    record, stale = claim(environment)
    assert stale == []
    record.remove()
    assert os.listdir(tmp_path / "execserver/instances") == ["notes.txt"]


def test_a_number_that_is_wanted_is_taken_unless_it_is_taken(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    first, _ = claim(environment, 7)
    second, _ = claim(environment, 7)
    assert first.instance == 7
    assert second.instance != 7
