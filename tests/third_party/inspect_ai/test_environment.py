"""The environment of a sample: its limits, its errors, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from pydantic import ValidationError

from execclient import CommandFailed, DaemonNotRunning, ReadOnly, WorkspaceWrite
from execclient.integrations.inspect_ai import ExecServerSandboxConfig, ExecServerSandboxEnvironment
from tests.support.servers import open_files
from tests.third_party.inspect_ai.samples import left_at, sample

Environment = ExecServerSandboxEnvironment


def is_running(argument: str) -> bool:
    """Whether a process of this machine has the argument."""
    for command_line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in command_line.read_bytes().split(b"\0"):
                return True
    return False


@pytest.fixture
def outside() -> Iterator[Path]:
    """A path that does not exist, outside of the folders that a sandbox may write to."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder, "outside")


async def test_a_command_and_a_file_write_stay_within_the_working_directory(
    sandbox_env: Environment, outside: Path
) -> None:
    result = await sandbox_env.exec(["touch", str(outside)])
    assert "Read-only file system" in result.stderr
    with pytest.raises(PermissionError, match="outside"):
        await sandbox_env.write_file(str(outside), "x")
    assert not outside.exists()


async def test_without_a_sandbox_both_work(url: str, outside: Path) -> None:
    async with sample(ExecServerSandboxConfig(url=url, sandbox=None)) as environment:
        assert (await environment.exec(["touch", str(outside)])).success
        await environment.write_file(str(outside), "x")
    assert outside.read_text() == "x"


async def test_the_working_directory_of_a_call_is_not_a_workspace(
    sandbox_env: Environment, outside: Path
) -> None:
    result = await sandbox_env.exec(["touch", "new"], cwd=str(outside.parent))
    assert "Read-only file system" in result.stderr


async def test_a_read_only_sample_writes_nothing(url: str) -> None:
    async with sample(ExecServerSandboxConfig(url=url, sandbox=ReadOnly())) as environment:
        assert not (await environment.exec(["touch", "new"])).success
        with pytest.raises(PermissionError):
            await environment.write_file("new", "x")
        assert (await environment.exec(["pwd"])).stdout == f"{environment.directory}\n"


async def test_samples_do_not_see_each_other(
    config: ExecServerSandboxConfig, sandbox_env: Environment
) -> None:
    await sandbox_env.write_file("answer.txt", "42")
    async with sample(config) as other:
        assert other.directory != sandbox_env.directory
        path = f"{sandbox_env.directory}/answer.txt"
        assert not (await other.exec(["cat", path])).success
        assert not (await other.exec(["sh", "-c", f"echo 43 > {path}"])).success
        assert not (await other.exec(["ls", "../.."])).success
        with pytest.raises(FileNotFoundError):
            await other.read_file(path)
        with pytest.raises(OSError):
            await other.write_file(path, "43")
    assert await sandbox_env.read_file("answer.txt") == "42"


async def test_the_variables_of_the_daemon_stay_with_it_unless_they_are_asked_for(url: str) -> None:
    async with sample(ExecServerSandboxConfig(url=url)) as core:
        assert "XDG_STATE_HOME" not in (await core.exec(["env"])).stdout
        assert "HOME=" in (await core.exec(["env"])).stdout
    async with sample(ExecServerSandboxConfig(url=url, inherit="all")) as everything:
        assert "XDG_STATE_HOME" in (await everything.exec(["env"])).stdout


async def test_a_repository_can_be_made_below_the_working_directory_and_not_in_it(
    sandbox_env: Environment,
) -> None:
    assert not (await sandbox_env.exec(["git", "init", "-q"])).success
    result = await sandbox_env.exec(["git", "init", "-q", "repository"])
    assert result.success, result.stderr


@pytest.mark.parametrize("sandbox", [None, WorkspaceWrite()], ids=["unconfined", "confined"])
async def test_a_program_in_the_background_outlasts_its_command_without_a_sandbox_only(
    url: str, sandbox: WorkspaceWrite | None
) -> None:
    async with sample(ExecServerSandboxConfig(url=url, sandbox=sandbox)) as environment:
        seconds = f"9999.{uuid4().int}"
        assert (await environment.exec(["sh", "-c", f"sleep {seconds} >/dev/null 2>&1 &"])).success
        assert is_running(seconds) == (sandbox is None)
    assert not is_running(seconds)


# -- errors


async def test_too_much_output_is_an_error_with_both_its_ends(sandbox_env: Environment) -> None:
    with pytest.raises(OutputLimitExceededError, match="10 MiB") as raised:
        await sandbox_env.exec(["seq", "2000000"])
    assert raised.value.truncated_output is not None
    assert raised.value.truncated_output.startswith("1\n2\n")
    assert raised.value.truncated_output.endswith("\n2000000\n")


async def test_output_at_the_limit_is_whole(sandbox_env: Environment) -> None:
    size = 10 << 20
    result = await sandbox_env.exec(["head", "-c", str(size), "/dev/zero"])
    assert result.stdout == "\0" * size


async def test_a_file_above_the_limit_is_an_error(
    sandbox_env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox_env.exec(["truncate", "-s", "101M", "large"])
    with pytest.raises(OutputLimitExceededError, match="100 MiB"):
        await sandbox_env.read_file("large")


async def test_a_time_limit_raises_what_was_printed_before_it(sandbox_env: Environment) -> None:
    with pytest.raises(TimeoutError, match="after 3 seconds") as raised:
        await sandbox_env.exec(["sh", "-c", "echo begun; sleep 60"], timeout=3)
    assert getattr(raised.value, "truncated_output") == "begun\n"  # noqa: B009 - as Inspect reads it


async def test_a_program_that_does_not_exist_is_a_failed_result(sandbox_env: Environment) -> None:
    result = await sandbox_env.exec(["no-such-program"])
    assert (result.success, result.returncode) == (False, 127)
    assert "no-such-program" in result.stderr


async def test_a_file_that_is_not_text_is_a_decoding_error(sandbox_env: Environment) -> None:
    await sandbox_env.write_file("binary", b"\xff\xfe")
    with pytest.raises(UnicodeDecodeError):
        await sandbox_env.read_file("binary")


async def test_line_ends_are_kept(sandbox_env: Environment) -> None:
    await sandbox_env.write_file("lines", "one\r\ntwo\n")
    assert await sandbox_env.read_file("lines") == "one\r\ntwo\n"


async def test_another_user_is_refused_and_the_own_one_is_served(sandbox_env: Environment) -> None:
    name = (await sandbox_env.exec(["id", "-un"])).stdout.strip()
    assert (await sandbox_env.exec(["true"], user=name)).success
    assert (await sandbox_env.exec(["true"], user=str(os.getuid()))).success
    with pytest.raises(SandboxUserUnsupportedError, match=rf"user of the daemon \(\d+, {name}\)"):
        await sandbox_env.exec(["true"], user="daemon")


async def test_a_sample_that_has_ended_is_unavailable(config: ExecServerSandboxConfig) -> None:
    async with sample(config) as environment:
        pass
    with pytest.raises(SandboxUnavailableError):
        await environment.exec(["true"])
    with pytest.raises(ConnectionError, match="ended"):
        await environment.connection()


async def test_a_daemon_that_does_not_answer_fails_the_task_at_its_start(tmp_path: Path) -> None:
    config = ExecServerSandboxConfig(url=f"unix://{tmp_path}/none")
    with pytest.raises(DaemonNotRunning):
        await Environment.task_init("startup", config)


def test_another_kind_of_event_loop_is_refused_with_the_reason() -> None:
    with pytest.raises(RuntimeError, match="needs asyncio: unset INSPECT_ASYNC_BACKEND"):
        Environment.task_init("startup", None).send(None)


async def test_a_daemon_that_confines_lets_the_task_begin(config: ExecServerSandboxConfig) -> None:
    await Environment.task_init("startup", config)
    await Environment.task_cleanup("shutdown", config, True)


# -- what stays


async def test_cancelling_kills_the_command(sandbox_env: Environment, url: str) -> None:
    await sandbox_env.exec(["mkfifo", "begun"])
    with anyio.move_on_after(30) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(sandbox_env.exec, ["sh", "-c", "sleep 1000 & echo > begun; wait"])
            await sandbox_env.exec(["cat", "begun"])
            group.cancel_scope.cancel()
    assert not scope.cancelled_caught
    async with asyncio.timeout(20):
        while (await left_at(url))[1]:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("sandbox", [None, WorkspaceWrite()], ids=["unconfined", "confined"])
async def test_a_sample_leaves_nothing(url: str, sandbox: WorkspaceWrite | None) -> None:
    tasks, files = asyncio.all_tasks(), len(open_files(os.getpid()))
    async with sample(ExecServerSandboxConfig(url=url, sandbox=sandbox)) as environment:
        await environment.write_file("a/b/c", "x")
        await environment.exec(["sh", "-c", "chmod 500 a; setsid sleep 1000 >/dev/null 2>&1 &"])
        assert environment.executor.session_id in (await left_at(url))[0]
    assert environment.executor.session_id not in (await left_at(url))[0]
    assert not (await left_at(url))[1]
    assert asyncio.all_tasks() == tasks
    if not url.endswith("/proxy"):  # whose connections are files of this process, too
        assert len(open_files(os.getpid())) <= files


async def test_a_sample_whose_directory_cannot_be_made_leaves_no_session(
    config: ExecServerSandboxConfig, home: Path
) -> None:
    cache = home / ".cache"
    if cache.exists():
        cache.rename(cache.with_name("kept"))
    cache.write_text("in the way")
    tasks = asyncio.all_tasks()
    try:
        with pytest.raises(CommandFailed, match=r"\.cache"):
            await Environment.sample_init("test", config, {})
        assert asyncio.all_tasks() == tasks
    finally:
        cache.unlink()
        if cache.with_name("kept").exists():
            cache.with_name("kept").rename(cache)


# -- configuration


def test_a_configuration_survives_a_log() -> None:
    config = ExecServerSandboxConfig(url="unix:///x", sandbox=WorkspaceWrite(network=True), ttl=60)
    spec = SandboxEnvironmentSpec("execserver", config)
    again = SandboxEnvironmentSpec.model_validate(spec.model_dump())
    assert again == spec
    assert hash(again) == hash(spec)


@pytest.mark.parametrize("sandbox", [None, ReadOnly(), WorkspaceWrite(writable_roots=("/data",))], ids=str)
def test_a_policy_may_be_written_in_json(sandbox: ReadOnly | WorkspaceWrite | None) -> None:
    config = ExecServerSandboxConfig(sandbox=sandbox)
    assert ExecServerSandboxConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("json", "named"),
    [
        ('{"uri": "x"}', "uri"),
        ('{"sandbox": {"type": "open"}}', "read-only, workspace-write"),
        ('{"ttl": 0}', "ttl"),
    ],
)
async def test_a_wrong_member_of_a_configuration_file_is_named(tmp_path: Path, json: str, named: str) -> None:
    (tmp_path / "execserver.json").write_text(json)
    with pytest.raises(ValidationError, match=named):
        await Environment.sample_init("test", str(tmp_path / "execserver.json"), {})


async def test_a_configuration_file_is_read(tmp_path: Path, config: ExecServerSandboxConfig) -> None:
    path = tmp_path / "execserver.json"
    path.write_text(config.model_dump_json())
    environments = await Environment.sample_init("test", str(path), {})
    await Environment.sample_cleanup("test", str(path), environments, False)
