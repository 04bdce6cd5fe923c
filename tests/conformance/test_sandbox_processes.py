"""Confined processes: what they find, what they cannot reach, and what is told of their end."""

from __future__ import annotations

import errno
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.endpoint import Endpoint
from tests.conformance.test_control import FAMILY, REACHED
from tests.sandbox.profiles import (
    MINIMAL,
    READ_ONLY,
    READ_ROOT,
    WRITE_WORKSPACE,
    at,
    context,
    glob,
    restricted,
    unrestricted,
)
from tests.support.wire import PATIENCE, Client, Json, Process, path_uri

WORKSPACE = restricted(READ_ROOT, WRITE_WORKSPACE)
WITH_NETWORK = restricted(READ_ROOT, WRITE_WORKSPACE, network="enabled")
NETWORK_ONLY = unrestricted("restricted")


@pytest.fixture
def ws(here: Path) -> Path:
    """A workspace."""
    (here / "ws").mkdir()
    return here / "ws"


def start(
    client: Client, ws: Path, argv: list[str], permissions: Json = WORKSPACE, **members: Json
) -> Process:
    """Start something in the workspace, confined."""
    sandbox = None if permissions is None else context(permissions, cwd=ws, roots=[ws])
    return client.start(*argv, cwd=path_uri(ws), sandbox=sandbox, **members)


def run(client: Client, ws: Path, script: str, permissions: Json = WORKSPACE, **members: Json) -> Process:
    """Run a shell script to its end."""
    return start(client, ws, ["/bin/sh", "-c", script], permissions, **members).wait_closed()


def run_python(
    client: Client, ws: Path, script: str, permissions: Json = WORKSPACE, **members: Json
) -> Process:
    """Run a Python script to its end."""
    return start(client, ws, [sys.executable, "-I", "-c", script], permissions, **members).wait_closed()


# -- the network and sockets


@pytest.fixture
def listeners(here: Path) -> Iterator[tuple[int, str]]:
    """A TCP port of loopback, and the path of a Unix socket."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        unix.bind(str(here / "socket"))
        for each in (tcp, unix):
            each.listen(64)
        yield tcp.getsockname()[1], str(here / "socket")


CONNECT = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, {path!r})):
    try:
        with socket.socket(family) as connection:
            connection.connect(address)
        print("connected")
    except PermissionError:
        print("refused")
"""


@pytest.mark.statement("C5", "C23", "C24")
@pytest.mark.parametrize(
    ("permissions", "said"),
    [
        (None, b"connected\nconnected\n"),
        (WITH_NETWORK, b"connected\nconnected\n"),
        (WORKSPACE, b"refused\nrefused\n"),
        (NETWORK_ONLY, b"refused\nrefused\n"),
        ({"type": "external", "network": "restricted"}, b"refused\nrefused\n"),
    ],
)
def test_sockets_are_reached_only_with_the_network(
    client: Client, ws: Path, listeners: tuple[int, str], permissions: Json, said: bytes
) -> None:
    port, path = listeners
    process = run_python(client, ws, CONNECT.format(port=port, path=path), permissions)
    assert process.log.streams["stdout"] == said


@pytest.mark.statement("C23")
def test_pairs_of_sockets_work_without_the_network(client: Client, ws: Path) -> None:
    script = "import socket; a, b = socket.socketpair(); a.sendmsg([b'hello']); print(b.recv(9))"
    assert run_python(client, ws, script).output == b"b'hello'\n"
    script = "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)"
    assert b"PermissionError" in run_python(client, ws, script).output


@pytest.mark.statement("C24")
@pytest.mark.skipif(not os.path.isdir("/run"), reason="there is no /run here")
def test_with_the_network_the_folder_of_daemons_is_empty(client: Client, ws: Path) -> None:
    process = run(client, ws, "ls -A /run; echo; echo x > /run/made", WITH_NETWORK)
    assert process.exit_code
    left = set(process.log.streams["stdout"].split())
    assert left <= {b"systemd", b"resolvconf", b"NetworkManager"}


@pytest.mark.statement("C5")
def test_a_limit_of_the_network_alone_leaves_files_and_processes(client: Client, ws: Path) -> None:
    made = ws.parent / "made"
    with subprocess.Popen(["/bin/sleep", "300"]) as other:
        process = run(client, ws, f"echo x > {made} && kill -0 {other.pid} && echo both", NETWORK_ONLY)
        other.kill()
    assert process.output == b"both\n"
    assert made.exists()


# -- processes and the kernel


@pytest.mark.statement("C25")
def test_other_processes_are_neither_seen_nor_signalled(client: Client, ws: Path) -> None:
    script = (
        "ls -d /proc/[0-9]* | wc -l; kill -0 {pid} 2>/dev/null && echo reached; ls /proc/{pid} 2>/dev/null"
    )
    with subprocess.Popen(["/bin/sleep", "300"]) as other:
        # A number that no process inside has: those count from 1.
        assert other.pid > 100
        process = run(client, ws, script.format(pid=other.pid))
        plain = run(client, ws, script.format(pid=other.pid), None)
        other.kill()
    count, *rest = process.output.split(b"\n", 1)
    assert int(count) < 10
    assert rest == [b""]
    assert b"reached" in plain.output


@pytest.mark.statement("C25")
def test_entries_for_processes_grant_nothing_and_cannot_deny(client: Client, ws: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "300"]) as other:
        entries = (READ_ROOT, at(f"/proc/{other.pid}", "write"))
        assert run(client, ws, f"ls /proc/{other.pid}", restricted(*entries)).exit_code
        other.kill()
    sandbox = context(restricted(READ_ROOT, at("/proc/1", "deny")), cwd=ws)
    failure = client.refused("process/start", client.start_params(["/bin/true"], sandbox=sandbox))
    assert failure.code == -32600
    assert "/proc/1 cannot be denied" in failure.message


_CALLS = {"x86_64": {"bpf": 321, "keyctl": 250}, "aarch64": {"bpf": 280, "keyctl": 219}}


@pytest.mark.statement("C26")
@pytest.mark.parametrize("permissions", [WORKSPACE, WITH_NETWORK, NETWORK_ONLY])
def test_some_entries_of_the_kernel_are_closed(client: Client, ws: Path, permissions: Json) -> None:
    numbers = {"io_uring_setup": 425, **_CALLS[platform.machine()]}
    script = f"""
import ctypes, fcntl, termios
call = ctypes.CDLL(None, use_errno=True).syscall
for name, number in {numbers}.items():
    ctypes.set_errno(0)
    print(name, call(number, 0, 0, 0, 0), ctypes.get_errno())
try:
    fcntl.ioctl(0, termios.TIOCSTI, b"x")
except OSError as error:
    print("TIOCSTI", error.errno)
"""
    process = run_python(client, ws, script, permissions, tty=True)
    wanted = [f"{name} -1 {errno.EPERM}" for name in numbers] + [f"TIOCSTI {errno.EPERM}"]
    assert process.output.decode().splitlines() == wanted


@pytest.mark.statement("C27")
def test_no_rights_are_to_be_had_inside(client: Client, ws: Path) -> None:
    script = "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'"
    process = run(client, ws, script)
    assert process.output == b"CapEff:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n"
    script = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
    assert run_python(client, ws, script).output == b"-1\n"
    # What is written is what is there: this harms nothing even where it succeeds.
    script = "cat /proc/sys/kernel/core_pattern > value; cat value > /proc/sys/kernel/core_pattern"
    process = run(client, ws, script)
    assert (ws / "value").read_bytes()
    assert process.exit_code


@pytest.mark.statement("P16", "C28")
def test_a_confined_command_has_no_further_descriptors(client: Client, ws: Path) -> None:
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    # The fourth is that of the folder, while it is read.
    assert run_python(client, ws, script).output == b"['0', '1', '2', '3']\n"


@pytest.mark.statement("C28", "V1")
def test_variables_are_those_of_the_request_and_the_folder(client: Client, ws: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": "", "X": "a=b", "EMPTY": ""}
    process = start(client, ws, ["/usr/bin/env"], env=env).wait_closed()
    said = dict(line.split("=", 1) for line in process.output.decode().splitlines())
    assert said == {**env, "PWD": str(ws)}


@pytest.mark.statement("C28", "P9", "P12")
def test_name_and_folder_are_those_of_the_request(client: Client, ws: Path) -> None:
    argv = ["sh", "-c", "pwd -P; echo $0"]
    confined = start(client, ws, argv, arg0="other").wait_closed()
    assert confined.output == f"{ws}\nother\n".encode()
    assert confined.output == start(client, ws, argv, None, arg0="other").wait_closed().output


@pytest.mark.statement("C28")
@pytest.mark.parametrize("tty", [False, True])
def test_a_confined_command_is_in_a_session_of_the_sandbox(client: Client, ws: Path, tty: bool) -> None:
    # A leader that lies outside would be 0.
    process = run(client, ws, "read -r _ _ _ _ _ sid _ < /proc/self/stat; echo $sid; kill 0", tty=tty)
    assert int(process.output.split()[0]) > 0
    assert process.exit_code == 143


# -- terminals and signals


@pytest.mark.everywhere
@pytest.mark.statement("C29", "P33")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
def test_an_interrupt_reaches_the_command_inside(
    client: Client, ws: Path, permissions: Json, tty: bool
) -> None:
    script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done"
    process = start(client, ws, ["/bin/sh", "-c", script], permissions, tty=tty)
    process.wait_output(b"ready")
    process.interrupt()
    process.wait_closed()
    assert process.exit_code == 7
    assert b"caught" in process.output


def send(process: Process, name: str, scope: str) -> None:
    params = {"processId": process.id, "signal": name, "scope": scope}
    assert process.client.call("process/signal", params) == {}


@pytest.mark.statement("C29", "P36")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
@pytest.mark.parametrize("scope", ["group", "leader", "tree"])
def test_any_signal_reaches_whom_its_scope_means_inside(
    client: Client, ws: Path, permissions: Json, scope: str, tty: bool
) -> None:
    process = start(client, ws, [sys.executable, "-I", "-c", FAMILY], permissions, tty=tty)
    process.wait_output(lambda output: output.count(b"ready") == 3)
    # Whoever else would get it has it by the end of the second round.
    for number in (1, 2):
        send(process, "SIGUSR1", scope)
        process.wait_output(lambda output: all(output.count(name) == number for name in REACHED[scope]))  # noqa: B023
    process.terminate("tree")
    process.wait_closed()
    assert set(process.output.split()) - {b"ready"} == REACHED[scope]


@pytest.mark.statement("C29", "P33")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
@pytest.mark.parametrize("scope", ["group", "leader", "tree"])
def test_stopped_command_goes_on_and_its_end_is_noticed(
    client: Client, ws: Path, permissions: Json, scope: str, tty: bool
) -> None:
    script = "echo ready; read -r x; exit 9"
    process = start(client, ws, ["/bin/sh", "-c", script], permissions, tty=tty, pipeStdin=True)
    process.wait_output(b"ready")
    send(process, "SIGSTOP", scope)
    process.write("go\n", "1")
    assert not process.read(process.log.seqs[-1] + tty, wait_ms=300)["exited"]
    # What holds the sandbox together must not have been stopped with it: nobody would continue that.
    send(process, "SIGCONT", "leader")
    assert process.wait_closed().exit_code == 9


WITH_DESCENDANTS = "sleep 300 & setsid sh -c 'echo ready; exec sleep 300' & exec sleep 300"
"""One in the command's group, and one in a session of its own."""


@pytest.mark.statement("C30")
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
@pytest.mark.parametrize("scope", ["group", "leader", "tree"])
def test_sigkill_leaves_nothing_of_a_sandbox(client: Client, ws: Path, permissions: Json, scope: str) -> None:
    process = start(client, ws, ["/bin/sh", "-c", WITH_DESCENDANTS], permissions)
    process.wait_output(b"ready")
    send(process, "SIGKILL", scope)
    assert process.wait_closed().exit_code == 137
    assert process.output == b"ready\n"


@pytest.mark.statement("C30", "P30")
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
def test_terminate_leaves_nothing_of_a_sandbox(client: Client, ws: Path, permissions: Json) -> None:
    process = start(client, ws, ["/bin/sh", "-c", WITH_DESCENDANTS], permissions)
    process.wait_output(b"ready")
    assert process.terminate() == {"running": True}
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("C29")
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
@pytest.mark.parametrize("scope", ["group", "leader", "tree"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGKILL", 137)])
def test_signal_that_comes_before_the_command_reaches_it(
    client: Client, ws: Path, permissions: Json, scope: str, name: str, code: int
) -> None:
    process = start(client, ws, ["/bin/sleep", "300"], permissions)
    send(process, name, scope)
    assert process.wait_closed().exit_code == code


@pytest.mark.statement("C29", "Y8", "P23")
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
def test_terminal_of_a_confined_command_is_resized(client: Client, ws: Path, permissions: Json) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done"
    size = {"rows": 3, "cols": 4}
    process = start(client, ws, ["/bin/sh", "-c", script], permissions, tty=True, size=size)
    process.wait_output(b"3 4")
    params = {"processId": process.id, "size": {"rows": 30, "cols": 40}}
    assert client.call("process/resize", params) == {"running": True}
    process.wait_output(b"30 40")
    process.terminate()


@pytest.mark.statement("C29", "Y1", "Y3")
def test_keys_of_a_terminal_reach_the_command_inside(client: Client, ws: Path) -> None:
    script = "trap 'echo caught; exit 7' INT; stty size; while :; do sleep 0.1; done"
    process = start(client, ws, ["/bin/sh", "-c", script], tty=True)
    process.wait_output(b"24 80")
    assert process.write(b"\x03", "w") == "accepted"
    process.wait_closed()
    assert process.exit_code == 7
    assert b"caught" in process.output


@pytest.mark.statement("C29")
def test_a_shell_on_a_terminal_has_job_control(client: Client, ws: Path) -> None:
    script = "set -m; sleep 300 & jobs; kill %1; wait %1; echo ended"
    process = start(client, ws, ["/bin/bash", "-ic", script], tty=True)
    process.wait_closed()
    assert b"Running" in process.output
    assert b"ended" in process.output
    assert b"no job control" not in process.output


@pytest.mark.statement("C30", "P34")
@pytest.mark.parametrize("tty", [False, True])
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
@pytest.mark.parametrize(("ending", "code"), [("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_exit_codes_come_out_as_they_are(
    client: Client, ws: Path, permissions: Json, tty: bool, ending: str, code: int
) -> None:
    assert run(client, ws, ending, permissions, tty=tty).exit_code == code


@pytest.mark.statement("C30", "P30")
@pytest.mark.parametrize("permissions", [WORKSPACE, NETWORK_ONLY])
def test_a_confined_command_is_terminated(client: Client, ws: Path, permissions: Json) -> None:
    process = start(client, ws, ["/bin/sh", "-c", "echo $$; exec sleep 300"], permissions)
    process.wait_output(b"\n")
    assert process.terminate() == {"running": True}
    assert process.wait_closed().exit_code == 137


@pytest.mark.statement("C31")
def test_background_processes_end_with_a_command_whose_files_are_limited(client: Client, ws: Path) -> None:
    script = "mkfifo begun; setsid sh -c 'echo x > begun; exec sleep 300' & read x < begun; echo begun"
    assert run(client, ws, script).output == b"begun\n"
    process = run(client, ws, "sh -c 'sleep 1; echo late' & exit 0", NETWORK_ONLY)
    assert process.output == b"late\n"


# -- what is refused


@pytest.mark.statement("C32", "P5", "P6")
def test_missing_things_are_the_same_errors_as_without_a_sandbox(client: Client, ws: Path) -> None:
    sandbox = context(WORKSPACE, cwd=ws, roots=[ws])
    (ws / "file").touch()
    for argv, cwd in (
        (["nosuchprogram"], ws),
        (["./nosuchprogram"], ws),
        (["./file"], ws),
        (["/bin/true"], ws / "nowhere"),
        (["/bin/true"], ws / "file"),
        ([""], ws),
        (["/bin/echo", "a\0b"], ws),
    ):
        params = client.start_params(argv, cwd=path_uri(cwd))
        plain = client.refused("process/start", params)
        confined = client.refused("process/start", {**params, "sandbox": sandbox})
        assert (confined.code, confined.message) == (plain.code, plain.message), argv


@pytest.mark.statement("C33")
def test_a_folder_or_program_that_cannot_be_read_is_named(client: Client, ws: Path) -> None:
    out = ws.parent / "out"
    out.mkdir()
    (out / "program").write_text("#!/bin/sh\n")
    (out / "program").chmod(0o755)
    sandbox = context(MINIMAL, cwd=ws, roots=[ws])
    for argv, cwd, what in (
        (["/bin/true"], out, f"the working directory {out}"),
        ([str(out / "program")], ws, f"the program {out}/program"),
    ):
        params = client.start_params(argv, cwd=path_uri(cwd), sandbox=sandbox)
        failure = client.refused("process/start", params)
        assert failure.code == -32600
        assert failure.message.startswith(f"failed to prepare process sandbox: {what} cannot be read")
    denied = context(restricted(READ_ROOT, at(ws.parent, "deny")), cwd=ws, roots=[ws])
    params = client.start_params(["/bin/true"], cwd=path_uri(ws), sandbox=denied)
    assert client.refused("process/start", params).code == -32600


@pytest.mark.statement("C33", "X15")
def test_the_reason_of_a_failed_start_tells_nothing_of_a_denied_file(endpoint: Endpoint, ws: Path) -> None:
    client = endpoint.connect(extensions=True)
    script = ws / "script"
    script.write_text("#!/the/secret/interpreter\n")
    script.chmod(0o755)
    for permissions, told in (
        (WORKSPACE, True),
        (restricted(READ_ROOT, WRITE_WORKSPACE, at(script, "deny")), False),
        (restricted(READ_ROOT, WRITE_WORKSPACE, glob("**/scr*")), False),
    ):
        sandbox = context(permissions, cwd=ws, roots=[ws])
        params = client.start_params(["./script"], cwd=path_uri(ws), sandbox=sandbox)
        error = client.reply(client.request("process/start", params)).get("error", {})
        assert ("/the/secret/interpreter" in str(error)) is told, error


@pytest.mark.statement("C33", "X15")
def test_a_failed_start_tells_nothing_of_what_is_in_a_denied_folder(endpoint: Endpoint, ws: Path) -> None:
    client = endpoint.connect(extensions=True)
    closed = ws / "closed"
    closed.mkdir()
    (closed / "there").write_text("#!/the/secret/interpreter\n")
    (closed / "there").chmod(0o755)
    (closed / "link").symlink_to("/the/secret/target")
    (ws / "hop").symlink_to("closed/link")
    for denial in (at(closed, "deny"), glob("**/closed")):
        sandbox = context(restricted(READ_ROOT, WRITE_WORKSPACE, denial), cwd=ws, roots=[ws])

        def said(program: str, sandbox: Json = sandbox) -> str:
            params = client.start_params([program], cwd=path_uri(ws), sandbox=sandbox)
            return str(client.reply(client.request("process/start", params)).get("error"))

        said_of = {}
        for name in ("there", "missing", "link"):
            # A new file: the one before may still be executed.
            (ws / "new").write_text(f"#!{closed}/{name}\n")
            (ws / "new").chmod(0o755)
            (ws / "new").rename(ws / "script")
            said_of[name] = said("./script").replace(name, "NAME")
        assert said_of["there"] == said_of["missing"] == said_of["link"]
        for program in ("closed/link", "./hop"):
            assert "/the/secret/target" not in said(program)


# -- what is told


@pytest.mark.statement("C34", "O23")
@pytest.mark.parametrize(
    ("script", "denied"),
    [
        ("echo x: Operation not permitted >&2; exit 1", True),
        ("echo PERMISSION DENIED; exit 2", True),
        ("echo read-only file system; exit 127", True),
        ("echo seccomp; exit 1", True),
        ("echo in the sandbox; exit 1", True),
        ("echo landlock; exit 1", True),
        ("echo failed to write file; exit 1", True),
        ("exit 159", True),
        ("echo Permission denied", False),
        ("echo No such file or directory >&2; exit 1", False),
        ("exit 126", False),
    ],
)
def test_a_denial_is_judged_by_words_and_exit_code(
    client: Client, ws: Path, script: str, denied: bool
) -> None:
    process = run(client, ws, script)
    assert process.log.events[-2][1]["sandboxDenied"] is denied
    assert process.read()["sandboxDenied"] is denied
    plain = run(client, ws, script, None)
    assert plain.log.events[-2][1]["sandboxDenied"] is False
    assert plain.read()["sandboxDenied"] is False


@pytest.mark.statement("C35", "O23")
def test_a_sandbox_that_breaks_after_the_start_is_told_apart(
    endpoint: Endpoint, here: Path, ws: Path
) -> None:
    broken, program = here / "broken", here / "bwrap"
    program.write_text(
        f'#!/bin/sh\ntest -e {broken} && {{ echo "bwrap: it broke" >&2; exit 1; }}\n'
        f'PATH=/usr/bin:/bin exec bwrap "$@"\n'
    )
    program.chmod(0o755)
    client = endpoint.private("--bubblewrap", str(program)).connect()
    assert run(client, ws, "exit 1").read()["failure"] is None
    broken.touch()
    page = run(client, ws, "echo ran > made").read()
    assert page["failure"].startswith("failed to prepare process sandbox: ")
    assert "it broke" in page["failure"]
    assert page["exitCode"]
    assert not page["sandboxDenied"]
    assert not (ws / "made").exists()


@pytest.mark.statement("C36")
def test_a_command_that_cannot_be_confined_any_more_is_refused(
    endpoint: Endpoint, here: Path, ws: Path
) -> None:
    program, broken = here / "bwrap", here / "broken"
    program.write_text(f'#!/bin/sh\n[ -e "{broken}" ] && exit 1\nPATH=/usr/bin:/bin exec bwrap "$@"\n')
    program.chmod(0o755)
    client = endpoint.private("--bubblewrap", str(program)).connect()
    assert run(client, ws, "true").exit_code == 0
    broken.touch()
    assert run(client, ws, "true").read()["failure"]
    params = client.start_params(["/bin/true"], sandbox=context(READ_ONLY))
    deadline = time.monotonic() + 2 * PATIENCE
    while "result" in (reply := client.reply(client.request("process/start", params))):
        assert time.monotonic() < deadline
        params["processId"] += "+"
    assert reply["error"]["code"] == -32600
    assert reply["error"]["message"].startswith("failed to prepare process sandbox: ")
    broken.unlink()
    while "error" in (reply := client.reply(client.request("process/start", params))):
        assert time.monotonic() < deadline
        time.sleep(0.2)
