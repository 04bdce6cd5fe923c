"""The views that Landlock can enforce, and their enforcement."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from execserver.launch_spec import LaunchSpec
from execserver.sandbox import landlock, seccomp
from execserver.sandbox.backend import Sandbox, Sources
from execserver.sandbox.backends import Landlock
from execserver.sandbox.landlock import Ruleset, unstatable
from execserver.sandbox.options import DaemonPaths
from execserver.sandbox.thread_limits import spawn_limited
from execserver.sandbox.view import Bind, Mask, Mount, Symlink, Tmpfs, View

OFFLINE = seccomp.program(network=False, files_limited=True, namespaces_denied=True)
ONLINE = seccomp.program(network=True, files_limited=True, namespaces_denied=True)

# By path, without opening the file.
PYTHON_TRUNCATES = f"{sys.executable} -c 'import os; os.truncate(\"{{0}}/a\", 0)'"

enforced = pytest.mark.skipif(landlock.unavailable() is not None, reason=str(landlock.unavailable()))


def view(
    *mounts: Mount, base: str = "read", mount_points: tuple[str, ...] = (), network: bool = False
) -> View:
    assert base in ("read", "write", "empty", "host")
    return View(base, mounts, mount_points, network=network)  # type: ignore[arg-type]


def readable(path: str) -> Bind:
    return Bind(path, path, writable=False)


def writable(path: str) -> Bind:
    return Bind(path, path, writable=True)


@pytest.mark.parametrize(
    "stated",
    [
        view(),
        view(network=True),
        view(writable("/w")),
        view(readable("/etc"), writable("/etc/w")),
        view(readable("/usr"), Symlink("/bin", "usr/bin"), base="empty"),
        view(readable("/a"), writable("/a/b"), writable("/c"), base="empty"),
        view(base="host"),
    ],
)
def test_grants_alone_can_be_stated(stated: View) -> None:
    assert unstatable(stated) is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (view(base="write"), "cannot enforce a writable root"),
        (view(writable("/w"), mount_points=("/w/.git",)), "cannot keep /w/.git from being made"),
        (view(Mask("/secret", directory=False)), "cannot deny /secret"),
        (view(Tmpfs("/run", 0o755)), "empty folder in the place of /run"),
        (view(writable("/w"), readable("/w/.git")), "cannot make /w/.git read-only: it lies in /w"),
        (view(writable("/w"), readable("/w")), "cannot make /w read-only"),
        (view(readable("/w/.git"), writable("/w")), "cannot make /w/.git read-only"),
        (view(Bind("/a", "/b", writable=False)), "cannot show /a at another path, /b"),
        (view(Bind("/a", "/b", writable=True)), "cannot show /a at another path, /b"),
    ],
)
def test_everything_else_cannot_be_stated_and_the_reason_names_the_path(other: View, reason: str) -> None:
    found = unstatable(other)
    assert found is not None
    assert found.startswith("Landlock cannot ")
    assert reason in found
    with pytest.raises(ValueError, match=reason):
        Ruleset.of_view(other)


def test_a_neighbour_of_a_writable_folder_is_not_in_it() -> None:
    assert unstatable(view(writable("/w"), readable("/work"))) is None


def test_the_daemons_own_things_can_be_hidden_while_the_network_is_off() -> None:
    own = DaemonPaths(folders=("/own",), files=("/etc/own.toml",))
    masks = (Mask("/own", directory=True), Mask("/etc/own.toml", directory=False))
    assert unstatable(view(*masks), own) is None
    assert "cannot deny /own" in str(unstatable(view(*masks)))
    assert "while the network is enabled" in str(unstatable(view(*masks, network=True), own))
    assert "may be written to" in str(unstatable(view(writable("/own"), *masks), own))
    assert "may be written to" in str(unstatable(view(*masks, base="host"), own))


def test_a_command_with_limits_may_not_write_to_its_control_groups() -> None:
    command = LaunchSpec("/bin/true", ("true",), "/", {}, read_only=("/groups/pids",))
    backend = Landlock(DaemonPaths())
    with pytest.raises(ValueError, match=r"control groups in /groups/pids cannot have limits"):
        backend.wrap(command, Sandbox(view=view(writable("/groups")), sources=Sources("", "")))
    other = Sandbox(view=view(writable("/w")), sources=Sources("", ""))
    assert backend.wrap(command, other).limit is not None


def test_a_view_without_limits_on_files_needs_no_rules() -> None:
    with pytest.raises(ValueError, match="a seccomp filter alone is enough"):
        Ruleset.of_view(view(base="host"))


def test_a_kernel_that_is_too_old_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 5)
    assert "ABI 5: ABI 6 is needed (Linux 6.12); use bubblewrap" in str(landlock.unavailable())
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert "has no Landlock" in str(landlock.unavailable())


def start(rules: Ruleset, program: bytes, *arguments: str) -> tuple[int, str]:
    """Run a program under rules; its exit code and all its output."""
    reader, writer = os.pipe()
    with rules, os.fdopen(reader, "rb") as output:
        pid = spawn_limited(
            lambda: rules.restrict_self(program),
            lambda: os.posix_spawn(
                arguments[0],
                arguments,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_DUP2, writer, 2)],
            ),
        )
        os.close(writer)
        text = output.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def shell(rules: Ruleset, script: str) -> tuple[int, str]:
    return start(rules, OFFLINE, "/bin/sh", "-c", script)


def python(rules: Ruleset, script: str, program: bytes = OFFLINE) -> tuple[int, str]:
    return start(rules, program, sys.executable, "-c", script)


def read_only() -> Ruleset:
    return Ruleset.of_view(view())


def outside(script: str) -> int:
    return subprocess.run(["/bin/sh", "-c", script], capture_output=True).returncode


@enforced
def test_under_a_read_only_view_everything_is_read_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    assert shell(read_only(), f"cat {tmp_path}/a; ls {tmp_path}") == (0, "contenta\n")
    for act in (
        "echo x > {0}/a",
        "echo x >> {0}/a",
        "echo x > {0}/n",
        "truncate -s 0 {0}/a",
        PYTHON_TRUNCATES,
        "rm {0}/a",
        "mv {0}/a {0}/b",
        "mkdir {0}/d",
        "ln -s a {0}/l",
        "ln {0}/a {0}/h",
        "mkfifo {0}/f",
        "echo x > /proc/self/root{0}/n",
    ):
        script = act.format(tmp_path)
        code, said = shell(read_only(), script)
        assert code != 0, act
        assert "Permission denied" in said or "Operation not permitted" in said
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
        assert (tmp_path / "a").read_text() == "content"
        assert outside(script) == 0, act
        for path in tmp_path.iterdir():
            path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        (tmp_path / "a").write_text("content")


@enforced
def test_an_empty_view_shows_only_what_was_granted(tmp_path: Path) -> None:
    granted, other = tmp_path / "granted", tmp_path / "other"
    for folder in (granted, other):
        folder.mkdir()
        (folder / "a").write_text("content")
    platform = [readable(path) for path in ("/usr", "/etc", "/bin", "/lib", "/lib64")]
    stated = view(*platform, readable(str(granted)), base="empty")
    assert shell(Ruleset.of_view(stated), f"cat {granted}/a") == (0, "content")
    for act in (f"cat {other}/a", f"ls {other}", f"ls {tmp_path}", "ls /", f"cat {granted}/../other/a"):
        assert outside(act) == 0
        code, said = shell(Ruleset.of_view(stated), act)
        assert code != 0
        assert "Permission denied" in said
    assert shell(Ruleset.of_view(stated), f"echo x > {granted}/a")[0] != 0


@enforced
def test_a_link_from_a_granted_folder_leads_nowhere(tmp_path: Path) -> None:
    granted = tmp_path / "granted"
    granted.mkdir()
    (tmp_path / "secret").write_text("s")
    (granted / "link").symlink_to(tmp_path / "secret")
    rules = Ruleset(["/usr", "/bin", "/lib", "/lib64", "/etc", str(granted)], [], network=False)
    assert "Permission denied" in shell(rules, f"cat {granted}/link")[1]
    assert outside(f"cat {granted}/link") == 0


@enforced
def test_in_a_writable_folder_everything_can_be_done(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    script = f"""set -e; cd {folder}
mkdir d e; echo x > d/a; mv d/a e/a; ln e/a d/h; ln -s a e/l; mkfifo f; truncate -s 9 e/a; rm f; rm -r d
! echo x > {tmp_path}/n"""
    assert shell(Ruleset.of_view(view(writable(str(folder)))), script)[0] == 0
    assert sorted(os.listdir(folder / "e")) == ["a", "l"]
    assert os.listdir(tmp_path) == ["w"]


@enforced
def test_a_file_cannot_be_linked_or_moved_into_a_writable_folder(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    (tmp_path / "a").write_text("content")
    for act in (f"ln {tmp_path}/a {folder}/h", f"mv {tmp_path}/a {folder}/a"):
        assert shell(Ruleset.of_view(view(writable(str(folder)))), act)[0] != 0
    assert (tmp_path / "a").read_text() == "content"
    assert (tmp_path / "a").stat().st_nlink == 1
    assert outside(f"ln {tmp_path}/a {folder}/h") == 0


@enforced
def test_single_files_can_be_granted(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("r")
    (tmp_path / "w").write_text("w")
    rules = Ruleset(
        ["/usr", "/bin", "/lib", "/lib64", str(tmp_path / "r")], [str(tmp_path / "w")], network=False
    )
    script = f"cat {tmp_path}/r; echo x > {tmp_path}/w; echo x > {tmp_path}/r"
    assert "Permission denied" in shell(rules, script)[1]
    assert [(tmp_path / name).read_text() for name in "rw"] == ["r", "x\n"]


@enforced
def test_a_missing_path_grants_nothing_later(tmp_path: Path) -> None:
    late = tmp_path / "late"
    with Ruleset(["/"], [str(late)], network=False) as rules:
        late.mkdir()
        assert shell(rules, f"echo x > {late}/n")[0] != 0
    assert os.listdir(late) == []


@enforced
def test_the_daemons_own_things_are_not_read(tmp_path: Path) -> None:
    own, beside = tmp_path / "own", tmp_path / "beside"
    for folder in (own, beside):
        folder.mkdir()
        (folder / "a").write_text("content")
    (tmp_path / "own.toml").write_text("token")
    (tmp_path / "file").write_text("file")
    (tmp_path / "link").symlink_to(own)
    things = DaemonPaths(folders=(str(own),), files=(str(tmp_path / "own.toml"),))
    stated = view(Mask(str(own), directory=True), Mask(str(tmp_path / "own.toml"), directory=False))
    script = f"cd {tmp_path}; cat own/a; cat link/a; cat own.toml; cat beside/a file; ls"
    code, said = shell(Ruleset.of_view(stated, own=things), script)
    assert code == 0
    assert said.count("Permission denied") == 3
    assert "token" not in said
    assert said.endswith("contentfilebeside\nfile\nlink\nown\nown.toml\n")


@enforced
def test_a_hidden_thing_in_a_writable_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be hidden: it lies in a writable folder"):
        Ruleset(["/"], [str(tmp_path)], network=False, hidden=[str(tmp_path / "own")])


@enforced
def test_a_folder_hidden_itself_is_not_even_listed(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    rules = Ruleset(
        ["/usr", "/bin", "/lib", "/lib64", str(tmp_path)], [], network=False, hidden=[str(tmp_path)]
    )
    assert "Permission denied" in shell(rules, f"ls {tmp_path}")[1]


@enforced
def test_processes_outside_get_no_signal_and_own_ones_do() -> None:
    victim = subprocess.Popen(["sleep", "1000"])
    try:
        kill = f"import os; os.kill({victim.pid}, 9)"
        code, said = python(read_only(), kill)
        assert (code, "PermissionError" in said) == (1, True)
        code, said = python(
            read_only(), f"import signal, os; signal.pidfd_send_signal(os.pidfd_open({victim.pid}), 9)"
        )
        assert (code, "PermissionError" in said) == (1, True)
        assert victim.poll() is None
        subprocess.run([sys.executable, "-c", kill], check=True)
        assert victim.wait(30) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()
    assert shell(read_only(), "sleep 1000 & kill -9 $!; wait $!; exit $?")[0] == 137


@enforced
def test_the_daemon_can_still_end_what_it_limited() -> None:
    with read_only() as rules:
        pid = spawn_limited(
            lambda: rules.restrict_self(OFFLINE), lambda: os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
        )
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


@enforced
def test_processes_outside_are_not_looked_into() -> None:
    victim = subprocess.Popen(["sleep", "1000"], env={"SECRET": "1"})
    try:
        for name in ("environ", "mem", "maps"):
            act = f"open('/proc/{victim.pid}/{name}', 'rb').read(0)"
            subprocess.run([sys.executable, "-c", act], check=True)
            code, said = python(read_only(), act)
            assert (code, "PermissionError" in said) == (1, True)
    finally:
        victim.kill()
        victim.wait()


@enforced
@pytest.mark.parametrize("act", ["connect", "bind"])
def test_without_the_network_landlock_alone_refuses_tcp(act: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if act == "connect" else 0
        script = f"import socket; socket.socket().{act}(('127.0.0.1', {port}))"
        allowed = Ruleset(["/"], [], network=True)
        assert python(allowed, script, ONLINE)[0] == 0
        refused = Ruleset(["/"], [], network=False)
        code, said = python(refused, script, ONLINE)  # a filter that would let it pass
        assert (code, "PermissionError: [Errno 13]" in said) == (1, True)


@enforced
def test_without_the_network_landlock_alone_refuses_abstract_sockets() -> None:
    name = f"\0execserver-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        # The filter that goes with the network refuses Unix sockets, too.
        allowing = seccomp.program(network=True, files_limited=True)
        assert python(Ruleset(["/"], [], network=True), script, allowing)[0] == 0
        for network, program in ((False, allowing), (True, ONLINE)):
            code, said = python(Ruleset(["/"], [], network=network), script, program)
            assert (code, "PermissionError" in said) == (1, True)


@enforced
def test_no_capability_and_no_namespace_is_left() -> None:
    script = """
import ctypes, json
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000)]
print(json.dumps([[int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")],
                  status["NoNewPrivs"].strip(), status["Seccomp"].strip(), made]))
"""
    code, said = python(read_only(), script)
    assert code == 0
    assert json.loads(said) == [[0, 0, 0, 0], "1", "2", [-1, -1, -1]]


@enforced
def test_root_without_capabilities_writes_to_no_kernel_switch() -> None:
    switch = Path("/proc/sys/kernel/core_pattern")
    before = switch.read_text()
    assert shell(read_only(), f"cat {switch} > {switch}")[0] != 0
    assert switch.read_text() == before


@enforced
def test_the_usual_devices_are_written_to() -> None:
    script = "set -e; echo x > /dev/null; echo x > /dev/zero; head -c 1 /dev/urandom > /dev/null"
    code, said = shell(read_only(), f"{script}; ! head -c 1 /dev/zero > /dev/full")
    assert (code, "No space left" in said) == (0, True)


@enforced
def test_a_command_has_its_own_terminal_and_no_other() -> None:
    (master, slave), (other_master, other_slave) = pty.openpty(), pty.openpty()
    try:
        own, other = os.ttyname(slave), os.ttyname(other_slave)
        script = f"""
import os, termios
fd = os.open({own!r}, os.O_RDWR | os.O_NOCTTY)
assert os.isatty(fd); termios.tcsetattr(fd, termios.TCSANOW, termios.tcgetattr(fd))
os.open({other!r}, os.O_RDONLY | os.O_NOCTTY)
"""
        code, said = python(Ruleset.of_view(view(), terminal=own), script)
        assert code == 1
        assert f"PermissionError: [Errno 13] Permission denied: '{other}'" in said
        assert termios.tcgetattr(slave)
        subprocess.run([sys.executable, "-c", script], check=True)
    finally:
        for fd in (master, slave, other_master, other_slave):
            os.close(fd)


@enforced
def test_a_device_that_may_only_be_read_is_not_controlled() -> None:
    master, slave = pty.openpty()
    try:
        path = os.ttyname(slave)
        script = f"import os, termios; termios.tcgetattr(os.open({path!r}, os.O_RDONLY | os.O_NOCTTY))"
        subprocess.run([sys.executable, "-c", script], check=True)
        code, said = python(Ruleset(["/"], [], network=False), script)
        assert (code, "Permission denied" in said) == (1, True)
    finally:
        os.close(master)
        os.close(slave)


@enforced
def test_the_root_is_listed_and_devices_are_not_read() -> None:
    code, said = shell(
        read_only(), "ls / && ls /dev/pts && cat /dev/fd/0 < /etc/passwd > /dev/null; cat /dev/mem"
    )
    assert "usr\n" in said
    assert "cat: /dev/mem: " in said
    assert code == 1


@enforced
def test_threads_programs_and_pipes_work_inside() -> None:
    script = """
import subprocess, threading
t = threading.Thread(target=print, args=("thread",), kwargs={"flush": True}); t.start(); t.join()
print(subprocess.run("echo program | cat", shell=True, capture_output=True, text=True).stdout, end="")
"""
    assert python(read_only(), script) == (0, "thread\nprogram\n")


@enforced
def test_the_daemon_itself_is_not_limited_afterwards(tmp_path: Path) -> None:
    assert shell(read_only(), "true") == (0, "")
    (tmp_path / "n").write_text("x")
    socket.socket(socket.AF_INET).close()
    assert outside(f"echo x > {tmp_path}/m") == 0


@enforced
@pytest.mark.parametrize("version", range(1, 10))
def test_rules_for_older_kernels_are_ones_that_a_kernel_takes(
    version: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = landlock.abi()
    monkeypatch.setattr(landlock, "abi", lambda: min(version, real))
    (tmp_path / "a").write_text("a")
    code, said = shell(Ruleset([str(tmp_path), "/"], [], network=False), f"echo x > {tmp_path}/n")
    assert (code != 0, "Permission denied" in said) == (True, True)
    with Ruleset(["/", str(tmp_path / "a")], [str(tmp_path)], network=False) as rules:
        assert shell(rules, f"echo x > {tmp_path}/n")[0] == 0


@enforced
def test_a_ruleset_holds_one_descriptor_until_it_is_closed() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    rules = Ruleset(["/"], ["/tmp"], network=False, hidden=["/etc/nothing"])
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    rules.close()
    rules.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


@enforced
def test_the_rulesets_descriptor_does_not_reach_the_command() -> None:
    rules = read_only()
    assert "landlock" in os.readlink(f"/proc/self/fd/{rules._fd}")
    code, said = shell(rules, "ls -l /proc/self/fd")
    assert (code, "landlock" in said) == (0, False)
    assert "/proc/" in said


@enforced
def test_a_closed_ruleset_is_refused_and_nothing_is_spawned() -> None:
    rules = read_only()
    rules.close()
    with pytest.raises(OSError, match="Landlock: Bad file descriptor"):
        spawn_limited(lambda: rules.restrict_self(OFFLINE), lambda: os.posix_spawn("/bin/true", ["true"], {}))
