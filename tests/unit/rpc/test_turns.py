"""Who sends thousands of requests at once is served in turns, in order, and each once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from execserver.rpc import admission
from execserver.rpc.connection import Connection
from execserver.rpc.handlers import Caller
from tests.support.channels import OpenChannel, id_of

CALL = b'{"id":%d,"method":"environment/status","params":{}}'

WRITE = b'{"id":%d,"method":"process/write","params":{"processId":"p","chunk":"","writeId":"%d"}}'


class Channel(OpenChannel):
    """A peer that takes everything at once, and says how reading was paused."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.paused = False

    def send(self, parts: Sequence[bytes]) -> None:
        self.ids.append(id_of(parts))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connect(channel: Channel) -> Connection:
    def status(caller: Caller, params: Any) -> dict[str, str]:
        return {"status": "ready"}

    made = Connection(channel, {"environment/status": status}, None, lambda _: None)  # type: ignore[arg-type]
    made._check_handshake = lambda method: None  # type: ignore[method-assign]  # of no interest here
    return made


async def assert_fifty_come_a_few_at_a_time(channel: Channel) -> None:
    for _ in range(100):
        before = len(channel.ids)
        await asyncio.sleep(0)
        assert len(channel.ids) - before < 5
    assert channel.ids == list(range(50))
    assert [channel.paused] == [False]


@pytest.fixture
def turns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is over with its first message."""
    monkeypatch.setattr(admission, "TURN_SECONDS", 0.0)


@pytest.mark.usefixtures("turns_of_nothing")
@pytest.mark.parametrize("by_one", [False, True])
async def test_what_is_left_of_a_read_is_served_in_later_turns(by_one: bool) -> None:
    channel = Channel()
    connection = connect(channel)
    messages = [CALL % number for number in range(50)]
    for piece in [[message] for message in messages] if by_one else [messages]:
        connection.messages_received(piece)
    connection.batch_ended()
    assert len(channel.ids) < 5
    assert channel.paused, "what comes now would only be kept"

    await assert_fifty_come_a_few_at_a_time(channel)


async def test_a_turn_that_is_long_enough_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TURN_SECONDS", 60.0)
    channel = Channel()
    connection = connect(channel)
    connection.messages_received([CALL % number for number in range(5)])
    connection.batch_ended()
    assert (channel.ids, channel.paused) == (list(range(5)), False)


@pytest.mark.usefixtures("turns_of_nothing")
async def test_what_waited_for_one_request_is_served_in_turns_when_that_is_answered() -> None:
    channel = Channel()
    connection = connect(channel)
    gate = asyncio.Event()

    async def first() -> dict[str, str]:
        await gate.wait()
        return {}

    connection._handlers = {
        "process/write": lambda _, params: first() if params.write_id == "0" else {},
    }
    for number in range(50):
        connection.messages_received([WRITE % (number, number)])
        connection.batch_ended()
        await asyncio.sleep(0)
    assert (channel.ids, channel.paused) == ([], False)

    gate.set()
    await assert_fifty_come_a_few_at_a_time(channel)


@pytest.mark.usefixtures("turns_of_nothing")
async def test_a_connection_that_ends_between_its_turns_is_served_no_more() -> None:
    channel = Channel()
    connection = connect(channel)
    connection.messages_received([CALL % number for number in range(50)])
    served = len(channel.ids)
    connection.connection_lost()
    await asyncio.sleep(0.01)
    assert len(channel.ids) == served


@pytest.mark.usefixtures("turns_of_nothing")
async def test_a_connection_has_not_answered_while_a_turn_is_to_come() -> None:
    channel = Channel()
    connection = connect(channel)
    connection.messages_received([CALL % number for number in range(10)])
    connection.drain()
    assert not connection.has_answered
    for _ in range(50):
        await asyncio.sleep(0)
    assert channel.ids == list(range(10))
    assert [connection.has_answered] == [True]
