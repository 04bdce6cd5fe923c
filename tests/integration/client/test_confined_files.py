"""`executor.fs.confined`: every method within a sandbox, with daemons that require one and that do not."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import execclient.filesystem
from execclient import (
    DangerFullAccess,
    Executor,
    FileSystem,
    NotFound,
    OutcomeUnknown,
    Progress,
    ReadOnly,
    Refused,
    SandboxRequired,
    SystemFailure,
    TreeProgress,
    WorkspaceWrite,
    connect,
    sync,
)
from execclient.govern.sandbox import Profile
from tests.support.wire import Server

MIB = 1 << 20

INSIDE_ONLY = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True, deny_read=("**/secret*",))
"""The folder of a test is below /tmp."""

ROOT, TMP = ({"type": "special", "value": {"kind": kind}} for kind in ("root", "slash_tmp"))
MINIMAL = {"type": "special", "value": {"kind": "minimal"}}

Act = Callable[[Any, Path, Path], Any]
"""Calls one method of a file system on a folder, with a folder of this side."""

CHANGES: dict[str, Act] = {
    "write_bytes": lambda fs, at, here: fs.write_bytes(at / "new", b"new"),
    "write_text": lambda fs, at, here: fs.write_text(at / "file", "new"),
    "mkdir": lambda fs, at, here: fs.mkdir(at / "new", mode=0o700),
    "chmod": lambda fs, at, here: fs.chmod(at / "file", 0o600),
    "utime": lambda fs, at, here: fs.utime(at / "file", ns=(1, 2)),
    "remove": lambda fs, at, here: fs.remove(at / "file"),
    "copy": lambda fs, at, here: fs.copy(at / "file", at / "new"),
    "rename": lambda fs, at, here: fs.rename(at / "file", at / "new"),
    "upload": lambda fs, at, here: fs.upload(here / "d" / "small", at / "file", preserve_times=True),
    "upload_tree": lambda fs, at, here: fs.upload_tree(here / "d", at / "new", preserve_times=True),
}
READINGS: dict[str, Act] = {
    "read_bytes": lambda fs, at, here: fs.read_bytes(at / "secret"),
    "read_text": lambda fs, at, here: fs.read_text(at / "secret"),
    "digest": lambda fs, at, here: fs.digest(at / "secret"),
    "download": lambda fs, at, here: fs.download(at / "secret", here / "copy"),
}
LOOKS: dict[str, Act] = {
    "stat": lambda fs, at, here: fs.stat(at / "file"),
    "iterdir": lambda fs, at, here: fs.iterdir(at),
    "scandir": lambda fs, at, here: fs.scandir(at),
    "walk": lambda fs, at, here: fs.walk(at),
    "resolve": lambda fs, at, here: fs.resolve(at / "file"),
    "download_tree": lambda fs, at, here: fs.download_tree(at, here / "copy"),
}
QUESTIONS: dict[str, Act] = {
    "exists": lambda fs, at, here: fs.exists(at / "file"),
    "is_file": lambda fs, at, here: fs.is_file(at / "file"),
    "is_dir": lambda fs, at, here: fs.is_dir(at),
}


def ways_of(acts: dict[str, Act]) -> list[Any]:
    """Each act, and again by blocks what has another way for large files."""
    by_blocks = acts.keys() & {"write_bytes", "write_text", "read_bytes", "read_text"}
    named = [(name, False, name) for name in acts]
    named += [(name, True, f"{name} by blocks") for name in sorted(by_blocks)]
    return [pytest.param(name, blocks, id=text) for name, blocks, text in named]


FILES = {"file": "old", "secret": "s" * 100}


@pytest.fixture(scope="module")
def urls(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A daemon that leaves sandboxes to its clients, and one that requires them."""
    folder = tmp_path_factory.mktemp("confined")
    with (
        Server(f"unix://{folder}/free", env=environment, cwd=folder) as free,
        Server(f"unix://{folder}/strict", "--require-sandbox", env=environment, cwd=folder) as strict,
    ):
        yield {"free": free.url, "strict": strict.url}


@pytest.fixture(params=["free", "strict"])
def url(request: pytest.FixtureRequest, urls: dict[str, str]) -> str:
    """Each of the two."""
    return urls[request.param]


@pytest.fixture
def free(urls: dict[str, str]) -> str:
    """The one that leaves sandboxes to its clients."""
    return urls["free"]


@pytest.fixture
async def executor(url: str) -> AsyncIterator[Executor]:
    """A session with it."""
    async with connect(url) as connected:
        yield connected


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder of this side."""
    (tmp_path / "here" / "d").mkdir(parents=True)
    (tmp_path / "here" / "d" / "small").write_text("small")
    (tmp_path / "here" / "d" / "large").write_bytes(os.urandom(300_000))
    return tmp_path / "here"


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of most tests: with one policy they share the daemon's process for it."""
    return tmp_path_factory.mktemp("space")


@pytest.fixture
def workspace(space: Path, tmp_path: Path) -> Path:
    """A folder in it for this test."""
    return folder_with_files(space / tmp_path.name)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return folder_with_files(tmp_path / "outside")


def folder_with_files(folder: Path) -> Path:
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def state(folder: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Mode, time and content of everything below a folder."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in folder.rglob("*")
        if not path.name.startswith(".")  # the protected names, as long as a sandbox exists
    }


def entries(*granted: tuple[Any, str]) -> Profile:
    """A policy of these entries."""
    listed = [{"path": path, "access": access} for path, access in granted]
    files = {"type": "restricted", "entries": listed}
    return Profile({"type": "managed", "network": "restricted", "file_system": files})


def at(path: Path) -> dict[str, str]:
    return {"type": "path", "path": path.as_uri()}


def test_the_tables_here_have_every_method() -> None:
    public = {name for name in dir(FileSystem) if not name.startswith("_")}
    assert public - {"uri", "confined"} == {*CHANGES, *READINGS, *LOOKS, *QUESTIONS}


@pytest.mark.parametrize(("name", "blocks"), ways_of(CHANGES))
async def test_a_change_is_made_in_the_workspace_and_nowhere_else(
    name: str,
    blocks: bool,
    executor: Executor,
    space: Path,
    workspace: Path,
    outside: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if blocks:
        monkeypatch.setattr(execclient.filesystem, "WHOLE_FILE_BYTES", 1)
    act = CHANGES[name]
    files = executor.fs.confined(INSIDE_ONLY, workspace=space)
    before = state(outside)
    unchanged = state(workspace)

    await act(files, workspace, here)
    assert state(workspace) != unchanged
    with pytest.raises(SystemFailure, match=r"Read-only file system \(os error 30\)") as raised:
        await act(files, outside, here)
    assert str(raised.value.path).startswith(f"{outside}/")
    assert ".part" not in str(raised.value.path)
    with pytest.raises(SystemFailure, match="Read-only file system"):
        await act(executor.fs.confined(ReadOnly(), workspace=space), outside, here)
    assert state(outside) == before
    if "strict" in executor.url:
        with pytest.raises(SandboxRequired, match=r"executor\.fs\.confined\(WorkspaceWrite\(\)\)"):
            await act(executor.fs, outside, here)
        assert state(outside) == before
    else:
        await act(executor.fs, outside, here)
        assert state(outside) != before


@pytest.mark.parametrize(("name", "blocks"), ways_of(READINGS))
async def test_a_denied_file_is_not_read(
    name: str,
    blocks: bool,
    executor: Executor,
    space: Path,
    workspace: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if blocks:
        monkeypatch.setattr(execclient.filesystem, "WHOLE_FILE_BYTES", 1)
    act = READINGS[name]
    files = executor.fs.confined(ReadOnly(deny_read=("**/secret*",)), workspace=space)

    with pytest.raises(Refused, match="Permission denied") as raised:
        await act(files, workspace, here)
    assert isinstance(raised.value, PermissionError)
    assert not (here / "copy").exists()
    assert await files.read_text(workspace / "file") == "old"
    assert await act(executor.fs, workspace, here)


@pytest.mark.parametrize("name", LOOKS)
async def test_what_is_not_in_the_view_is_not_found(
    name: str, executor: Executor, space: Path, workspace: Path, outside: Path, here: Path
) -> None:
    files = executor.fs.confined(entries((MINIMAL, "read"), (at(space), "read")))

    with pytest.raises(NotFound):
        await LOOKS[name](files, outside, here)
    assert await LOOKS[name](files, workspace, here)
    assert await LOOKS[name](executor.fs, outside, here)


@pytest.mark.parametrize("name", QUESTIONS)
async def test_what_is_not_in_the_view_does_not_exist(
    name: str, executor: Executor, space: Path, workspace: Path, outside: Path, here: Path
) -> None:
    files = executor.fs.confined(entries((MINIMAL, "read"), (at(space), "read")))

    assert not await QUESTIONS[name](files, outside, here)
    assert await QUESTIONS[name](files, workspace, here)
    assert await QUESTIONS[name](executor.fs, outside, here)


@pytest.mark.parametrize("old_server", [False, True])
async def test_a_tree_comes_without_its_denied_files(
    executor: Executor, outside: Path, here: Path, old_server: bool
) -> None:
    if old_server:
        executor._session.capabilities -= {"fs/getFiles"}
    files = executor.fs.confined(ReadOnly(deny_read=("**/secret*",)), workspace=outside)

    copied = await files.download_tree(outside, here / "copy")

    assert [(left.path, left.reason) for left in copied.left_out] == [
        (str(outside / "secret"), "Permission denied (os error 13)")
    ]
    assert os.listdir(here / "copy") == ["file"]


@pytest.mark.parametrize("old_server", [False, True])
async def test_a_tree_goes_into_the_workspace_file_by_file_and_in_batches(
    executor: Executor, workspace: Path, outside: Path, here: Path, old_server: bool
) -> None:
    if old_server:
        executor._session.capabilities -= {"fs/putFiles", "fs/getFiles"}
    files = executor.fs.confined(INSIDE_ONLY, workspace=workspace)

    copied = await files.upload_tree(here / "d", workspace / "a" / "b")

    assert (copied.files, copied.left_out) == (2, [])
    assert (workspace / "a" / "b" / "large").read_bytes() == (here / "d" / "large").read_bytes()
    with pytest.raises(SystemFailure, match="Read-only file system"):
        await files.upload_tree(here / "d", outside / "a" / "b")
    assert not (outside / "a").exists()


async def test_one_writable_file_gets_new_content_by_the_temporary_folder(
    executor: Executor, outside: Path, here: Path
) -> None:
    target = outside / "file"
    alone = executor.fs.confined(entries((ROOT, "read"), (at(target), "write")))
    with_temporary = executor.fs.confined(entries((ROOT, "read"), (TMP, "write"), (at(target), "write")))

    await alone.write_text(target, "written in place")
    with pytest.raises(
        SystemFailure, match=r"needs a file in .*outside or, to be written in place, in /tmp"
    ) as raised:
        await alone.upload(here / "d" / "small", target)
    assert raised.value.path == str(target)
    assert target.read_text() == "written in place"
    # The whole folder of a test is below /tmp, so that this one may be replaced.
    await with_temporary.upload(here / "d" / "small", target)
    assert target.read_text() == "small"
    assert sorted(os.listdir(outside)) == ["file", "secret"]


async def test_the_workspace_is_the_daemon_s_folder_unless_another_one_is_named(
    executor: Executor, workspace: Path
) -> None:
    policy = WorkspaceWrite(exclude_tmpdir=True, exclude_slash_tmp=True)
    own = executor.fs.confined(policy)
    near = os.path.relpath(workspace, executor.cwd)

    await own.write_text("in the daemon's folder", "x")
    with pytest.raises(SystemFailure):
        await own.write_text(workspace / "new", "x")
    for named in (near, Path(near), workspace, f"{near}/../{workspace.name}/."):
        other = executor.fs.confined(policy, workspace=named)
        await other.write_text(f"{near}/new", "x")  # relative paths begin where they did
        with pytest.raises(SystemFailure):
            await other.write_text("in the daemon's folder", "y")


async def test_a_policy_in_the_form_of_the_wire_is_sent_as_it_is(
    executor: Executor, workspace: Path, outside: Path
) -> None:
    context = INSIDE_ONLY.context(str(workspace), [str(workspace)])
    assert context is not None
    files = executor.fs.confined(context, workspace="/ignored")

    await files.write_text(workspace / "new", "x")
    with pytest.raises(SystemFailure):
        await files.write_text(outside / "new", "x")


async def test_full_access_limits_nothing(executor: Executor, outside: Path) -> None:
    files = executor.fs.confined(DangerFullAccess())

    if "strict" in executor.url:
        with pytest.raises(SandboxRequired):
            await files.write_text(outside / "new", "x")
    else:
        await files.write_text(outside / "new", "x")
    assert repr(files) == repr(executor.fs)


async def test_mistakes_are_found_before_a_request_is_sent(executor: Executor) -> None:
    fs: Any = executor.fs
    for wrong in (ReadOnly, "read-only", 5):
        with pytest.raises(TypeError, match=r"sandbox is a policy, as ReadOnly\(\)"):
            fs.confined(wrong)
    with pytest.raises(TypeError, match=r"DangerFullAccess\(\)"):
        fs.confined(None)
    for root in ("/", "//", "/tmp/.."):
        with pytest.raises(ValueError, match="pass a folder as workspace"):
            fs.confined(WorkspaceWrite(), workspace=root)
    with pytest.raises(ValueError, match="workspace is empty"):
        fs.confined(WorkspaceWrite(), workspace="")
    with pytest.raises(ValueError, match="have a sandbox already"):
        fs.confined(ReadOnly()).confined(WorkspaceWrite())


async def test_files_show_their_policy(executor: Executor) -> None:
    assert repr(executor.fs.confined(ReadOnly())) == (
        f"<FileSystem cwd={executor.cwd!r} sandbox=ReadOnly(network=False, deny_read=())>"
    )


def test_code_without_a_loop_confines_files_too(url: str, workspace: Path, outside: Path, here: Path) -> None:
    with sync.connect(url) as executor:
        files = executor.fs.confined(INSIDE_ONLY, workspace=workspace)
        assert isinstance(files, sync.FileSystem)
        for name, act in CHANGES.items():
            with pytest.raises(SystemFailure, match="Read-only"):
                act(files, outside, here)
            folder = folder_with_files(workspace / name)
            act(files, folder, here)
        with pytest.raises(PermissionError):
            files.read_text(workspace / "secret")
    ours, core = (inspect.signature(kind.confined) for kind in (sync.FileSystem, FileSystem))
    assert ours.parameters == core.parameters


# -- lost connections


@pytest.fixture
async def free_executor(free: str) -> AsyncIterator[Executor]:
    """A session with the daemon that would serve requests without a sandbox."""
    async with connect(free) as connected:
        yield connected


def cutting(
    executor: Executor, at: int, also: Callable[[], object]
) -> Callable[[Progress | TreeProgress], None]:
    """Cut the connection once, when a transfer has come as far as that."""
    done = False

    def progress(step: Progress | TreeProgress) -> None:
        nonlocal done
        if step.done >= at and not done:
            done = True
            also()
            executor.drop_connection()

    return progress


async def test_a_handle_that_is_opened_again_has_the_sandbox(
    free_executor: Executor, outside: Path, here: Path
) -> None:
    """The link leads to a denied file when the download opens it again."""
    for name in ("allowed", "secret"):
        (outside / name).write_bytes(bytes(30 * MIB))
    (outside / "link").symlink_to("allowed")

    def turn() -> None:
        (outside / "other").symlink_to("secret")
        (outside / "other").rename(outside / "link")

    files = free_executor.fs.confined(ReadOnly(deny_read=("**/secret*",)), workspace=outside)
    with pytest.raises(PermissionError, match=f"^{outside}/link: "):
        await files.download(outside / "link", here / "copy", progress=cutting(free_executor, 3 * MIB, turn))
    assert free_executor.recoveries == 1
    assert not (here / "copy").exists()


async def test_a_confined_download_goes_on_over_a_lost_connection(
    free_executor: Executor, outside: Path, here: Path
) -> None:
    (outside / "large").write_bytes(os.urandom(30 * MIB))
    files = free_executor.fs.confined(ReadOnly(), workspace=outside)

    await files.download(
        outside / "large", here / "copy", progress=cutting(free_executor, 3 * MIB, lambda: None)
    )

    assert (here / "copy").read_bytes() == (outside / "large").read_bytes()
    assert free_executor.recoveries == 1


async def test_a_confined_tree_goes_on_over_a_lost_connection(
    free_executor: Executor, workspace: Path, outside: Path, here: Path
) -> None:
    """A link leads out of the workspace from the cut on: what is sent again must not follow it."""
    for number in range(40):
        (here / "d" / f"large {number}").write_bytes(os.urandom(400_000))
    files = free_executor.fs.confined(INSIDE_ONLY, workspace=workspace)
    moved = workspace / "moved"

    def turn() -> None:
        (workspace / "new").rename(moved)
        (workspace / "new").symlink_to(outside)

    before = state(outside)
    await files.upload_tree(here / "d", workspace / "new", progress=cutting(free_executor, 0, lambda: None))
    assert free_executor.recoveries == 1
    assert {path.name: path.read_bytes() for path in (workspace / "new").iterdir()} == {
        path.name: path.read_bytes() for path in (here / "d").iterdir()
    }
    copied = await files.upload_tree(
        here / "d", workspace / "new", progress=cutting(free_executor, 3 * MIB, turn)
    )
    assert free_executor.recoveries == 2
    assert "Read-only file system (os error 30)" in {left.reason for left in copied.left_out}
    assert state(outside) == before


async def test_a_confined_upload_over_a_lost_connection_is_not_sent_twice(
    free_executor: Executor, workspace: Path, here: Path
) -> None:
    (here / "large").write_bytes(bytes(30 * MIB))
    files = free_executor.fs.confined(INSIDE_ONLY, workspace=workspace)

    with pytest.raises(OutcomeUnknown):
        await files.upload(
            here / "large", workspace / "file", progress=cutting(free_executor, 3 * MIB, lambda: None)
        )

    assert (workspace / "file").read_text() == "old"
    assert sorted(name for name in os.listdir(workspace) if name.endswith(".part")) == []
    with pytest.raises(SystemFailure, match="Read-only"):
        await files.write_text(workspace.parent / "new", "x")


# -- the error of a daemon that requires a sandbox


async def test_the_error_of_a_daemon_that_requires_a_sandbox_has_the_way_out(
    urls: dict[str, str], workspace: Path
) -> None:
    async with connect(urls["strict"]) as executor:
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            r"sandbox=ReadOnly\(\)": partial(executor.run, ["true"]),
            r"sandbox=WorkspaceWrite\(\)": partial(executor.start, ["true"]),
            r"executor\.fs\.confined": partial(executor.fs.mkdir, workspace / "new"),
            "type `disabled`, does not limit files": partial(
                executor.run,
                ["true"],
                sandbox={"permissions": {"type": "disabled"}, "windowsSandboxLevel": "disabled"},
            ),
        }
        for wanted, act in acts.items():
            with pytest.raises(SandboxRequired, match=wanted) as raised:
                await act()
            assert raised.value.code == "sandbox_required"
            assert isinstance(raised.value, Refused)
            copy = pickle.loads(pickle.dumps(raised.value))
            assert (str(copy), copy.message, copy.reason) == (
                str(raised.value), raised.value.message, raised.value.reason
            )  # fmt: skip
            assert "setting require_sandbox" in str(copy)
