"""The registry as a listener: accepted URLs, their sources, and the file in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.supervisor.listener import ListenError
from execserver.supervisor.listeners import requested
from execserver.supervisor.remote import (
    MAX_TOKEN_BYTES,
    RemoteListener,
    check_environment_id,
    check_registry_url,
    place_in,
)

NO_FILE = {"EXECSERVER_CONFIG": "", "XDG_STATE_HOME": "/state"}  # the account may have no home folder
FLAGS = ["--remote", "https://registry/base/", "--environment-id=box"]
URL = "relay+https://registry/base?environment=box"


def urls(arguments: list[str], environment: dict[str, str] | None = None) -> list[str]:
    return [listener.url for listener in requested(arguments, NO_FILE | (environment or {}))]


def reads_stdin(arguments: list[str], environment: dict[str, str] | None = None) -> bool:
    listener = requested(arguments, NO_FILE | (environment or {}))[-1]
    assert isinstance(listener, RemoteListener)
    return listener._token_on_stdin


@pytest.fixture
def stdin() -> Iterator[int]:
    """The write end of a pipe that replaces stdin."""
    kept = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    yield writing
    os.dup2(kept, 0)
    os.close(kept)
    try:
        os.close(writing)
    except OSError:
        return


def test_a_registry_stands_in_for_the_default_socket() -> None:
    assert urls(FLAGS) == [URL]
    assert urls([*FLAGS, "--listen", "ws://127.0.0.1:1"]) == ["ws://127.0.0.1:1", URL]


def test_a_value_may_begin_with_a_hyphen() -> None:
    (listener,) = requested(["--remote", "https://registry", "--environment-id", "-5"], NO_FILE)
    assert listener.url.endswith("environment=-5")


def test_each_part_comes_from_flag_variable_or_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('remote = "https://file"\nenvironment_id = "file"\n')
    path.chmod(0o600)
    places = {"EXECSERVER_CONFIG": str(path)}
    variable = places | {"EXECSERVER_REMOTE": "https://variable"}
    assert urls([], places) == ["relay+https://file?environment=file"]
    assert urls([], variable) == ["relay+https://variable?environment=file"]
    assert urls(FLAGS[:2], variable) == ["relay+https://registry/base?environment=file"]


@pytest.mark.parametrize(
    "wrong",
    [["--remote", "ftp://x"], ["--environment-id", "a/b"], ["--remote", "http://elsewhere"], ["--remote"]],
    ids=str,
)
def test_invalid_settings_are_left_to_the_server_to_report(wrong: list[str]) -> None:
    assert urls([*FLAGS, *wrong]) == []


def test_a_registry_without_an_environment_is_left_to_the_server() -> None:
    assert urls(FLAGS[:2]) == []


def test_an_environment_alone_is_no_registry() -> None:
    (listener,) = requested(["--environment-id", "box"], NO_FILE)
    assert listener.kind == "unix"


def test_flags_behind_two_dashes_are_none() -> None:
    assert urls(["--", *FLAGS])[0].startswith("unix://")


@pytest.mark.parametrize(
    ("url", "checked"),
    [
        ("https://h", "https://h"),
        ("https://h:8443/a/b//", "https://h:8443/a/b"),
        ("http://127.0.0.1:1/", "http://127.0.0.1:1"),
        ("http://127.1.2.3", "http://127.1.2.3"),
        ("http://[::1]:2", "http://[::1]:2"),
        ("http://localhost:3", "http://localhost:3"),
    ],
)
def test_urls_that_are_accepted(url: str, checked: str) -> None:
    assert check_registry_url(url) == checked
    assert place_in(RemoteListener(checked, "e", token_on_stdin=False).url) == (checked, "e", None)
    in_pool = RemoteListener(checked, "p", in_pool=True, token_on_stdin=False)
    assert place_in(in_pool.url) == (checked, None, "p")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "must be a URL"),
        ("registry", "must be a URL"),
        ("https://", "must be a URL"),
        ("https://h:0", "must be a URL"),
        ("https://h:99999", "must be a URL"),
        ("https://h/a b", "must be a URL"),
        ("https://h\u00e9", "must be a URL"),
        ("wss://h", "must begin with https://, not wss://"),
        ("http://registry.example", "unless it is on loopback"),
        ("http://10.0.0.1", "unless it is on loopback"),
        ("http://127.0.0.1.example.org", "unless it is on loopback"),
        ("https://user:secret@h", "no user, query or fragment"),
        ("https://h?token=secret", "no user, query or fragment"),
        ("https://h/#x", "no user, query or fragment"),
    ],
)
def test_urls_that_are_refused(url: str, says: str) -> None:
    with pytest.raises(ListenError) as refused:
        check_registry_url(url)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "a/b", "a b", "\u00e4", "x" * 257, "a\n", ".."])
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(ListenError):
        check_environment_id(text)
    assert check_environment_id("x" * 256)


def test_stdin_is_read_only_on_demand() -> None:
    switch = "--remote-token-stdin"
    variable = {"EXECSERVER_REMOTE_TOKEN_STDIN": "True"}
    assert not reads_stdin(FLAGS)
    assert reads_stdin([*FLAGS, switch])
    assert reads_stdin(FLAGS, variable)
    assert not reads_stdin([*FLAGS, "--no-remote-token-stdin"], variable)
    assert not reads_stdin([*FLAGS, switch, "--listen", "stdio"])


def test_the_token_is_kept_for_every_server(stdin: int) -> None:
    os.write(stdin, b" token \r\nsomething else")
    listener = RemoteListener("https://h", "e", token_on_stdin=True)
    listener.bind()
    (memory,) = listener.descriptors
    assert os.pread(memory, 100, 0) == b"token\n"
    assert not os.get_inheritable(memory)
    listener.close()
    listener.close()
    assert listener.descriptors == ()


def test_a_line_without_its_end_is_a_line(stdin: int) -> None:
    os.write(stdin, b"token")
    os.close(stdin)
    listener = RemoteListener("https://h", "e", token_on_stdin=True)
    listener.bind()
    assert os.pread(listener.descriptors[0], 100, 0) == b"token\n"
    listener.close()


@pytest.mark.parametrize("content", [b"", b"\ntoken\n", b"x" * (MAX_TOKEN_BYTES + 1)], ids=len)
def test_an_invalid_token_is_refused(stdin: int, content: bytes) -> None:
    os.write(stdin, content)
    os.close(stdin)
    with pytest.raises(ListenError, match=r"^--remote-token-stdin: "):
        RemoteListener("https://h", "e", token_on_stdin=True).bind()


def test_without_a_token_on_stdin_there_is_an_empty_line() -> None:
    listener = RemoteListener("https://h", "e", token_on_stdin=False)
    listener.bind()
    assert os.pread(listener.descriptors[0], 100, 0) == b"\n"
    listener.close()
