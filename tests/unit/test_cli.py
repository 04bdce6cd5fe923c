from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from execserver import __version__, cli
from execserver.configuration.options import OPTIONS
from execserver.upgrade import HANDOVER

SECRET = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for option in OPTIONS.values():
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.setenv("EXECSERVER_CONFIG", "")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("# mine\nsession_ttl = 7\n")
    path.chmod(0o600)
    return path


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    help_ = capsys.readouterr().out
    assert "serve" in help_
    assert "config" in help_


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["serve", "--help"],
        ["config", "show", "--help"],
        ["config", "check", "--help"],
        ["--version"],
    ],
)
def test_help_and_version_are_no_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 0
    output = capsys.readouterr().out
    if argv == ["--version"]:
        assert output == f"execserver {__version__}\n"
    elif argv[0] in ("serve", "config"):
        assert all(option.flag in output for option in OPTIONS.values())


@pytest.mark.parametrize(
    "argv",
    [
        ["unknown"],
        ["config"],
        ["config", "unknown"],
        ["config", "show", "--unknown"],
        ["config", "show", "--config"],
        ["config", "show", "--session", "3"],
        ["serve", "--session-ttl", "x"],
        ["serve", "--log-level", "loud"],
        ["serve", "--json"],
    ],
    ids=" ".join,
)
def test_what_is_no_valid_command_line_is_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: " in captured.err


def test_show_prints_a_configuration_file_with_the_origin_of_each_value(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXECSERVER_WS_HOST", "a b")
    assert cli.main(["config", "show", "--config", str(config), "--log-level=error"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == f"# configuration file: {config}"
    origins = {line.split()[0]: line.rpartition("  # ")[2] for line in lines[1:] if line[0] != "#"}
    assert origins["session_ttl"] == f"file {config}:2"
    assert origins["ws_host"] == "environment EXECSERVER_WS_HOST"
    assert origins["log_level"] == "flag --log-level"
    assert origins["listen"] == origins["process_ttl"] == "default"
    values = tomllib.loads(printed)
    assert values["session_ttl"] == 7
    assert values["ws_host"] == ["a", "b"]
    assert values["log_level"] == "error"
    assert values["listen"] == ["unix:///run/user/7/execserver/execserver.sock"]
    assert all(name in printed for name in OPTIONS)


def test_what_show_prints_leads_to_the_same_settings(
    config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["--config", str(config), "--ws-host", 'quoted " \\ ü', "--allow-unauthenticated"]
    assert cli.main(["config", "show", *argv]) == 0
    printed = capsys.readouterr().out
    copy = tmp_path / "copy.toml"
    copy.write_text(printed)
    copy.chmod(0o600)
    assert cli.main(["config", "show", "--config", str(copy)]) == 0
    assert tomllib.loads(capsys.readouterr().out) == tomllib.loads(printed)


def test_show_as_json_has_every_setting(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--json", "--config", str(config)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] == str(config)
    assert shown["settings"].keys() == OPTIONS.keys()
    assert shown["settings"]["session_ttl"] == {"value": 7.0, "from": f"file {config}:2"}
    assert shown["settings"]["ws_auth"] == {"value": None, "from": "default"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_show_prints_no_secrets(form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text("k" * 40)
    digest = ["--ws-auth=capability-token", f"--ws-token-sha256={SECRET}"]
    key = ["--ws-auth=signed-bearer-token", "--ws-shared-secret-file=secret"]
    for flags in (digest, key):
        assert cli.main(["config", "show", *form, *flags]) == 0
    captured = capsys.readouterr()
    assert "(hidden)" in captured.out
    assert "flag --ws-token-sha256" in captured.out
    for secret in (SECRET, "k" * 40):
        assert secret not in captured.out + captured.err


def test_a_secret_of_the_wrong_type_is_not_repeated_in_the_error(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('ws_token_sha256 = ["s3cret"]')
    assert cli.main(["config", "show", "--config", str(config)]) == 1
    assert capsys.readouterr().err == f"execserver: {config}:1: ws_token_sha256: must be text\n"


def test_values_that_do_not_fit_together_are_shown_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--ws-issuer", "x"]) == 1
    captured = capsys.readouterr()
    assert 'ws_issuer = "x"' in captured.out
    assert captured.err == "execserver: --ws-issuer needs --ws-auth\n"


def test_a_broken_file_is_status_1_and_nothing_is_shown(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text("session_ttl = 7\nnonsense = 1\n")
    assert cli.main(["config", "show", "--config", str(config)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"execserver: {config}:2: unknown key 'nonsense'")


# config check


def test_what_would_start_is_checked_without_a_word(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "check", "--config", str(config)]) == 0
    assert cli.main(["config", "check", "--config", str(config), "--handover", HANDOVER]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--ws-auth", "capability-token"], "--ws-token-file"),
        (["--ws-auth", "capability-token", "--ws-token-file", "missing"], "--ws-token-file: cannot read"),
        (["--handover", "0.0"], f"hands over as version 0.0, this code takes {HANDOVER}"),
    ],
)
def test_what_would_not_start_fails_the_check_with_the_reason(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "check", *flags]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert reason in errors


def test_a_daemon_has_in_memory_no_sandbox_of_another_system() -> None:
    program = """
import sys
from execserver import late_modules, server
late_modules.load_late_modules()
print("execserver.sandbox.seatbelt" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False"]
