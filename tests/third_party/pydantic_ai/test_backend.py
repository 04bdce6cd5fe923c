"""What a workspace promises besides the rules of pydantic-ai."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pydantic_ai.workspaces import (
    Workspace,
    WorkspaceOutputLimitError,
    WorkspaceReadOnlyError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from execclient import ReadOnly, WorkspaceWrite, connect
from execclient.integrations import pydantic_ai
from execclient.integrations.pydantic_ai import ExecServerWorkspace
from tests.support.wire import PATIENCE, Server, wait_gone

STRICT = WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir=True)
"""The folders of tests are below `/tmp`."""


async def test_a_command_and_a_file_outside_the_workspace_fail_unless_there_is_no_sandbox(
    url: str, folder: Path, tmp_path: Path
) -> None:
    confined = ExecServerWorkspace[None](str(folder), url=url, sandbox=STRICT).backend()
    free = ExecServerWorkspace[None](str(folder), url=url, sandbox=None).backend()
    outside = str(tmp_path / "outside")

    assert (await confined.run(["touch", outside])).exit_code != 0
    with pytest.raises(WorkspaceReadOnlyError, match="the sandbox does not allow writing here"):
        await confined.write_bytes(outside, b"x")
    assert not os.path.exists(outside)

    assert (await free.run(["touch", outside])).exit_code == 0
    await free.write_bytes(outside, b"x")
    assert Path(outside).read_bytes() == b"x"


async def test_a_command_has_no_network_unless_there_is_no_sandbox(url: str, folder: Path) -> None:
    script = "import socket; socket.socket().bind(('127.0.0.1', 0))"
    for sandbox, fails in ((WorkspaceWrite(), True), (WorkspaceWrite(network=True), False), (None, False)):
        backend = ExecServerWorkspace[None](str(folder), url=url, sandbox=sandbox).backend()
        assert bool((await backend.run([sys.executable, "-c", script])).exit_code) is fails


async def test_a_read_only_sandbox_lets_read(url: str, folder: Path) -> None:
    (folder / "file").write_text("x")
    backend = ExecServerWorkspace[None](str(folder), url=url, sandbox=ReadOnly()).backend()
    assert await Workspace(backend).read_text("file") == "x"
    with pytest.raises(WorkspaceReadOnlyError):
        await Workspace(backend).write_text("file", "y")
    with pytest.raises(PermissionError):
        await Workspace(backend).remove("file")
    assert (await backend.run(["sh", "-c", "echo y > file"])).exit_code != 0
    assert (folder / "file").read_text() == "x"


def test_a_policy_is_checked_before_the_agent_runs() -> None:
    with pytest.raises(TypeError, match="sandbox is a policy"):
        ExecServerWorkspace(sandbox="read-only")  # type: ignore[arg-type]  # what it refuses


async def test_output_arrives_whole_and_in_order(url: str, folder: Path) -> None:
    backend = ExecServerWorkspace[None](str(folder), url=url).backend()
    result = await backend.run("seq 200000; seq 100000 >&2", shell=True)
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 200_001))
    assert result.stderr == "".join(f"{n}\n" for n in range(1, 100_001))


async def test_a_command_runs_once(url: str, folder: Path) -> None:
    backend = ExecServerWorkspace[None](str(folder), url=url).backend()
    for n in range(40):
        assert (await backend.run(["sh", "-c", f"echo {n} >> ran"])).exit_code == 0
    assert (folder / "ran").read_text().split() == [str(n) for n in range(40)]


async def test_output_above_the_limit_is_an_error_with_its_beginning(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydantic_ai, "MAX_OUTPUT_BYTES", 1 << 20)
    backend = ExecServerWorkspace[None](str(folder), url=url).backend()
    with pytest.raises(WorkspaceOutputLimitError) as raised:
        await backend.run(["seq", "1000000"])
    assert raised.value.limit == 1 << 20
    assert raised.value.stdout.startswith("1\n2\n3\n")


async def test_a_command_at_its_time_limit_gives_its_output_and_leaves_no_process(
    url: str, folder: Path
) -> None:
    backend = ExecServerWorkspace[None](str(folder), url=url, sandbox=None).backend()
    with pytest.raises(WorkspaceTimeoutError) as raised:
        await backend.run("setsid sleep 3600 & echo $!; echo why >&2; sleep 3600", shell=True, timeout=2)
    assert raised.value.stderr == "why\n"
    assert await asyncio.to_thread(wait_gone, int(raised.value.stdout), PATIENCE)


async def test_a_task_that_is_cancelled_kills_its_command(url: str, folder: Path) -> None:
    backend = ExecServerWorkspace[None](str(folder), url=url, sandbox=None).backend()
    running = asyncio.create_task(backend.run("setsid sleep 3600 & echo $! > pid; sleep 3600", shell=True))
    pid = folder / "pid"
    async with asyncio.timeout(PATIENCE):
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(wait_gone, int(pid.read_text()), PATIENCE)


async def test_the_exit_code_tells_how_a_command_ended(url: str, folder: Path) -> None:
    (folder / "no-program").write_text("")
    for sandbox in (WorkspaceWrite(), None):
        backend = ExecServerWorkspace[None](str(folder), url=url, sandbox=sandbox).backend()
        assert (await backend.run("kill -9 $$", shell=True)).exit_code == 128 + signal.SIGKILL
        missing = await backend.run(["no-such-program"])
        assert missing.exit_code == 127
        assert "no-such-program" in missing.stderr
        assert (await backend.run([str(folder / "no-program")])).exit_code == 126


async def test_variables_of_the_daemon_reach_a_command_only_if_they_are_of_the_core(
    url: str, folder: Path
) -> None:
    backend = ExecServerWorkspace[None](str(folder), url=url, env={"ONE": "1", "TWO": "2"}).backend()
    script = 'echo "$HOME" "$XDG_STATE_HOME" "$ONE" "$TWO"'
    home, *others = (await backend.run(script, shell=True, env={"TWO": "two"})).stdout.split()
    assert os.path.isabs(home)
    assert others == ["1", "two"]


JOB = """
import asyncio, sys
from execclient.integrations.pydantic_ai import ExecServerWorkspace

async def main(url, folder):
    backend = ExecServerWorkspace(folder, url=url, sandbox=None).backend()
    job = "setsid sh -c 'until [ -e go ]; do sleep 0.05; done; echo finished > done'"
    await backend.run(f"{job} < /dev/null > /dev/null 2>&1 &", shell=True)
    print(backend.ref.id, flush=True)
    await backend.run("echo $$ > pid; exec sleep 3600", shell=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_job_of_a_process_that_was_killed_is_found_by_another_one(url: str, folder: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", JOB, url, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        ref = WorkspaceRef(provider="execserver", id=(await asyncio.to_thread(first.stdout.readline)).strip())
        async with asyncio.timeout(PATIENCE):
            while not (folder / "pid").exists():
                await asyncio.sleep(0.01)
    finally:
        first.kill()
        with first:
            pass
    workspace = Workspace(ExecServerWorkspace[None](str(folder), url=url, sandbox=None).backend(ref))
    assert not await workspace.exists("done")
    await workspace.write_text("go", "")
    async with asyncio.timeout(PATIENCE):
        while not await workspace.exists("done") or await workspace.read_text("done") != "finished\n":
            await asyncio.sleep(0.05)


async def test_a_ref_gives_no_access_to_a_folder_that_the_settings_do_not_name(
    url: str, folder: Path, tmp_path: Path
) -> None:
    fresh = ExecServerWorkspace[None](url=url, root=str(folder)).backend()
    made = await fresh.working_dir()
    assert os.path.dirname(made) == str(folder)
    assert await ExecServerWorkspace[None](url=url, root=str(folder)).backend(fresh.ref).working_dir() == made
    (folder / "link").symlink_to("/etc")

    for path in (
        "/etc",
        str(tmp_path),
        str(folder / "link"),
        f"{folder}/../workspaces",
        str(folder / "gone"),
    ):
        ref = WorkspaceRef(provider="execserver", id=path)
        for backend in (
            ExecServerWorkspace[None](url=url, root=str(folder)).backend(ref),
            ExecServerWorkspace[None](made, url=url).backend(ref),
        ):
            with pytest.raises(WorkspaceUnavailableError):
                await backend.read_bytes("/etc/hostname")
    with pytest.raises(WorkspaceUnavailableError, match="local"):
        await (
            ExecServerWorkspace[None](made, url=url)
            .backend(WorkspaceRef(provider="local", id=made))
            .working_dir()
        )


async def test_a_folder_that_was_removed_is_not_made_again(url: str, folder: Path) -> None:
    backend = ExecServerWorkspace[None](url=url, root=str(folder)).backend()
    os.rmdir(await backend.working_dir())
    for operation in (
        backend.working_dir(),
        backend.run(["true"]),
        backend.exists("/"),
        backend.make_dir("/tmp"),
    ):
        with pytest.raises(WorkspaceUnavailableError):
            await operation


def test_a_backend_works_on_one_event_loop_after_the_other(url: str, folder: Path) -> None:
    backend = ExecServerWorkspace[None](url=url, root=str(folder)).backend()
    for n in range(3):
        assert asyncio.run(backend.run(["echo", str(n)])).stdout == f"{n}\n"


async def test_nothing_is_left_behind(
    url: str, daemon: Server, folder: Path, request: pytest.FixtureRequest
) -> None:
    backend = ExecServerWorkspace[None](str(folder), url=url).backend()
    client = psutil.Process()
    await backend.run(["true"])
    files, tasks = client.num_fds(), len(asyncio.all_tasks())
    for _ in range(5):
        await backend.run("sleep 3599 & true", shell=True)
        await backend.write_bytes(str(folder / "file"), b"x")
        with pytest.raises(WorkspaceTimeoutError):
            await backend.run(["sleep", "3599"], timeout=0.1)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == tasks
    # With chaos, the proxy of this process has some that come and go.
    assert request.config.getoption("--chaos") or client.num_fds() == files
    async with connect(url) as executor:
        async with asyncio.timeout(PATIENCE):
            while sleeping(daemon.pid):
                await asyncio.sleep(0.05)
        listed = await executor.processes(all_sessions=True)
        assert not [each for each in listed if each.state == "running" and each.cwd == str(folder)]


def sleeping(supervisor: int) -> list[int]:
    """The commands of the test above that run below a daemon."""
    found = []
    for each in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if "3599" in each.cmdline():
                found.append(each.pid)
    return found
