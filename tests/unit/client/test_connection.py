"""The limit of requests without a response, on a channel without flow control."""

from __future__ import annotations

import asyncio
import json

import pytest

from execclient.connection.connection import Connection
from execclient.errors import ConnectionLost


class RecordingChannel:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, message: bytes) -> None:
        self.sent.append(json.loads(message)["id"])

    def close(self) -> None:
        raise AssertionError("the test does not close it")

    def abort(self) -> None:
        raise AssertionError("the test does not abort it")


class End:
    """A connection on such a channel."""

    def __init__(self, max_unanswered: int | None) -> None:
        self.channel = RecordingChannel()
        self.connection = Connection(lambda _method, _params: None, lambda _lost, _why: None, max_unanswered)
        self.connection.channel_opened(self.channel)

    def request(self, size: int) -> asyncio.Task[object]:
        return asyncio.create_task(self.connection.request("fs/writeFile", {"data": "x" * size}))

    def answer(self, number: int) -> None:
        self.connection.message_received(b'{"id":%d,"result":%d}' % (number, number))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_request_waits_until_enough_before_it_is_answered() -> None:
    end = End(1000)
    tasks = [end.request(600) for _ in range(4)]
    await turns()
    assert end.channel.sent == [1, 2]

    end.answer(2)
    await turns()
    assert end.channel.sent == [1, 2, 3]

    end.answer(1)
    end.answer(3)
    await turns()
    end.answer(4)

    assert await asyncio.gather(*tasks) == [1, 2, 3, 4]


async def test_a_request_that_was_given_up_counts_until_it_is_answered() -> None:
    end = End(1000)
    given_up = end.request(2000)
    await turns()
    given_up.cancel()
    later = end.request(1)
    await turns()
    assert end.channel.sent == [1]

    end.answer(1)
    await turns()
    assert end.channel.sent == [1, 2]
    end.answer(2)
    assert await later == 2


async def test_those_that_wait_for_answers_hear_of_the_end() -> None:
    end = End(1000)
    tasks = [end.request(2000), end.request(1)]
    await turns()
    end.connection.channel_lost("cut")

    for task, was_sent in zip(tasks, (True, False), strict=True):
        with pytest.raises(ConnectionLost) as raised:
            await task
        assert raised.value.sent is was_sent


@pytest.mark.parametrize("most", [None, 1 << 30])
async def test_otherwise_nothing_waits(most: int | None) -> None:
    end = End(most)
    tasks = [end.request(5000) for _ in range(5)]
    await turns()
    assert end.channel.sent == [1, 2, 3, 4, 5]
    for number in end.channel.sent.copy():
        end.answer(number)
    await asyncio.gather(*tasks)
