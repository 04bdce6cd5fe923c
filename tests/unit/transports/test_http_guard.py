"""The rules for the HTTP clients of `execserver mcp`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.transports.authentication import AuthenticationOptions, ConfigurationError
from execserver.transports.http_guard import HttpGuard

TOKEN = "0123456789abcdef"
DIGEST = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f"
OPEN = AuthenticationOptions()
CLOSED = AuthenticationOptions(ws_auth="capability-token", ws_token_sha256=DIGEST)


@pytest.fixture
def accepted() -> Iterator[socket.socket]:
    """The accepted socket of a connection of this process to itself."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as connection,
    ):
        yield connection


@pytest.mark.parametrize(
    ("options", "headers", "refusal"),
    [
        (OPEN, {"host": "127.0.0.1:8766"}, None),
        (OPEN, {"host": "localhost:8766"}, None),
        (OPEN, {"host": "build.example"}, None),
        (OPEN, {"host": "attacker.example"}, (403, "")),
        (OPEN, {"host": "127.0.0.1:8766", "origin": "http://127.0.0.1:8766"}, None),
        (OPEN, {"host": "127.0.0.1:8766", "origin": "http://127.0.0.1:80"}, (403, "")),
        (OPEN, {"host": "attacker.example", "origin": "http://attacker.example"}, (403, "")),
        (CLOSED, {"host": "127.0.0.1", "authorization": f"Bearer {TOKEN}"}, None),
        (CLOSED, {"host": "127.0.0.1"}, (401, "missing websocket bearer token")),
        (CLOSED, {"host": "attacker.example", "authorization": f"Bearer {TOKEN}"}, (403, "")),
    ],
)
def test_requests_are_judged_as_upgrades_are(
    accepted: socket.socket,
    options: AuthenticationOptions,
    headers: dict[str, str],
    refusal: tuple[int, str] | None,
) -> None:
    guard = HttpGuard(options, Path.cwd(), ["Build.example"])

    assert guard.refusal(headers.items(), accepted) == refusal
    assert guard.required == (options is CLOSED)


def test_wrong_options_are_explained() -> None:
    with pytest.raises(ConfigurationError, match="--ws-token-sha256 needs --ws-auth"):
        HttpGuard(AuthenticationOptions(ws_token_sha256=DIGEST), Path.cwd(), [])
