"""How a listener serves pages: large ones, slow ones, and while it takes no clients any more."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from execserver.transports.http_upgrade import HttpPage, PageContent
from execserver.transports.listener import PAGES_WHILE_STOPPING
from tests.integration.transports.peers import PATIENCE, UPGRADE, Peer, Server, request

LARGE = os.urandom(1 << 20) * 8


@pytest.fixture
def large(tmp_path: Path) -> Server:
    return Server(
        "ws", tmp_path, pages={"/large": HttpPage(lambda head: PageContent(LARGE))}, accept_seconds=30
    )


def slow_peer(server: Server) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(PATIENCE)
    peer.connect(server.address)
    peer.sendall(request("GET /large HTTP/1.1", UPGRADE[0]))
    return peer


def test_a_slow_reader_gets_a_large_page_whole(large: Server) -> None:
    with closing(large), slow_peer(large) as peer:
        received = b"".join(iter(lambda: peer.recv(20_000), b""))

    head, _, body = received.partition(b"\r\n\r\n")
    assert f"content-length: {len(LARGE)}".encode() in head
    assert body == LARGE


def test_a_reader_that_stops_is_dropped(tmp_path: Path) -> None:
    server = Server(
        "ws", tmp_path, pages={"/large": HttpPage(lambda head: PageContent(LARGE))}, accept_seconds=0.2
    )
    with closing(server), slow_peer(server) as peer:
        begun = time.monotonic()
        with suppress(ConnectionResetError):
            # It is noticed by what comes after the wait: nothing more, long before the page's end.
            assert peer.recv(1)
            server.thread.run(until_greeted(server, 0))
            rest = sum(len(piece) for piece in iter(lambda: peer.recv(1 << 20), b""))
            assert rest < len(LARGE)
        assert time.monotonic() - begun < PATIENCE


async def until_greeted(server: Server, count: int) -> None:
    assert server.listener is not None
    async with asyncio.timeout(PATIENCE):
        while len(server.listener._accepted) != count:
            await asyncio.sleep(0.01)


def test_a_page_that_fails_is_an_internal_error(tmp_path: Path) -> None:
    async def fail() -> PageContent:
        raise OSError("the disk is on fire")

    server = Server("ws", tmp_path, pages={"/broken": HttpPage(lambda head: fail())})
    with closing(server), closing(server.dial()) as peer:
        peer.write(request("GET /broken HTTP/1.1", UPGRADE[0]))
        head = all_of(peer)

    assert head == b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def test_a_peer_that_leaves_before_its_page_is_made_leaves_nothing(tmp_path: Path) -> None:
    made = threading.Event()

    async def never() -> PageContent:
        made.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    server = Server("ws", tmp_path, pages={"/never": HttpPage(lambda head: never())})
    with closing(server):
        peer = server.dial()
        peer.write(request("GET /never HTTP/1.1", UPGRADE[0]))
        assert made.wait(PATIENCE)
        peer.close()
        server.thread.run(until_greeted(server, 0))


def all_of(peer: Peer) -> bytes:
    while peer.fill():
        pass
    return bytes(peer.buffer)


def test_while_stopping_new_clients_are_refused_and_pages_shown(tmp_path: Path) -> None:
    stopping = False
    server = Server("ws", tmp_path, upgrades=lambda: not stopping)
    with closing(server):
        server.connect()
        stopping = True
        with closing(server.dial()) as peer:
            peer.write(request("GET / HTTP/1.1", *UPGRADE))
            refused = all_of(peer)
        with closing(server.dial()) as peer:
            peer.write(request("GET /readyz HTTP/1.1", UPGRADE[0]))
            shown = all_of(peer)

    assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert refused.endswith(b"stopping")
    assert shown.startswith(b"HTTP/1.1 200 OK\r\n")
    assert len(server.handlers) == 1


def test_while_stopping_few_are_listened_to_at_a_time(tmp_path: Path) -> None:
    server = Server("ws", tmp_path, upgrades=lambda: False)
    with closing(server):
        silent = [server.dial() for _ in range(PAGES_WHILE_STOPPING)]
        server.thread.run(until_greeted(server, PAGES_WHILE_STOPPING))
        with closing(server.dial()) as last:
            last.write(request("GET /readyz HTTP/1.1", UPGRADE[0]))
            assert not select.select([last.fd_in], [], [], 0.1)[0]
            silent.pop().close()
            assert all_of(last).startswith(b"HTTP/1.1 200 OK\r\n")
        for peer in silent:
            peer.close()
