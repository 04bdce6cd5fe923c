"""The settings of `serve --remote` at the command line: what is refused, and how it is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from execserver.configuration.model import Settings
from execserver.host import Host
from execserver.preflight import daemon_paths
from execserver.supervisor.config_file import usual_places

PROGRAM = (sys.executable, "-I", "-m", "execserver")
PLACE = ("--remote", "http://127.0.0.1:9", "--environment-id", "box")
TOKEN = {"EXECSERVER_REMOTE_TOKEN": "a-secret-token"}


def run(
    *arguments: str, folder: Path, env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**kept, "EXECSERVER_CONFIG": "", "XDG_STATE_HOME": str(folder), **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=folder,
    )


@pytest.mark.parametrize(
    ("flags", "env", "says"),
    [
        ((*PLACE[:2],), TOKEN, "--environment-id and --pool are missing"),
        (PLACE, {}, "--remote needs exactly one of EXECSERVER_REMOTE_TOKEN, --remote-token-file and"),
        ((*PLACE, "--remote-token-file", "none"), {}, "none: No such file or directory"),
        ((*PLACE, "--remote-allowed-clients", "none"), TOKEN, "cannot read the list of clients"),
        (("--remote", "http://192.0.2.1", *PLACE[2:]), TOKEN, "https:// unless it is on loopback"),
    ],
)
def test_serve_and_check_refuse_the_same(
    tmp_path: Path, flags: tuple[str, ...], env: dict[str, str], says: str
) -> None:
    serve = run("serve", *flags, folder=tmp_path, env=env)
    check = run("config", "check", *flags, folder=tmp_path, env=env)
    for result in (serve, check):
        assert result.returncode in (1, 2), result
        assert result.stdout == ""
        assert says in result.stderr
        assert "a-secret-token" not in result.stderr


def test_an_option_without_a_registry_is_refused(tmp_path: Path) -> None:
    result = run("serve", "--environment-id", "box", folder=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "--environment-id needs --remote" in result.stderr


def test_a_token_on_an_empty_stdin_is_refused(tmp_path: Path) -> None:
    result = run("serve", *PLACE, "--remote-token-stdin", folder=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "standard input has no token in its first line" in result.stderr


def test_stdin_cannot_be_the_token_and_the_client(tmp_path: Path) -> None:
    result = run("serve", *PLACE, "--remote-token-stdin", "--listen", "stdio", folder=tmp_path, stdin="x\n")
    assert result.returncode == 1
    assert "with --listen stdio that is the client's" in result.stderr


def test_good_settings_pass_the_check_which_makes_nothing(tmp_path: Path) -> None:
    result = run("config", "check", *PLACE, "--remote-key-file", "key", folder=tmp_path, env=TOKEN)
    assert (result.returncode, result.stderr) == (0, "")
    assert not (tmp_path / "key").exists()


def test_the_token_is_no_setting_and_is_not_shown(tmp_path: Path) -> None:
    result = run("config", "show", "--json", *PLACE, folder=tmp_path, env=TOKEN)
    assert result.returncode == 0
    assert "a-secret-token" not in result.stdout
    assert "EXECSERVER_REMOTE_TOKEN" not in result.stderr  # it is known, and means something
    assert "remote" in json.dumps(json.loads(result.stdout))


def test_an_upgrade_that_would_need_another_registry_is_refused_before_it_begins(tmp_path: Path) -> None:
    handover = run("config", "check", "--handover", "0", folder=tmp_path).stderr
    ours = handover.partition("this code takes ")[2].partition(":")[0]
    new = run("config", "check", "--handover", ours, *PLACE, folder=tmp_path, env=TOKEN)
    assert new.returncode == 1
    assert "--remote is new in the configuration" in new.stderr
    url = "relay+http://127.0.0.1:9?environment=box"
    gone = run("config", "check", "--handover", ours, "--handed-remote", url, folder=tmp_path)
    assert gone.returncode == 1
    assert "--remote needs exactly one of" in gone.stderr


def test_no_sandbox_shows_the_files_that_make_an_executor() -> None:
    settings = Settings(
        remote_token_file=Path("/etc/x/token"),
        remote_key_file=Path("/etc/x/key"),
        remote_allowed_clients=Path("/etc/x/clients"),
    )
    own = daemon_paths(settings, Mock(listeners=()), Host(), None)
    usual = set(usual_places(os.environ))
    assert set(own.files) == {"/etc/x/token", "/etc/x/key", "/etc/x/clients"} | usual


def test_the_folder_of_the_token_is_hidden_if_it_is_private_and_has_no_work_in_it(tmp_path: Path) -> None:
    closed, shared = tmp_path / "closed", tmp_path / "shared"
    closed.mkdir(mode=0o700)
    shared.mkdir()
    shared.chmod(0o755)
    host = Host()

    def hidden(folder: Path, cwd: Path) -> tuple[str, ...]:
        settings = Settings(remote_token_file=folder / "token")
        own = daemon_paths(settings, Mock(listeners=()), host.continued(str(cwd), ""), None)
        return tuple(place for place in own.folders if place.startswith(str(tmp_path)))

    assert hidden(closed, tmp_path) == (str(closed),)
    assert hidden(closed, closed) == ()
    assert hidden(closed, closed / "below") == ()
    assert hidden(shared, tmp_path) == ()


def test_a_daemon_without_a_registry_loads_nothing_for_it() -> None:
    code = """if True:
        import sys
        import execserver.cli, execserver.server, execserver.configuration
        unwanted = {"cryptography", "httpcore", "aiohttp", "h11", "execserver.relay.executor.executor"}
        print(sorted(unwanted & sys.modules.keys()))
    """
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=30)
    assert result.stdout == "[]\n", result.stderr


def test_a_missing_package_is_named_with_the_way_out(tmp_path: Path) -> None:
    code = """if True:
        import sys
        sys.modules["cryptography"] = None
        from execserver import cli
        sys.exit(cli.main(["config", "check", *sys.argv[1:]]))
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    result = subprocess.run(
        [sys.executable, "-I", "-c", code, *PLACE],
        env=kept | TOKEN | {"EXECSERVER_CONFIG": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 1
    assert "pip install 'execserver[relay]'" in result.stderr
