"""What holds on every transport."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from execserver.rpc.channel import Channel
from execserver.transports.base import BaseChannel
from execserver.transports.write_buffer import LOW_WATER_BYTES
from tests.integration.transports.conftest import MakeServer
from tests.integration.transports.peers import PATIENCE, Recorder, Server, flood


def test_a_message_goes_in_and_its_answer_comes_out(server: Server) -> None:
    peer = server.connect()

    peer.send(b'{"id":1}')

    assert peer.receive() == b'{"id":1}'
    assert server.handler().messages == [b'{"id":1}']


def test_input_in_single_bytes_makes_whole_messages(server: Server) -> None:
    peer = server.connect()

    for byte in peer.frame(b'{"id":1}') + peer.frame(b"{" + b"x" * 200 + b"}"):
        peer.write(bytes((byte,)))

    assert peer.receive() == b'{"id":1}'
    assert peer.receive() == b"{" + b"x" * 200 + b"}"


def test_10_000_requests_are_answered_though_the_client_reads_only_after_all_are_sent(server: Server) -> None:
    peer = server.connect()
    requests = [b'{"id":%d,"method":"%s"}' % (number, b"x" * 200) for number in range(10_000)]

    peer.write(b"".join(map(peer.frame, requests)))

    assert [peer.receive() for _ in requests] == requests


def test_messages_of_one_read_are_one_batch(server: Server) -> None:
    peer = server.connect()

    peer.write(peer.frame(b"{1}") + peer.frame(b"{2}") + peer.frame(b"{3}"))

    assert [peer.receive() for _ in range(3)] == [b"{1}", b"{2}", b"{3}"]
    assert server.handler().batches[-1] == 3


def test_the_end_of_the_peer_is_told_once(server: Server) -> None:
    peer = server.connect()
    peer.send(b"{}")
    peer.receive()

    peer.close()

    assert server.handler().lost.wait(PATIENCE)
    assert server.handler().losses == 1


def test_half_a_message_and_the_end_is_no_message(server: Server) -> None:
    peer = server.connect()
    peer.send(b"{}")
    peer.receive()

    peer.write(peer.frame(b'{"id":1}')[:-3])
    peer.close()

    assert server.handler().lost.wait(PATIENCE)
    assert server.handler().messages == [b"{}"]


def test_answers_before_a_fatal_message_leave_and_nothing_after_it_is_served(server: Server) -> None:
    def answers(handler: Recorder, message: bytes) -> None:
        if message == b"{fatal}":
            handler.channel.abort()
            handler.channel.abort()
        handler.channel.send([message])

    server.answers = answers
    peer = server.connect()

    peer.write(peer.frame(b"{1}") + peer.frame(b"{fatal}") + peer.frame(b"{3}"))

    assert peer.receive() == b"{1}"
    if server.transport != "stdio":  # its pipes stay the caller's
        assert peer.ended()
    assert server.handler().lost.wait(PATIENCE)
    assert server.handler().messages == [b"{1}", b"{fatal}"]


def test_nothing_is_delivered_while_reading_is_paused(server: Server) -> None:
    def answers(handler: Recorder, message: bytes) -> None:
        handler.channel.pause_reading()
        handler.channel.pause_reading()
        handler.channel.send([message])

    server.answers = answers
    peer = server.connect()
    peer.write(peer.frame(b"{1}") + peer.frame(b"{2}"))
    assert [peer.receive(), peer.receive()] == [b"{1}", b"{2}"]  # the batch is finished

    peer.send(b"{3}")
    for _ in range(3):
        server.thread.call(lambda: None)
    assert server.handler().messages == [b"{1}", b"{2}"]

    server.thread.call(server.handler().channel.resume_reading)
    assert peer.receive() == b"{3}"


def test_a_look_sends_what_is_queued_and_reads_what_has_come(server: Server) -> None:
    peer = server.connect()
    peer.send(b"{0}")
    assert peer.receive() == b"{0}"
    handler = server.handler()
    channel = handler.channel
    handler.came.clear()

    def look_around() -> tuple[int, int]:
        """On the loop, which does nothing else meanwhile."""
        channel.read_now()  # nothing has come
        assert handler.messages == [b"{0}"]
        channel.send([b"{answer}"])
        assert channel.unsent
        channel.read_now()
        unsent = channel.unsent
        assert peer.receive() == b"{answer}"
        peer.send(b"{1}")
        until = time.monotonic() + PATIENCE
        while not handler.came.is_set() and time.monotonic() < until:
            channel.read_now()
        return unsent, len(handler.messages)

    assert server.thread.call(look_around) == (0, 2)
    assert peer.receive() == b"{1}"

    server.thread.call(channel.pause_reading)
    peer.send(b"{2}")
    for _ in range(50):
        server.thread.call(channel.read_now)
    assert handler.messages == [b"{0}", b"{1}"]
    server.thread.call(channel.resume_reading)
    assert peer.receive() == b"{2}"


def test_unsent_bytes_are_counted_until_the_peer_takes_them(server: Server) -> None:
    reply = bytes(16 << 20)
    server.answers = lambda handler, _: handler.channel.send([reply[: 8 << 20], reply[8 << 20 :]])
    peer = server.connect()
    peer.send(b"{}")
    handler = server.handler()
    assert handler.came.wait(PATIENCE)

    assert server.thread.call(lambda: handler.channel.unsent) > 4 << 20
    assert not handler.drained_below.is_set()

    assert len(peer.receive()) == len(reply)
    assert handler.drained_below.wait(PATIENCE)
    assert server.thread.call(lambda: handler.channel.unsent) < LOW_WATER_BYTES


def test_sends_of_one_turn_keep_their_order_among_large_and_small(server: Server) -> None:
    sizes = [1, 70_000, 3, 2_000_000, 5, 16_384, 0, 9]

    def answers(handler: Recorder, message: bytes) -> None:
        for size in sizes:
            handler.channel.send([b"[" * size, b"]"])

    server.answers = answers
    peer = server.connect()

    peer.send(b"{}")

    assert [len(peer.receive()) for _ in sizes] == [size + 1 for size in sizes]


def test_messages_wait_behind_an_open_stream(server: Server) -> None:
    async def stream(channel: Channel) -> None:
        out = channel.open_stream(65 << 20)
        await out.write(b'{"id":1,')
        channel.send([b"{2}"])
        await out.write(b"x" * (3 << 20))
        channel.send([b"{3}"])
        await out.write(b"")
        await out.close(b"}")
        channel.send([b"{4}"])

    tasks = []
    server.answers = lambda handler, _: tasks.append(asyncio.ensure_future(stream(handler.channel)))
    peer = server.connect()

    peer.send(b"{}")

    assert peer.receive() == b'{"id":1,' + b"x" * (3 << 20) + b"}"
    assert [peer.receive() for _ in range(3)] == [b"{2}", b"{3}", b"{4}"]


def test_a_stream_goes_at_the_pace_of_its_reader_even_with_much_waiting_behind_it(server: Server) -> None:
    progress: list[int] = []
    ended = threading.Event()

    async def stream(channel: Channel) -> None:
        out = channel.open_stream(65 << 20)
        channel.send([b"y" * (2 << 20)])
        try:
            for number in range(64):
                await out.write(b"x" * (1 << 20))
                progress.append(number)
            await out.close(b"")
        except ConnectionResetError:
            ended.set()

    tasks = []
    server.answers = lambda handler, _: tasks.append(asyncio.ensure_future(stream(handler.channel)))
    peer = server.connect()
    peer.send(b"{}")
    peer.take(1 << 20)
    assert len(progress) < 20

    peer.take(16 << 20)
    peer.close()

    assert ended.wait(PATIENCE)


def test_sending_after_the_end_is_nothing(server: Server) -> None:
    peer = server.connect()
    peer.send(b"{}")
    peer.receive()
    channel = server.handler().channel

    server.thread.call(channel.abort)
    server.thread.call(lambda: channel.send([b"{}"]))

    assert channel.unsent == 0
    assert server.handler().lost.wait(PATIENCE)


def test_flush_waits_for_the_peer_up_to_its_time(server: Server) -> None:
    server.answers = lambda handler, _: handler.channel.send([bytes(16 << 20)])
    peer = server.connect()
    peer.send(b"{}")
    channel = server.handler().channel
    assert server.handler().came.wait(PATIENCE)
    assert isinstance(channel, BaseChannel)

    assert server.thread.run(channel.flush(0.01)) is False

    reader = threading.Thread(target=peer.receive)
    reader.start()
    assert server.thread.run(channel.flush(PATIENCE)) is True
    reader.join()


def test_what_is_queued_at_the_end_of_input_may_still_leave(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execserver.transports.base.LINGER_SECONDS", PATIENCE)
    server.answers = lambda handler, _: handler.channel.send([bytes(4 << 20)])
    peer = server.connect()
    peer.send(b"{}")
    assert server.handler().came.wait(PATIENCE)

    peer.end_output()
    assert server.handler().lost.wait(PATIENCE)

    assert len(peer.receive()) == 4 << 20


@pytest.mark.parametrize("transport", ["unix", "ws"])
def test_a_listener_that_closes_leaves_its_connections_alone(make_server: MakeServer, transport: str) -> None:
    server = make_server(transport)
    peer, stranger = server.connect(), server.dial()
    peer.send(b"{}")
    peer.receive()
    assert server.listener is not None
    assert len(server.listener.channels) == 1

    server.thread.call(server.listener.close)

    assert stranger.ended()
    peer.send(b"{}")
    assert peer.receive() == b"{}"


def test_an_echo_of_a_large_message_survives_small_buffers(server: Server) -> None:
    peer = server.connect()
    message = b'{"x":"' + os.urandom(6 << 20).hex().encode() + b'"}'

    writer = flood(peer, peer.frame(message))

    assert peer.receive() == message
    writer.join()
