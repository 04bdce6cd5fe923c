"""Listeners: what the first bytes decide, HTTP answers, strangers, a full descriptor table."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from execserver.transports.authentication import MISSING, CapabilityToken
from execserver.transports.http_upgrade import MAX_HEAD_BYTES
from tests.integration.transports.conftest import MakeServer
from tests.integration.transports.peers import PATIENCE, UPGRADE, Peer, Server, WebSocketPeer, request

HOST = UPGRADE[0]


def answer(server: Server, data: bytes) -> bytes:
    """All that a fresh connection says to these bytes."""
    peer = server.dial()
    peer.write(data)
    with suppress(ConnectionResetError):
        while peer.fill():
            pass
    peer.close()
    return bytes(peer.buffer)


def test_ready_is_answered_to_get_and_head_only(make_server: MakeServer) -> None:
    server = make_server("ws")

    for method in ("GET", "HEAD"):
        text = answer(server, request(f"{method} /readyz HTTP/1.1", HOST))
        assert text == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    assert answer(server, request("POST /readyz HTTP/1.1", HOST)).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("transport", ["ws", "ws+unix"])
def test_a_body_of_a_refused_request_does_not_swallow_the_answer(
    make_server: MakeServer, transport: str
) -> None:
    server = make_server(transport)
    body = b"x" * 300_000

    text = answer(server, request("POST /x HTTP/1.1", HOST, f"Content-Length: {len(body)}") + body)

    assert text.startswith(b"HTTP/1.1 404 ")


def test_an_upgrade_without_credentials_is_told_why(make_server: MakeServer) -> None:
    server = make_server("ws", authenticator=CapabilityToken(bytes(32)))

    text = answer(server, request("GET / HTTP/1.1", *UPGRADE))

    assert text.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert b"content-type: text/plain; charset=utf-8\r\n" in text
    assert text.endswith(b"\r\n\r\n" + MISSING.encode())
    assert not server.handlers


def test_a_head_above_16_kib_is_refused(make_server: MakeServer) -> None:
    server = make_server("ws")
    line = f"X-Long: {'x' * MAX_HEAD_BYTES}"

    assert answer(server, request("GET / HTTP/1.1", line)).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("data", [b'{"id":1}\n', b"\x16\x03\x01", b"  [", b"get / http\r\n"])
def test_on_tcp_what_does_not_begin_like_http_is_a_bad_request(make_server: MakeServer, data: bytes) -> None:
    assert answer(make_server("ws"), data).startswith(b"HTTP/1.1 400 ")


def test_garbage_that_begins_like_http_is_a_bad_request(make_server: MakeServer) -> None:
    server = make_server("ws")

    assert answer(server, b"GARBAGE\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert answer(server, request("GET / HTTP/1.1", "no colon")).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("data", [b"", b"GET / HT"])
def test_on_tcp_a_peer_that_does_not_finish_its_head_is_dropped(make_server: MakeServer, data: bytes) -> None:
    server = make_server("ws", accept_seconds=0.1)

    assert answer(server, data) == b""


def test_on_unix_a_silent_peer_is_waited_for_but_half_a_head_is_not(make_server: MakeServer) -> None:
    server = make_server("unix", accept_seconds=0.1)
    patient = server.dial()
    patient.write(b"\n  ")

    assert answer(server, b"GET / HT") == b""  # takes longer than the guard

    patient.write(b'{"id":1}\n')
    assert patient.receive() == b'{"id":1}'


@pytest.mark.parametrize("line", [b'{"id":1}', b"[1]", b'"text"', b"17", b"not json", b"\xef\xbb\xbf{}"])
def test_on_unix_what_does_not_begin_like_http_is_newline_json(make_server: MakeServer, line: bytes) -> None:
    server = make_server("unix")
    peer = server.dial()

    peer.write(b"\r\n " + line + b"\n{2}\n")

    assert [peer.receive(), peer.receive()] == [line, b"{2}"]
    assert server.handler().channel.peer == f"unix:pid={os.getpid()}"


def test_websocket_and_newline_share_a_unix_socket(make_server: MakeServer) -> None:
    server = make_server("unix")
    newline, dialled = server.connect(), server.dial()
    upgraded = WebSocketPeer(dialled.fd_in, dialled.fd_out, dialled.close, dialled.end_output)
    upgraded.upgrade("Host: any.name.will.do")

    for peer in (newline, upgraded):
        peer.send(b"{}")
        assert peer.receive() == b"{}"


def test_a_head_in_single_bytes_is_understood(make_server: MakeServer) -> None:
    peer = make_server("ws").dial()

    for byte in request("GET /?query=ignored HTTP/1.1", *UPGRADE):
        peer.write(bytes((byte,)))

    assert isinstance(peer, WebSocketPeer)
    assert peer.head().startswith(b"HTTP/1.1 101 ")


def test_a_peer_of_another_user_is_refused(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make_server("unix")
    monkeypatch.setattr("execserver.local_peers.os.geteuid", lambda: os.getuid() + 1)

    assert answer(server, b"") == b""
    assert not server.handlers


def test_a_reset_before_the_protocol_is_known_or_after_a_refusal_is_no_error(make_server: MakeServer) -> None:
    server = make_server("ws")

    for data in (b"", b"GET / HT", request("GET /x HTTP/1.1", HOST)):
        peer = server.dial()
        peer.write(data)
        with socket.socket(fileno=socket.dup(peer.fd_in)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    assert answer(server, request("GET /readyz HTTP/1.1", HOST)).startswith(b"HTTP/1.1 200 ")


DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(30):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
kind = sys.argv[2]
opened = os.open(".", os.O_RDONLY) if kind == "folder" else os.open("file", os.O_CREAT | os.O_RDWR)
if kind == "removed file":
    os.unlink("file")
if kind == "working folder":
    os.close(opened)
print("ready", flush=True)
sys.stdin.read()
"""
"""Holds a path that is longer than the kernel shows in /proc."""


@pytest.mark.parametrize("kind", ["file", "folder", "removed file", "working folder"])
def test_a_process_with_a_very_long_path_keeps_no_websocket_out(
    make_server: MakeServer, tmp_path: Path, kind: str
) -> None:
    server = make_server("ws")
    command = [sys.executable, "-c", DEEP, str(tmp_path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"

        peer = server.connect()

        peer.send(b"here")
        assert peer.receive() == b"here"


FULL_TABLE = """
import asyncio, os, resource, socket, sys, time
import structlog, uvloop
from execserver.transports.authentication import NoAuthentication
from execserver.transports.listener import serve_socket
from tests.integration.transports.peers import Recorder

async def main():
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(sys.argv[1])
    sock.listen(64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    await serve_socket(sock, "unix", Recorder, NoAuthentication(), [])
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(time.process_time(), flush=True)

uvloop.run(main())
"""


def test_a_full_descriptor_table_stops_neither_the_listener_nor_the_processor(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    server = subprocess.Popen(
        [sys.executable, "-c", FULL_TABLE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    dialled = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    for sock in dialled:
        sock.connect(path)
        sock.send(b"{}\n")
        sock.settimeout(PATIENCE)
    assert dialled[0].recv(3) == b"{}\n"
    time.sleep(1.2)  # long enough to see a spin, and for two retries

    for sock in dialled[:30]:
        sock.close()

    assert all(sock.recv(3) == b"{}\n" for sock in dialled[30:])
    for sock in dialled[30:]:
        sock.close()
    output, errors = server.communicate(timeout=PATIENCE)
    assert float(output) < 1.0, "processor seconds, imports included"
    assert 2 <= errors.count("accept failed") <= 8, errors
    assert server.returncode == 0


def test_unix_peers_may_shut_down_their_side_and_still_read(make_server: MakeServer) -> None:
    peer = make_server("unix").dial()

    peer.write(b"{1}\n{2}\n")
    peer.end_output()

    assert isinstance(peer, Peer)
    assert [peer.receive(), peer.receive()] == [b"{1}", b"{2}"]
