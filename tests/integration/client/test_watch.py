"""A watch with a real daemon: changes in order, over cuts and the death of the server."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execclient import Change, Executor, NotFound, ReadOnly, Refused, Watch, connect, sync
from tests.conftest import StartServer
from tests.support.cutting_proxy import Cut, cutting
from tests.support.mirror import Mirror
from tests.support.servers import server_of

PATIENCE = 20.0
CUTS = 20
PACKAGES, MODULES = 60, 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The watched directory."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def until(watch: Watch, *expected: tuple[str, str]) -> list[Change]:
    """The changes up to the first after which each kind and name was reported, in this order."""
    left, seen = list(expected), []
    async with asyncio.timeout(PATIENCE):
        while left:
            seen.append(await anext(watch))
            if (seen[-1].kind, os.path.basename(seen[-1].path)) == left[0]:
                del left[0]
    return seen


async def test_changes_are_reported_from_the_block_on(executor: Executor, root: Path) -> None:
    (root / "before").touch()
    async with executor.watch(root) as watch:
        (root / "a").write_text("a")
        changes = await until(watch, ("created", "a"))
        (root / "a").rename(root / "b")
        moved = (await until(watch, ("renamed", "b")))[-1]
        (root / "b").unlink()
        await until(watch, ("removed", "b"))
        (root / "folder").mkdir()
        folder = (await until(watch, ("created", "folder")))[-1]

        assert watch.mode == "inotify"
        assert watch.path == str(root)
        assert changes[0] == Change("created", f"{root}/a", None, False)
        assert moved == Change("renamed", f"{root}/b", f"{root}/a", False)
        assert folder == Change("created", f"{root}/folder", None, True)
        assert not folder.gap


@pytest.mark.own_daemon
async def test_a_relative_path_begins_in_the_daemons_folder(executor: Executor, root: Path) -> None:
    async with executor.watch("root") as watch:
        (root / "a").touch()
        assert (await until(watch, ("created", "a")))[-1].path == f"{executor.cwd}/root/a"


async def test_the_options_leave_paths_out(executor: Executor, root: Path) -> None:
    for name in ("built", "vendor", "src"):
        (root / name).mkdir()
    (root / ".gitignore").write_text("built/\n*.o\n")

    async def seen(**options: object) -> set[str]:
        async with executor.watch(root, **options) as watch:  # type: ignore[arg-type]
            for name in ("built/a", "vendor/a", "src/a.o", "src/a.c", "end"):
                (root / name).write_text("x")
            found = {change.path for change in await until(watch, ("created", "end"))}
            for name in ("built/a", "vendor/a", "src/a.o", "src/a.c", "end"):
                (root / name).unlink()
        return {path.removeprefix(f"{root}/") for path in found}

    assert await seen(exclude_dirs=["vendor"]) == {"src/a.c", "end"}
    assert {"built/a", "vendor/a", "src/a.o"} <= await seen(ignore_rules=False)
    assert await seen(recursive=False) <= {"src", "vendor", "built", "end"}


async def test_a_batch_has_what_arrived_and_its_wait_has_a_limit(executor: Executor, root: Path) -> None:
    async with executor.watch(root) as watch:
        assert await watch.batch(0.1) == []
        (root / "a").touch()
        assert (await watch.batch(PATIENCE))[0].path == f"{root}/a"


async def test_the_end_of_the_root_ends_the_iteration(executor: Executor, root: Path) -> None:
    async with asyncio.timeout(PATIENCE), executor.watch(root) as watch:
        shutil.rmtree(root)
        async for _ in watch:
            pass

        assert watch.ended == "rootRemoved"
        assert watch.message


async def test_what_cannot_be_watched_is_an_error(executor: Executor, root: Path) -> None:
    with pytest.raises(NotFound):
        async with executor.watch(root / "missing"):
            pass


async def test_what_a_sandbox_may_not_read_is_not_reported(executor: Executor, root: Path) -> None:
    (root / "open").mkdir()
    (root / "secret").mkdir()
    policy = ReadOnly(deny_read=(f"{root}/secret",))

    async with executor.watch(root, sandbox=policy) as watch:
        (root / "secret/key").write_text("k")
        (root / "open/a").write_text("a")
        seen = await until(watch, ("created", "a"))

    assert not [change for change in seen if "key" in change.path]
    with pytest.raises(Refused):
        async with executor.watch(root / "secret", sandbox=policy):
            pass


async def test_watches_of_a_session_do_not_disturb_each_other(executor: Executor, root: Path) -> None:
    for name in ("one", "two"):
        (root / name).mkdir()
    async with executor.watch(root / "one") as one:
        async with executor.watch(root / "two") as two:
            (root / "one/a").touch()
            (root / "two/b").touch()
            assert {change.path for change in await until(two, ("created", "b"))} == {f"{root}/two/b"}
        (root / "two/c").touch()
        (root / "one/d").touch()
        paths = {change.path for change in await until(one, ("created", "a"), ("created", "d"))}

    assert paths == {f"{root}/one/a", f"{root}/one/d"}


def test_code_without_an_event_loop_gets_the_same(url: str, root: Path) -> None:
    with sync.connect(url) as executor, executor.watch(root) as watch:
        (root / "a").touch()
        assert next(watch) == Change("created", f"{root}/a", None, False)
        (root / "b").touch()
        while (batch := watch.batch(PATIENCE))[-1].path != f"{root}/b":
            pass
        assert batch[-1].kind in ("created", "modified")
        assert watch.batch(0) == watch.batch(0.05) == []
        shutil.rmtree(root)
        assert list(watch)
        assert (watch.mode, watch.ended) == ("inotify", "rootRemoved")


# -- cuts


def git(folder: Path, *arguments: str) -> None:
    """Run git, with no settings of this machine."""
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    for role in ("AUTHOR", "COMMITTER"):
        settings |= {f"GIT_{role}_NAME": "x", f"GIT_{role}_EMAIL": "x@example.org"}
    subprocess.run(["git", *arguments], cwd=folder, env=settings, check=True, capture_output=True)


@pytest.fixture
def repository(root: Path) -> Path:
    """A repository with the commits `old` and `new`, which differ in more than 3,000 files."""
    git(root, "init", "--quiet")
    for package in range(PACKAGES):
        folder = root / f"package{package}"
        folder.mkdir()
        for module in range(MODULES):
            (folder / f"module{module}.py").write_text(f"VALUE = {package * module}\n" * 5)
    (root / "link").symlink_to("package0")
    commit(root, "old")
    for package in range(PACKAGES):
        folder = root / f"package{package}"
        for module in range(0, MODULES, 3):
            (folder / f"module{module}.py").write_text(f"VALUE = {package + module}\n")
            (folder / f"module{module + 1}.py").unlink()
        if package % 5 == 0:
            folder.rename(root / f"moved{package}")
        elif package % 5 == 1:
            shutil.rmtree(folder)
            folder.write_text("a file in place of a directory\n")
        else:
            (folder / "deep" / "er").mkdir(parents=True)
            for module in range(10):
                (folder / "deep" / "er" / f"new{module}.py").write_text(f"# {module}\n")
            (folder / "module2.py").chmod(0o755)
    (root / "link").unlink()
    (root / "link").symlink_to("package2")
    commit(root, "new")
    return root


def commit(root: Path, name: str) -> None:
    """Commit everything, under a tag."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", name)
    git(root, "tag", name)


def by_bytes() -> Callable[[], Cut | None]:
    """A plan that cuts so many connections after some kilobytes, wherever a message may be."""
    chance = random.Random(28)
    plans: Iterator[Cut] = (("to client", chance.randrange(12_000, 30_000)) for _ in range(CUTS))
    return lambda: next(plans, None)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("shared_url", "within"), [("unix", "messages"), ("ws", "changes")], indirect=["shared_url"]
)
async def test_a_checkout_under_cuts_is_followed_to_the_same_tree(
    shared_url: str, repository: Path, tmp_path: Path, within: str
) -> None:
    plan = by_bytes() if within == "messages" else lambda: None
    changed = subprocess.run(
        ["git", "diff", "--name-only", "--no-renames", "old", "new"],
        cwd=repository,
        check=True,
        capture_output=True,
    ).stdout.count(b"\n")
    async with (
        cutting(shared_url, tmp_path, plan) as proxy,
        connect(proxy.url) as executor,
        executor.watch(repository, exclude_dirs=[".git"]) as watch,
    ):
        mirror = Mirror(repository, exclude=".git")
        assert not mirror.differences()
        checkout = asyncio.create_task(asyncio.to_thread(git, repository, "checkout", "--quiet", "old"))
        cuts, end = 0, time.monotonic() + 60
        while (
            (batch := await watch.batch(2.0))
            or not checkout.done()
            or (mirror.differences() and time.monotonic() < end)
        ):
            for change in batch:
                mirror.apply(change)
                if within == "changes" and cuts < CUTS and mirror.changes % 100 == 0:
                    cuts += proxy.cut()
                    while executor.recoveries < cuts:
                        await asyncio.sleep(0.001)
        await checkout

        assert changed >= 3000
        assert proxy.cuts == CUTS or cuts >= CUTS
        assert executor.recoveries >= CUTS
        assert mirror.differences() == []
        print(f"{mirror.changes} changes, {mirror.rescans} rescans, {executor.recoveries} recoveries")


async def test_after_the_death_of_the_server_there_is_a_gap_and_the_watch_goes_on(
    start_server: StartServer, tmp_path: Path, root: Path
) -> None:
    server = start_server(f"unix://{tmp_path}/s")
    async with connect(server.url) as executor, executor.watch(root) as watch:
        mirror = Mirror(root)
        (root / "before").touch()
        for change in await until(watch, ("created", "before")):
            mirror.apply(change)
        os.kill(server_of(server.pid, PATIENCE), signal.SIGKILL)
        (root / "meanwhile").touch()
        async with asyncio.timeout(PATIENCE):
            while not (change := await anext(watch)).gap:
                mirror.apply(change)
        assert change == Change("gap", str(root), None, True)
        mirror.apply(change)
        (root / "after").touch()
        for change in await until(watch, ("created", "after")):
            mirror.apply(change)

        assert mirror.differences() == []
        assert mirror.rescans == 1
