"""An executor and a client that can reach nothing but a proxy, and a relay with TLS outside."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from execclient import ConnectionFailed, UnsupportedUrl, connect
from tests.integration.http.certificates import make_authority, server_context
from tests.support.connect_proxy import ConnectProxy
from tests.support.relay_service import RelayService, wait_until
from tests.support.servers import free_ports
from tests.support.wire import PATIENCE, server_command

SECRET = "pass%20word"

RUN = """
import sys
from execclient.sync import connect
with connect(sys.argv[1]) as executor:
    print(executor.run(["echo", "through"]).text, end="")
"""

COUNT = """
import sys
from execclient.sync import connect
with connect(sys.argv[1]) as executor:
    script = "i=0; while [ $i -lt 600 ]; do i=$((i + 1)); echo $i; sleep 0.005; done"
    print("started", flush=True)
    result = executor.run(["sh", "-c", script])
    assert result.text.split() == [str(number) for number in range(1, 601)], result.text
    print(executor.recoveries)
"""


class Outside(NamedTuple):
    """A relay that its peers know as `relay.test`."""

    relay: RelayService
    url: str
    authority: Path
    folder: Path

    @property
    def certificate(self) -> tuple[Path, Path]:
        """And its key: of `localhost`, 127.0.0.1 and `relay.test`."""
        return self.folder / "certificate.pem", self.folder / "key.pem"

    @property
    def client_url(self) -> str:
        return f"relay+{self.url}?environment=box"


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = tmp_path_factory.mktemp("outside")
    authority = make_authority(folder)
    server_context(folder, "relay.test")
    [port] = free_ports(1)
    url = f"https://relay.test:{port}"
    flags = ("--tls-cert", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem"))
    with RelayService(
        folder / "relay", *flags, "--public-url", url, listen=f"https://127.0.0.1:{port}"
    ) as relay:
        yield Outside(relay, url, authority, folder)


def variables(outside: Outside, **further: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EXECSERVER_") and not name.lower().endswith("_proxy")
    }
    return {**kept, "EXECSERVER_CONFIG": "", "SSL_CERT_FILE": str(outside.authority), **further}


@contextmanager
def executor(
    outside: Outside, proxy: ConnectProxy, tmp_path: Path, variable: str, credentials: str = ""
) -> Iterator[Path]:
    """A daemon behind the proxy; its log."""
    token = outside.relay.token("executor", "box")
    log = tmp_path / "executor.log"
    command = [*server_command(), "--remote", outside.url, "--environment-id", "box"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            proxy.behind(variable, command, credentials),
            env=variables(outside, EXECSERVER_REMOTE_TOKEN=token, XDG_STATE_HOME=str(tmp_path)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield log
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0, log.read_text()


def client(
    outside: Outside, proxy: ConnectProxy, script: str, variable: str, credentials: str = ""
) -> subprocess.Popen[str]:
    """A program with a client, behind the proxy."""
    program = [sys.executable, "-c", script, outside.client_url]
    return subprocess.Popen(
        proxy.behind(variable, program, credentials),
        env=variables(outside, EXECSERVER_TOKEN=outside.relay.token("client", "box")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return out


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "all_proxy", "EXECSERVER_PROXY", "ALL_PROXY:socks5h"])
def test_both_peers_dial_out_through_a_proxy(outside: Outside, tmp_path: Path, variable: str) -> None:
    with ConnectProxy(tmp_path) as proxy, executor(outside, proxy, tmp_path, variable):
        outside.relay.wait_online("box")
        assert outcome(client(outside, proxy, RUN, variable)) == "through\n"
        # Of each: a registry request and a WebSocket; and the executor validates the client.
        assert proxy.tunnels() == [outside.url.removeprefix("https://")] * 5


def test_without_the_proxy_neither_peer_reaches_the_relay(outside: Outside, tmp_path: Path) -> None:
    with ConnectProxy(tmp_path) as proxy, executor(outside, proxy, tmp_path, "UNUSED") as log:
        wait_until(lambda: "its name cannot be resolved" in log.read_text())
        alone = client(outside, proxy, RUN, "UNUSED")
        assert "its name cannot be resolved" in alone.communicate(timeout=PATIENCE)[1]
        assert proxy.tunnels() == []


def test_an_https_proxy_with_credentials(outside: Outside, tmp_path: Path) -> None:
    own = f"us%40er:{SECRET}@"
    with (
        ConnectProxy(tmp_path, credentials="us@er:pass word", tls=outside.certificate) as proxy,
        executor(outside, proxy, tmp_path, "HTTPS_PROXY", own) as log,
    ):
        outside.relay.wait_online("box")
        assert outcome(client(outside, proxy, RUN, "EXECSERVER_PROXY", own)) == "through\n"
        assert len(proxy.tunnels()) == 5
    assert "pass" not in log.read_text()


def test_sessions_outlive_cut_tunnels(outside: Outside, tmp_path: Path) -> None:
    with ConnectProxy(tmp_path) as proxy, executor(outside, proxy, tmp_path, "HTTPS_PROXY"):
        outside.relay.wait_online("box")
        counting = client(outside, proxy, COUNT, "HTTPS_PROXY")
        assert counting.stdout is not None
        assert counting.stdout.readline() == "started\n"
        for _ in range(3):
            time.sleep(0.7)
            proxy.cut()
        assert int(outcome(counting)) >= 1


def test_the_executor_logs_why_a_proxy_refuses_it_without_the_password(
    outside: Outside, tmp_path: Path
) -> None:
    with (
        ConnectProxy(tmp_path, credentials="user:other") as proxy,
        executor(outside, proxy, tmp_path, "EXECSERVER_PROXY", f"user:{SECRET}@") as log,
    ):
        wait_until(lambda: "does not accept the credentials (407)" in log.read_text())
    assert "--proxy (EXECSERVER_PROXY)" in log.read_text()
    assert "pass" not in log.read_text()


# -- the client's errors, in this process


async def failure(outside: Outside, url: str, proxy: str) -> str:
    context = ssl.create_default_context(cafile=outside.authority)
    with pytest.raises(ConnectionFailed) as caught:
        await connect(url, token="t", ssl=context, proxy=proxy)
    text = str(caught.value)
    assert "secret" not in text
    return text


@pytest.mark.parametrize("scheme", ["relay+https", "wss"])
@pytest.mark.parametrize(
    ("status", "text"),
    [
        (407, "wants credentials (407): give them in proxy=, as http://USER:PASSWORD@HOST:PORT"),
        (403, "refuses to connect to the host (403): have its operator allow CONNECT"),
        (502, "cannot reach the host (502)"),
    ],
)
async def test_a_refusal_by_the_proxy(
    outside: Outside, tmp_path: Path, scheme: str, status: int, text: str
) -> None:
    url = f"{scheme}://relay.test:1" + ("?environment=box" if scheme != "wss" else "")
    with ConnectProxy(tmp_path, status=status) as proxy:
        assert text in await failure(outside, url, f"http://127.0.0.1:{proxy.listen()}")


@pytest.mark.parametrize("scheme", ["relay+https", "wss"])
async def test_a_proxy_that_cannot_be_reached(outside: Outside, scheme: str) -> None:
    url = f"{scheme}://relay.test:1" + ("?environment=box" if scheme != "wss" else "")
    text = await failure(outside, url, "http://user:secret@127.0.0.1:9")
    assert "cannot reach the proxy http://127.0.0.1:9: Connection refused. It is from proxy=" in text


async def test_the_certificate_in_the_tunnel_is_the_targets(outside: Outside, tmp_path: Path) -> None:
    port = outside.url.rpartition(":")[2]
    with ConnectProxy(tmp_path) as proxy:
        text = await failure(
            outside, f"relay+https://other.test:{port}?environment=box", f"http://127.0.0.1:{proxy.listen()}"
        )
    assert "certificate" in text
    assert "other.test" in text


async def test_the_certificate_of_an_https_proxy_is_verified(outside: Outside, tmp_path: Path) -> None:
    with ConnectProxy(tmp_path, tls=outside.certificate) as proxy:
        own = f"https://localhost:{proxy.listen()}"  # the system does not know the test's authority
        text = await failure(outside, "relay+https://relay.test:1?environment=box", own)
        assert f"cannot reach the proxy {own}: its certificate does not hold" in text
        assert f"or of {own}, is not valid" in await failure(outside, "wss://relay.test:1", own)


@pytest.mark.parametrize(
    "proxy", ["ftp://user:secret@h:1", "http://", "http://user:secret@h:0", "http://h/x", "http://a b"]
)
async def test_an_invalid_proxy_is_not_quoted(proxy: str) -> None:
    with pytest.raises(UnsupportedUrl, match="proxy= must be the URL of a proxy") as caught:
        await connect("wss://relay.test", proxy=proxy)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ws://127.0.0.1:9", "relay+http://localhost:9?environment=box"])
@pytest.mark.parametrize("explicit", [True, False])
async def test_a_token_that_may_not_leave_this_machine_is_sent_to_no_proxy(
    url: str, explicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        given = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        if not explicit:
            monkeypatch.setenv("EXECSERVER_PROXY", given)
        with pytest.raises(ConnectionFailed):
            await connect(url, token="t" * 20, proxy=given if explicit else None)
        with pytest.raises(BlockingIOError):
            proxy.accept()


async def test_a_local_daemon_needs_no_proxy() -> None:
    with pytest.raises(UnsupportedUrl, match="proxy= does not go with unix:"):
        await connect("unix:///tmp/x.sock", proxy="http://h:1")
