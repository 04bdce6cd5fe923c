"""The decisions of a session: what is asked, what is kept, and that every failure denies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from execprotocol.errors import RpcError
from execprotocol.network import Decision, NetworkProtocol, NetworkRequest
from execserver.sessions.network_decisions import MAX_EVENTS, NetworkDecisions
from execserver.spool.records import KEPT_NETWORK_DECISIONS, NetworkAnswer, NetworkTarget

ALLOW: Any = {"decision": {"type": "allow"}}
DENIED = Decision("deny", scope="once")
LONG = 60.0
SHORT = 0.05


def to(host: str, port: int = 80, protocol: NetworkProtocol = "http") -> NetworkRequest:
    return NetworkRequest(protocol, host, port)


class Client:
    """A connection whose client answers when the test says so."""

    def __init__(self, *, extensions: bool = True) -> None:
        self.extensions = extensions
        self.asked: list[Mapping[str, Any]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.came = asyncio.Condition()
        self.events: list[Any] = []
        self.room = 1000

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        assert method == "network/policyRequest"
        self.asked.append(params)
        self.answers.append(asyncio.get_running_loop().create_future())
        async with self.came:
            self.came.notify_all()
        return await self.answers[-1]

    def may_queue_event(self) -> bool:
        return len(self.events) < self.room

    def send_event(self, parts: Sequence[bytes]) -> None:
        event = json.loads(b"".join(parts))
        assert event.keys() == {"method", "params"}
        assert event["method"] == "network/policyDecision"
        self.events.append(event["params"]["host"])

    async def question(self, number: int = 1) -> asyncio.Future[Any]:
        """The answer that the client gives to its question of this number, from 1 on."""
        async with self.came:
            await self.came.wait_for(lambda: len(self.answers) >= number)
        return self.answers[number - 1]


class Answering(Client):
    """A client that answers each question at once."""

    def __init__(self, answer: Any, *, extensions: bool = True) -> None:
        super().__init__(extensions=extensions)
        self.answer = answer

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        self.asked.append(params)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Records(list[tuple[NetworkTarget, NetworkAnswer]]):
    """The ledger's part; full if told so."""

    full = False

    def record(self, target: NetworkTarget, answer: NetworkAnswer) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.append((target, answer))


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
async def decisions(records: Records) -> NetworkDecisions:
    return NetworkDecisions(records.record, {})


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_answer_is_asked_for_once_and_kept(decisions: NetworkDecisions, records: Records) -> None:
    client = Answering({"decision": {"type": "deny", "reason": "no"}})
    decisions.set_client(client)
    for process in ("p", "p", "q"):
        decided = await decisions.decide(process, to("a.test"), LONG)
        assert (decided.type, decided.reason) == ("deny", "no")
    request = {"protocol": "http", "host": "a.test", "port": 80}
    assert client.asked == [
        {"processId": "p", "request": request, "questionId": client.asked[0]["questionId"]}
    ]
    assert records == [(("http", "a.test", 80), ("deny", "no"))]


async def test_another_protocol_host_or_port_is_another_question(decisions: NetworkDecisions) -> None:
    client = Answering(ALLOW)
    decisions.set_client(client)
    others = [to("a.test"), to("b.test"), to("a.test", 81), to("a.test", 80, "socks5_tcp")]
    for request in others:
        await decisions.decide("p", request, LONG)
    assert len(client.asked) == len(others)


@pytest.mark.parametrize(
    ("decision", "extensions"),
    [
        ({"type": "allow", "scope": "once"}, True),
        ({"type": "deny", "scope": "once"}, True),
        ({"type": "ask", "reason": "a person has to decide"}, True),
        ({"type": "ask", "scope": "session"}, True),
        ({"type": "allow"}, False),
    ],
)
async def test_some_answers_hold_for_one_question_only(
    decisions: NetworkDecisions, records: Records, decision: Any, extensions: bool
) -> None:
    client = Answering({"decision": decision}, extensions=extensions)
    decisions.set_client(client)
    for _ in range(2):
        assert (await decisions.decide("p", to("a.test"), LONG)).type == decision["type"]
    assert (len(client.asked), records) == (2, [])


async def test_a_client_without_extensions_may_have_an_answer_kept(decisions: NetworkDecisions) -> None:
    client = Answering({"decision": {"type": "allow", "scope": "session"}}, extensions=False)
    decisions.set_client(client)
    for _ in range(2):
        await decisions.decide("p", to("a.test"), LONG)
    assert len(client.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        None, {}, [], "allow", {"decision": None}, {"decision": "allow"}, {"decision": {}},
        {"decision": {"type": "yes"}}, {"decision": {"type": "Allow"}}, {"decision": {"type": ["allow"]}},
        {"decision": {"type": "allow", "reason": 5}}, {"decision": {"type": "allow", "scope": "forever"}},
        {"decision": {"type": "allow", "reason": "r" * 1025}},
        {"decision": {"type": "allow", "reason": "é" * 513}},
        RpcError("no"),
    ],
)  # fmt: skip
async def test_what_is_no_answer_denies_and_is_not_kept(
    decisions: NetworkDecisions, records: Records, answer: Any
) -> None:
    client = Answering(answer)
    decisions.set_client(client)
    assert await decisions.decide("p", to("a.test"), LONG) == DENIED
    client.answer = ALLOW
    assert (await decisions.decide("p", to("a.test"), LONG)).type == "allow"
    assert len(records) == 1


async def test_a_reason_of_1024_bytes_is_taken(decisions: NetworkDecisions) -> None:
    decisions.set_client(Answering({"decision": {"type": "deny", "reason": "é" * 512}}))
    assert (await decisions.decide("p", to("a.test"), LONG)).reason == "é" * 512


async def test_a_host_of_more_than_253_bytes_is_denied_unasked(decisions: NetworkDecisions) -> None:
    client = Answering(ALLOW)
    decisions.set_client(client)
    assert await decisions.decide("p", to("a" * 254), LONG) == DENIED
    assert client.asked == []
    assert (await decisions.decide("p", to("a" * 253), LONG)).type == "allow"


async def test_without_an_answer_in_time_the_host_is_denied(decisions: NetworkDecisions) -> None:
    client = Client()
    decisions.set_client(client)
    assert await decisions.decide("p", to("a.test"), SHORT) == DENIED
    assert client.answers[0].cancelled(), "the question is withdrawn"
    again = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    (await client.question(2)).set_result(ALLOW)
    assert (await again).type == "allow"


async def test_without_a_client_the_host_is_denied_in_time(decisions: NetworkDecisions) -> None:
    assert await decisions.decide("p", to("a.test"), SHORT) == DENIED
    assert await decisions.decide("p", to("a.test"), 0) == DENIED


async def test_the_longest_possible_time_limit_is_accepted(decisions: NetworkDecisions) -> None:
    decisions.set_client(Answering(ALLOW))
    assert (await decisions.decide("p", to("a.test"), 2**64 / 1000)).type == "allow"


async def test_a_question_whose_connection_is_lost_is_asked_on_the_next(decisions: NetworkDecisions) -> None:
    first, second = Client(), Client()
    decisions.set_client(first)
    waiting = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    (await first.question()).set_exception(ConnectionResetError())
    decisions.set_client(None)
    await settle()
    assert not waiting.done()
    decisions.set_client(second)
    (await second.question()).set_result(ALLOW)
    assert (await waiting).type == "allow"
    assert second.asked == first.asked


async def test_a_connection_that_takes_no_questions_is_asked_once(decisions: NetworkDecisions) -> None:
    lost = Answering(ConnectionResetError())
    decisions.set_client(lost)
    assert await decisions.decide("p", to("a.test"), SHORT) == DENIED
    assert len(lost.asked) == 1


async def test_equal_questions_at_a_time_are_one(decisions: NetworkDecisions) -> None:
    client = Client()
    decisions.set_client(client)
    waiting = [asyncio.create_task(decisions.decide(each, to("a.test"), LONG)) for each in ("p", "p", "q")]
    answer = await client.question()
    await settle()
    answer.set_result(ALLOW)
    assert [each.type for each in await asyncio.gather(*waiting)] == ["allow"] * 3
    assert len(client.asked) == 1


async def test_an_answer_for_one_question_is_not_that_of_another_process(decisions: NetworkDecisions) -> None:
    client = Client()
    decisions.set_client(client)
    of_p = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    of_q = asyncio.create_task(decisions.decide("q", to("a.test"), LONG))
    (await client.question()).set_result({"decision": {"type": "allow", "scope": "once"}})
    assert (await of_p).type == "allow"
    (await client.question(2)).set_result({"decision": {"type": "deny"}})
    assert (await of_q).type == "deny"
    assert [each["processId"] for each in client.asked] == ["p", "q"]


async def test_processes_of_a_client_without_extensions_do_not_wait_for_each_other(
    decisions: NetworkDecisions,
) -> None:
    client = Client(extensions=False)
    decisions.set_client(client)
    of_p = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    of_q = asyncio.create_task(decisions.decide("q", to("a.test"), LONG))
    (await client.question(2)).set_result(ALLOW)
    assert (await of_q).type == "allow"
    assert not of_p.done()
    (await client.question(1)).set_result({"decision": {"type": "deny"}})
    assert (await of_p).type == "deny"


async def test_each_process_has_its_own_time_limit_for_a_common_question(decisions: NetworkDecisions) -> None:
    client = Client()
    decisions.set_client(client)
    patient = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    assert await decisions.decide("q", to("a.test"), SHORT) == DENIED
    (await client.question()).set_result(ALLOW)
    assert (await patient).type == "allow"
    assert len(client.asked) == 1


async def test_a_question_ends_with_the_last_process_that_waits(decisions: NetworkDecisions) -> None:
    client = Client()
    decisions.set_client(client)
    waiting = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    answer = await client.question()
    waiting.cancel()
    again = asyncio.create_task(decisions.decide("p", to("a.test"), LONG))
    (await client.question(2)).set_result(ALLOW)
    assert (await again).type == "allow"
    assert answer.cancelled()


async def test_answers_of_an_earlier_server_hold(records: Records) -> None:
    decisions = NetworkDecisions(records.record, {("http", "a.test", 80): ("allow", None)})
    assert (await decisions.decide("p", to("a.test"), SHORT)).type == "allow"


async def test_an_answer_that_cannot_be_recorded_holds_once(
    decisions: NetworkDecisions, records: Records
) -> None:
    client = Answering(ALLOW)
    decisions.set_client(client)
    records.full = True
    assert (await decisions.decide("p", to("a.test"), LONG)).type == "allow"
    assert (await decisions.decide("p", to("a.test"), LONG)).type == "allow"
    assert len(client.asked) == 2


async def test_the_oldest_answer_gives_way_to_the_newest(decisions: NetworkDecisions) -> None:
    client = Answering(ALLOW)
    decisions.set_client(client)
    for number in range(KEPT_NETWORK_DECISIONS + 1):
        await decisions.decide("p", to(f"{number}.test"), LONG)
    await decisions.decide("p", to("1.test"), LONG)
    assert len(client.asked) == KEPT_NETWORK_DECISIONS + 1
    await decisions.decide("p", to("0.test"), LONG)
    assert len(client.asked) == KEPT_NETWORK_DECISIONS + 2


def event(host: str) -> Any:
    return {"processId": "p", "host": host}


async def test_events_wait_for_a_client_that_takes_none_and_for_the_next_one(
    decisions: NetworkDecisions,
) -> None:
    decisions.report(event("0"))
    client = Client()
    client.room = 2
    decisions.set_client(client)
    for host in "1234":
        decisions.report(event(host))
    assert client.events == ["0", "1"]
    client.room = 4
    decisions.send_events()
    assert client.events == ["0", "1", "2", "3"]
    decisions.set_client(None)
    decisions.report(event("5"))
    following = Client()
    decisions.set_client(following)
    assert following.events == ["4", "5"]


async def test_the_oldest_waiting_events_are_dropped(decisions: NetworkDecisions) -> None:
    for number in range(MAX_EVENTS + 5):
        decisions.report(event(str(number)))
    client = Client()
    decisions.set_client(client)
    assert client.events == [str(number) for number in range(5, MAX_EVENTS + 5)]
