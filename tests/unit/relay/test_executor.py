"""The executor's life at a registry, in this process: what makes it wait, begin again, or end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from structlog.testing import capture_logs

from execprotocol.relay import contract
from execprotocol.relay.contract import PoolEntry, StatusRequest
from execprotocol.relay.frames import MAX_FRAME_BYTES
from execprotocol.relay.keys import KeyPair
from execserver.relay.executor import executor
from execserver.relay.executor.executor import DIALS_A_REGISTRATION, Load, RemoteExecutor, _Backoff
from execserver.relay.executor.identity import Identity, TokenSource
from tests.support.echo import Echo
from tests.support.fake_relay import ENVIRONMENT, FakeRelay, refusal

CONFLICT = refusal(503, contract.REGISTRATION_CONFLICT)


Start = Callable[..., RemoteExecutor]


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as relay:
        yield relay


@pytest.fixture
async def start(relay: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    monkeypatch.setattr(executor, "REDIAL_SECONDS", (0.005, 0.02))
    monkeypatch.setattr(executor, "REGISTER_SECONDS", (0.005, 0.02))
    monkeypatch.setattr(executor, "STANDBY_SECONDS", (0.005, 0.01))
    started = []

    def begin(
        refused: Callable[[str], None] | None = None,
        pool: contract.PoolEntry | None = None,
        load: Callable[[], Load] = lambda: Load(0, 0, draining=False),
    ) -> RemoteExecutor:
        token = TokenSource("t", None)
        identity = Identity(relay.url, ENVIRONMENT, KeyPair.generate(), token, None, pool=pool)
        remote = RemoteExecutor(identity, Echo, load=load, refused=refused)
        remote.start()
        started.append(remote)
        return remote

    yield begin
    for remote in started:
        remote.close()
        await remote.closed(0.01)


async def test_whatever_the_registry_answers_it_is_asked_again(relay: FakeRelay, start: Start) -> None:
    answers = [(500, "broken"), (401, "unauthorized"), (400, "bad"), (429, "slow"), (404, "")]
    relay.register_answers.extend(refusal(*answer) for answer in answers)
    relay.register_answers.append((200, {"environment_id": "another"}))
    start()
    await relay.online()
    assert relay.register_requests == 7


async def test_a_hot_standby_says_so_once_and_takes_over(relay: FakeRelay, start: Start) -> None:
    relay.register_answers.extend([CONFLICT] * 5)
    with capture_logs() as logs:
        start()
        await relay.online()
        async with asyncio.timeout(10):
            while len(logs) < 2:
                await asyncio.sleep(0.001)
    assert [line["event"] for line in logs] == [
        "relay: standing by: another executor holds the environment",
        "relay: connected",
    ]


async def test_the_same_reason_is_logged_once(relay: FakeRelay, start: Start) -> None:
    relay.register_answers.extend([refusal(500, "a")] * 3 + [refusal(500, "b")] * 3)
    with capture_logs() as logs:
        start()
        await relay.online()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["relay: not registered"] * 2


async def test_only_a_final_refusal_ends_it_and_only_on_demand(relay: FakeRelay, start: Start) -> None:
    relay.register_answers.extend([CONFLICT, refusal(500, ""), refusal(429, ""), refusal(403, "forbidden")])
    ended = asyncio.get_running_loop().create_future()
    start(refused=ended.set_result)
    async with asyncio.timeout(10):
        reason = await ended
    assert "403 (forbidden, by the test)" in reason
    assert relay.register_requests == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 410, 429])
async def test_a_refused_upgrade_registers_anew(relay: FakeRelay, start: Start, status: int) -> None:
    relay.dial_answers.append(status)
    start()
    await relay.online(dials=2)
    assert relay.dials == ["/executor/1", "/executor/2"]
    assert relay.executor_keys[0] == relay.executor_keys[1]


@pytest.mark.parametrize("status", [500, 503, 302, 200])
async def test_any_other_answer_to_an_upgrade_is_waited_out(
    relay: FakeRelay, start: Start, status: int
) -> None:
    relay.dial_answers.extend([status, status])
    start()
    await relay.online(dials=3)
    assert set(relay.dials) == {"/executor/1"}


@pytest.mark.statement("R41")
async def test_an_address_that_stays_dead_is_asked_for_again(relay: FakeRelay, start: Start) -> None:
    relay.dial_answers.extend([503] * DIALS_A_REGISTRATION)
    start()
    await relay.online(dials=DIALS_A_REGISTRATION + 1)
    assert relay.dials == ["/executor/1"] * DIALS_A_REGISTRATION + ["/executor/2"]
    assert relay.executor_keys[0] == relay.executor_keys[1]


async def test_while_the_registry_has_no_answer_either_the_old_address_is_dialed(
    relay: FakeRelay, start: Start
) -> None:
    relay.dial_answers.extend([503] * (DIALS_A_REGISTRATION + 2))
    start()
    async with asyncio.timeout(10):
        while not relay.dials:
            await asyncio.sleep(0)
    relay.register_answers.extend([refusal(500, "broken")] * 2)
    await relay.online(dials=DIALS_A_REGISTRATION + 3)
    assert relay.dials == ["/executor/1"] * (DIALS_A_REGISTRATION + 2) + ["/executor/2"]


async def test_a_relay_whose_registry_is_unavailable_is_asked_again_soon(
    relay: FakeRelay, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for waits in ("REDIAL_SECONDS", "REGISTER_SECONDS"):
        monkeypatch.setattr(executor, waits, (600.0, 600.0))
    relay.register_answers.extend([refusal(502, contract.AUTHENTICATION_UNAVAILABLE)] * 3)
    relay.dial_answers.extend([503] * (DIALS_A_REGISTRATION + 1))
    relay.rejection_reason = contract.REGISTRY_UNAVAILABLE
    start()
    await relay.online(dials=DIALS_A_REGISTRATION + 2)
    assert set(relay.dials) == {"/executor/1"}


async def test_frames_that_are_none_do_not_end_the_socket(relay: FakeRelay, start: Start) -> None:
    start()
    await relay.online()
    await relay.send(b"\xff" * 20)
    await relay.send_text("text")
    client = relay.client()
    await client.open()
    await client.send(b'{"still": "here"}')
    assert await client.receive() == {"still": "here"}


async def test_a_message_that_is_too_long_ends_the_socket_which_comes_again(
    relay: FakeRelay, start: Start
) -> None:
    start()
    await relay.online()
    await relay.send(bytes(MAX_FRAME_BYTES))
    await relay.send(bytes(MAX_FRAME_BYTES + 1))
    await relay.online(dials=2)


async def test_it_leaves_once_its_last_client_is_gone(relay: FakeRelay, start: Start) -> None:
    remote = start()
    await relay.online()
    client = relay.client()
    await client.open()
    remote.close()
    await client.send(b"[1]")
    assert (await client.frame()).kind == "data"
    late = relay.client()
    late_end = asyncio.create_task(late.ended())
    with pytest.raises(Exception, match="noise_relay_protocol_error"):
        await late.open()
    late_end.cancel()
    await client.reset()
    await remote.closed(5.0)
    assert await client.ended() == "the executor's socket is gone"


async def test_it_can_be_closed_before_it_was_anywhere(relay: FakeRelay, start: Start) -> None:
    relay.register_answers.extend([CONFLICT] * 1000)
    remote = start()
    await relay.until(lambda: relay.register_requests > 2)
    remote.close()
    await remote.closed(5.0)
    assert relay.dials == []


def test_waits_double_up_to_the_longest_and_have_a_random_part() -> None:
    waits = _Backoff(0.2, 5.0)
    taken = [waits.next() for _ in range(8)]
    for wait, least in zip(taken, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0], strict=True):
        assert least <= wait <= 1.5 * least
    waits.reset()
    assert waits.next() <= 0.3


# -- members of pools


def _has(statuses: list[StatusRequest], status: StatusRequest) -> bool:
    return status in statuses


async def test_a_member_describes_itself_and_reports_changes_of_its_load_soon(
    relay: FakeRelay, start: Start
) -> None:
    entry, loads = PoolEntry({"gpu": ""}, 4, "1.0"), [Load(3, 3, draining=False)]
    start(pool=entry, load=lambda: loads[-1])
    clock = asyncio.get_running_loop().time
    for load in (loads[0], Load(4, 4, draining=False), Load(4, 4, draining=True)):
        loads.append(load)
        changed, status = clock(), StatusRequest("registration-1", *load)
        await relay.until(partial(_has, relay.statuses, status))
        assert clock() - changed < executor.REPORT_SECONDS / 2
    assert relay.entries == [entry]
    await asyncio.sleep(3 * executor.CHECK_SECONDS)
    assert [each.sessions for each in relay.statuses] == [3, 4, 4]


async def test_a_load_that_does_not_change_is_reported_again_and_after_a_new_registration(
    relay: FakeRelay, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(pool=PoolEntry())
    await relay.until(lambda: relay.statuses)
    relay.dial_answers.append(410)
    relay.cut()
    await relay.until(lambda: len(relay.statuses) == 2)
    assert [each.registration_id for each in relay.statuses] == ["registration-1", "registration-2"]
    monkeypatch.setattr(executor, "REPORT_SECONDS", 0.3)
    await relay.until(lambda: len(relay.statuses) == 4)


async def test_a_report_that_was_refused_is_repeated(relay: FakeRelay, start: Start) -> None:
    relay.status_answers.extend([refusal(409, contract.STALE_REGISTRATION), refusal(503, "unavailable")])
    start(pool=PoolEntry())
    await relay.until(lambda: len(relay.statuses) == 3)
    await asyncio.sleep(3 * executor.CHECK_SECONDS)
    assert len(relay.statuses) == 3


async def test_an_executor_in_no_pool_reports_nothing(relay: FakeRelay, start: Start) -> None:
    start()
    await relay.online()
    await asyncio.sleep(3 * executor.CHECK_SECONDS)
    assert (relay.entries, relay.statuses) == ([None], [])
