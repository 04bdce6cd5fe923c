"""What is decided without flags, variables and types in words is what they would give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from execserver.cli import _parser
from execserver.configuration.flags import given
from execserver.configuration.loading import load
from execserver.configuration.quick import quick_settings
from execserver.supervisor.packets import CHANNEL_VARIABLE


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--listen", "stdio"],
        ["--listen", "unix:///a/b"],
        ["--listen", "unix:///a/b", "--listen", "ws://127.0.0.1:0"],
        ["--listen", "ws://[::1]:4000"],
        ["--listen", "unix:///\udcff"],
    ],
)
@pytest.mark.parametrize("environment", [{}, {CHANNEL_VARIABLE: "3"}, {"PATH": "/bin"}])
def test_a_plain_command_line_means_what_the_parser_makes_of_it(
    argv: list[str], environment: Mapping[str, str], tmp_path: Path
) -> None:
    environment = {**environment, "HOME": str(tmp_path)}
    options = _parser(["serve"], {}).parse_args(["serve", *argv])
    effective = load(given(options), environment, options.config)
    assert quick_settings(argv, environment) == effective.settings
    assert (effective.file, effective.warnings) == (None, [])


@pytest.mark.parametrize(
    "argv",
    [
        ["--listen"],
        ["--listen", ""],
        ["--listen", "--listen"],
        ["--listen", "nowhere"],
        ["--listen", "stdio", "--listen", "stdio"],
        ["--listen=stdio"],
        ["--config", "/a"],
        ["--session-ttl", "5"],
        ["stdio"],
        ["--"],
        ["--help"],
    ],
)
def test_what_is_not_plain_is_for_the_parser(argv: list[str], tmp_path: Path) -> None:
    assert quick_settings(argv, {"HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    "name", ["EXECSERVER_LISTEN", "EXECSERVER_SESSION_TTL", "EXECSERVER_NO_SUCH", "EXECSERVER_CONFIG"]
)
def test_a_variable_of_ours_is_for_the_long_way(name: str, tmp_path: Path) -> None:
    assert quick_settings(["--listen", "stdio"], {"HOME": str(tmp_path), name: ""}) is None


def test_a_file_is_for_the_long_way(tmp_path: Path) -> None:
    file = tmp_path / "execserver/config.toml"
    file.parent.mkdir()
    file.write_text("")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert quick_settings(["--listen", "stdio"], environment) is None
