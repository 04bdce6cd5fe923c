"""Bash sessions: what they keep, how they end, and who can continue with them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from swerex.exceptions import (
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    CreateBashSessionRequest,
)

from execclient.integrations.swe_rex import ExecServerRuntime
from tests.support.background import Left
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, Server

Runtime = ExecServerRuntime


async def run(runtime: Runtime, command: str, **members: object) -> BashObservation:
    action = BashAction.model_validate({"command": command, "timeout": PATIENCE, **members})
    return await runtime.run_in_session(action)


async def output(runtime: Runtime, command: str, **members: object) -> str:
    return (await run(runtime, command, **members)).output


def kill_server(daemon: Server) -> None:
    os.kill(server_of(daemon.pid, PATIENCE), signal.SIGKILL)


# -- what a session keeps


async def test_a_session_keeps_its_folder_variables_and_functions_over_killed_servers(
    runtime_with_default_session: Runtime, daemon: Server, tmp_path: Path
) -> None:
    runtime = runtime_with_default_session
    (tmp_path / "sub").mkdir()
    await run(
        runtime, "cd sub; plain=1; export exported=2; declare -A table=([key]=3); add() { echo $(($1 + 1)); }"
    )
    for number in range(2):
        kill_server(daemon)
        assert await output(
            runtime, f"pwd; echo $plain ${{table[key]}}; sh -c 'echo $exported'; add {number}"
        ) == (f"{tmp_path}/sub\n1 3\n2\n{number + 1}\n")


async def test_output_is_whole_and_every_command_runs_once_while_servers_are_killed(
    runtime_with_default_session: Runtime, daemon: Server, tmp_path: Path
) -> None:
    runtime = runtime_with_default_session
    for number in range(10):
        if number % 5 == 0:
            asyncio.get_running_loop().call_later(0.05, kill_server, daemon)
        observed = await run(
            runtime,
            f"echo {number} >> ran; for n in $(seq 400); do echo $n; done; exit_with() "
            f"{{ return $1; }}; exit_with {number}",
            check="silent",
        )
        assert observed.output == "".join(f"{n}\n" for n in range(1, 401))
        assert observed.exit_code == number
    assert (tmp_path / "ran").read_text() == "".join(f"{number}\n" for number in range(10))


def test_every_call_may_have_an_event_loop_of_its_own(url: str, tmp_path: Path) -> None:
    runtime = ExecServerRuntime(url=url, cwd=str(tmp_path))
    asyncio.run(runtime.create_session(CreateBashSessionRequest()))
    asyncio.run(run(runtime, "x=42"))
    assert asyncio.run(output(runtime, "echo $x")) == "42\n"
    asyncio.run(runtime.close())


async def test_a_session_of_a_killed_program_goes_on_in_another_one(url: str, tmp_path: Path) -> None:
    program = f"""
import asyncio
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from execclient.integrations.swe_rex import ExecServerRuntime

async def main():
    runtime = ExecServerRuntime(url={url!r}, cwd={str(tmp_path)!r}, ttl=120)
    await runtime.create_session(CreateBashSessionRequest(session="mine"))
    await runtime.run_in_session(BashAction(command="state=kept; echo seen", session="mine"))
    print(runtime.session_id, flush=True)
    script = "for n in 1 2 3 4 5; do echo line $n; touch begun; sleep 0.3; done"
    await runtime.run_in_session(BashAction(command=script, session="mine"))

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        session_id = first.stdout.readline().strip()
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
        first.kill()

    runtime = ExecServerRuntime(url=url, cwd=str(tmp_path), session_id=session_id)
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest(session="mine"))
    lines = "".join(f"line {n}\n" for n in range(1, 6))
    assert await output(runtime, "echo $state", session="mine") == f"{lines}kept\n"
    assert await output(runtime, "echo again", session="mine") == "again\n"
    with pytest.raises(SessionDoesNotExistError):
        await run(runtime, "true", session="other")
    await runtime.close()


async def test_a_runtime_that_keeps_its_session_is_continued(url: str, tmp_path: Path) -> None:
    first = ExecServerRuntime(url=url, cwd=str(tmp_path), keep=True)
    await first.create_session(CreateBashSessionRequest())
    await run(first, "x=kept")
    await first.close()

    second = ExecServerRuntime(url=url, cwd=str(tmp_path), session_id=first.session_id)
    assert await output(second, "echo $x") == "kept\n"
    await second.close_session(CloseBashSessionRequest())
    await second.create_session(CreateBashSessionRequest())
    assert await output(second, "echo [$x]") == "[]\n"
    await second.close()


@pytest.mark.without_chaos
async def test_a_name_is_given_once(remote_runtime: Runtime) -> None:
    requests = [remote_runtime.create_session(CreateBashSessionRequest()) for _ in range(3)]
    made = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(each) for each in made].count(SessionExistsError) == 2
    assert await output(remote_runtime, "echo one") == "one\n"


# -- any command


@pytest.mark.parametrize(
    "text",
    ['it\'s "!!" $HOME `x` \\n', "a\tb\x1b\x03\x04c", "ä€😀", "x" * 200_000, "line\n" * 5000],
    ids=range(5),
)
async def test_any_text_is_one_command(
    runtime_with_default_session: Runtime, text: str, tmp_path: Path
) -> None:
    command = f"cat > file <<'THE END'\n{text}\nTHE END\nwc -c < file"
    assert await output(runtime_with_default_session, command) == f"{len(text.encode()) + 1}\n"
    assert (tmp_path / "file").read_text() == f"{text}\n"


async def test_output_that_looks_like_a_prompt_is_output(runtime_with_default_session: Runtime) -> None:
    runtime = runtime_with_default_session
    await run(runtime, 'PS1="(venv) $PS1"')
    assert await output(runtime, "echo '$ '; printf '%s' 'no newline'") == "$ \nno newline"


@pytest.mark.without_chaos
async def test_the_exit_code_is_as_check_asks(runtime_with_default_session: Runtime) -> None:
    runtime = runtime_with_default_session
    assert (await run(runtime, "echo x; (exit 7)", check="silent")).exit_code == 7
    assert (await run(runtime, "echo x; (exit 7)", check="ignore")).exit_code is None
    with pytest.raises(NonZeroExitCodeError, match=r"while testing: Command .* exit code 7\. .*\n'x"):
        await run(runtime, "echo x; (exit 7)", check="raise", error_msg="while testing")
    with pytest.raises(NoExitCodeError):
        await run(runtime, "echo first; read answer; echo $answer", expect=["first"])
    assert await output(runtime, "second", is_interactive_command=True) == "\nsecond\n"


@pytest.mark.without_chaos
async def test_the_files_of_the_start_are_read(remote_runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "setup.sh").write_text("echo hello; value=3; PS1='other> '")
    (tmp_path / "slow.sh").write_text("sleep 60")
    request = CreateBashSessionRequest(startup_source=[str(tmp_path / "setup.sh")], startup_timeout=PATIENCE)
    assert "hello\n" in (await remote_runtime.create_session(request)).output
    assert await output(remote_runtime, "echo $value") == "3\n"
    slow = CreateBashSessionRequest(session="slow", startup_source=[str(tmp_path / "slow.sh")])
    with pytest.raises(CommandTimeoutError):
        await remote_runtime.create_session(slow)
    with pytest.raises(SessionDoesNotExistError):
        await run(remote_runtime, "true", session="slow")


# -- ends of commands and sessions


async def test_the_output_before_a_time_limit_comes_with_the_next_observation(
    runtime_with_default_session: Runtime,
) -> None:
    runtime, left = runtime_with_default_session, Left()
    with pytest.raises(CommandTimeoutError, match=r"timeout after 0\.5 seconds while running"):
        await run(runtime, f"echo begun; {left.sleep}", timeout=0.5)
    left.wait_running()
    interrupted = await runtime.run_in_session(BashInterruptAction(timeout=PATIENCE))
    assert interrupted.output == "begun"
    left.wait_gone()
    assert await output(runtime, "echo next") == "next\n"


async def test_without_an_interrupt_the_next_command_waits_for_the_slow_one(
    runtime_with_default_session: Runtime,
) -> None:
    runtime = runtime_with_default_session
    with pytest.raises(CommandTimeoutError):
        await run(runtime, "echo slow; sleep 2; echo done", timeout=0.2)
    assert await output(runtime, "echo next") == "slow\ndone\nnext\n"


async def test_an_interrupt_ends_a_call_of_another_task(runtime_with_default_session: Runtime) -> None:
    runtime, left = runtime_with_default_session, Left()
    running = asyncio.create_task(run(runtime, f"echo begun; {left.sleep}; echo never", check="silent"))
    await asyncio.to_thread(left.wait_running)
    with pytest.raises(SwerexException, match="runs another command"):
        await run(runtime, "true")
    await runtime.run_in_session(BashInterruptAction(timeout=PATIENCE))
    observed = await running
    assert (observed.output.strip(), observed.exit_code) == ("begun", 130)


async def test_a_program_that_ignores_interrupts_is_killed_and_no_job_in_the_background(
    runtime_with_default_session: Runtime,
) -> None:
    runtime, left, background = runtime_with_default_session, Left(), Left()
    await run(runtime, f"{background.sleep} &")
    with pytest.raises(CommandTimeoutError):
        await run(runtime, f"sh -c 'trap \"\" INT; {left.sleep}'", timeout=1)
    left.wait_running()
    await runtime.run_in_session(BashInterruptAction(timeout=0.5))
    left.wait_gone()
    assert "Killed" in await output(runtime, "echo next")
    assert background.pids
    assert await output(runtime, "echo last") == "last\n"


async def test_a_cancelled_call_leaves_the_command_to_an_interrupt(
    runtime_with_default_session: Runtime,
) -> None:
    runtime, left = runtime_with_default_session, Left()
    running = asyncio.create_task(run(runtime, left.sleep))
    await asyncio.to_thread(left.wait_running)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await runtime.run_in_session(BashInterruptAction(timeout=PATIENCE))
    left.wait_gone()
    assert await output(runtime, "echo next") == "next\n"


async def test_a_command_that_ends_the_shell_ends_the_session(runtime_with_default_session: Runtime) -> None:
    runtime = runtime_with_default_session
    with pytest.raises(SessionDoesNotExistError, match=r"exit code 5 .*\n'bye") as raised:
        await run(runtime, "echo bye; exit 5")
    assert "create the session again" in str(raised.value)
    with pytest.raises(SessionDoesNotExistError):
        await run(runtime, "true")
    await runtime.create_session(CreateBashSessionRequest())
    assert await output(runtime, "echo again") == "again\n"


@pytest.mark.parametrize("way", ["session", "runtime"])
async def test_the_end_of_a_session_kills_what_runs_in_it(url: str, tmp_path: Path, way: str) -> None:
    runtime, left = ExecServerRuntime(url=url, cwd=str(tmp_path), sandbox=None), Left()
    await runtime.create_session(CreateBashSessionRequest())
    await run(runtime, f"setsid nohup {left.sleep} >/dev/null 2>&1 &")
    left.wait_running()
    if way == "session":
        await runtime.close_session(CloseBashSessionRequest())
        left.wait_gone()
    await runtime.close()
    left.wait_gone()


@pytest.mark.without_chaos
async def test_what_is_observed_can_be_sent_as_json(runtime_with_default_session: Runtime) -> None:
    observed = await run(runtime_with_default_session, r"printf 'a\377b'")
    assert json.loads(observed.model_dump_json())["output"] == r"a\xffb"
