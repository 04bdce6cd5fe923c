"""A small request that is sent together with a long poll is answered before the poll is taken in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from execserver.rpc.connection import Connection
from execserver.rpc.handlers import Caller
from execserver.rpc.quick_answers import QuickAnswers
from execserver.rpc.repeats import Repeats
from tests.support.channels import OpenChannel, id_of

POLL = b'{"id":%d,"method":"process/read","params":{"processId":"p","waitMs":9}}'
READ = b'{"id":%d,"method":"process/read","params":{"processId":"p"}}'
INFO = b'{"id":%d,"method":"environment/info"}'
OTHER = b'{"id":%d,"method":"environment/status"}'


class Channel(OpenChannel):
    """A peer that takes everything at once; keeps what it was sent, and what left early."""

    def __init__(self) -> None:
        self.order: list[int | str] = []

    def send(self, parts: Sequence[bytes]) -> None:
        self.order.append(id_of(parts))

    def send_all(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            self.send((message,))

    def hasten(self) -> None:
        self.order.append("now")

    def pause_reading(self) -> None:
        pass


def connect(concurrency: int | None = None) -> tuple[Connection, Channel]:
    """A connection behind its handshake that has had each of these messages twice."""
    channel = Channel()
    repeats = Repeats()
    for message in (POLL, READ, INFO, OTHER) * 2:
        repeats.find(message % 1)

    def read(caller: Caller, params: Any) -> dict[str, str]:
        channel.order.append("read")
        return {}

    quick = QuickAnswers(repeats)
    quick.add({"environment/info": lambda _: lambda _: b"{}"})
    connection = Connection(
        channel,  # type: ignore[arg-type]
        {"process/read": read, "environment/status": lambda caller, params: {}},
        concurrency,
        lambda _: None,
        quick,
    )
    connection._check_handshake = lambda method: None  # type: ignore[method-assign]  # of no interest here
    connection._receive(OTHER % 0)  # says what it speaks
    connection._answers_quickly = True
    channel.order.clear()
    return connection, channel


async def test_it_leaves_before_the_poll_is_taken_in() -> None:
    connection, channel = connect()
    connection.messages_received([POLL % 1, INFO % 2, INFO % 3])
    assert channel.order == [2, 3, "now", "read", 1]


@pytest.mark.parametrize(
    ("messages", "order"),
    [
        ([POLL % 1, OTHER % 2, INFO % 3], ["now", "read", 1, 2, 3]),
        ([POLL % 1, POLL % 2, INFO % 3], ["now", "read", 1, 3, "now", "read", 2]),
        ([POLL % 1, INFO % 2, POLL % 3, INFO % 4], [2, "now", "read", 1, 4, "now", "read", 3]),
        ([INFO % 1, POLL % 2], [1, "read", 2]),
        ([READ % 1, INFO % 2], ["read", 1, 2]),
        ([POLL % 1, READ % 2, INFO % 3], ["now", "read", 1, "read", 2, 3]),
        ([POLL % 1], ["read", 1]),
    ],
)
async def test_whatever_is_sent_together_is_answered_once(
    messages: list[bytes], order: list[int | str]
) -> None:
    connection, channel = connect()
    connection.messages_received(messages)
    assert channel.order == order


async def test_one_at_a_time_means_in_order() -> None:
    connection, channel = connect(concurrency=1)
    connection.messages_received([POLL % 1, INFO % 2])
    assert channel.order == ["read", 1, 2]
