"""What a daemon makes of the contexts that `execclient.govern.sandbox` gives."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from execclient import Executor, InvalidParams, RunResult, SystemFailure
from execclient.govern.sandbox import (
    DangerFullAccess,
    ExternalSandbox,
    Profile,
    ReadOnly,
    SandboxPolicy,
    WorkspaceWrite,
    without_sandbox,
)
from tests.support.fs_workers import bubblewrap_works

pytestmark = [
    pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces"),
    pytest.mark.parametrize("url", ["unix"], indirect=True),
]


class Runner:
    """Shell commands in a workspace, under a policy."""

    def __init__(self, executor: Executor, workspace: Path) -> None:
        self._executor = executor
        self._workspace = workspace

    async def __call__(
        self, policy: SandboxPolicy, script: str, roots: Sequence[Path] | None = None
    ) -> RunResult:
        named = [str(root) for root in ([self._workspace] if roots is None else roots)]
        return await self._executor.run(
            ["bash", "-c", script],
            cwd=self._workspace,
            sandbox=policy.context(str(self._workspace), named),
            timeout=20,
        )


@pytest.fixture
def run(executor: Executor, workspace: Path) -> Runner:
    return Runner(executor, workspace)


@pytest.fixture
def workspace() -> Iterator[Path]:
    """Not below `/tmp`, which a workspace policy lets be written anyway."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder).resolve() / "workspace"
        path.mkdir()
        (path / "a.txt").write_text("hello\n")
        yield path


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a listener on the loopback interface."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def connecting(port: int) -> str:
    return f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"


async def test_read_only_denies_the_write_that_full_access_carries_out(run: Runner, workspace: Path) -> None:
    writing = "cat a.txt; echo more > b.txt"

    confined = await run(ReadOnly(), writing)

    assert confined.exit_code != 0
    assert confined.stdout == b"hello\n"
    assert b"Read-only file system" in confined.stderr
    assert not (workspace / "b.txt").exists()

    free = await run(DangerFullAccess(), writing)

    assert (free.exit_code, (workspace / "b.txt").read_text()) == (0, "more\n")


async def test_workspace_write_writes_to_the_workspace_and_listed_roots_only(
    run: Runner, workspace: Path
) -> None:
    listed, outside = workspace.parent / "listed", workspace.parent / "outside"
    listed.mkdir()
    outside.mkdir()
    policy = WorkspaceWrite(writable_roots=(str(listed),))

    result = await run(policy, f"echo 1 > in.txt; echo 2 > {listed}/in.txt; echo 3 > {outside}/out.txt")

    assert (workspace / "in.txt").read_text() == "1\n"
    assert (listed / "in.txt").read_text() == "2\n"
    assert (result.exit_code, list(outside.iterdir())) == (1, [])
    assert b"Read-only file system" in result.stderr


async def test_without_workspace_roots_the_own_folder_of_a_call_is_not_writable(
    run: Runner, workspace: Path
) -> None:
    result = await run(WorkspaceWrite(), "touch in.txt", roots=[])

    assert result.exit_code == 1
    assert not (workspace / "in.txt").exists()


async def test_folders_for_temporary_files_are_writable_unless_excluded(run: Runner) -> None:
    script = "f=$(mktemp -p /tmp) && rm $f && echo written"

    included = await run(WorkspaceWrite(), script)
    excluded = await run(WorkspaceWrite(exclude_slash_tmp=True, exclude_tmpdir=True), script)

    assert (included.text, excluded.text) == ("written\n", "")


@pytest.mark.parametrize("policy", [ReadOnly, WorkspaceWrite, ExternalSandbox])
async def test_the_network_is_open_only_if_the_policy_says_so(
    run: Runner, port: int, policy: type[ReadOnly | WorkspaceWrite | ExternalSandbox]
) -> None:
    closed = await run(policy(), connecting(port))
    opened = await run(policy(network=True), connecting(port))

    assert (closed.text, opened.text) == ("", "connected\n")
    assert closed.exit_code != 0


async def test_an_external_sandbox_does_not_limit_files(run: Runner, workspace: Path) -> None:
    result = await run(ExternalSandbox(), "echo 1 > in.txt")

    assert (result.exit_code, (workspace / "in.txt").read_text()) == (0, "1\n")


@pytest.fixture
def secrets(workspace: Path) -> Path:
    """The workspace with files that must not be read, hidden and nested ones among them."""
    (workspace / "sub" / "keys").mkdir(parents=True)
    for name in (".env", "sub/.env", "sub/keys/id", "named"):
        (workspace / name).write_text("secret\n")
    return workspace


READING = "cat .env; cat sub/.env; cat sub/keys/id; cat named; cat a.txt"


@pytest.mark.parametrize("escalated", [False, True])
async def test_what_must_not_be_read_stays_so_when_the_sandbox_is_lifted(
    run: Runner, secrets: Path, port: int, escalated: bool
) -> None:
    policy: SandboxPolicy = ReadOnly(deny_read=("**/.env", "sub/keys", str(secrets / "named")))
    if escalated:
        policy = without_sandbox(policy)

    result = await run(policy, f"{READING}; echo 1 > {secrets.parent}/out.txt; {connecting(port)}")

    assert result.stderr.count(b"Permission denied") >= 3
    # Everything else is as free as was approved.
    assert result.text == ("hello\nconnected\n" if escalated else "hello\n")
    assert (secrets.parent / "out.txt").exists() is escalated


async def test_lifting_a_profile_keeps_what_it_grants_below_a_denial(run: Runner, secrets: Path) -> None:
    def at(path: Path, access: str) -> dict[str, object]:
        return {"path": {"type": "path", "path": path.as_uri()}, "access": access}

    root = {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}
    entries = [root, at(secrets / "sub", "none"), at(secrets / "sub/keys", "read")]
    profile = Profile(
        {
            "type": "managed",
            "network": "restricted",
            "file_system": {"type": "restricted", "entries": entries, "glob_scan_max_depth": 3},
        }
    )

    result = await run(without_sandbox(profile), "cat sub/.env; cat sub/keys/id; echo 1 > in.txt")

    assert result.text == "secret\n"
    assert (secrets / "in.txt").read_text() == "1\n"


async def test_lifting_opens_the_runtime_folder_that_networked_sandboxes_hide(
    run: Runner, secrets: Path
) -> None:
    names = set(os.listdir("/run"))

    confined = await run(ReadOnly(network=True), "ls -A /run")
    result = await run(without_sandbox(ReadOnly(deny_read=("**/.env",))), "ls -A /run")

    assert not names <= set(confined.text.splitlines())
    assert names <= set(result.text.splitlines())


@pytest.mark.parametrize("denied", ["**/.env", "named", "/etc/nothing-of-that-name", None])
async def test_lifting_a_workspace_policy_opens_its_repository(
    run: Runner, secrets: Path, denied: str | None
) -> None:
    (secrets / ".git").mkdir()
    policy = WorkspaceWrite(deny_read=(denied or str(secrets.parent),))

    confined = await run(policy, "touch .git/config")
    lifted = await run(without_sandbox(policy), "touch .git/config && cat a.txt")

    assert confined.exit_code == 1
    assert (lifted.exit_code, lifted.text) == (0, "hello\n")


async def test_files_are_confined_by_the_same_context(executor: Executor, workspace: Path) -> None:
    context = ReadOnly(deny_read=("*.txt",)).context(str(workspace), [str(workspace)])
    target = (workspace / "b").as_uri()

    with pytest.raises(SystemFailure, match="Read-only file system"):
        await executor.call("fs/writeFile", {"path": target, "dataBase64": "aGk=", "sandbox": context})


async def test_a_daemon_takes_the_permissions_that_a_profile_takes(run: Runner) -> None:
    with pytest.raises(ValueError, match=r"^permissions\.managed\.network: "):
        Profile({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "some"})
    with pytest.raises(InvalidParams, match="network"):
        await run._executor.run(
            ["true"],
            sandbox={
                "permissions": {"type": "external", "network": "some"},
                "windowsSandboxLevel": "disabled",
            },
        )
