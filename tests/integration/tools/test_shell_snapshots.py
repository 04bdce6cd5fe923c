"""The tools with shell snapshots, with a real daemon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor
from execclient.govern.sandbox import DangerFullAccess
from execclient.shells import BASH, Shell
from execclient.tools.config import ToolsConfig
from execclient.tools.events import CallBegin, SnapshotUnused, ToolEvent
from tests.support.toolsets import INSIDE, ONE_TRANSPORT, Make

SHELL = Shell(BASH, "/bin/bash")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home_of_the_model"
    folder.mkdir()
    write_profile(folder, 'printf x >>/"$HOME"/runs\nf() { echo "f $1"; }\n')
    return folder


def write_profile(home: Path, text: str) -> None:
    (home / ".bash_profile").write_text(text)
    time.sleep(0.02)  # a profile that has just changed makes no snapshot yet


def config(home: Path, *, shell_snapshot: bool = True) -> ToolsConfig:
    return ToolsConfig(env={"HOME": str(home)}, shell_snapshot=shell_snapshot)


@ONE_TRANSPORT
async def test_the_tools_use_a_snapshot_and_judge_the_command(make: Make, home: Path) -> None:
    events: list[ToolEvent] = []
    tools = make(sandbox=DangerFullAccess(), config=config(home), shell=SHELL, events=events.append)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("exec_command", {"cmd": "f 1"}),
        ("shell_command", {"command": "f 2"}),
        ("shell", {"command": ["/bin/bash", "-lc", "f 3"]}),
        ("exec_command", {"cmd": "f 4"}),
    ]

    results = [await tools.call(name, arguments) for name, arguments in calls]

    assert [result.aggregated_output for result in results] == [f"f {n}\n" for n in range(1, 5)]
    assert (home / "runs").read_text() == "xx"  # for the snapshot, which needs two
    commands = [event.command for event in events if isinstance(event, CallBegin)]
    assert commands == [("/bin/bash", "-lc", f"f {n}") for n in range(1, 5)]
    assert not [event for event in events if isinstance(event, SnapshotUnused)]


@ONE_TRANSPORT
async def test_each_command_runs_the_profile_without_the_setting(make: Make, home: Path) -> None:
    tools = make(sandbox=DangerFullAccess(), config=config(home, shell_snapshot=False), shell=SHELL)

    for _ in range(3):
        await tools.call("shell_command", {"command": "f 1"})

    assert (home / "runs").read_text() == "xxx"


@ONE_TRANSPORT
async def test_the_sandbox_of_the_tools_holds_for_the_profile(make: Make, home: Path) -> None:
    write_profile(home, "{ : >~/escaped; } 2>/dev/null; export A=1\n")
    tools = make(sandbox=INSIDE, config=config(home), shell=SHELL)

    results = [await tools.call("shell_command", {"command": "echo $A"}) for _ in range(2)]

    assert [result.stdout for result in results] == ["1\n", "1\n"]
    assert not (home / "escaped").exists()


@ONE_TRANSPORT
async def test_the_reason_for_a_login_shell_is_reported_once(make: Make, home: Path) -> None:
    write_profile(home, "export MY_API_KEY=s3cret; f() { echo $MY_API_KEY; }\n")
    events: list[ToolEvent] = []
    tools = make(sandbox=DangerFullAccess(), config=config(home), shell=SHELL, events=events.append)

    results = [await tools.call("exec_command", {"cmd": "f"}) for _ in range(2)]

    assert [result.aggregated_output for result in results] == ["s3cret\n"] * 2
    reasons = [event.reason for event in events if isinstance(event, SnapshotUnused)]
    assert reasons == ["the profile cannot be kept: it sets MY_API_KEY, which the environment policy drops"]


@ONE_TRANSPORT
async def test_a_start_by_hand_can_use_one(executor: Executor, home: Path) -> None:
    for _ in range(2):
        process = await executor.start(
            ["/bin/bash", "-lc", "f 5"], env={"HOME": str(home)}, shell_snapshot="by hand"
        )
        assert await process.communicate() == (b"f 5\n", b"")
        assert process.snapshot_obstacle is None
    process = await executor.start(["/bin/bash", "-c", "echo"], shell_snapshot="by hand")
    assert "-lc" in str(process.snapshot_obstacle)
    assert (home / "runs").read_text() == "xx"
