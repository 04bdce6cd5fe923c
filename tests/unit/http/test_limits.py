"""The limits of the daemon, which are too large to be reached over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack

import pybase64
import pytest

from execprotocol.limits import MAX_HTTP_EXCHANGES
from execserver.http.client import EncodedPieces, HeldBytes, HttpClient, WholeBody
from execserver.http.request import RequestDeadline, TransferError


async def pieces(*sizes: int) -> AsyncGenerator[bytes, None]:
    for size in sizes:
        yield b"z" * size


async def read(held: HeldBytes, *sizes: int) -> WholeBody:
    body = WholeBody(held, lambda _: None)
    try:
        await body.read(pieces(*sizes))
    except BaseException:
        body.release()
        raise
    return body


async def test_bodies_are_counted_until_they_are_released() -> None:
    held = HeldBytes(100)
    first = await read(held, 30, 30)
    assert held.total == 60
    with pytest.raises(TransferError, match="streamResponse"):
        await read(held, 30, 30)
    assert held.total == 60
    second = await read(held, 40)
    first.release()
    first.release()
    assert held.total == 40
    second.release()
    assert held.total == 0


@pytest.mark.parametrize("size", [0, 1, 768 << 10, (768 << 10) + 1, 3 << 20])
async def test_encoded_pieces_are_the_body_and_release_it(size: int) -> None:
    held = HeldBytes(4 << 20)
    body = await read(held, size)
    expected, length = pybase64.b64encode(b"z" * size), body.encoded_size
    assert b"".join([piece async for piece in EncodedPieces(body)]) == expected
    assert length == len(expected)
    assert held.total == 0


async def test_pieces_that_are_not_read_to_the_end_release_the_body() -> None:
    held = HeldBytes(4 << 20)
    stream = EncodedPieces(await read(held, 3 << 20))
    await anext(stream)
    await stream.aclose()
    assert held.total == 0


def test_connections_to_servers_are_counted() -> None:
    client = HttpClient({})
    with ExitStack() as stack:
        for _ in range(MAX_HTTP_EXCHANGES):
            stack.enter_context(client.exchange())
        with pytest.raises(TransferError, match="under way"), client.exchange():
            pytest.fail("there is one too many")
    with client.exchange():
        pass


async def test_a_deadline_bounds_several_steps_together() -> None:
    deadline = RequestDeadline(50)
    async with deadline.limit():
        pass
    with pytest.raises(TransferError, match="timed out after 50 ms"):
        async with deadline.limit():
            await asyncio.Event().wait()
    with pytest.raises(TransferError, match="timed out after 50 ms"):
        async with deadline.limit():
            await asyncio.Event().wait()


async def test_a_deadline_does_not_hide_a_cancellation() -> None:
    async def wait() -> None:
        async with RequestDeadline(60_000).limit():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
