"""How a confined command lives and dies: exit codes, signals, terminals, descriptors."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.sandbox.host import Host, Tree
from tests.sandbox.outside import DEADLINE, bearers, wait_for
from tests.sandbox.profiles import READ_ONLY, WORKSPACE, WORKSPACE_WITH_NETWORK, unrestricted
from tests.support.wire import Json, Process


def until(process: Process, text: bytes) -> None:
    """Wait until a command has written something."""
    process.wait_output(text, DEADLINE)


LIMITS = {"files": lambda tree: tree.context(WORKSPACE), "network": lambda tree: tree.context(unrestricted())}


@pytest.fixture(params=LIMITS)
def sandbox(request: pytest.FixtureRequest, tree: Tree) -> Json:
    """One with namespaces of its own, and one that limits the network only."""
    return LIMITS[request.param](tree)


# -- exit codes


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
        ("kill -INT $$", 130),
    ],
)
def test_exit_code_is_the_commands_own(
    host: Host, tree: Tree, sandbox: Json, script: str, code: int, tty: bool
) -> None:
    done = host.shell(tree, script, sandbox, tty=tty)
    assert (done.exit_code, done.denied) == (code, False), done


def test_program_that_does_not_exist_is_not_found(host: Host, tree: Tree, sandbox: Json) -> None:
    failure = host.client.refused(
        "process/start", host.client.start_params(["/no/such/program"], sandbox=sandbox, env=tree.env)
    )
    without = host.client.refused(
        "process/start", host.client.start_params(["/no/such/program"], env=tree.env)
    )
    assert (failure.code, failure.message) == (without.code, without.message)


def test_denied_write_is_told_as_denied(host: Host, tree: Tree) -> None:
    done = host.shell(tree, f"echo x > {tree.out}/new", tree.context(WORKSPACE))
    assert done.exit_code != 0
    assert done.denied
    assert done.read["denial"]["likely"], done.read


def test_environment_gets_nothing_from_the_sandbox(host: Host, tree: Tree, sandbox: Json) -> None:
    confined = host.shell(tree, "env", sandbox).output.splitlines()
    assert sorted(confined) == sorted(host.shell(tree, "env").output.splitlines())


def test_working_directory_is_the_requested_one(host: Host, tree: Tree, sandbox: Json) -> None:
    done = host.shell(tree, "pwd -P", sandbox, cwd=f"file://{tree.ws}/sub")
    assert done.output.decode().strip() == f"{tree.ws}/sub"


# -- signals


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
def test_interrupt_runs_the_commands_trap(host: Host, tree: Tree, sandbox: Json, tty: bool) -> None:
    script = "trap 'echo caught; exit 42' INT; echo ready; while :; do sleep 0.1; done"
    process = host.start(tree, ["/bin/sh", "-c", script], sandbox, tty=tty)
    until(process, b"ready")
    process.interrupt()
    done = host.finish(process)
    assert done.exit_code == 42, done
    assert b"caught" in done.output


def test_interrupt_ends_a_command_without_a_trap(host: Host, tree: Tree, sandbox: Json) -> None:
    # Without a child: a shell that is interrupted while it forks one may go on and wait for it.
    process = host.start(tree, ["/bin/sh", "-c", "echo ready; while :; do :; done"], sandbox)
    until(process, b"ready")
    process.interrupt()
    assert host.finish(process).exit_code == 130


def test_terminate_ends_everything_inside(host: Host, tree: Tree, sandbox: Json) -> None:
    token = f"600.{secrets.randbits(40)}"
    script = f"trap '' TERM HUP INT; setsid sleep {token} & echo ready; sleep {token}"
    process = host.start(tree, ["/bin/sh", "-c", script], sandbox)
    until(process, b"ready")
    wait_for(lambda: len(bearers(token)) >= 3, "both sleepers")
    process.terminate("tree")
    process.wait_closed()
    wait_for(lambda: not bearers(token), "the end of everything inside")


def test_background_process_ends_with_the_command(host: Host, tree: Tree) -> None:
    token = f"600.{secrets.randbits(40)}"
    script = f"setsid sleep {token} >/dev/null 2>&1 </dev/null & exit 0"
    free = host.shell(tree, script)
    assert free.exit_code == 0
    wait_for(lambda: len(bearers(token)) == 1, "the background process of a free command")
    free.process.terminate("tree")
    wait_for(lambda: not bearers(token), "its end")
    assert host.shell(tree, script, tree.context(WORKSPACE)).exit_code == 0
    wait_for(lambda: not bearers(token), "the end of a confined command's background process")


# -- terminals


def test_job_control_works_on_a_confined_terminal(host: Host, tree: Tree) -> None:
    process = host.start(tree, ["/bin/sh", "-i"], tree.context(WORKSPACE), tty=True)
    # It says when it goes on: only then the terminal is certainly its own again.
    # Without children: a shell that waits for a vfork whose child was stopped before its exec does not stop.
    job = "trap 'echo wo''ken' CONT; echo be''gun; while :; do :; done"
    process.write(f'PS1=; PS2=; stty -echo; sh -c "{job}"\n', "w1")
    until(process, b"begun")
    process.write(b"\x1a", "w2")
    until(process, b"Stopped")
    process.write("fg\n", "w3")
    resumed = process.wait_output(lambda output: b"woken" in output, DEADLINE)
    process.write(b"\x03", "w4")
    # The shell says at least a newline when it has the terminal again.
    process.wait_output(lambda output: len(output) > len(resumed), DEADLINE)
    process.write("echo do''ne; exit 5\n", "w5")
    done = host.finish(process)
    assert done.exit_code == 5, done
    assert b"done" in done.output
    assert b"no job control" not in done.output
    assert b"can't access tty" not in done.output


def test_control_c_reaches_only_what_is_inside(host: Host, tree: Tree, sandbox: Json) -> None:
    script = "trap 'echo caught; exit 42' INT; stty -echo; echo ready; while :; do sleep 0.1; done"
    process = host.start(tree, ["/bin/sh", "-c", script], sandbox, tty=True)
    until(process, b"ready")
    process.write(b"\x03", "w1")
    done = host.finish(process)
    assert done.exit_code == 42, done
    assert b"caught" in done.output


def test_terminal_has_the_size_that_free_commands_see(host: Host, tree: Tree, sandbox: Json) -> None:
    free = host.shell(tree, "stty size", tty=True)
    done = host.shell(tree, "stty size", sandbox, tty=True)
    assert (done.exit_code, done.output) == (0, free.output), done


INJECT = """
import fcntl, os, termios
fcntl.ioctl(os.open('/dev/tty', os.O_RDWR), termios.TIOCSTI, b'x')
print('put')
"""


def test_confined_command_cannot_type_into_its_terminal(host: Host, tree: Tree, sandbox: Json) -> None:
    done = host.python(tree, INJECT, sandbox, tty=True)
    assert done.exit_code == 1, done
    assert b"PermissionError" in done.output


def test_free_command_can_type_into_its_terminal(host: Host, tree: Tree) -> None:
    allowed = Path("/proc/sys/dev/tty/legacy_tiocsti")
    if not host.user.is_root and allowed.exists() and allowed.read_text().strip() == "0":
        pytest.skip("this kernel lets only root type into a terminal")
    done = host.python(tree, INJECT, tty=True)
    assert (done.exit_code, b"put" in done.output) == (0, True), done


# -- descriptors

LIST_DESCRIPTORS = """
import os
for name in os.listdir('/proc/self/fd'):
    try:
        print(name, os.readlink('/proc/self/fd/' + name))
    except OSError:
        pass
"""


@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
def test_command_has_no_descriptor_beyond_the_standard_three(
    host: Host, tree: Tree, sandbox: Json, tty: bool
) -> None:
    seen = host.python(tree, LIST_DESCRIPTORS, sandbox, tty=tty).output.decode().split("\n")
    others = [line for line in seen if line and int(line.split()[0]) > 2 and "/proc/" not in line]
    assert others == []
    assert len([line for line in seen if line[:1] in ("0", "1", "2")]) >= 3


def test_descriptor_that_leaked_would_be_seen(host: Host, tree: Tree) -> None:
    done = host.run(tree, ["/bin/sh", "-c", 'exec 9</etc/passwd; exec python3 -c "$0"', LIST_DESCRIPTORS])
    assert b"9 /etc/passwd" in done.output


# -- input and output


def test_input_and_output_pass_whole(host: Host, tree: Tree, sandbox: Json) -> None:
    data = os.urandom(3 << 20)
    process = host.start(tree, ["/usr/bin/head", "-c", str(len(data))], sandbox, pipeStdin=True)
    for number in range(0, len(data), 1 << 19):
        assert process.write(data[number : number + (1 << 19)], f"w{number}") == "accepted"
    assert host.finish(process).output == data


def test_daemons_own_socket_cannot_be_reached_from_inside(host: Host, tree: Tree) -> None:
    script = f"import socket; socket.socket(socket.AF_UNIX).connect('{host.base}/daemon/socket')"
    assert host.python(tree, script).exit_code == 0
    done = host.python(tree, script, tree.context(WORKSPACE_WITH_NETWORK))
    assert done.exit_code == 1, done
    assert b"Error" in done.output


def test_daemons_state_folder_is_hidden(host: Host, tree: Tree) -> None:
    (folder,) = (host.base / "daemon/state").iterdir()
    names = {entry.name for entry in folder.iterdir()}
    assert names
    assert names <= set(host.shell(tree, f"ls -A {folder}").output.decode().split())
    for permissions in (READ_ONLY, WORKSPACE, WORKSPACE_WITH_NETWORK):
        done = host.shell(tree, f"ls -A {folder}", tree.context(permissions))
        assert not (names & set(done.output.decode().split())), done
