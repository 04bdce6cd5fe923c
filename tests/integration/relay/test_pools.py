"""Pools: real executors behind a real relay, and clients that get one of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from execclient import AccessDenied, EnvironmentOffline, PoolFull, SessionLost, UnsupportedUrl, connect
from execprotocol.relay.contract import PoolConnectRequest
from execprotocol.relay.keys import KeyPair
from execserver import __version__
from tests.support.cutting_proxy import cutting
from tests.support.relay_peers import RawExecutor, ask, registration
from tests.support.relay_pools import Pool, member_of
from tests.support.relay_service import RelayService
from tests.support.servers import server_of
from tests.support.wire import PATIENCE

HARNESS = KeyPair.generate().public
WAITING = 'execserver_relay_pool_waiting{pool="builders"}'


@pytest.fixture(autouse=True)
def nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "TOKEN_FILE", "EXECUTOR_KEY_SHA256"):
        monkeypatch.delenv(f"EXECSERVER_{name}", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pools")


@pytest.fixture(scope="module")
def relay(folder: Path) -> Iterator[RelayService]:
    with RelayService(folder / "relay") as relay:
        yield relay


@pytest.fixture(scope="module")
def members(relay: RelayService, folder: Path) -> Iterator[tuple[Pool, Pool, dict[str, str]]]:
    """Three executors in two pools; the environment id of each."""
    builders, testers = Pool(relay, "builders", folder), Pool(relay, "testers", folder)
    with ExitStack() as stack:
        ids = {
            "eu": stack.enter_context(builders.member("eu", "--label", "zone=eu", "--capacity", "2")),
            "us": stack.enter_context(
                builders.member("us", "--label", "zone=us", "--label", "gpu", "--capacity", "2")
            ),
            "tester": stack.enter_context(testers.member("tester")),
        }
        yield builders, testers, ids


@pytest.fixture
def builders(members: tuple[Pool, Pool, dict[str, str]]) -> Pool:
    """The pool with two executors, both idle."""
    members[0].wait_for_loads(0, 0)
    return members[0]


@pytest.fixture
def ids(members: tuple[Pool, Pool, dict[str, str]]) -> dict[str, str]:
    return members[2]


# -- the choice


@pytest.mark.statement("R13")
async def test_clients_get_the_least_loaded_executor_and_the_list_shows_it(
    builders: Pool, ids: dict[str, str]
) -> None:
    async with builders.connect() as one, builders.connect() as two:
        assert {member_of(one), member_of(two)} == {ids["eu"], ids["us"]}
        assert (await one.run(["echo", "hello"])).text == "hello\n"
        await asyncio.to_thread(builders.wait_for_loads, 1, 1)
        rows = {row["environment"]: row for row in await asyncio.to_thread(builders.relay.environments)}
        shown = (await asyncio.to_thread(builders.relay.command, "environments")).stdout.splitlines()

    us, tester = rows[ids["us"]], rows[ids["tester"]]
    assert us == us | {
        "pool": "builders",
        "labels": {"zone": "us", "gpu": ""},
        "sessions": 1,
        "capacity": 2,
        "draining": False,
        "version": __version__,
    }
    assert (tester["pool"], tester["sessions"], tester["capacity"]) == ("testers", 0, None)
    (line,) = [line.split() for line in shown if line.startswith(ids["us"])]
    assert line[4:9] == ["builders", "1/2", "online", __version__, us["node"]]


@pytest.mark.statement("R11", "R14")
async def test_labels_select_executors(builders: Pool, ids: dict[str, str]) -> None:
    for query in ("&label=gpu", "&label=zone=us", "&label=zone&label=gpu="):
        async with builders.connect(query) as one, builders.connect(query) as two:
            assert member_of(one) == member_of(two) == ids["us"]
    with pytest.raises(EnvironmentOffline, match=r"has gpu, zone=eu; there is gpu, zone=eu, zone=us"):
        await builders.connect("&label=gpu&label=zone=eu")


@pytest.mark.statement("R14")
async def test_a_full_pool_refuses_clearly_until_a_session_ends(builders: Pool) -> None:
    executors = [await builders.connect() for _ in range(4)]
    await asyncio.to_thread(builders.wait_for_loads, 2, 2)
    try:
        with pytest.raises(PoolFull, match=r"2 are at their capacity and 0 are draining.*&wait=SECONDS"):
            await builders.connect()
        refused = await asyncio.to_thread(builders.command, "run", "--", "true")
        assert refused.returncode == 69
        assert "takes a session now" in refused.stderr
        waiting = asyncio.create_task(_hello(builders, "&wait=20"))
        async with asyncio.timeout(PATIENCE):
            while (metrics := await asyncio.to_thread(builders.relay.metrics))[WAITING] < 3:
                await asyncio.sleep(0.01)
        assert not waiting.done()
        assert metrics['execserver_relay_pool_waiting{pool="testers"}'] == 0
        await executors.pop().close()
        assert await asyncio.wait_for(waiting, PATIENCE) == "hello\n"
    finally:
        for executor in executors:
            await executor.close()


async def _hello(pool: Pool, query: str) -> str:
    async with pool.connect(query) as executor:
        return (await executor.run(["echo", "hello"])).text


async def test_a_wait_is_over_in_time(builders: Pool) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(EnvironmentOffline):
        await builders.connect("&label=none&wait=0")
    assert clock() - began < 5
    began = clock()
    with pytest.raises(EnvironmentOffline):
        await builders.connect("&label=none&wait=1.5")
    assert 1.5 <= clock() - began < PATIENCE / 2


async def test_a_crowd_is_spread_evenly_at_once(relay: RelayService, folder: Path) -> None:
    pool = Pool(relay, "crowd", folder)
    with pool.member("crowd-1"), pool.member("crowd-2"):
        executors = await asyncio.gather(*(pool.connect() for _ in range(20)))
        await asyncio.to_thread(pool.wait_for_loads, 10, 10)
        await asyncio.gather(*(executor.close() for executor in executors))


# -- sessions stay at their executor


@pytest.mark.statement("R15")
async def test_a_cut_client_resumes_at_its_own_executor_although_another_is_idle(
    builders: Pool, ids: dict[str, str], tmp_path: Path
) -> None:
    count = "i=0; while [ $i -lt 400 ]; do i=$((i + 1)); echo $i; sleep 0.005; done"
    async with cutting(builders.relay.url, tmp_path) as proxy:
        async with (
            builders.connect("&label=gpu", base=proxy.url.replace("ws:", "http:")) as executor,
            builders.connect("&label=gpu"),  # now its executor is full, and the other one idle
        ):
            counting = await executor.start(["sh", "-c", count])
            lines = []
            async for line in counting.lines():
                lines.append(int(line))
                if len(lines) in (50, 200):
                    due = executor.recoveries + 1
                    assert proxy.cut() >= 1
                    while executor.recoveries < due:
                        await asyncio.sleep(0.01)
            assert lines == list(range(1, 401))
            assert executor.recoveries >= 2
            assert member_of(executor) == ids["us"]
        await asyncio.to_thread(builders.wait_for_loads, 0, 0)


async def test_another_program_resumes_by_the_url_of_the_executor_only(builders: Pool) -> None:
    executor = await builders.connect()
    session_id, url = executor.session_id, executor.url
    await executor.detach()
    try:
        with pytest.raises(UnsupportedUrl, match="cannot be resumed by the URL of a pool"):
            await builders.connect(session_id=session_id)
    finally:
        async with connect(url, token=builders.token, session_id=session_id) as resumed:
            assert resumed.session_id == session_id


def test_commands_find_what_run_left_in_any_executor_of_the_pool(builders: Pool, ids: dict[str, str]) -> None:
    started = [
        builders.command("run", "--detach", "--ttl", "5m", "--", "sh", "-c", f"echo {name}; sleep 600")
        for name in ("first", "second")
    ]
    builders.wait_for_loads(1, 1)
    processes = [each.stdout.strip() for each in started]
    try:
        listed = json.loads(builders.command("ps", "--json").stdout)
        assert {each["processId"] for each in listed} == set(processes)
        assert [builders.command("logs", each).stdout for each in processes] == ["first\n", "second\n"]
    finally:
        for each in processes:
            killed = builders.command("kill", each)
            assert killed.returncode == 0, killed.stderr
    gone = builders.command("ps", "--json")
    assert [each for each in json.loads(gone.stdout or "[]") if each["state"] == "running"] == []
    _end_sessions(builders, ids)


def _end_sessions(pool: Pool, ids: dict[str, str]) -> None:
    """End the sessions that `run --detach` left."""
    records = [json.loads(path.read_text()) for path in (pool.folder / "client").rglob("detached/*.json")]

    async def end(record: dict[str, Any]) -> None:
        async with connect(record["url"], token=pool.token, session_id=record["session_id"]):
            pass

    for record in records:
        assert record["url"].partition("?environment=")[2] in (ids["eu"], ids["us"])
        asyncio.run(end(record))
    pool.wait_for_loads(0, 0)


@pytest.mark.statement("R10")
async def test_an_executor_with_another_key_is_another_member(relay: RelayService, folder: Path) -> None:
    pool = Pool(relay, "replaced", folder)
    with ExitStack() as stack:
        old = stack.enter_context(pool.member("old"))
        executor = await pool.connect(recovery_timeout=2)
        assert member_of(executor) == old
        stack.close()
        with pool.member("new") as new:
            assert new != old
            with pytest.raises(SessionLost, match="no executor is connected for the environment replaced--"):
                await executor.run(["true"])
            async with pool.connect() as other:
                assert member_of(other) == new
        await executor.close()


async def test_a_member_that_comes_back_with_its_key_has_its_place_again(
    relay: RelayService, folder: Path
) -> None:
    pool = Pool(relay, "back", folder)
    with pool.member("back") as first:
        pass
    with pytest.raises(EnvironmentOffline, match="no executor of the pool back is connected"):
        await pool.connect()
    with pool.member("back", "--capacity", "1") as second:
        assert second == first
        async with pool.connect():
            await asyncio.to_thread(pool.wait_for_loads, 1)
            with pytest.raises(PoolFull):
                await pool.connect()


@pytest.mark.parametrize("how", ["killed", "upgraded"])
async def test_the_server_that_follows_is_the_same_member_with_its_sessions(
    relay: RelayService, folder: Path, how: str
) -> None:
    pool = Pool(relay, how, folder)
    with pool.member(how, "--capacity", "1") as member:
        async with pool.connect() as executor:
            supervisor = pool.processes[member]
            if how == "killed":
                os.kill(server_of(supervisor.pid, PATIENCE), signal.SIGKILL)
            else:
                supervisor.send_signal(signal.SIGHUP)
            async with asyncio.timeout(PATIENCE):
                while not executor.recoveries:
                    assert (await executor.run(["echo", "on"])).text == "on\n"
            await asyncio.to_thread(pool.wait_for_loads, 1)
            assert member_of(executor) == member
            with pytest.raises(PoolFull):
                await pool.connect("&wait=0")
        assert await _hello(pool, "&wait=20") == "hello\n"


async def test_a_key_cannot_be_pinned_for_a_pool(builders: Pool) -> None:
    with pytest.raises(UnsupportedUrl, match="does not go with a pool"):
        await builders.connect(executor_key_sha256="0" * 64)


# -- tenants


@pytest.mark.statement("R12")
async def test_a_clients_token_of_one_pool_opens_no_other(
    members: tuple[Pool, Pool, dict[str, str]],
) -> None:
    builders, testers, ids = members
    with pytest.raises(AccessDenied, match="the token is not for this pool"):
        await connect(testers.url(), token=builders.token)
    with pytest.raises(AccessDenied, match="the token is not for this environment"):
        await connect(builders.relay.client_url(ids["tester"]), token=builders.token)
    with pytest.raises(AccessDenied, match="the role executor"):
        await connect(builders.url(), token=builders.executor_token)
    async with connect(builders.relay.client_url(ids["eu"]), token=builders.token) as executor:
        assert (await executor.run(["echo", "by its name"])).text == "by its name\n"


@pytest.mark.statement("R12")
@pytest.mark.parametrize("action", ["register", "validate", "status"])
def test_an_executors_token_of_one_pool_is_worth_nothing_in_another(
    members: tuple[Pool, Pool, dict[str, str]], action: str
) -> None:
    builders, _, ids = members
    path = f"/cloud/environment/{ids['tester']}/{action}"
    answer = ask(builders.relay.url, path, "POST", token=builders.executor_token, body={})
    assert (answer.status, answer.code) == (403, "forbidden")


@pytest.mark.statement("R12")
def test_a_pools_token_takes_no_environment_with_a_name_of_its_own(relay: RelayService, folder: Path) -> None:
    pool = Pool(relay, "names", folder)
    for name in ("names", "names-2", "names--0123", "box", f"names-2--{'0' * 16}"):
        path = f"/cloud/environment/{name}/register"
        answer = ask(
            relay.url, path, "POST", token=pool.executor_token, body=registration(KeyPair.generate())
        )
        assert (answer.status, answer.code) == (403, "forbidden"), name


@pytest.mark.statement("R10")
def test_a_members_id_belongs_to_its_key(relay: RelayService, folder: Path) -> None:
    pool, own, thief = Pool(relay, "keys", folder), KeyPair.generate(), KeyPair.generate()
    path = f"/cloud/environment/keys--{own.public.fingerprint[:16]}/register"
    entry: dict[str, object] = {"labels": {}, "capacity": None, "version": "1"}

    stolen = ask(relay.url, path, "POST", token=pool.executor_token, body=registration(thief))
    assert (stolen.status, stolen.code) == (400, "invalid_request")
    assert "`environment_id` is that of a pool's member with another key" in stolen.message
    kept = ask(relay.url, path, "POST", token=pool.executor_token, body=registration(own) | {"pool": entry})
    assert kept.status == 200


@pytest.mark.statement("R10")
def test_bodies_as_stock_executors_send_them_are_served_and_not_chosen(
    relay: RelayService, folder: Path
) -> None:
    pool, keys = Pool(relay, "stock", folder), KeyPair.generate()
    name, token = f"stock--{keys.public.fingerprint[:16]}", relay.token("executor", "stock-box")
    with (
        RawExecutor(relay, name, pool.executor_token, keys),
        RawExecutor(relay, "stock-box", token) as plain,
    ):
        answer = _chosen(pool)
        assert (answer.status, answer.code) == (409, "environment_offline")
        by_name = ask(
            relay.url,
            f"/cloud/environment/{name}/connect",
            "POST",
            token=pool.token,
            body={"harness_public_key": HARNESS.to_json()},
        )
        assert by_name.status == 200
        rows = {row["environment"]: row for row in relay.environments()}
    assert rows["stock-box"]["key"] == plain.keys.public.fingerprint
    assert {rows[each]["pool"] for each in (name, "stock-box")} == {None}


@pytest.mark.statement("R16")
def test_a_status_from_another_registration_is_refused(relay: RelayService, folder: Path) -> None:
    pool, keys = Pool(relay, "status", folder), KeyPair.generate()
    name = f"status--{keys.public.fingerprint[:16]}"
    entry: dict[str, object] = {"pool": {"labels": {}, "capacity": 1, "version": "1"}}
    register = f"/cloud/environment/{name}/register"
    first, second = (
        ask(relay.url, register, "POST", token=pool.executor_token, body=registration(keys) | entry).json
        for _ in range(2)
    )

    def report(registration_id: str, sessions: int) -> int:
        body = {
            "executor_registration_id": registration_id,
            "sessions": sessions,
            "opened": 0,
            "draining": False,
        }
        path = f"/cloud/environment/{name}/status"
        answer = ask(relay.url, path, "POST", token=pool.executor_token, body=body)
        return answer.status if answer.status != 409 or answer.code == "stale_registration" else 0

    assert report(second["executor_registration_id"], 1) == 200
    assert report(first["executor_registration_id"], 0) == 409
    assert report("made-up", 0) == 409
    assert _chosen(pool).code == "environment_offline"  # it has no socket


def _chosen(pool: Pool) -> Any:
    return ask(
        pool.relay.url,
        f"/cloud/pool/{pool.name}/connect",
        "POST",
        token=pool.token,
        body=PoolConnectRequest(HARNESS).to_json(),
    )
