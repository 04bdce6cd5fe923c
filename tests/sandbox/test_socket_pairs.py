"""With the network off, socket pairs work, and calls with an address do not.

Each table of calls is run by a static C program, by Python and by Node; a call that must fail inside is seen
to work outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox import landlock
from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import READ_ONLY, WORKSPACE, unrestricted
from tests.support.wire import Json

PROGRAMS = Path(__file__).parent / "pairs"
RUNTIMES = ("c", "python", "node")
SECONDS = 120

NOWHERE = {"stream elsewhere sendto", "stream elsewhere sendmsg", "stream elsewhere sendmmsg"} | {
    f"{kind} elsewhere connect" for kind in ("stream", "packet")
}
"""Calls that the kernel itself refuses, because the end of a pair has a peer."""

TO_THE_PEER = {"packet elsewhere sendmsg", "packet elsewhere sendmmsg"}
"""The kernel ignores the address of sequenced packets. That nothing arrives elsewhere is tested below."""

BY_THE_FILTER = {"packet elsewhere sendto"}


def program(runtime: str, tree: Tree) -> list[str]:
    """The command line of a runtime's table, in the workspace."""
    name = {"c": "pairs", "python": "pairs.py", "node": "pairs.js"}[runtime]
    if runtime == "c":
        compiler = shutil.which("cc")
        assert compiler is not None, "a C compiler is missing: run make runtimes"
        source = str(PROGRAMS / "pairs.c")
        subprocess.run([compiler, "-static", "-Wall", "-Werror", "-o", tree.ws / name, source], check=True)
        command = []
    else:
        shutil.copy(PROGRAMS / name, tree.ws / name)
        command = ["python3" if runtime == "python" else "node"]
        assert shutil.which(command[0]) is not None, f"{command[0]} is missing: run make runtimes"
    (tree.ws / name).chmod(0o755)
    return [*command, str(tree.ws / name)]


def table(host: Host, tree: Tree, argv: list[str], permissions: Json = None) -> dict[str, int]:
    """The errno of each call of a table, run with these permissions or without a sandbox."""
    argv = [*argv, host.listeners.path, f"{host.listeners.path}d", str(tree.tmpdir / "free")]
    sandbox = None if permissions is None else tree.context(permissions)
    done = host.finish(host.start(tree, argv, sandbox), SECONDS)
    assert done.exit_code == 0, done
    # Beside the table there is what runtimes print of errors.
    lines = re.findall(r"^([\w ]+)=(\d+)\r?$", done.output.decode(), re.MULTILINE)
    assert lines, done
    return {name: int(number) for name, number in lines}


def compare(outside: dict[str, int], inside: dict[str, int]) -> None:
    """Calls without an address work on both sides; those with one work only outside."""
    assert outside.keys() == inside.keys()
    for name, number in outside.items():
        assert (number != 0) == (name in NOWHERE), (name, number)
        if name in NOWHERE or name in BY_THE_FILTER or name.startswith("to "):
            assert inside[name] != 0, name
        else:
            assert inside[name] == 0, (name, inside[name])


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("permissions", [READ_ONLY, WORKSPACE, unrestricted()], ids=["read", "write", "all"])
def test_pairs_work_and_addresses_do_not(anyones_host: Host, runtime: str, permissions: Json) -> None:
    tree = anyones_host.tree()
    argv = program(runtime, tree)
    compare(table(anyones_host, tree, argv), table(anyones_host, tree, argv, permissions))


@pytest.mark.skipif(landlock.unavailable() is not None, reason=f"the kernel: {landlock.unavailable()}")
def test_pairs_work_and_addresses_do_not_with_landlock(
    make_host: Callable[..., Host], tmp_path: Path
) -> None:
    host = make_host("--bubblewrap", str(tmp_path / "none"), "--allow-landlock")
    for runtime in RUNTIMES:
        tree = host.tree()
        argv = program(runtime, tree)
        outside, inside = table(host, tree, argv), table(host, tree, argv, READ_ONLY)
        # Semaphores of processes are files in /dev/shm, which Landlock leaves out.
        for name in [name for name in outside if name.startswith(("a pool", "a queue", "executors"))]:
            assert outside.pop(name) == 0
            inside.pop(name)
        compare(outside, inside)


@pytest.mark.statement("C23")
def test_calls_with_an_address_are_not_permitted(host: Host, tree: Tree) -> None:
    inside = table(host, tree, program("c", tree), WORKSPACE)
    addressed = {name: number for name, number in inside.items() if name.startswith("to ")}
    # A socket that was refused has no descriptor to send with.
    without_a_socket = {f"to {kind} sendto" for kind in ("datagram", "raw")}
    assert {addressed.pop(name) for name in without_a_socket} <= {errno.EBADF, errno.EPERM}
    assert set(addressed.values()) == {errno.EPERM}
    assert {inside[name] for name in inside if name.endswith(("elsewhere sendto", "connect"))} == {
        errno.EPERM
    }


def test_nothing_that_a_pair_sends_arrives_elsewhere(host: Host, tree: Tree) -> None:
    argv = program("c", tree)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as elsewhere:
        elsewhere.bind(str(tree.base / "elsewhere"))
        os.chmod(tree.base / "elsewhere", 0o666)
        elsewhere.setblocking(False)
        sandboxes: list[Json] = [None, tree.context(WORKSPACE), tree.context(unrestricted())]
        for sandbox in sandboxes:
            done = host.run(tree, [*argv, host.listeners.path, str(tree.base / "elsewhere"), "free"], sandbox)
            assert done.exit_code == 0, done
            if sandbox is None:
                assert elsewhere.recv(1) == b"x"
                with contextlib.suppress(BlockingIOError):
                    while True:
                        elsewhere.recv(1)
            else:
                with pytest.raises(BlockingIOError):
                    elsewhere.recv(1)
