"""Neither ended nor killed commands leave anything in a workspace."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import DEADLINE, bearers, wait_for
from tests.sandbox.profiles import READ_ROOT, WORKSPACE, at, restricted
from tests.support.wire import Json, ReplyError, path_uri

PROTECTED = (".git", ".agents", ".codex", ".aws")
RUNS = 100
KILLED = 10


def kill(pids: list[int]) -> None:
    """SIGKILL to all of them, as far as they still live."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def daemon_of(host: Host) -> list[int]:
    """The pids of the supervisor and of its server."""
    supervisor = host.server.pid
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    assert children, "the supervisor has no server"
    return [supervisor, *map(int, children)]


def sleepers(host: Host, tree: Tree, token: str, count: int) -> None:
    """Start commands that stay, and wait until every one of them runs."""
    for _ in range(count):
        process = host.start(tree, ["/bin/sh", "-c", f"echo up; exec sleep {token}"], tree.context(WORKSPACE))
        process.wait_output(b"up", DEADLINE)


def test_hundred_runs_of_which_ten_are_killed_with_the_daemon_leave_nothing(
    make_host: Callable[..., Host],
) -> None:
    host = make_host()
    tree = host.tree()
    before = tree.listing()
    for _ in range((RUNS - KILLED) // KILLED):
        running = [host.start(tree, ["/bin/true"], tree.context(WORKSPACE)) for _ in range(KILLED)]
        assert [host.finish(process).exit_code for process in running] == [0] * KILLED
    assert tree.listing() == before

    token = f"600.{secrets.randbits(40)}"
    sleepers(host, tree, token, KILLED)
    during = tree.listing()
    made = {os.path.basename(path) for path in set(during) - set(before)}
    assert {".agents", ".aws"} <= made <= set(PROTECTED), "the missing names need mount points"
    kill(daemon_of(host) + bearers(token))
    wait_for(lambda: not bearers(token), "the end of the killed commands")
    host.restart()
    wait_for(lambda: tree.listing() == before, "the sweep of the next start")
    assert host.shell(tree, "exit 0", tree.context(WORKSPACE)).exit_code == 0
    assert tree.listing() == before


def test_killed_command_leaves_nothing(host: Host, tree: Tree) -> None:
    before, token = tree.listing(), f"600.{secrets.randbits(40)}"
    sleepers(host, tree, token, 3)
    kill(bearers(token))
    wait_for(lambda: not bearers(token), "the end of the killed commands")
    wait_for(lambda: tree.listing() == before, "the removal of the mount points")


def test_terminated_command_leaves_nothing(host: Host, tree: Tree) -> None:
    before = tree.listing()
    process = host.start(tree, ["/bin/sh", "-c", "echo up; sleep 600"], tree.context(WORKSPACE))
    process.wait_output(b"up", DEADLINE)
    process.terminate()
    process.wait_closed()
    wait_for(lambda: tree.listing() == before, "the removal of the mount points")


def test_commands_of_one_workspace_share_its_mount_points(host: Host, tree: Tree) -> None:
    before, sandbox = tree.listing(), tree.context(WORKSPACE)
    script = "echo up; until [ -e go ]; do sleep 0.05; done; echo x > .agents/x && exit 1; rm go"
    waiting = host.start(tree, ["/bin/sh", "-c", script], sandbox)
    waiting.wait_output(b"up", DEADLINE)
    for _ in range(3):
        assert host.shell(tree, "echo x > .agents/x && exit 1; exit 0", sandbox).exit_code == 0
    assert (tree.ws / ".agents").is_dir(), "the command that still runs needs it"
    (tree.ws / "go").touch()
    host.user.give(tree.ws / "go")
    assert host.finish(waiting).exit_code == 0
    wait_for(lambda: tree.listing() == before, "the removal of the mount points")


def test_folder_that_the_user_made_stays(host: Host, tree: Tree) -> None:
    (tree.ws / ".agents").mkdir()
    host.user.give(tree.ws)
    before = tree.listing()
    assert host.shell(tree, "echo x > .agents/x && exit 1; exit 0", tree.context(WORKSPACE)).exit_code == 0
    assert tree.listing() == before


# -- writable roots of other shapes


def test_single_file_can_be_the_only_writable_thing(host: Host, tree: Tree) -> None:
    sandbox = tree.context(restricted(READ_ROOT, at(tree.ws / "a.txt", "write")))
    done = host.shell(tree, "echo new > a.txt && cat a.txt", sandbox)
    assert (done.exit_code, done.output) == (0, b"new\n"), done
    assert (tree.ws / "a.txt").read_text() == "new\n"
    for script in ("echo x > denied.txt", "echo x > new", "rm a.txt", "mv a.txt b.txt"):
        assert host.shell(tree, script, sandbox).exit_code != 0, script
    assert not (tree.ws / "new").exists()


def test_several_workspaces_are_writable_at_once(host: Host, tree: Tree) -> None:
    other = host.tree()
    sandbox = tree.context(WORKSPACE) | {"workspaceRoots": [path_uri(tree.ws), path_uri(other.ws)]}
    script = f"echo 1 > {tree.ws}/new && echo 2 > {other.ws}/new"
    assert host.shell(tree, script, sandbox).exit_code == 0
    assert host.shell(tree, f"echo x > {other.ws}/.git/config", sandbox).exit_code != 0


@pytest.mark.parametrize(
    "name", ["with space", "umlaut-ä", "quote'\"", "star*[x]", "per%20cent", "-dash", "new\nline"]
)
def test_workspace_may_have_any_name(host: Host, tree: Tree, name: str) -> None:
    place = tree.base / name
    tree.ws.rename(place)
    sandbox: Json = tree.context(WORKSPACE) | {"cwd": path_uri(place), "workspaceRoots": [path_uri(place)]}
    script = "echo x > new && ! echo x 2>/dev/null > .git/config && ! mkdir .agents/x 2>/dev/null"
    done = host.shell(tree, script, sandbox, cwd=path_uri(place))
    assert done.exit_code == 0, done
    assert (place / "new").exists()


def test_workspace_may_be_reached_by_a_link_when_the_root_names_what_it_leads_to(
    host: Host, tree: Tree
) -> None:
    tree.add({}, {"alias": "ws"})
    alias = tree.base / "alias"
    sandbox: Json = tree.context(WORKSPACE) | {"cwd": path_uri(alias)}
    with pytest.raises(ReplyError, match=f"name what it leads to, {tree.ws}"):
        host.shell(tree, "true", sandbox | {"workspaceRoots": [path_uri(alias)]}, cwd=path_uri(alias))
    script = f"echo x > {alias}/new && echo y > {tree.ws}/other && ! echo z 2>/dev/null > {alias}/.git/config"
    assert host.shell(tree, script, sandbox, cwd=path_uri(alias)).exit_code == 0
