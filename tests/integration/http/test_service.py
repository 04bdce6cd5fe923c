"""`http/request` and the life of the daemon: its start, its sockets, its end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.faults.service import descriptors
from tests.integration.http.origin import CHUNKED, Exchange, Origin, chunk, response
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Client, Server, at_most


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> Server:
    """A daemon of this test."""
    return start_server(f"unix://{tmp_path}/s")


def params(url: str, number: int = 0, *, stream: bool = False) -> dict[str, object]:
    return {"method": "GET", "url": url, "requestId": str(number), "streamResponse": stream}


HOST = "127.44.0.1"
"""Not the address of all other tests: who still dials the port of a listener there that is gone would be
taken for a client of ours."""


@pytest.fixture
def endless() -> Iterator[Origin]:
    """Sends a chunk and then holds the connection until its client goes."""

    def answer(exchange: Exchange) -> None:
        exchange.send(CHUNKED + chunk(b"x"))
        exchange.wait_client_gone()

    with Origin(answer, host=HOST) as origin:
        yield origin


def test_the_library_is_not_loaded_at_the_start() -> None:
    program = (
        "import sys, execserver.server; "
        "print([name for name in ('httpcore', 'h11', 'anyio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_end_of_the_service_closes_everything(server: Server) -> None:
    gone = threading.Semaphore(0)

    def answer(exchange: Exchange) -> None:
        if exchange.path == "/stream":
            exchange.send(CHUNKED + chunk(b"x"))
        exchange.wait_client_gone()
        gone.release()

    with Origin(answer) as origin, server.connect() as client:
        client.call("http/request", params(f"{origin.url}/stream", 1, stream=True))
        client.request("http/request", params(f"{origin.url}/head", 2))
        origin.next_request(), origin.next_request()
        with at_most(20):
            assert server.stop() == 0
        for _ in range(2):
            assert gone.acquire(timeout=5)


def sockets(server: Server) -> int:
    """How many the server has open: all that a request needs, and nothing that it opens later for itself."""
    return descriptors(server_of(server.pid, PATIENCE))["socket"]


def one_of_each(client: Client, good: str, endless: str, dead: str) -> None:
    """Requests that end well, fail, are cut and are given up."""
    numbers = client.pipeline(
        *(("http/request", params(url)) for url in (good, dead, f"{good}/close") for _ in range(5)),
        *(("http/request", params(endless) | {"timeoutMs": 50}) for _ in range(5)),
        *(("http/request", params(endless, number, stream=True)) for number in range(5)),
    )
    outcomes = ["result" in client.reply(number) for number in numbers]
    assert outcomes == [True] * 5 + [False] * 15 + [True] * 5


def test_no_socket_is_left_behind(server: Server, endless: Origin) -> None:
    def answer(exchange: Exchange) -> None:
        if not exchange.path.endswith("/close"):
            exchange.send(response(b"hi"))

    with Origin(answer, host=HOST) as origin, server.connect() as bystander:
        dead = Origin(answer, host=HOST)
        dead.close()
        with server.connect() as client:
            one_of_each(client, origin.url, endless.url, dead.url)
        wait_idle(bystander, origin, endless)
        before = sockets(server)
        for _ in range(5):
            with server.connect() as client:
                one_of_each(client, origin.url, endless.url, dead.url)
        wait_idle(bystander, origin, endless)
        for _ in range(200):  # turns of the daemon's loop, in which it closes its side
            if sockets(server) <= before:
                return
            bystander.call("environment/status")
    assert sockets(server) <= before


def wait_idle(bystander: Client, *origins: Origin) -> None:
    """Wait until the daemon has closed every connection, and a few turns of its loop more."""
    for origin in origins:
        origin.wait_idle()
    for _ in range(50):
        bystander.call("environment/status")
