"""Requests of the server, to clients that answer twice, late, out of turn, with an error or with garbage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from execprotocol.errors import RpcError
from execserver.rpc import admission
from execserver.rpc.connection import Connection
from execserver.rpc.handlers import Caller
from tests.support.channels import OpenChannel

CALL = b'{"id":%d,"method":"environment/status","params":{}}'
WAIT = b'{"id":%d,"method":"process/read","params":{"processId":"p"}}'


class Channel(OpenChannel):
    """A peer that takes everything at once."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.paused = self.aborted = False

    def send(self, parts: Sequence[bytes]) -> None:
        self.sent.append(json.loads(b"".join(parts)))

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True


class Peer:
    """A connection, as its peer has it."""

    def __init__(self, *, concurrency: int | None = None, json_rpc: bool = False) -> None:
        self.channel = Channel()
        self.gate = asyncio.Event()
        handlers: Any = {"environment/status": self._status, "process/read": self._read}
        self.connection = Connection(self.channel, handlers, concurrency, lambda _: None)  # type: ignore[arg-type]
        self.connection._check_handshake = lambda method: None  # type: ignore[method-assign]  # of no interest here
        self.json_rpc = json_rpc

    def _status(self, caller: Caller, params: Any) -> dict[str, str]:
        return {"status": "ready"}

    async def _read(self, caller: Caller, params: Any) -> dict[str, str]:
        await self.gate.wait()
        return {}

    async def begin(self) -> None:
        """Choose the dialect."""
        self.say({"id": 0, "method": "environment/status"})
        while not self.channel.sent:
            await asyncio.sleep(0.01)
        self.channel.sent.clear()

    def say(self, *messages: Any) -> None:
        """Send messages that arrive in one read."""
        version = {"jsonrpc": "2.0"} if self.json_rpc else {}
        self.connection.messages_received(
            [
                message
                if isinstance(message, bytes)
                else json.dumps({**version, **message} if isinstance(message, dict) else message).encode()
                for message in messages
            ]
        )
        self.connection.batch_ended()

    def is_read(self) -> bool:
        return not self.channel.paused

    def ask(self, name: str = "a") -> Awaitable[Any]:
        return asyncio.ensure_future(self.connection.request("network/policyRequest", {"name": name}))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture(params=[False, True], ids=["codex", "json-rpc"])
async def peer(request: pytest.FixtureRequest) -> Peer:
    peer = Peer(json_rpc=request.param)
    await peer.begin()
    return peer


async def test_a_request_has_the_form_of_its_dialect_and_ids_from_one_on(peer: Peer) -> None:
    asked = [peer.ask("a"), peer.ask("b")]
    await settle()
    version = {"jsonrpc": "2.0"} if peer.json_rpc else {}
    assert peer.channel.sent == [
        {**version, "id": number, "method": "network/policyRequest", "params": {"name": name}}
        for number, name in ((1, "a"), (2, "b"))
    ]
    peer.say({"id": 2, "result": {"for": "b"}}, {"id": 1, "result": {"for": "a"}})
    assert await asyncio.gather(*asked) == [{"for": "a"}, {"for": "b"}]


async def test_the_ids_of_the_client_are_a_space_of_their_own(peer: Peer) -> None:
    asked = peer.ask()
    await settle()
    peer.say({"id": 1, "method": "environment/status"}, {"id": 1, "result": 5})
    assert await asked == 5
    assert peer.channel.sent[-1]["result"] == {"status": "ready"}


async def test_an_error_is_raised_with_its_text(peer: Peer) -> None:
    for error, text in (({"code": -32601, "message": "no such"}, "no such"), ("x", ""), (None, ""), ([], "")):
        asked = peer.ask()
        await settle()
        peer.say({"id": peer.channel.sent[-1]["id"], "error": error})
        with pytest.raises(RpcError, match=text or "an error without a message"):
            await asked


async def test_a_result_beside_an_error_is_an_error(peer: Peer) -> None:
    asked = peer.ask()
    await settle()
    peer.say({"id": 1, "result": {"decision": {"type": "allow"}}, "error": {"code": 1, "message": "no"}})
    with pytest.raises(RpcError, match="no"):
        await asked


async def test_an_answer_that_comes_twice_or_late_is_ignored(peer: Peer) -> None:
    asked = peer.ask()
    await settle()
    peer.say({"id": 1, "result": 1}, {"id": 1, "result": 2})
    peer.say({"id": 1, "error": {"code": 1, "message": "3"}})
    assert await asked == 1

    late = asyncio.ensure_future(peer.ask())
    await settle()
    late.cancel()
    await settle()
    peer.say({"id": 2, "result": 1})
    assert not peer.channel.aborted


@pytest.mark.parametrize("number", [0, 2, -1, "1", "", 2**63 - 1])
async def test_an_answer_to_no_request_ends_a_codex_connection(number: Any) -> None:
    peer = Peer()
    await peer.begin()
    asked = asyncio.ensure_future(peer.ask())
    await settle()
    peer.say({"id": number, "result": 1})
    assert peer.channel.aborted
    peer.connection.connection_lost()
    with pytest.raises(ConnectionResetError):
        await asked


@pytest.mark.parametrize("number", [0, 2, "1", None, 1.0, True])
async def test_an_answer_to_no_request_is_ignored_in_json_rpc(number: Any) -> None:
    peer = Peer(json_rpc=True)
    await peer.begin()
    asked = peer.ask()
    await settle()
    peer.say({"id": number, "result": "wrong"}, {"id": 1, "result": "right"})
    assert await asked == "right"


async def test_answers_may_come_in_a_json_rpc_batch() -> None:
    peer = Peer(json_rpc=True)
    await peer.begin()
    asked = [peer.ask(), peer.ask()]
    await settle()
    call = {"jsonrpc": "2.0", "id": 7, "method": "environment/status"}
    peer.say([{"jsonrpc": "2.0", "id": 2, "result": "b"}, call, {"jsonrpc": "2.0", "id": 1, "result": "a"}])
    assert await asyncio.gather(*asked) == ["a", "b"]
    assert [reply["id"] for reply in peer.channel.sent[-1]] == [7]


async def test_a_lost_connection_ends_its_requests_and_takes_no_more(peer: Peer) -> None:
    asked = peer.ask()
    await settle()
    peer.connection.connection_lost()
    for each in (asked, peer.ask()):
        with pytest.raises(ConnectionResetError):
            await each


async def test_a_draining_connection_ends_its_requests_and_takes_no_more(peer: Peer) -> None:
    asked = peer.ask()
    await settle()
    peer.connection.drain()
    for each in (asked, peer.ask()):
        with pytest.raises(ConnectionResetError):
            await each


@pytest.mark.parametrize("asked_first", [True, False])
@pytest.mark.parametrize("json_rpc", [False, True])
async def test_an_answer_overtakes_a_request_that_waits_for_its_turn(
    json_rpc: bool, asked_first: bool
) -> None:
    """One request at a time is the default, and a read may wait for the process that waits for the answer."""
    peer = Peer(concurrency=1, json_rpc=json_rpc)
    await peer.begin()
    asked = peer.ask() if asked_first else None
    await settle()
    peer.say(WAIT % 1 if not json_rpc else {"id": 1, "method": "process/read", "params": {"processId": "p"}})
    await settle()
    assert peer.is_read() == asked_first
    asked = asked or peer.ask()
    await settle()
    assert peer.is_read(), "the answer has to be read"
    peer.say({"id": 2, "method": "environment/status"}, {"id": 1, "result": "answer"})
    assert await asked == "answer"
    peer.gate.set()
    await settle()
    assert [reply["id"] for reply in peer.channel.sent if "result" in reply] == [1, 2], "in their order"
    assert peer.is_read()


async def test_reading_stops_again_once_no_answer_is_awaited() -> None:
    peer = Peer(concurrency=1)
    await peer.begin()
    asked = peer.ask()
    await settle()
    peer.say(WAIT % 1, CALL % 2, {"id": 1, "result": 0})
    await asked
    peer.say(CALL % 3)
    assert not peer.is_read()
    peer.gate.set()
    await settle()
    assert [reply["id"] for reply in peer.channel.sent if "result" in reply] == [1, 2, 3]
    assert peer.is_read()


async def test_a_client_that_sends_without_end_is_not_read_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "MAX_BACKLOG", 10)
    peer = Peer(concurrency=1)
    await peer.begin()
    asked = asyncio.ensure_future(peer.ask())
    await settle()
    peer.say(WAIT % 1)
    for number in range(2, 12):
        assert peer.is_read()
        peer.say(CALL % number)
    assert not peer.is_read()
    peer.gate.set()
    await settle()
    assert peer.is_read()
    peer.say({"id": 1, "result": 0})
    assert await asked == 0


async def test_a_long_answer_waits_for_its_turn() -> None:
    peer = Peer(concurrency=1)
    await peer.begin()
    asked = asyncio.ensure_future(peer.ask())
    await settle()
    peer.say(WAIT % 1, {"id": 1, "result": "x" * (65 << 10)})
    await settle()
    assert not asked.done()
    peer.gate.set()
    assert len(await asked) == 65 << 10
