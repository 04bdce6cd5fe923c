"""The WebSocket to the relay, against a server whose every byte the test decides."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from execprotocol.relay import dial as dialing
from execprotocol.relay.dial import DialFailed, DialRefused, FrameSocket, dial
from execprotocol.relay.frames import MAX_FRAME_BYTES
from tests.integration.http.certificates import make_authority, server_context
from tests.support.wire import PATIENCE

FIN = 0x80
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = b""

    async def accept(self) -> None:
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in self.head.split(b"\r\n")[1:-2])
        assert b"sec-websocket-extensions" not in headers
        assert b"sec-websocket-protocol" not in headers
        key = next(
            line.split(b": ", 1)[1]
            for line in self.head.split(b"\r\n")
            if line.lower().startswith(b"sec-websocket-key")
        )
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
        )

    def send(self, first: int, payload: bytes = b"") -> None:
        self.writer.write(bytes((first,)) + self.length(len(payload)) + payload)

    @staticmethod
    def length(size: int) -> bytes:
        if size < 126:
            return bytes((size,))
        return struct.pack(">BH", 126, size) if size < 1 << 16 else struct.pack(">BQ", 127, size)

    async def receive(self) -> tuple[int, bytes]:
        """The next frame: its opcode and payload."""
        first, second = await self.reader.readexactly(2)
        assert first & FIN
        assert second & 0x80, "a client masks"
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
        mask = await self.reader.readexactly(4)
        payload = await self.reader.readexactly(size)
        if size > 1000:
            whole = (mask * (size // 4 + 1))[:size]
            return first & 15, (int.from_bytes(payload) ^ int.from_bytes(whole)).to_bytes(size)
        return first & 15, bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))

    async def refuse(self, status: str, headers: str = "", body: str = "") -> None:
        await self.reader.readuntil(b"\r\n\r\n")
        self.writer.write(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.writer.close()


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.opened: list[FrameSocket] = []
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.roomy = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def socket_opened(self, socket: FrameSocket) -> None:
        self.opened.append(socket)

    def frame_received(self, message: bytes) -> None:
        self.frames.put_nowait(message)

    def room(self) -> None:
        self.roomy.set()

    def socket_lost(self, reason: str) -> None:
        self.lost.set_result(reason)

    async def reason(self) -> str:
        return await asyncio.wait_for(self.lost, PATIENCE)


Serve = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server for one connection; it ends with `serve`, whose failure is the test's."""
    served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            served.set_result(None)
        except Exception as error:  # told in the test
            served.set_exception(error)
        else:
            served.set_result(None)
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield f"{'wss' if tls else 'ws'}://127.0.0.1:{port}/way?ticket=hidden"
        await asyncio.wait_for(served, PATIENCE)


@asynccontextmanager
async def dialed(serve: Serve) -> AsyncIterator[tuple[FrameSocket, Listener]]:
    """A connection whose upgrade is done."""

    async def accepted(peer: Peer) -> None:
        await peer.accept()
        await serve(peer)

    listener = Listener()
    async with server(accepted) as url:
        opened = await dial(url, listener)
        try:
            yield opened, listener
        finally:
            opened.abort()
            await listener.reason()


async def until_the_end(peer: Peer) -> None:
    while await peer.reader.read(1 << 20):
        pass


async def test_frames_go_both_ways_as_binary_messages_however_large() -> None:
    async def echo(peer: Peer) -> None:
        while True:
            opcode, payload = await peer.receive()
            if opcode == CLOSE:
                return
            assert opcode == BINARY
            peer.send(FIN | BINARY, payload)

    async with dialed(echo) as (opened, listener):
        assert listener.opened == [opened]
        for size in (1, 125, 126, 65_535, 65_536, MAX_FRAME_BYTES):
            frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
            opened.send(frame)
            assert await listener.frames.get() == frame


async def test_the_upgrade_has_the_path_the_query_and_the_headers_that_were_given() -> None:
    heads: list[bytes] = []

    async def serve(peer: Peer) -> None:
        await peer.accept()
        heads.append(peer.head)
        await until_the_end(peer)

    listener = Listener()
    async with server(serve) as url:
        opened = await dial(url, listener, headers={"X-Request-ID": "req_1"})
        opened.abort()
        await listener.reason()

    assert heads[0].startswith(b"GET /way?ticket=hidden HTTP/1.1\r\n")
    assert b"X-Request-ID: req_1\r\n" in heads[0]
    assert b"authorization" not in heads[0].lower()


async def test_text_is_dropped_and_fragments_of_a_binary_message_are_one() -> None:
    async def serve(peer: Peer) -> None:
        peer.send(FIN | TEXT, b"text")
        peer.send(TEXT, b"te")
        peer.send(FIN | CONTINUATION, b"xt")
        peer.send(BINARY, b"a")
        peer.send(FIN | PING, b"in between")
        peer.send(CONTINUATION, b"b")
        peer.send(FIN | CONTINUATION, b"c")
        await until_the_end(peer)

    async with dialed(serve) as (_, listener):
        assert await listener.frames.get() == b"abc"
        assert listener.frames.empty()


@pytest.mark.parametrize("fragmented", [False, True])
async def test_a_message_above_256_kib_ends_the_socket(fragmented: bool) -> None:
    async def serve(peer: Peer) -> None:
        if fragmented:
            peer.send(BINARY, bytes(MAX_FRAME_BYTES))
            peer.send(FIN | CONTINUATION, b"x")
        else:
            peer.send(FIN | BINARY, bytes(MAX_FRAME_BYTES + 1))
        await until_the_end(peer)

    async with dialed(serve) as (_, listener):
        assert "262144" in await listener.reason()
        assert listener.frames.empty()


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([(FIN | 0x40 | BINARY, b"x")], "extension"),
        ([(BINARY, b"x"), (FIN | BINARY, b"y")], "within another"),
        ([(FIN | CONTINUATION, b"x")], "had not begun"),
        ([(FIN | 3, b"x")], "opcode"),
    ],
)
async def test_what_breaks_the_websocket_protocol_ends_the_socket_and_the_reason_says_it(
    frames: list[tuple[int, bytes]], reason: str
) -> None:
    async def serve(peer: Peer) -> None:
        for first, payload in frames:
            peer.send(first, payload)
        await until_the_end(peer)

    async with dialed(serve) as (_, listener):
        assert reason in await listener.reason()
        assert listener.frames.empty()


async def test_the_relays_close_is_answered_and_told_with_its_reason() -> None:
    answers: list[tuple[int, bytes]] = []

    async def serve(peer: Peer) -> None:
        peer.send(FIN | CLOSE, struct.pack(">H", 1013) + b"executor gone")
        answers.append(await peer.receive())

    async with dialed(serve) as (_, listener):
        assert await listener.reason() == "the relay closed it: executor gone (1013)"

    assert answers[0][0] == CLOSE


async def test_a_connection_that_breaks_is_told_with_a_reason_too() -> None:
    async def serve(peer: Peer) -> None:
        peer.writer.transport.abort()

    async with dialed(serve) as (_, listener):
        assert await listener.reason() == "the connection to the relay broke"


async def test_close_sends_what_is_unsent_and_then_the_code() -> None:
    received: list[tuple[int, bytes]] = []

    listener = Listener()

    async def accepted(peer: Peer) -> None:
        await peer.accept()
        while not received or received[-1][0] != CLOSE:
            received.append(await peer.receive())
        peer.send(FIN | CLOSE, received[-1][1])

    async with server(accepted) as url:
        opened = await dial(url, listener)
        for _ in range(8):
            opened.send(bytes(MAX_FRAME_BYTES))
        opened.close(1001, "going")
        opened.close(1000, "not twice")
        opened.send(b"dropped")
        assert await listener.reason() == "we closed it: going"

    assert [len(payload) for _, payload in received[:-1]] == [MAX_FRAME_BYTES] * 8
    assert received[-1] == (CLOSE, struct.pack(">H", 1001) + b"going")


async def test_what_was_sent_before_a_close_arrives_while_the_relay_goes_on_sending() -> None:
    closed, received = asyncio.Event(), 0

    async def flood(peer: Peer) -> None:
        while True:
            peer.send(FIN | BINARY, bytes(1000))
            await peer.writer.drain()
            await asyncio.sleep(0)

    async def serve(peer: Peer) -> None:
        nonlocal received
        flooding = asyncio.create_task(flood(peer))
        await closed.wait()
        while (got := await peer.receive())[0] != CLOSE:
            received += len(got[1])
        flooding.cancel()
        peer.send(FIN | CLOSE, got[1])

    async with dialed(serve) as (opened, listener):
        for _ in range(32):
            opened.send(bytes(64 << 10))
        opened.close(1001, "going")
        closed.set()
        assert await listener.reason() == "we closed it: going"

    assert received == 32 * (64 << 10)


async def test_a_socket_whose_close_is_not_answered_is_dropped_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "CLOSE_SECONDS", 0.05)
    over = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await over.wait()

    async with dialed(serve) as (opened, listener):
        for _ in range(64):
            opened.send(bytes(MAX_FRAME_BYTES))
        opened.close(1000, "done")
        assert await listener.reason() == "we closed it: done"
        over.set()


async def test_a_socket_is_full_above_its_mark_and_has_room_once_it_was_read() -> None:
    read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await read.wait()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await until_the_end(peer)

    async with dialed(serve) as (opened, listener):

        def full() -> bool:
            return opened.is_full

        opened.send(bytes(1000))
        assert not full()
        for _ in range(256):
            opened.send(bytes(65_536))
            if full():
                break
        assert full()
        assert opened.unsent > 256 << 10
        assert not listener.roomy.is_set()
        read.set()
        await asyncio.wait_for(listener.roomy.wait(), PATIENCE)
        assert not full()
        assert opened.unsent <= 64 << 10


async def test_while_reading_is_paused_the_peer_is_held_up_and_nothing_is_lost() -> None:
    sent: list[int] = []

    async def serve(peer: Peer) -> None:
        for number in range(256):
            peer.send(FIN | BINARY, number.to_bytes(2) + bytes(65_536))
            await peer.writer.drain()
            sent.append(number)
        await until_the_end(peer)

    async with dialed(serve) as (opened, listener):
        opened.pause_reading()
        opened.pause_reading()
        before = -1
        while len(sent) != before:  # until the sockets in between hold all that they can
            before = len(sent)
            await asyncio.sleep(0.05)
        assert before < 256
        opened.resume_reading()
        found = [int.from_bytes((await listener.frames.get())[:2]) for _ in range(256)]
        assert found == list(range(256))


async def test_a_relay_that_answers_no_ping_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "PING_SECONDS", 0.03)
    pings = 0

    async def serve(peer: Peer) -> None:
        nonlocal pings
        while True:
            opcode, _ = await peer.receive()
            pings += opcode == PING

    async with dialed(serve) as (_, listener):
        assert await listener.reason() == "the relay has not answered a ping for 0.06 s"
    assert pings == dialing.UNANSWERED_PINGS


async def test_a_relay_that_answers_pings_is_kept_and_so_is_one_that_we_do_not_listen_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "PING_SECONDS", 0.02)
    pings = 0
    enough = asyncio.Event()

    async def serve(peer: Peer) -> None:
        nonlocal pings
        while True:
            opcode, payload = await peer.receive()
            if opcode == PING:
                pings += 1
                peer.send(FIN | PONG, payload)
                if pings % 6 == 0:
                    enough.set()

    async with dialed(serve) as (opened, listener):
        await asyncio.wait_for(enough.wait(), PATIENCE)
        enough.clear()
        opened.pause_reading()
        await asyncio.wait_for(enough.wait(), PATIENCE)
        assert not listener.lost.done()
        opened.resume_reading()


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        ("410 Gone", "x-codex-rendezvous-rejection-reason: expired\r\n", "expired"),
        ("401 Unauthorized", "", ""),
        ("503 Service Unavailable", "X-Codex-Rendezvous-Rejection-Reason: pod_draining\r\n", "pod_draining"),
        ("307 Temporary Redirect", "Location: ws://127.0.0.1:1/\r\n", ""),
    ],
)
async def test_a_refusal_has_its_status_and_its_word_and_no_redirect_is_followed(
    status: str, headers: str, reason: str
) -> None:
    listener = Listener()
    async with server(lambda peer: peer.refuse(status, headers)) as url:
        with pytest.raises(DialRefused) as raised:
            await dial(url, listener)

    assert (raised.value.status, raised.value.reason) == (int(status[:3]), reason)
    assert "hidden" not in str(raised.value)
    assert listener.opened == []


async def test_who_hangs_up_or_speaks_something_else_is_a_failure_without_the_ticket() -> None:
    async def hang_up(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")

    async def other(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.write(b"220 mail.example ESMTP\r\n\r\n")

    for serve in (hang_up, other):
        async with server(serve) as url:
            with pytest.raises(DialFailed) as raised:
                await dial(url, Listener())
        assert "hidden" not in str(raised.value)
        assert "ws://127.0.0.1:" in str(raised.value)


async def test_a_refused_connection_is_a_failure_that_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}/?ticket=hidden"
        with pytest.raises(DialFailed, match=r"cannot connect to ws://127.*refused") as raised:
            await dial(url, Listener())

    assert "hidden" not in str(raised.value)
    assert not raised.value.untrusted


async def test_an_upgrade_that_is_not_answered_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "DIAL_SECONDS", 0.05)

    async with server(until_the_end) as url:
        with pytest.raises(DialFailed, match=r"no answer within 0\.05 s"):
            await dial(url, Listener())


async def test_a_dial_that_is_cancelled_leaves_no_connection_behind() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        asked.set()
        await until_the_end(peer)
        ended.set()

    async with server(serve) as url:
        dialing_now = asyncio.create_task(dial(url, Listener()))
        await asyncio.wait_for(asked.wait(), PATIENCE)
        dialing_now.cancel()
        await asyncio.wait({dialing_now})
        await asyncio.wait_for(ended.wait(), PATIENCE)

    assert dialing_now.cancelled()


async def test_over_tls_the_certificate_must_hold(tmp_path: Path) -> None:
    trusting = ssl.create_default_context(cafile=make_authority(tmp_path))
    context = server_context(tmp_path)

    async def serve(peer: Peer) -> None:
        await peer.accept()
        _, payload = await peer.receive()
        peer.send(FIN | BINARY, payload)
        await until_the_end(peer)

    listener = Listener()
    async with server(serve, context) as url:
        opened = await dial(url, listener, ssl_context=trusting)
        opened.send(bytes(200_000))
        assert await listener.frames.get() == bytes(200_000)
        opened.abort()
        await listener.reason()


async def test_a_certificate_of_an_unknown_authority_is_a_failure_that_says_so(tmp_path: Path) -> None:
    make_authority(tmp_path)
    context = server_context(tmp_path)
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(DialFailed, match=r"certificate of wss://127.* does not hold") as raised:
            await dial(f"wss://127.0.0.1:{port}/?ticket=hidden", Listener())

    assert raised.value.untrusted


async def test_nothing_is_logged_of_a_dial(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    logging.getLogger("asyncio").setLevel(logging.WARNING)

    async def serve(peer: Peer) -> None:
        await until_the_end(peer)

    async with dialed(serve) as (opened, _):
        opened.send(b"frame")

    assert "hidden" not in caplog.text
    assert [record for record in caplog.records if record.name.startswith("picows")] == []
