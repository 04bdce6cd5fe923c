"""The filters in the kernel: calls that are refused inside work outside, bare and in bubblewrap."""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.sandbox import seccomp
from tests.unit.sandbox import calls_probe

ROOT = Path(__file__).parents[3]
PROBE = Path(calls_probe.__file__)
BWRAP = shutil.which("bwrap")
VIEW = [str(BWRAP), "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--unshare-pid", "--proc", "/proc"]

OFFLINE = seccomp.program(network=False, files_limited=True)
OFFLINE_ALONE = seccomp.program(network=False, files_limited=True, namespaces_denied=True)
ONLINE = seccomp.program(network=True, files_limited=True)
ONLINE_ALONE = seccomp.program(network=True, files_limited=True, namespaces_denied=True)
UNTRACED = seccomp.program(network=True, files_limited=True, tracing=False)

MARK = 118
"""An errno that none of these calls has by itself. Instead of EPERM it shows that the filter answered, also
for users for whom the kernel itself returns EPERM."""

REFUSED = (
    *(calls_probe.ALWAYS, calls_probe.OTHER_PROCESSES, calls_probe.WITHOUT_NETWORK),
    *(calls_probe.UNIX_DATAGRAMS, calls_probe.PACKETS, calls_probe.VSOCKETS),
)
ALONE = (calls_probe.WITHOUT_NAMESPACES, calls_probe.OF_OTHERS)
"""Where there are no namespaces."""

Runner = Callable[[bytes | None, list[str]], "subprocess.CompletedProcess[str]"]


def names(*groups: dict[str, tuple[int, ...]]) -> set[str]:
    return {name for group in groups for name in group}


@functools.cache
def bubblewrap_works() -> bool:
    return BWRAP is not None and subprocess.run([*VIEW, "true"], capture_output=True).returncode == 0


def run_bare(program: bytes | None, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments, with or without a filter."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if program is None:
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
        )
    with Descriptor(program) as fd:
        first = (
            "import os,runpy,sys; from execserver.sandbox.thread_limits import *; "
            f"deny_new_privileges(); install_filter(os.read({fd}, 65536)); os.close({fd}); "
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        )
        return subprocess.run(
            [sys.executable, "-c", first, *arguments],
            pass_fds=[fd],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
        )


def run_in_bubblewrap(program: bytes | None, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The same in bubblewrap, which takes the filter itself."""
    if not bubblewrap_works():
        pytest.skip("bubblewrap does not run here; the same filters are tested without it")
    with Descriptor(program or b"") as fd:
        return subprocess.run(
            [
                *VIEW,
                *(["--seccomp", str(fd)] if program is not None else []),
                *["--", sys.executable, *arguments],
            ],
            pass_fds=[fd] if program is not None else [],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )


class Descriptor:
    """A readable descriptor with these bytes."""

    def __init__(self, content: bytes) -> None:
        self.fd = os.memfd_create("filter")
        os.write(self.fd, content)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


@pytest.fixture(params=[run_bare, run_in_bubblewrap], ids=["bare", "bubblewrap"])
def run(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.param
    return runner


def probe(run: Runner, program: bytes | None) -> dict[str, tuple[int, int]]:
    done = run(program, [str(PROBE)])
    assert done.returncode == 0, done.stderr
    return {name: (result, code) for name, (result, code) in json.loads(done.stdout).items()}


def marked(program: bytes) -> bytes:
    """The same program, answering another errno."""
    refuse = (6).to_bytes(2, sys.byteorder) + b"\0\0"
    action = seccomp.REFUSE.to_bytes(4, sys.byteorder)
    assert program.count(refuse + action) == 1
    return program.replace(
        refuse + action, refuse + (seccomp.REFUSE - errno.EPERM + MARK).to_bytes(4, sys.byteorder)
    )


@pytest.mark.parametrize(
    ("program", "refused"),
    [
        (OFFLINE, names(*REFUSED)),
        (OFFLINE_ALONE, names(*REFUSED, *ALONE)),
        (ONLINE, names(calls_probe.ALWAYS, calls_probe.VSOCKETS)),
        (UNTRACED, names(calls_probe.ALWAYS, calls_probe.OTHER_PROCESSES, calls_probe.VSOCKETS)),
        (
            ONLINE_ALONE,
            names(
                *(calls_probe.ALWAYS, calls_probe.VSOCKETS, *ALONE),
                *(calls_probe.UNIX_SOCKETS, calls_probe.UNIX_DATAGRAMS),
            ),
        ),
    ],
    ids=["offline", "offline alone", "online", "untraced", "online alone"],
)
def test_exactly_the_named_calls_are_answered_by_the_filter(
    run: Runner, program: bytes, refused: set[str]
) -> None:
    outside = probe(run, None)
    inside = probe(run, marked(program))
    assert not [name for name, (_, code) in outside.items() if code == MARK]
    assert {name for name, (_, code) in inside.items() if code == MARK} == refused
    clone3_is_hidden = program in (OFFLINE_ALONE, ONLINE_ALONE)
    assert (inside["clone3"] == (-1, errno.ENOSYS)) == clone3_is_hidden
    assert {name: inside[name] for name in calls_probe.PAIRS} == dict.fromkeys(
        calls_probe.PAIRS, (-1, errno.EBADF)
    )


def test_bash_does_not_take_the_filter_for_a_remote_shell(run: Runner, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("echo this is the start of a session\n")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    act = f"import os; os.execvpe('bash', ['bash', '-c', 'echo script'], {environment!r})"
    assert run(OFFLINE, ["-c", act]).stdout == "script\n"


def test_calls_that_the_kernel_allows_fail_with_eperm_inside(run: Runner) -> None:
    outside = probe(run, None)
    inside = probe(run, OFFLINE_ALONE)
    refused = names(*REFUSED, *ALONE)
    assert {name for name in refused if inside[name] != (-1, errno.EPERM)} == set()
    # The kernel refuses some of these to ordinary users, and containers refuse more; sockets are not refused.
    get_further = {name for name in refused if outside[name][1] != errno.EPERM}
    assert get_further >= names(calls_probe.WITHOUT_NETWORK)
    for name in calls_probe.HARMLESS:
        assert inside[name][1] == outside[name][1]


def status_and_output(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    return done.returncode, done.stdout + done.stderr


def test_sockets_of_pairs_carry_messages_inside(run: Runner) -> None:
    act = """
import array, os, socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    a, b = socket.socketpair(socket.AF_UNIX, kind)
    os.write(a.fileno(), b"w"); assert os.read(b.fileno(), 1) == b"w"
    a.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
    data, passed, _, _ = b.recvmsg(1, 64); assert data == b"m" and len(passed) == 1
    os.write(a.fileno(), b"r"); assert b.recvfrom(1)[0] == b"r"
"""
    assert status_and_output(run(OFFLINE, ["-c", act])) == (0, "")


def test_threads_forks_and_programs_start_inside(run: Runner) -> None:
    act = """
import os, subprocess, threading
t = threading.Thread(target=print, args=("thread",), kwargs={"flush": True}); t.start(); t.join()
if not (p := os.fork()): os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) == 7
assert os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1] == 0
subprocess.run(["echo", "program"], check=True)
"""
    for program in (OFFLINE, OFFLINE_ALONE, ONLINE):
        assert status_and_output(run(program, ["-c", act])) == (0, "thread\nprogram\n")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_connection_is_made_outside_and_with_the_network_only(run: Runner, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    act = ["-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 20)"]
    assert run(None, act).returncode == 0
    assert run(ONLINE, act).returncode == 0
    refused = run(OFFLINE, act)
    assert refused.returncode == 1
    assert "PermissionError: [Errno 1] Operation not permitted" in refused.stderr


def test_no_datagram_reaches_a_host_socket(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "d"
    unconnected = f"""
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendmsg([b"single"], [], 0, {str(path)!r})
"""
    pair = unconnected.replace("s = socket.socket", "s, t = socket.socketpair").replace("single", "paired")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host:
        host.bind(str(path))
        host.setblocking(False)
        for act, message in ((unconnected, b"single"), (pair, b"paired")):
            assert run(None, ["-c", act]).returncode == 0
            assert host.recv(100) == message
            refused = run(OFFLINE, ["-c", act])
            assert (refused.returncode, "PermissionError" in refused.stderr) == (1, True)
            with pytest.raises(BlockingIOError):
                host.recv(100)


def test_a_stream_socket_cannot_send_a_datagram_instead(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "d"
    act = f"""
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for s in (socket.socket(socket.AF_UNIX, kind), *socket.socketpair(socket.AF_UNIX, kind)):
        try: s.sendmsg([b"x"], [], 0, {str(path)!r})
        except OSError: pass
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host:
        host.bind(str(path))
        host.setblocking(False)
        assert status_and_output(run(OFFLINE, ["-c", act])) == (0, "")
        with pytest.raises(BlockingIOError):
            host.recv(100)


TYPE_INTO_TERMINAL = """
import fcntl, os, pty, sys
pid, master = pty.fork()
if pid == 0:
    try: fcntl.ioctl(0, 0x5412, b"x")
    except OSError as error: os._exit(error.errno)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_nothing_is_typed_into_the_terminal(run: Runner) -> None:
    outside = run(None, ["-c", TYPE_INTO_TERMINAL]).returncode
    switch = Path("/proc/sys/dev/tty/legacy_tiocsti")
    # Some kernels refuse it by themselves, with another error.
    works = not switch.exists() or switch.read_text() == "1\n"
    assert outside == 0 if works else outside in (0, errno.EIO)
    for program in (OFFLINE, ONLINE, OFFLINE_ALONE):
        assert run(program, ["-c", TYPE_INTO_TERMINAL]).returncode == errno.EPERM


def test_namespaces_are_made_outside_and_not_inside() -> None:
    act = ["-c", "import ctypes; raise SystemExit(bool(ctypes.CDLL(None).unshare(0x10000000)))"]
    outside = run_bare(None, act).returncode
    switch = Path("/proc/sys/user/max_user_namespaces")
    if os.geteuid() == 0 and int(switch.read_text()) > 0:
        assert outside == 0
    assert run_bare(OFFLINE_ALONE, act).returncode == 1
    assert run_bare(OFFLINE, act).returncode == outside


CODE = """
import ctypes, mmap
area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write(bytes.fromhex("{code}"))
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
raise SystemExit(0 if {good} else 1)
"""
# mov eax, 20; int 0x80; ret: getpid by the 32-bit gate
INT80 = CODE.format(code="b814000000cd80c3", good="call() > 0")
# mov eax, 0x40000000 | 39; syscall; ret: getpid by the x32 table, or "no such call"
X32 = CODE.format(code="b8270000400f05c3", good="call() != 0")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the gate is of x86-64; others are interpreted")
@pytest.mark.parametrize("program", [OFFLINE, ONLINE, OFFLINE_ALONE])
def test_the_32_bit_gate_ends_the_process(run: Runner, program: bytes) -> None:
    outside = run(None, ["-c", INT80]).returncode
    if outside == 0:
        assert run(program, ["-c", INT80]).returncode == (-signal.SIGSYS if run is run_bare else 159)
    else:  # a kernel without the gate
        assert outside in (-signal.SIGSEGV, 128 + signal.SIGSEGV)
        assert run(program, ["-c", INT80]).returncode == outside


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the table is of x86-64; others are interpreted")
def test_the_x32_table_ends_the_process() -> None:
    assert run_bare(None, ["-c", X32]).returncode == 0
    assert run_bare(OFFLINE, ["-c", X32]).returncode == -signal.SIGSYS
    assert run_bare(ONLINE, ["-c", X32]).returncode == -signal.SIGSYS


def test_a_descendant_cannot_lift_the_filter() -> None:
    act = """
import os, socket, subprocess, sys
from execserver.sandbox.thread_limits import install_filter
install_filter((0x06).to_bytes(2, sys.byteorder) + bytes(2) + (0x7fff0000).to_bytes(4, sys.byteorder))
subprocess.run([sys.executable, "-c", "import socket; socket.socket(socket.AF_INET)"], check=True)
"""
    done = run_bare(OFFLINE, ["-c", act])
    assert done.returncode == 1
    assert "PermissionError: [Errno 1]" in done.stderr
    assert run_bare(None, ["-c", act.replace("install_filter(", "len(")]).returncode == 0
