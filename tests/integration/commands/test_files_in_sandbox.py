"""`execserver cp --sandbox` and `execserver patch --sandbox`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.integration.commands.conftest import CommandLine
from tests.sandbox_user import remove_tree
from tests.support.fs_workers import bubblewrap_works

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")

READ_ONLY = ("--sandbox", "read-only")
WORKSPACE = ("--sandbox", "workspace-write")

ADDED = "*** Begin Patch\n*** Add File: new\n+new\n*** End Patch\n"


@pytest.fixture
def strict(execserver: CommandLine, start_server: StartServer) -> CommandLine:
    """The command line, with a daemon that requires sandboxes."""
    server = start_server(f"unix://{execserver.folder}/strict", "--require-sandbox")
    return CommandLine(server.url, execserver.folder)


@pytest.fixture
def target(outside: Path) -> Iterator[Path]:
    """A path in a folder that no policy makes writable."""
    path = outside / f"execserver-test-{os.getpid()}"
    yield path
    if path.is_dir():
        remove_tree(path)
    path.unlink(missing_ok=True)


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder in the daemon's working directory."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    return tmp_path / "there"


def test_a_copy_changes_what_its_policy_allows(execserver: CommandLine, there: Path, target: Path) -> None:
    (execserver.folder / "file").write_text("new")

    refused = execserver("cp", *READ_ONLY, "file", f":{there}")
    assert (refused.returncode, (there / "file").read_text()) == (125, "old")
    assert f":{there}/file: Read-only file system".encode() in refused.stderr
    assert execserver("cp", *WORKSPACE, "file", f":{target}").returncode == 125
    assert not target.exists()
    assert execserver("cp", *WORKSPACE, "file", f":{there}").returncode == 0
    assert (there / "file").read_text() == "new"
    back = execserver("cp", *READ_ONLY, f":{there}/file", "-")
    assert (back.returncode, back.stdout) == (0, b"new")
    assert execserver("cp", *READ_ONLY, f":{there}/file", f":{there}/copy").returncode == 125
    assert execserver("cp", *WORKSPACE, f":{there}/file", f":{there}/copy").returncode == 0
    for free in ((), ("--sandbox", "danger-full-access")):
        target.unlink(missing_ok=True)
        assert execserver("cp", *free, "file", f":{target}").returncode == 0
        assert target.read_text() == "new"


def test_directories_are_copied_in_a_sandbox(execserver: CommandLine, there: Path, target: Path) -> None:
    tree = execserver.folder / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "small").write_text("small")
    (tree / "large").write_bytes(os.urandom(300_000))

    for options, destination in ((READ_ONLY, there / "no"), (WORKSPACE, target)):
        done = execserver("cp", "-r", *options, "tree", f":{destination}")
        assert done.returncode == 125
        assert f":{destination}: Read-only file system".encode() in done.stderr
        assert not destination.exists()
    assert execserver("cp", "-r", *WORKSPACE, "tree", f":{there}").returncode == 0
    assert execserver("cp", "-r", *READ_ONLY, f":{there}/tree", "back").returncode == 0
    for copy in (there / "tree", execserver.folder / "back"):
        assert (copy / "sub" / "small").read_text() == "small"
        assert (copy / "large").read_bytes() == (tree / "large").read_bytes()


def test_other_directories_are_writable_by_their_option(
    execserver: CommandLine, there: Path, target: Path
) -> None:
    (execserver.folder / "file").write_text("new")
    target.mkdir()
    named = (*WORKSPACE, "--writable", str(target))
    assert execserver("cp", *named, "file", f":{target}").returncode == 0
    assert (target / "file").read_text() == "new"
    missing = execserver("cp", *WORKSPACE, "--writable", f"{target}/no", "file", f":{there}")
    assert missing.returncode == 125
    assert f"--writable: {target}/no: no such directory on the daemon's machine" in missing.stderr.decode()


@pytest.mark.parametrize("command", [("cp", "x", ":y"), ("patch",)], ids=["cp", "patch"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--writable", "/tmp"), "--writable needs --sandbox workspace-write"),
        ((*READ_ONLY, "--writable", "/tmp"), "--writable needs --sandbox workspace-write"),
        ((*WORKSPACE, "--writable", "tmp"), "'tmp' is relative"),
        ((*WORKSPACE, "--writable", "/"), "'/' is everything"),
        (("--sandbox", "none"), "invalid choice: 'none'"),
    ],
)
def test_wrong_options_are_found_before_anything_is_done(
    execserver: CommandLine, command: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    done = execserver(*command, *options, data=b"")

    assert done.returncode == 2
    assert said in done.stderr.decode()


def test_a_daemon_whose_folder_is_the_root_needs_a_named_directory(
    execserver: CommandLine, there: Path, start_server: StartServer
) -> None:
    (execserver.folder / "file").write_text("new")
    at_root = CommandLine(start_server(f"unix://{there}/root", cwd=Path("/")).url, execserver.folder)

    refused = at_root("cp", *WORKSPACE, "file", f":{there}")
    assert (refused.returncode, (there / "file").read_text()) == (125, "old")
    assert b"name the directories that may be written with --writable" in refused.stderr
    assert at_root("cp", *WORKSPACE, "--writable", str(there), "file", f":{there}").returncode == 0
    assert (there / "file").read_text() == "new"
    added = at_root(
        "patch", *WORKSPACE, "--writable", str(there), data=ADDED.replace("new", f"{there}/new").encode()
    )
    assert (added.returncode, added.stderr) == (0, b"")


def test_a_patch_changes_what_its_policy_allows(execserver: CommandLine, there: Path, target: Path) -> None:
    at = ("patch", "--cwd", str(there))

    refused = execserver(*at, *READ_ONLY, "--json", data=ADDED.encode())
    assert (refused.returncode, os.listdir(there)) == (1, ["file"])
    assert "Read-only file system" in json.loads(refused.stdout)["error"]["message"]
    beyond = execserver(*at, *WORKSPACE, data=ADDED.replace("new", str(target), 1).encode())
    assert (beyond.returncode, target.exists()) == (1, False)
    applied = execserver(*at, *WORKSPACE, data=ADDED.encode())
    assert (applied.returncode, applied.stderr) == (0, b"")
    assert (there / "new").read_text() == "new\n"
    free = execserver(*at, data=ADDED.replace("new", str(target), 1).encode())
    assert (free.returncode, target.exists()) == (0, True)


def test_a_daemon_that_requires_a_sandbox_names_the_option(strict: CommandLine, there: Path) -> None:
    (strict.folder / "file").write_text("new")
    (strict.folder / "tree").mkdir()
    commands: list[tuple[str, ...]] = [
        ("cp", "file", f":{there}/new"),
        ("cp", "-r", "tree", f":{there}/new"),
        ("cp", f":{there}/file", f":{there}/new"),
        ("cp", "--sandbox", "danger-full-access", "file", f":{there}/new"),
        ("patch", "--cwd", str(there)),
        ("run", "--", "touch", f"{there}/new"),
    ]
    for command in commands:
        done = strict(*command, data=ADDED.encode())
        assert done.returncode == (1 if command[0] == "patch" else 125)
        assert b"use --sandbox read-only or --sandbox workspace-write" in done.stderr, command
        assert b"setting require_sandbox" in done.stderr
        assert b"confined" not in done.stderr  # that is for programs
    assert os.listdir(there) == ["file"]

    assert strict("cp", *WORKSPACE, "file", f":{there}/new").returncode == 0
    assert strict("cp", "-r", *WORKSPACE, "tree", f":{there}/tree").returncode == 0
    assert strict("patch", *WORKSPACE, "--cwd", str(there / "tree"), data=ADDED.encode()).returncode == 0
    # What only reads needs no option.
    assert strict("cp", f":{there}/new", "-").stdout == b"new"
    assert strict("cp", "-r", f":{there}/tree", "back").returncode == 0
    assert (strict.folder / "back" / "new").read_text() == "new\n"
