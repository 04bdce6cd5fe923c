"""Attaching, repeated starts and broken sandboxes, with a scripted peer."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from execclient import CommandNotRun, NoSuchProcess, OutcomeUnknown, Process, Refused
from tests.integration.client.conftest import Peer, ScriptedDaemon, closed, connect_to, exited, output, page

SERVED = frozenset({"process/start.ifExists", "process/subscribe", "process/closeStdin"})
STATE = {"nextSeq": 3, "exited": False, "exitCode": None, "closed": False, "tty": True, "pid": 42}


def elsewhere(event: dict[str, Any]) -> dict[str, Any]:
    """The event as one of another session's process."""
    return {"method": event["method"], "params": {**event["params"], "sessionId": "s2"}}


async def all_of(process: Process) -> bytes:
    return b"".join([data async for _, data in process])


async def survived(peer: Peer, executor: Any) -> None:
    """The next thing that the client says is this, and no terminate."""
    asking = asyncio.create_task(executor.fs.iterdir("/"))
    await peer.answer("fs/readDirectory", {"entries": []})
    await asking


async def test_an_observer_subscribes_again_behind_what_it_has(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = SERVED
        attaching = asyncio.create_task(executor.attach("p1", session_id="s2", interactive=True))
        first = await peer.expect("process/subscribe")
        # Events may be in the same packet as the answer, and those of our own are none of it.
        peer.send(
            {"id": first["id"], "result": STATE},
            elsewhere(output(1, b"a")),
            output(1, b"x"),
            elsewhere(output(2, b"b")),
        )
        process = await attaching
        assert (await anext(process)).data == b"a"
        await peer.close()

        peer = await scripted.session()
        second = await peer.answer("process/subscribe", {**STATE, "nextSeq": 4})
        peer.send(*(elsewhere(event) for event in (output(2, b"b"), output(3, b"c"), exited(4), closed(5))))

        assert await all_of(process) == b"bc"
        assert (process.pid, process.tty, process.session_id) == (42, True, "s2")
        assert [each["params"]["afterSeq"] for each in (first, second)] == [0, 2]
        assert all(each["params"]["interactive"] for each in (first, second))


async def test_an_attach_goes_on_over_a_cut(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        attaching = asyncio.create_task(executor.attach("p1"))
        await peer.expect("process/read")
        await peer.close()
        peer = await scripted.session()
        peer.send(output(3, b"c"), closed(4))
        await peer.answer("process/read", page((1, b"a"), (2, b"b"), next_seq=3))

        assert await all_of(await attaching) == b"abc"


async def test_an_observed_process_that_is_gone_after_a_cut_fails_alone(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = SERVED
        attaching = asyncio.create_task(executor.attach("p1", session_id="s2"))
        await peer.answer("process/subscribe", STATE)
        process = await attaching
        await peer.close()
        peer = await scripted.session()
        await peer.refuse("process/subscribe", -32600, "unknown session id s2")

        with pytest.raises(NoSuchProcess, match="unknown session id"):
            await process.wait()
        await survived(peer, executor)


async def test_leaving_an_observed_process_ends_the_subscription(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = SERVED
        attaching = asyncio.create_task(executor.attach("p1", session_id="s2"))
        await peer.answer("process/subscribe", STATE)

        leaving = asyncio.create_task((await attaching).detach())
        request = await peer.answer("process/unsubscribe", {})

        await leaving
        assert request["params"] == {"processId": "p1", "sessionId": "s2"}


@pytest.mark.parametrize(
    "named", [{"id": "once", "if_exists": "attach"}, {}], ids=["attach", "without an id"]
)
async def test_a_repeatable_start_whose_answer_was_lost_is_sent_again(
    scripted: ScriptedDaemon, named: dict[str, Any]
) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = SERVED
        starting = asyncio.create_task(executor.start(["x"], **named))
        first = (await peer.expect("process/start"))["params"]
        await peer.close()
        peer = await scripted.session()
        second = (await peer.answer("process/start", {"processId": "once", "pid": 42}))["params"]
        await peer.answer("process/read", page((1, b"a"), next_seq=3, closed=True))

        process = await starting
        assert await all_of(process) == b"a"
        assert process.pid == 42
        assert second == {**first, "ifExists": "attach"}
        await survived(peer, executor)


async def test_a_start_that_meets_a_cut_does_not_kill_another_one_of_its_name(
    scripted: ScriptedDaemon,
) -> None:
    async with scripted.client() as (executor, _, peer):
        starting = asyncio.create_task(executor.start(["x"], id="p1"))
        await peer.expect("process/start")
        await peer.close()
        with pytest.raises(OutcomeUnknown):
            await starting
        peer = await scripted.session()
        await peer.answer("process/read", page(next_seq=1))
        await survived(peer, executor)


async def test_a_command_whose_sandbox_broke_was_not_run(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        running = asyncio.create_task(executor.run(["x"], sandbox={"permissions": {"type": "managed"}}))
        start = await peer.answer("process/start", {})
        name = start["params"]["processId"]
        peer.send(exited(1, 1, name), closed(2, name))
        await peer.answer("process/read", page(next_seq=3, exited=True, exitCode=1, failure="it broke"))

        with pytest.raises(CommandNotRun, match="it broke"):
            await running
        assert start["params"]["sandbox"] == {"permissions": {"type": "managed"}}


async def test_the_command_line_reports_a_broken_sandbox_and_no_exit_code(scripted: ScriptedDaemon) -> None:
    command = ("run", "--url", scripted.url, "--sandbox", "read-only", "--", "x")
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "execserver", *command),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    peer = await scripted.session()
    start = await peer.answer("process/start", {})
    name = start["params"]["processId"]
    peer.send(exited(1, 1, name), closed(2, name))
    await peer.answer("process/read", page(next_seq=3, exited=True, exitCode=1, failure="it broke"))

    agreeing = asyncio.create_task(peer.agree())
    _, errors = await program.communicate()
    await agreeing
    assert errors == b"execserver: the sandbox failed before the command began: it broke\n"
    assert program.returncode == 125


async def test_an_input_that_cannot_be_delivered_ends_the_command(scripted: ScriptedDaemon) -> None:
    async with connect_to(scripted) as (executor, peer):
        executor._session.capabilities = SERVED
        running = asyncio.create_task(executor.run(["x"], input="data"))
        await peer.answer("process/start", {})
        await peer.answer("process/write", {"status": "accepted"})
        await peer.refuse("process/closeStdin", -32600, "not today")
        terminate = await peer.answer("process/terminate", {"running": True})

        with pytest.raises(Refused, match="not today"):
            await running
        assert terminate["params"]["scope"] == "tree"
