"""Time limits, looks, and who hears what a command prints, at a real daemon."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor, connect
from execclient.govern.approval_policy import NEVER, ON_FAILURE
from execclient.govern.approvals import ACCEPT, Approvals
from execclient.govern.sandbox import DangerFullAccess
from execclient.tools import command_call
from execclient.tools.config import ToolsConfig
from execclient.tools.events import OutputDelta, ToolEvent
from execclient.tools.exec_session import ExecSession
from execclient.tools.result import ToolResult
from execclient.tools.terminal_text import TerminalText
from execclient.tools.toolset import Toolset
from tests.integration.tools.patience import limited, shown, until
from tests.support.toolsets import ONE_TRANSPORT, Make, User
from tests.support.wire import at_most, wait_gone

OPEN = DangerFullAccess()
CO = ToolsConfig(profile="co")

pytestmark = ONE_TRANSPORT


async def gently(tools: Toolset, script: str, limit: int) -> ToolResult:
    return await tools.call("run_shell_command", {"cmd": script, "timeout": limit})


async def run(tools: Toolset, cmd: str, **members: Any) -> ToolResult:
    return await tools.call("exec_command", {"command": ["sh", "-c", cmd], "yield_time_ms": 250, **members})


async def look(tools: Toolset, session: str | None, chars: str = "", **members: Any) -> ToolResult:
    return await tools.call("write_stdin", {"process_id": session, "chars": chars, **members})


# -- time limits


async def test_a_command_that_ended_in_time_has_not_timed_out_with_a_child_left(
    make: Make,
) -> None:
    result = await gently(make(sandbox=OPEN, config=CO, approval=NEVER), "sleep 60 & exit 3", 5)

    assert (result.exit_code, result.timed_out) == (3, False)


async def test_a_limit_that_passes_while_only_output_is_waited_for_is_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, waited_for = ExecSession.collect, []

    async def passes_at_the_end(session: ExecSession, seconds: float | None) -> bool:
        if seconds is None:
            return await collect(session, None)
        await session.process.wait()
        waited_for.append(not session.finished.is_set())
        return session.finished.is_set()

    monkeypatch.setattr(ExecSession, "collect", passes_at_the_end)

    result = await gently(make(sandbox=OPEN, config=CO, approval=NEVER), "echo x; sleep 60 & exit 3", 5)

    assert waited_for == [True]
    assert (result.exit_code, result.timed_out, result.stdout) == (3, False, "x\n")


async def test_what_ignores_a_gentle_end_is_killed_when_its_parent_has_obeyed(
    make: Make, workspace: Path
) -> None:
    tools = make(sandbox=OPEN, config=CO, approval=NEVER)

    # The child holds no output, so that nothing but the kill shows that it is still there.
    child = "sh -c 'trap \"\" TERM; : >deaf.$PPID; exec sleep 60' >/dev/null 2>&1"
    script = (
        f"trap 'exit 0' TERM; {child} & echo $!;"
        " until [ -e deaf.$$ ]; do sleep 0.01; done; : >begun; sleep 60"
    )
    result, _ = await limited(lambda limit: gently(tools, script, limit), workspace / "begun", 1, 10)

    assert (result.exit_code, result.timed_out) == (124, True)
    assert wait_gone(int(result.stdout))


async def test_what_a_command_prints_at_its_gentle_end_is_in_the_answer(
    make: Make, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_call, "GRACE_SECONDS", 5)
    tools = make(sandbox=OPEN, config=CO, approval=NEVER)

    script = "trap 'echo cleaned up; exit 0' TERM; echo ready; : >begun; while :; do sleep 0.05; done"
    result, _ = await limited(lambda limit: gently(tools, script, limit), workspace / "begun", 1, 10)

    assert result.aggregated_output.startswith("ready\n")
    assert result.aggregated_output.endswith("cleaned up\n")


async def test_a_limit_beyond_all_numbers_is_none(make: Make) -> None:
    tools = make(sandbox=OPEN)

    result = await tools.call("shell", {"command": ["echo", "hi"], "timeout_ms": 2**64 - 1})

    assert (result.exit_code, result.stdout) == (0, "hi\n")


async def test_a_denied_command_that_ran_into_its_limit_is_not_run_again(
    make: Make, workspace: Path, tmp_path: Path
) -> None:
    user = User(ACCEPT)
    tools = make(approval=ON_FAILURE, user=user)
    # Killed by its limit, and denied before.
    command = ["sh", "-c", f"echo x >{tmp_path}/outside; : >begun; exec sleep 60"]

    result, _ = await limited(
        lambda limit: tools.call("shell", {"command": command, "timeout_ms": limit}),
        workspace / "begun",
        500,
        10_000,
    )

    assert (result.exit_code, result.timed_out) == (124, True)
    assert user.asked == []


async def test_a_server_without_extensions_is_enough(make: Make, executor: Executor, workspace: Path) -> None:
    executor._session.capabilities = frozenset()
    tools = make(sandbox=OPEN, config=CO, approval=NEVER)

    script = "echo before; : >begun; sleep 60"
    with at_most(15):
        gentle, _ = await limited(lambda limit: gently(tools, script, limit), workspace / "begun", 1, 5)
    plain = await tools.call("shell", {"command": ["sh", "-c", "sleep 60"], "timeout_ms": 100})
    session = (await run(tools, "exec sleep 60")).process_id
    interrupted = await look(tools, session, "\x03", yield_time_ms=20_000)

    assert (gentle.exit_code, gentle.timed_out, gentle.stdout) == (124, True, "before\n")
    assert (plain.exit_code, plain.timed_out) == (124, True)
    assert interrupted.exit_code == 130


# -- looks


async def test_reading_output_blocks_no_call(make: Make) -> None:
    tools = make(sandbox=OPEN)
    session = (await run(tools, "exec sleep 60")).process_id
    looking = asyncio.create_task(look(tools, session, yield_time_ms=60_000))
    await asyncio.sleep(0.05)

    with at_most(15):
        result = await run(tools, "echo changed >made", yield_time_ms=20_000)

    assert result.exit_code == 0
    assert not looking.done()
    looking.cancel()
    await asyncio.wait({looking})


async def test_output_goes_to_the_call_that_asks_and_to_none_that_has_ended(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[ToolEvent] = []
    tools = make(sandbox=OPEN, events=told.append)

    def heard(call_id: str) -> bytes:
        return b"".join(
            event.chunk for event in told if isinstance(event, OutputDelta) and event.call_id == call_id
        )

    async def until_heard(session: ExecSession, seconds: float | None) -> bool:
        await until(lambda: heard("write").endswith(b"one\r\none\r\n"))
        return session.finished.is_set()

    started = await tools.call(
        "exec_command", {"command": ["cat"], "tty": True, "yield_time_ms": 250}, "start"
    )
    arguments = {"process_id": started.process_id, "yield_time_ms": 60_000}
    waiting = asyncio.create_task(tools.call("write_stdin", arguments, "look"))
    await asyncio.sleep(0.05)
    with monkeypatch.context() as patched:  # its time is up when all is there
        patched.setattr(ExecSession, "collect", until_heard)
        await tools.call("write_stdin", {**arguments, "chars": "one\n"}, "write")
    found = tools._services.sessions.use(int(started.process_id or 0))
    assert found is not None
    await found.exec.process.write("two\n")
    await until(lambda: len(heard("look")) >= len("two\r\ntwo\r\n"))
    waiting.cancel()
    await asyncio.wait({waiting})
    await found.exec.process.write("three\n")
    output = found.exec.both
    await until(lambda: output.text().endswith("three\r\nthree\r\n"))

    assert heard("start") == b""
    assert heard("write") == b"one\r\none\r\n"
    assert heard("look") == b"two\r\ntwo\r\n"


async def test_two_looks_at_an_end_both_tell_it_and_leave_another_one_s_number_alone(make: Make) -> None:
    tools = make(sandbox=OPEN)
    chosen = {"process_id": "1234", "tty": True}
    await run(tools, "read line; echo bye; exit 5", **chosen)

    looking = asyncio.create_task(look(tools, "1234", yield_time_ms=20_000))
    await asyncio.sleep(0)
    ended = await look(tools, "1234", "\n", yield_time_ms=20_000)
    first = await looking
    next_one = await run(tools, "exec sleep 60", **chosen)

    assert [ended.exit_code, first.exit_code] == [5, 5]
    assert "bye" in ended.aggregated_output + first.aggregated_output
    assert next_one.process_id == "1234"


async def test_a_character_that_comes_in_two_halves_is_one(make: Make) -> None:
    tools = make(sandbox=OPEN)
    started = await run(tools, r"stty -echo; printf 'caf\303'; read line; printf '\251 ok'", tty=True)
    first_half = await shown(tools, started, "caf")

    ended = await look(tools, started.process_id, "\n", yield_time_ms=20_000)

    assert first_half == "caf"
    assert ended.aggregated_output == "é ok"
    assert ended.record.total_bytes == 5
    if started.aggregated_output:
        assert started.record.total_bytes == 3


async def test_a_patch_in_a_shell_s_clothes_is_made_where_the_call_says(
    executor: Executor, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    patch = "*** Begin Patch\n*** Add File: made\n+x\n*** End Patch\n"
    here: list[str] = []
    monkeypatch.setattr(executor._session, "call", lambda method, params, **options: here.append(method))
    async with connect("stdio:") as other:
        approvals = Approvals(policy=NEVER)
        tools = Toolset({"here": executor, "there": other}, sandbox=OPEN, approvals=approvals)
        result = await tools.call(
            "exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch}EOF\n", "environment_id": "there"}
        )
        await tools.close()

    assert result.success, result.content
    assert (tmp_path / "there" / "made").read_text() == "x\n"
    assert here == []
    monkeypatch.undo()


async def test_much_output_of_a_terminal_is_cleaned_beside_the_event_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = make(sandbox=OPEN, config=ToolsConfig(clean_terminal=True))
    clean, beside = TerminalText.clean, []

    def spied(terminal: TerminalText, output: bytes, *, ended: bool = False) -> str:
        beside.append(threading.current_thread() is not threading.main_thread())
        return clean(terminal, output, ended=ended)

    monkeypatch.setattr(TerminalText, "clean", spied)

    little = await run(tools, "echo little", tty=True, yield_time_ms=10_000)
    much = await run(tools, "yes | head -c 60000; echo end", tty=True, yield_time_ms=10_000)

    assert (little.aggregated_output, much.aggregated_output) == ("little\n", "y\n" * 30_000 + "end\n")
    assert beside == [False, True]
