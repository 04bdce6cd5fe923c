"""Hosts that reach the server over streamable HTTP, and those that may not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import jwt
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.third_party.mcp.conftest import Hosts, Serve, output_of, read_to_end, session_of

TOKEN, SECRET = "0123456789abcdef", "s" * 32
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"accept": "application/json, text/event-stream"}


def secret_file(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@asynccontextmanager
async def host(url: str, mode: str, token: str) -> AsyncIterator[Client]:
    """A host with a token."""
    headers = {"authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def test_a_host_without_credentials_runs_and_reads_on(hosts: Hosts, serve: Serve) -> None:
    url = serve()
    async with Client(url, mode=hosts.mode) as client:
        session = await session_of(client, "pwd; sleep 2; echo end", yield_time_ms=250)
    async with Client(url, mode=hosts.mode) as client:  # the commands belong to the server
        output, result = await read_to_end(client, session)

    assert output.endswith("end\n")
    assert result.structured_content["exitCode"] == 0
    assert await hosts.running() == 0


@pytest.mark.without_chaos
@pytest.mark.parametrize("mode", ["legacy"], indirect=True)
async def test_a_capability_token_opens_the_server(hosts: Hosts, serve: Serve) -> None:
    url = serve("--ws-auth", "capability-token", "--ws-token-file", secret_file(hosts.state, TOKEN))
    async with host(url, hosts.mode, TOKEN) as client:
        result = await client.call_tool("exec_command", {"cmd": "echo admitted", "login": False})

    assert output_of(result) == "admitted\n"
    for headers, reason in (
        ({}, "missing websocket bearer token"),
        ({"authorization": "Bearer wrong-token"}, "invalid websocket bearer token"),
    ):
        refused = httpx2.post(url, json=INITIALIZE, headers={**ACCEPT, **headers})
        assert (refused.status_code, refused.text) == (401, reason)


@pytest.mark.without_chaos
@pytest.mark.parametrize("mode", ["auto"], indirect=True)
async def test_a_signed_bearer_token_opens_the_server_until_it_expires(hosts: Hosts, serve: Serve) -> None:
    url = serve(
        *("--ws-auth", "signed-bearer-token", "--ws-issuer", "https://issuer.example"),
        *("--ws-shared-secret-file", secret_file(hosts.state, SECRET)),
    )
    claims = {"exp": int(time.time()) + 60, "iss": "https://issuer.example"}
    async with host(url, hosts.mode, jwt.encode(claims, SECRET, "HS256")) as client:
        result = await client.call_tool("exec_command", {"cmd": "echo admitted", "login": False})

    assert output_of(result) == "admitted\n"
    for changed, reason in (
        ({"exp": int(time.time()) - 60}, "expired websocket jwt"),
        ({"iss": "https://other.example"}, "websocket jwt issuer mismatch"),
    ):
        token = jwt.encode({**claims, **changed}, SECRET, "HS256")
        headers = {**ACCEPT, "authorization": f"Bearer {token}"}
        refused = httpx2.post(url, json=INITIALIZE, headers=headers)
        assert (refused.status_code, refused.text) == (401, reason)


@pytest.mark.without_chaos
@pytest.mark.parametrize("mode", ["legacy"], indirect=True)
def test_web_pages_are_refused(serve: Serve) -> None:
    url = serve()
    for headers, status in (
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "attacker.example"}, 403),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
    ):
        answer = httpx2.post(url, json=INITIALIZE, headers={**ACCEPT, **headers})
        assert answer.status_code == status, headers


@pytest.mark.without_chaos
@pytest.mark.parametrize("mode", ["legacy"], indirect=True)
async def test_a_sandboxed_command_is_no_client(hosts: Hosts, serve: Serve) -> None:
    """It could otherwise ask for commands under other limits than its own."""
    url = serve("--network")
    request = f"import urllib.request; urllib.request.urlopen({url!r})"
    async with Client(url, mode=hosts.mode) as client:
        command = f'{sys.executable} -c "{request}" 2>&1 | tail -1'
        result = await client.call_tool("exec_command", {"cmd": command, "login": False})

    assert "HTTP Error 403" in output_of(result)


@pytest.mark.without_chaos
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "http://0.0.0.0:0"], "is reachable from other machines: give --ws-auth"),
        (["--listen", "http://localhost:0"], "with a literal address, such as http://127.0.0.1:8766"),
        (["--listen", "ws://127.0.0.1:0"], "it is http://ADDRESS:PORT"),
        (["--listen", "http://127.0.0.1:0", "--ws-auth", "capability-token"], "needs exactly one of"),
        (["--ws-host", "build.example"], "--ws-host needs --listen"),
        (["--ws-token-file", "x", "--listen", "http://127.0.0.1:0"], "--ws-token-file needs --ws-auth"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
@pytest.mark.parametrize("mode", ["legacy"], indirect=True)
def test_wrong_options_are_explained(hosts: Hosts, options: list[str], message: str) -> None:
    command = hosts.command(*options)
    done = subprocess.run(
        [command.command, *command.args],
        env=command.env,
        cwd=command.cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode != 0
    assert message in done.stderr
