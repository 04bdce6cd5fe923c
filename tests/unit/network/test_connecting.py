"""Connecting to the endpoints of a host, on loopback."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Iterator

import pytest

from execserver.network.resolver import Endpoint, connect


def endpoint(port: int) -> Endpoint:
    return Endpoint(socket.AF_INET, ("127.0.0.1", port), ipaddress.ip_address("127.0.0.1"))


@pytest.fixture
def silent() -> Iterator[Endpoint]:
    """A listener whose queue is full, so that it does not answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):
            yield endpoint(listener.getsockname()[1])


@pytest.fixture
def closed() -> Iterator[Endpoint]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield endpoint(bound.getsockname()[1])


@pytest.fixture
def listening() -> Iterator[Endpoint]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield endpoint(listener.getsockname()[1])


async def test_an_endpoint_that_does_not_answer_does_not_hold_up_the_next(
    silent: Endpoint, listening: Endpoint
) -> None:
    begin = time.monotonic()
    with await connect([silent, silent, listening], 20) as connection:
        assert connection.getpeername() == listening.sockaddr
    assert time.monotonic() - begin < 10


async def test_an_endpoint_that_refuses_gives_way_to_the_next(closed: Endpoint, listening: Endpoint) -> None:
    with await connect([closed, listening], 20) as connection:
        assert connection.getpeername() == listening.sockaddr


async def test_without_an_endpoint_that_accepts_there_is_an_error(closed: Endpoint, silent: Endpoint) -> None:
    with pytest.raises(ConnectionRefusedError, match=r"^.Errno 111. Connection refused$"):
        await connect([closed, closed], 20)
    with pytest.raises(TimeoutError, match=r"within 0\.5 seconds"):
        await connect([closed, silent], 0.5)


async def test_a_cancelled_connect_leaves_no_socket(silent: Endpoint) -> None:
    attempt = asyncio.ensure_future(connect([silent, silent], 20))
    await asyncio.sleep(0.4)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    # A socket that is left would be reported as not closed at the end of the run.
