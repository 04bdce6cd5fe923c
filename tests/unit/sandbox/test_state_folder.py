"""The private folder, and the empty file and folder in it."""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.private_folder import FolderError, state_folder
from execserver.sandbox.state_folder import StateFolderError, empty_file, empty_folder, open_state_folder
from tests.sandbox_user import NOT_ROOT, needed_paths

UID = os.geteuid()


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# Which folder.


def test_the_setting_comes_before_every_variable(tmp_path: Path) -> None:
    environment = {"RUNTIME_DIRECTORY": f"{tmp_path}/run", "XDG_STATE_HOME": f"{tmp_path}/xdg"}
    assert open_state_folder(f"{tmp_path}/set", environment, UID) == f"{tmp_path}/set"
    assert os.listdir(tmp_path) == ["set"]


def test_the_service_managers_folder_comes_before_the_users(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    environment = {
        "RUNTIME_DIRECTORY": f"{tmp_path}/run:{tmp_path}/more",
        "XDG_STATE_HOME": f"{tmp_path}/xdg",
    }
    assert open_state_folder(None, environment, UID) == f"{tmp_path}/run"


def test_in_a_service_managers_folder_that_others_can_read_there_is_one_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o755)  # systemd's default
    path = open_state_folder(None, {"RUNTIME_DIRECTORY": f"{tmp_path}/run"}, UID)
    assert path == f"{tmp_path}/run/execserver"
    assert mode(path) == 0o700


@pytest.mark.parametrize("runtime", ["", "relative"])
def test_without_a_service_manager_it_is_below_the_users_state(runtime: str, tmp_path: Path) -> None:
    environment = {"RUNTIME_DIRECTORY": runtime, "XDG_STATE_HOME": f"{tmp_path}/xdg/"}
    path = open_state_folder(None, environment, UID)
    assert path == f"{tmp_path}/xdg/execserver"
    assert mode(path) == 0o700


@pytest.mark.parametrize("state", ["", "relative"])
def test_without_an_absolute_variable_it_is_below_the_home_folder(state: str, tmp_path: Path) -> None:
    path = open_state_folder(None, {"XDG_STATE_HOME": state, "HOME": str(tmp_path)}, UID)
    assert path == f"{tmp_path}/.local/state/execserver"
    assert (mode(tmp_path / ".local"), mode(path)) == (0o700, 0o700)


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "relative"}], ids=str)
def test_without_an_absolute_home_it_is_below_the_accounts(environment: dict[str, str]) -> None:
    home = pwd.getpwuid(UID).pw_dir
    if os.path.isdir(home):
        assert state_folder(environment) == f"{home.rstrip('/')}/.local/state/execserver"
        return
    with pytest.raises(FolderError, match=f"the home folder {home} .of the account. is not there"):
        state_folder(environment)


def test_a_home_folder_that_is_missing_is_not_made_and_the_way_out_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        StateFolderError, match=f"{tmp_path}/none .from HOME. is not there; set XDG_STATE_HOME"
    ):
        open_state_folder(None, {"HOME": f"{tmp_path}/none"}, UID)
    assert os.listdir(tmp_path) == []


def in_namespace(program: str, *before: str) -> str:
    """The output of a program that runs as root of a new user and mount namespace, with an empty /tmp."""
    # Empty but for the way to the repository and its interpreter, which may lie there.
    shell = f"""
        mount -t tmpfs tmpfs /mnt
        for needed; do
            mkdir -p "/mnt/${{needed#/tmp/}}"
            mount --rbind "$needed" "/mnt/${{needed#/tmp/}}"
        done
        mount --rbind /mnt /tmp
        {" ".join(before)} exec "$PYTHON" -c "$PROGRAM"
    """
    needed = sorted({str(path) for path in needed_paths() if path.is_relative_to("/tmp")})
    result = subprocess.run(
        ["unshare", "-rm", "sh", "-ec", shell, "sh", *needed],
        env={**os.environ, "PYTHON": sys.executable, "PROGRAM": program},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_home_folder_on_a_read_only_file_system_is_named() -> None:
    program = (
        "from execserver.sandbox.state_folder import open_state_folder, StateFolderError\n"
        "try: open_state_folder(None, {'HOME': '/tmp/home'}, 0)\n"
        "except StateFolderError as error: print(error)\n"
    )
    said = in_namespace(program, "mkdir /tmp/home; mount -t tmpfs -o ro tmpfs /tmp/home;")
    assert (
        "folder /tmp/home/.local/state/execserver: Read-only file system in /tmp/home, which belongs" in said
    )
    assert "--spool-dir" in said


def test_a_folder_with_the_old_name_in_tmp_changes_nothing() -> None:
    program = (
        "import os\n"
        "from execserver.sandbox.state_folder import open_state_folder\n"
        "print(open_state_folder(None, {'HOME': '/tmp/home'}, 0), os.listdir('/tmp/execserver-0'))\n"
    )
    said = in_namespace(program, "mkdir /tmp/home /tmp/execserver-0; chmod 777 /tmp/execserver-0;")
    assert said == "/tmp/home/.local/state/execserver []\n"


@pytest.mark.skipif(UID != 0, reason=NOT_ROOT)
@pytest.mark.parametrize("taken", [".local", ".local/state"])
def test_a_folder_of_another_user_on_the_way_is_named_with_its_owner(taken: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / taken).mkdir(parents=True)  # root's, as after a `sudo` that kept HOME
    for folder in (home, *home.rglob("*")):
        folder.chmod(0o755)
    program = (
        "import os\n"
        "from execserver.sandbox.state_folder import open_state_folder, StateFolderError\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "try: open_state_folder(None, {'HOME': '/mnt'}, 65534)\n"
        "except StateFolderError as error: print(error)\n"
    )
    bound = (
        'mount --bind "$1" /mnt && exec "$2" -c "$3"'  # below /tmp there are folders that only root enters
    )
    result = subprocess.run(
        ["unshare", "-m", "sh", "-ec", bound, "-", str(home), sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    expected = f"Permission denied in /mnt/{taken}, which belongs to root (uid 0) and has mode 0755; or name"
    assert expected in result.stdout, result.stderr


def test_the_path_has_no_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert open_state_folder(f"{tmp_path}/link/state/", {}, UID) == f"{tmp_path}/real/state"


@pytest.mark.parametrize("umask", [0o000, 0o777], ids=oct)
def test_missing_parents_are_made_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        path = open_state_folder(f"{tmp_path}/a/b", {}, UID)
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(path)) == (0o700, 0o700)


def test_an_existing_folder_keeps_what_is_in_it(tmp_path: Path) -> None:
    path = open_state_folder(f"{tmp_path}/state", {}, UID)
    Path(path, "x").write_text("x")
    assert open_state_folder(f"{tmp_path}/state", {}, UID) == path
    assert os.listdir(path) == ["x"]


# Refused folders.


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("link", "folder {} is a symbolic link; remove it"),
        ("dangling link", "folder {} is a symbolic link; remove it"),
        ("file", "folder {}: Not a directory"),
        ("open to the group", "folder {} has mode 0710, open to others; chmod it to 0700"),
        ("open to all", "folder {} has mode 1777, open to others; chmod it to 0700"),
    ],
)
@pytest.mark.parametrize("by", ["setting", "variable"])
def test_a_folder_that_is_not_private_is_refused_with_path_and_way_out(
    case: str, text: str, by: str, tmp_path: Path
) -> None:
    path = tmp_path / "execserver"
    match case:
        case "link":
            (tmp_path / "real").mkdir(mode=0o700)
            path.symlink_to("real")
        case "dangling link":
            path.symlink_to("nowhere")
        case "file":
            path.touch()
        case "open to the group":
            path.mkdir()
            path.chmod(0o710)
        case "open to all":
            path.mkdir()
            path.chmod(0o1777)
    configured, environment = (
        (f"{path}/", {}) if by == "setting" else (None, {"XDG_STATE_HOME": str(tmp_path)})
    )
    with pytest.raises(StateFolderError, match=f"{re.escape(text.format(path))}.*--spool-dir"):
        open_state_folder(configured, environment, UID)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StateFolderError,
        match=rf"state belongs to \S+ \(uid {UID}\), not to us, .*uid {UID + 1}.*; have it removed",
    ):
        open_state_folder(f"{tmp_path}/state", {}, UID + 1)


def test_a_service_managers_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o775)
    with pytest.raises(StateFolderError, match=f"folder {tmp_path}/run has mode 0775"):
        open_state_folder(None, {"RUNTIME_DIRECTORY": f"{tmp_path}/run"}, UID)
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.parametrize("path", ["", "relative/folder", "/zero\0byte"])
def test_a_setting_that_is_no_absolute_path_is_refused(path: str) -> None:
    with pytest.raises(StateFolderError, match="no absolute path"):
        open_state_folder(path, {}, UID)


def test_a_place_where_nothing_can_be_made_is_refused_with_its_path() -> None:
    with pytest.raises(StateFolderError, match=r"folder /proc/none/state: No such file.*--spool-dir"):
        open_state_folder("/proc/none/state", {}, UID)


# The empty things.


def test_the_empty_things_have_mode_000_and_are_made_once(tmp_path: Path) -> None:
    file, folder = empty_file(str(tmp_path)), empty_folder(str(tmp_path))
    assert stat.S_ISREG(os.lstat(file).st_mode)
    assert os.lstat(file).st_size == 0
    assert stat.S_ISDIR(os.lstat(folder).st_mode)
    assert (mode(file), mode(folder)) == (0, 0)
    inodes = os.lstat(file).st_ino, os.lstat(folder).st_ino
    assert (empty_file(str(tmp_path)), empty_folder(str(tmp_path))) == (file, folder)
    assert (os.lstat(file).st_ino, os.lstat(folder).st_ino) == inodes
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (file, folder)))


@pytest.mark.parametrize("wrong", ["content", "mode", "link", "folder", "socket"])
def test_an_empty_file_that_is_none_is_made_anew(wrong: str, tmp_path: Path) -> None:
    path = Path(empty_file(str(tmp_path)))
    path.unlink()
    match wrong:
        case "content":
            path.write_text("x")
            path.chmod(0)
        case "mode":
            path.touch()
            path.chmod(0o400)
        case "link":
            path.symlink_to("/etc/passwd")
        case "folder":
            path.mkdir(mode=0)
        case "socket":
            os.mkfifo(path, 0)
    assert empty_file(str(tmp_path)) == str(path)
    assert stat.S_ISREG(path.lstat().st_mode)
    assert (path.lstat().st_size, mode(path)) == (0, 0)


@pytest.mark.parametrize("wrong", ["mode", "link", "file"])
def test_an_empty_folder_that_is_none_is_made_anew(wrong: str, tmp_path: Path) -> None:
    path = Path(empty_folder(str(tmp_path)))
    path.rmdir()
    match wrong:
        case "mode":
            path.mkdir(mode=0o755)
        case "link":
            path.symlink_to("/etc")
        case "file":
            path.touch()
    assert empty_folder(str(tmp_path)) == str(path)
    assert stat.S_ISDIR(path.lstat().st_mode)
    assert mode(path) == 0
    assert Path("/etc/passwd").exists()


def test_an_empty_folder_with_something_in_it_is_said_and_not_emptied(tmp_path: Path) -> None:
    path = Path(empty_folder(str(tmp_path)))
    path.chmod(0o700)
    (path / "x").touch()
    if UID == 0:
        path.chmod(0)  # only root can still read it
    with pytest.raises(StateFolderError, match=f"cannot make {path}: Directory not empty; remove it"):
        empty_folder(str(tmp_path))
    path.chmod(0o700)
    assert os.listdir(path) == ["x"]


def test_empty_things_cannot_be_made_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    for make in (empty_file, empty_folder):
        with pytest.raises(StateFolderError, match=f"{tmp_path}/gone/empty-"):
            make(f"{tmp_path}/gone")
