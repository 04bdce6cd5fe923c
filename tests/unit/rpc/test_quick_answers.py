"""What is answered in one loop is what the long way would say, and everything else is left to that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.protocol.methods import METHODS
from execserver.rpc import envelope
from execserver.rpc.params import decode_params
from execserver.rpc.quick_answers import FLUSH_BYTES, POLL, Answerer, QuickAnswers, may_be_overtaken
from execserver.rpc.repeats import MAX_MESSAGE_BYTES, MAX_REMEMBERED, Repeats
from execserver.telemetry import measures as counting

INFO = b'{"id":%d,"method":"environment/info"}'
STATUS = b'{"id":%d,"method":"environment/status"}'
PATH = b'{"id":%d,"method":"fs/getMetadata","params":{"path":"file:///%d"}}'

READ = b'{"id":%d,"method":"process/read","params":{"processId":"p"%b}}'


class Peer:
    """Asks, and keeps what it is sent."""

    def __init__(self, *, extensions: bool = False) -> None:
        self.extensions = extensions
        self.sent: list[list[bytes]] = []

    def send_all(self, messages: Sequence[bytes]) -> None:
        self.sent.append(list(messages))

    @property
    def answers(self) -> list[bytes]:
        return [message for messages in self.sent for message in messages]


class Quick(QuickAnswers):
    """Knows some messages; each look has its number in the answer."""

    def __init__(self, *known: bytes) -> None:
        self.looks = 0
        self.gives: bytes | None = b"%d"
        repeats = Repeats()
        for message in known * 2:
            repeats.find(message)
        super().__init__(repeats)
        self.add({"environment/info": lambda _: self.look, "fs/getMetadata": self.prepare})
        self.prepares: Answerer | None = self.look

    def look(self, _: object) -> bytes | None:
        self.looks += 1
        return self.gives and self.gives % self.looks

    def prepare(self, _: object) -> Answerer | None:
        return self.prepares

    def ask(self, *messages: bytes | bytearray, position: int = 0, peer: Peer | None = None) -> int:
        self.peer = peer or Peer()
        return self.answer(messages, position, self.peer, self.peer)


def test_each_gets_its_answer_under_its_own_id_and_in_order() -> None:
    quick = Quick(INFO % 1, PATH % (1, 1))

    assert quick.ask(INFO % 7, PATH % (8, 1), INFO % 9) == 3

    assert quick.peer.answers == [b'{"id":7,"result":1}', b'{"id":8,"result":2}', b'{"id":9,"result":3}']


def test_the_same_question_several_times_in_a_row_is_one_look() -> None:
    quick = Quick(INFO % 1, PATH % (1, 1))

    quick.ask(INFO % 1, INFO % 2, INFO % 3, PATH % (4, 1), PATH % (5, 1), INFO % 6)
    assert [answer[-2:-1] for answer in quick.peer.answers] == [b"1", b"1", b"1", b"2", b"2", b"3"]

    quick.ask(INFO % 1)
    assert quick.peer.answers == [b'{"id":1,"result":4}']


@pytest.mark.parametrize(
    "other",
    [
        STATUS % 5,  # known, but nothing prepares it
        PATH % (5, 2),  # never seen
        b'{"id":"5","method":"environment/info"}',
        b'{"id":05,"method":"environment/info"}',
        b' {"id":5,"method":"environment/info"}',
        b'{"id":5,"method":"environment/info","trace":{"traceparent":"x"}}',
        b'{"id":5,"method":"environment/info"}x',
        b'{"id":5,"result":{}}',
        bytearray(INFO % 5),
        INFO % 5 + b" " * MAX_MESSAGE_BYTES,
        b"",
    ],
)
def test_it_goes_as_far_as_the_first_that_is_none_of_these(other: bytes | bytearray) -> None:
    quick = Quick(INFO % 1, STATUS % 1)

    assert quick.ask(INFO % 1, INFO % 2, other, INFO % 3) == 2
    assert [answer[:8] for answer in quick.peer.answers] == [b'{"id":1,', b'{"id":2,']

    assert quick.ask(INFO % 1, INFO % 2, other, INFO % 3, position=2) == 2
    assert quick.peer.sent == []
    assert quick.ask(INFO % 1, INFO % 2, other, INFO % 3, position=3) == 4


def test_what_a_look_does_not_want_to_say_is_left_to_the_long_way() -> None:
    quick = Quick(INFO % 1)
    quick.gives = None

    assert quick.ask(INFO % 1, INFO % 2) == 0
    assert (quick.looks, quick.peer.sent) == (1, [])

    quick.gives = b"%d"
    assert quick.ask(INFO % 1, INFO % 2) == 2


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        (READ % (3, b',"waitMs":5'), True),
        (READ % (3, b',"waitMs":0'), False),
        (READ % (3, b""), False),
        (READ % (3, b',"afterSeq":7,"maxBytes":null,"waitMs":60000'), True),
        (READ % (3, b',"afterSeq":07,"waitMs":5'), False),
        (READ % (3, b',"waitMs":-1'), False),
        (READ % (3, b',"waitMs":5,"sessionId":"x"'), False),
        (READ % (3, b',"waitMs":5') + b"x", False),
        ((READ % (3, b',"waitMs":5')).replace(b'"p"', b'""'), False),
        ((READ % (3, b',"waitMs":5')).replace(b'"p"', b'"\xff"'), False),
        ((READ % (3, b',"waitMs":5')).replace(b'"p"', b'"\\q"'), False),
        (INFO % 3, False),
        (b" " + READ % (3, b',"waitMs":5'), False),
        (b"", False),
    ],
)
def test_what_needs_but_a_look_may_overtake_a_read_that_waits_and_nothing_else(
    message: bytes | bytearray, waits: bool
) -> None:
    assert may_be_overtaken(message) == waits


@given(st.from_regex(POLL, fullmatch=True))
def test_a_read_that_may_be_overtaken_has_nothing_wrong_in_it(message: bytes) -> None:
    request = envelope.decode(message)
    assert isinstance(request, envelope.Request)
    params: Any = decode_params(METHODS[request.method], request.params)
    assert params.wait_ms > 0


def test_parameters_that_nothing_can_be_prepared_for_are_left_to_the_long_way() -> None:
    quick = Quick(PATH % (1, 1))
    quick.prepares = None

    assert quick.ask(PATH % (1, 1)) == 0


def test_answers_leave_in_pieces_of_a_few_kibibytes() -> None:
    quick = Quick(INFO % 1)
    quick.gives = b'"%d' + b"x" * 500 + b'"'
    count = 5 * FLUSH_BYTES // 500

    assert quick.ask(*(INFO % number for number in range(count))) == count

    assert len(quick.peer.answers) == count
    sizes = [sum(map(len, messages)) for messages in quick.peer.sent]
    assert len(sizes) >= 5
    assert max(sizes) < FLUSH_BYTES + 600


def test_every_request_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = counting.Measures()
    monkeypatch.setattr("execserver.rpc.quick_answers.measures", measures)
    quick = Quick(INFO % 1, PATH % (1, 1))

    quick.ask(INFO % 1, INFO % 2, PATH % (3, 1), INFO % 4, STATUS % 5)

    info, path = measures.requests["environment/info"], measures.requests["fs/getMetadata"]
    assert (info.codes, sum(info.buckets)) == ({0: 3}, 3)
    assert (path.codes, sum(path.buckets)) == ({0: 1}, 1)
    assert info.seconds > 0
    assert path.seconds > 0
    assert not measures.requests["environment/status"].codes


def test_only_so_many_are_kept_prepared() -> None:
    quick = Quick()
    for number in range(2 * MAX_REMEMBERED):
        for _ in range(2):
            quick._repeats.find(PATH % (1, number))
        assert quick.ask(PATH % (1, number)) == 1
        assert len(quick._prepared) <= MAX_REMEMBERED


def test_each_message_is_looked_at_once_or_twice_however_they_alternate() -> None:
    looks = 0

    class Counting(list[bytes]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looks
            found = super().__getitem__(key)
            looks += len(found) if isinstance(key, slice) else 1
            return found

    quick, peer = Quick(INFO % 1), Peer()
    messages = Counting(INFO % number if number % 2 else STATUS % number for number in range(1000))

    position = 0
    while position < len(messages):
        position = quick.answer(messages, position, peer, peer) + 1

    assert len(peer.answers) == 500
    assert looks <= 2000
