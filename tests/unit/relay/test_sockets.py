"""The relay's end of a WebSocket against a real one: what is sent and waited for, and when a peer is dead."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from execserver.relay.service import sockets
from execserver.relay.service.sockets import HIGH_BYTES, LOW_BYTES, WebSocketPeer, new_socket

NEVER = 3600.0


class Served:
    """The relay's end of the one socket of a test."""

    def __init__(self) -> None:
        self.peer: WebSocketPeer
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self.dropped = 0
        self.has_room = asyncio.Event()
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def drop(self) -> None:
        self.dropped += 1


Client = aiohttp.ClientWebSocketResponse[bool]


@asynccontextmanager
async def connected(
    ping_seconds: float = NEVER,
    max_bytes: int = 1000,
    autoping: bool = True,
    receive_buffer: int = 0,
    frames_before: Sequence[bytes] = (),
) -> AsyncIterator[tuple[Served, Client]]:
    """A peer, and who is at its other end."""
    served = Served()
    opened = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        websocket = new_socket(max_bytes)
        served.peer = WebSocketPeer(
            websocket, request, "peer", lambda _peer: served.has_room.set(), ping_seconds
        )
        for frame in frames_before:
            served.peer.send(frame)
        await served.peer.upgrade()
        opened.set()
        served.reason.set_result(await served.peer.serve(served.received.put_nowait, served.drop))
        return websocket

    async with AsyncExitStack() as stack:
        app = web.Application()
        app.add_routes([web.get("/", handle)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        listening = socket.create_server(("127.0.0.1", 0))
        if receive_buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, receive_buffer)
        await web.SockSite(runner, listening).start()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        client = await stack.enter_async_context(session.ws_connect(url, autoping=autoping, max_msg_size=0))
        await opened.wait()
        yield served, client
        incoming_or_gone = client._writer.protocol.transport
        if incoming_or_gone is not None:
            incoming_or_gone.abort()  # a closing handshake with who does not read would take long


def incoming(client: Client) -> asyncio.Transport:
    """Where what the relay sends comes in: for a client that is to be slow."""
    transport = client._writer.protocol.transport
    assert transport is not None
    return transport


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def within(answer: Awaitable[str]) -> str:
    async with asyncio.timeout(10):
        return await answer


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
async def test_frames_of_every_size_arrive_as_they_were_sent(size: int) -> None:
    async with connected() as (served, client):
        frame = bytes(range(256)) * (size // 256 + 1)

        served.peer.send(frame[:size])
        served.peer.send(b"next")

        assert await client.receive_bytes() == frame[:size]
        assert await client.receive_bytes() == b"next"


async def test_frames_that_are_sent_before_the_upgrade_come_after_it_and_first() -> None:
    frames = [bytes([index]) * size for index, size in enumerate((0, 1, 126, 65_536))]
    async with connected(frames_before=frames) as (served, client):
        served.peer.send(b"next")

        assert [await client.receive_bytes() for _ in frames] == frames
        assert await client.receive_bytes() == b"next"


async def test_a_queue_that_was_full_before_the_upgrade_has_room_after_it() -> None:
    frame = bytes(HIGH_BYTES)
    async with connected(frames_before=[frame, frame]) as (served, client):
        assert [await client.receive_bytes() for _ in range(2)] == [frame, frame]

        async with asyncio.timeout(10):
            await served.has_room.wait()


async def test_a_message_may_be_as_long_as_the_limit_and_no_longer() -> None:
    async with connected(max_bytes=1000) as (served, client):
        await client.send_bytes(b"x" * 1000)
        await client.send_bytes(b"x" * 1001)

        assert (await client.receive()).data == 1009
        assert await served.received.get() == b"x" * 1000
        assert (await within(served.reason)).startswith("closed with 1009: Message size 1001")
        assert served.received.empty()


async def test_a_message_in_fragments_counts_as_a_whole() -> None:
    async with connected(max_bytes=1000) as (served, client):
        writer = client._writer
        writer.transport.write(masked(0x02, b"x" * 600) + masked(0x80, b"y" * 400))
        assert await served.received.get() == b"x" * 600 + b"y" * 400

        writer.transport.write(masked(0x02, b"x" * 600) + masked(0x80, b"y" * 401))

        assert (await within(served.reason)).startswith("closed with 1009: Message size 1001")


def masked(first: int, payload: bytes) -> bytes:
    """A frame of a client, with a mask of zeros."""
    return bytes((first, 0x80 | 126)) + len(payload).to_bytes(2) + bytes(4) + payload


async def test_text_is_dropped_and_pings_are_answered() -> None:
    async with connected(autoping=False) as (served, client):
        await client.send_str("text")
        await client.ping(b"payload")
        await client.send_bytes(b"bytes")

        assert await served.received.get() == b"bytes"
        assert served.dropped == 1
        pong = await client.receive()
        assert (pong.type, bytes(pong.data)) == (WSMsgType.PONG, b"payload")


async def test_of_many_pings_the_newest_is_answered_and_nothing_piles_up() -> None:
    async with connected(autoping=False) as (served, client):
        incoming(client).pause_reading()
        for number in range(50_000):
            await client.ping(b"%d" % number + b"." * 100)
        await client.send_bytes(b"behind them")
        assert await asyncio.wait_for(served.received.get(), 30) == b"behind them"

        assert served.peer.queued == 0
        incoming(client).resume_reading()
        pongs = [await client.receive()]
        while not bytes(pongs[-1].data).startswith(b"49999."):
            pongs.append(await asyncio.wait_for(client.receive(), 10))

        assert {pong.type for pong in pongs} == {WSMsgType.PONG}
        assert len(pongs) < 1_000


async def test_a_peer_whose_queue_is_full_gets_its_pong_when_there_is_room() -> None:
    async with connected(autoping=False) as (served, client):
        incoming(client).pause_reading()
        while served.peer.queued <= HIGH_BYTES:
            served.peer.send(bytes(200_000))
        await client.ping(b"first")
        await client.ping(b"second")
        await client.send_bytes(b"behind them")
        assert await served.received.get() == b"behind them"

        incoming(client).resume_reading()
        while (message := await asyncio.wait_for(client.receive(), 10)).type is not WSMsgType.PONG:
            pass

        assert bytes(message.data) == b"second"


async def test_a_peer_that_answers_pings_stays() -> None:
    async with connected(ping_seconds=0.03) as (served, client):
        reading = asyncio.ensure_future(client.receive())
        await asyncio.sleep(0.3)  # ten pings

        served.peer.send(b"still there")

        assert (await reading).data == b"still there"


async def test_a_silent_peer_is_dropped_after_two_pings() -> None:
    began = time.monotonic()
    async with connected(ping_seconds=0.05, autoping=False) as (served, client):
        assert await within(served.reason) == "no answer to pings"

        assert time.monotonic() - began >= 0.1
        kinds = [message.type async for message in client]
        assert set(kinds) <= {WSMsgType.PING}


async def test_a_peer_that_we_do_not_read_from_is_not_held_to_be_dead() -> None:
    async with connected(ping_seconds=0.03, autoping=False) as (served, client):
        served.peer.pause()
        await client.send_bytes(b"waits")  # of which some is read already, perhaps
        await client.send_bytes(b"waits, too")
        await asyncio.sleep(0.3)

        assert not served.reason.done()
        served.peer.resume()
        assert await served.received.get() == b"waits"
        assert await served.received.get() == b"waits, too"


async def test_a_paused_peer_whose_connection_ended_is_found_out_by_the_next_ping() -> None:
    async with connected(ping_seconds=0.05) as (served, client):
        served.peer.pause()
        client._writer.transport.abort()

        assert await within(served.reason)


async def test_a_full_queue_tells_when_it_has_room() -> None:
    async with connected(receive_buffer=4096) as (served, client):
        incoming(client).pause_reading()
        while served.peer.queued <= HIGH_BYTES:
            served.peer.send(bytes(100_000))
        assert not served.has_room.is_set()

        incoming(client).resume_reading()
        reading = asyncio.ensure_future(drain(client))
        async with asyncio.timeout(10):
            await served.has_room.wait()

        assert served.peer.queued < LOW_BYTES
        reading.cancel()


async def drain(client: Client) -> None:
    async for _ in client:
        pass


async def test_a_peer_that_takes_what_is_on_its_way_is_alive_without_a_pong() -> None:
    async with connected(ping_seconds=0.05, autoping=False, receive_buffer=4096) as (served, client):
        transport = incoming(client)
        transport.pause_reading()
        while served.peer.queued <= HIGH_BYTES:
            served.peer.send(bytes(100_000))
        for _ in range(8):  # a little at a time, for eight pings
            transport.resume_reading()
            await asyncio.sleep(0.001)
            transport.pause_reading()
            await asyncio.sleep(0.05)
            while served.peer.queued <= LOW_BYTES:
                served.peer.send(bytes(100_000))

        assert not served.reason.done()


async def test_a_close_comes_after_what_was_sent() -> None:
    async with connected() as (served, client):
        served.peer.send(b"last")
        served.peer.close(1013, "try again")
        served.peer.close(1008, "too late to say")
        served.peer.send(b"dropped")

        assert await client.receive_bytes() == b"last"
        message = await client.receive()
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 1013, "try again")
        assert await within(served.reason) == "try again"


async def test_a_close_throws_a_long_queue_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CLOSE_SECONDS", 60.0)
    async with connected(receive_buffer=4096) as (served, client):
        incoming(client).pause_reading()
        while served.peer.queued <= HIGH_BYTES:
            served.peer.send(bytes(100_000))

        served.peer.close(1008, "slow_consumer")

        assert await within(served.reason) == "slow_consumer"
        assert served.peer.queued == 0


async def test_a_close_reason_is_cut_to_what_a_close_frame_holds() -> None:
    async with connected() as (served, client):
        served.peer.close(1008, "ä" * 100)

        message = await client.receive()
        assert (message.data, message.extra) == (1008, "ä" * 60)


@pytest.mark.parametrize("kind", ["bytes", "text", "pings", "pongs"])
async def test_one_peer_s_flood_leaves_the_others_their_turn(kind: str) -> None:
    async with connected(max_bytes=1000) as (served, client):
        send: dict[str, Callable[[], Awaitable[object]]] = {
            "bytes": lambda: client.send_bytes(b"x"),
            "text": lambda: client.send_str("x"),
            "pings": client.ping,
            "pongs": client.pong,
        }
        turns = 0
        stop = asyncio.Event()

        async def other() -> None:
            nonlocal turns
            while not stop.is_set():
                turns += 1
                await asyncio.sleep(0)

        served.peer.pause()
        for _ in range(3000):
            await send[kind]()
        await client.send_bytes(b"last")
        await asyncio.sleep(0.05)  # all of it is in the process now
        watching = asyncio.ensure_future(other())
        served.peer.resume()
        while await served.received.get() != b"last":
            pass
        stop.set()
        await watching

        assert turns >= 3000 // 64


async def test_a_peer_that_goes_without_a_word_is_lost() -> None:
    async with connected() as (served, client):
        client._writer.transport.abort()

        assert await within(served.reason) == "connection lost"
        served.peer.send(b"dropped")
        served.peer.close(1000, "nothing happens")


async def test_a_peer_that_closes_is_told_by_its_code() -> None:
    async with connected() as (served, client):
        await client.close(code=4321)

        assert await within(served.reason) == "closed with 4321"
