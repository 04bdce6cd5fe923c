"""A request is confined by a backend that works here, or refused with the missing piece and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execprotocol.errors import InvalidRequest
from execserver.launch_spec import LaunchSpec
from execserver.sandbox import landlock, sandboxes, seatbelt, state_folder, view
from execserver.sandbox.backends import BackendConfinement
from execserver.sandbox.confinement import Confinement
from execserver.sandbox.diagnostics.probe import ProbeResult, probe
from execserver.sandbox.disk import writable_inside
from execserver.sandbox.mount_points.registry import MountPoints
from execserver.sandbox.options import DaemonPaths, SandboxOptions
from execserver.sandbox.policy import PROTECTED_NAMES, Policy
from execserver.sandbox.sandboxes import Sandboxes
from execserver.sandbox.view import RequiredPaths, View, build_view
from tests.unit.sandbox.rig import DENY, PATH, READ, WRITE, policy, workspace

OFFLINE = Policy(unrestricted=True, network=False)

Make = Callable[..., Sandboxes]


@pytest.fixture
def ws(base: Path) -> Path:
    folder = base / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def make(base: Path) -> Iterator[Make]:
    made: list[Sandboxes] = []

    def do_make(
        bubblewrap: str | None = None, *, landlock: bool = False, spool: str | None = None
    ) -> Sandboxes:
        options = SandboxOptions(bubblewrap, landlock, spool or str(base / "state"))
        made.append(Sandboxes(options, DaemonPaths(), {"PATH": PATH}))
        return made[-1]

    yield do_make
    for one in made:
        one.close()


def command(*arguments: str, tty: bool = False, cwd: str = "/") -> LaunchSpec:
    return LaunchSpec("/bin/sh", arguments or ("sh",), cwd, {"PATH": PATH}, tty)


def run(confinement: Confinement, script: str) -> subprocess.CompletedProcess[str]:
    wrapped = confinement.wrap(command("sh", "-c", script))
    try:
        return subprocess.run(
            wrapped.arguments,
            # `subprocess` closes the descriptor of a copy in the child, before its exec.
            executable=wrapped.program.replace("/proc/self/", f"/proc/{os.getpid()}/"),
            env=dict(wrapped.environment),
            pass_fds=wrapped.passed,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for fd in (*wrapped.passed, *([] if wrapped.status is None else [wrapped.status])):
            os.close(fd)


# -- bubblewrap


def test_a_command_is_confined_and_nothing_is_left_of_that(make: Make, base: Path, ws: Path) -> None:
    boxes = make()
    confinement = boxes.prepare(workspace(ws), command())
    assert isinstance(confinement, BackendConfinement)
    assert confinement.backend == "bubblewrap"
    assert sorted(os.listdir(ws)) == [".agents", ".aws", ".codex", ".git"]
    ran = run(confinement, f"echo 1 > {ws}/n; echo 1 > {base}/n; ls -A {base}/state")
    boxes.release(confinement)
    assert os.listdir(ws) == ["n"]
    assert not (base / "n").exists()
    assert ran.stdout == "", "our own state is hidden"


def test_a_daemons_end_gives_everything_back(make: Make, ws: Path) -> None:
    boxes = make()
    boxes.prepare(workspace(ws), command())
    assert os.listdir(ws)
    boxes.close()
    assert os.listdir(ws) == []


def test_folders_that_come_and_go_meanwhile_are_looked_at_again(base: Path, ws: Path) -> None:
    (ws / "keep").touch()
    own = DaemonPaths(files=(f"{ws}/a/b/settings.toml",))
    boxes = Sandboxes(SandboxOptions(None, False, str(base / "state")), own, {"PATH": PATH})
    come_and_go = (
        "import contextlib, os, time\n"
        "while True:\n"
        "    for change in (os.makedirs, os.removedirs):\n"
        "        with contextlib.suppress(OSError):\n"
        "            change('a/b')\n"
        "        time.sleep(0.001)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", come_and_go], cwd=ws)
    try:
        for _ in range(100):
            boxes.release(boxes.prepare(workspace(ws), command()))
    finally:
        process.kill()
        process.wait()
        boxes.close()


def test_many_threads_may_ask_at_once(make: Make, ws: Path) -> None:
    boxes = make()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(5):
                boxes.release(boxes.prepare(workspace(ws), command()))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(ws) == []


def test_a_sandbox_may_end_while_another_is_made_within_its_mount_points(base: Path, ws: Path) -> None:
    # The mount point of the one is `.config` if it comes first, else the file within those of another.
    own = DaemonPaths(files=(f"{ws}/.config/execserver/config.toml",))
    boxes = Sandboxes(SandboxOptions(None, False, str(base / "state")), own, {"PATH": PATH})
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(40):
                boxes.release(boxes.prepare(workspace(ws), command()))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    boxes.close()
    assert failures == []
    assert os.listdir(ws) == []


def test_a_mount_point_that_got_files_meanwhile_is_an_ordinary_folder(base: Path, ws: Path) -> None:
    own = DaemonPaths(files=(f"{ws}/.config/execserver/config.toml",))
    boxes = Sandboxes(SandboxOptions(None, False, str(base / "state")), own, {"PATH": PATH})
    first = boxes.prepare(workspace(ws), command())
    (ws / ".config/of the user").write_bytes(b"")

    second = boxes.prepare(workspace(ws), command())
    assert (ws / ".config/execserver").is_dir()
    for confinement in (first, second):
        boxes.release(confinement)
    boxes.close()
    assert [str(path.relative_to(ws)) for path in ws.rglob("*")] == [".config", ".config/of the user"]


@pytest.mark.parametrize("missing", [".git", "kept"])
def test_a_folder_that_a_command_marks_as_a_mount_point_is_guarded_as_before(
    make: Make, ws: Path, missing: str
) -> None:
    boxes, limits = make(), workspace(ws, (ws / "kept", READ))
    os.setxattr(ws, "user.execserver.mount-point", b"1")

    confinement = boxes.prepare(limits, command())
    done = run(confinement, f"echo written > {ws}/of_the_command; mkdir -p {ws}/{missing}/inside")
    boxes.release(confinement)
    assert "inside" in done.stderr
    assert os.listdir(ws) == ["of_the_command"]


def test_a_marked_folder_below_a_root_of_another_user_is_guarded(
    make: Make, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = ws / "inner"
    inner.mkdir()
    os.setxattr(inner, "user.execserver.mount-point", b"1")
    monkeypatch.setattr(
        "execserver.sandbox.tree.writable_inside",
        lambda folder: folder != str(ws) and writable_inside(folder),
    )
    boxes = make()

    confinement = boxes.prepare(workspace(ws, (inner / "kept", READ)), command())
    done = run(confinement, f"mkdir -p {inner}/kept/inside; echo written > {inner}/of_the_command")
    boxes.release(confinement)
    assert "kept" in done.stderr
    assert os.listdir(inner) == ["of_the_command"]


def test_extra_paths_are_readable_inside(make: Make, base: Path, ws: Path) -> None:
    (base / "beside").write_text("found\n")
    limits = policy((ws, READ), (base, DENY), minimal=True)
    boxes = make()
    for extra, output in (((str(base / "beside"),), "found\n"), ((), "")):
        confinement = boxes.prepare(limits, command(), extra)
        assert run(confinement, f"cat {base}/beside").stdout == output
        boxes.release(confinement)


def test_a_command_that_could_not_run_is_refused_and_leaves_nothing(make: Make, base: Path, ws: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"the working directory .* cannot be read under this policy"):
        make().prepare(policy((ws, READ), minimal=True), command(cwd=str(base)))
    assert os.listdir(ws) == []


def test_a_link_that_takes_a_protected_place_at_the_last_moment_is_refused(
    make: Make, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def build_then_plant(limits: Policy, own: DaemonPaths, needs: RequiredPaths) -> View:
        seen = build_view(limits, own, needs)
        (ws / ".git").symlink_to("/etc")
        return seen

    monkeypatch.setattr(view, "build_view", build_then_plant)
    with pytest.raises(InvalidRequest, match="became a symbolic link just now"):
        make().prepare(workspace(ws), command())
    assert os.listdir(ws) == [".git"]


def bind_fd(base: Path) -> bool:
    """Whether this machine's bubblewrap accepts descriptors for mounts."""
    return "bind-fd" in probe(None, str(base), PATH).features


def open_again(most: int) -> bool:
    """Whether no more descriptors are open; those of removed folders are closed a moment later."""
    deadline = time.monotonic() + 20
    while len(os.listdir("/proc/self/fd")) > most:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_writable_folder_that_is_swapped_for_a_link_after_the_look_leads_nowhere_else(
    make: Make, base: Path, ws: Path
) -> None:
    if not bind_fd(base):
        pytest.skip("bubblewrap has no --bind-fd")
    (base / "out").mkdir()
    confinement = make().prepare(workspace(ws), command())
    ws.rename(base / "moved")
    ws.symlink_to("out")
    run(confinement, f"echo x > {ws}/new")
    assert not (base / "out/new").exists()
    control = f"echo x > {ws}/new"
    subprocess.run(["/bin/sh", "-c", control], check=True)
    assert (base / "out/new").exists(), "it would have led there"


def test_a_writable_folder_that_is_swapped_during_the_look_is_refused(
    make: Make, base: Path, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bind_fd(base):
        pytest.skip("bubblewrap has no --bind-fd")
    (base / "out").mkdir()

    def build_then_swap(limits: Policy, own: DaemonPaths, needs: RequiredPaths) -> View:
        seen = build_view(limits, own, needs)
        ws.rename(base / "moved")
        ws.symlink_to("out")
        return seen

    monkeypatch.setattr(view, "build_view", build_then_swap)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidRequest, match="was replaced just now"):
        # `.git` is there, so that nothing has to be made in the folder itself.
        make().prepare(
            policy(("/", READ), (ws, WRITE), *((ws / name, WRITE) for name in PROTECTED_NAMES)), command()
        )
    assert open_again(before + 3)  # the registry's own


def test_a_confinement_that_is_never_used_gives_its_descriptors_back(make: Make, ws: Path) -> None:
    sandbox = make()
    sandbox.release(sandbox.prepare(workspace(ws), command()))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        sandbox.release(sandbox.prepare(workspace(ws), command()))
    assert open_again(before)


def test_on_macos_commands_are_run_by_sandbox_exec(
    make: Make, ws: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = base / "sandbox-exec"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(seatbelt, "PROGRAM", str(program))
    wrapped = make().prepare(workspace(ws), command("sh", "-c", "true")).wrap(command("sh", "-c", "true"))
    assert wrapped.program == str(program)
    assert wrapped.arguments[:2] == (str(program), "-p")
    assert wrapped.arguments[-3:] == ("/bin/sh", "-c", "true")
    assert str(ws) not in wrapped.arguments[2], "paths are parameters"
    assert any(argument.endswith(str(ws)) for argument in wrapped.arguments)
    assert wrapped.environment["CODEX_SANDBOX"] == "seatbelt"


@pytest.mark.parametrize("platform", ["win32", "freebsd14"])
def test_a_platform_without_a_backend_refuses(
    make: Make, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(InvalidRequest, match="no sandbox backend on this platform"):
        make().prepare(OFFLINE, command())


def test_a_mount_point_that_cannot_be_made_is_an_error_that_names_it(make: Make, ws: Path) -> None:
    (ws / "file").write_text("")
    with pytest.raises(InvalidRequest) as caught:
        make().prepare(workspace(ws, (ws / "file" / "x", DENY)), command())
    assert str(caught.value) == f"failed to prepare process sandbox: Not a directory: {ws}/file/x"
    assert os.listdir(ws) == ["file"]


@pytest.mark.parametrize(
    ("given", "tool", "package", "field"),
    [(command(tty=True), "setsid", "util-linux", "tty"), (command("-sh"), "bash", "bash", "arg0")],
    ids=["setsid", "bash"],
)
def test_a_tool_that_is_missing_is_named_with_its_package(
    make: Make,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: LaunchSpec,
    tool: str,
    package: str,
    field: str,
) -> None:
    monkeypatch.setattr(sandboxes, "TOOL_PATH", str(base))
    with pytest.raises(InvalidRequest, match=f"the program {tool} is missing: install {package}") as caught:
        make().prepare(policy(("/", READ)), given)
    assert caught.value.field == field
    # A policy that does not need it is not affected.
    assert make().prepare(policy(("/", READ)), command()).backend == "bubblewrap"


# -- what was found out


def test_a_probe_is_repeated_only_for_another_program_or_after_a_failed_launch(
    make: Make, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def counting(*arguments: Any) -> ProbeResult:
        tried.append(arguments)
        return probe(*arguments)

    monkeypatch.setattr("execserver.sandbox.diagnostics.probe.probe", counting)
    program = base / "bwrap"
    program.symlink_to("/usr/bin/bwrap")
    boxes = make(str(program))
    for _ in range(2):
        assert boxes.prepare(policy(("/", READ)), command()).backend == "bubblewrap"
    assert len(tried) == 1
    boxes.launch_failed()
    assert boxes.prepare(policy(("/", READ)), command()).backend == "bubblewrap"
    assert len(tried) == 2
    program.unlink()
    program.symlink_to("/bin/false")
    with pytest.raises(InvalidRequest) as caught:
        boxes.prepare(policy(("/", READ)), command())
    assert caught.value.name == "sandbox_unavailable"
    assert len(tried) == 3
    program.unlink()
    program.symlink_to("/usr/bin/bwrap")
    boxes.launch_failed()
    assert boxes.prepare(policy(("/", READ)), command()).backend == "bubblewrap"


def test_a_sweep_removes_what_a_killed_daemon_left(make: Make, base: Path, ws: Path) -> None:
    boxes = make()
    boxes.sweep()
    pid = os.fork()
    if pid == 0:
        MountPoints(str(base / "state")).acquire([f"{ws}/.git"])
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.listdir(ws) == [".git"]
    make().sweep()
    assert os.listdir(ws) == []


def test_sweep_and_warm_up_never_fail(make: Make, base: Path) -> None:
    (base / "file").write_text("")
    for sandbox in (make(spool=str(base / "file")), make("/no/such/bwrap")):
        sandbox.sweep()
        sandbox.warm_up()


@pytest.mark.parametrize("name", ["file", "open", "link"])
def test_a_state_folder_that_cannot_be_used_refuses_every_sandbox(make: Make, base: Path, name: str) -> None:
    (base / "file").write_text("")
    (base / "open").mkdir(mode=0o755)
    (base / "link").symlink_to("open")
    with pytest.raises(InvalidRequest) as caught:
        make(spool=str(base / name)).prepare(policy(("/", READ)), command())
    assert str(base / name) in str(caught.value)
    assert "--spool-dir" in str(caught.value)
    assert isinstance(caught.value.__context__, state_folder.StateFolderError)


# -- other backends


def test_without_bubblewrap_a_limit_on_files_is_refused_with_the_missing_piece_and_the_fix(
    make: Make,
) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to prepare process sandbox: .*bwrap.*; ") as caught:
        make("/no/such/bwrap").prepare(policy(("/", READ)), command())
    assert caught.value.name == "sandbox_unavailable"
    assert "install" in str(caught.value) or "--bubblewrap" in str(caught.value)


def test_without_bubblewrap_a_limit_on_the_network_alone_is_kept_all_the_same(make: Make) -> None:
    confinement = make("/no/such/bwrap").prepare(OFFLINE, command())
    assert confinement.backend == "seccomp"


def test_landlock_takes_over_where_it_is_allowed_and_can_state_the_policy(make: Make, ws: Path) -> None:
    if (reason := landlock.unavailable()) is not None:
        pytest.skip(reason)
    boxes = make("/no/such/bwrap", landlock=True)
    confinement = boxes.prepare(policy(("/usr", READ), minimal=True), command(cwd="/usr"))
    assert confinement.backend == "landlock"
    with pytest.raises(InvalidRequest, match=r"bwrap.*; and ") as caught:
        boxes.prepare(workspace(ws, (ws / "x", DENY)), command())
    assert caught.value.name == "sandbox_unavailable"
    assert os.listdir(ws) == []


def test_bubblewrap_comes_before_landlock(make: Make) -> None:
    assert make(landlock=True).prepare(policy(("/", READ)), command()).backend == "bubblewrap"
