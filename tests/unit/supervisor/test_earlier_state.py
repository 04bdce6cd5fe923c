"""State in `/tmp/execserver-UID` is migrated once, and no record is lost or duplicated."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from execserver.supervisor import earlier_state
from execserver.supervisor.earlier_state import migrate

RECORDS = {"instances/7": "", "mount-points/ab": "entry\n", "edits/cd": "staging\nforward\n"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The files of an earlier version that was killed."""
    old = tmp_path / "old"
    for folder in ("instances", "mount-points", "edits", "spool", "empty-folder"):
        (old / folder).mkdir(parents=True, mode=0o700)
    old.chmod(0o700)
    for name in ("mount-points/lock", "edits/lock", "empty-file"):
        (old / name).touch()
    for name, content in RECORDS.items():
        (old / name).write_text(content)
    return old


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "home/.local/state/execserver"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home")}


def records(folder: Path) -> dict[str, str]:
    """All records below a folder."""
    found = [path for path in folder.glob("*/*") if path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_records_are_taken_along_once(old: Path, new: Path, environment: dict[str, str]) -> None:
    said = migrate(environment, str(old))
    assert said == f"state of an earlier version was migrated from {old} to {new}: records: 3"
    assert records(new) == RECORDS
    assert not old.exists()

    old.mkdir(mode=0o700)
    (old / "edits").mkdir()
    (old / "edits/planted").write_text("by a command in a sandbox")
    assert migrate(environment, str(old)) is None
    assert records(new) == RECORDS


@pytest.mark.parametrize("folders", [(), ("instances",), ("instances", "mount-points", "edits", "spool")])
def test_a_folder_without_records_is_left_as_it_is_in_silence(
    folders: tuple[str, ...], tmp_path: Path, new: Path, environment: dict[str, str]
) -> None:
    old = tmp_path / "old"
    old.mkdir(mode=0o700)
    for folder in folders:
        (old / folder).mkdir(mode=0o700)
        if folder != "instances":
            (old / folder / "lock").touch()

    assert migrate(environment, str(old)) is None
    assert sorted(path.name for path in old.iterdir()) == sorted(folders)
    (old / "edits").mkdir(exist_ok=True)
    (old / "edits/planted").write_text("by a command in a sandbox")
    assert migrate(environment, str(old)) is None
    assert records(new) == {}


def test_without_an_old_place_nothing_that_comes_later_is_taken(
    old: Path, new: Path, environment: dict[str, str]
) -> None:
    assert migrate(environment, f"{old}-none") is None
    assert migrate(environment, str(old)) is None
    assert records(new) == {}
    assert records(old) == RECORDS


@pytest.mark.parametrize("used", RECORDS)
def test_records_of_a_running_daemon_are_migrated_after_its_death(
    used: str, old: Path, new: Path, environment: dict[str, str]
) -> None:
    with open(old / used) as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as mount points have it; edits and instances have LOCK_EX
        said = migrate(environment, str(old))
        assert said == f"{old} is in use by a daemon of an earlier version: it is migrated at a later start"
        assert records(old) == RECORDS
        assert records(new) == {}
    assert "records: 3" in str(migrate(environment, str(old)))
    assert records(new) == RECORDS


def test_a_folder_that_took_the_place_of_the_used_one_is_left_alone(
    old: Path, new: Path, environment: dict[str, str]
) -> None:
    with open(old / "instances/7") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        migrate(environment, str(old))
    old.rename(f"{old}-away")
    old.mkdir(mode=0o700)
    (old / "edits").mkdir()
    (old / "edits/planted").touch()
    assert "is not the folder that an earlier version used" in str(migrate(environment, str(old)))
    assert records(new) == {}


@pytest.mark.parametrize("case", ["open", "link", "file", "foreign"])
def test_a_folder_that_is_not_private_is_ignored_and_reported_once(
    case: str, old: Path, new: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = {
        "open": "has mode 0755, open to others",
        "link": "is a symbolic link",
        "file": "is not a folder",
    }
    place = Path(f"{old}-{case}")
    match case:
        case "open":
            old.chmod(0o755)
            place = old
        case "link":
            place.symlink_to(old)
        case "file":
            place.touch()
        case "foreign":
            if os.geteuid() != 0:
                pytest.skip("only root gives folders away")
            os.chown(old, 65534, 65534)
            place = old
    said = str(migrate(environment, str(place)))
    assert f"{place}, where earlier versions kept state, " in said
    assert reason.get(case, "belongs to nobody (uid 65534)") in said
    assert records(new) == {}
    assert records(old) == RECORDS
    assert migrate(environment, str(place)) is None


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "RUNTIME_DIRECTORY"])
def test_a_daemon_with_another_state_folder_migrates_nothing(
    variable: str, old: Path, new: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    assert migrate(environment | {variable: str(tmp_path)}, str(old)) is None
    assert records(old) == RECORDS
    assert not new.exists()


class KilledError(BaseException):
    """Like a kill, it is not caught."""


@pytest.mark.parametrize("step", range(40))
def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(
    step: int, old: Path, new: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class DyingOs:
        """The module, with a simulated kill after a number of changes of the disk."""

        left = step

        def __getattr__(self, name: str) -> object:
            if name in ("unlink", "rename", "mkdir", "rmdir", "fsync"):
                if self.left == 0:
                    raise KilledError
                self.left -= 1
            return getattr(os, name)

    with monkeypatch.context() as patched:
        patched.setattr(earlier_state, "os", DyingOs())
        try:
            migrate(environment, str(old))
        except KilledError:
            done = False
        else:
            done = True
    if step == 39:
        assert done, "more steps than are tried"
    migrate(environment, str(old))
    assert records(new) == RECORDS
    assert records(old) == {}
    assert [name for name in os.listdir(new) if name.startswith("arriv")] in ([], ["arriving"])


def test_folders_and_links_among_the_records_are_not_followed(
    old: Path, new: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    (old / "edits/link").symlink_to(tmp_path / "secret")
    (old / "instances/folder").mkdir()
    assert "; the rest of it can be removed" in str(migrate(environment, str(old)))
    assert records(new) == RECORDS


def test_an_old_place_on_another_file_system_is_taken_along(
    old: Path, new: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(dir=shared) as there:
        other = Path(there) / "old"
        shutil.copytree(old, other)
        other.chmod(0o700)
        assert "records: 3" in str(migrate(environment, str(other)))
        assert not other.exists()
    assert records(new) == RECORDS
