"""Every setting from every place. A field that is added to the model is tested here without a line more."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from execserver.configuration.effective import Effective, load
from execserver.configuration.model import Settings, SettingsError
from execserver.configuration.options import OPTIONS, Option, add_flags, given_settings
from execserver.preflight import check_exposure
from execserver.supervisor import listeners
from execserver.supervisor.fd_store_client import FdStoreClient
from execserver.supervisor.server_channel import Hello
from execserver.transports.authentication import ConfigurationError
from tools.wire_docs.settings_reference import main as reference

FLAG, VARIABLE, FILE = 0, 1, 2
NO_FILE = ""


def samples(option: Option) -> tuple[Any, Any, Any]:
    """An accepted value for each of flag, variable and file; neighbours differ, none is the default."""
    if option.type is bool:
        other = not option.default
        return other, option.default, other
    if option.choices:
        choices = [choice for choice in option.choices if choice != option.default] * 2
        return choices[0], choices[1], choices[0]
    if option.name == "listen":
        return ("ws://127.0.0.1:1", "stdio"), ("ws://127.0.0.1:2",), ("stdio",)
    if option.name == "remote":
        return "https://a", "https://b/c", "http://127.0.0.1:1"
    if option.name == "proxy":
        return "http://a:1", "socks5h://b", "c"
    if option.name in ("environment_id", "pool"):
        return "a", "b-c", "d_1"
    if option.name in ("default_limit", "max_limit"):
        return ("memory=512M", "pids=9"), ("cpu=150",), ("wall=30", "pids=8")
    if option.repeated:
        return ("a", "b"), ("c",), ("d", "e")
    return {
        int: (11, 12, 13),
        float: (1.5, 2.5, 3.0),
        Path: (Path("/a"), Path("/b c"), Path("/d")),
        str: ("a", "b c", "d"),
    }[option.type]


def arguments(option: Option, value: Any) -> list[str]:
    if option.type is bool:
        return [option.flag if value else f"--no-{option.flag[2:]}"]
    return [f"{option.flag}={part}" for part in (value if option.repeated else [value])]


def text(option: Option, value: Any) -> str:
    return " ".join(value) if option.repeated else str(value).lower() if option.type is bool else str(value)


def toml(option: Option, value: Any) -> str:
    return f"{option.name} = {json.dumps(str(value) if isinstance(value, Path) else value)}\n"


def flags(*argv: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser)
    return given_settings(parser.parse_args(argv))


def from_file(tmp_path: Path, content: str) -> str:
    path = tmp_path / "config.toml"
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


def problems(argv: Mapping[str, Any], environment: dict[str, str], config: str = NO_FILE) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        load(argv, environment, config)
    return refused.value.problems


every_option = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS.keys())


@every_option
@pytest.mark.parametrize("places", list(itertools.product([True, False], repeat=3)), ids=str)
def test_flag_beats_variable_beats_file_beats_default(
    option: Option, places: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    values = samples(option)
    content = "# a comment\n" + (toml(option, values[FILE]) if places[FILE] else "")
    path = from_file(tmp_path, content)
    effective = load(
        flags(*arguments(option, values[FLAG])) if places[FLAG] else {},
        {option.variable: text(option, values[VARIABLE])} if places[VARIABLE] else {},
        path,
    )
    origins = [f"flag {option.flag}", f"environment {option.variable}", f"file {path}:2", "default"]
    winner = next((place for place in (FLAG, VARIABLE, FILE) if places[place]), 3)
    assert getattr(effective.settings, option.name) == (*values, option.default)[winner]
    assert effective.origin(option.name) == origins[winner]
    others = OPTIONS.keys() - {option.name}
    assert all(effective.origin(name) == "default" for name in others)
    assert effective.settings == Settings(**{option.name: (*values, option.default)[winner]})


@every_option
def test_a_wrong_type_in_the_file_names_file_line_key_and_what_is_accepted(
    option: Option, tmp_path: Path
) -> None:
    wrong = "[1, 2]" if option.type in (str, Path) or option.repeated or option.choices else '"1"'
    path = from_file(tmp_path, f"\n\n{option.name} = {wrong}\n")
    (problem,) = problems({}, {}, path)
    assert problem.startswith(f"{path}:3: {option.name}: must be ")
    assert option.accepted in problem


@every_option
def test_every_setting_has_a_description_fit_for_the_help(option: Option) -> None:
    parser = argparse.ArgumentParser(prog="p")
    add_flags(parser)
    help_ = " ".join(parser.format_help().split())
    assert " ".join(option.description.split()) in help_
    assert not option.description.endswith(".")
    assert option.accepted


numbers = pytest.mark.parametrize(
    "option",
    [option for option in OPTIONS.values() if option.type in (int, float)],
    ids=lambda o: str(o.name),
)


@numbers
@pytest.mark.parametrize("wrong", ["-1", "many", "nan", "1e400", "0x10"])
def test_a_number_out_of_bounds_is_refused_everywhere(option: Option, wrong: str, tmp_path: Path) -> None:
    text_ = f"must be {option.accepted}, not '{wrong}'"
    assert problems({}, {option.variable: wrong}) == [f"{option.variable}: {text_}"]
    with pytest.raises(argparse.ArgumentError) as refused:
        flags(f"{option.flag}={wrong}")
    assert str(refused.value) == f"argument {option.flag}: {text_}"
    path = from_file(tmp_path, f"{option.name} = {'-1' if wrong in ('many', '1e400') else wrong}")
    if wrong != "0x10":  # which TOML knows
        assert problems({}, {}, path)[0].startswith(f"{path}:1: {option.name}: must be {option.accepted}")


@pytest.mark.parametrize("wrong", ["true", "3.0", '"3"', "1979-05-27", "[3]", "{ a = 3 }"])
def test_the_file_has_types_of_its_own(wrong: str, tmp_path: Path) -> None:
    path = from_file(tmp_path, f"concurrent_requests = {wrong}")
    assert problems({}, {}, path)[0].startswith(f"{path}:1: concurrent_requests: must be a whole number")


def test_all_problems_of_all_places_are_told_at_once_even_of_what_is_overridden(tmp_path: Path) -> None:
    path = from_file(tmp_path, 'log_level = "loud"\nsession_ttl = 0\n\nnonsense = 1\n')
    assert problems(
        {"log_level": "info", "listen": ["off"]}, {"EXECSERVER_LOG_LEVEL": "silent"}, path
    ) == [
        f"unsupported --listen value 'off'; accepted: {listeners._FORMS}",
        "EXECSERVER_LOG_LEVEL: must be one of debug, info, warning, error, not 'silent'",
        f"{path}:1: log_level: must be one of debug, info, warning, error, not 'loud'",
        f"{path}:2: session_ttl: must be a number of seconds, above 0, below 315360000, not 0",
        f"{path}:4: unknown key 'nonsense'; `execserver config show` names them all",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "line", "key", "suggestion"),
    [
        ("session-ttl = 3", 1, "session-ttl", "session_ttl"),
        ("# c\n\n'Session_TTL' = 3", 3, "Session_TTL", "session_ttl"),
        ("log_level = 'info'\n[log]\nlevel = 1", 2, "log", None),
        ("ws_hosts.a = 1", 1, "ws_hosts", "ws_host"),
        ("[[listens]]\n", 1, "listens", "listen"),
        ("ws_issuer = '''\nsesion_ttl = 1\n'''\nsesion_ttl = 1", 4, "sesion_ttl", "session_ttl"),
    ],
)
def test_an_unknown_key_is_named_with_its_line_and_the_closest_known_one(
    content: str, line: int, key: str, suggestion: str | None, tmp_path: Path
) -> None:
    path = from_file(tmp_path, content)
    hint = f"did you mean {suggestion}?" if suggestion else "`execserver config show` names them all"
    assert problems({}, {}, path) == [f"{path}:{line}: unknown key {key!r}; {hint}"]


def test_a_repeated_flag_replaces_the_whole_list(tmp_path: Path) -> None:
    path = from_file(tmp_path, 'ws_host = ["a", "b"]')
    assert load(flags("--ws-host", "c"), {}, path).settings.ws_host == ("c",)


def test_relative_file_names_start_at_the_file_or_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    path = from_file(tmp_path / "etc", "ws_token_file = 't'\nws_shared_secret_file = 's'")
    by_file = load({}, {}, path).settings
    assert by_file.ws_token_file == tmp_path / "etc" / "t"
    others = load(flags("--ws-token-file=t"), {"EXECSERVER_WS_SHARED_SECRET_FILE": "s"}, path).settings
    assert others.ws_token_file == tmp_path / "cwd" / "t"
    assert others.ws_shared_secret_file == tmp_path / "cwd" / "s"


def test_names_of_files_and_sockets_may_hold_bytes_that_are_no_utf_8() -> None:
    odd = b"/tmp/\xff".decode(errors="surrogateescape")
    settings = load(flags(f"--ws-token-file={odd}", f"--listen=unix://{odd}"), {}, NO_FILE).settings
    assert settings.ws_token_file == Path(odd)
    assert settings.listen == (f"unix://{odd}",)


def test_an_empty_variable_counts_as_missing() -> None:
    environment = {option.variable: " " for option in OPTIONS.values()}
    assert load({}, environment, NO_FILE).settings == Settings()


def test_an_unknown_variable_is_a_warning_with_the_closest_name() -> None:
    environment = {"EXECSERVER_SESION_TTL": "1", "EXECSERVER_XYZ": "s3cret", "OTHER": "1"}
    assert load({}, environment, NO_FILE).warnings == [
        "the variable EXECSERVER_SESION_TTL means nothing; did you mean EXECSERVER_SESSION_TTL?",
        "the variable EXECSERVER_XYZ means nothing; `execserver config show` names them all",
    ]


@pytest.mark.parametrize("name", ["CHANNEL_FD", "CONFIG", "URL", "VECTORS", "SOAK_COMMANDS"])
def test_variables_with_another_use_are_not_warned_of(name: str) -> None:
    environment = {"EXECSERVER_CONFIG": "", f"EXECSERVER_{name}": ""}
    assert load({}, environment).warnings == []


def test_the_model_by_itself_reads_neither_environment_nor_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_SESSION_TTL", "1")
    assert Settings().session_ttl == 80


def test_without_any_place_everything_is_the_default() -> None:
    effective: Effective = load({}, {}, NO_FILE)
    assert effective.file is None
    assert {effective.origin(name) for name in OPTIONS} == {"default"}


def test_a_server_that_got_no_listener_does_not_start() -> None:
    # The supervisor binds nothing when the file is no good; it may be mended before the server reads it.
    ours, theirs = socket.socketpair()
    fd_store = FdStoreClient(ours, os.open(os.devnull, os.O_WRONLY))
    hello = Hello(
        instance=1,
        supervisor_pid=1,
        nofile_soft=1,
        beat_seconds=None,
        listeners=(),
        record=None,
        take_over=False,
        fd_store=fd_store,
    )
    with pytest.raises(ConfigurationError, match="changed during the start"):
        check_exposure(Settings(), hello)
    fd_store.close()
    theirs.close()


# The reference page.


def test_the_reference_page_names_every_setting_and_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
    assert reference(["--check", str(page)]) == 0
    content = page.read_text()
    for option in OPTIONS.values():
        assert f"### `{option.name}`\n" in content
        assert f"`{option.variable}`" in content


def test_an_outdated_reference_page_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "settings.md"
    assert reference(["--check", str(page)]) == 1
    assert reference([str(page)]) == 0
    assert reference(["--check", str(page)]) == 0
    page.write_text(page.read_text() + "\n")
    assert reference(["--check", str(page)]) == 1
    assert "run `make schemas`" in capsys.readouterr().err
    assert reference([]) == 2
