"""Questions of a proxy about hosts without a verdict."""

from __future__ import annotations

import asyncio
import json

import pytest

from execprotocol.network import Decision, NetworkRequest
from tests.support.network_proxy import PATIENCE_S, RunningProxy, origin, proxy, socks_request


class Decider:
    """Answers each question with the same decision, when it may."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[NetworkRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, request: NetworkRequest) -> Decision:
        self.asked.append(request)
        await self.may_answer.wait()
        return self.decision


ALLOW = Decision(type="allow")
ALLOW_SESSION = Decision(type="allow", scope="session")


def get(host: str, port: int = 80) -> bytes:
    authority = host if port == 80 else f"{host}:{port}"
    return f"GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()


async def denial_of(running: RunningProxy, host: str) -> dict[str, object]:
    head, _, body = (await running.exchange(get(host))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    error = next(line for line in head.split(b"\r\n") if line.startswith(b"x-proxy-error: "))
    return {**json.loads(body), "error": error.partition(b": ")[2].decode()}


async def test_a_permission_for_the_session_is_reported_and_kept() -> None:
    decider = Decider(ALLOW_SESSION)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with (
        origin(answer=answer) as server,
        proxy(None, asks=decider, allow_local_binding=True) as running,
    ):
        for _ in range(3):
            assert (await running.exchange(get("127.0.0.1", server.port))).startswith(b"HTTP/1.1 200 ")
        await running.socks(socks_request("127.0.0.1", server.port), count=12)
    assert [(one.protocol, one.host, one.port) for one in decider.asked] == [
        ("http", "127.0.0.1", server.port),
        ("socks5_tcp", "127.0.0.1", server.port),
    ]
    assert len(running.decisions) == 4
    for decision in running.decisions:
        assert (decision.decision, decision.source, decision.reason) == ("allow", "decider", "not_allowed")
        assert decision.policy_override


async def test_a_permission_for_once_is_asked_for_again() -> None:
    decider = Decider(ALLOW)
    async with (
        origin(answer=b"HTTP/1.1 204 No Content\r\n\r\n") as server,
        proxy(None, asks=decider, allow_local_binding=True) as running,
    ):
        for _ in range(3):
            assert (await running.exchange(get("127.0.0.1", server.port))).startswith(b"HTTP/1.1 204 ")
    assert len(decider.asked) == 3


@pytest.mark.statement("Q1")
async def test_a_host_under_review_is_asked_about_although_it_is_listed() -> None:
    decider = Decider(Decision(type="deny", reason="no"))
    async with proxy({"*": "allow"}, asks=decider, review_domains=["a.example"]) as running:
        assert (await denial_of(running, "a.example"))["reason"] == "no"
    assert [one.host for one in decider.asked] == ["a.example"]


async def test_equal_requests_wait_for_one_question() -> None:
    decider = Decider(Decision(type="deny", reason="no"))
    decider.may_answer.clear()
    async with proxy(None, asks=decider) as running:
        waiting = [asyncio.ensure_future(running.exchange(get("a.example"))) for _ in range(10)]
        other = asyncio.ensure_future(running.exchange(get("b.example")))
        async with asyncio.timeout(PATIENCE_S):
            while len(decider.asked) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            decider.may_answer.set()
            await asyncio.gather(*waiting, other)
    assert sorted(one.host for one in decider.asked) == ["a.example", "b.example"]
    assert len(running.decisions) == 11


@pytest.mark.parametrize(
    ("decision", "kind", "reason", "error", "message"),
    [
        (
            Decision(type="deny", reason='because "I"\r\nsay so'),
            "deny",
            'because "I"\r\nsay so',
            "blocked-by-policy",
            "Request blocked by network policy.",
        ),
        (Decision(type="deny", reason="denied"), "deny", "denied", "blocked-by-denylist", None),
        (Decision(type="deny", reason=""), "deny", "policy_denied", "blocked-by-policy", None),
        (Decision(type="deny"), "deny", "not_allowed", "blocked-by-allowlist", "Domain not in allowlist."),
        (Decision(type="ask", reason="who?"), "ask", "who?", "blocked-by-policy", None),
        (Decision(type="deny", reason="é" * 512), "deny", "é" * 512, "blocked-by-policy", None),
    ],
)
async def test_every_other_answer_denies(
    decision: Decision, kind: str, reason: str, error: str, message: str | None
) -> None:
    decider = Decider(decision)
    async with proxy(None, asks=decider) as running:
        for _ in range(2):
            got = await denial_of(running, "a.example")
    assert (got["decision"], got["reason"], got["error"]) == (kind, reason, error)
    assert got["source"] == "decider"
    assert message in (None, got["message"])
    assert running.decisions[0].decision == kind
    assert not running.decisions[0].policy_override
    assert len(decider.asked) == 2  # a denial is not kept here


async def test_a_question_without_an_answer_in_time_denies() -> None:
    decider = Decider(ALLOW)
    decider.may_answer.clear()
    async with proxy(None, asks=decider, decision_timeout_s=0.1) as running:
        got = await denial_of(running, "a.example")
    assert (got["decision"], got["source"], got["reason"]) == ("deny", "decider", "not_allowed")


async def test_a_question_that_fails_denies() -> None:
    async def fails(request: NetworkRequest) -> Decision:
        raise RuntimeError("no client")

    async with proxy(None, asks=fails) as running:
        assert (await denial_of(running, "a.example"))["source"] == "decider"


async def test_a_command_that_goes_away_does_not_take_the_question_of_another_with_it() -> None:
    decider = Decider(Decision(type="deny", reason="no"))
    decider.may_answer.clear()
    async with proxy(None, asks=decider) as running:
        _, writer = await running.open()
        writer.write(get("a.example"))
        async with asyncio.timeout(PATIENCE_S):
            while not decider.asked:
                await asyncio.sleep(0.01)
            waiting = asyncio.ensure_future(denial_of(running, "a.example"))
            writer.transport.abort()
            await asyncio.sleep(0.1)
            decider.may_answer.set()
            assert (await waiting)["reason"] == "no"


@pytest.mark.statement("Q1")
async def test_verdicts_local_addresses_and_odd_notations_are_not_asked_about() -> None:
    decider = Decider(ALLOW)
    async with proxy({"denied.example": "deny"}, asks=decider) as running:
        for host in (
            "denied.example",
            "127.0.0.1",
            "localhost",
            "10.0.0.1",
            "[::1]",
            "127.1",
            "0x7f.1",
            "[::ffff:8.8.8.8]",
        ):
            assert (await denial_of(running, host))["source"] == "baseline_policy"
    assert not decider.asked


async def test_limited_mode_asks_about_the_host_and_then_refuses_the_method() -> None:
    decider = Decider(ALLOW)
    async with proxy(None, asks=decider, mode="limited") as running:
        request = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n"
        assert b"method_not_allowed" in await running.exchange(request)
        await running.socks(socks_request("a.example", 80), count=12)
    assert [one.protocol for one in decider.asked] == ["http"]
    assert [(one.decision, one.source) for one in running.decisions] == [
        ("allow", "decider"),
        ("deny", "mode_guard"),
        ("deny", "mode_guard"),
    ]
