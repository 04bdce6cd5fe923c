"""`execserver run --sandbox`."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.integration.commands.conftest import CommandLine
from tests.support.fs_workers import bubblewrap_works

pytestmark = pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")


def script(execserver: CommandLine, *options: str, code: str) -> tuple[int, str]:
    """Exit status and stderr of a shell script in a workspace."""
    workspace = execserver.folder / "workspace"
    workspace.mkdir(exist_ok=True)
    done = execserver("run", "-w", str(workspace), *options, "--", "sh", "-c", code)
    return done.returncode, done.stderr.decode()


def test_read_only_writes_nothing_and_the_denial_is_named(execserver: CommandLine) -> None:
    file = execserver.folder / "workspace/file"
    status, errors = script(execserver, "--sandbox", "read-only", code=f"cat /etc/passwd; echo > {file}")

    assert status == 2
    assert not file.exists()
    (line,) = [line for line in errors.splitlines() if line.startswith("execserver: ")]
    assert line == (
        f"execserver: likely denied by the sandbox (read-only): {file}; "
        "--sandbox workspace-write allows to write to the working directory and the folders for "
        "temporary files, and with --writable DIR to another one"
    )


def test_workspace_write_writes_to_the_working_directory_and_no_further(
    execserver: CommandLine, outside: Path
) -> None:
    target = outside / f"execserver-test-{os.getpid()}"

    status, errors = script(execserver, "--sandbox", "workspace-write", code=f"echo > file; echo > {target}")

    assert status == 2
    assert (execserver.folder / "workspace/file").exists()
    assert not target.exists()
    assert f"(workspace-write): {target}; --writable DIR allows to write to a directory" in errors


def test_a_protected_name_is_reported_as_that_and_the_named_option_allows_it(
    execserver: CommandLine,
) -> None:
    repository = execserver.folder / "workspace/.git"
    workspace = ("--sandbox", "workspace-write")
    status, errors = script(execserver, *workspace, code="echo > .git/config")

    assert status == 2
    assert f"{repository} is protected" in errors
    option = errors.partition("once it exists, ")[2].partition(" allows it")[0].split()
    assert option == ["--writable", str(repository)]

    repository.mkdir()
    assert script(execserver, *workspace, code="echo > .git/config")[0] == 2
    assert script(execserver, *workspace, *option, code="echo > .git/config") == (0, "")
    assert (repository / "config").exists()


def test_writable_directories_may_be_added(execserver: CommandLine, outside: Path) -> None:
    target = outside / f"execserver-test-{os.getpid()}"
    target.mkdir()
    try:
        options = ("--sandbox", "workspace-write", "--writable", str(target), "--writable", "/tmp")
        status, errors = script(execserver, *options, code=f"echo > {target}/file")
        assert (status, errors) == (0, "")
        assert (target / "file").exists()
    finally:
        (target / "file").unlink(missing_ok=True)
        target.rmdir()


@pytest.mark.parametrize(("options", "reached"), [([], False), (["--network"], True)])
@pytest.mark.parametrize("policy", ["read-only", "workspace-write"])
def test_the_network_is_off_unless_asked_for(
    execserver: CommandLine, policy: str, options: list[str], reached: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection({server.getsockname()!r}, 5)"
        done = execserver("run", "--sandbox", policy, *options, "--", sys.executable, "-c", code)

    assert (done.returncode == 0) == reached, done.stderr
    denied = f"likely denied by the sandbox ({policy}): the network; --network allows it, ".encode()
    assert (denied in done.stderr) != reached


def test_full_access_is_no_sandbox(execserver: CommandLine) -> None:
    assert script(execserver, "--sandbox", "danger-full-access", code="echo > ../file") == (0, "")
    assert (execserver.folder / "file").exists()


def test_json_has_the_denial(execserver: CommandLine) -> None:
    file = f"{execserver.folder}/file"

    done = execserver("run", "--json", "--sandbox", "read-only", "--", "touch", file)

    end = json.loads(done.stdout.splitlines()[-1])
    assert end["exitCode"] == 1
    assert end["denial"]["evidence"][0]["path"] == file


def test_a_command_that_fails_by_itself_was_not_denied_anything(execserver: CommandLine) -> None:
    assert script(execserver, "--sandbox", "read-only", code="exit 3") == (3, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--writable", "/x"], "--writable needs --sandbox workspace-write"),
        (["--sandbox", "read-only", "--writable", "/x"], "--writable needs --sandbox workspace-write"),
        (["--network"], "--network needs --sandbox read-only or workspace-write"),
        (["--sandbox", "danger-full-access", "--network"], "--network needs --sandbox read-only"),
        (["--sandbox", "workspace-write", "--writable", "x"], "'x' is relative; give its absolute path"),
        (["--sandbox", "workspace-write", "--writable", "/"], "use --sandbox danger-full-access"),
        (["--sandbox", "all"], "invalid choice: 'all' (choose from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_options_that_do_not_fit_are_an_error(
    execserver: CommandLine, options: list[str], message: str
) -> None:
    done = execserver("run", *options, "touch", "file")

    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert execserver.processes() == []


def test_a_writable_directory_that_does_not_exist_is_an_error(execserver: CommandLine) -> None:
    options = ("--sandbox", "workspace-write", "--writable", "/nonexistent")

    status, errors = script(execserver, *options, code="true")

    assert status == 125
    assert errors == "execserver: --writable: /nonexistent: no such directory on the daemon's machine\n"


def test_a_daemon_that_cannot_make_a_sandbox_runs_nothing(start_server: StartServer, tmp_path: Path) -> None:
    url = start_server(f"unix://{tmp_path}/s", "--bubblewrap", "/nonexistent/bwrap").url
    execserver = CommandLine(url, tmp_path)

    done = execserver("run", "--sandbox", "workspace-write", "-w", str(tmp_path), "--", "touch", "file")

    assert (done.returncode, done.stdout) == (125, b"")
    assert b"/nonexistent/bwrap" in done.stderr
    assert not (tmp_path / "file").exists()
