"""Calls that are cut off: by their caller, by `close`, by a sink, by a connection; at a real daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, connect, process_control
from execclient.errors import ExecutorClosed, OutcomeUnknown
from execclient.govern.approval_policy import ON_FAILURE
from execclient.govern.approvals import ACCEPT, ApprovalRequest, Review
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools.context import ToolSession
from execclient.tools.events import CallEnd, OutputDelta, SessionClosed, ToolEvent
from execclient.tools.result import ToolResult
from execclient.tools.session_table import SessionTable
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import until
from tests.support.threads import settled
from tests.support.toolsets import ONE_TRANSPORT, Make, User
from tests.support.wire import at_most, wait_gone

OPEN = DangerFullAccess()


async def sh(tools: Toolset, script: str, **members: Any) -> ToolResult:
    return await tools.call("shell", {"command": ["sh", "-c", script], **members})


async def run(tools: Toolset, cmd: str, **members: Any) -> ToolResult:
    return await tools.call("exec_command", {"command": ["sh", "-c", cmd], "yield_time_ms": 250, **members})


async def look(tools: Toolset, session: str | None, chars: str = "", **members: Any) -> ToolResult:
    return await tools.call("write_stdin", {"process_id": session, "chars": chars, **members})


async def written(path: Path) -> int:
    """The process id that a command has moved there."""
    while not path.exists():
        await asyncio.sleep(0.01)
    return int(path.read_text())


async def all_ended(executor: Executor) -> None:
    """Wait until no process runs at the executor any more."""
    async with asyncio.timeout(20):
        while any(each.state == "running" for each in await executor.processes()):
            await asyncio.sleep(0.02)


WITH_A_CHILD = "sleep 60 & echo $! >pid.new; mv pid.new pid; wait"


# -- closing


@ONE_TRANSPORT
@pytest.mark.parametrize("tool", ["shell", "exec_command"])
async def test_closing_ends_the_calls_that_are_under_way(make: Make, workspace: Path, tool: str) -> None:
    told: list[ToolEvent] = []
    tools = make(sandbox=OPEN, events=told.append)
    call = asyncio.create_task(tools.call(tool, {"command": ["sh", "-c", WITH_A_CHILD]}))
    pid = await written(workspace / "pid")

    with at_most(15):
        await tools.close()
        result = await call

    assert wait_gone(pid)
    assert result.failure is not None
    assert (result.failure.kind, result.content) == ("cancelled", "the tools were closed")
    assert [event.type for event in told if event.type in ("begin", "end")] == ["begin", "end"]
    assert not list(tools._services.sessions)


@ONE_TRANSPORT
async def test_closing_does_not_wait_for_an_answer_and_nothing_starts_afterwards(
    make: Make, executor: Executor
) -> None:
    asked = asyncio.Event()

    class Silent:
        async def review(self, request: ApprovalRequest) -> Review:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    tools = make(user=Silent())
    call = asyncio.create_task(
        sh(tools, "true", sandbox_permissions="require_escalated", justification="for a test")
    )
    await asked.wait()

    await tools.close()

    assert (await call).content == "the tools were closed"
    assert await executor.processes() == []
    with pytest.raises(ExecutorClosed, match="the toolset was closed"):
        await sh(tools, "true")


@ONE_TRANSPORT
async def test_a_look_that_is_under_way_is_told_that_its_session_was_ended(make: Make) -> None:
    tools = make(sandbox=OPEN)
    session = (await run(tools, "exec sleep 60")).process_id
    looking = asyncio.create_task(look(tools, session, yield_time_ms=60_000))
    await asyncio.sleep(0.05)

    found = tools._services.sessions.use(int(session or 0))
    assert found is not None
    with at_most(15):
        await found.exec.end("another one took its place")
        result = await looking

    assert result.failure is not None
    assert result.failure.kind == "cancelled"
    assert result.content.endswith("the command was ended: another one took its place")
    assert f"Unknown process id {session}" in (await look(tools, session)).content


# -- cancellation


@ONE_TRANSPORT
async def test_a_call_that_is_cancelled_while_it_makes_room_leaves_nothing(
    make: Make, executor: Executor
) -> None:
    calls: list[asyncio.Task[ToolResult]] = []

    def cancel(event: ToolEvent) -> None:
        if isinstance(event, SessionClosed):
            calls[0].cancel()

    tools = make(sandbox=OPEN, events=cancel)
    tools._services.sessions = SessionTable[ToolSession](lambda each: each.exec.exited, limit=1, protected=0)
    await run(tools, "exec sleep 60")

    calls.append(asyncio.create_task(run(tools, "exec sleep 61")))
    with pytest.raises(asyncio.CancelledError):
        await calls[0]

    assert not list(tools._services.sessions)
    await all_ended(executor)


@ONE_TRANSPORT
async def test_no_task_outlives_its_call(make: Make, workspace: Path) -> None:
    tools = make(sandbox=OPEN)
    await sh(tools, "true")
    before = asyncio.all_tasks()

    await sh(tools, "sleep 60", timeout_ms=50)
    cancelled = asyncio.create_task(sh(tools, WITH_A_CHILD))
    await written(workspace / "pid")
    cancelled.cancel()
    await asyncio.wait({cancelled})
    session = (await run(tools, "exec sleep 60", tty=True)).process_id
    await look(tools, session, "\x03", yield_time_ms=20_000)

    assert {task.get_coro() for task in asyncio.all_tasks() - before} == set()


@ONE_TRANSPORT
async def test_a_call_that_is_cancelled_after_its_command_ended_kills_what_that_left(
    make: Make, executor: Executor, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_control, "LINGER_SECONDS", 20)
    tools = make(sandbox=OPEN)
    call = asyncio.create_task(sh(tools, "sleep 60 & echo $! >pid.new; mv pid.new pid; exit 0"))
    pid = await written(workspace / "pid")
    (inbox,) = executor._session.inboxes
    await until(lambda: inbox.exit_code == 0)
    assert not call.done()

    call.cancel()
    await asyncio.wait({call})

    assert wait_gone(pid)


# -- sinks


@ONE_TRANSPORT
async def test_a_sink_that_fails_at_output_or_at_the_end_changes_nothing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: ToolEvent) -> None:
        if isinstance(event, OutputDelta | CallEnd | SessionClosed):
            raise RuntimeError("full disk")

    tools = make(sandbox=OPEN, events=fail)

    with at_most(15):
        result = await sh(tools, "echo one; sleep 0.05; echo two; exit 3")

    assert (result.exit_code, result.aggregated_output) == (3, "one\ntwo\n")
    assert len(caplog.records) == 2


@ONE_TRANSPORT
@pytest.mark.parametrize("moment", ["begin", "decided"])
async def test_a_sink_that_fails_before_the_start_keeps_the_command_from_it(
    make: Make, executor: Executor, moment: str
) -> None:
    def fail(event: ToolEvent) -> None:
        if event.type == moment:
            raise RuntimeError("full disk")

    result = await sh(make(sandbox=OPEN, events=fail), "true")

    assert not result.success
    assert await executor.processes() == []


# -- connections


@asynccontextmanager
async def own_daemon() -> AsyncIterator[Executor]:
    """A daemon that is gone for good with its connection, and is reaped at the end."""
    before = set(threading.enumerate())
    async with connect("stdio:") as executor:
        yield executor
    settled(before)
    await asyncio.sleep(0)


class LostAnswers:
    """Carries out calls, and loses the answers to starts, from the Nth on. The server cannot be asked for the
    process of an earlier start."""

    def __init__(self, executor: Executor, monkeypatch: pytest.MonkeyPatch, *, from_number: int = 1) -> None:
        self.starts = 0
        self._call, self._from = executor._session.call, from_number
        monkeypatch.setattr(executor._session, "call", self)
        known = executor.capabilities - {"process/start.ifExists"}
        monkeypatch.setattr(executor._session, "capabilities", known)

    async def __call__(self, method: str, params: Mapping[str, Any], **options: Any) -> Any:
        answer = await self._call(method, params, **options)
        if method == "process/start":
            self.starts += 1
            if self.starts >= self._from:
                raise OutcomeUnknown("process/start: the connection was lost")
        return answer


@ONE_TRANSPORT
@pytest.mark.parametrize("tool", ["shell", "exec_command"])
async def test_a_start_without_an_answer_may_have_run_and_is_not_repeated(
    make: Make, executor: Executor, workspace: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    tools, lost = make(sandbox=OPEN), LostAnswers(executor, monkeypatch)

    result = await tools.call(tool, {"command": ["sh", "-c", "echo x >>ran; exec sleep 60"]})

    assert lost.starts == 1
    assert (result.exit_code, result.success) == (None, False)
    assert f"{tool} failed: the command may have run, in part or to its end" in result.content
    assert "failed to start" not in result.content
    assert not list(tools._services.sessions)
    await all_ended(executor)


@ONE_TRANSPORT
@pytest.mark.parametrize("tool", ["shell", "exec_command"])
async def test_a_second_attempt_without_an_answer_is_not_taken_for_a_command_that_never_ran(
    make: Make, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    tools = make(approval=ON_FAILURE, user=User(ACCEPT))
    lost = LostAnswers(executor, monkeypatch, from_number=2)

    result = await tools.call(tool, {"command": ["sh", "-c", f"echo x >>{tmp_path}/outside"]})

    assert lost.starts == 2
    assert result.exit_code is None
    assert result.content.startswith("The sandbox was in the way of the command, which has run.")
    assert "may have run" in result.content


async def test_a_command_that_is_lost_says_so_behind_its_output() -> None:
    async with own_daemon() as executor:

        def cut(event: ToolEvent) -> None:
            if isinstance(event, OutputDelta):
                executor.drop_connection()

        tools = Toolset(executor, sandbox=OPEN, events=cut)

        with at_most(15):
            result = await sh(tools, "echo before; exec sleep 60")

    assert result.failure is not None
    assert (result.failure.kind, result.exit_code) == ("io", None)
    assert "Output:\nbefore\n\nthe process was lost: " in result.content


async def test_a_session_whose_process_is_lost_says_so_and_its_number_is_free() -> None:
    async with own_daemon() as executor:
        tools = Toolset(executor, sandbox=OPEN)
        first = (await run(tools, "echo before; exec sleep 60", tty=True)).process_id
        second = (await run(tools, "exec sleep 60", tty=True)).process_id
        executor.drop_connection()

        answers = [await look(tools, first), await look(tools, second, "x\n")]

        for result, number in zip(answers, (first, second), strict=True):
            assert result.failure is not None
            assert result.failure.kind == "io"
            assert "the process was lost" in result.content
            assert f"Unknown process id {number}" in (await look(tools, number)).content
        await tools.close()


@ONE_TRANSPORT
async def test_output_over_a_connection_that_is_cut_is_complete_or_counted(
    make: Make, executor: Executor
) -> None:
    told: list[ToolEvent] = []

    def cut(event: ToolEvent) -> None:
        told.append(event)
        if isinstance(event, OutputDelta) and len(told) % 20 == 0 and executor.recoveries < 3:
            executor.drop_connection()

    result = await sh(make(sandbox=OPEN, events=cut), "seq 1 400000; exit 7", timeout_ms=30_000)

    produced = sum(len(f"{number}\n") for number in range(1, 400_001))
    lost = result.record.lost_bytes
    assert executor.recoveries >= 1
    assert result.exit_code == 7
    assert result.record.total_bytes + lost == produced
    assert (lost > 0) == ("of the output were lost on the way" in result.content)
    assert result.aggregated_output.endswith("400000\n")


# -- what is left behind


@ONE_TRANSPORT
@pytest.mark.parametrize("tool", ["shell", "exec_command"])
async def test_a_child_in_the_background_blocks_no_call_and_costs_nothing(
    make: Make, executor: Executor, workspace: Path, tool: str
) -> None:
    tools = make(sandbox=OPEN)
    # Its number is written down before its flood begins, and the parent ends after that.
    child = "sh -c 'echo $$ >pid.new; mv pid.new pid; exec yes'"
    script = f"{child} & until [ -e pid ]; do sleep 0.01; done"

    with at_most(15):
        result = await tools.call(tool, {"command": ["sh", "-c", script]})
    await asyncio.sleep(0.3)

    assert result.exit_code == 0
    inboxes = list(executor._session.inboxes)
    assert [inbox._size for inbox in inboxes] == [0]
    pid = await written(workspace / "pid")
    await executor._session.kill(inboxes[0])
    assert wait_gone(pid)
