from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from execclient import Executor, SystemFailure
from tests.support.wire import alive, wait_gone

PATIENCE = 10.0


async def wait_for_file(path: Path, executor: Executor) -> str:
    """The content of a fifo, once somebody has written to it."""
    return (await executor.run(["cat", str(path)], timeout=PATIENCE)).text


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A fifo through which a command tells that it has come to some point."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def test_a_command_runs_to_its_end(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.text, result.stderr_text, result.timed_out) == ("out\n", "err\n", False)
    assert 0 < result.duration < PATIENCE


async def test_standard_input_is_empty(executor: Executor) -> None:
    assert (await executor.run(["cat"])).stdout == b""


async def test_death_by_a_signal_is_128_and_its_number(executor: Executor) -> None:
    assert (await executor.run(["sh", "-c", "kill -9 $$"])).exit_code == 137


async def test_large_output_is_complete(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "yes 0123456789abcde | head -c 20000000"])

    assert result.stdout == (b"0123456789abcde\n" * 1_250_000)


async def test_what_is_no_text_is_still_bytes(executor: Executor) -> None:
    result = await executor.run(["printf", r"\377\000x"])

    assert (result.stdout, result.text) == (b"\xff\0x", "\ufffd\0x")


async def test_a_command_has_the_folder_and_the_variables_that_it_is_given(
    executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / "sub folder").mkdir()

    script = "pwd; echo $ADDED $PLAIN_ONE"
    by_path = await executor.run(["sh", "-c", script], cwd=tmp_path / "sub folder", env={"ADDED": "1"})
    relative = await executor.run(["pwd"], cwd="sub folder")
    bare = await executor.run(["/usr/bin/env"], env={"ONLY": "this"}, inherit="none")

    assert by_path.text == f"{tmp_path}/sub folder\n1 plain\n"
    assert relative.text == f"{tmp_path}/sub folder\n"
    assert bare.text == "ONLY=this\n"


async def test_a_terminal_is_all_standard_output(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "tty >/dev/null && stty size; echo err >&2"], tty=True)

    assert (result.text, result.stderr) == ("24 80\r\nerr\r\n", b"")


async def test_what_cannot_be_started_is_a_system_failure(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="No such file or directory"):
        await executor.run(["/nonexistent/program"])
    with pytest.raises(SystemFailure):
        await executor.run(["true"], cwd=tmp_path / "missing")


async def test_a_shell_line_in_place_of_a_list_is_explained(executor: Executor) -> None:
    with pytest.raises(TypeError, match=r"\['sh', '-c', 'echo hi'\]"):
        await executor.run("echo hi")


async def test_a_background_child_that_holds_the_output_delays_the_result_by_half_a_second(
    executor: Executor,
) -> None:
    begin = time.monotonic()
    result = await executor.run(["sh", "-c", "sleep 60 & echo done"])
    elapsed = time.monotonic() - begin

    assert (result.exit_code, result.stdout) == (0, b"done\n")
    assert 0.4 < elapsed < 20  # not the sixty of the child


async def test_a_command_beyond_its_time_is_killed_with_all_that_came_of_it(executor: Executor) -> None:
    script = "setsid sleep 60 & echo $! $$; exec sleep 60"
    begin = time.monotonic()
    result = await executor.run(["sh", "-c", script], timeout=0.5)
    elapsed = time.monotonic() - begin

    assert (result.exit_code, result.timed_out) == (124, True)
    assert elapsed < 20  # not the sixty of the command
    pids = [int(pid) for pid in result.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        assert await asyncio.to_thread(wait_gone, pid, PATIENCE), pid


async def test_cancelling_a_run_kills_the_command(executor: Executor, fifo: Path) -> None:
    script = f"echo $$ > {fifo}; exec sleep 60"
    task = asyncio.create_task(executor.run(["sh", "-c", script]))
    pid = int(await wait_for_file(fifo, executor))
    assert alive(pid)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await asyncio.to_thread(wait_gone, pid, PATIENCE)


async def test_many_commands_run_at_once(executor: Executor) -> None:
    results = await asyncio.gather(*(executor.run(["echo", str(n)]) for n in range(50)))

    assert [result.text for result in results] == [f"{n}\n" for n in range(50)]
