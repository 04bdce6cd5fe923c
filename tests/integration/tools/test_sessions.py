"""Commands that a model leaves running and comes back to, at a real daemon."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, NoSuchProcess, connect
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools.config import ToolsConfig
from execclient.tools.events import SessionClosed, ToolEvent
from execclient.tools.result import ToolResult
from execclient.tools.saved_sessions import SavedSession
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import shown
from tests.support.toolsets import INSIDE, ONE_TRANSPORT, Make
from tests.support.wire import at_most, wait_gone


async def run(tools: Toolset, cmd: str, **members: Any) -> ToolResult:
    return await tools.call("exec_command", {"cmd": cmd, "login": False, **members})


async def write(tools: Toolset, session: str | None, chars: str = "", **members: Any) -> ToolResult:
    assert session is not None
    return await tools.call("write_stdin", {"session_id": int(session), "chars": chars, **members})


async def test_a_command_that_ends_in_time_has_its_exit_code_and_no_session(tools: Toolset) -> None:
    result = await run(tools, "echo out; echo err >&2; exit 3")

    assert (result.exit_code, result.process_id, result.success) == (3, None, False)
    chunk, wall, *rest = result.content.split("\n")
    assert re.fullmatch("Chunk ID: [0-9a-f]{6}", chunk)
    assert re.fullmatch(r"Wall time: \d\.\d{4} seconds", wall)
    assert rest == ["Process exited with code 3", "Original token count: 2", "Output:", "out", "err", ""]


async def test_a_command_that_goes_on_has_a_session_until_its_end_is_told(tools: Toolset) -> None:
    first = await run(tools, "echo one; read line; echo two; exit 5", tty=True, yield_time_ms=250)
    assert (first.exit_code, first.success) == (None, True)
    assert first.process_id is not None
    assert 1_000 <= int(first.process_id) <= 99_999
    assert await shown(tools, first, "one\r\n") == "one\r\n"

    second = await write(tools, first.process_id, "x\n", yield_time_ms=20_000)
    third = await write(tools, first.process_id)

    assert (second.exit_code, second.process_id) == (5, None)
    assert "two" in second.aggregated_output
    assert "one" not in second.aggregated_output
    assert third.content == f"write_stdin failed: Unknown process id {first.process_id}"


async def test_a_terminal_has_its_size_and_is_one(tools: Toolset) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM"

    assert (await run(tools, script, tty=True)).aggregated_output == "24 80\r\ndumb\r\n"
    assert "24 80" not in (await run(tools, script)).aggregated_output


@ONE_TRANSPORT
async def test_a_wait_ends_with_the_command_and_not_with_its_time(tools: Toolset, workspace: Path) -> None:
    script = "until [ -e over ]; do sleep 0.05; done; echo done"
    begun = await run(tools, script, yield_time_ms=250)

    with at_most(15):
        waiting = asyncio.create_task(write(tools, begun.process_id, yield_time_ms=60_000))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        (workspace / "over").touch()
        result = await waiting

    assert (result.exit_code, result.aggregated_output) == (0, "done\n")


@ONE_TRANSPORT
async def test_times_are_held_within_their_bounds(tools: Toolset) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    session = (await run(tools, "cat", tty=True, yield_time_ms=1)).process_id
    assert clock() - began >= 0.25

    began = clock()
    await write(tools, session, "x", yield_time_ms=0)
    assert 0.25 <= clock() - began < 10


@ONE_TRANSPORT
async def test_input_without_a_terminal_is_refused_but_for_an_interrupt(tools: Toolset) -> None:
    session = (await run(tools, "exec sleep 60", yield_time_ms=250)).process_id

    refused = await write(tools, session, "x\n")
    ended = await write(tools, session, "\x03", yield_time_ms=20_000)

    assert refused.content.startswith("write_stdin failed: stdin is closed for this session")
    assert ended.exit_code == 130


@ONE_TRANSPORT
async def test_an_id_that_the_caller_chose_is_its_own(tools: Toolset) -> None:
    arguments = {"command": ["cat"], "process_id": "1234", "tty": True, "yield_time_ms": 250}
    first = await tools.call("exec_command", arguments)
    again = await tools.call("exec_command", arguments)
    wrong = await tools.call("exec_command", {**arguments, "process_id": "my shell"})

    assert first.process_id == "1234"
    assert "1234 is in use" in again.content
    assert "`process_id` 'my shell' is no number" in wrong.content
    echoed = await tools.call("write_stdin", {"process_id": "1234", "input": "hi\n", "yield_time_ms": 300})
    assert await shown(tools, echoed, "hi\r\nhi\r\n") == "hi\r\nhi\r\n"


@ONE_TRANSPORT
async def test_output_between_two_calls_is_not_lost_and_bounded(tools: Toolset) -> None:
    session = (await run(tools, "read line; seq 1 500000; echo end", tty=True, yield_time_ms=250)).process_id

    result = await write(tools, session, "\n", yield_time_ms=30_000, max_output_tokens=50)

    produced = sum(len(f"{number}\r\n") for number in range(1, 500_001)) + len("\r\nend\r\n")
    assert result.record.total_bytes == produced
    assert result.omitted_bytes == produced - (1 << 20)
    assert result.content.endswith("500000\r\nend\r\n")
    assert len(result.content) < 600


@ONE_TRANSPORT
async def test_a_toolset_resumes_the_sessions_of_another_one_without_losing_or_repeating_output(
    url: str, workspace: Path
) -> None:
    executor = await connect(url)
    first = Toolset(executor, cwd=str(workspace), sandbox=INSIDE)
    script = "printf 'a€b'; read line; printf 'c€'; exit 3"
    started = await run(first, script, tty=True, yield_time_ms=500)
    session = started.process_id
    assert await shown(first, started, "a€b") == "a€b"
    (saved,) = first.sessions
    assert SavedSession.from_json(json.loads(json.dumps(saved.to_json()))) == saved
    assert (str(saved.number), saved.position) == (session, len("a€b".encode()))
    await executor.detach()
    assert executor.closed

    async with (
        connect(url, session_id=executor.session_id) as again,
        Toolset(again, cwd=str(workspace), sandbox=INSIDE) as second,
    ):
        await second.resume(saved)
        assert not again.closed
        with pytest.raises(ValueError, match="in use"):
            await second.resume(saved)
        result = await write(second, session, "x\n", yield_time_ms=20_000)

        assert result.aggregated_output == "x\r\nc€"
        assert result.exit_code == 3
        with pytest.raises(NoSuchProcess):
            await second.resume(replace(saved, process_id="missing"))
        assert second.sessions == ()


@ONE_TRANSPORT
async def test_no_answer_waits_longer_than_the_host_permits(make: Make) -> None:
    tools = make(config=ToolsConfig(max_wait=0.5))

    with at_most(8):
        session = (await run(tools, "sleep 60", yield_time_ms=30_000)).process_id
        waited = await write(tools, session, yield_time_ms=300_000)

    assert (waited.exit_code, waited.process_id) == (None, session)


@ONE_TRANSPORT
async def test_a_shell_that_is_not_there_is_the_account_s(tools: Toolset) -> None:
    fallen_back = await run(tools, "echo $0", shell="/bin/nosuchshell")
    other = await run(tools, "echo $0", shell="bash")

    assert fallen_back.aggregated_output == (await run(tools, "echo $0")).aggregated_output
    assert other.aggregated_output.endswith("/bash\n")


@ONE_TRANSPORT
async def test_one_session_too_many_ends_the_one_that_was_left_alone_longest(
    make: Make, executor: Executor
) -> None:
    told: list[ToolEvent] = []
    tools = make(events=told.append, sandbox=DangerFullAccess())

    async def start(number: int) -> ToolResult:
        # It only reads: many are started side by side.
        arguments = {"command": ["tail", "-f", "a.txt"], "process_id": str(number), "yield_time_ms": 250}
        return await tools.call("exec_command", arguments)

    results = [await start(2_000)]
    for first in range(2_001, 2_064, 9):
        results += await asyncio.gather(*(start(number) for number in range(first, first + 9)))
    assert not any(result.record.warnings for result in results[:50])
    assert all(result.record.warnings for result in results[-4:])
    assert "Warning: 6" in results[-1].content

    last = await start(2_064)

    assert last.process_id == "2064"
    assert [event for event in told if isinstance(event, SessionClosed)] == [SessionClosed("2000", "pruned")]
    running = {process.process_id for process in await executor.processes() if process.state == "running"}
    assert len(running) == 64
    assert results[0].record.process_id not in running
    assert "Unknown process id 2000" in (await write(tools, "2000")).content


async def test_closing_a_toolset_ends_its_sessions(make: Make, workspace: Path) -> None:
    tools = make(sandbox=DangerFullAccess())
    await run(tools, "sleep 60 & echo $! >pid.new; mv pid.new pid; wait", yield_time_ms=250)
    while not (workspace / "pid").exists():
        await asyncio.sleep(0.01)

    await tools.close()
    await tools.close()

    assert wait_gone(int((workspace / "pid").read_text()))


@ONE_TRANSPORT
async def test_a_cancelled_start_leaves_no_session(make: Make, workspace: Path) -> None:
    tools = make(sandbox=DangerFullAccess())
    call = asyncio.create_task(run(tools, "echo $$ >pid.new; mv pid.new pid; exec sleep 60"))
    while not (workspace / "pid").exists():
        await asyncio.sleep(0.01)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert wait_gone(int((workspace / "pid").read_text()))


@ONE_TRANSPORT
async def test_a_cancelled_wait_leaves_its_session_alone(tools: Toolset) -> None:
    session = (await run(tools, "cat", tty=True, yield_time_ms=250)).process_id
    call = asyncio.create_task(write(tools, session))
    await asyncio.sleep(0.1)

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    echoed = await write(tools, session, "hi\n", yield_time_ms=250)
    assert "hi\r\nhi" in await shown(tools, echoed, "hi\r\nhi")


@ONE_TRANSPORT
async def test_a_command_runs_in_the_environment_that_it_names(
    executor: Executor, url: str, tmp_path: Path
) -> None:
    async with connect("stdio:") as other:
        tools = Toolset({"here": executor, "there": other}, sandbox=DangerFullAccess())
        places = [
            (await run(tools, "pwd; echo $PPID", environment_id=name)).aggregated_output
            for name in ("here", "there")
        ]
        unknown = await run(tools, "pwd", environment_id="nowhere")
        await tools.close()

    assert places[0] != places[1]
    assert [place.splitlines()[0] for place in places] == [executor.cwd, other.cwd]
    assert "unknown environment_id 'nowhere'; there is here, there" in unknown.content


# -- the clean text of a terminal


@ONE_TRANSPORT
async def test_a_clean_terminal_shows_what_came_of_a_line_and_nothing_else(make: Make) -> None:
    tools = make(config=ToolsConfig(clean_terminal=True))
    begun = await run(tools, "exec bash --norc -i", tty=True, yield_time_ms=2_000)
    assert "bash-" in await shown(tools, begun, "bash-")
    listed = await write(tools, begun.process_id, "cd /; ls -d usr\n", yield_time_ms=500)
    assert await shown(tools, listed, "usr\n") == "usr\n"

    result = await write(tools, begun.process_id, "echo clean\n", yield_time_ms=500)

    assert await shown(tools, result, "clean\n") == "clean\n"
