"""Bubblewrap itself as a target: whether a command inside can change the program that the next sandbox runs.

Everything here happens to a private copy of bubblewrap, never to the machine's own.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox import bubblewrap, seccomp
from execserver.sandbox.backend import Sources
from execserver.sandbox.bubblewrap import SealedProgram, memory_file
from execserver.sandbox.diagnostics.probe import probe
from execserver.sandbox.state_folder import empty_file, empty_folder
from execserver.sandbox.view import View

BWRAP = shutil.which("bwrap")

pytestmark = pytest.mark.skipif(BWRAP is None, reason="there is no bubblewrap on this machine")

ATTACK = r"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT, STEP, GETREGS, SETREGS, TRACE_FORK = 0x4206, 0x4207, 9, 12, 13, 2

def ptrace(request, pid, data):
    if libc.ptrace(request, pid, None, data) < 0:
        sys.exit(os.strerror(ctypes.get_errno()))

# The first process waits in a system call. It is made to fork at the same instruction.
ptrace(SEIZE, 1, ctypes.c_void_p(TRACE_FORK))
ptrace(INTERRUPT, 1, None)
os.waitpid(1, 0x40000000)
regs = (ctypes.c_ulonglong * 27)()
ptrace(GETREGS, 1, regs)
regs[10], regs[15], regs[16] = 57, 2**64 - 1, regs[16] - 2  # rax: fork; no call to begin anew; rip
ptrace(SETREGS, 1, regs)
ptrace(STEP, 1, None)
os.waitpid(1, 0x40000000)
ours = {1, os.getpid()}
(child,) = (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in ours)
os.chmod(f"/proc/{child}/exe", 0o777)
"""
"""Makes the first process fork, and changes the mode of the child's program. x86-64."""

NO_LIMITS = (0x06).to_bytes(2, sys.byteorder) + bytes(2) + seccomp.ALLOW.to_bytes(4, sys.byteorder)
"""A filter that allows everything, like earlier filters for `ptrace` with the network."""

ONLINE = seccomp.program(network=True, files_limited=True)

Attack = Callable[[str, bytes, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A bubblewrap of our own, mode 0755."""
    assert BWRAP is not None
    copy = Path(shutil.copy(BWRAP, tmp_path / "bwrap"))
    copy.chmod(0o755)
    return copy


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    """Run a script in a read-only sandbox with the network on."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    sources = Sources(empty_file(str(state)), empty_folder(str(state)))
    made = bubblewrap.options(View("read", (), network=True), sources, root_user=os.geteuid() == 0)

    def run(program: str, filtering: bytes, script: str) -> subprocess.CompletedProcess[str]:
        descriptors = [memory_file(filtering), os.open("/dev/null", os.O_WRONLY)]
        try:
            inside = bubblewrap.SandboxedCommand((), "/", {"LC_ALL": "C"})
            arguments = bubblewrap.arguments(made, inside, descriptors[0], descriptors[1])
            descriptors.append(memory_file(arguments))
            line = ["bwrap", "--args", str(descriptors[2]), "--", sys.executable, "-I", "-S", "-c", script]
            # `subprocess` closes the descriptor of a copy in the child, before its exec.
            return subprocess.run(
                line,
                executable=program.replace("/proc/self/", f"/proc/{os.getpid()}/"),
                pass_fds=descriptors,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    return run


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the attack is written for x86-64 registers")
def test_a_command_that_traces_bubblewrap_reaches_a_program_of_the_host_and_no_sealed_copy(
    attack: Attack, private: Path
) -> None:
    content = private.read_bytes()
    without = attack(str(private), NO_LIMITS, ATTACK)
    if "Operation not permitted" in without.stderr:
        pytest.skip("this kernel lets no process trace another (kernel.yama.ptrace_scope)")
    assert mode_of(private) == 0o777, without
    private.chmod(0o755)

    sealed = SealedProgram(str(private))
    attack(sealed.path, NO_LIMITS, ATTACK)
    assert mode_of(private) == 0o755
    assert attack(sealed.path, NO_LIMITS, "").returncode == 0, "the copy still works"

    refused = attack(str(private), ONLINE, ATTACK)
    assert (refused.returncode, refused.stderr.strip()) == (1, "Operation not permitted")
    assert (mode_of(private), private.read_bytes()) == (0o755, content)


OTHER_WAYS = {
    "attaching": (
        "failed = libc.ptrace(16, 1, None, None) < 0\n"
        "failed or (os.waitpid(1, 0x40000000), libc.ptrace(17, 1, None, None))\n"
        "sys.exit(failed)"
    ),
    "with more bits than a pid has": "sys.exit(libc.syscall(101, 0x4206, 1 | 1 << 32, 0, 0) < 0)",
    "reading its memory": (
        "space = ctypes.create_string_buffer(8)\n"
        "vector = (ctypes.c_size_t * 2)(ctypes.addressof(space), 8)\n"
        "there = (ctypes.c_size_t * 2)(4096, 8)\n"
        "libc.process_vm_readv(1, vector, 1, there, 1, 0)\n"
        "sys.exit(ctypes.get_errno() != 14)"  # EFAULT: it was looked at
    ),
    "writing its memory": (
        "space = ctypes.create_string_buffer(8)\n"
        "vector = (ctypes.c_size_t * 2)(ctypes.addressof(space), 8)\n"
        "there = (ctypes.c_size_t * 2)(4096, 8)\n"
        "libc.process_vm_writev(1, vector, 1, there, 1, 0)\n"
        "sys.exit(ctypes.get_errno() != 14)"
    ),
    "a descriptor of it": "os.pidfd_open(1)",
    "a descriptor that it has": (
        # Of a child, as the number of process 1 is refused before.
        "import time\n"
        "child = os.fork() or time.sleep(60)\n"
        "taken = libc.syscall(438, os.pidfd_open(child), 0, 0)\n"
        "os.kill(child, 9)\n"
        "sys.exit(taken < 0)"
    ),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls by their numbers on x86-64")
@pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS.keys())
def test_no_other_way_leads_to_the_first_process(attack: Attack, private: Path, way: str) -> None:
    script = f"import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n{way}"
    assert attack(str(private), NO_LIMITS, script).returncode == 0, "it works without the filter"
    assert attack(str(private), ONLINE, script).returncode == 1


def test_a_sealed_copy_cannot_be_changed_by_its_owner(private: Path) -> None:
    copy = SealedProgram(str(private))
    with pytest.raises(PermissionError), open(copy.path, "r+b", buffering=0) as file:
        file.write(b"x")
    with pytest.raises(PermissionError):
        os.truncate(copy.path, 0)
    with pytest.raises(PermissionError):
        os.chmod(copy.path, 0o644)
    done = subprocess.run([copy.path, "--version"], pass_fds=[copy.fileno()], capture_output=True)
    assert done.stdout.startswith(b"bubblewrap ")


def test_a_program_that_cannot_be_copied_is_run_itself_and_then_nothing_is_traced(
    attack: Attack, private: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\nexec {private} "$@"\n')
    script.chmod(0o755)
    state = str(tmp_path / "state")
    assert probe(str(private), state).sealed is not None
    found = probe(str(script), state)
    assert (found.works, found.sealed) == (True, None)
    own_child = (
        "import ctypes, os, signal\nif not (child := os.fork()): signal.pause()\n"
        "failed = ctypes.CDLL(None).ptrace(0x4206, child, None, None) < 0\n"
        "os.kill(child, 9)\nraise SystemExit(failed)"
    )
    assert attack(str(private), ONLINE, own_child).returncode == 0
    untraced = seccomp.program(network=True, files_limited=True, tracing=False)
    assert attack(str(private), untraced, own_child).returncode == 1


def test_a_bubblewrap_in_which_the_first_process_can_be_traced_does_not_confine(
    private: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    # Without our filter but with one: then only what is tried tells.
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, sys\n"
        "words = os.read(int(sys.argv[2]), 1 << 20).decode().split('\\0')[:-1]\n"
        "os.close(int(sys.argv[2]))\n"
        f"filtering = {NO_LIMITS!r}\n"
        "fd = os.memfd_create('filter'); os.write(fd, filtering); os.lseek(fd, 0, 0)\n"
        "if '--unshare-net' not in words: os.dup2(fd, int(words[words.index('--seccomp') + 1]))\n"
        f"os.execv({str(private)!r}, ['bwrap', *words, *sys.argv[sys.argv.index('--'):]])\n"
    )
    program = tmp_path / "fake"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in --version|--help) exec {private} "$@";; esac\n'
        f'exec {sys.executable} {wrapper} "$@"\n'
    )
    program.chmod(0o755)
    result = probe(str(program), str(state))
    assert not result.works
    assert "does not confine: the first process inside" in result.reason
