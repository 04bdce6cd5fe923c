"""A watch with a scripted peer: what it asks for, and the order of what it hands out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from execclient import CallTimeout, Change, ExecutorClosed, NotFound, SessionLost, Unsupported, Watch
from execclient.watch import MAX_WAITING
from tests.integration.client.conftest import Peer, ScriptedDaemon, connect_to


def created(*names: str) -> list[dict[str, Any]]:
    """Changes of the wire."""
    return [{"kind": "created", "path": f"file:///w/{name}", "isDirectory": False} for name in names]


def changed(watch_id: str, first: int, *names: str, **members: Any) -> dict[str, Any]:
    """A `fs/changed` notification."""
    params = {"watchId": watch_id, "firstSeq": first, "changes": created(*names), **members}
    return {"method": "fs/changed", "params": params}


def read(first: int, *names: str, **members: Any) -> dict[str, Any]:
    """The result of a `fs/watchRead`."""
    return {
        "firstSeq": first,
        "changes": created(*names),
        "nextSeq": first + len(names),
        "ended": None,
        **members,
    }


@asynccontextmanager
async def watching(scripted: ScriptedDaemon, **options: Any) -> AsyncIterator[tuple[Watch, Peer, str]]:
    """An active watch of /w, our side of its connection, and its id."""
    async with connect_to(scripted, **options) as (executor, peer):
        executor._session.capabilities = frozenset({"fs/watch"})
        watch = executor.watch("/w")
        entering = asyncio.create_task(watch.__aenter__())
        params = (await peer.answer("fs/watch", {"watchId": "x", "mode": "inotify", "nextSeq": 1}))["params"]
        await entering
        yield watch, peer, params["watchId"]


async def names(watch: Watch, count: int) -> list[str]:
    """The names of the next changes."""
    async with asyncio.timeout(10):
        return [(await anext(watch)).path.removeprefix("/w/") for _ in range(count)]


async def test_a_watch_sends_its_options_and_ends_with_its_block(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = frozenset({"fs/watch"})
        watch = executor.watch("w", recursive=False, ignore_rules=False, exclude_dirs=["a", "b"])
        entering = asyncio.create_task(watch.__aenter__())
        params = (await peer.answer("fs/watch", {"watchId": "x", "mode": "polling", "nextSeq": 1}))["params"]
        await entering
        assert (watch.mode, watch.path) == ("polling", "/w")
        leaving = asyncio.create_task(watch.__aexit__(None, None, None))
        unwatch = await peer.answer("fs/unwatch", {})
        await leaving

        watch_id = params.pop("watchId")
        assert params == {
            "path": "file:///w",
            "recursive": False,
            "ignoreRules": False,
            "excludeDirs": ["a", "b"],
            "ifExists": "attach",
        }
        assert unwatch["params"] == {"watchId": watch_id}
        assert await watch.batch() == []


async def test_a_change_has_the_members_of_the_wire(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        change = {"kind": "renamed", "path": "file:///w/b%20c", "from": "file:///w/%FF", "isDirectory": True}
        peer.send(
            {"method": "fs/changed", "params": {"watchId": watch_id, "firstSeq": 1, "changes": [change]}}
        )

        assert await anext(watch) == Change("renamed", "/w/b c", "/w/\udcff", True)


async def test_events_are_handed_out_in_order_and_those_of_others_are_not(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        peer.send(changed("other", 1, "x"), changed(watch_id, 1, "a", "b"), changed(watch_id, 3, "c"))

        assert await names(watch, 3) == ["a", "b", "c"]


async def test_after_a_lost_connection_the_changes_after_the_last_one_are_read(
    scripted: ScriptedDaemon,
) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        peer.send(changed(watch_id, 1, "a", "b"))
        assert await names(watch, 1) == ["a"]
        await peer.close()
        peer = await scripted.session()
        assert await names(watch, 1) == ["b"]
        rest = asyncio.create_task(names(watch, 3))
        request = await peer.expect("fs/watchRead")
        peer.send(
            changed(watch_id, 2, "b", "c", "d"), {"id": request["id"], "result": read(3, "c", "d", "e")}
        )

        assert request["params"] == {"watchId": watch_id, "afterSeq": 2, "maxChanges": MAX_WAITING}
        assert await rest == ["c", "d", "e"]


async def test_a_read_that_is_cut_is_sent_again(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, _):
        taking = asyncio.create_task(names(watch, 1))
        await peer.close()
        for _ in range(3):
            peer = await scripted.session()
            await peer.expect("fs/watchRead")
            await peer.close()
        peer = await scripted.session()
        await peer.answer("fs/watchRead", read(1, "a"))

        assert await taking == ["a"]


async def test_a_missing_event_is_read(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        peer.send(changed(watch_id, 1, "a"), changed(watch_id, 3, "c"))
        assert await names(watch, 1) == ["a"]
        taking = asyncio.create_task(names(watch, 2))
        await peer.answer("fs/watchRead", read(2, "b", "c"))

        assert await taking == ["b", "c"]


async def test_what_a_slow_caller_leaves_stays_at_the_daemon(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        for first in range(1, MAX_WAITING * 2, 1024):
            peer.send(changed(watch_id, first, *map(str, range(first, first + 1024))))
        calling = asyncio.create_task(watch._session.call("process/list", {}))
        await peer.answer("process/list", {})
        await calling  # so the events have arrived
        expected = [str(number) for number in range(1, MAX_WAITING * 2 + 1)]
        taken = await names(watch, MAX_WAITING)
        rest = asyncio.create_task(names(watch, MAX_WAITING))
        request = await peer.answer("fs/watchRead", read(MAX_WAITING + 1, *expected[MAX_WAITING:]))

        assert request["params"]["afterSeq"] == MAX_WAITING
        assert taken + await rest == expected


async def test_a_server_that_does_not_know_the_watch_is_asked_anew_and_there_is_a_gap(
    scripted: ScriptedDaemon,
) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        peer.send(changed(watch_id, 1, "a"))
        assert await names(watch, 1) == ["a"]
        await peer.close()
        peer = await scripted.session()
        taking = asyncio.create_task(anext(watch))
        await peer.refuse("fs/watchRead", -32600, f"unknown watch {watch_id}", "unknown_watch")
        request = await peer.expect("fs/watch")
        # The new watch begins with 1 again, and its first event may overtake the answer.
        result = {"watchId": watch_id, "mode": "inotify", "nextSeq": 1}
        peer.send(changed(watch_id, 1, "b"), {"id": request["id"], "result": result})
        assert await taking == Change("gap", "/w", None, True)
        assert (await anext_of(watch, peer, read(1, "b"))).path == "/w/b"
        assert request["params"]["watchId"] == watch_id


async def anext_of(watch: Watch, peer: Peer, result: dict[str, Any]) -> Change:
    """The next change, which the watch has to read."""
    taking = asyncio.create_task(anext(watch))
    await peer.answer("fs/watchRead", result)
    return await taking


async def test_a_wait_that_is_cancelled_while_the_watch_begins_anew_does_not_mix_up_the_numbers(
    scripted: ScriptedDaemon,
) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        peer.send(changed(watch_id, 1, "a", "b", "c"))
        assert await names(watch, 3) == ["a", "b", "c"]
        await peer.close()
        peer = await scripted.session()
        taking = asyncio.create_task(watch.batch())
        await peer.refuse("fs/watchRead", -32600, f"unknown watch {watch_id}", "unknown_watch")
        await peer.expect("fs/watch")  # not answered in time
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        taking = asyncio.create_task(watch.batch())
        await peer.answer("fs/watch", {"watchId": watch_id, "mode": "inotify", "nextSeq": 3})

        assert await taking == [Change("gap", "/w", None, True)]
        taking = asyncio.create_task(watch.batch())
        request = await peer.answer("fs/watchRead", read(3, "d"))
        assert request["params"]["afterSeq"] == 2
        assert [change.path for change in await taking] == ["/w/d"]


async def test_a_path_that_is_gone_when_the_watch_begins_anew_is_an_error(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, _):
        await peer.close()
        peer = await scripted.session()
        taking = asyncio.create_task(anext(watch))
        await peer.refuse("fs/watchRead", -32600, "unknown watch x", "unknown_watch")
        await peer.refuse("fs/watch", -32004, "No such file or directory (os error 2)")

        with pytest.raises(NotFound):
            await taking


@pytest.mark.parametrize("pushed", [True, False], ids=["event", "page"])
async def test_the_end_of_a_watch_ends_the_iteration_after_its_last_change(
    scripted: ScriptedDaemon, *, pushed: bool
) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        end = {"ended": "rootRemoved", "message": "/w was removed"}
        if pushed:
            peer.send(changed(watch_id, 1, "a", **end))
        else:
            await peer.close()
            peer = await scripted.session()
        taking = asyncio.create_task(_all(watch))
        if not pushed:
            await peer.answer("fs/watchRead", read(1, "a", **end))

        assert await taking == ["/w/a"]
        assert (watch.ended, watch.message) == ("rootRemoved", "/w was removed")
        assert await watch.batch() == []


async def _all(watch: Watch) -> list[str]:
    return [change.path async for change in watch]


async def test_a_cancelled_wait_loses_no_change(scripted: ScriptedDaemon) -> None:
    async with watching(scripted) as (watch, peer, watch_id):
        assert await watch.batch(0.05) == []
        peer.send(changed(watch_id, 1, "a"), changed(watch_id, 3, "c"))
        assert await names(watch, 1) == ["a"]
        waiting = asyncio.create_task(watch.batch(0.2))
        await peer.expect("fs/watchRead")  # not answered in time
        assert await waiting == []
        taking = asyncio.create_task(names(watch, 2))
        request = await peer.answer("fs/watchRead", read(2, "b", "c"))

        assert request["params"]["afterSeq"] == 1
        assert await taking == ["b", "c"]


async def test_a_daemon_that_does_not_answer_is_an_error_and_no_end_of_the_watch(
    scripted: ScriptedDaemon,
) -> None:
    async with watching(scripted, call_timeout=1) as (watch, peer, watch_id):
        peer.send(changed(watch_id, 2, "b"))
        with pytest.raises(CallTimeout):
            await watch.batch(60)
        await peer.expect("fs/watchRead")
        taking = asyncio.create_task(names(watch, 2))
        await peer.answer("fs/watchRead", read(1, "a", "b"))

        assert await taking == ["a", "b"]


async def test_a_lost_session_and_a_closed_executor_end_the_wait(scripted: ScriptedDaemon) -> None:
    async with watching(scripted, recovery_timeout=20) as (watch, peer, _):
        waiting = asyncio.create_task(anext(watch))
        await peer.close()
        peer = await scripted.accept()
        await peer.refuse("initialize", -32600, "unknown session id s1")
        with pytest.raises(SessionLost):
            await waiting
    async with watching(scripted) as (watch, _, _):
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
    with pytest.raises(ExecutorClosed):
        await waiting


async def test_a_watch_that_is_given_up_while_it_begins_is_ended(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = frozenset({"fs/watch"})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), executor.watch("/w"):
                pass
        request = await peer.expect("fs/watch")
        ended = await peer.answer("fs/unwatch", {})

        assert ended["params"] == {"watchId": request["params"]["watchId"]}


async def test_a_watch_whose_first_request_is_cut_is_asked_for_again(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = frozenset({"fs/watch"})
        watch = executor.watch("/w")
        entering = asyncio.create_task(watch.__aenter__())
        first = await peer.expect("fs/watch")
        await peer.close()
        peer = await scripted.session()
        second = await peer.answer("fs/watch", {"watchId": "x", "mode": "inotify", "nextSeq": 4})
        await entering
        assert (await anext_of(watch, peer, read(4, "d"))).path == "/w/d"
        assert second["params"] == first["params"]


async def test_another_server_is_not_asked(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, _):
        with pytest.raises(Unsupported, match="fs/watch"):
            await executor.watch("/w").__aenter__()


async def test_names_that_are_one_string_are_an_error(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, _):
        with pytest.raises(TypeError, match="exclude_dirs is a list of names"):
            executor.watch("/w", exclude_dirs="node_modules")
