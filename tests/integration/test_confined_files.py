"""`fs/*` under a sandbox of bubblewrap: the handlers, the pool and real workers behind the real filter."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from execprotocol.errors import InternalError, InvalidRequest, NotFound, RpcError
from execprotocol.path_uri import path_to_uri
from execserver.api.filesystem import FileConfinement
from execserver.descendants import children_of
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.small import SmallFiles
from execserver.fsworker.interpreter import interpreter_paths
from execserver.fsworker.pool import WorkerPool
from execserver.fsworker.process import WorkerProcess
from execserver.sandbox.policy import Policy
from tests.support.fs_workers import BareLauncher, BubblewrapLauncher, bubblewrap_works, confined
from tests.unit.filesystem.caller import StubCaller

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")

_WALK = {"maxDepth": 9, "maxDirectories": 99, "maxEntries": 999, "followDirectorySymlinks": False}


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "file").write_text("inside")
    (folder / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("outside")
    return folder


@pytest.fixture
def mounts() -> Iterator[MountTable]:
    table = MountTable()
    table.can_hang = False
    yield table
    table.close()


@pytest.fixture
def launcher() -> BareLauncher:
    return BubblewrapLauncher()


@pytest.fixture
async def caller(launcher: BareLauncher, mounts: MountTable) -> AsyncIterator[StubCaller]:
    pool = WorkerPool(launcher)
    connection = StubCaller(mounts, FileConfinement(pool, None, SmallFiles(mounts)))
    yield connection
    connection.close()
    await pool.close()


def _sandbox(workspace: Path) -> dict[str, Any]:
    def entry(path: dict[str, Any], access: str) -> dict[str, Any]:
        return {"path": path, "access": access}

    return {
        "permissions": {
            "type": "managed",
            "network": "restricted",
            "file_system": {
                "type": "restricted",
                "entries": [
                    entry({"type": "special", "value": {"kind": "root"}}, "read"),
                    entry({"type": "special", "value": {"kind": "project_roots"}}, "write"),
                ],
            },
        },
        "workspaceRoots": [path_to_uri(str(workspace))],
        "windowsSandboxLevel": "disabled",
    }


async def test_what_is_written_inside_is_there_and_as_the_daemon_would_write_it(
    caller: StubCaller, workspace: Path
) -> None:
    sandbox = _sandbox(workspace)
    old = os.umask(0o027)
    try:
        await caller.call("fs/writeFile", path=workspace / "new", dataBase64="QUJD", sandbox=sandbox)
        await caller.call("fs/createDirectory", path=workspace / "a" / "b", sandbox=sandbox)
    finally:
        os.umask(old)
    await caller.call(
        "fs/copy",
        sourcePath=workspace / "a",
        destinationPath=workspace / "c",
        recursive=True,
        sandbox=sandbox,
    )
    await caller.call("fs/open", handleId="h", path=workspace / "block", mode="replace", sandbox=sandbox)
    await caller.call("fs/writeBlock", handleId="h", offset=2, chunk="QUJD")
    await caller.call("fs/close", handleId="h")
    await caller.call("fs/remove", path=workspace / "file", sandbox=sandbox)

    assert (workspace / "new").read_bytes() == b"ABC"
    status = os.stat(workspace / "new")
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.stat("/proc/self").st_gid)
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert stat.S_IMODE(os.stat(workspace / "a").st_mode) == 0o750
    assert (workspace / "c" / "b").is_dir()
    assert (workspace / "block").read_bytes() == b"\0\0ABC"
    assert not (workspace / "file").exists()


async def test_files_are_replaced_whole_with_modes_and_times_inside(
    caller: StubCaller, workspace: Path
) -> None:
    sandbox = _sandbox(workspace)
    (workspace / "old").write_text("old")
    (workspace / "old").chmod(0o640)
    (workspace / "file").chmod(0o600)
    os.utime(workspace / "file", ns=(1, 1_000_000_001))
    content = (workspace / "file").read_bytes()
    await caller.call(
        "fs/open", handleId="h", path=workspace / "part", mode="replace", permissions=0o600, sandbox=sandbox
    )
    await caller.call("fs/writeBlock", handleId="h", offset=0, chunk="QUJD")
    await caller.call("fs/close", handleId="h")
    caller.extensions = True
    found = await caller.call("fs/getMetadata", path=workspace / "part", sandbox=sandbox)
    assert (found["permissions"], found["modifiedAtNs"]) == (
        0o600,
        (workspace / "part").stat().st_mtime_ns,
    )

    copied = await caller.call(
        "fs/copy",
        sourcePath=workspace / "file",
        destinationPath=workspace / "old",
        recursive=False,
        keepMode=True,
        preserveTimes=True,
        sandbox=sandbox,
    )
    status = (workspace / "old").stat()
    assert copied == {"inPlace": False}
    assert (workspace / "old").read_bytes() == content
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, 1_000_000_001)
    paths = {"sourcePath": workspace / "part", "destinationPath": workspace / "old"}
    assert await caller.call("fs/install", **paths, modifiedAtNs=-5, sandbox=sandbox) == {"inPlace": False}
    status = (workspace / "old").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, -5)
    assert (workspace / "old").read_bytes() == b"ABC"
    await caller.call("fs/setMetadata", path=workspace / "old", permissions=0o700, sandbox=sandbox)
    await caller.call("fs/createDirectory", path=workspace / "d", permissions=0o700, sandbox=sandbox)
    digest = await caller.call("fs/digest", path=workspace / "old", size=1, sandbox=sandbox)

    assert stat.S_IMODE((workspace / "old").stat().st_mode) == 0o700
    assert stat.S_IMODE((workspace / "d").stat().st_mode) == 0o700
    assert digest["size"] == 1
    assert sorted(os.listdir(workspace)) == ["d", "file", "link", "old"]


async def test_everything_can_be_looked_at_and_read(caller: StubCaller, workspace: Path) -> None:
    for path in (workspace / "link" / "file", workspace.parent / "outside" / "file"):
        looks: list[tuple[str, dict[str, Any]]] = [
            ("fs/readFile", {"path": path}),
            ("fs/getMetadata", {"path": path}),
            ("fs/canonicalize", {"path": path}),
            ("fs/readDirectory", {"path": path.parent}),
            ("fs/walk", {"path": path.parent, "options": _WALK}),
        ]
        for method, params in looks:
            inside = await caller.call(method, **params, sandbox=_sandbox(workspace))
            assert inside == await caller.call(method, **params)


async def test_nothing_outside_is_changed(
    caller: StubCaller, launcher: BareLauncher, workspace: Path
) -> None:
    sandbox, outside = _sandbox(workspace), workspace.parent / "outside"
    # The mount comes before the mode, as for who truncates while opening.
    (outside / "locked").touch(mode=0)
    acts: list[tuple[str, dict[str, Any]]] = [
        ("fs/writeFile", {"path": outside / "new", "dataBase64": ""}),
        ("fs/writeFile", {"path": outside / "file", "dataBase64": "QUJD"}),
        ("fs/writeFile", {"path": outside / "locked", "dataBase64": "QUJD"}),
        ("fs/writeFile", {"path": workspace / "link" / "file", "dataBase64": "QUJD"}),
        ("fs/writeFile", {"path": workspace / ".." / "outside" / "file", "dataBase64": "QUJD"}),
        ("fs/createDirectory", {"path": outside / "folder"}),
        ("fs/remove", {"path": outside / "file"}),
        ("fs/remove", {"path": outside}),
        ("fs/open", {"path": outside / "file", "handleId": "h", "mode": "replace"}),
        (
            "fs/copy",
            {"sourcePath": workspace / "file", "destinationPath": outside / "copy", "recursive": False},
        ),
        (
            "fs/copy",
            {"sourcePath": workspace, "destinationPath": outside / "tree", "recursive": True},
        ),
        (
            "fs/copy",
            {"sourcePath": workspace / "file", "destinationPath": outside / "file", "recursive": False},
        ),
        ("fs/install", {"sourcePath": workspace / "file", "destinationPath": outside / "file"}),
        ("fs/setMetadata", {"path": outside / "file", "permissions": 0o777}),
        ("fs/setMetadata", {"path": workspace / "link" / "file", "modifiedAtNs": 5}),
    ]
    for method, params in acts:
        with pytest.raises(InternalError) as refused:
            await caller.call(method, **params, sandbox=sandbox)
        assert (refused.value.message, refused.value.name) == (
            "Read-only file system (os error 30)",
            "read_only",
        )
    assert sorted(os.listdir(outside)) == ["file", "locked"]
    assert (outside / "file").read_text() == "outside"
    assert len(launcher.started) == 1

    # The same acts work without a sandbox.
    for method, params in (*acts[:2], *acts[3:6]):
        await caller.call(method, **params)
    assert (outside / "file").read_text() == "ABC"


async def test_a_batch_is_carried_out_inside_and_changes_nothing_outside(
    caller: StubCaller, workspace: Path
) -> None:
    outside = workspace.parent / "outside"
    (workspace / "old").write_text("old")
    (workspace / "old").chmod(0o600)

    def entries(*paths: Path) -> list[dict[str, Any]]:
        return [
            {"path": path_to_uri(str(path)), "permissions": 0o755}
            | ({} if path.suffix == ".d" else {"dataBase64": "QUJD"})
            for path in paths
        ]

    through_links = (workspace / "link" / "file", workspace / "link" / "new", workspace / "link" / "x.d")
    directly = (outside / "file", outside / "new", outside / "x.d")
    within = (workspace / "new.d", workspace / "new.d" / "file", workspace / "old")
    batch = entries(*within, *through_links, *directly)

    confined = await caller.call("fs/putFiles", entries=batch, keepMode=True, sandbox=_sandbox(workspace))

    refused = {"error": {"code": -32603, "message": "Read-only file system (os error 30)"}}
    assert confined == {"entries": [{"inPlace": False}] * 3 + [refused] * 6}
    assert (workspace / "new.d" / "file").read_bytes() == (workspace / "old").read_bytes() == b"ABC"
    assert stat.S_IMODE((workspace / "old").stat().st_mode) == 0o600
    assert stat.S_IMODE((workspace / "new.d" / "file").stat().st_mode) == 0o755
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "outside"

    # The same batch works without a sandbox.
    free = await caller.call("fs/putFiles", entries=batch)
    assert free == {"entries": [{"inPlace": False}] * 9}
    assert sorted(os.listdir(outside)) == ["file", "new", "x.d"]
    assert (outside / "file").read_bytes() == b"ABC"


async def test_a_batch_is_read_inside_as_without_a_sandbox(caller: StubCaller, workspace: Path) -> None:
    (workspace / "large").write_bytes(bytes(100_000))
    (workspace / "empty").touch()
    os.mkfifo(workspace / "fifo")
    names = ("file", "large", "link", "link/file", "empty", "fifo", "missing", "file/below")
    for most in (4 << 20, 50_000, 0):
        params = {"paths": [workspace / name for name in names], "maxBytes": most}
        inside = await caller.call("fs/getFiles", **params, sandbox=_sandbox(workspace))
        outside = await caller.call("fs/getFiles", **params)
        for entry in (*inside["entries"], *outside["entries"]):
            entry.pop("accessedAtNs", None)
        assert inside == outside
        assert ("dataBase64" in inside["entries"][1]) == (most > 100_000)


async def test_errors_are_those_of_requests_without_a_sandbox(caller: StubCaller, workspace: Path) -> None:
    acts: list[tuple[str, dict[str, Any]]] = [
        ("fs/readFile", {"path": workspace / "missing"}),
        ("fs/readFile", {"path": workspace}),
        ("fs/readDirectory", {"path": workspace / "file"}),
        ("fs/createDirectory", {"path": workspace / "file", "recursive": False}),
        ("fs/writeFile", {"path": workspace / "file" / "below", "dataBase64": ""}),
        ("fs/writeFile", {"path": workspace / "new", "dataBase64": "?"}),
        ("fs/remove", {"path": workspace / "missing", "force": False}),
        ("fs/walk", {"path": workspace, "options": {**_WALK, "maxEntries": 0}}),
        ("fs/copy", {"sourcePath": workspace, "destinationPath": workspace / "x", "recursive": True}),
    ]
    for method, params in acts:
        seen = []
        for sandbox in ({"sandbox": _sandbox(workspace)}, {}):
            with pytest.raises(RpcError) as refused:
                await caller.call(method, **params, **sandbox)
            error = refused.value
            seen.append((error.code, error.message, error.name, error.field))
        assert seen[0] == seen[1], method
    assert not (workspace / "new").exists()


async def test_a_worker_killed_inside_its_namespace_is_an_error_and_the_next_request_has_another(
    caller: StubCaller, launcher: BareLauncher, workspace: Path
) -> None:
    await caller.call("fs/getMetadata", path=workspace, sandbox=_sandbox(workspace))
    inside = _youngest(launcher.started[0].pid)
    assert inside != launcher.started[0].pid
    os.kill(inside, signal.SIGSTOP)
    asked = asyncio.ensure_future(caller.call("fs/getMetadata", path=workspace, sandbox=_sandbox(workspace)))
    await asyncio.sleep(0.05)

    os.kill(inside, signal.SIGKILL)

    with pytest.raises(InternalError, match="fs worker ended"):
        await asked
    assert (await caller.call("fs/getMetadata", path=workspace, sandbox=_sandbox(workspace)))["isDirectory"]
    assert len(launcher.started) == 2


async def test_a_handle_reads_on_when_its_worker_is_gone(
    caller: StubCaller, launcher: BareLauncher, workspace: Path
) -> None:
    await caller.call("fs/open", handleId="h", path=workspace / "file", sandbox=_sandbox(workspace))
    launcher.started[0].kill()

    block = await caller.call("fs/readBlock", handleId="h", offset=0, len=100)

    assert base64.b64decode(block["chunk"]) == b"inside"


async def test_an_unlimited_request_has_no_worker(
    caller: StubCaller, launcher: BareLauncher, workspace: Path
) -> None:
    for permissions in (
        {"type": "disabled"},
        {"type": "external", "network": "restricted"},
        {"type": "managed", "network": "restricted", "file_system": {"type": "unrestricted"}},
    ):
        sandbox = {"permissions": permissions, "windowsSandboxLevel": "disabled"}
        await caller.call("fs/writeFile", path=workspace / "new", dataBase64="", sandbox=sandbox)

    assert launcher.started == []


async def test_a_view_with_the_interpreter_alone_is_enough_for_a_worker(
    mounts: MountTable, workspace: Path
) -> None:
    async def launch(policy: Policy) -> WorkerProcess:
        view: list[str] = ["--tmpfs", "/", "--dev", "/dev"]
        for path in interpreter_paths():
            view += ("--ro-bind", path, path)
        return confined(
            [*view, "--bind", str(workspace), str(workspace), "--proc", "/proc", "--remount-ro", "/"]
        )

    pool = WorkerPool(launch)
    caller = StubCaller(mounts, FileConfinement(pool, None, SmallFiles(mounts)))
    sandbox = _sandbox(workspace)
    try:
        await caller.call("fs/writeFile", path=workspace / "new", dataBase64="QUJD", sandbox=sandbox)
        walked = await caller.call("fs/walk", path=workspace, options=_WALK, sandbox=sandbox)
        await caller.call(
            "fs/copy",
            sourcePath=workspace / "new",
            destinationPath=workspace / "copy",
            recursive=False,
            sandbox=sandbox,
        )
        await caller.call("fs/remove", path=workspace / "new", sandbox=sandbox)
        with pytest.raises(NotFound):
            await caller.call("fs/readFile", path=workspace.parent / "outside" / "file", sandbox=sandbox)
        with pytest.raises(InternalError, match="Read-only file system"):
            await caller.call("fs/createDirectory", path=Path("/made"), sandbox=sandbox)
    finally:
        caller.close()
        await pool.close()

    assert len(walked["entries"]) == 2
    assert sorted(os.listdir(workspace)) == ["copy", "file", "link"]


async def test_a_sandbox_that_cannot_be_made_runs_nothing(mounts: MountTable, workspace: Path) -> None:
    async def launch(policy: Policy) -> WorkerProcess:
        return confined(["--ro-bind", "/does/not/exist", "/"])

    pool = WorkerPool(launch)
    caller = StubCaller(mounts, FileConfinement(pool, None, SmallFiles(mounts)))
    try:
        with pytest.raises(InvalidRequest, match=r"^failed to prepare process sandbox: .*bwrap: .*exist"):
            await caller.call(
                "fs/writeFile", path=workspace / "new", dataBase64="", sandbox=_sandbox(workspace)
            )
    finally:
        caller.close()
        await pool.close()
    assert not (workspace / "new").exists()


def _youngest(pid: int) -> int:
    """The process at the end of the line that begins with one."""
    while children := children_of(pid):
        (pid,) = children
    return pid
