"""`execserver doctor`, the real command, on a machine that lacks one thing or another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox_user import ALL_USERS, NOT_ROOT, User, user_named

EXECSERVER = [sys.executable, "-I", "-m", "execserver"]
NAMES = [
    "sandbox",
    "bubblewrap",
    "user namespaces",
    "mount namespaces",
    "process namespaces",
    "network namespaces",
    "managed network",
    "seccomp",
    "AppArmor",
    "Landlock",
    "setsid",
    "bash",
    "state folder",
    *(["device nodes"] if os.geteuid() == 0 else []),
    "spool folder",
    "ownership tags",
    "user",
    "control groups",
    "require_sandbox",
    "settings file",
    "sockets",
]


def doctor(
    folder: Path, *flags: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"),
        **(env or {}),
    }
    return subprocess.run(
        [*before, *EXECSERVER, "doctor", *flags],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The checks by name; the rest of the answer must fit them."""
    report = json.loads(done.stdout)
    assert list(report) == ["ok", "checks"]
    for check in report["checks"]:
        assert list(check) == ["name", "status", "detail", "cause", "fix"]
        assert check["status"] in ("ok", "warning", "missing")
        assert bool(check["cause"]) is bool(check["fix"]) is (check["status"] != "ok"), check
    missing = any(check["status"] == "missing" for check in report["checks"])
    assert report["ok"] is not missing
    assert done.returncode == int(missing)
    return {check["name"]: check for check in report["checks"]}


def test_every_mechanism_has_a_line_and_text_and_json_say_the_same(tmp_path: Path) -> None:
    found = checks(doctor(tmp_path, "--json"))
    assert list(found) == NAMES
    done = doctor(tmp_path)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    for name, check in found.items():
        assert any(line.startswith(check["status"]) and f"  {name}  " in line for line in lines), name
    assert lines[-1].startswith("Requests that ask for a sandbox are ")


@pytest.fixture(params=ALL_USERS)
def user(request: pytest.FixtureRequest) -> User:
    """Whom the command runs as."""
    found = user_named(request.param)
    if found is None:
        pytest.skip(NOT_ROOT)
    return found


@pytest.fixture
def users_folder(user: User) -> Iterator[Path]:
    """A folder of that user, which pytest's own folders are closed to."""
    folder = Path(tempfile.mkdtemp(prefix="doctor-"))
    user.give(folder)
    yield folder
    shutil.rmtree(folder)


def test_each_user_is_told_what_holds_for_that_user(user: User, users_folder: Path) -> None:
    root = str(Path(__file__).parents[2])
    run = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import execserver.cli as c; ",
    ]
    run[2] += "sys.exit(c.main(sys.argv[1:]))"
    done = subprocess.run(
        [*user.prefix, *run, root, "doctor", "--json", "--spool-dir", f"{users_folder}/spool"],
        env={"PATH": os.environ["PATH"], "HOME": str(users_folder), "EXECSERVER_CONFIG": ""},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    found = checks(done)
    assert found["user"]["status"] == ("warning" if user.is_root else "ok")
    assert found["user"]["detail"] == f"uid {user.uid}"
    assert found["state folder"]["detail"] == f"{users_folder}/spool, from the setting spool_dir"
    assert found["spool folder"]["detail"] == f"{users_folder}/spool/spool, made at the start"
    if found["user namespaces"]["status"] == "ok" and found["bubblewrap"]["status"] == "ok":
        # In a container the namespaces may be there, and a new /proc forbidden.
        assert found["sandbox"]["status"] == "ok" or "/proc" in found["sandbox"]["cause"]


def test_where_bubblewrap_works_the_status_is_zero(tmp_path: Path) -> None:
    found = checks(doctor(tmp_path, "--json"))
    trial = [str(shutil.which("bwrap")), "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc", "true"]
    works = trial[0] != "None" and subprocess.run(trial, capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip("bubblewrap does not work here")
    assert found["sandbox"]["status"] == "ok"
    assert found["bubblewrap"]["detail"].startswith("/")


@pytest.mark.parametrize("how", ["flag", "variable", "file"])
def test_the_program_is_the_one_that_a_daemon_would_use(how: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo bubblewrap 0.5.0; fi\n')
    mine.chmod(0o755)
    flags, env = ["--json"], {}
    if how == "flag":
        flags += ["--bubblewrap", "mine"]
    elif how == "variable":
        env["EXECSERVER_BUBBLEWRAP"] = str(mine)
    else:
        (tmp_path / "config" / "execserver").mkdir(parents=True)
        file = tmp_path / "config" / "execserver" / "config.toml"
        file.write_text(f'bubblewrap = "{mine}"\n')
        file.chmod(0o600)
    found = checks(doctor(tmp_path, *flags, env=env))
    assert found["sandbox"]["status"] == "missing"
    assert found["sandbox"]["cause"] == f"bubblewrap 0.5.0 ({mine}) is too old: 0.8.0 is needed"
    assert "apt install bubblewrap" in found["sandbox"]["fix"]


def test_a_bubblewrap_that_confines_nothing_is_status_1(tmp_path: Path) -> None:
    real = shutil.which("bwrap")
    if real is None:
        pytest.skip("its answers are those of the real one, which is missing")
    mine = tmp_path / "mine"
    mine.write_text(
        f'#!/bin/sh\ncase "$1" in --version|--help) exec {real} "$1";; esac\n'
        'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
    )
    mine.chmod(0o755)
    found = checks(doctor(tmp_path, "--json", "--bubblewrap", str(mine)))
    assert "runs but does not confine" in found["sandbox"]["cause"]
    done = doctor(tmp_path, "--bubblewrap", str(mine))
    assert done.returncode == 1
    assert "are refused" in done.stdout


def test_a_kernel_that_allows_no_user_namespaces_is_status_1_with_the_setting(tmp_path: Path) -> None:
    script = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$0" "$@"'
    before = ("unshare", "-Ur", "sh", "-ec", script)
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces may not be made here")
    found = checks(doctor(tmp_path, "--json", before=before))
    names = ["sandbox"] if shutil.which("bwrap") else []
    for name in [*names, "user namespaces", "mount namespaces"]:
        assert found[name]["status"] == "missing"
        if name != "sandbox" or shutil.which("bwrap"):
            assert "user.max_user_namespaces is 0" in found[name]["cause"]
            assert "sysctl user.max_user_namespaces=10000" in found[name]["fix"]
    assert found["seccomp"]["status"] == "ok"


def test_a_machine_without_bubblewrap_is_status_1_with_the_package(tmp_path: Path) -> None:
    # What is no program in its place is as good as none.
    script = (
        "for path in /usr/local/bin/bwrap /usr/bin/bwrap /bin/bwrap; do "
        'if [ -e "$path" ]; then mount --bind /dev/null "$path"; fi; done; PATH=/nowhere exec "$0" "$@"'
    )
    before = ("unshare", "-Urm", "sh", "-ec", script)
    if subprocess.run([*before, "/bin/true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mount namespaces may not be made here")
    found = checks(doctor(tmp_path, "--json", before=before))
    for name in ("sandbox", "bubblewrap"):
        assert found[name]["status"] == "missing"
        assert found[name]["cause"] == "the program bwrap (bubblewrap) is missing"
        assert "apt install bubblewrap" in found[name]["fix"]
    assert found["user namespaces"]["status"] == "ok"


def test_an_unusable_state_folder_is_status_1_and_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = checks(doctor(tmp_path, "--json", "--spool-dir", "file"))
    assert found["state folder"]["status"] == "missing"
    assert str(tmp_path / "file") in found["state folder"]["cause"]
    assert found["sandbox"]["detail"] == "was not tried"
    assert found["spool folder"]["status"] == "warning"
    assert found["spool folder"]["fix"] == "see state folder"


def test_settings_that_cannot_be_used_are_status_1_without_a_report(tmp_path: Path) -> None:
    done = doctor(tmp_path, env={"EXECSERVER_ALLOW_LANDLOCK": "perhaps"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "EXECSERVER_ALLOW_LANDLOCK" in done.stderr


@pytest.mark.parametrize("flags", [["--unknown"], ["--json=1"], ["--bubblewrap"], ["more"]])
def test_what_is_no_valid_command_line_is_status_2(flags: list[str], tmp_path: Path) -> None:
    done = doctor(tmp_path, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: " in done.stderr


def test_nothing_is_left_in_the_state_folder(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", "--spool-dir", "spool")
    checks(done)
    left = os.listdir(tmp_path / "spool")
    assert [name for name in left if name.startswith("probe") or name == "spool"] == []


def test_a_spool_without_the_room_that_it_may_take_is_a_warning_with_the_setting(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", "--spool-max-bytes", str(1 << 60))
    check = checks(done)["spool folder"]
    assert check["status"] == "warning"
    assert "MiB are free there, and all output may take 1,099,511,627,776 MiB" in check["cause"]
    assert "lower --spool-max-bytes" in check["fix"]


def test_a_spool_that_others_may_read_is_a_warning_and_not_touched(tmp_path: Path) -> None:
    spool = tmp_path / "state" / "execserver" / "spool"
    spool.mkdir(parents=True, mode=0o755)
    spool.parent.chmod(0o700)
    spool.chmod(0o755)
    check = checks(doctor(tmp_path, "--json"))["spool folder"]
    assert check["status"] == "warning"
    assert check["cause"] == f"folder {spool} has mode 0755, open to others"
    assert check["fix"] == "chmod it to 0700"
    assert spool.stat().st_mode & 0o777 == 0o755
    assert os.listdir(spool) == []


def test_it_says_where_everything_lies_and_why(tmp_path: Path) -> None:
    found = checks(doctor(tmp_path, "--json"))
    state = f"{tmp_path}/state/execserver"
    assert found["state folder"]["detail"] == f"{state}, from XDG_STATE_HOME"
    assert found["spool folder"]["detail"].startswith(f"{state}/spool")
    assert found["sockets"]["detail"] == (
        f"unix://{state}/execserver.sock, in the default state folder: XDG_RUNTIME_DIR is no absolute path, "
        "or not set"
    )
    places = f"{tmp_path}/config/execserver/config.toml, /etc/execserver/config.toml"
    assert found["settings file"]["detail"] == f"none; looked for, unless one is named: {places}"

    (tmp_path / "config.toml").write_text(f'spool_dir = "{tmp_path}/s"\nlisten = ["unix://{tmp_path}/x"]\n')
    found = checks(doctor(tmp_path, "--json", "--config", "config.toml"))
    assert found["settings file"]["detail"] == f"{tmp_path}/config.toml"
    assert found["sockets"]["detail"] == f"unix://{tmp_path}/x, from file {tmp_path}/config.toml:2"
    assert found["state folder"]["detail"] == f"{tmp_path}/s, from the setting spool_dir"


def test_without_a_variable_the_home_folder_is_the_reason(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": "relative", "XDG_RUNTIME_DIR": f"{tmp_path}/run"}
    found = checks(doctor(tmp_path, "--json", env=env))
    assert found["state folder"]["detail"] == (
        f"{tmp_path}/.local/state/execserver, below the home folder, from HOME: "
        "XDG_STATE_HOME is no absolute path, or not set"
    )
    assert (
        found["sockets"]["detail"]
        == f"unix://{tmp_path}/run/execserver/execserver.sock, from XDG_RUNTIME_DIR"
    )


def test_a_missing_home_folder_is_named_with_the_way_out(tmp_path: Path) -> None:
    found = checks(doctor(tmp_path, "--json", env={"XDG_STATE_HOME": "", "HOME": f"{tmp_path}/none"}))
    assert found["state folder"]["status"] == "missing"
    assert f"{tmp_path}/none (from HOME) is not there" in found["state folder"]["cause"]
    assert found["state folder"]["fix"].startswith("set XDG_STATE_HOME to a folder that you can write")
    assert found["sockets"]["status"] == "warning"
