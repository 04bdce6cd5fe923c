"""The view of a long-lived worker of `fs/*` is the same as that of a new sandbox.

The kernel removes a mount together with the covered name, if a process outside removes or replaces that name.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest, RpcError
from execserver.descendants import children_of
from execserver.filesystem import operations
from execserver.filesystem.blocking import BlockingCalls
from execserver.filesystem.descriptors import Descriptors
from execserver.filesystem.mounts import MountTable
from execserver.filesystem.small import SmallFiles
from execserver.fsworker.confined_files import ConfinedFiles, ConfinedRequests
from execserver.fsworker.launch import WorkerLauncher
from execserver.fsworker.pool import PoolTimes, WorkerPool
from execserver.fsworker.process import WorkerProcess
from execserver.launch_spec import LaunchSpec
from execserver.sandbox.options import DaemonPaths, SandboxOptions
from execserver.sandbox.policy import Access, Policy, Rule
from execserver.sandbox.sandboxes import Sandboxes
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import READ_ROOT, WRITE_WORKSPACE, restricted
from tests.sandbox.test_files import READ_ONLY_ERROR, Files
from tests.sandbox_user import remove_tree
from tests.support.fs_workers import policy_for
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, encode

POLICY = restricted(READ_ROOT, WRITE_WORKSPACE)

FULL = {f"ws/{name}/kept": "" for name in (".agents", ".aws")}
"""With these no mount point is needed, and a worker stays for a minute."""

NAMES = (".git", ".agents", ".codex", ".aws")


@pytest.fixture
def files(host: Host, tree: Tree) -> Files:
    tree.add(FULL)
    return Files(host, tree, tree.context(POLICY))


def _make_anew(folder: Path) -> None:
    """As a clone does. On ext4 the new folder has the number of the old one."""
    shutil.rmtree(folder)
    (folder / "hooks").mkdir(parents=True)


def _move_another_there(folder: Path) -> None:
    folder.rename(folder.with_name("old"))
    (folder / "hooks").mkdir(parents=True)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


def _make_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no repository\n")


def _worker(host: Host, before: set[int]) -> set[int]:
    """The server's children that were not there before."""
    return children_of(server_of(host.server.pid, PATIENCE)) - before


def _error(files: Files, path: Path) -> tuple[int, str]:
    return files.error("writeFile", path, dataBase64=encode("evil"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [_make_anew, _move_another_there])
def test_a_protected_name_that_others_make_anew_stays_read_only(
    files: Files, change: Callable[[Path], None], name: str
) -> None:
    folder = files.tree.ws / name
    files.write(files.tree.ws / "new")
    assert _error(files, folder / "made") == READ_ONLY_ERROR

    change(folder)
    files.tree.user.give(files.tree.base)

    assert _error(files, folder / "hooks/pre-commit") == READ_ONLY_ERROR
    assert list((folder / "hooks").iterdir()) == []
    files.write(files.tree.ws / "new")


def test_a_protected_name_that_others_remove_cannot_be_made(files: Files) -> None:
    folder = files.tree.ws / ".git"
    files.write(files.tree.ws / "new")
    shutil.rmtree(folder)
    # The place is taken by a mount point.
    assert _error(files, folder / "config") == READ_ONLY_ERROR
    assert not folder.exists() or os.listdir(folder) == []


def test_a_file_in_the_place_of_a_repository_stays_read_only(files: Files) -> None:
    files.write(files.tree.ws / "new")
    _make_a_file(files.tree.ws / ".git")
    files.tree.user.give(files.tree.base)
    assert _error(files, files.tree.ws / ".git") == READ_ONLY_ERROR
    assert (files.tree.ws / ".git").read_text() == "no repository\n"


def test_a_repository_that_a_file_names_stays_read_only(files: Files) -> None:
    ws = files.tree.ws
    _make_a_file(ws / ".git")
    for name in ("one", "two"):
        (ws / name / "hooks").mkdir(parents=True)
    (ws / ".git").write_text(f"gitdir: {ws}/one\n")
    files.tree.user.give(files.tree.base)
    files.write(ws / "two/hooks/pre-commit")
    assert _error(files, ws / "one/hooks/pre-commit") == READ_ONLY_ERROR

    _make_anew(ws / "one")
    files.tree.user.give(files.tree.base)
    assert _error(files, ws / "one/hooks/pre-commit") == READ_ONLY_ERROR

    (ws / ".git").write_text(f"gitdir: {ws}/two\n")
    assert _error(files, ws / "two/hooks/pre-commit") == READ_ONLY_ERROR
    files.write(ws / "one/hooks/pre-commit")


def test_a_worker_is_kept_whatever_else_happens(host: Host, files: Files) -> None:
    ws = files.tree.ws
    before = _worker(host, set())
    files.write(ws / "new")
    worker = _worker(host, before)
    assert len(worker) == 1

    for number in range(5):
        assert host.shell(files.tree, "echo x > made; mkdir -p a/b", files.sandbox).exit_code == 0
        # Outside, as git does it in a repository, and elsewhere.
        (ws / ".git/index.lock").write_text(str(number))
        (ws / ".git/index.lock").rename(ws / ".git/index")
        (ws / f".git/{number}").mkdir()
        (files.tree.out / f"{number}").write_text("x")
        files.write(ws / f"{number}")
        files.call("remove", ws / f"{number}", recursive=False, force=False)
        assert _worker(host, before) == worker


# -- the pool with real sandboxes, in this process


class Launcher(WorkerLauncher):
    """Starts workers, and runs a function while their sandboxes are made."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        super().__init__(sandboxes, None)
        self.started: list[WorkerProcess] = []
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None
        self.later: Callable[[], None] | None = None

    async def __call__(self, policy: Policy) -> WorkerProcess:
        if self.before is not None:
            self.before()
        worker = await super().__call__(policy)
        self.started.append(worker)
        if self.after is not None:
            self.after()
        if self.later is not None:
            # After the pool has looked again, and before the worker is ready.
            asyncio.get_running_loop().call_soon(self.later)
        return worker


class Scene:
    """A workspace, sandboxes, and a pool of workers."""

    def __init__(self, folder: Path, *, can_hang: bool) -> None:
        self.workspace = folder / "ws"
        self.workspace.mkdir()
        self.policy = policy_for(self.workspace)
        options = SandboxOptions(spool_dir=str(folder / "state"))
        self.sandboxes = Sandboxes(options, DaemonPaths(), {"PATH": os.environ["PATH"]})
        self.launcher = Launcher(self.sandboxes)
        # A worker with mount points should not end by itself.
        self.pool = WorkerPool(self.launcher, can_hang=lambda: can_hang, times=PoolTimes(short_lived=60.0))
        self._calls, self._descriptors = BlockingCalls(), Descriptors()
        self._requests = ConfinedRequests()
        self._mounts = MountTable()

    def fill(self) -> None:
        """Make all protected names, with something in them."""
        for name in NAMES:
            (self.workspace / name / "hooks").mkdir(parents=True)

    async def make(self, path: Path, policy: Policy | None = None) -> None:
        """Make a folder, by a worker."""
        await self._confined(policy or self.policy).run(operations.create_directory, str(path), False, None)

    async def remove(self, path: Path) -> None:
        """Remove a file, by a worker."""
        await self._confined(self.policy).run(operations.remove, str(path), False, False)

    def _confined(self, policy: Policy) -> ConfinedFiles:
        small = SmallFiles(self._mounts)
        return ConfinedFiles(self.pool, policy, self._requests, self._calls, self._descriptors, small)

    async def is_refused(self, path: Path) -> bool:
        with pytest.raises(RpcError) as caught:
            await self.make(path)
        return "Read-only file system" in caught.value.message

    async def run_another(self) -> None:
        """Make the sandbox of a command with the same policy, and let it go again."""
        command = LaunchSpec("/bin/true", ("/bin/true",), "/", {}, tty=False)
        confinement = await asyncio.to_thread(self.sandboxes.prepare, self.policy, command)
        await asyncio.to_thread(self.sandboxes.release, confinement)

    async def close(self) -> None:
        self._requests.close()
        self._calls.close()
        self._descriptors.close()
        await self.pool.close(seconds=30)
        self._mounts.close()
        self.sandboxes.close()


@pytest.fixture(params=[False, True], ids=["looked at by the loop", "looked at in threads"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    folder = tempfile.mkdtemp(prefix="views-", dir="/var/tmp")
    made = Scene(Path(folder), can_hang=request.param)
    yield made
    await made.close()
    remove_tree(folder)


async def test_mount_points_that_come_and_go_replace_no_worker(scene: Scene) -> None:
    async def others() -> None:
        for _ in range(20):
            await scene.run_another()

    for turn in range(3):
        busy = asyncio.create_task(others())
        for number in range(20):
            await scene.make(scene.workspace / f"{turn}.{number}")
            await asyncio.sleep(0)
        await busy
    assert len(scene.launcher.started) == 1
    assert sorted(set(os.listdir(scene.workspace)) & set(NAMES)) == sorted(NAMES)


async def test_a_worker_starts_once_while_the_mount_points_of_others_come_and_go(scene: Scene) -> None:
    async def others() -> None:
        while True:
            await scene.run_another()

    busy = asyncio.create_task(others())
    try:
        for number in range(10):
            policy = policy_for(scene.workspace, scene.workspace / f"missing{number}")
            await scene.make(scene.workspace / f"{number}", policy)
    finally:
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    assert len(scene.launcher.started) == 10


async def test_a_missing_path_that_is_closed_replaces_no_worker_when_its_mount_point_appears(
    scene: Scene,
) -> None:
    scene.fill()
    closed = Rule(str(scene.workspace / "secret"), Access.DENY)
    policy = Policy(unrestricted=False, network=False, rules=(*scene.policy.rules, closed))
    for number in range(5):
        await scene.make(scene.workspace / f"{number}", policy)
    assert len(scene.launcher.started) == 1
    assert os.listdir(closed.path) == []


async def test_a_repository_in_the_place_of_a_mount_point_is_read_only(scene: Scene) -> None:
    git = scene.workspace / ".git"
    await scene.make(scene.workspace / "a")
    git.rmdir()
    (git / "hooks").mkdir(parents=True)
    assert await scene.is_refused(git / "hooks/made")
    assert len(scene.launcher.started) == 2
    await scene.make(scene.workspace / "b")
    assert len(scene.launcher.started) == 2


async def test_a_repository_that_is_made_on_a_mount_point_is_read_only_and_replaces_no_worker(
    scene: Scene,
) -> None:
    git = scene.workspace / ".git"
    await scene.make(scene.workspace / "a")
    (git / "hooks").mkdir()
    assert await scene.is_refused(git / "hooks/made")
    assert len(scene.launcher.started) == 1


@pytest.mark.parametrize("moment", ["before", "after", "later"])
@pytest.mark.parametrize("change", [_make_anew, _remove, _make_a_file])
async def test_a_name_that_changes_while_a_worker_starts_is_read_only_all_the_same(
    scene: Scene, change: Callable[[Path], None], moment: str
) -> None:
    scene.fill()
    git = scene.workspace / ".git"

    def once() -> None:
        setattr(scene.launcher, moment, None)
        change(git)

    setattr(scene.launcher, moment, once)
    await scene.make(scene.workspace / "a")

    if git.is_file():
        with pytest.raises(RpcError, match="Device or resource busy"):
            await scene.remove(git)
    else:
        assert await scene.is_refused(git / "made")
    assert len(scene.launcher.started) == 2


async def test_a_path_that_keeps_changing_is_an_error_and_leaves_nothing_behind(scene: Scene) -> None:
    scene.fill()
    await scene.make(scene.workspace / "a", policy_for(scene.workspace.parent))
    before = len(os.listdir("/proc/self/fd"))
    for moment in ("after", "later"):
        setattr(scene.launcher, moment, lambda: _make_anew(scene.workspace / ".git"))
        with pytest.raises(InvalidRequest, match=r"^failed to prepare process sandbox: .* all the time$"):
            await scene.make(scene.workspace / "b")
        setattr(scene.launcher, moment, None)
    assert scene.pool.workers == 1
    async with asyncio.timeout(30):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.01)
    await scene.make(scene.workspace / "b")
