"""Transports: listening, framing, HTTP around the WebSocket, authentication."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conftest import StartServer
from tests.support.wire import (
    Client,
    Json,
    Server,
    SocketTransport,
    StartError,
    UpgradeRefusedError,
    WebSocketTransport,
    connect_unix,
    connect_ws,
    encode,
    path_uri,
    server_command,
    spawn_stdio,
)

STATUS = {"id": 900, "method": "environment/status"}
READY = {"id": 900, "result": {"status": "ready"}}
LINE = 64 << 20
FRAME = 16 << 20


def padded_status(size: int) -> bytes:
    """A status request of exactly that many bytes."""
    head, tail = b'{"id":900,"method":"environment/status","padding":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def run(*flags: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """A start that must fail."""
    return subprocess.run(
        [*server_command(), *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=dict(env),
        timeout=20,
        check=False,
    )


# -- command line and listening


@pytest.mark.statement("T1")
@pytest.mark.transports("ws")
def test_bound_url_is_the_only_output(environment: dict[str, str]) -> None:
    server = Server("ws://127.0.0.1:0", env=environment)
    try:
        assert server.url == f"ws://127.0.0.1:{server.port}"
        assert server.port > 0
        with server.connect() as client:
            client.shell("echo x").wait_closed()
        assert server.process.stdout is not None
        os.set_blocking(server.process.stdout.fileno(), False)
        assert server.process.stdout.read() is None
    finally:
        assert server.stop() == 0


@pytest.mark.statement("T1", "T7")
def test_unix_socket_is_bound_and_removed(environment: dict[str, str], tmp_path: Path) -> None:
    path = Path("/tmp") / f"execserver-{os.getpid()}.socket"
    server = Server(f"unix://{path}", env=environment)
    try:
        assert server.url == f"unix://{path}"
        with connect_unix(path) as client:
            client.handshake().call("environment/status")
    finally:
        assert server.stop() == 0
    assert not path.exists()


@pytest.mark.statement("T1", "T2")
def test_loopback_of_the_other_family(start_server: StartServer) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    server = start_server("ws://[::1]:0")
    assert server.url.startswith("ws://[::1]:")
    with server.connect() as client:
        client.call("environment/status")


@pytest.mark.statement("T2", "T3", "T5")
@pytest.mark.parametrize(
    "url",
    [
        "ws://localhost:0",
        "wss://127.0.0.1:0",
        "http://127.0.0.1:0",
        "ws://127.0.0.1",
        "ws://127.0.0.1:99999",
        "off",
        "",
        "stdio:",
        "ws://0.0.0.0:0",
        "ws://[::]:0",
    ],
)
def test_urls_that_are_refused(environment: dict[str, str], url: str) -> None:
    done = run("--listen", url, env=environment)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr


@pytest.mark.statement("T5")
def test_other_addresses_need_a_word(start_server: StartServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    for flags in (
        ("--allow-unauthenticated",),
        ("--ws-auth", "capability-token", "--ws-token-file", str(token)),
    ):
        assert start_server("ws://0.0.0.0:0", *flags).url.startswith("ws://0.0.0.0:")


@pytest.mark.statement("T4")
@pytest.mark.parametrize(
    "flags",
    [
        ("--no-such-flag",),
        ("--concurrent-requests", "0"),
        ("--concurrent-requests", "-1"),
        ("--concurrent-requests", "many"),
        ("--session-ttl", "soon"),
        ("--retained-output-bytes", "1.5"),
        ("--listen",),
    ],
)
def test_faults_in_the_command_line(environment: dict[str, str], flags: tuple[str, ...]) -> None:
    done = run("--listen", "stdio", *flags, env=environment)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr


@pytest.mark.statement("T1")
def test_address_in_use(start_server: StartServer) -> None:
    server = start_server("ws://127.0.0.1:0")
    with pytest.raises(StartError) as failed:
        Server(f"ws://127.0.0.1:{server.port}")
    assert failed.value.status == 1


# -- lines


@pytest.mark.transports("stdio", "unix")
@pytest.mark.statement("T10", "T11", "T12")
def test_line_ends_and_blank_lines(client: Client) -> None:
    client.call("environment/status")
    line = json.dumps(STATUS).encode()
    client.transport.send_bytes(b"\n   \n\r\n\t\n" + line + b"\r\n" + b"  " + line + b"  \n")
    assert client.reply(900) == READY
    assert client.reply(900) == READY
    assert all(b"\n" not in raw for raw in client.raw)
    assert client.raw[-1] in {
        b'{"id":900,"result":{"status":"ready"}}',
        b'{"result":{"status":"ready"},"id":900}',
    }


@pytest.mark.transports("stdio", "unix")
@pytest.mark.statement("T13")
def test_longest_line(client: Client) -> None:
    client.send_raw(padded_status(LINE))
    assert client.reply(900, 40) == READY
    before = len(client.received)
    with contextlib.suppress(OSError):
        client.send_raw(padded_status(LINE + 1))
    client.wait_end()
    assert len(client.received) == before


@pytest.mark.transports("stdio", "unix")
@pytest.mark.statement("T13", "T18")
def test_endless_line_ends_the_connection_at_the_limit(client: Client) -> None:
    before = len(client.received)
    with contextlib.suppress(OSError):
        for _ in range(LINE // (1 << 20) + 2):
            client.transport.send_bytes(b" x" * (1 << 19))
    client.wait_end()
    assert len(client.received) == before


@pytest.mark.transports("stdio", "unix")
@pytest.mark.statement("T14")
@pytest.mark.parametrize(
    "line", [b"\xff\xfe", b'{"id":1,"method":"\xc3\x28"}', b'{"id":1,"method":"\xed\xa0\x80"}']
)
def test_line_that_is_not_utf8_ends_the_connection(client: Client, line: bytes) -> None:
    before = len(client.received)
    client.transport.send_bytes(line + b"\n" + json.dumps(STATUS).encode() + b"\n")
    client.wait_end()
    assert len(client.received) == before


@pytest.mark.transports("stdio", "unix")
@pytest.mark.statement("T18")
def test_megabyte_without_a_newline_is_just_a_part(client: Client) -> None:
    message = padded_status(1 << 20)
    client.transport.send_bytes(message)
    client_before = len(client.received)
    client.transport.send_bytes(b"\n")
    assert client.reply(900) == READY
    assert len(client.received) == client_before + 1


@pytest.mark.transports("stdio", "unix")
@pytest.mark.statement("T18", "T10")
def test_pieces_of_every_size(client: Client) -> None:
    line = json.dumps({**STATUS, "padding": "ü€😀" * 20}, ensure_ascii=False).encode() + b"\n"
    for size in (1, 2, 3, 7, 64):
        for begin in range(0, len(line), size):
            client.transport.send_bytes(line[begin : begin + size])
        assert client.reply(900) == READY
    client.transport.send_bytes(line * 3)
    assert [client.reply(900) for _ in range(3)] == [READY] * 3


@pytest.mark.transports("stdio")
@pytest.mark.statement("T15", "T16")
def test_end_in_the_middle_of_a_line(client: Client) -> None:
    client.transport.send_bytes(b'{"id":1,"method":"environment/sta')
    client.close()
    assert client.stdio.process.returncode == 0


@pytest.mark.statement("T3", "T12", "T16")
@pytest.mark.parametrize("url", ["stdio", "stdio://"])
def test_both_spellings_of_stdio(environment: dict[str, str], url: str) -> None:
    done = subprocess.run(
        [*server_command(), "--listen", url],
        input=b"",
        capture_output=True,
        env=environment,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.statement("E31")
@pytest.mark.transports("stdio")
def test_fatal_input_ends_a_daemon_on_stdio(client: Client) -> None:
    client.start("/bin/cat", pipeStdin=True)
    client.notify("no/such/notification")
    client.close()
    assert client.stdio.process.returncode == 0


@pytest.mark.statement("T6")
@pytest.mark.transports("stdio")
def test_sigterm_on_stdio(client: Client) -> None:
    client.start("/bin/cat", pipeStdin=True)
    client.stdio.process.terminate()
    client.wait_end()
    client.close()
    assert client.stdio.process.returncode == 0


@pytest.mark.statement("T19", "S16")
def test_connections_that_end_badly_harm_no_other(endpoint: Endpoint) -> None:
    steady = endpoint.connect()
    process = steady.start("/bin/cat", pipeStdin=True)
    for number in range(20):
        client = endpoint.connect(handshake=bool(number % 2))
        assert isinstance(client.transport, SocketTransport)
        part = (
            WebSocketTransport.frame(1, b"x" * 100)[: number + 1]
            if isinstance(client.transport, WebSocketTransport)
            else b'{"id":1,"method":"process/start"'[: number + 1]
        )
        client.transport.send_bytes(part)
        if number % 3:
            client.transport.reset()
        client.close()
    process.write("steady", "1")
    process.wait_output(b"steady")


# -- HTTP


@pytest.fixture
def ws(shared_servers: Json) -> Server:
    """The shared WebSocket server."""
    server = shared_servers.get("ws")
    assert isinstance(server, Server)
    return server


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def upgrade(server: Server, path: str = "/", headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    try:
        connect_ws(server.url, headers, path).close()
    except UpgradeRefusedError as refused:
        return refused.status, refused.body
    return 101, b""


@pytest.mark.statement("T30")
def test_readyz(ws: Server) -> None:
    assert ask(ws, "/readyz") == (200, b"")
    assert ask(ws, "/readyz", "HEAD") == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(ws, "/readyz", method)[0] == 405


@pytest.mark.statement("T29")
def test_livez_and_metrics(ws: Server) -> None:
    assert ask(ws, "/livez") == (200, b"")
    status, page = ask(ws, "/metrics")
    assert status == 200
    assert b"execserver_requests_total" in page
    assert ask(ws, "/metrics", "HEAD") == (200, b"")
    assert ask(ws, "/metrics", "POST")[0] == 405


@pytest.mark.statement("T31", "T32")
def test_paths(ws: Server) -> None:
    for path in ("/healthz", "/x", "/readyz/", "/ws"):
        assert ask(ws, path)[0] == 404
        assert upgrade(ws, path)[0] in ({404} if path != "/readyz" else {200, 404})
    assert ask(ws, "/")[0] == 400
    assert upgrade(ws, "/") == (101, b"")
    assert upgrade(ws, "/?token=x&y") == (101, b"")


@pytest.mark.statement("T33")
@pytest.mark.parametrize("path", ["/", "/readyz", "/nowhere"])
def test_origin_is_refused_everywhere(ws: Server, path: str) -> None:
    for origin in ("http://127.0.0.1", "null", "https://evil.example"):
        assert ask(ws, path, Origin=origin) == (403, b"")
        assert upgrade(ws, path, {"Origin": origin}) == (403, b"")


@pytest.mark.statement("T34")
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example:1"])
def test_host_must_be_an_address(ws: Server, host: str) -> None:
    assert upgrade(ws, "/", {"Host": host})[0] == 403
    assert upgrade(ws, "/", {"Host": f"127.0.0.1:{ws.port}"})[0] == 101
    assert upgrade(ws, "/", {"Host": "[::1]:80"})[0] == 101


@pytest.mark.statement("T35")
def test_nothing_is_negotiated(ws: Server) -> None:
    request = (
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{ws.port}\r\nUpgrade: WebSocket\r\n"
        "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: a, b\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", ws.port), 20) as connection:
        connection.sendall(request.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(4096)
    head = answer.decode().lower()
    assert head.startswith("http/1.1 101")
    assert "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head
    assert "sec-websocket-protocol" not in head
    assert "sec-websocket-extensions" not in head


@pytest.mark.statement("T31", "T32")
@pytest.mark.parametrize(
    "missing", [{"Sec-WebSocket-Version": "8"}, {"Sec-WebSocket-Key": "short"}, {"Upgrade": "h2c"}]
)
def test_upgrades_that_are_none(ws: Server, missing: dict[str, str]) -> None:
    assert upgrade(ws, "/", missing)[0] in {400, 426}


@pytest.mark.statement("T19")
def test_garbage_instead_of_http(ws: Server) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00" + os.urandom(200), b"GET\r\n\r\n", b"x" * 200_000, b"\0" * 10):
        with (
            socket.create_connection(("127.0.0.1", ws.port), 20) as connection,
            contextlib.suppress(OSError),
        ):
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert ask(ws, "/readyz") == (200, b"")


# -- WebSocket messages


ws_only = pytest.mark.transports("ws")


@ws_only
@pytest.mark.statement("T36")
def test_text_and_binary_messages(client: Client) -> None:
    payload = json.dumps(STATUS).encode()
    for opcode in (WebSocketTransport.TEXT, WebSocketTransport.BINARY):
        client.websocket.send_frame(opcode, payload)
        assert client.reply(900) == READY
    assert client.websocket.opcodes == {WebSocketTransport.TEXT}


@ws_only
@pytest.mark.statement("T36", "T39")
def test_fragments_with_a_ping_between_them(client: Client) -> None:
    payload = json.dumps(STATUS).encode()
    websocket = client.websocket
    websocket.send_frame(websocket.TEXT, payload[:5], fin=False)
    websocket.send_frame(websocket.PING, b"between")
    for byte in payload[5:-1]:
        websocket.send_frame(0, bytes([byte]), fin=False)
    websocket.send_frame(0, b"", fin=False)
    websocket.send_frame(0, payload[-1:])
    assert client.reply(900) == READY
    assert list(websocket.pongs) == [b"between"]


@ws_only
@pytest.mark.statement("T39")
@pytest.mark.parametrize("payload", [b"", b"abc", b"x" * 125])
def test_ping_is_answered(client: Client, payload: bytes) -> None:
    client.websocket.send_frame(WebSocketTransport.PING, payload)
    client.call("environment/status")
    client.call("environment/status")
    assert list(client.websocket.pongs) == [payload]


@ws_only
@pytest.mark.statement("T37", "E20")
def test_empty_message_is_a_parse_error(client: Client) -> None:
    for payload in (b"", b"  ", b"\n"):
        client.send_raw(payload)
        assert client.failure(-1).code == -32600
    client.call("environment/status")


def send_in_frames(client: Client, payload: bytes, count: int) -> None:
    """One message in so many frames. The server may hang up on the way."""
    size = -(-len(payload) // count)
    with contextlib.suppress(OSError):
        for index in range(count):
            part = payload[index * size : (index + 1) * size]
            client.websocket.send_frame(0 if index else 1, part, fin=index == count - 1)


@ws_only
@pytest.mark.statement("T38")
@pytest.mark.parametrize(("size", "frames"), [(FRAME, 1), (FRAME + 1, 2), (LINE, 4), (LINE, 64)])
def test_largest_frame_and_message(client: Client, size: int, frames: int) -> None:
    send_in_frames(client, padded_status(size), frames)
    assert client.reply(900, 40) == READY


@ws_only
@pytest.mark.statement("T38")
@pytest.mark.parametrize(("size", "frames"), [(FRAME + 1, 1), (LINE + 1, 5)])
def test_message_that_is_too_large_ends_the_connection(client: Client, size: int, frames: int) -> None:
    before = len(client.received)
    send_in_frames(client, padded_status(size), frames)
    client.wait_end()
    assert len(client.received) == before


@ws_only
@pytest.mark.statement("T38", "T19")
def test_announced_size_is_not_believed(endpoint: Endpoint) -> None:
    client = endpoint.connect()
    client.transport.send_bytes(b"\x81\xff" + (2**62).to_bytes(8, "big") + b"mask" + b"data")
    client.wait_end()
    endpoint.connect().call("environment/status")


@ws_only
@pytest.mark.statement("T41")
def test_large_reply_comes_in_fragments(client: Client, here: Path) -> None:
    content = random.Random(1).randbytes(20 << 20)
    (here / "big").write_bytes(content)
    data = client.call("fs/readFile", {"path": path_uri(here / "big")}, 40)["dataBase64"]
    assert data == encode(content)
    assert client.websocket.largest_frame <= FRAME


@ws_only
@pytest.mark.statement("T42")
def test_reply_that_no_client_takes_is_an_error(client: Client, here: Path) -> None:
    with (here / "huge").open("wb") as file:
        file.truncate(60 << 20)
    failure = client.refused("fs/readFile", {"path": path_uri(here / "huge")}, 40)
    assert failure.code == -32600
    assert "fs/open" in failure.message
    assert "fs/readBlock" in failure.message
    client.call("environment/status")


@ws_only
@pytest.mark.statement("T43")
@pytest.mark.parametrize("opcode", [WebSocketTransport.BINARY, WebSocketTransport.TEXT])
def test_bytes_that_are_not_utf8_are_a_parse_error(client: Client, opcode: int) -> None:
    if opcode == WebSocketTransport.TEXT:
        # RFC 6455 lets a server end the connection for this; both are taken.
        client.websocket.send_frame(opcode, b'{"id":1,"method":"\xff"}')
        client.wait_until(lambda: client.answered(-1) or client.ended)
        return
    client.websocket.send_frame(opcode, b'{"id":1,"method":"\xff"}')
    assert client.failure(-1).code == -32600
    client.call("environment/status")


@ws_only
@pytest.mark.statement("T45")
@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x02{}",
        WebSocketTransport.frame(3, b"x"),
        WebSocketTransport.frame(11, b"x"),
        WebSocketTransport.frame(0, b"x"),
        WebSocketTransport.frame(9, b"x", fin=False),
        WebSocketTransport.frame(9, b"x" * 126),
        WebSocketTransport.frame(1, b"{", fin=False) + WebSocketTransport.frame(1, b"}"),
        b"\xc1" + WebSocketTransport.frame(1, b"{}")[1:],
    ],
    ids=["unmasked", "data3", "control11", "continuation", "fin", "long", "interleaved", "rsv"],
)
def test_frames_against_the_rules_end_the_connection(client: Client, data: bytes) -> None:
    client.transport.send_bytes(data)
    client.wait_end()


# -- authentication

SECRET = b"0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def auth_servers(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """A server for each way of authenticating."""
    folder = tmp_path_factory.mktemp("auth")
    (folder / "token").write_text("  s3cret\n")
    (folder / "secret").write_bytes(SECRET + b"\n")
    digest = hashlib.sha256(b"s3cret").hexdigest()
    jwt = ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", str(folder / "secret"))
    flags: dict[str, tuple[str, ...]] = {
        "token": ("--ws-auth", "capability-token", "--ws-token-file", str(folder / "token")),
        "digest": ("--ws-auth", "capability-token", "--ws-token-sha256", digest),
        "jwt": jwt,
        "claims": (*jwt, "--ws-issuer", "iss", "--ws-audience", "aud", "--ws-max-clock-skew-seconds", "15"),
    }
    servers = {name: Server("ws://127.0.0.1:0", *given, env=environment) for name, given in flags.items()}
    yield servers
    assert [server.stop() for server in servers.values()] == [0] * len(servers)


@pytest.mark.statement("T50", "T51")
@pytest.mark.parametrize("mode", ["token", "digest"])
@pytest.mark.parametrize(
    ("authorization", "status", "text"),
    [
        (None, 401, b"missing websocket bearer token"),
        ("Bearer nope", 401, b"invalid websocket bearer token"),
        ("Bearer s3cretx", 401, b"invalid websocket bearer token"),
        ("Basic s3cret", 401, b"invalid authorization header"),
        ("s3cret", 401, b"invalid authorization header"),
        ("Bearer", 401, b"invalid authorization header"),
        ("Bearer   ", 401, b"invalid authorization header"),
        ("Bearer s3cret", 101, b""),
        ("bearer s3cret", 101, b""),
        ("BEARER   s3cret", 101, b""),
    ],
)
def test_capability_token(
    auth_servers: dict[str, Server], mode: str, authorization: str | None, status: int, text: bytes
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    assert upgrade(auth_servers[mode], "/", headers) == (status, text)


@pytest.mark.statement("T50", "T30", "T33")
def test_what_comes_before_the_token(auth_servers: dict[str, Server]) -> None:
    server = auth_servers["token"]
    assert ask(server, "/readyz") == (200, b"")
    credentials = {"Authorization": "Bearer s3cret"}
    assert upgrade(server, "/", {**credentials, "Origin": "http://x"}) == (403, b"")
    with pytest.raises(UpgradeRefusedError) as refused:
        connect_ws(server.url)
    assert refused.value.headers["content-type"] == "text/plain; charset=utf-8"
    with server.connect(credentials) as client:
        assert client.shell("echo in").wait_closed().output == b"in\n"


def sign(claims: Json, secret: bytes = SECRET, algorithm: str = "HS256") -> str:
    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    header = json.dumps({"alg": algorithm, "typ": "JWT"}).encode()
    signed = part(header) + b"." + part(json.dumps(claims).encode())
    return (signed + b"." + part(hmac.digest(secret, signed, "sha256"))).decode()


def claims(**changes: Json) -> dict[str, Json]:
    """Good claims, changed; null takes one away. `exp` and `nbf` are relative to now."""
    whole = {"exp": 60, "iss": "iss", "aud": "aud", **changes}
    now = int(time.time())
    return {
        name: value + now if name in {"exp", "nbf"} and isinstance(value, int) else value
        for name, value in whole.items()
        if value is not None
    }


@pytest.mark.statement("T50", "T52", "T53")
@pytest.mark.parametrize(
    ("server", "token", "text"),
    [
        ("claims", lambda: sign(claims()), b""),
        ("claims", lambda: sign(claims(aud=["other", "aud"])), b""),
        ("claims", lambda: sign(claims(exp=-2)), b""),
        ("claims", lambda: sign(claims(nbf=2)), b""),
        ("claims", lambda: sign(claims(exp=-20)), b"expired websocket jwt"),
        ("claims", lambda: sign(claims(nbf=40)), b"websocket jwt is not valid yet"),
        ("claims", lambda: sign(claims(exp=None)), b"invalid websocket jwt"),
        ("claims", lambda: sign(claims(iss="other")), b"websocket jwt issuer mismatch"),
        ("claims", lambda: sign(claims(iss=None)), b"websocket jwt issuer mismatch"),
        ("claims", lambda: sign(claims(aud="other")), b"websocket jwt audience mismatch"),
        ("claims", lambda: sign(claims(aud=None)), b"websocket jwt audience mismatch"),
        ("claims", lambda: sign(claims(aud=["a", "b"])), b"websocket jwt audience mismatch"),
        ("claims", lambda: sign(claims(), secret=b"x" * 32), b"invalid websocket jwt"),
        ("claims", lambda: sign(claims(), algorithm="HS512"), b"invalid websocket jwt"),
        ("claims", lambda: sign(claims(), algorithm="none"), b"invalid websocket jwt"),
        ("claims", lambda: "a.b.c", b"invalid websocket jwt"),
        ("claims", lambda: "nonsense", b"invalid websocket jwt"),
        ("jwt", lambda: sign(claims(iss="anybody", aud="anything")), b""),
        ("jwt", lambda: sign(claims(iss=None, aud=None)), b""),
        ("jwt", lambda: sign(claims(exp=-25)), b""),
        ("jwt", lambda: sign(claims(exp=-40)), b"expired websocket jwt"),
    ],
)
def test_signed_token(
    auth_servers: dict[str, Server], server: str, token: Callable[[], str], text: bytes
) -> None:
    outcome = upgrade(auth_servers[server], "/", {"Authorization": f"Bearer {token()}"})
    assert outcome == (401 if text else 101, text)


@pytest.mark.statement("T54")
def test_authentication_flags_that_make_no_sense(environment: dict[str, str], tmp_path: Path) -> None:
    token, empty, short = tmp_path / "token", tmp_path / "empty", tmp_path / "short"
    token.write_text("t" * 40)
    empty.write_text(" \n")
    short.write_text("x" * 31)
    guessed = tmp_path / "guessed"
    guessed.write_text("x" * 5)
    capability = ("--ws-auth", "capability-token")
    signed = ("--ws-auth", "signed-bearer-token")
    digest = hashlib.sha256(b"x").hexdigest()
    websocket = ("--listen", "ws://127.0.0.1:0")
    for flags in (
        ("--listen", "stdio", *capability, "--ws-token-file", str(token)),
        (*websocket, *capability),
        (*websocket, *capability, "--ws-token-file", str(tmp_path / "missing")),
        (*websocket, *capability, "--ws-token-file", str(empty)),
        (*websocket, *capability, "--ws-token-file", str(guessed)),
        (*websocket, *capability, "--ws-token-file", str(token), "--ws-token-sha256", digest),
        (*websocket, *capability, "--ws-token-sha256", "not a digest"),
        (*websocket, *capability, "--ws-token-file", str(token), "--ws-issuer", "i"),
        (*websocket, *signed),
        (*websocket, *signed, "--ws-shared-secret-file", str(short)),
        (*websocket, *signed, "--ws-shared-secret-file", str(token), "--ws-token-file", str(token)),
        (*websocket, "--ws-token-file", str(token)),
    ):
        done = run(*flags, env=environment)
        assert (done.returncode, done.stdout) == (1, b""), flags
        assert done.stderr


@pytest.mark.statement("T55")
@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o602])
@pytest.mark.parametrize(
    "flags",
    [
        ("--ws-auth", "capability-token", "--ws-token-file"),
        ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file"),
    ],
)
def test_a_credential_that_other_users_can_read_or_write_ends_the_start(
    environment: dict[str, str], mode: int, flags: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as name:  # others can enter it, as they cannot pytest's own folders
        os.chmod(name, 0o755)
        file = Path(name, "secret")
        file.write_text("t" * 40)
        file.chmod(mode)
        done = run("--listen", "ws://127.0.0.1:0", *flags, str(file), env=environment)
        assert (done.returncode, done.stdout) == (1, b"")
        assert re.search(rf"{flags[-1]} .*\(mode {mode:04o}\): chmod 600 {file}", done.stderr.decode())


# -- the test client itself


def test_spawned_server_has_its_flags_and_environment(environment: dict[str, str], tmp_path: Path) -> None:
    """`spawn_stdio` passes flags, environment and working directory on."""
    client = spawn_stdio(["--concurrent-requests", "2"], {**environment, "MARK": "1"}, tmp_path)
    with client:
        info = client.handshake().initialized["environmentInfo"]
        assert info["cwd"] == path_uri(tmp_path.resolve())
    assert client.stdio.process.returncode == 0


ASKING = """
import socket, sys
unix = not sys.argv[1].isdigit()
asking = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
asking.connect(sys.argv[1] if unix else ("127.0.0.1", int(sys.argv[1])))
asking.sendall(sys.argv[2].encode())
print(asking.recv(4096).decode())
"""

NAMESPACES = {
    "none": [],
    "user": ["unshare", "--user"],
    "pid": ["unshare", "--user", "--map-current-user", "--pid", "--fork"],
}


@pytest.mark.statement("T46")
@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("kind", ["unix", "ws"])
def test_a_process_in_other_namespaces_is_no_client(
    start_server: StartServer, tmp_path: Path, kind: str, namespace: str
) -> None:
    server = start_server(f"unix://{tmp_path}/socket" if kind == "unix" else "ws://127.0.0.1:0")
    address = str(server.port) if kind == "ws" else f"{tmp_path}/socket"

    def answer(path: str) -> str:
        said = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        argv = [*NAMESPACES[namespace], sys.executable, "-c", ASKING, address, said]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20).stdout

    if namespace == "none":
        assert answer("/livez").startswith("HTTP/1.1 200 ")
    elif kind == "unix":
        assert not answer("/livez").startswith("HTTP/1.1 ")
        assert server.logs("in a sandbox or a container")
    else:
        assert answer("/livez").startswith("HTTP/1.1 403 ")
        assert "--ws-auth" in answer("/metrics")
        assert answer("/readyz").startswith("HTTP/1.1 200 ")


def test_a_daemon_in_a_user_namespace_serves_its_user_outside(
    environment: dict[str, str], tmp_path: Path
) -> None:
    prefix = ["unshare", "--user", "--map-root-user"]
    with (
        Server(f"unix://{tmp_path}/socket", env=environment, cwd=tmp_path, prefix=prefix) as server,
        server.connect() as client,
    ):
        assert client.shell("echo hello").wait_closed().output == b"hello\n"
