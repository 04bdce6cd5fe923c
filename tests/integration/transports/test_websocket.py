"""WebSocket: limits, fragments, control frames, half-open peers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from execprotocol.limits import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_WEBSOCKET_REPLY_BYTES,
    WEBSOCKET_FRAGMENT_BYTES,
)
from tests.integration.transports.conftest import MakeServer
from tests.integration.transports.peers import PATIENCE, UPGRADE, Recorder, Server, WebSocketPeer, request

TEXT, BINARY, CLOSE, PING, PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
CONTINUED, LAST = 0x00, 0x80


@pytest.fixture(params=["ws", "ws+unix"])
def server(request: pytest.FixtureRequest, make_server: MakeServer) -> Server:
    return make_server(request.param)


@pytest.fixture
def peer(server: Server) -> WebSocketPeer:
    return connect(server)


def connect(server: Server) -> WebSocketPeer:
    peer = server.connect()
    assert isinstance(peer, WebSocketPeer)
    return peer


def length(handler: Recorder, message: bytes) -> None:
    handler.channel.send([b"%d" % len(message)])


def test_a_frame_of_16_mib_is_served_and_one_byte_more_drops_the_socket(server: Server) -> None:
    server.answers = length
    peer = connect(server)

    peer.send(b"x" * MAX_FRAME_BYTES)
    assert peer.receive() == b"%d" % MAX_FRAME_BYTES

    peer.write(peer.frame(b"x" * (MAX_FRAME_BYTES + 1))[:4096])  # its head is enough
    assert peer.ended()
    assert len(server.handler().messages) == 1


def test_64_mib_in_fragments_are_served_and_one_byte_more_drops_the_socket(server: Server) -> None:
    server.answers = length
    peer = connect(server)
    half = b"x" * (MAX_MESSAGE_BYTES // 2)

    def send_half(last: bool) -> None:
        for start in range(0, len(half), MAX_FRAME_BYTES):
            opcode = 0x01 if not last and not start else CONTINUED
            ends = last and start + MAX_FRAME_BYTES >= len(half)
            peer.write(peer.frame(half[start : start + MAX_FRAME_BYTES], opcode | (LAST if ends else 0)))

    send_half(last=False)
    peer.write(peer.frame(b"", CONTINUED))
    send_half(last=True)
    assert peer.receive() == b"%d" % MAX_MESSAGE_BYTES

    send_half(last=False)
    for start in range(0, len(half), MAX_FRAME_BYTES):
        peer.write(peer.frame(half[start : start + MAX_FRAME_BYTES], CONTINUED))
    peer.write(peer.frame(b"x", LAST))
    assert peer.ended()
    assert len(server.handler().messages) == 1


def test_text_binary_and_masked_messages_are_the_same(server: Server, peer: WebSocketPeer) -> None:
    peer.mask = b"\x01\x80\xff\x37"
    message = bytes(range(256)) * 600

    for opcode in (TEXT, BINARY):
        peer.write(peer.frame(message, opcode))
        assert peer.receive() == message


def test_an_empty_message_is_a_message(server: Server, peer: WebSocketPeer) -> None:
    peer.send(b"")

    assert peer.receive_frame() == (TEXT, b"")
    assert server.handler().messages == [b""]


def test_fragments_with_a_ping_between_make_one_message(server: Server, peer: WebSocketPeer) -> None:
    peer.write(peer.frame(b"{", 0x02) + peer.frame(b"now", PING) + peer.frame(b"}", LAST))

    assert peer.receive_frame() == (PONG, b"now")
    assert peer.receive() == b"{}"


@pytest.mark.parametrize("size", [125, 126, 65_535, 65_536, WEBSOCKET_FRAGMENT_BYTES])
def test_a_reply_up_to_1_mib_is_one_text_frame(server: Server, peer: WebSocketPeer, size: int) -> None:
    peer.send(b"x" * size)

    assert peer.receive_frame() == (TEXT, b"x" * size)


def test_a_reply_of_19_mb_is_sent_in_fragments_of_1_mib(server: Server) -> None:
    reply = [b"a" * 1000, b"b" * 19_000_000, b"c" * 5]
    server.answers = lambda handler, _: handler.channel.send(reply)
    peer = connect(server)
    peer.send(b"{}")

    frames = [peer.receive_frame()]
    while not frames[-1][0] & LAST:
        frames.append(peer.receive_frame())

    assert [opcode for opcode, _ in frames] == [0x01, *[CONTINUED] * 17, LAST]
    assert {len(payload) for _, payload in frames[:-1]} == {WEBSOCKET_FRAGMENT_BYTES}
    assert b"".join(payload for _, payload in frames) == b"".join(reply)


def test_a_stream_is_one_fragmented_message(server: Server) -> None:
    async def stream(handler: Recorder) -> None:
        out = handler.channel.open_stream(65 << 20)
        for piece in (b"[", b"x" * 1_500_000, b"", b"y"):
            await out.write(piece)
        await out.close(b"]")

    tasks = []
    server.answers = lambda handler, _: tasks.append(asyncio.ensure_future(stream(handler)))
    peer = connect(server)
    peer.send(b"{}")

    frames = [peer.receive_frame()]
    while not frames[-1][0] & LAST:
        frames.append(peer.receive_frame())

    assert [opcode for opcode, _ in frames] == [0x01, *[CONTINUED] * (len(frames) - 2), LAST]
    assert max(len(payload) for _, payload in frames) == WEBSOCKET_FRAGMENT_BYTES
    assert b"".join(payload for _, payload in frames) == b"[" + b"x" * 1_500_000 + b"y]"


def test_a_ping_is_answered_with_its_payload(peer: WebSocketPeer) -> None:
    for payload in (b"", b"abc", b"x" * 125):
        peer.write(peer.frame(payload, PING))
        assert peer.receive_frame() == (PONG, payload)


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe9going away"])
def test_a_close_frame_is_answered_and_ends_the_connection(
    server: Server, peer: WebSocketPeer, payload: bytes
) -> None:
    peer.write(peer.frame(b"{1}") + peer.frame(payload, CLOSE) + peer.frame(b"{2}"))

    assert peer.receive() == b"{1}"
    assert peer.receive_frame() == (CLOSE, payload[:2])
    assert peer.ended()
    assert server.handler().lost.wait(PATIENCE)
    assert server.handler().messages == [b"{1}"]


@pytest.mark.parametrize(
    "frames",
    [
        b"\x81\x02{}",
        b"\xc1\x80\0\0\0\0",
        b"\x83\x80\0\0\0\0",
        b"\x09\x80\0\0\0\0",
        b"\x80\x80\0\0\0\0",
        b"\x01\x81\0\0\0\0{\x81\x81\0\0\0\0}",
        b"\x89\xfe\0\x7e\0\0\0\0" + b"x" * 126,
        b"\x88\x81\0\0\0\0x",
    ],
    ids=["unmasked", "reserved bit", "opcode 3", "ping in fragments", "continuation of nothing",
         "a message inside a message", "long ping", "close code of one byte"],
)  # fmt: skip
def test_a_broken_peer_is_dropped_without_a_word(server: Server, peer: WebSocketPeer, frames: bytes) -> None:
    peer.write(frames)

    assert peer.ended()
    assert server.handler().lost.wait(PATIENCE)
    assert server.handler().messages == []


def test_our_end_is_a_drop_without_close_frame(server: Server) -> None:
    server.answers = lambda handler, _: handler.channel.abort()
    peer = connect(server)

    peer.send(b"{}")

    assert peer.ended()


def test_frames_in_the_same_segment_as_the_upgrade_are_served(server: Server) -> None:
    peer = server.dial()
    assert isinstance(peer, WebSocketPeer)

    peer.write(request("GET / HTTP/1.1", *UPGRADE) + peer.frame(b"{1}") + peer.frame(b"{2}")[:3])
    assert peer.head().startswith(b"HTTP/1.1 101 ")
    assert peer.receive() == b"{1}"
    peer.write(peer.frame(b"{2}")[3:])

    assert peer.receive() == b"{2}"


def test_parse_errors_name_the_peer(make_server: MakeServer) -> None:
    tcp, unix = make_server("ws"), make_server("ws+unix")
    peers = [connect(tcp), connect(unix)]
    for each in peers:
        each.send(b"{}")
        each.receive()
    with socket.socket(fileno=socket.dup(peers[0].fd_in)) as sock:
        host, port = sock.getsockname()

    before = "failed to parse websocket JSON-RPC message from exec-server websocket "
    assert tcp.handler().channel.parse_error_prefix == f"{before}{host}:{port}: "
    assert unix.handler().channel.parse_error_prefix == f"{before}unix: "
    assert tcp.handler().channel.peer == f"{host}:{port}"
    assert tcp.handler().channel.max_reply_bytes == MAX_WEBSOCKET_REPLY_BYTES
    assert not tcp.handler().channel.utf8_is_fatal


def test_pings_go_out_and_a_peer_that_answers_stays(make_server: MakeServer) -> None:
    server = make_server("ws", ping_seconds=0.5)
    for _ in range(5):
        peer = connect(server)
        try:
            for _ in range(3):
                assert peer.receive_frame() == (PING, b"")
                peer.write(peer.frame(b"", PONG))

            peer.send(b"{}")
            assert peer.receive() == b"{}"
            break
        except (EOFError, ConnectionError):
            continue  # an answer came too late
    else:
        pytest.fail("it was dropped each time")


def test_a_peer_that_never_answers_a_ping_is_dropped(make_server: MakeServer) -> None:
    server = make_server("ws", ping_seconds=0.05)
    peer = connect(server)

    assert peer.receive_frame() == (PING, b"")

    assert peer.ended()
    assert server.handler().lost.wait(PATIENCE)


def test_a_probe_drops_a_silent_peer_at_once(server: Server, peer: WebSocketPeer) -> None:
    channel = server.handler().channel
    began = time.monotonic()

    server.thread.call(lambda: channel.probe(0.1))

    assert peer.receive_frame() == (PING, b"")
    assert peer.ended()
    assert 0.05 < time.monotonic() - began < 5


def test_a_probe_leaves_a_peer_alone_that_answers(server: Server, peer: WebSocketPeer) -> None:
    channel = server.handler().channel
    for _ in range(2):
        server.thread.call(lambda: channel.probe(PATIENCE))
        server.thread.call(lambda: channel.probe(PATIENCE))
        assert peer.receive_frame() == (PING, b"")
        peer.write(peer.frame(b"", PONG))
        until = time.monotonic() + PATIENCE / 2
        while server.thread.call(lambda: channel._probe_timer) is not None:  # type: ignore[attr-defined]
            assert time.monotonic() < until

    peer.send(b"{}")
    assert peer.receive() == b"{}"


def test_a_peer_that_we_do_not_listen_to_is_not_dropped_for_silence(
    server: Server, peer: WebSocketPeer
) -> None:
    channel = server.handler().channel

    def pause_and_probe() -> None:
        channel.pause_reading()
        channel.probe(0.05)

    server.thread.call(pause_and_probe)
    time.sleep(0.2)
    server.thread.call(channel.resume_reading)

    assert peer.receive_frame() == (PING, b"")
    peer.send(b"{}")
    assert peer.receive() == b"{}"


def test_a_probe_drops_a_peer_that_takes_nothing_of_what_waits_for_it(server: Server) -> None:
    def answers(handler: Recorder, message: bytes) -> None:
        handler.channel.send([bytes(32 << 20)])
        handler.channel.pause_reading()

    server.answers = answers
    peer = connect(server)
    peer.send(b"{}")
    channel = server.handler().channel
    assert server.handler().came.wait(PATIENCE)
    server.thread.call(lambda: None)

    server.thread.call(lambda: channel.probe(0.1))

    assert server.handler().lost.wait(PATIENCE)


def test_the_read_buffer_of_a_large_message_is_given_back(make_server: MakeServer) -> None:
    server = make_server("ws", ping_seconds=0.5)  # 8 MiB are sent within it
    server.answers = length
    for turn in range(5):
        peer = connect(server)
        try:
            give_back(server, turn, peer)
            break
        except (EOFError, ConnectionError):
            continue  # an answer came too late
    else:
        pytest.fail("it was dropped each time")


def give_back(server: Server, number: int, peer: WebSocketPeer) -> None:
    peer.send(b"x" * (8 << 20))
    while (frame := peer.receive_frame())[0] == PING:
        peer.write(peer.frame(b"", PONG))
    assert frame[1] == b"%d" % (8 << 20)
    channel = server.handler(number).channel
    room: Callable[[], int] = lambda: channel._parser.room  # type: ignore[attr-defined]  # noqa: E731

    for _ in range(50):
        assert peer.receive_frame() == (PING, b"")
        peer.write(peer.frame(b"", PONG))
        if server.thread.call(room) < 1 << 20:
            break

    assert server.thread.call(room) < 1 << 20
    peer.send(b"12345")
    assert peer.receive_frame() in ((TEXT, b"5"), (PING, b""))


def test_nagle_is_off(make_server: MakeServer) -> None:
    server = make_server("ws")
    connect(server)
    fd = server.handler().channel._fd_in  # type: ignore[attr-defined]

    with socket.socket(fileno=socket.dup(fd)) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
