"""`network=` of `run` and `start`, with a scripted peer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from execclient import (
    NetworkAccess,
    NetworkDecision,
    NetworkRequest,
    ReadOnly,
    Refused,
    SystemFailure,
)
from execprotocol.network import Decision
from tests.integration.client.conftest import Peer, ScriptedDaemon, connect_to

PYPI = NetworkAccess(allow=("pypi.org",))


class Own:
    """The network of a process that answers for itself."""

    def __init__(self) -> None:
        self.asked: list[NetworkRequest] = []
        self.reported: list[NetworkDecision] = []
        self.waiting = asyncio.Event()
        self.cancelled = False

    def wire(self) -> Mapping[str, Any]:
        return NetworkAccess(ask=True).wire()

    async def decide(self, request: NetworkRequest) -> Decision:
        self.asked.append(request)
        if request.host == "slow.example":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True
        return Decision("allow", None, "once")

    def report(self, decision: NetworkDecision) -> None:
        self.reported.append(decision)


def question(number: int, process_id: str, host: str = "a.example") -> dict[str, Any]:
    request = {"protocol": "https_connect", "host": host, "port": 443}
    return {
        "id": number,
        "method": "network/policyRequest",
        "params": {"processId": process_id, "request": request},
    }


async def answer(peer: Peer, number: int, process_id: str) -> str:
    peer.send(question(number, process_id))
    return str((await peer.receive())["result"]["decision"]["type"])


@pytest.mark.parametrize("sandbox", [None, ReadOnly()], ids=["unconfined", "confined"])
async def test_a_sandbox_enforces_the_proxy(scripted: ScriptedDaemon, sandbox: ReadOnly | None) -> None:
    async with connect_to(scripted) as (executor, peer):
        starting = asyncio.create_task(executor.start(["x"], cwd="/w", sandbox=sandbox, network=PYPI))
        params = (await peer.answer("process/start", {}))["params"]
        await starting

    assert params["networkProxy"] == PYPI.wire()
    assert params.get("enforceManagedNetwork", False) is (sandbox is not None)


async def test_the_form_of_the_wire_is_sent_as_it_is(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        starting = asyncio.create_task(executor.start(["x"], network={"proxy": {"enabled": True}}))
        params = (await peer.answer("process/start", {}))["params"]
        await starting

    assert params["networkProxy"] == {"proxy": {"enabled": True}}


@pytest.mark.parametrize("network", [("pypi.org",), NetworkAccess])
async def test_something_else_is_refused_before_anything_starts(
    scripted: ScriptedDaemon, network: Any
) -> None:
    async with connect_to(scripted) as (executor, _):
        with pytest.raises(TypeError, match="network is a NetworkAccess"):
            await executor.run(["x"], network=network)


async def test_a_network_that_decides_itself_gets_the_questions_and_decisions_of_its_process(
    scripted: ScriptedDaemon,
) -> None:
    network = Own()
    async with connect_to(scripted, on_network_request=lambda _: False) as (executor, peer):
        starting = asyncio.create_task(executor.start(["x"], id="mine", network=network))
        await peer.answer("process/start", {})
        process = await starting

        assert await answer(peer, 1, "mine") == "allow"
        assert await answer(peer, 2, "another") == "deny"
        decided = {
            "processId": "mine", "timestamp": "", "decision": "deny", "source": "decider", "reason": "no",
            "protocol": "http", "host": "b.example", "port": 80, "method": None, "policyOverride": False,
        }  # fmt: skip
        peer.send({"method": "network/policyDecision", "params": decided})
        peer.send({"method": "network/policyDecision", "params": {**decided, "processId": "another"}})
        peer.send(question(3, "mine", "slow.example"))
        await network.waiting.wait()

        last = {"method": "network/policyDecision", "params": {**decided, "host": "c.example"}}
        peer.send(
            last,
            {"method": "process/exited", "params": {"processId": "mine", "seq": 1, "exitCode": 0}},
            {"method": "process/closed", "params": {"processId": "mine", "seq": 2}},
        )
        assert await process.wait() == 0
        assert await answer(peer, 4, "mine") == "deny"

    assert [request.host for request in network.asked] == ["a.example", "slow.example"]
    assert [decision.host for decision in network.reported] == ["b.example", "c.example"]
    assert network.cancelled, "the process is over, and its open question with it"


async def test_a_start_that_is_refused_leaves_the_questions_of_the_process_of_that_id_alone(
    scripted: ScriptedDaemon,
) -> None:
    first, second = Own(), Own()
    async with connect_to(scripted) as (executor, peer):
        starting = asyncio.create_task(executor.start(["x"], id="mine", network=first))
        await peer.answer("process/start", {})
        await starting
        again = asyncio.create_task(executor.start(["x"], id="mine", network=second))
        await peer.refuse("process/start", -32600, "process mine already exists")
        with pytest.raises(Refused):
            await again

        assert await answer(peer, 1, "mine") == "allow"
        assert (len(first.asked), len(second.asked)) == (1, 0)


async def test_a_start_that_fails_leaves_no_handlers_behind(scripted: ScriptedDaemon) -> None:
    network = Own()
    async with connect_to(scripted) as (executor, peer):
        starting = asyncio.create_task(executor.start(["x"], id="mine", network=network))
        await peer.refuse("process/start", -32603, "No such file or directory (os error 2)")
        with pytest.raises(SystemFailure):
            await starting

        assert await answer(peer, 1, "mine") == "deny"
        assert network.asked == []
