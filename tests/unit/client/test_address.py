from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from execclient import InsecureToken, UnsupportedUrl, connect
from execclient.connection.address import (
    STDIO,
    ChildTarget,
    UnixTarget,
    WebSocketTarget,
    default_url,
    socket_path,
    target,
)
from execclient.errors import ConnectionFailed

ACCOUNT_HOME = pwd.getpwuid(os.geteuid()).pw_dir.rstrip("/")


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXECSERVER_TOKEN", "EXECSERVER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "url",
    ["unix://relative", "unix:///folder/", "unix:///a\0b", "/a/path", "relay://x", "http://x", "stdio:x"],
)
async def test_another_url_is_refused_with_the_names_of_what_is_supported(url: str) -> None:
    with pytest.raises(UnsupportedUrl, match=r"unix:///ABSOLUTE/PATH, ws://HOST:PORT, wss://HOST, stdio:"):
        async with connect(url):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "ws://",
        "ws:///x",
        "ws://:1",
        "ws://h:0",
        "ws://h:65536",
        "ws://h:x",
        "ws://[::1",
        "ws://a b",
        "ws://ü",
    ],
)
def test_a_websocket_url_needs_a_host_and_a_port_that_exists(url: str) -> None:
    with pytest.raises(UnsupportedUrl, match="no ws://HOST:PORT"):
        target(url)


def test_a_websocket_url_with_a_user_is_refused_without_repeating_what_may_be_a_secret() -> None:
    with pytest.raises(UnsupportedUrl, match="token=") as raised:
        target("wss://me:hidden@host/")

    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("unix:///s", UnixTarget),
        ("ws://127.0.0.1:1", WebSocketTarget),
        ("wss://[::1]/path?x=y", WebSocketTarget),
        ("stdio:", ChildTarget),
    ],
)
def test_each_kind_of_url_has_its_target(url: str, kind: type) -> None:
    found = target(url)

    assert isinstance(found, kind)
    assert found.url == url
    assert found.recoverable == (kind is not ChildTarget)


def test_a_command_is_for_stdio_also_without_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_URL", "unix:///given")

    found = target(command=["ssh", "host"])

    assert (found.url, isinstance(found, ChildTarget)) == (STDIO, True)


@pytest.mark.parametrize("arguments", [{"token": "t"}, {"token_file": "/f"}, {"command": ["x"]}])
def test_what_does_not_go_with_the_url_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(UnsupportedUrl, match="does not go with unix:///s"):
        target("unix:///s", **arguments)  # type: ignore[arg-type]


def test_a_token_of_the_environment_is_no_hindrance_where_none_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EXECSERVER_TOKEN", "t")

    assert isinstance(target("unix:///s"), UnixTarget)


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "example.com", "[2001:db8::1]", "127.0.0.1.example.com", "0.0.0.0"]
)
@pytest.mark.parametrize("source", ["argument", "environment"])
def test_a_token_does_not_cross_a_network_unencrypted(
    host: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "sesame" if source == "argument" else None
    if source == "environment":
        monkeypatch.setenv("EXECSERVER_TOKEN", "sesame")

    with pytest.raises(InsecureToken, match="wss://") as raised:
        target(f"ws://{host}:1", token=token)

    assert "sesame" not in str(raised.value)
    assert target(f"ws://{host}:1", token=token, allow_insecure_token=True)
    assert target(f"wss://{host}", token=token)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST"])
def test_it_may_stay_on_this_machine(host: str) -> None:
    assert target(f"ws://{host}:1", token="t")


def found_token(**arguments: str) -> object:
    found = target("wss://host", **arguments)  # type: ignore[arg-type]
    assert isinstance(found, WebSocketTarget)
    return found.token


async def test_a_token_is_looked_for_in_a_fixed_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("  file\n")
    (tmp_path / "other").write_text("other")
    assert found_token() is None

    monkeypatch.setenv("EXECSERVER_TOKEN_FILE", str(tmp_path / "other"))
    assert await found_token().read() == "other"  # type: ignore[attr-defined]
    monkeypatch.setenv("EXECSERVER_TOKEN", "variable")
    assert await found_token().read() == "variable"  # type: ignore[attr-defined]
    assert await found_token(token_file=str(tmp_path / "file")).read() == "file"  # type: ignore[attr-defined]
    assert await found_token(token="argument").read() == "argument"  # type: ignore[attr-defined]


def test_a_token_is_not_shown() -> None:
    assert "sesame" not in repr(target("wss://host", token="sesame"))


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"line\r\nX: y", "ü".encode(), b"\xff", b"x" * 9000]
)
async def test_what_is_no_token_is_not_sent_and_not_shown(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)

    with pytest.raises(ConnectionFailed, match="token file") as raised:
        await found_token(token_file=str(tmp_path / "file")).read()  # type: ignore[attr-defined]

    assert "words" not in str(raised.value)


def test_the_path_is_taken_as_it_stands() -> None:
    assert socket_path("unix:///a b/ü%20.sock") == "/a b/ü%20.sock"


def test_the_url_of_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_URL", "unix:///given")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")

    assert default_url() == "unix:///given"


@pytest.mark.parametrize(
    ("runtime", "state", "home", "folder"),
    [
        ("/run/user/1/", "/state", "/home/x", "/run/user/1/execserver"),
        ("", "/state/", "/home/x", "/state/execserver"),
        ("relative", "relative", "/home/x/", "/home/x/.local/state/execserver"),
        ("", "", "", f"{ACCOUNT_HOME}/.local/state/execserver"),
        ("", "", "relative", f"{ACCOUNT_HOME}/.local/state/execserver"),
    ],
)
def test_else_the_socket_is_where_a_daemon_puts_it(
    monkeypatch: pytest.MonkeyPatch, runtime: str, state: str, home: str, folder: str
) -> None:
    monkeypatch.delenv("EXECSERVER_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", home)

    assert default_url() == f"unix://{folder}/execserver.sock"
