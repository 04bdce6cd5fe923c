"""A daemon asks the client about hosts and tells it of decisions: with a scripted peer."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from execclient import NetworkDecision, NetworkRequest, connect
from execclient.session.network import NO_HANDLER, RELEASED, NetworkHandlers
from execclient.sync import connect as connect_blocking
from execprotocol.network import Decision
from tests.integration.client.conftest import Peer, ScriptedDaemon, connect_to

FAILED = {"type": "deny", "reason": "the client failed to decide", "scope": "once"}


def question(number: int, host: str = "a.test", process_id: str = "p1") -> dict[str, Any]:
    request = {"protocol": "https_connect", "host": host, "port": 443}
    params = {"processId": process_id, "request": request}
    return {"id": number, "method": "network/policyRequest", "params": params}


def decided(host: str, process_id: str = "p1") -> dict[str, Any]:
    params = {
        "processId": process_id, "timestamp": "2026-11-26T16:51:23.879Z", "scope": "domain",
        "decision": "deny", "source": "decider", "reason": "no",
        "protocol": "https_connect", "host": host, "port": 443,
        "method": "CONNECT", "client": "127.0.0.1:1", "policyOverride": False,
    }  # fmt: skip
    return {"method": "network/policyDecision", "params": params}


@pytest.mark.parametrize("name", ["on_network_request", "on_network_decision"])
@pytest.mark.parametrize("connecting", [connect, connect_blocking])
def test_a_handler_that_is_no_function_is_refused_before_anything_connects(
    connecting: Callable[..., object], name: str
) -> None:
    with pytest.raises(TypeError, match=f"{name} is a function, not bool"):
        connecting("unix:///nowhere", **{name: True})


async def ask(peer: Peer, number: int = 1, host: str = "a.test") -> Any:
    """The client's decision."""
    peer.send(question(number, host))
    answer = await peer.receive()
    assert answer.keys() == {"id", "result"}
    assert answer["id"] == number
    return answer["result"]["decision"]


async def asynchronous(_: NetworkRequest) -> Decision:
    await asyncio.sleep(0.01)
    return Decision("ask", "a person has to decide")


@pytest.mark.parametrize(
    ("handler", "decision"),
    [
        (lambda _: True, {"type": "allow"}),
        (lambda _: False, {"type": "deny"}),
        (lambda _: Decision("allow", scope="once"), {"type": "allow", "scope": "once"}),
        (
            lambda _: Decision("deny", "not here", "session"),
            {"type": "deny", "reason": "not here", "scope": "session"},
        ),
        (asynchronous, {"type": "ask", "reason": "a person has to decide"}),
        (lambda _: Decision("deny", "é" * 600), {"type": "deny", "reason": "é" * 512}),
    ],
)  # fmt: skip
async def test_the_handler_decides(scripted: ScriptedDaemon, handler: Any, decision: Any) -> None:
    asked: list[NetworkRequest] = []

    def remembering(request: NetworkRequest) -> Any:
        asked.append(request)
        return handler(request)

    async with connect_to(scripted, on_network_request=remembering) as (_, peer):
        assert await ask(peer) == decision
        assert asked == [NetworkRequest("p1", "https_connect", "a.test", 443)]


def fails(_: NetworkRequest) -> bool:
    raise RuntimeError("a fault in the handler")


async def fails_later(_: NetworkRequest) -> bool:
    await asyncio.sleep(0)
    raise RuntimeError("a fault in the handler")


@pytest.mark.parametrize("handler", [fails, fails_later, lambda _: None, lambda _: 1, lambda _: "allow"])
async def test_a_handler_that_fails_denies_and_the_connection_goes_on(
    scripted: ScriptedDaemon, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "execclient"):
        async with connect_to(scripted, on_network_request=handler) as (_, peer):
            assert await ask(peer, 1) == FAILED
            assert await ask(peer, 2) == FAILED


async def test_without_a_handler_the_host_is_denied_once(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (_, peer):
        assert await ask(peer) == {"type": "deny", "reason": NO_HANDLER, "scope": "once"}


async def test_an_unknown_request_gets_an_error(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (_, peer):
        peer.send({"id": 5, "method": "network/somethingElse", "params": {}})
        assert (await peer.receive())["error"]["code"] == -32601
        peer.send({"id": "text", "method": "network/somethingElse"})
        assert (await peer.receive())["id"] == "text"


@pytest.mark.parametrize("params", [None, {}, {"processId": "p1"}, {"processId": "p1", "request": {}}, []])
async def test_a_question_without_its_members_gets_an_error(scripted: ScriptedDaemon, params: Any) -> None:
    async with connect_to(scripted, on_network_request=lambda _: True) as (_, peer):
        peer.send({"id": 1, "method": "network/policyRequest", "params": params})
        assert (await peer.receive())["error"]["code"] == -32602
        assert await ask(peer, 2) == {"type": "allow"}


async def test_questions_do_not_wait_for_each_other_and_calls_go_on(scripted: ScriptedDaemon) -> None:
    gates = {"a.test": asyncio.Event(), "b.test": asyncio.Event()}

    async def waits(request: NetworkRequest) -> bool:
        await gates[request.host].wait()
        return True

    async with connect_to(scripted, on_network_request=waits) as (executor, peer):
        peer.send(question(1, "a.test"), question(2, "b.test"))
        call = asyncio.create_task(executor.call("environment/status", {}))
        await peer.answer("environment/status", {"status": "ready"})
        await call
        gates["b.test"].set()
        assert (await peer.receive())["id"] == 2
        gates["a.test"].set()
        assert (await peer.receive())["id"] == 1


class Person:
    """Decides when the test says so."""

    def __init__(self) -> None:
        self.asked: list[NetworkRequest] = []
        self.came = asyncio.Event()
        self.decides = asyncio.Event()

    async def __call__(self, request: NetworkRequest) -> bool:
        self.asked.append(request)
        self.came.set()
        await self.decides.wait()
        return True


@pytest.mark.parametrize("decides", ["before the next connection", "after it"])
async def test_a_person_is_asked_once_although_the_connection_is_lost(
    scripted: ScriptedDaemon, decides: str
) -> None:
    person = Person()
    async with connect_to(scripted, on_network_request=person) as (_, peer):
        peer.send(question(1))
        await person.came.wait()
        await peer.close()
        peer = await scripted.accept()
        if decides == "before the next connection":
            person.decides.set()
            await asyncio.sleep(0.05)
        await peer.handshake()
        peer.send(question(1))
        await asyncio.sleep(0.05)
        person.decides.set()
        assert (await peer.receive())["result"]["decision"] == {"type": "allow"}
        assert len(person.asked) == 1
        await ask(peer, 2)
        assert len(person.asked) == 2, "this one is another question"


async def test_a_handler_of_a_process_that_is_released_denies(scripted: ScriptedDaemon) -> None:
    person = Person()
    async with connect_to(scripted, on_network_request=lambda _: True) as (executor, peer):
        network = executor._session.network
        network.serve("p1", NetworkHandlers(person))
        peer.send(question(1))
        await person.came.wait()
        network.release("p1")
        assert (await peer.receive())["result"]["decision"] == {
            "type": "deny", "reason": RELEASED, "scope": "once",
        }  # fmt: skip


async def test_closing_with_keep_leaves_an_open_question_to_the_next_client(scripted: ScriptedDaemon) -> None:
    person = Person()
    async with connect_to(scripted, on_network_request=person, keep=True) as (executor, peer):
        peer.send(question(1))
        await person.came.wait()
        closing = asyncio.create_task(executor.close())
        assert await peer.receive() == {}, "the connection ends without an answer"
        await closing


async def test_closing_ends_a_handler_that_still_decides(scripted: ScriptedDaemon) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def never(_: NetworkRequest) -> bool:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    async with connect_to(scripted, on_network_request=never) as (_, peer):
        peer.send(question(1))
        await asyncio.wait_for(begun.wait(), 10)
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_process_may_have_handlers_of_its_own(scripted: ScriptedDaemon) -> None:
    seen: list[str] = []
    async with connect_to(scripted, on_network_request=lambda _: False) as (executor, peer):
        network = executor._session.network
        network.serve("p1", NetworkHandlers(lambda _: True, lambda decision: seen.append(decision.host)))
        assert await ask(peer, 1) == {"type": "allow"}
        peer.send(decided("a.test"), decided("b.test", "another"))
        network.release("p1")
        assert await ask(peer, 2) == {"type": "deny"}
        assert seen == []  # released before the events came
        network.serve("p1", NetworkHandlers(lambda _: True, lambda decision: seen.append(decision.host)))
        peer.send(decided("c.test"), decided("d.test", "another"))
        await ask(peer, 3)
        assert seen == ["c.test"]


async def test_decisions_are_reported_in_order_one_at_a_time(
    scripted: ScriptedDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = [f"{number}.test" for number in range(20)]
    running, seen, over = 0, [], asyncio.Event()

    async def handler(decision: NetworkDecision) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        seen.append(decision)
        if len(seen) == len(hosts):
            over.set()
        if decision.host == "3.test":
            raise RuntimeError("a fault in the handler")

    with caplog.at_level(logging.CRITICAL, "execclient"):
        async with connect_to(scripted, on_network_decision=handler) as (_, peer):
            peer.send(*map(decided, hosts))
            await asyncio.wait_for(over.wait(), 10)
    assert [each.host for each in seen] == hosts
    assert seen[0] == NetworkDecision(
        process_id="p1", timestamp="2026-11-26T16:51:23.879Z", decision="deny", source="decider", reason="no",
        protocol="https_connect", host="0.test", port=443, method="CONNECT", policy_override=False,
    )  # fmt: skip


async def test_handlers_without_an_event_loop_may_block_and_make_calls(scripted: ScriptedDaemon) -> None:
    """`execclient.sync`."""
    connected = threading.Event()
    threads: list[threading.Thread] = []
    hosts: list[str] = []
    executors: list[Any] = []

    def decide(request: NetworkRequest) -> bool:
        threads.append(threading.current_thread())
        status = executors[0].call("environment/status", {})
        return bool(status["status"] == "ready")

    def use() -> None:
        seen: Callable[[NetworkDecision], None] = lambda decision: hosts.append(decision.host)  # noqa: E731
        with connect_blocking(scripted.url, on_network_request=decide, on_network_decision=seen) as executor:
            executors.append(executor)
            connected.set()
            over.wait(10)

    over = threading.Event()
    using = asyncio.create_task(asyncio.to_thread(use))
    peer = await scripted.session()
    await asyncio.to_thread(connected.wait, 10)
    peer.send(decided("a.test"), decided("b.test"), question(1))
    await peer.answer("environment/status", {"status": "ready"})
    assert (await peer.receive())["result"]["decision"] == {"type": "allow"}
    async with asyncio.timeout(10):
        while hosts != ["a.test", "b.test"]:
            await asyncio.sleep(0.01)
    over.set()
    await asyncio.gather(using, peer.agree())
    assert threads[0] is not threading.current_thread()
