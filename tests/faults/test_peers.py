"""Peers that send half of something, too much, or nothing, and go."""

from __future__ import annotations

import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.faults.service import MIB, Serve, Service, children, eventually, latency
from tests.support.noise import Noise
from tests.support.wire import (
    PATIENCE,
    Client,
    ReplyError,
    SocketTransport,
    UpgradeRefusedError,
    WebSocketTransport,
    connect_ws,
)

STATUS = b'{"id":1,"method":"environment/status"}'
SETTLE_SECONDS = 8.0
MOST_GROWTH_MIB = 24


def framed(transport: str, message: bytes) -> bytes:
    """The bytes of one message."""
    return (
        message + b"\n" if transport == "unix" else WebSocketTransport.frame(WebSocketTransport.TEXT, message)
    )


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    """Closes what a test opened."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.over("unix", "ws")
def test_connections_cut_at_every_byte_of_a_message_leave_nothing(transport: str, serve: Serve) -> None:
    service = serve(transport)
    witness = service.connect()
    service.settle()
    before = service.descriptors
    message = framed(transport, STATUS)
    for length in range(len(message)):
        peer = service.open()
        peer.send_bytes(message[:length])
        peer.close()
    assert eventually(lambda: service.descriptors <= before, SETTLE_SECONDS)
    assert witness.call("environment/status") == {"status": "ready"}


@pytest.mark.over("unix", "ws")
def test_half_of_a_large_message_is_forgotten_with_its_connection(transport: str, serve: Serve) -> None:
    service = serve(transport)
    witness = service.connect()
    service.settle()
    descriptors, before = service.descriptors, service.resident
    part = framed(transport, bytes(8 * MIB))[: 8 * MIB - 5]
    for _ in range(24):
        peer = service.open()
        peer.send_bytes(part)
        peer.close()
        assert eventually(lambda: service.descriptors <= descriptors, SETTLE_SECONDS)
    assert witness.call("environment/status") == {"status": "ready"}
    assert service.resident - before <= MOST_GROWTH_MIB


@pytest.mark.over("unix", "ws")
def test_half_of_a_message_and_silence_costs_no_time(
    transport: str, serve: Serve, sockets: ExitStack
) -> None:
    service = serve(transport)
    witness = service.connect()
    for _ in range(5):
        peer = service.open()
        sockets.callback(peer.close)
        peer.send_bytes(framed(transport, bytes(MIB))[:-10])
    witness.call("environment/status")
    service.settle()
    before, until = service.cpu_seconds, time.monotonic() + 0.7
    while time.monotonic() < until:
        time.sleep(0.05)
    assert service.cpu_seconds - before < 0.1


@pytest.mark.over("stdio", "unix")
def test_a_line_of_64_mib_is_served_and_one_byte_more_ends_the_connection(
    transport: str, serve: Serve
) -> None:
    service = serve(transport)
    client = service.connect()
    client.send_raw(_padded(64 * MIB))
    assert client.result("padded") == {"status": "ready"}
    _send_until_refused(client, _padded(64 * MIB + 1))
    client.wait_end()
    if transport == "unix":
        assert service.connect().call("environment/status") == {"status": "ready"}
    else:
        assert service.process.wait(5) == 0


def test_a_frame_of_16_mib_is_served_and_one_byte_more_ends_the_connection(serve: Serve) -> None:
    service = serve("ws")
    client = service.connect()
    client.send_raw(_padded(16 * MIB))
    assert client.result("padded") == {"status": "ready"}
    _send_until_refused(client, _padded(16 * MIB + 1))
    client.wait_end()
    assert service.connect().call("environment/status") == {"status": "ready"}


def _padded(size: int) -> bytes:
    head, tail = b'{"id":"padded","method":"environment/status","padding":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def _send_until_refused(client: Client, message: bytes) -> None:
    try:
        client.send_raw(message)
    except OSError:
        return  # dropped before all of it was sent


def test_a_browser_is_refused(serve: Serve) -> None:
    service = serve("ws")
    for origin in ("https://example.com", "null", f"http://127.0.0.1:{service.url.rpartition(':')[2]}"):
        with pytest.raises(UpgradeRefusedError) as refusal:
            connect_ws(service.url, {"Origin": origin})
        assert (refusal.value.status, refusal.value.body) == (403, b"")


@pytest.mark.over("ws")
def test_slow_http_heads_are_dropped(transport: str, serve: Serve, sockets: ExitStack) -> None:
    service = serve(transport)
    witness = service.connect()
    service.settle()
    before = service.descriptors
    peers = [sockets.enter_context(service.socket()) for _ in range(100)]
    for peer in peers:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: ")
    until = time.monotonic() + PATIENCE
    while service.descriptors > before and time.monotonic() < until:
        for peer in peers:
            _drip(peer)
        witness.call("environment/status")
        time.sleep(0.1)
    assert service.descriptors <= before


def _drip(peer: socket.socket) -> None:
    try:
        peer.send(b"x")
    except OSError:
        return  # dropped, as it should be


@pytest.mark.over("unix", "ws")
@pytest.mark.parametrize("farewell", ["close", "reset"])
def test_a_thousand_connections_opened_and_dropped_leave_nothing(
    transport: str, farewell: str, serve: Serve, sockets: ExitStack, noise: Noise
) -> None:
    service = serve(transport)
    witness = service.connect()
    service.settle()
    before = service.descriptors
    peers = [sockets.enter_context(service.socket()) for _ in range(1000)]
    assert latency(service, partial(witness.call, "environment/status")) < 0.5 + noise.allowance
    for peer in peers:
        if farewell == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    assert eventually(lambda: service.descriptors <= before, SETTLE_SECONDS)


def silence(transport: str) -> bytes:
    """More than the server reads at a time, and no message that has an answer."""
    if transport == "unix":
        return b" " * 150_000
    return WebSocketTransport.frame(WebSocketTransport.PONG, bytes(125)) * 1200


def unread_session(peer: SocketTransport) -> str:
    """The session of a new connection, whose answer stays unread."""
    peer.send_message(b'{"id":1,"method":"initialize","params":{"clientName":"tests"}}')
    peer.socket.settimeout(PATIENCE)
    while True:
        found = re.search(rb'"sessionId":"([^"]+)"', peer.socket.recv(1 << 16, socket.MSG_PEEK))
        if found is not None:
            return found[1].decode()


def resumes(service: Service, session: str) -> bool:
    client = service.connect(handshake=False)
    try:
        client.handshake(session)
    except ReplyError:
        return False
    finally:
        client.close()
    return True


@pytest.mark.over("unix", "ws")
@pytest.mark.parametrize("farewell", ["close", "reset"])
@pytest.mark.parametrize("rest", [False, True])
def test_a_peer_that_ends_with_its_answer_unread_frees_its_session(
    transport: str, serve: Serve, farewell: str, rest: bool
) -> None:
    service = serve(transport)
    for _ in range(3):
        peer = service.open()
        assert isinstance(peer, SocketTransport)
        session = unread_session(peer)
        service.signal_server(signal.SIGSTOP)
        if rest:
            peer.socket.setblocking(False)
            assert peer.socket.send(silence(transport)) > 1 << 16
        getattr(peer, farewell)()
        service.signal_server(signal.SIGCONT)
        assert eventually(partial(resumes, service, session), SETTLE_SECONDS)


@pytest.mark.over("unix", "ws")
def test_cuts_while_requests_are_under_way_leave_nothing(transport: str, serve: Serve) -> None:
    service = serve(transport, "--session-ttl", "1")
    witness = service.connect()
    service.settle()
    before = service.descriptors
    for _ in range(20):
        client = service.connect()
        sleeper = client.start("/bin/sleep", "600", pipeStdin=True)
        wait = {"processId": sleeper.id, "afterSeq": 0, "waitMs": 60_000}
        requests = [("process/read", wait), ("fs/readFile", {"path": "file:///etc/passwd"})] * 20
        starts = [("process/start", client.start_params(["/bin/sleep", "600"])) for _ in range(6)]
        client.pipeline(*requests, *starts, *requests)
        client.close()
    assert eventually(lambda: service.descriptors <= before, 2 * SETTLE_SECONDS)
    assert witness.call("environment/status") == {"status": "ready"}
    _assert_no_children(service)


def _assert_no_children(service: Service) -> None:
    assert eventually(lambda: children(service.server_pid) == [], SETTLE_SECONDS)
