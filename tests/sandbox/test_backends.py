"""Sandboxes without bubblewrap, and with a bubblewrap that stops working."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox import landlock
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import (
    READ_ONLY,
    READ_ROOT,
    WORKSPACE,
    WORKSPACE_WITH_NETWORK,
    WORKSPACE_WITHOUT_TMP,
    at,
    restricted,
    unrestricted,
)
from tests.support.wire import Json, ReplyError, decode, encode, path_uri

MakeHost = Callable[..., Host]

# The real one, until a file appears beside it.
FICKLE = """\
#!/bin/sh
if [ -e {folder}/broken ]; then
  case " $* " in *" --version "* | *" --help "*) exec {bwrap} "$@" ;; esac
  echo "bwrap: Creating new namespace failed: Operation not permitted" >&2
  exit 1
fi
exec {bwrap} "$@"
"""

needs_landlock = pytest.mark.skipif(
    landlock.unavailable() is not None, reason=f"the kernel: {landlock.unavailable()}"
)


@pytest.fixture
def without(make_host: MakeHost, tmp_path: Path) -> Callable[..., Host]:
    """A daemon that has no bubblewrap."""
    return lambda *flags: make_host("--bubblewrap", str(tmp_path / "none"), *flags)


def test_landlock_is_not_used_unless_it_is_allowed(without: Callable[..., Host]) -> None:
    host = without()
    with pytest.raises(ReplyError, match="failed to prepare process sandbox"):
        host.shell(host.tree(), "true", host.tree().context(READ_ONLY))


@needs_landlock
def test_landlock_confines_what_it_can_state(without: Callable[..., Host]) -> None:
    host = without("--allow-landlock")
    tree = host.tree()
    read_only = tree.context(READ_ONLY)
    assert host.shell(tree, "cat a.txt", read_only).exit_code == 0
    assert host.shell(tree, "exit 7", read_only).exit_code == 7
    for act in ("echo x > new", f"echo x > {tree.out}/new", "rm a.txt", "mkdir folder", "mv a.txt b.txt"):
        assert host.shell(tree, act, read_only).exit_code != 0, act
    assert host.python(tree, "import socket; socket.socket(socket.AF_INET)", read_only).exit_code != 0
    assert not (tree.ws / "new").exists()
    assert (tree.ws / "a.txt").exists()
    for act in ("echo x > new", f"echo x > {tree.out}/new", "mkdir folder", "mv a.txt b.txt"):
        assert host.shell(tree, act).exit_code == 0, act


@needs_landlock
def test_landlock_confines_a_terminal_and_ends_what_it_leaves_behind(without: Callable[..., Host]) -> None:
    host = without("--allow-landlock")
    tree = host.tree()
    done = host.shell(tree, "test -t 0 && echo x > new; exit 5", tree.context(READ_ONLY), tty=True)
    assert done.exit_code == 5
    assert not (tree.ws / "new").exists()
    (tree.ws / "pid").touch()
    allowed = tree.context(restricted(READ_ROOT, at(tree.ws / "pid", "write")))
    assert host.shell(tree, "sleep 600 & echo $! > pid", allowed).exit_code == 0
    pid = (tree.ws / "pid").read_text().strip()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.02)


OF_OTHERS = {
    "limits": "prlimit --nofile=100:200 --pid {pid}",
    "the limit of processor time": "prlimit --cpu=100000 --pid {pid}",
    "priority": "renice -n 5 -p {pid}",
    "priority of a group": "renice -n 5 -g {pid}",
    "priority on disks": "ionice -c 3 -p {pid}",
    "processors": "taskset -p 0x1 {pid}",
    "scheduling": "chrt --batch -p 0 {pid}",
}
"""Operations of a command on another process of its user."""


@needs_landlock
def test_landlock_leaves_limits_and_priorities_of_other_processes_alone(without: Callable[..., Host]) -> None:
    host = without("--allow-landlock")
    tree = host.tree()
    read_only = tree.context(READ_ONLY)
    pid = host.victim.pid
    for what, act in OF_OTHERS.items():
        confined = host.shell(tree, act.format(pid=pid), read_only)
        assert confined.exit_code != 0, what
        assert b"permitted" in confined.output, (what, confined)
        assert host.shell(tree, act.format(pid=pid)).exit_code == 0, what
    own = "ulimit -n 100 && nice true && ionice -c 3 true && chrt --batch 0 true && prlimit --pid $$"
    assert host.shell(tree, own, read_only).exit_code == 0


@needs_landlock
def test_landlock_refuses_what_it_cannot_state(without: Callable[..., Host]) -> None:
    host = without("--allow-landlock")
    tree = host.tree()
    for permissions in (WORKSPACE, WORKSPACE_WITHOUT_TMP, restricted(READ_ROOT, at(tree.out, "deny"))):
        with pytest.raises(ReplyError, match="Landlock cannot") as caught:
            host.shell(tree, "touch ran", tree.context(permissions))
        assert caught.value.code == -32600
    assert not (tree.ws / "ran").exists()


@needs_landlock
def test_file_requests_are_confined_by_landlock(without: Callable[..., Host]) -> None:
    host = without("--allow-landlock")
    tree = host.tree()
    sandbox = tree.context(READ_ONLY)
    read = host.client.call("fs/readFile", {"path": path_uri(tree.ws / "a.txt"), "sandbox": sandbox})
    assert decode(read["dataBase64"]) == (tree.ws / "a.txt").read_bytes()
    with pytest.raises(ReplyError, match="os error"):
        host.client.call(
            "fs/writeFile",
            {"path": path_uri(tree.ws / "new"), "dataBase64": encode("x"), "sandbox": sandbox},
        )
    assert not (tree.ws / "new").exists()


@pytest.mark.parametrize("flags", [(), ("--allow-landlock",)])
def test_a_managed_network_needs_bubblewrap(without: Callable[..., Host], flags: tuple[str, ...]) -> None:
    host = without(*flags)
    tree = host.tree()
    for permissions in (READ_ONLY, unrestricted()):
        params = host.client.start_params(
            ["/bin/touch", str(tree.out / "made")],
            cwd=path_uri(tree.ws),
            sandbox=tree.context(permissions),
            enforceManagedNetwork=True,
            networkProxy={"proxy": {"enabled": True}},
        )
        failure = host.client.refused("process/start", params)
        assert failure.code == -32600
        assert "install bubblewrap" in failure.message
    assert not (tree.out / "made").exists()


def test_a_limit_on_the_network_alone_needs_no_bubblewrap(without: Callable[..., Host]) -> None:
    host = without()
    tree = host.tree()
    for permissions in (unrestricted(), {"type": "external", "network": "restricted"}):
        sandbox = tree.context(permissions)
        act = "import socket; socket.socket(socket.AF_INET)"
        assert host.python(tree, act, sandbox).exit_code != 0
        assert host.python(tree, act).exit_code == 0
        assert host.shell(tree, f"echo x > {tree.out}/new && exit 4", sandbox).exit_code == 4
        assert host.shell(tree, "test -t 0 && exit 6", sandbox, tty=True).exit_code == 6


@pytest.mark.parametrize("network", ["restricted", "enabled"])
def test_a_daemon_inside_a_sandbox_limits_the_network_too(make_host: MakeHost, network: str) -> None:
    host = make_host()
    tree = host.tree()
    sandbox = tree.context(restricted(READ_ROOT, at(tree.ws, "write"), network=network))
    act = (
        "import sys\n"
        "from execserver.sandbox.backends import SeccompOnly\n"
        "from execserver.sandbox.diagnostics.probe import probe_backend\n"
        f"result = probe_backend('seccomp', SeccompOnly(), {str(tree.ws)!r})\n"
        "sys.exit(result.reason or 5)"
    )
    done = host.run(tree, [sys.executable, "-c", act], sandbox)
    assert (done.exit_code, done.output) == (5, b"")


def test_a_launcher_that_stops_working_is_told_as_that_and_tried_anew(
    make_host: MakeHost, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(FICKLE.format(folder=tmp_path, bwrap=shutil.which("bwrap")))
    program.chmod(0o755)
    host = make_host("--bubblewrap", str(program))
    tree = host.tree()
    sandbox = tree.context(WORKSPACE_WITHOUT_TMP)
    before = tree.listing()
    assert host.shell(tree, "true", sandbox).exit_code == 0

    (tmp_path / "broken").touch()
    process = host.start(tree, ["/bin/sh", "-c", "touch ran"], sandbox)
    process.wait_closed()
    end = host.client.call("process/read", {"processId": process.id})
    assert "Creating new namespace failed" in end["failure"]
    assert (end["exitCode"], end["sandboxDenied"]) == (1, False)
    message = eventually_refused(host, tree, sandbox)
    assert "namespace" in message
    assert tree.listing() == before

    (tmp_path / "broken").unlink()
    assert eventually_runs(host, tree, sandbox) == 3  # the backend may have been repaired meanwhile


def eventually_refused(host: Host, tree: Tree, sandbox: Json) -> str:
    """The refusal after a failed launch made the server probe again."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            host.start(tree, ["/bin/true"], sandbox).wait_closed()
        except ReplyError as refusal:
            return refusal.message
    raise AssertionError("it is not tried anew")


def eventually_runs(host: Host, tree: Tree, sandbox: Json) -> int:
    """The exit code of a command, once one is run."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            return host.shell(tree, "exit 3", sandbox).exit_code
        except ReplyError:
            time.sleep(0.2)
    raise AssertionError("it stays refused")


def test_with_the_network_the_sockets_of_other_daemons_are_out_of_sight(host: Host, tree: Tree) -> None:
    script = "find /run -type s | wc -l; find /run ! -type d | wc -l"
    inside = host.shell(tree, script, tree.context(WORKSPACE_WITH_NETWORK)).output.split()
    assert inside[0] == b"0"
    assert host.shell(tree, "touch /run/new", tree.context(WORKSPACE_WITH_NETWORK)).exit_code != 0
    names = host.shell(tree, "ls -A /run", tree.context(WORKSPACE_WITH_NETWORK)).output.split()
    assert set(names) <= {b"systemd", b"resolvconf", b"NetworkManager"}


def test_after_an_edit_the_workspace_is_soon_as_it_was_but_for_the_edit(host: Host, tree: Tree) -> None:
    before = tree.listing()
    sandbox = tree.context(WORKSPACE_WITHOUT_TMP)
    for number in range(3):
        params = {"path": path_uri(tree.ws / "a.txt"), "dataBase64": encode(f"{number}"), "sandbox": sandbox}
        host.client.call("fs/writeFile", params)
    deadline = time.monotonic() + 20
    while tree.listing().keys() != before.keys():
        assert time.monotonic() < deadline, tree.listing().keys() ^ before.keys()
        time.sleep(0.05)
    assert (tree.ws / "a.txt").read_text() == "2"
