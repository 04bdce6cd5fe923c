"""What strangers and tenants of a relay try, and do not get."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import execclient
from execclient.govern.sandbox import ReadOnly
from tests.support.fs_workers import bubblewrap_works
from tests.support.relay_peers import RawExecutor
from tests.support.relay_service import RelayService, environment, wait_until
from tests.support.wire import PATIENCE, server_command

SECRET = "xrt_" + "S" * 43
TICKET = f"/cloud/environment/box/executor?ticket={SECRET}"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayService]:
    state = tmp_path_factory.mktemp("trust") / "relay"
    with RelayService(state, "--log-level", "debug") as relay:
        yield relay
        assert relay.stop() == 0


def exchange(relay: RelayService, head: bytes) -> int:
    """Send bytes; the status of the answer, after which the relay hangs up."""
    parts = urlsplit(relay.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as connection:
        connection.sendall(head)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answer.read()
        return answer.status


@pytest.mark.parametrize(
    "head",
    [
        f"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer {SECRET}\r\n\r\n",
        f"GET {TICKET}\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET {TICKET} HTTP/9.1\r\nHost: x\r\n\r\n",
        f"GET http://x:99999{TICKET} HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET {SECRET} HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET /{SECRET * 200} HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["blank in a header", "control character", "version", "port", "no path", "long"],
)
def test_a_request_that_is_none_leaves_nothing_of_itself_in_the_log(relay: RelayService, head: str) -> None:
    before = len(relay.log_lines("request not understood"))

    assert exchange(relay, head.encode()) == 400

    wait_until(lambda: len(relay.log_lines("request not understood")) == before + 1)
    assert SECRET not in relay.log
    for line in relay.log.splitlines():
        assert json.loads(line)["level"] in ("debug", "info")


@pytest.mark.parametrize(
    "lines", [["a: " + "x" * 6000], [f"a{number}: x" for number in range(80)]], ids=["long", "many"]
)
def test_a_head_that_is_larger_than_any_of_ours_is_refused_before_its_end(
    relay: RelayService, lines: list[str]
) -> None:
    head = "GET /healthz HTTP/1.1\r\nHost: x\r\n" + "".join(f"{line}\r\n" for line in lines)

    assert exchange(relay, head.encode()) == 400


def test_a_head_with_what_proxies_add_is_taken(relay: RelayService) -> None:
    added = "".join(f"x-forwarded-{number}: {'y' * 100}\r\n" for number in range(20))
    cookie = f"cookie: {'z' * 3000}\r\n"

    assert exchange(relay, f"GET /healthz HTTP/1.1\r\nHost: x\r\n{added}{cookie}\r\n".encode()) == 200


def test_a_token_is_revoked_while_strangers_hold_every_descriptor(tmp_path: Path) -> None:
    with ExitStack() as stack, RelayService(tmp_path / "relay") as relay:
        token = relay.token("executor", "box")
        executor = stack.enter_context(RawExecutor(relay, "box", token))
        resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (64, 64))
        parts = urlsplit(relay.url)
        for _ in range(100):
            stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE))
        wait_until(lambda: len(os.listdir(f"/proc/{relay.pid}/fd")) >= 64)

        relay.revoke(token)

        assert executor.closed_with() == 1008


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")
async def test_a_sandbox_that_is_open_does_not_see_the_token_that_replaces_another(
    relay: RelayService, tmp_path: Path
) -> None:
    closed, work = tmp_path / "closed", tmp_path / "work"
    closed.mkdir(mode=0o700)
    work.mkdir()
    token = closed / "token"
    token.write_text(relay.token("executor", "renewed"))
    flags = ("--remote", relay.url, "--environment-id", "renewed", "--remote-token-file", str(token))
    with subprocess.Popen(
        [*server_command(), *flags],
        env=environment() | {"XDG_STATE_HOME": str(tmp_path / "state")},
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as daemon:
        try:
            await asyncio.to_thread(relay.wait_online, "renewed")
            client = relay.token("client", "renewed")
            async with execclient.connect(relay.client_url("renewed"), token=client) as executor:
                script = f"cat {token} && exit; echo covered; read line; cat {token}; ls {closed}; echo over"
                process = await executor.start(
                    ["sh", "-c", script],
                    cwd=work,
                    stdin=True,
                    sandbox=ReadOnly().context(str(work), [str(work)]),
                )
                said = b""
                async for chunk in process:
                    said += chunk.data
                    if said.endswith(b"covered\n"):
                        (closed / "new").write_text(SECRET)
                        os.rename(closed / "new", token)
                        await process.write(b"\n")
        finally:
            daemon.terminate()
            assert daemon.wait(PATIENCE) == 0

    assert b"over\n" in said, said
    assert said.count(b"denied") == 3, said
    assert SECRET.encode() not in said
