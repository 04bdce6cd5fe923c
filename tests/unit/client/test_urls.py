from __future__ import annotations

import os

import pytest

from execclient import UnsupportedUrl, connect
from execclient.connection import default_url, socket_path


@pytest.mark.parametrize(
    "url", ["ws://127.0.0.1:1", "stdio", "unix://relative", "unix:///folder/", "/a/path", "relay://x"]
)
async def test_another_url_is_refused_with_the_name_of_what_is_supported(url: str) -> None:
    with pytest.raises(UnsupportedUrl, match=r"unix:///ABSOLUTE/PATH only"):
        async with connect(url):
            pass


def test_the_path_is_taken_as_it_stands() -> None:
    assert socket_path("unix:///a b/ü%20.sock") == "/a b/ü%20.sock"


def test_the_url_of_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXECSERVER_URL", "unix:///given")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")

    assert default_url() == "unix:///given"


@pytest.mark.parametrize(
    ("runtime", "folder"),
    [
        ("/run/user/1/", "/run/user/1/execserver"),
        ("", f"/tmp/execserver-{os.geteuid()}"),
        ("relative", f"/tmp/execserver-{os.geteuid()}"),
    ],
)
def test_else_the_socket_is_where_a_daemon_puts_it(
    monkeypatch: pytest.MonkeyPatch, runtime: str, folder: str
) -> None:
    monkeypatch.delenv("EXECSERVER_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)

    assert default_url() == f"unix://{folder}/execserver.sock"
