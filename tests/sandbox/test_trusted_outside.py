"""Files of one command help no later command to escape, and mislead no program outside that trusts the
workspace."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import DEADLINE
from tests.sandbox.profiles import (
    READ_ONLY,
    READ_ROOT,
    WORKSPACE,
    WORKSPACE_WITH_NETWORK,
    at,
    restricted,
)
from tests.support.wire import Json, ReplyError, path_uri
from tests.unit.sandbox.test_git_files import PLANTS, Plant

NETWORKS = pytest.mark.parametrize(
    "permissions", [WORKSPACE, WORKSPACE_WITH_NETWORK], ids=["offline", "online"]
)


def attempt(host: Host, tree: Tree, script: str, sandbox: Json) -> str:
    """Run a script; returns its output, or the error of the refused start."""
    try:
        return host.shell(tree, script, sandbox).output.decode(errors="replace")
    except ReplyError as refused:
        return refused.message


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")
@NETWORKS
@pytest.mark.parametrize("plant", PLANTS)
def test_git_status_by_the_user_runs_nothing_that_a_command_planted(
    anyones_host: Host, plant: Plant, permissions: Json
) -> None:
    host, tree = anyones_host, anyones_host.tree()
    shutil.rmtree(tree.ws)
    tree.ws.mkdir()
    mark = tree.out / "mark"
    script = plant(tree.ws, mark)
    host.user.give(tree.base)
    attempt(host, tree, script, tree.context(permissions))
    host.shell(tree, "git status")
    assert not mark.exists()
    host.shell(tree, script)
    host.shell(tree, "git status")
    assert mark.exists(), "it works without the sandbox"


@NETWORKS
def test_a_link_that_a_command_planted_is_no_root_of_the_next_policy(
    anyones_host: Host, permissions: Json
) -> None:
    host, tree = anyones_host, anyones_host.tree()
    host.shell(tree, 'ln -s "$PWD/../out" planted', tree.context(permissions))
    planted = tree.ws / "planted"
    assert planted.is_symlink()
    sandbox = tree.context(permissions) | {"workspaceRoots": [path_uri(planted)]}
    said = attempt(host, tree, f"echo x > {planted}/new", sandbox)
    assert not (tree.out / "new").exists()
    assert f"leads through the symbolic link {planted}, which a command may have put there" in said
    write: Json = {"path": path_uri(planted / "new"), "dataBase64": "eA==", "sandbox": sandbox}
    assert host.client.refused("fs/writeFile", write).code == -32600
    assert host.shell(tree, f"echo x > {planted}/new").exit_code == 0
    assert (tree.out / "new").exists()


@NETWORKS
def test_settings_of_the_daemon_are_not_made_in_a_writable_home(
    anyones_host: Host, permissions: Json
) -> None:
    host, tree = anyones_host, anyones_host.tree()
    home = Path(host.env["HOME"])
    sandbox = tree.context(restricted(READ_ROOT, at(home, "write"), network=permissions["network"]))
    script = f"cd {home} && mkdir -p .config/execserver && echo x > .config/execserver/config.toml"
    assert host.shell(tree, f"echo x > {home}/other", sandbox).exit_code == 0
    assert host.shell(tree, script, sandbox).exit_code != 0
    assert not (home / ".config/execserver/config.toml").exists()
    assert host.shell(tree, script).exit_code == 0
    shutil.rmtree(home / ".config")


@NETWORKS
def test_settings_of_the_daemon_are_not_made_when_another_sandbox_has_ended(
    anyones_host: Host, permissions: Json
) -> None:
    """An empty folder stands for the missing file as long as one of the sandboxes needs it."""
    host, tree = anyones_host, anyones_host.tree()
    home = Path(host.env["HOME"])
    settings = home / ".config/execserver/config.toml"
    entries = (READ_ROOT, at(home, "write"))
    sandbox = tree.context(restricted(*entries, network=permissions["network"]))
    assert host.shell(tree, f"mkdir -p {settings.parent}").exit_code == 0
    try:
        # Its mount points below `out`, which the other one does not have, show when it is released.
        earlier = tree.context(restricted(*entries, at(tree.out, "write"), network=permissions["network"]))
        running = host.start(tree, ["/bin/sh", "-c", "echo on; read line"], earlier, pipeStdin=True)
        running.wait_output(b"on", DEADLINE)
        assert settings.is_dir()
        attempts = f"for each in 1 2 3 4 5; do echo x > {settings}; sleep 0.1; done"
        script = f"echo on; read line; {attempts}; test ! -f {settings}"
        later = host.start(tree, ["/bin/sh", "-c", script], sandbox, pipeStdin=True)
        later.wait_output(b"on", DEADLINE)
        running.write("\n", "1")
        running.wait_closed()
        host.client.wait_until(lambda: not (tree.out / ".git").exists(), what="the release of the first")
        later.write("\n", "1")
        assert host.finish(later).exit_code == 0
        assert not settings.is_file()
    finally:
        shutil.rmtree(home / ".config")


LOCK = (
    "import fcntl, os, time\n"
    "held = [os.open(name, os.O_RDONLY) for name in ('.agents', '.git')]\n"
    "[fcntl.flock(each, fcntl.LOCK_EX) for each in held]\n"
    "print('locked', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize("network", ["restricted", "enabled"])
def test_a_command_that_only_reads_holds_up_no_other_by_its_locks(anyones_host: Host, network: str) -> None:
    host, tree = anyones_host, anyones_host.tree()
    (tree.ws / ".agents").mkdir()
    host.user.give(tree.base)
    reading = tree.context(READ_ONLY | {"network": network})
    locking = host.start(tree, ["python3", "-c", LOCK], reading)
    locking.wait_output(b"locked", DEADLINE)
    script = "echo x > new && ! echo x 2>/dev/null > .agents/x"
    assert host.shell(tree, script, tree.context(WORKSPACE)).exit_code == 0
    locking.terminate()
    locking.wait_closed()
