"""What `subprocess` and asyncio have taught people to do with a process, and lines, and grace."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execclient import (
    Executor,
    Line,
    OutputGap,
    Process,
    RunResult,
    StdinUnavailable,
    Unsupported,
    WaitTimeout,
    connect,
    sync,
)
from execclient.tools import Toolset
from tests.integration.client.test_run import ENOUGH_SECONDS
from tests.support.wire import Server, alive, wait_gone

PATIENCE = 20.0


@pytest.fixture(scope="module")
def url(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The daemon of all tests here, which stop nothing but their own processes."""
    folder = tmp_path_factory.mktemp("habits")
    with Server(f"unix://{folder}/s", env=environment, cwd=folder) as server:
        yield server.url


LOOP = "while :; do sleep 0.05; done"
TRAPPED = f"trap 'echo told; exit 3' TERM; echo ready; {LOOP}"
DEAF = f"trap '' TERM; echo ready; {LOOP}"


async def ready(process: Process) -> None:
    """Wait for the first output."""
    assert (await anext(process)).data.startswith(b"ready")


async def printed(process: Process, size: int) -> None:
    """Wait until the daemon has that much output."""
    seen, after = 0, 0
    while seen < size:
        page = await process.read(after, wait=PATIENCE)
        seen, after = seen + len(page.data), page.next_seq - 1


# -- ending a process


async def test_terminate_lets_a_process_clean_up_and_kill_does_not(executor: Executor) -> None:
    for end, code in ((Process.terminate, 3), (Process.kill, 137)):
        process = await executor.start(["sh", "-c", TRAPPED])
        await ready(process)
        await end(process)
        assert await process.wait(PATIENCE) == code


@pytest.mark.parametrize(("scope", "left"), [("leader", 2), ("group", 1), ("tree", 0)])
async def test_a_kill_has_a_scope(executor: Executor, scope: Any, left: int) -> None:
    child = "echo $$; exec sleep 600 >/dev/null 2>&1"
    process = await executor.start(["sh", "-c", f"setsid sh -c '{child}' & sh -c '{child}' & wait"])
    lines = process.lines()
    pids = [int(await anext(lines)), int(await anext(lines))]
    in_group, apart = sorted(pids, key=lambda pid: os.getsid(pid) != process.pid)
    await process.kill(scope)

    assert await process.wait(PATIENCE) == 137
    gone = [in_group, apart][: 2 - left]
    assert all([await asyncio.to_thread(wait_gone, pid, PATIENCE) for pid in gone])
    assert all(alive(pid) for pid in [in_group, apart][2 - left :])


async def test_a_scope_that_does_not_exist_is_refused(executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])
    with pytest.raises(ValueError, match="scope is 'tree', 'group' or 'leader', not 'all'"):
        await process.kill("all")  # type: ignore[arg-type]
    assert process.poll() is None


async def test_the_old_terminate_kills_for_one_version_more_and_warns(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", DEAF])
    await ready(process)
    with pytest.warns(DeprecationWarning, match=r"kill\(scope='tree'\) sends SIGKILL") as caught:
        assert await process.terminate("tree") is True
    assert caught[0].filename == __file__
    assert await process.wait(PATIENCE) == 137
    with pytest.warns(DeprecationWarning, match="kill"):
        assert await process.terminate(scope="group") is False


def test_the_old_terminate_warns_code_without_a_loop_at_its_own_line(url: str) -> None:
    with sync.connect(url) as executor:
        process = executor.start(["sleep", "600"])
        with pytest.warns(DeprecationWarning, match="terminate") as caught:
            assert process.terminate("tree") is True
        assert caught[0].filename == __file__
        assert process.wait(PATIENCE) == 137
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert process.terminate() is False
            process.kill()


@pytest.mark.parametrize(
    "script", ["exec sleep 60", "sleep 60 & exec sleep 60", "trap '' TERM INT; while :; do sleep 1; done"]
)
async def test_a_process_has_its_exit_code_right_after_its_block(
    executor: Executor, url: str, script: str
) -> None:
    for _ in range(10):
        async with await executor.start(["sh", "-c", script]) as process:
            pass
        assert process.poll() == 137

    def without_a_loop() -> int | None:
        with sync.connect(url) as blocking, blocking.start(["sh", "-c", script]) as process:
            pass
        return process.poll()

    assert await asyncio.to_thread(without_a_loop) == 137


async def test_a_block_that_is_cancelled_at_its_end_kills_all_the_same(executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])

    async def block() -> None:
        async with process:
            pass

    leaving = asyncio.create_task(block())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await process.wait(10) == 137


async def test_send_signal_is_signal(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", f"trap 'exit 9' USR1; echo ready; {LOOP}"])
    await ready(process)
    assert await process.send_signal("USR1") is True
    assert await process.wait(PATIENCE) == 9
    assert await process.send_signal("USR1") is False


async def test_poll_tells_the_exit_code_without_waiting(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "read -r line; exit 7"], stdin=True)
    assert (process.poll(), process.returncode) == (None, None)
    await process.write("\n")
    while process.poll() is None:
        await asyncio.sleep(0.01)
    assert (process.poll(), process.returncode, process.exit_code) == (7, 7, 7)


# -- communicate


async def test_communicate_sends_the_input_and_returns_both_streams(executor: Executor) -> None:
    script = "cat; echo error >&2; exit 4"
    async with await executor.start(["sh", "-c", script], stdin=True) as process:
        assert await process.communicate("text\n") == (b"text\n", b"error\n")
    assert process.returncode == 4


@pytest.mark.parametrize("stdin", [True, False])
async def test_communicate_without_input_ends_the_standard_input(executor: Executor, stdin: bool) -> None:
    process = await executor.start(["wc", "-c"], stdin=stdin)
    assert await process.communicate() == (b"0\n", b"")


async def test_communicate_does_not_hang_on_much_of_both(executor: Executor) -> None:
    data = bytes(range(256)) * 20_000
    process = await executor.start(["cat"], stdin=True)
    assert await process.communicate(data) == (data, b"")


async def test_a_process_need_not_read_what_communicate_sends(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "exit 5"], stdin=True)
    assert await process.communicate(b"x" * 3_000_000) == (b"", b"")
    assert process.returncode == 5


async def test_communicate_at_a_terminal_types_and_ends_the_input(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "stty -echo; echo ready; cat"], tty=True)
    await ready(process)
    out, err = await process.communicate("typed\n")
    assert (out.replace(b"\r\n", b"\n"), err) == (b"typed\n", b"")


async def test_input_without_a_standard_input_is_an_error_and_not_lost(executor: Executor) -> None:
    process = await executor.start(["cat"])
    with pytest.raises(StdinUnavailable, match="stdin=True"):
        await process.communicate("x")


async def test_a_second_communicate_continues_the_first(executor: Executor) -> None:
    fifo = f"{executor.cwd}/go"
    await executor.run(["mkfifo", fifo])
    process = await executor.start(["sh", "-c", f"cat; read -r x < {fifo}; echo end"], stdin=True)
    with pytest.raises(WaitTimeout, match=rf"process {process.id} did not end within 0\.5 s"):
        await process.communicate("first\n", timeout=0.5)
    with pytest.raises(ValueError, match="input was given to the first call"):
        await process.communicate("again")
    await executor.run(["sh", "-c", f"echo > {fifo}"])
    assert await process.communicate() == (b"first\nend\n", b"")
    assert await process.communicate() == (b"first\nend\n", b"")


def test_communicate_without_a_loop_returns_what_was_fetched_and_not_taken(url: str, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with sync.connect(url) as executor:
        process = executor.start(["sh", "-c", "echo one; read -r x; echo two"], stdin=True)
        assert process.output.wait(PATIENCE)
        assert process.communicate("x\n", timeout=PATIENCE) == (b"one\ntwo\n", b"")
        slow = executor.start(["sh", "-c", f"echo one; read -r x < {fifo}; echo two"])
        with pytest.raises(WaitTimeout, match=r"did not end within 0\.3 s"):
            slow.communicate(timeout=0.3)
        fifo.write_text("\n")
        assert slow.communicate(timeout=PATIENCE) == (b"one\ntwo\n", b"")


async def test_lost_output_is_told_by_communicate_with_the_rest(executor: Executor) -> None:
    script = "yes | head -c 1000000; read -r line; echo end"
    process = await executor.start(["sh", "-c", script], stdin=True, buffer_bytes=1000)
    await printed(process, 1_000_000)
    await process.write("\n")
    await process.wait_closed()
    with pytest.raises(OutputGap) as raised:
        await process.communicate()
    assert raised.value.result is not None
    assert raised.value.result.stdout.endswith(b"end\n")
    assert raised.value.lost_bytes == 1_000_004 - len(raised.value.result.stdout)


# -- lines


async def test_lines_are_whole_and_know_their_stream(executor: Executor) -> None:
    script = "printf 'on'; sleep 0.2; printf 'e\\n\\ntwo\\r\\n'; echo error >&2; sleep 0.2; printf last"
    async with await executor.start(["sh", "-c", script]) as process:
        lines = [line async for line in process.lines()]

    assert [line for line in lines if line.stream == "stdout"] == ["one", "", "two", "last"]
    assert [line for line in lines if line.stream == "stderr"] == ["error"]
    assert [line.ended for line in lines if line.stream == "stdout"] == [True, True, True, False]


def test_lines_without_a_loop(url: str) -> None:
    with sync.connect(url) as executor, executor.start(["seq", "100000"]) as process:
        assert list(process.lines()) == [str(number) for number in range(1, 100_001)]


def test_lines_that_are_left_continue_without_a_loop(url: str) -> None:
    with sync.connect(url) as executor, executor.start(["seq", "1000"]) as process:
        seen = [next(process.lines()) for _ in range(500)]
        seen += process.lines()
    assert seen == [str(number) for number in range(1, 1001)]


async def test_a_gap_between_lines_is_told_at_its_place(executor: Executor) -> None:
    script = "seq 100000; read -r line; echo end"
    process = await executor.start(["sh", "-c", script], stdin=True, buffer_bytes=1000)
    await printed(process, 588_895)
    await process.write("\n")
    await process.wait_closed()
    lines = process.lines()
    with pytest.raises(OutputGap):
        await anext(lines)
    rest = [line async for line in lines]
    assert rest[-1] == "end"


# -- grace


@pytest.fixture(params=["daemon", "client"])
async def graceful(request: pytest.FixtureRequest, executor: Executor) -> Executor:
    """An executor that gives a grace by its daemon, and one that has to do it itself."""
    if request.param == "client":
        executor._session.capabilities -= {"process/start.graceMs"}
    return executor


@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
async def test_a_command_may_clean_up_at_its_limit(graceful: Executor, limit: str) -> None:
    for seconds in ENOUGH_SECONDS:
        limits: dict[str, Any] = {limit: seconds}
        result = await graceful.run(["sh", "-c", TRAPPED], **limits, grace=60)
        if result.stdout.startswith(b"ready"):
            break

    assert (result.exit_code, result.returncode, result.timed_out) == (124, 124, True)
    assert result.cause == {"timeout": "timeout", "idle_timeout": "idleTimeout"}[limit]
    assert b"told" in result.stdout


async def test_a_command_that_does_not_end_in_its_grace_is_killed(graceful: Executor) -> None:
    for seconds in ENOUGH_SECONDS:
        begin = time.monotonic()
        process = await graceful.start(["sh", "-c", DEAF], timeout=seconds, grace=0.7)
        ended = (await process.wait(PATIENCE), process.cause)
        elapsed = time.monotonic() - begin
        if (await process.read()).data:
            break

    assert ended == (124, "timeout")
    assert elapsed >= seconds + 0.7


async def test_descendants_have_their_grace_when_their_leader_has_ended(graceful: Executor) -> None:
    child = rf"trap '' TERM; echo \$\$; exec >/dev/null 2>&1; {LOOP}"
    for seconds in ENOUGH_SECONDS:
        begin = time.monotonic()
        script = f'setsid sh -c "{child}" & wait'
        result = await graceful.run(["sh", "-c", script], timeout=seconds, grace=1)
        if result.stdout:
            break
    descendant = int(result.text)
    still_there = alive(descendant)

    assert still_there or time.monotonic() - begin >= seconds + 1
    assert (result.exit_code, result.cause) == (124, "timeout")
    assert await asyncio.to_thread(wait_gone, descendant, PATIENCE)
    assert time.monotonic() - begin >= seconds + 1


async def test_the_daemon_kills_later_if_the_client_that_warns_is_gone(graceful: Executor) -> None:
    process = await graceful.start(["sh", "-c", f"echo ready; {LOOP}"], timeout=3, grace=0.5)
    await ready(process)
    if process._deadlines is not None:
        process._deadlines.cancel()
    assert await process.wait(PATIENCE) in (124, 143)
    assert process.cause == "timeout"


async def test_a_server_without_signals_is_not_asked_for_a_grace(executor: Executor) -> None:
    executor._session.capabilities = frozenset()
    with pytest.raises(Unsupported, match=r"process/start\.graceMs"):
        await executor.run(["true"], timeout=5, grace=1)
    assert (await executor.run(["true"], grace=1)).exit_code == 0


@pytest.mark.parametrize("grace", [-1, float("inf"), float("nan"), "5", None, True])
async def test_a_grace_that_is_no_time_is_refused_before_the_start(executor: Executor, grace: Any) -> None:
    for call in (executor.run, executor.start):
        with pytest.raises((TypeError, ValueError), match="grace is "):
            await call(["touch", "mark"], timeout=5, grace=grace)
    assert not await executor.fs.exists("mark")


# -- one exit code


@pytest.mark.parametrize("limit", ["timeout", "idle_timeout"])
async def test_a_time_limit_has_one_exit_code_everywhere(executor: Executor, limit: str) -> None:
    limits: dict[str, Any] = {limit: 0.3}
    process = await executor.start(["sleep", "60"], **limits)
    cause = {"timeout": "timeout", "idle_timeout": "idleTimeout"}[limit]

    assert await process.wait(PATIENCE) == 124
    assert (process.exit_code, process.returncode, process.poll(), process.cause) == (124, 124, 124, cause)
    page = await process.read()
    assert (page.exit_code, page.cause) == (124, cause)
    [listed] = [each for each in await executor.processes() if each.process_id == process.id]
    assert (listed.exit_code, listed.cause) == (124, cause)
    assert (await executor.run(["sleep", "60"], **limits)).exit_code == 124


# -- what is printed


async def test_what_is_printed_says_what_it_is_and_no_secret(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "echo secret; echo secret >&2; exit 3"])
    process = await executor.start(["sh", "-c", "echo secret; exit 3"])
    running = repr(process)
    await process.wait_closed()

    assert repr(result).startswith("<RunResult exit_code=3 stdout=7 bytes stderr=7 bytes duration=")
    assert running.startswith(f"<Process {process.id} 'sh' pid={process.pid} ")
    assert repr(process) == f"<Process {process.id} 'sh' pid={process.pid} exit_code=3>"
    assert repr(executor) == f"<Executor {executor.url} session={executor.session_id}>"
    assert repr(executor.fs) == f"<FileSystem cwd='{executor.cwd}'>"
    assert repr(connect("unix:///s", token_file="/t")) == "<connect unix:///s>"
    assert repr(Toolset(executor)) == (
        f"<Toolset {executor.url} cwd='{executor.cwd}' sandbox=workspace-write>"
    )
    assert "secret" not in f"{result!r}{process!r}{executor!r}"
    await executor.close()
    assert repr(executor).endswith(" closed>")


def test_what_is_printed_without_a_loop(url: str) -> None:
    with sync.connect(url) as executor:
        process = executor.start(["sleep", "600"])
        assert repr(process) == f"<Process {process.id} 'sleep' pid={process.pid} running>"
        assert repr(executor) == f"<Executor {executor.url} session={executor.session_id}>"
        assert repr(executor.fs) == f"<FileSystem cwd='{executor.cwd}'>"


def test_a_line_is_text_with_a_stream_and_can_be_pickled() -> None:
    line = pickle.loads(pickle.dumps(Line("text", "stderr", ended=False)))
    assert (line, line.stream, line.ended, repr(line)) == ("text", "stderr", False, "'text'")


def test_the_end_of_a_time_limit_is_printed_with_its_cause() -> None:
    result = RunResult(124, b"", b"", b"", 1.5, True, cause="idleTimeout")
    assert repr(result) == (
        "<RunResult exit_code=124 cause=idleTimeout stdout=0 bytes stderr=0 bytes duration=1.500 s>"
    )
