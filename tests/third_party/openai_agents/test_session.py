"""A session of the sandbox client: commands, files, terminals, and its end."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from agents.sandbox import Manifest, SandboxPathGrant
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ExecTimeoutError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.session import SandboxSession
from agents.sandbox.types import User

from execclient import ReadOnly, WorkspaceWrite
from execclient.integrations.openai_agents import ExecServerSandboxClient


@asynccontextmanager
async def started(
    client: ExecServerSandboxClient, manifest: Manifest | None = None
) -> AsyncIterator[SandboxSession]:
    """A session that is deleted at the end."""
    session = await client.create(manifest=manifest)
    try:
        async with session:
            yield session
    finally:
        await client.delete(session)


def root_of(session: SandboxSession) -> Path:
    return Path(session.state.manifest.root)


async def text_of(session: SandboxSession, path: str) -> str:
    with await session.read(Path(path)) as file:
        content = file.read()
    assert isinstance(content, bytes)
    return content.decode()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def pause(number: int) -> str:
    """A command that waits, like no other one on this machine."""
    return f"sleep 60.{os.getpid()}{number}"


def running(command: str) -> bool:
    """Whether a process has these arguments."""
    wanted = command.encode().replace(b" ", b"\0") + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == wanted:
                return True
    return False


async def test_a_command_gives_its_output_and_its_exit_code(url: str) -> None:
    async with started(ExecServerSandboxClient(url)) as session:
        result = await session.exec("echo out; echo err >&2; pwd; echo $HOME; exit 3")
        root = str(root_of(session))
        assert result.stdout.decode() == f"out\n{root}\n{root}\n"
        assert (result.stderr, result.exit_code) == (b"err\n", 3)


async def test_the_workspace_of_a_session_is_its_own_and_goes_with_it(url: str) -> None:
    # The home folder of the daemon, with the workspaces, is below /tmp here.
    strict = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True)
    client = ExecServerSandboxClient(url, sandbox=strict)
    async with started(client) as one, started(client) as other:
        await one.write(Path("a/b/file"), io.BytesIO(b"one"))
        assert await text_of(one, "a/b/file") == "one"
        with pytest.raises(WorkspaceReadNotFoundError):
            await other.read(Path("a/b/file"))
        denied = await other.exec(f"echo two > {root_of(one)}/a/b/file")
        assert b"Read-only file system" in denied.stderr
        assert await text_of(one, "a/b/file") == "one"
        folders = [root_of(session).parent for session in (one, other)]
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize(
    ("sandbox", "files", "network"),
    [
        (WorkspaceWrite(), False, False),
        (ReadOnly(network=True), False, True),
        (None, True, True),
    ],
    ids=["default", "network", "none"],
)
@pytest.mark.without_chaos
async def test_a_session_reaches_what_its_sandbox_allows(
    url: str, outside: Path, sandbox: WorkspaceWrite | ReadOnly | None, files: bool, network: bool
) -> None:
    bind = "import socket; socket.socket().bind(('127.0.0.1', 0))"
    async with started(ExecServerSandboxClient(url, sandbox=sandbox)) as session:
        await session.exec(f"echo x > {outside}/file")
        bound = await session.exec("python3", "-c", bind, shell=False)
    assert ((outside / "file").exists(), bound.exit_code == 0) == (files, network)


@pytest.mark.without_chaos
async def test_files_outside_the_workspace_are_out_of_reach(url: str, outside: Path) -> None:
    (outside / "file").write_text("secret")
    async with started(ExecServerSandboxClient(url)) as session:
        await session.exec(f"ln -s {outside} link; ln -s {outside}/new dangling")
        for path in (f"{outside}/file", "../file", "link/file", "dangling"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(Path(path))
            with pytest.raises(InvalidManifestPathError):
                await session.write(Path(path), io.BytesIO(b"x"))
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("file", "secret")]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.without_chaos
async def test_a_grant_of_the_manifest_holds_for_files_and_commands(
    url: str, outside: Path, read_only: bool
) -> None:
    (outside / "file").write_text("granted")
    granting = Manifest(extra_path_grants=(SandboxPathGrant(path=str(outside), read_only=read_only),))
    async with started(ExecServerSandboxClient(url), granting) as session:
        assert await text_of(session, f"{outside}/file") == "granted"
        assert ((await session.exec(f"echo x > {outside}/new")).exit_code == 0) is not read_only
        if read_only:
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.write(outside / "file", io.BytesIO(b"changed"))
        else:
            await session.write(outside / "file", io.BytesIO(b"changed"))
    assert (outside / "file").read_text() == ("granted" if read_only else "changed")


@pytest.mark.without_chaos
async def test_a_read_only_session_gets_its_manifest_and_changes_nothing(url: str) -> None:
    manifest = Manifest(entries={"dir": Dir(children={"file": File(content=b"one")})})
    async with started(ExecServerSandboxClient(url, sandbox=ReadOnly()), manifest) as session:
        assert (await session.exec("cat dir/file")).stdout == b"one"
        assert (await session.exec("touch dir/new")).exit_code
        with pytest.raises(WorkspaceArchiveWriteError, match="Read-only file system"):
            await session.write(Path("dir/file"), io.BytesIO(b"two"))
        assert await text_of(session, "dir/file") == "one"


@pytest.mark.without_chaos
async def test_protected_names_are_ordinary_in_a_workspace_of_the_session_alone(
    url: str, tmp_path: Path
) -> None:
    script = (
        "mkdir .agents && echo x > .agents/file && git init -q . && ls -A && rm -rf .git .agents && ls -A"
    )
    async with started(ExecServerSandboxClient(url)) as session:
        assert (await session.exec(script)).stdout == b".agents\n.git\n"
    skills = Dir(children={"a": File(content=b"1")})
    named = Manifest(root=str(tmp_path / "named"), entries={".agents": skills})
    async with started(ExecServerSandboxClient(url), named) as session:
        assert await text_of(session, ".agents/a") == "1"
        assert (await session.exec("echo 2 > .agents/a")).exit_code
        assert await text_of(session, ".agents/a") == "1"
    assert (tmp_path / "named").is_dir()


async def test_a_large_file_is_read_and_written_whole(url: str) -> None:
    content = os.urandom(1 << 20) * 34  # more than the client sends in one message
    async with started(ExecServerSandboxClient(url)) as session:
        await session.write(Path("large"), io.BytesIO(content))
        with await session.read(Path("large")) as file:
            assert file.read() == content
        assert await session.read_bounded(Path("large"), max_bytes=5000) == content[:5000]
        assert await session.read_bounded(Path("large"), max_bytes=1 << 30) == content


async def test_a_command_that_reaches_its_time_limit_is_killed_and_its_output_is_kept(url: str) -> None:
    async with started(ExecServerSandboxClient(url)) as session:
        with pytest.raises(ExecTimeoutError) as caught:
            await session.exec(f"echo begun; {pause(61)}", timeout=2)
        assert (caught.value.context["stdout"], caught.value.timeout_s) == ("begun\n", 2)
        await until(lambda: not running(pause(61)))


async def test_cancelling_kills_the_command(url: str) -> None:
    async with started(ExecServerSandboxClient(url)) as session:
        for call in (
            session.exec(f"{pause(62)}; :"),
            session.pty_exec_start(f"{pause(62)}; :", yield_time_s=30),
        ):
            task = asyncio.create_task(call)
            await until(lambda: running(pause(62)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not running(pause(62)))


@pytest.mark.without_chaos
async def test_a_command_that_cannot_be_started_has_the_exit_code_of_a_shell(url: str) -> None:
    async with started(ExecServerSandboxClient(url, sandbox=None)) as session:
        await session.write(Path("plain"), io.BytesIO(b"text"))
        missing = await session.exec("no-such-program", shell=False)
        plain = await session.exec(root_of(session) / "plain", shell=False)
        assert (missing.exit_code, plain.exit_code) == (127, 126)
        assert b"no-such-program" in missing.stderr
        update = await session.pty_exec_start("no-such-program", shell=False)
        assert (update.process_id, update.exit_code) == (None, 127)


async def test_the_output_of_all_updates_is_whole(url: str) -> None:
    lines = "".join(f"{number} é\n" for number in range(1, 100_001))
    script = "seq -f '%.0f é' 50000; sleep 1; seq -f '%.0f é' 50001 100000"
    async with started(ExecServerSandboxClient(url)) as session:
        update = await session.pty_exec_start(script, yield_time_s=0.3)
        output = update.output
        while update.process_id is not None:
            update = await session.pty_write_stdin(session_id=update.process_id, chars="")
            output += update.output
        assert output.decode() == lines
        assert update.exit_code == 0


async def test_a_cancelled_update_loses_no_output(url: str) -> None:
    async with started(ExecServerSandboxClient(url)) as session:
        update = await session.pty_exec_start("sleep 1; echo late; sleep 20", yield_time_s=0.25)
        assert update.process_id is not None
        waiting = session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await waiting
        update = await session.pty_write_stdin(session_id=update.process_id, chars="")
        assert update.output == b"late\n"


@pytest.mark.without_chaos
async def test_a_number_is_valid_while_its_command_has_something_to_report(url: str) -> None:
    async with started(ExecServerSandboxClient(url)) as session:
        update = await session.pty_exec_start("exit 4", yield_time_s=20)
        assert (update.process_id, update.exit_code) == (None, 4)
        with pytest.raises(PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=1234, chars="")


async def test_the_end_of_a_session_leaves_no_process_behind(url: str) -> None:
    client = ExecServerSandboxClient(url, sandbox=None)
    session = await client.create()
    await session.start()
    await session.pty_exec_start(f"{pause(63)}; :", yield_time_s=0.25)
    await session.exec(f"setsid {pause(64)} >/dev/null 2>&1 &")
    await until(lambda: running(pause(63)) and running(pause(64)))
    await session.stop()
    await until(lambda: not running(pause(63)))
    assert running(pause(64))
    await session.shutdown()
    await until(lambda: not running(pause(64)))
    assert not await session.running()
    await client.delete(session)
    assert not root_of(session).parent.exists()
    assert len(asyncio.all_tasks()) == 1


async def test_a_session_can_be_started_again_after_its_end(url: str) -> None:
    client = ExecServerSandboxClient(url)
    session = await client.create()
    async with session:
        await session.write(Path("file"), io.BytesIO(b"one"))
    async with session:
        assert await text_of(session, "file") == "one"
    await client.delete(session)


@pytest.mark.without_chaos
async def test_what_the_executor_does_not_have_is_refused(url: str) -> None:
    client = ExecServerSandboxClient(url)
    grant = SandboxPathGrant(path="/data", host_path="/srv")
    for manifest, field in (
        (Manifest(users=[User(name="eve")]), "users"),
        (Manifest(extra_path_grants=(grant,)), "extra_path_grants"),
        (Manifest(root="/"), "root"),
    ):
        with pytest.raises(ValueError, match=field):
            await client.create(manifest=manifest)
    with pytest.raises(TypeError, match="sandbox is a policy"):
        ExecServerSandboxClient(url, sandbox="read-only")  # type: ignore[arg-type]  # what it refuses
    with pytest.raises(WorkspaceStartError, match="execserver serve"):
        await ExecServerSandboxClient("unix:///nonexistent/socket").create()


@pytest.mark.without_chaos
async def test_a_workspace_that_is_gone_is_named(url: str) -> None:
    client = ExecServerSandboxClient(url)
    async with started(client) as session:
        await session.exec(f"rm -rf {root_of(session)}")
        with pytest.raises(WorkspaceRootNotFoundError, match="workspace"):
            await session.exec("true")


async def test_a_daemon_without_a_home_folder_needs_a_folder_by_name(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"capabilities": {"execserver": ["process/list"]}}
        while line := await reader.readline():
            if "id" in (request := json.loads(line)):
                result = {"sessionId": "s", "environmentInfo": info, "processes": []}
                writer.write(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")
        writer.close()
        ended.set()

    async with await asyncio.start_unix_server(daemon, tmp_path / "daemon"):
        with pytest.raises(WorkspaceStartError, match=r"pass Manifest\(root=…\)"):
            await ExecServerSandboxClient(f"unix://{tmp_path}/daemon").create()

        await asyncio.wait_for(ended.wait(), 10)  # no connection is left open
