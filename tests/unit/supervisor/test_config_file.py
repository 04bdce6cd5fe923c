"""Where the configuration file is looked for, who may write it, and its syntax."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.supervisor import config_file
from execserver.supervisor.config_file import ConfigFileError, find, listen_values, parse, read, usual_places
from execserver.supervisor.listeners import requested


@pytest.fixture(autouse=True)
def system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for the whole machine, moved: the tests' own machine may have a file there."""
    path = tmp_path / "etc" / "config.toml"
    path.parent.mkdir()
    monkeypatch.setattr(config_file, "SYSTEM_PATH", str(path))
    return path


def written(path: Path, text: str = "", mode: int = 0o644) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_first_place_that_applies_is_the_only_one(tmp_path: Path, system_file: Path) -> None:
    environment = {"HOME": str(tmp_path / "home")}
    assert find(None, environment) is None
    everywhere = written(system_file)
    assert find(None, environment) == everywhere
    at_home = written(tmp_path / "home" / ".config" / "execserver" / "config.toml")
    assert find(None, environment) == at_home
    environment["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert find(None, environment) == everywhere  # the variable stands in for ~/.config
    in_xdg = written(tmp_path / "xdg" / "execserver" / "config.toml")
    assert find(None, environment) == in_xdg
    environment["EXECSERVER_CONFIG"] = "/by/variable"
    assert find(None, environment) == "/by/variable"
    assert find("/by/flag", environment) == "/by/flag"


def test_a_file_named_by_hand_need_not_be_seen_and_is_taken_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find("x.toml", {}) == f"{tmp_path}/x.toml"
    assert find(None, {"EXECSERVER_CONFIG": "y/../x.toml"}) == f"{tmp_path}/x.toml"


def test_an_empty_folder_at_a_default_path_is_no_file(tmp_path: Path, system_file: Path) -> None:
    place = tmp_path / "execserver/config.toml"
    place.mkdir(parents=True)
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find(None, environment) is None
    system_file.touch()
    assert find(None, environment) == str(system_file)
    (place / "config.toml").touch()
    assert find(None, environment) == str(place)
    assert find(str(place), {}) == str(place)


def test_an_empty_name_is_no_file(tmp_path: Path, system_file: Path) -> None:
    written(system_file)
    assert find("", {"EXECSERVER_CONFIG": "/x"}) is None
    assert find(None, {"EXECSERVER_CONFIG": ""}) is None


def test_a_relative_xdg_folder_is_ignored_as_the_specification_demands(system_file: Path) -> None:
    assert usual_places({"XDG_CONFIG_HOME": "x", "HOME": "/h/"}) == [
        "/h/.config/execserver/config.toml",
        str(system_file),
    ]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_a_file_that_only_its_owner_can_write_is_read(tmp_path: Path, mode: int) -> None:
    assert read(written(tmp_path / "c.toml", "a = 1", mode)) == "a = 1"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
def test_a_file_that_others_can_write_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "c.toml", "a = 1", mode)
    with pytest.raises(
        ConfigFileError, match=rf"{path} of .* can be written by others \(mode {mode:04o}\).*chmod go-w"
    ):
        read(path)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "c.toml")
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(
        ConfigFileError, match=rf"{path} belongs to .*uid \d+.*, neither to us, .* nor to root"
    ):
        read(path)


def test_the_target_of_a_link_is_what_counts(tmp_path: Path) -> None:
    target = written(tmp_path / "real.toml", "a = 1", 0o666)
    (tmp_path / "link.toml").symlink_to(target)
    with pytest.raises(ConfigFileError, match="can be written by others"):
        read(str(tmp_path / "link.toml"))


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigFileError, match=f"{path} is no regular file"):
            read(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=f"{tmp_path}/c.toml: No such file"):
        read(f"{tmp_path}/c.toml")


def test_a_file_without_end_is_not_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    with pytest.raises(ConfigFileError, match="more than 1048576 bytes"):
        read(str(path))


def test_text_that_is_no_utf_8_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"a = 1\n# \xe9\n")
    path.chmod(0o600)
    with pytest.raises(ConfigFileError, match=f"{path}:2: not UTF-8"):
        read(str(path))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\nb = ?\n", "2:5: Invalid value"),
        ("a = 1\na = 2\n", r"2:\d: Cannot overwrite a value"),
        ("a = [1,\n", r"2:1: .* \(the file ends here\)"),
        ("a = 1\nb = '''x", "2:9: .*"),
        ("a = " + "1" * 5000, " .*"),
        ("a = " + "[" * 5000, " nested too deeply"),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, place: str) -> None:
    with pytest.raises(ConfigFileError, match=f"^/x.toml:{place}"):
        parse("/x.toml", text)


# What the supervisor takes from it.


def urls(arguments: list[str], environment: dict[str, str]) -> list[str]:
    return [listener.url for listener in requested(arguments, environment)]


def test_listen_comes_from_flag_then_variable_then_file_then_default(tmp_path: Path) -> None:
    path = written(tmp_path / "c.toml", 'listen = ["ws://127.0.0.1:3", "stdio"]')
    flags, file = ["--listen=ws://127.0.0.1:1"], ["--config", path]
    variable = {"EXECSERVER_LISTEN": "ws://127.0.0.1:2"}
    nothing = {"EXECSERVER_CONFIG": "", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert urls([*flags, *file], variable) == ["ws://127.0.0.1:1"]
    assert urls(file, variable) == ["ws://127.0.0.1:2"]
    assert urls(file, nothing) == ["ws://127.0.0.1:3", "stdio"]
    assert urls([], nothing) == ["unix:///run/user/7/execserver/execserver.sock"]


def test_the_last_config_flag_counts_in_both_forms(tmp_path: Path) -> None:
    first, second = (
        written(tmp_path / f"{port}.toml", f'listen = ["ws://127.0.0.1:{port}"]') for port in (1, 2)
    )
    assert listen_values(["--config", second, f"--config={first}"], {}) == ["ws://127.0.0.1:1"]
    assert listen_values([f"--config={first}", "--config", second], {}) == ["ws://127.0.0.1:2"]
    assert listen_values(["--config", first, "--", "--config", second], {}) == ["ws://127.0.0.1:1"]


@pytest.mark.parametrize(
    "text",
    [
        "listen = ", 'listen = "stdio"', "listen = [1]", 'listen = ["wss://x"]',
        'listen = ["stdio", "stdio"]', "[listen]",
    ],
)  # fmt: skip
def test_of_a_file_that_is_no_good_the_supervisor_binds_nothing(tmp_path: Path, text: str) -> None:
    assert urls(["--config", written(tmp_path / "c.toml", text)], {}) == []


@pytest.mark.parametrize("arguments", [["--config"], ["--config", "--json"], ["--config", "/does/not/exist"]])
def test_a_config_flag_that_leads_nowhere_is_left_to_the_server(arguments: list[str]) -> None:
    assert urls(arguments, {}) == []


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(Exception, match="EXECSERVER_LISTEN: unsupported --listen value 'off'"):
        requested([], {"EXECSERVER_LISTEN": "off"})
