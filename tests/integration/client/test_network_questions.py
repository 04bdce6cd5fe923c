"""A real daemon asks its client about hosts, over each transport and behind a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execclient import Executor, NetworkAccess, NetworkDecision, NetworkRequest, connect
from execclient.sync import connect as connect_blocking
from execprotocol.network import Decision
from tests.conftest import StartServer
from tests.integration.client.conftest import listening
from tests.integration.http.origin import Origin, response
from tests.support.cutting_proxy import Cut, Direction, cutting
from tests.support.relayed_server import RelayedServer

ASKING = NetworkAccess(ask=True, allow_local=True)

PATIENCE = 20.0


@pytest.fixture(params=["unix", "ws", "stdio", "relay"])
def url(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[str]:
    """A daemon of this test."""
    if request.param == "stdio":
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield "stdio:"
    elif request.param == "relay":
        with RelayedServer(tmp_path / "relay", env=environment, cwd=tmp_path) as server:
            monkeypatch.setenv("EXECSERVER_TOKEN", server.client_token)
            yield server.client_url
    else:
        yield listening(start_server, request.param, tmp_path)


@pytest.fixture
def origin() -> Iterator[Origin]:
    """The host to reach."""
    with Origin(lambda exchange: exchange.send(response(b"hello"))) as started:
        yield started


def fetch(origin: Origin, times: int = 1) -> list[str]:
    """A command that prints the status of each request for the host, through its proxy."""
    target = f"127.0.0.1:{origin.port}"
    script = f"""
        for each in $(seq {times}); do
            exec 3<>/dev/tcp/127.0.0.1/${{HTTP_PROXY##*:}}
            printf 'GET http://{target}/ HTTP/1.1\\r\\nHost: {target}\\r\\nConnection: close\\r\\n\\r\\n' >&3
            read -r _ status _ <&3
            printf '%s ' $status
        done
    """
    return ["/bin/bash", "-c", script]


async def statuses(executor: Executor, origin: Origin, times: int = 1) -> str:
    return (await executor.run(fetch(origin, times), network=ASKING, timeout=PATIENCE)).text


async def test_the_handler_decides_for_the_session_and_is_told_of_each_decision(
    url: str, origin: Origin
) -> None:
    asked: list[NetworkRequest] = []
    decided: list[NetworkDecision] = []

    def allows(request: NetworkRequest) -> bool:
        asked.append(request)
        return True

    async with connect(url, on_network_request=allows, on_network_decision=decided.append) as executor:
        assert await statuses(executor, origin, 2) == "200 200 "
        assert await statuses(executor, origin) == "200 "
        await until(lambda: len(decided) == 3)
    assert [(each.protocol, each.host, each.port) for each in asked] == [("http", "127.0.0.1", origin.port)]
    assert {(each.decision, each.source, each.port) for each in decided} == {
        ("allow", "decider", origin.port)
    }
    assert asked[0].process_id == decided[0].process_id


async def test_without_a_handler_the_host_is_denied(url: str, origin: Origin) -> None:
    async with connect(url) as executor:
        assert await statuses(executor, origin) == "403 "


@pytest.mark.parametrize("url", ["unix", "ws", "relay"], indirect=True)
async def test_a_lost_connection_does_not_ask_a_person_twice(url: str, origin: Origin) -> None:
    asked = 0

    async def person(_: NetworkRequest) -> bool:
        nonlocal asked
        asked += 1
        recoveries = executor.recoveries
        executor.drop_connection()
        await until(lambda: executor.recoveries > recoveries)
        return True

    async with connect(url, on_network_request=person) as executor:
        assert await statuses(executor, origin, 2) == "200 200 "
        assert executor.recoveries == 1
    assert asked == 1


@pytest.mark.parametrize("direction", ["to client", "to server"])
@pytest.mark.parametrize("url", ["unix"], indirect=True)
async def test_wherever_the_connection_is_cut_a_person_is_asked_once(
    url: str, origin: Origin, tmp_path: Path, direction: Direction
) -> None:
    """The cuts are within the question, and within the answer, which the daemon then does not get."""
    asked_at: list[int] = []
    cut: Cut | None = None

    def plan() -> Cut | None:
        nonlocal cut
        planned, cut = cut, None
        return planned

    async with cutting(url, tmp_path, plan) as proxy:

        def person(_: NetworkRequest) -> Decision:
            asked_at.append(proxy.passed[direction])
            return Decision("allow", scope="once")

        async def count(planned: Cut | None) -> int:
            """How often a command that is served asks, and where it asked first."""
            nonlocal cut
            cut = planned
            asked_at.clear()
            proxy.passed[direction] = 0
            async with connect(proxy.url, on_network_request=person) as executor:
                assert await statuses(executor, origin) == "200 "
            return len(asked_at)

        assert await count(None) == 1
        begin, end = (-210, 0) if direction == "to client" else (0, 90)
        for position in range(asked_at[0] + begin, asked_at[0] + end, 7):
            assert await count((direction, position)) == 1, position
        assert proxy.cuts == len(range(begin, end, 7))


@pytest.mark.parametrize("url", ["stdio"], indirect=True)
def test_without_an_event_loop_a_handler_may_use_the_executor(url: str, origin: Origin) -> None:
    def allows(_: NetworkRequest) -> bool:
        return executor.run(["true"]).exit_code == 0

    with connect_blocking(url, on_network_request=allows) as executor:
        result = executor.run(fetch(origin), network=ASKING, timeout=PATIENCE)
    assert result.text == "200 "


async def until(done: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not done():
            await asyncio.sleep(0.01)
