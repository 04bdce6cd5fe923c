"""Commands, files, the sandbox and the deployment."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from swerex.deployment.hooks.status import SetStatusDeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NonZeroExitCodeError,
)
from swerex.runtime.abstract import (
    BashAction,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from execclient import ExecutorClosed
from execclient.integrations.swe_rex import (
    ExecServerDeployment,
    ExecServerDeploymentConfig,
    ExecServerRuntime,
    ExecServerRuntimeConfig,
)
from tests.support.background import IN_BACKGROUND, Left
from tests.support.wire import PATIENCE


@pytest.fixture
def project() -> Any:
    """A folder that is not below /tmp, to which each sandbox may write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="swerex-") as folder:
        (Path(folder) / "work").mkdir()
        yield Path(folder) / "work"


@pytest.fixture(params=[False, True], ids=["sandbox", "no sandbox"])
async def limited(
    request: pytest.FixtureRequest, url: str, project: Path
) -> AsyncIterator[tuple[ExecServerRuntime, bool]]:
    """A runtime, and whether it may write outside of its folder."""
    settings = {"sandbox": None} if request.param else {}
    runtime = ExecServerRuntime(url=url, cwd=str(project), **settings)
    yield runtime, request.param
    await runtime.close()


def client_threads() -> set[threading.Thread]:
    """The threads of connections, once those that end had time to."""
    deadline = time.monotonic() + PATIENCE
    while (there := {each for each in threading.enumerate() if each.name == "execclient"}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.01)
    return there


async def execute(runtime: ExecServerRuntime, *argv: str, **members: Any) -> tuple[str, str, int | None]:
    done = await runtime.execute(Command(command=list(argv), timeout=PATIENCE, **members))
    return done.stdout, done.stderr, done.exit_code


# -- the sandbox


@pytest.mark.without_chaos
async def test_commands_sessions_and_files_are_within_one_sandbox(
    limited: tuple[ExecServerRuntime, bool], project: Path
) -> None:
    runtime, free = limited
    await runtime.create_session(CreateBashSessionRequest())
    (project / "source").write_text("x")
    attempts = {
        "command": runtime.execute(Command(command="echo x > ../command", shell=True, check=True)),
        "session": runtime.run_in_session(BashAction(command="echo x > ../session")),
        "file": runtime.write_file(WriteFileRequest(path="../file", content="x")),
        "upload": runtime.upload(UploadRequest(source_path=str(project / "source"), target_path="../upload")),
        "elsewhere": runtime.execute(
            Command(command="echo x > elsewhere", shell=True, check=True, cwd=str(project.parent))
        ),
    }
    for name, attempt in attempts.items():
        if free:
            await attempt
        else:
            with pytest.raises(Exception, match="Read-only file system"):
                await attempt
        assert (project.parent / name).exists() is free
    for name in ("command", "session", "file"):
        await runtime.write_file(WriteFileRequest(path=f"inside/{name}", content="x"))
        assert (project / "inside" / name).read_text() == "x"


# -- commands


async def test_a_command_is_as_with_subprocess(remote_runtime: ExecServerRuntime, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert await execute(remote_runtime, "sh", "-c", "echo a; echo b >&2; exit 3") == ("a\n", "b\n", 3)
    assert await execute(remote_runtime, "pwd", cwd="sub") == (f"{tmp_path}/sub\n", "", 0)
    assert await execute(remote_runtime, 'echo "$0 $1"', "x", "y z", shell=True) == ("x y z\n", "", 0)
    env = {"PATH": "/usr/bin:/bin", "ONLY": "this"}
    assert await execute(remote_runtime, "sh", "-c", 'echo "$ONLY[$HOME]"', env=env) == ("this[]\n", "", 0)
    assert await execute(remote_runtime, "printf", r"a\377") == (r"a\xff", "", 0)
    script = "for n in 1 2 3; do echo out $n; echo err $n >&2; done"
    merged = await execute(remote_runtime, "sh", "-c", script, merge_output_streams=True)
    assert merged == ("out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n", "", 0)


@pytest.mark.parametrize("members", [{}, {"cwd": "/no/such/folder", "command": ["true"]}])
@pytest.mark.without_chaos
async def test_what_cannot_be_started_is_a_missing_file(
    remote_runtime: ExecServerRuntime, members: dict[str, Any]
) -> None:
    with pytest.raises(FileNotFoundError, match=r"no-such-program|/no/such/folder"):
        await remote_runtime.execute(Command(**{"command": ["no-such-program"], **members}))


@pytest.mark.without_chaos
async def test_a_failing_command_is_an_error_if_asked(remote_runtime: ExecServerRuntime) -> None:
    with pytest.raises(NonZeroExitCodeError, match=r"it broke: Command .* exit code 3.*\n'out"):
        await execute(remote_runtime, "sh", "-c", "echo out; exit 3", check=True, error_msg="it broke")


async def test_a_command_that_takes_too_long_is_killed_and_its_output_told(
    remote_runtime: ExecServerRuntime,
) -> None:
    left = Left()
    with pytest.raises(CommandTimeoutError, match=r"Timeout \(3.0s\) exceeded .*\n'begun"):
        await remote_runtime.execute(Command(command=f"echo begun; {left.sleep}", shell=True, timeout=3.0))
    left.wait_gone()


async def test_a_cancelled_command_is_killed(remote_runtime: ExecServerRuntime) -> None:
    left = Left()
    task = asyncio.create_task(execute(remote_runtime, *left.argv))
    await asyncio.to_thread(left.wait_running)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left.wait_gone()


# -- files


async def test_texts_are_as_with_pathlib(remote_runtime: ExecServerRuntime, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\xe4")
    for options in ({"encoding": "latin-1"}, {"errors": "replace"}, {"errors": "surrogateescape"}):
        there = await remote_runtime.read_file(ReadFileRequest(path="file", **options))
        assert there.content == (tmp_path / "file").read_text(**{"encoding": "utf-8", **options})
    with pytest.raises(UnicodeDecodeError):
        await remote_runtime.read_file(ReadFileRequest(path="file"))
    await remote_runtime.write_file(WriteFileRequest(path="new/folder/file", content="ä\r\n"))
    assert (tmp_path / "new/folder/file").read_bytes() == "ä\r\n".encode()


async def test_uploads_take_files_folders_and_nothing_else(
    remote_runtime: ExecServerRuntime, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("here")
    (here / "tree/sub").mkdir(parents=True)
    for number in range(40):
        (here / f"tree/sub/{number}").write_bytes(bytes(number) * 1000)
    (here / "program").write_text("#!/bin/sh\necho ran\n")
    (here / "program").chmod(0o755)
    await remote_runtime.upload(UploadRequest(source_path=str(here / "tree"), target_path="copy"))
    for number in range(40):
        assert (tmp_path / f"copy/sub/{number}").read_bytes() == bytes(number) * 1000
    (tmp_path / "bin").mkdir()
    for target in ("bin", "other/name"):
        await remote_runtime.upload(UploadRequest(source_path=str(here / "program"), target_path=target))
    assert await execute(remote_runtime, "bin/program") == ("ran\n", "", 0)
    assert await execute(remote_runtime, "other/name") == ("ran\n", "", 0)
    with pytest.raises(ValueError, match="none is not a file or directory"):
        await remote_runtime.upload(UploadRequest(source_path=str(here / "none"), target_path="x"))


# -- settings, the deployment, ends


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sandbox": "readonly"}, "'readonly' is none of read-only, workspace-write"),
        ({"image": "python:3.11"}, "image\n  Extra inputs are not permitted"),
        ({"ttl": 0}, "ttl\n  Input should be greater than 0"),
    ],
)
@pytest.mark.without_chaos
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ExecServerRuntimeConfig(**settings)
    assert message in str(raised.value)


@pytest.mark.without_chaos
async def test_a_deployment_is_made_from_settings_and_tells_its_steps(url: str, tmp_path: Path) -> None:
    config = ExecServerDeploymentConfig(url=url, cwd=str(tmp_path), sandbox="read-only")
    deployment = ExecServerDeploymentConfig(**config.model_dump()).get_deployment()
    assert isinstance(deployment, ExecServerDeployment)
    steps: list[tuple[str, str]] = []
    deployment.add_hook(SetStatusDeploymentHook("one", lambda name, step: steps.append((name, step))))
    with pytest.raises(DeploymentNotStartedError):
        deployment.runtime  # noqa: B018
    await deployment.start()
    assert steps == [("one", "Connecting to the daemon")]
    with pytest.raises(NonZeroExitCodeError, match="Read-only"):
        await deployment.runtime.execute(Command(command=["touch", "x"], check=True))
    await deployment.stop()


@pytest.mark.parametrize(("cwd", "message"), [("", "execserver serve"), ("/", "'/' as its workspace")])
@pytest.mark.without_chaos
async def test_a_deployment_that_cannot_start_says_why(
    url: str, tmp_path: Path, cwd: str, message: str
) -> None:
    deployment = ExecServerDeployment(url=url if cwd else f"unix://{tmp_path}/none", cwd=cwd)
    with pytest.raises(DeploymentStartupError, match=message):
        await deployment.start()
    assert not await deployment.is_alive()
    assert client_threads() == set()


@pytest.mark.without_chaos
async def test_a_closed_runtime_says_so(url: str) -> None:
    runtime = ExecServerRuntime(url=url)
    assert await runtime.is_alive()
    await runtime.close()
    await runtime.close()
    assert not await runtime.is_alive()
    with pytest.raises(ExecutorClosed):
        await execute(runtime, "true")


async def test_a_forgotten_runtime_leaves_neither_thread_nor_process(url: str, tmp_path: Path) -> None:
    runtime, left = ExecServerRuntime(url=url, cwd=str(tmp_path), sandbox=None), Left()
    await execute(runtime, "sh", "-c", IN_BACKGROUND.format(sleep=left.sleep))
    left.wait_running()
    del runtime
    gc.collect()
    left.wait_gone()
    assert client_threads() == set()


def test_a_program_that_ends_without_stopping_its_deployment_leaves_nothing(url: str, tmp_path: Path) -> None:
    left = Left()
    program = f"""
import asyncio
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from execclient.integrations.swe_rex import ExecServerDeployment

async def main(deployment):
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    await deployment.runtime.run_in_session(BashAction(command="{left.sleep} &"))

deployment = ExecServerDeployment(url={url!r}, cwd={str(tmp_path)!r}, sandbox=None)
asyncio.run(main(deployment))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    left.wait_gone()
