"""`http/request` on its way: TLS, proxies, and clients that read slowly or not at all."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_http import fetch, frames, params, redirecting, refused, wait_done
from tests.faults.service import children
from tests.integration.http.certificates import make_authority, server_context
from tests.integration.http.origin import Exchange, Origin, Serve, response
from tests.support.wire import PATIENCE, Client, SocketTransport, at_most, decode


@pytest.fixture
def origin(serve: Serve) -> Origin:
    """What requests are for."""
    return serve(lambda exchange: exchange.send(response(b"direct")))


@pytest.fixture
def proxy(serve: Serve) -> Origin:
    """A proxy that answers itself, and connects to nobody."""

    def answer(exchange: Exchange) -> None:
        if exchange.request.line.startswith("CONNECT"):
            exchange.send(response(b"", "403 Not through here"))
        else:
            exchange.send(response(b"proxied"))

    return serve(answer)


# ------------------------------------------------------------------ TLS


@pytest.mark.statement("N14", "N15")
def test_trust(endpoint: Endpoint, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    trusting = endpoint.private(env={"SSL_CERT_FILE": str(authority)}).connect()
    versions: list[str | None] = []

    def answer(exchange: Exchange) -> None:
        versions.append(exchange.connection.selected_alpn_protocol())  # type: ignore[attr-defined]
        exchange.send(response(b"secret"))

    with Origin(answer, tls=server_context(tmp_path)) as secure:
        for host in ("localhost", "127.0.0.1"):
            assert decode(fetch(trusting, f"https://{host}:{secure.port}/")["bodyBase64"]) == b"secret"
        fetch(trusting, f"https://localhost:{secure.port}/", streamResponse=True)
        assert decode(wait_done(trusting)[0]["deltaBase64"]) == b"secret"
        assert set(versions) == {"http/1.1"}
        failure = refused(endpoint.connect(), secure.url)
        assert failure.code == -32603
        assert failure.message.startswith(
            f"http/request failed: {secure.address}: its certificate is not trusted"
        )
        assert len(secure.requests) == 3


@pytest.mark.statement("N14")
def test_certificate_for_another_name(endpoint: Endpoint, tmp_path: Path) -> None:
    client = endpoint.private(env={"SSL_CERT_FILE": str(make_authority(tmp_path))}).connect()
    with Origin(lambda exchange: None, tls=server_context(tmp_path)) as secure:
        failure = refused(client, f"https://127.0.0.2:{secure.port}/")
        assert failure.code == -32603
        assert secure.requests == []


@pytest.mark.statement("N11")
def test_server_that_speaks_no_tls(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = client.request("http/request", params(f"https://127.0.0.1:{listener.getsockname()[1]}/"))
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"220 this is another service\r\n")
            failure = client.failure(number)
    assert failure.code == -32603
    assert failure.message.startswith("http/request failed: ")
    assert "TLS failed" in failure.message


@pytest.mark.statement("N15")
def test_a_connection_for_each_request(client: Client, origin: Origin) -> None:
    for _ in range(3):
        fetch(client, origin.url)
    assert origin.accepted == 3


# ------------------------------------------------------------------ proxies


@pytest.mark.everywhere
@pytest.mark.statement("N40")
def test_proxy_of_the_environment(endpoint: Endpoint, origin: Origin, proxy: Origin) -> None:
    url = f"http://us%40er:p@{proxy.address}"
    client = endpoint.private(env={"HTTP_PROXY": url, "http_proxy": "http://127.0.0.1:1"}).connect()
    assert decode(fetch(client, "http://far.invalid/x?y")["bodyBase64"]) == b"proxied"
    request = proxy.next_request()
    assert request.line == "GET http://far.invalid/x?y HTTP/1.1"
    assert request.values("host") == ["far.invalid"]
    assert request.values("proxy-authorization") == ["Basic " + base64.b64encode(b"us@er:p").decode()]
    assert decode(fetch(client, f"{origin.url}/z")["bodyBase64"]) == b"proxied"
    assert proxy.next_request().target == f"{origin.url}/z"
    assert origin.requests == []


@pytest.mark.statement("N40", "N42")
@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_proxy_for_https(endpoint: Endpoint, origin: Origin, proxy: Origin, variable: str) -> None:
    client = endpoint.private(env={variable: proxy.address}).connect()
    failure = refused(client, "https://far.invalid/x")
    assert failure.code == -32603
    assert proxy.next_request().line == "CONNECT far.invalid:443 HTTP/1.1"
    plain = decode(fetch(client, origin.url)["bodyBase64"])
    assert plain == (b"proxied" if variable.lower() == "all_proxy" else b"direct")


@pytest.mark.statement("N42")
def test_https_through_a_proxy(endpoint: Endpoint, serve: Serve, tmp_path: Path) -> None:
    with Origin(
        lambda exchange: exchange.send(response(b"secret")), tls=server_context_of(tmp_path)
    ) as secure:

        def tunnel(exchange: Exchange) -> None:
            with socket.create_connection(("127.0.0.1", secure.port)) as server:
                exchange.send(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=pass_on, args=(server, exchange.connection), daemon=True)
                back.start()
                pass_on(exchange.connection, server)
                back.join(10)

        proxy = serve(tunnel)
        env = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        client = endpoint.private(env=env).connect()
        assert decode(fetch(client, f"https://localhost:{secure.port}/")["bodyBase64"]) == b"secret"
        assert proxy.next_request().line == f"CONNECT localhost:{secure.port} HTTP/1.1"


def server_context_of(folder: Path) -> ssl.SSLContext:
    make_authority(folder)
    return server_context(folder)


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.mark.statement("N41")
@pytest.mark.parametrize("exceptions", ["127.0.0.1", "x, 127.0.0.0/8", "*", "other.invalid,127.0.0.1"])
def test_no_proxy(endpoint: Endpoint, origin: Origin, proxy: Origin, exceptions: str) -> None:
    client = endpoint.private(env={"HTTP_PROXY": proxy.url, "NO_PROXY": exceptions}).connect()
    assert decode(fetch(client, origin.url)["bodyBase64"]) == b"direct"
    assert proxy.requests == []


@pytest.mark.statement("N40", "N41")
@pytest.mark.parametrize(
    "env",
    [
        {"HTTP_PROXY": "PROXY", "NO_PROXY": "127.0.0.2,10.0.0.0/8,127.0.0"},
        {"HTTP_PROXY": "PROXY", "NO_PROXY": "x", "no_proxy": "127.0.0.1"},
        {"REQUEST_METHOD": "GET", "HTTP_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "PROXY"},
    ],
)
def test_proxy_after_all(endpoint: Endpoint, origin: Origin, proxy: Origin, env: dict[str, str]) -> None:
    client = endpoint.private(
        env={name: value.replace("PROXY", proxy.url) for name, value in env.items()}
    ).connect()
    assert decode(fetch(client, origin.url)["bodyBase64"]) == b"proxied"


@pytest.mark.statement("N43")
def test_socks(endpoint: Endpoint, origin: Origin) -> None:
    client = endpoint.private(env={"ALL_PROXY": "socks5://127.0.0.1:1"}).connect()
    failure = refused(client, origin.url)
    assert failure.code == -32603
    assert "SOCKS" in failure.message
    assert origin.requests == []


# ------------------------------------------------------------------ clients that do not read


class Flood:
    """A body without an end; `stalled` is set once nobody has taken any of it for a while."""

    def __init__(self) -> None:
        self.sent = 0
        self.stalled = threading.Event()
        self.ended = threading.Event()

    def __call__(self, exchange: Exchange) -> None:
        exchange.send(b"HTTP/1.1 200 OK\r\n\r\n")
        exchange.connection.settimeout(1)
        piece = b"z" * (64 << 10)
        try:
            while not exchange.stopping.is_set():
                try:
                    self.sent += exchange.connection.send(piece)
                except TimeoutError:
                    self.stalled.set()
        finally:
            self.ended.set()


def resident_bytes(supervisor: int) -> int:
    lines = [
        line
        for pid in children(supervisor)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    ]
    assert lines
    return sum(int(line.split()[1]) << 10 for line in lines)


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("N35", "N36", "N37")
def test_reader_that_stops(endpoint: Endpoint, serve: Serve) -> None:
    own = endpoint.private()
    client, bystander = own.connect(), own.connect()
    fetch(bystander, serve(redirecting).url)  # what the library costs is there already
    before = resident_bytes(own.server.pid)
    floods = [Flood() for _ in range(4)]
    client.pause()
    for number, flood in enumerate(floods):
        client.request("http/request", params(serve(flood).url, requestId=str(number), streamResponse=True))
    for flood in floods:
        assert flood.stalled.wait(30)
    assert sum(flood.sent for flood in floods) < 96 << 20
    assert resident_bytes(own.server.pid) - before < 64 << 20
    with at_most(PATIENCE):
        assert decode(fetch(bystander, serve(redirecting).url)["bodyBase64"]) == b"there"
        assert bystander.shell("echo here").wait_closed().output == b"here\n"
    sent = [flood.sent for flood in floods]
    client.resume()
    client.wait_until(
        lambda: all(flood.sent > old for flood, old in zip(floods, sent, strict=True)),
        what="that it flows again",
    )
    for number in range(4):
        seqs = [frame["seq"] for frame in frames(client, str(number))]
        assert seqs == list(range(1, len(seqs) + 1))
    client.pause()
    client.transport.close()
    assert all(flood.ended.wait(PATIENCE) for flood in floods)


@pytest.mark.transports("unix", "ws")
@pytest.mark.statement("N35")
def test_flood_to_a_slow_reader_leaves_room_for_processes(endpoint: Endpoint, serve: Serve) -> None:
    """The reader never keeps up with the stream, and still sees a process from its start to its end."""
    own = endpoint.private()
    client = own.connect()
    reader = SlowReader(client)
    try:
        flood = Flood()
        fetch(client, serve(flood).url, streamResponse=True)
        client.pause()
        assert flood.stalled.wait(30)
        reader.begin()
        client.resume()
        process = client.shell("echo first; head -c 300000 /dev/zero; echo last")
        with at_most(10):
            process.wait_closed(15)
        assert len(process.output) == 300_011
    finally:
        reader.end()


class SlowReader:
    """Lets the client's thread take one read each 10 ms: 25 MB/s at most."""

    def __init__(self, client: Client) -> None:
        transport = client.transport
        assert isinstance(transport, SocketTransport)
        self._more = transport._more
        transport._more = self._slowly  # type: ignore[method-assign]
        self._pace = threading.Event()
        self._slow = False

    def begin(self) -> None:
        self._slow = True

    def end(self) -> None:
        self._slow = False

    def _slowly(self) -> bytes:
        if self._slow:
            self._pace.wait(0.01)
        return self._more()
