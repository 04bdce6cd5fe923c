"""Patches on the files of a real daemon."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from execclient import Executor
from execclient.connection.connection import Json
from execclient.patch import (
    Applied,
    PatchConflict,
    PatchError,
    PatchFileError,
    PatchMismatch,
    TurnDiff,
    apply,
    parse_patch,
    plan_at,
)
from tests.support.fs_workers import bubblewrap_works


class OneByOne:
    """The same executor, as a server that has no transactions."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.capabilities = executor.capabilities - {"fs/applyEdits"}

    async def call(self, method: str, params: Mapping[str, Json], *, limit: float | None = None) -> Json:
        return await self._executor.call(method, params, limit=limit)


@pytest.fixture(params=["as it is", "one by one"])
def server(request: pytest.FixtureRequest, executor: Executor) -> Executor | OneByOne:
    """The daemon, with and without the transactions that it may have."""
    return OneByOne(executor) if request.param == "one by one" else executor


async def patched(
    server: Executor | OneByOne, tree: Path, *lines: str, sandbox: Mapping[str, Json] | None = None
) -> Applied:
    patch = parse_patch("\n".join(["*** Begin Patch", *lines, "*** End Patch"]))
    plan = await plan_at(server, patch, cwd=str(tree), sandbox=sandbox)
    return await apply(plan, server, sandbox=sandbox)


@pytest.mark.parametrize("kind", ["as it is", "one by one"])
async def test_files_are_added_changed_moved_and_deleted(
    any_executor: Executor, kind: str, tree: Path
) -> None:
    server = OneByOne(any_executor) if kind == "one by one" else any_executor
    (tree / "script").write_bytes(b"one\r\ntwo")
    (tree / "script").chmod(0o755)
    (tree / "gone").write_text("x\n")
    (tree / "old").write_text("name = 1\n")
    turn = TurnDiff(str(tree))

    applied = await patched(
        server,
        tree,
        "*** Add File: a/b/grün",
        "+ü",
        "*** Update File: script",
        "-two",
        "+zwei",
        "*** Update File: old",
        "*** Move to: c/new",
        "-name = 1",
        "+name = 2",
        "*** Delete File: gone",
    )
    turn.add(applied.edits)

    found = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert found == {"a/b/grün": "ü\n".encode(), "script": b"one\r\nzwei", "c/new": b"name = 2\n"}
    assert stat.S_IMODE((tree / "script").stat().st_mode) == 0o755
    assert applied.text == ("Success. Updated the following files:\nA a/b/grün\nM script\nM c/new\nD gone\n")
    assert {file.path: file.sha256 for file in applied.files} == {
        **{str(tree / name): hashlib.sha256(content).hexdigest() for name, content in found.items()},
        str(tree / "gone"): None,
    }
    assert "rename from old\nrename to c/new\n" in turn.text


async def test_a_link_stays_a_link(server: Executor | OneByOne, tree: Path) -> None:
    (tree / "target").write_text("a\n")
    (tree / "link").symlink_to("target")

    await patched(server, tree, "*** Update File: link", "-a", "+b")

    assert (tree / "link").is_symlink()
    assert (tree / "target").read_text() == "b\n"


async def test_a_file_moved_onto_a_link_to_itself_is_not_lost(
    server: Executor | OneByOne, tree: Path
) -> None:
    (tree / "file").write_text("a\n")
    (tree / "link").symlink_to("file")

    await patched(server, tree, "*** Update File: file", "*** Move to: link", "-a", "+b")

    assert (tree / "file").read_text() == (tree / "link").read_text() == "b\n"


async def test_a_patch_of_which_one_file_does_not_fit_changes_none(
    server: Executor | OneByOne, tree: Path
) -> None:
    (tree / "f").write_text("a\n")
    (tree / "g").write_text("first\nsecond\n")

    with pytest.raises(PatchMismatch) as caught:
        await patched(
            server, tree, "*** Update File: f", "-a", "+b", "*** Update File: g", " first", "-zweite"
        )

    assert (tree / "f").read_text() == "a\n"
    assert str(caught.value) == f"Failed to find expected lines in {tree}/g:\nfirst\nzweite"
    assert caught.value.repair.candidates[0].line == 1


async def test_a_file_that_changed_after_it_was_looked_at_is_left_alone(
    server: Executor | OneByOne, tree: Path
) -> None:
    (tree / "f").write_text("a\n")
    patch = parse_patch("*** Begin Patch\n*** Update File: f\n-a\n+b\n*** End Patch")
    plan = await plan_at(server, patch, cwd=str(tree))
    (tree / "f").write_text("a\nand more\n")

    with pytest.raises(PatchConflict):
        await apply(plan, server)

    assert (tree / "f").read_text() == "a\nand more\n"


async def test_a_patch_that_comes_twice_is_done_once(server: Executor | OneByOne, tree: Path) -> None:
    (tree / "f").write_text("top\nold value\n")
    lines = ("*** Update File: f", " top", "-old value", "+new value", "*** Add File: g", "+g")
    await patched(server, tree, *lines)

    again = await patched(server, tree, *lines)

    assert again.already_applied
    assert (tree / "f").read_text() == "top\nnew value\n"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("*** Update File: d", "-a"),
            "Failed to read file to update {tree}/d: path `{tree}/d` is not a file",
        ),
        (
            ("*** Update File: no", "-a"),
            "Failed to read file to update {tree}/no: No such file or directory (os error 2)",
        ),
        (("*** Delete File: d",), "Failed to read {tree}/d: path `{tree}/d` is not a file"),
        (("*** Delete File: no",), "Failed to read {tree}/no: No such file or directory (os error 2)"),
        (("*** Add File: d", "+a"), "Failed to write file {tree}/d"),
        (("*** Add File: f/g", "+a"), "Failed to write file {tree}/f/g"),
    ],
)
async def test_what_is_no_file_is_told_in_the_words_of_the_reference(
    executor: Executor, tree: Path, lines: tuple[str, ...], message: str
) -> None:
    (tree / "d").mkdir()
    (tree / "f").write_text("")

    with pytest.raises(PatchFileError) as caught:
        await patched(OneByOne(executor), tree, *lines)

    assert str(caught.value) == message.format(tree=tree)


def confined_to(folder: Path) -> dict[str, Any]:
    """Everything may be read, and this written."""
    return {
        "permissions": {
            "type": "managed",
            "network": "restricted",
            "file_system": {
                "type": "restricted",
                "entries": [
                    {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
                    {"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": "write"},
                ],
            },
        },
        "workspaceRoots": [f"file://{folder}"],
        "windowsSandboxLevel": "disabled",
    }


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")
async def test_a_patch_stays_within_its_sandbox(
    server: Executor | OneByOne, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("a\n")
    sandbox = confined_to(tree)

    await patched(server, tree, "*** Add File: inside/f", "+a", sandbox=sandbox)
    with pytest.raises(PatchFileError):
        await patched(server, tree, "*** Update File: ../outside", "-a", "+b", sandbox=sandbox)

    assert (tree / "inside" / "f").read_text() == "a\n"
    assert (tmp_path / "outside").read_text() == "a\n"


@pytest.fixture
def mounted(tree: Path) -> Iterator[Path]:
    """A file that is a mount point, as /etc/hosts is in containers."""
    if os.geteuid() != 0:
        pytest.skip("a bind mount in this namespace needs root")
    (tree / "elsewhere").write_text("old\nhosts\n")
    (tree / "hosts").touch()
    subprocess.run(["mount", "--bind", tree / "elsewhere", tree / "hosts"], check=True)
    yield tree / "hosts"
    subprocess.run(["umount", tree / "hosts"], check=True)


HOSTS = ["*** Update File: hosts", "@@", "-old", "+new", " hosts"]


async def test_a_mount_point_is_patched_in_place_and_that_is_told(
    server: Executor | OneByOne, tree: Path, mounted: Path
) -> None:
    inode = mounted.stat().st_ino
    applied = await patched(server, tree, "*** Add File: new", "+x", *HOSTS)

    assert (mounted.read_text(), (tree / "new").read_text()) == ("new\nhosts\n", "x\n")
    assert mounted.stat().st_ino == inode
    assert not applied.was_atomic
    if isinstance(server, Executor):
        assert applied.in_place == (str(mounted),)
        assert applied.text.endswith(f"Written in place, since it cannot be replaced: {mounted}\n")
    assert sorted(os.listdir(tree)) == ["elsewhere", "hosts", "new"]


async def test_a_mount_point_gets_its_content_back_when_the_rest_fails(
    executor: Executor, tree: Path, mounted: Path
) -> None:
    (tree / "gone").write_text("x\n")
    patch = parse_patch("\n".join(["*** Begin Patch", *HOSTS, "*** Delete File: gone", "*** End Patch"]))
    plan = await plan_at(executor, patch, cwd=str(tree))
    (tree / "gone").unlink()

    with pytest.raises(PatchError):
        await apply(plan, executor)

    assert mounted.read_text() == "old\nhosts\n"


async def test_several_mount_points_and_a_read_only_one(
    executor: Executor, tree: Path, mounted: Path
) -> None:
    (tree / "fixed").write_text("old\nhosts\n")
    for option in ("bind", "remount,bind,ro"):
        source = [tree / "elsewhere"] if option == "bind" else []
        subprocess.run(["mount", "-o", option, *source, tree / "fixed"], check=True)
    try:
        fixed = ["*** Update File: fixed", *HOSTS[1:]]
        with pytest.raises(PatchFileError, match="Read-only file system"):
            await patched(executor, tree, *HOSTS, *fixed)
        assert mounted.read_text() == "old\nhosts\n"
    finally:
        subprocess.run(["umount", tree / "fixed"], check=True)
