from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from execclient import CommandFailed, Executor, SystemFailure, Unsupported
from tests.integration.client.conftest import EVERY_TRANSPORT
from tests.support.wire import alive, wait_gone

PATIENCE = 10.0


async def wait_for_file(path: Path, executor: Executor) -> str:
    """The content of a fifo, once a process has written to it."""
    return (await executor.run(["cat", str(path)], timeout=PATIENCE)).text


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A fifo through which a command tells that it has come to some point."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@EVERY_TRANSPORT
async def test_a_command_runs_to_its_end(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.text, result.stderr_text, result.timed_out) == ("out\n", "err\n", False)
    assert 0 < result.duration < PATIENCE


async def test_standard_input_is_empty(executor: Executor) -> None:
    assert (await executor.run(["cat"])).stdout == b""


@EVERY_TRANSPORT
async def test_death_by_a_signal_is_128_and_its_number(executor: Executor) -> None:
    assert (await executor.run(["sh", "-c", "kill -9 $$"])).exit_code == 137


@EVERY_TRANSPORT
async def test_large_output_is_complete(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "yes 0123456789abcde | head -c 20000000"])

    assert result.stdout == (b"0123456789abcde\n" * 1_250_000)


async def test_what_is_no_text_is_still_bytes(executor: Executor) -> None:
    result = await executor.run(["printf", r"\377\000x"])

    assert (result.stdout, result.text) == (b"\xff\0x", "\ufffd\0x")


@pytest.mark.own_daemon
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


@EVERY_TRANSPORT
async def test_a_terminal_is_all_standard_output(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "tty >/dev/null && stty size; echo err >&2"], tty=True)

    assert (result.text, result.stderr) == ("24 80\r\nerr\r\n", b"")


@EVERY_TRANSPORT
async def test_what_cannot_be_started_is_a_system_failure(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="No such file or directory"):
        await executor.run(["/nonexistent/program"])
    with pytest.raises(SystemFailure):
        await executor.run(["true"], cwd=tmp_path / "missing")


async def test_a_shell_line_in_place_of_a_list_is_explained(executor: Executor) -> None:
    with pytest.raises(TypeError, match=r"\['sh', '-c', 'echo hi'\]"):
        await executor.run("echo hi")


async def test_arguments_and_variables_may_be_paths(executor: Executor, tmp_path: Path) -> None:
    result = await executor.run([Path("/bin/ls"), tmp_path.parent, "-d"], env={"PLACE": tmp_path})
    shown = await executor.run(["sh", "-c", "echo $PLACE"], env={"PLACE": tmp_path})

    assert result.text == f"{tmp_path.parent}\n"
    assert shown.text == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (["touch", b"made"], {}, r"argv\[1\] is text or a path, not bytes"),
        (["touch", "made", 5], {}, r"argv\[2\] is text or a path, not int"),
        (["touch", "made", "\udcff"], {}, r"argv\[2\] holds bytes that are not UTF-8"),
        (["touch", "made"], {"NAME": b"x"}, r"env\['NAME'\] is text or a path, not bytes"),
        (["touch", "made"], {"NAME": "\udcff"}, r"env\['NAME'\] holds bytes that are not UTF-8"),
        (["touch", "made"], {b"NAME": "x"}, "a name in env is text or a path, not bytes"),
    ],
)
async def test_what_is_no_text_is_refused_by_its_name_before_the_start(
    executor: Executor, tmp_path: Path, argv: list[Any], env: dict[Any, Any], named: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        await executor.run(argv, cwd=tmp_path, env=env)

    assert not (tmp_path / "made").exists()


async def test_a_background_child_that_holds_the_output_delays_the_result_by_half_a_second(
    executor: Executor,
) -> None:
    begin = time.monotonic()
    result = await executor.run(["sh", "-c", "sleep 60 & echo done"])
    elapsed = time.monotonic() - begin

    assert (result.exit_code, result.stdout) == (0, b"done\n")
    assert 0.4 < elapsed < 20  # not the sixty of the child


ENOUGH_SECONDS = (0.5, 2, 8)
"""For a shell to begin; on a machine that stands still for a moment the next one is."""


async def test_a_command_beyond_its_time_is_killed_with_all_that_came_of_it(executor: Executor) -> None:
    script = "setsid sleep 60 & echo $! $$; exec sleep 60"
    for limit in ENOUGH_SECONDS:
        begin = time.monotonic()
        result = await executor.run(["sh", "-c", script], timeout=limit)
        elapsed = time.monotonic() - begin
        if result.stdout:
            break

    assert (result.exit_code, result.timed_out) == (124, True)
    assert elapsed < 20  # not the sixty of the command
    pids = [int(pid) for pid in result.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        assert await asyncio.to_thread(wait_gone, pid, PATIENCE), pid


@EVERY_TRANSPORT
async def test_cancelling_a_run_kills_the_command(executor: Executor, fifo: Path) -> None:
    script = f"echo $$ > {fifo}; exec sleep 60"
    task = asyncio.create_task(executor.run(["sh", "-c", script]))
    pid = int(await wait_for_file(fifo, executor))
    assert alive(pid)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await asyncio.to_thread(wait_gone, pid, PATIENCE)


@EVERY_TRANSPORT
async def test_many_commands_run_at_once(executor: Executor) -> None:
    results = await asyncio.gather(*(executor.run(["echo", str(n)]) for n in range(50)))

    assert [result.text for result in results] == [f"{n}\n" for n in range(50)]


@EVERY_TRANSPORT
async def test_input_reaches_the_command_and_ends(executor: Executor) -> None:
    data = os.urandom(3_000_000)

    assert (await executor.run(["cat"], input=data)).stdout == data
    assert (await executor.run(["cat"], input="grün")).text == "grün"
    assert (await executor.run(["cat"], input=b"")).stdout == b""


async def test_a_command_need_not_read_its_input(executor: Executor) -> None:
    result = await executor.run(["sh", "-c", "exec <&-; exit 3"], input=b"x" * 3_000_000)

    assert result.exit_code == 3


@pytest.mark.parametrize(("typed", "shown"), [("", ""), ("a\nb\n", "a\r\nb\r\n"), ("a", "a")])
async def test_input_for_a_terminal_is_typed_and_ends(executor: Executor, typed: str, shown: str) -> None:
    result = await executor.run(["sh", "-c", "stty -echo; cat; echo end"], tty=True, input=typed)

    assert result.text.endswith(shown + "end\r\n")


@EVERY_TRANSPORT
async def test_all_byte_values_come_back(executor: Executor) -> None:
    every = bytes(range(256))
    script = "import os, sys; data = bytes(range(256)); os.write(1, data); os.write(2, data[::-1])"
    result = await executor.run([sys.executable, "-c", script])

    assert (result.stdout, result.stderr) == (every, every[::-1])
    assert (await executor.run(["cat"], input=every)).stdout == every


TURNS = """
import array, fcntl, os, termios, time
for n in (1, 2, 3):
    for stream, name in ((1, b"out"), (2, b"err")):
        os.write(stream, b"%b %d\\n" % (name, n))
        left = array.array("i", [1])
        while left[0]:  # until it is taken
            fcntl.ioctl(stream, termios.FIONREAD, left)
            time.sleep(0.001)
"""


@EVERY_TRANSPORT
async def test_both_streams_are_aggregated_in_their_order(executor: Executor) -> None:
    result = await executor.run([sys.executable, "-c", TURNS])

    assert result.aggregated == b"".join(b"out %d\nerr %d\n" % (n, n) for n in (1, 2, 3))
    assert (result.cause, result.timed_out) == ("normal", False)


async def test_of_too_much_output_both_ends_are_kept(executor: Executor) -> None:
    result = await executor.run(["seq", "1", "1000000"], max_output_bytes=1000)

    whole = "".join(f"{n}\n" for n in range(1, 1_000_001)).encode()
    assert result.stdout == whole[:500] + whole[-500:]
    assert result.stdout_truncated == result.aggregated_truncated == len(whole) - 1000


async def test_a_command_that_fails_raises_when_it_is_checked(executor: Executor) -> None:
    with pytest.raises(CommandFailed, match="sh exited with 3: no such luck") as raised:
        await executor.run(["sh", "-c", "echo first; echo no such luck >&2; exit 3"], check=True)

    assert (raised.value.result.exit_code, raised.value.result.stdout) == (3, b"first\n")
    assert (await executor.run(["true"], check=True)).exit_code == 0
    with pytest.raises(CommandFailed, match="ran into its time limit"):
        await executor.run(["sleep", "60"], timeout=0.2, check=True)


@EVERY_TRANSPORT
async def test_a_time_limit_keeps_the_output_and_says_its_cause(executor: Executor) -> None:
    for limit in ENOUGH_SECONDS:
        result = await executor.run(["sh", "-c", "echo before; exec sleep 60"], timeout=limit)
        if result.stdout:
            break

    assert (result.exit_code, result.timed_out, result.cause) == (124, True, "timeout")
    assert result.stdout == b"before\n"


async def test_a_silent_command_runs_into_its_idle_limit_and_a_talking_one_does_not(
    executor: Executor,
) -> None:
    for limit in ENOUGH_SECONDS:
        silent = await executor.run(["sh", "-c", "echo before; exec sleep 60"], idle_timeout=limit)
        if silent.stdout:
            break
    for pause in (0.2, 0.8):
        script = f"for n in 1 2 3 4 5 6 7 8; do echo $n; sleep {pause}; done"
        talking = await executor.run(["sh", "-c", script], idle_timeout=7.5 * pause)
        if talking.cause == "normal":
            break

    assert (silent.exit_code, silent.cause, silent.stdout) == (124, "idleTimeout", b"before\n")
    assert (talking.exit_code, talking.cause) == (0, "normal")


@pytest.mark.parametrize("cause", ["timeout", "idleTimeout"])
async def test_time_limits_hold_with_a_server_that_knows_none(executor: Executor, cause: str) -> None:
    executor._session.capabilities = frozenset()
    result = await executor.run(
        ["sh", "-c", "sleep 60 & echo $! $$; exec sleep 60"],
        timeout=0.5 if cause == "timeout" else None,
        idle_timeout=0.5 if cause == "idleTimeout" else None,
    )

    assert (result.exit_code, result.timed_out, result.cause) == (124, True, cause)
    for pid in result.stdout.split():
        assert await asyncio.to_thread(wait_gone, int(pid), PATIENCE), pid


async def test_a_terminal_has_the_size_that_it_is_given(executor: Executor) -> None:
    assert (await executor.run(["stty", "size"], tty=True, size=(33, 111))).text == "33 111\r\n"


async def test_what_the_server_does_not_serve_is_not_sent(executor: Executor) -> None:
    executor._session.capabilities = frozenset()
    with pytest.raises(Unsupported, match=r"process/start\.size"):
        await executor.run(["true"], tty=True, size=(1, 1))
    with pytest.raises(Unsupported, match=r"process/closeStdin"):
        await executor.run(["cat"], input=b"x")
    with pytest.raises(Unsupported, match=r"process/start\.ifExists"):
        await executor.start(["true"], if_exists="attach")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_cancelling_a_run_at_any_time_leaves_nothing(
    executor: Executor, tmp_path: Path, turns: int
) -> None:
    mark = f"{600 + turns}.{os.getpid()}"
    task = asyncio.create_task(executor.run(["sh", "-c", f"sleep {mark} & exec sleep {mark}"]))
    for _ in range(turns):
        await asyncio.sleep(0)
    if turns > 3:
        await executor.fs.stat("/")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # The daemon has the terminate before this: what runs afterwards is what was left.
    async with asyncio.timeout(PATIENCE):
        while (await executor.run(["pgrep", "-f", f"^sleep {mark}$"])).exit_code != 1:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("data", ["\udc80", 5], ids=["no UTF-8", "a number"])
async def test_input_that_cannot_be_sent_is_an_error_before_the_start(
    executor: Executor, tmp_path: Path, data: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^input "):
        async with asyncio.timeout(PATIENCE):
            await executor.run(["touch", str(tmp_path / "started")], input=data)

    assert not (tmp_path / "started").exists()
