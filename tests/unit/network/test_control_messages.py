"""The messages between the server and its network proxies, which may be of different versions."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from execprotocol.network import Decision, NetworkRequest
from execserver.network.messages import Answer, Ask, Enter, Failed, Ready, receive, send
from execserver.network.variables import Ports

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


def test_a_message_arrives_with_its_descriptors(pair: Pair) -> None:
    messages = (
        Ready(Ports(61128, None)),
        Ask(7, NetworkRequest("http", "a.test", 80), 0.5),
        Answer(7, Decision("deny", "no")),
    )
    for sent in messages:
        send(pair[0], sent)
        assert receive(pair[1]) == (sent, [])
    reading, writing = os.pipe()
    send(pair[0], Enter(5), (writing,))
    os.close(writing)
    message, (passed,) = receive(pair[1])
    assert message == Enter(5)
    assert not os.get_inheritable(passed)
    os.write(passed, b"x")
    os.close(passed)
    assert os.read(reading, 2) == b"x"
    os.close(reading)


@pytest.mark.parametrize(
    "data", [b'{"type":"later"}', b'{"type":"ready"}', b"{", b"[]", b"\xff", b'{"type":"\xff"}']
)
def test_a_message_that_is_not_known_is_none_and_the_next_one_follows(pair: Pair, data: bytes) -> None:
    pair[0].send(data)
    send(pair[0], Failed("why"))
    assert receive(pair[1]) == (None, [])
    assert receive(pair[1]) == (Failed("why"), [])


def test_members_of_a_later_version_are_ignored(pair: Pair) -> None:
    pair[0].send(b'{"type":"failed","reason":"why","later":[1]}')
    assert receive(pair[1]) == (Failed("why"), [])


def test_the_last_message_arrives_from_an_end_that_left_ours_unread(pair: Pair) -> None:
    send(pair[1], Failed("unread"))
    send(pair[0], Failed("last"))
    pair[0].close()
    assert receive(pair[1]) == (Failed("last"), [])
    with pytest.raises(EOFError):
        receive(pair[1])
