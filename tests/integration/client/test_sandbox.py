"""`sandbox=` of `run` and `start`: a policy, or its form on the wire."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import execclient
from execclient import DangerFullAccess, Executor, ReadOnly, Refused, WorkspaceWrite, sync
from execclient.govern.sandbox import Profile
from tests.conftest import StartServer
from tests.support.wire import Server

INSIDE_ONLY = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True)
"""The folder of a test is below /tmp."""

TOUCH_BOTH = ["sh", "-c", "touch inside; touch ../outside"]


@pytest.fixture(scope="module")
def url(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The daemon of the tests here."""
    folder = tmp_path_factory.mktemp("sandbox")
    with Server(f"unix://{folder}/s", env=environment, cwd=folder) as server:
        yield server.url


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def written(workspace: Path) -> set[str]:
    """Which of the two files of `TOUCH_BOTH` are there."""
    return {path.name for path in (workspace / "inside", workspace.parent / "outside") if path.exists()}


@pytest.mark.parametrize(
    ("policy", "files"),
    [
        (ReadOnly(), set()),
        (INSIDE_ONLY, {"inside"}),
        (DangerFullAccess(), {"inside", "outside"}),
        (None, {"inside", "outside"}),
        (INSIDE_ONLY.context("/", []), set()),
    ],
    ids=["read-only", "workspace-write", "danger-full-access", "none", "wire"],
)
async def test_a_command_writes_where_its_policy_allows_it(
    policy: Any, files: set[str], executor: Executor, workspace: Path
) -> None:
    result = await executor.run(TOUCH_BOTH, cwd=workspace, sandbox=policy)

    assert written(workspace) == files
    assert (result.exit_code == 0) == ("outside" in files)


async def test_the_workspace_is_the_working_directory_however_it_is_named(
    executor: Executor, workspace: Path
) -> None:
    near = os.path.relpath(workspace, executor.cwd)
    for cwd in (near, f"{near}/../workspace/.", Path(near)):
        (workspace / "inside").unlink(missing_ok=True)
        await executor.run(TOUCH_BOTH, cwd=cwd, sandbox=INSIDE_ONLY)
        assert written(workspace) == {"inside"}, cwd


async def test_writable_roots_are_added_to_the_workspace(executor: Executor, workspace: Path) -> None:
    granted = workspace.parent / "granted"
    granted.mkdir()
    policy = WorkspaceWrite((str(granted),), exclude_tmpdir=True, exclude_slash_tmp=True)
    result = await executor.run(["touch", "inside", granted / "file"], cwd=workspace, sandbox=policy)

    assert (result.exit_code, written(workspace), (granted / "file").exists()) == (0, {"inside"}, True)


async def test_a_process_is_confined_as_a_command_is(executor: Executor, workspace: Path) -> None:
    async with await executor.start(TOUCH_BOTH, cwd=workspace, sandbox=INSIDE_ONLY) as process:
        assert await process.wait() != 0
    assert written(workspace) == {"inside"}
    assert process.denial is not None
    assert process.denial["likely"]


def test_code_without_a_loop_has_policies_too(url: str, workspace: Path) -> None:
    with sync.connect(url) as executor:
        assert executor.run(TOUCH_BOTH, cwd=workspace, sandbox=ReadOnly()).exit_code != 0
        assert written(workspace) == set()
        with executor.start(TOUCH_BOTH, cwd=workspace, sandbox=INSIDE_ONLY) as process:
            process.wait()
    assert written(workspace) == {"inside"}


@pytest.mark.parametrize("wrong", ["read-only", True, ReadOnly, ["rw"]])
async def test_what_is_no_policy_is_refused_before_the_start(
    wrong: Any, executor: Executor, workspace: Path
) -> None:
    with pytest.raises(TypeError, match=r"sandbox is a policy, as ReadOnly\(\) .*, not "):
        await executor.run(TOUCH_BOTH, cwd=workspace, sandbox=wrong)
    with pytest.raises(TypeError, match=r"sandbox is a policy, as ReadOnly\(\) .*, not "):
        await executor.start(TOUCH_BOTH, cwd=workspace, sandbox=wrong)
    await asyncio.sleep(0.1)
    assert written(workspace) == set()


@pytest.mark.parametrize("cwd", ["/", "//", "/usr/..", "/."])
async def test_the_root_is_no_workspace_to_write_to(executor: Executor, cwd: str) -> None:
    with pytest.raises(ValueError, match="sandbox: with '/' as its workspace all could be written"):
        await executor.run(["true"], cwd=cwd, sandbox=INSIDE_ONLY)
    with pytest.raises(ValueError, match="sandbox: with '/'"):
        await executor.start(["true"], cwd=cwd, sandbox=Profile(INSIDE_ONLY.permissions()))
    assert (await executor.run(["true"], cwd=cwd, sandbox=ReadOnly())).exit_code == 0


async def test_a_daemon_that_cannot_confine_refuses_a_policy(
    start_server: StartServer, tmp_path: Path, workspace: Path
) -> None:
    server = start_server(f"unix://{tmp_path}/s", "--bubblewrap", "/no/such/bwrap")
    async with execclient.connect(server.url) as executor:
        with pytest.raises(Refused, match="failed to prepare process sandbox"):
            await executor.run(TOUCH_BOTH, cwd=workspace, sandbox=ReadOnly())
        assert written(workspace) == set()
        result = await executor.run(TOUCH_BOTH, cwd=workspace, sandbox=DangerFullAccess())
        assert (result.exit_code, written(workspace)) == (0, {"inside", "outside"})


def test_a_policy_is_loaded_when_it_is_used() -> None:
    program = (
        "import sys, execclient;"
        "print('execclient.govern.sandbox' in sys.modules, 'ReadOnly' in dir(execclient));"
        "from execclient import ReadOnly; print(ReadOnly.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "execclient.govern.sandbox"]


def test_a_name_that_the_library_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'execclient' has no attribute 'ReadOnyl'"):
        getattr(execclient, "ReadOnyl")  # noqa: B009 - a name that the type checker would refuse
