"""Confinements wrap a command so that the command itself sees no difference."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from execserver.launch_spec import LaunchSpec
from execserver.sandbox.backend import Sandbox, Sources, needs_own_name
from execserver.sandbox.backends import BackendConfinement, Landlock, SeccompOnly
from execserver.sandbox.policy import Policy
from execserver.sandbox.view import View
from tests.unit.sandbox.rig import PATH, READ, WRITE, Rig, policy, workspace

OFFLINE = Policy(unrestricted=True, network=False)


def command(
    *arguments: str,
    program: str = "/bin/sh",
    environment: Mapping[str, str] | None = None,
    tty: bool = False,
) -> LaunchSpec:
    return LaunchSpec(program, arguments, "/", {"PATH": PATH} if environment is None else environment, tty)


def bubblewrapped(rig: Rig, limits: Policy | None = None) -> BackendConfinement:
    limits = limits or policy(("/", READ))
    return rig.confine(limits, rig.build_view(limits))


def close(wrapped: LaunchSpec) -> None:
    for fd in (*wrapped.passed, *([] if wrapped.status is None else [wrapped.status])):
        os.close(fd)


def line(rig: Rig, given: LaunchSpec) -> Sequence[str]:
    """The command line inside."""
    wrapped = bubblewrapped(rig).wrap(given)
    close(wrapped)
    return wrapped.arguments[wrapped.arguments.index("--") + 1 :]


# -- the launcher


def test_the_command_line_of_the_launcher_shows_nothing_of_the_command(rig: Rig) -> None:
    wrapped = bubblewrapped(rig).wrap(command("sh", "-c", "x", environment={"PATH": PATH, "KEY": "word"}))
    close(wrapped)
    assert wrapped.program == "/usr/bin/bwrap"
    assert wrapped.arguments[:2] == ("bwrap", "--args")
    assert wrapped.arguments[3:] == ("--", "sh", "-c", "x")
    assert wrapped.environment == {}
    assert not wrapped.takes_terminal


def test_every_descriptor_is_the_callers_and_none_is_inherited_by_accident(rig: Rig) -> None:
    before = set(os.listdir("/proc/self/fd"))
    wrapped = bubblewrapped(rig).wrap(command("sh"))
    assert wrapped.status is not None
    for fd in (*wrapped.passed, wrapped.status):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert os.pread(wrapped.status, 1, 0) == b"", "what waits for a report would block the server"
    close(wrapped)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_command_that_cannot_be_wrapped_leaves_no_descriptor_open(rig: Rig) -> None:
    confinement = bubblewrapped(rig)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="illegal environment variable name"):
        confinement.wrap(command("sh", environment={"": "x"}))
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_terminal_is_taken_inside(rig: Rig) -> None:
    wrapped = bubblewrapped(rig).wrap(command("sh", tty=True))
    close(wrapped)
    assert wrapped.takes_terminal
    assert wrapped.arguments[4:] == ("/usr/bin/setsid", "-c", "sh")


def test_a_wrapped_command_can_be_run_as_often_as_it_is_wrapped(rig: Rig) -> None:
    confinement = bubblewrapped(rig)
    for _ in range(2):
        wrapped = confinement.wrap(command("sh", "-c", "exit 5"))
        done = subprocess.run(
            wrapped.arguments, executable=wrapped.program, env={}, pass_fds=wrapped.passed, check=False
        )
        assert wrapped.status is not None
        said = os.pread(wrapped.status, 4096, 0)
        close(wrapped)
        assert done.returncode == 5
        assert b'"exit-code": 5' in said


def test_whether_there_are_processes_of_its_own_is_the_views_affair(rig: Rig) -> None:
    assert bubblewrapped(rig).namespaces
    assert not bubblewrapped(rig, OFFLINE).namespaces
    assert bubblewrapped(rig).backend == "bubblewrap"


# -- names


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (command("/bin/sh", "x"), False),
        (command("sh", "x"), False),
        (command("-sh", "x"), True),
        (command("other", "x"), True),
        (command("sh", environment={}), True),
        (command("-x", program="/bin/-x"), True),
    ],
    ids=["path", "bare", "login", "other", "no-PATH", "hyphen"],
)
def test_a_name_that_is_not_the_programs_own_needs_a_tool(given: LaunchSpec, own: bool) -> None:
    assert needs_own_name(given) is own


def test_a_command_line_is_that_of_the_command(rig: Rig) -> None:
    assert line(rig, command("sh", "a", "")) == ("sh", "a", "")
    assert line(rig, command("/bin/sh", "a")) == ("/bin/sh", "a")
    assert line(rig, command("-sh", "a")) == (
        *("/bin/bash", "-p", "-c", 'exec -a "$0" -- "$@"', "-sh", "/bin/sh", "a"),
    )


@pytest.mark.parametrize("name", ["sh", "-sh", "a name", "$(x)", "--", ""])
def test_a_command_sees_the_name_that_it_was_given(rig: Rig, name: str) -> None:
    ran = rig.run(policy(("/", READ)), "", arguments=(name, "-c", 'tr "\\0" "|" < /proc/$$/cmdline'))
    assert ran.output.startswith(f"{name}|-c|")


def test_setting_argv_0_runs_nothing_else(rig: Rig, base: Path) -> None:
    (base / "startup").write_text("echo from the startup file\n")
    ran = rig.run(
        policy(("/", READ)),
        "",
        arguments=("-sh", "-c", "echo $BASH_ENV"),
        environment={"PATH": PATH, "BASH_ENV": f"{base}/startup", "ENV": "/nowhere", "HOME": "/nowhere"},
    )
    assert ran.output == f"{base}/startup\n"


def test_a_program_whose_name_is_an_option_is_run_all_the_same(rig: Rig, base: Path) -> None:
    folder = base / "bin"
    folder.mkdir()
    (folder / "-c").write_text("#!/bin/sh\necho ran\n")
    (folder / "-c").chmod(0o755)
    ran = rig.run(
        policy(("/", READ)),
        "",
        program=f"{folder}/-c",
        arguments=("-c",),
        environment={"PATH": f"{folder}:{PATH}"},
    )
    assert ran.output == "ran\n"


def test_a_command_finds_exactly_the_variables_that_it_was_given(rig: Rig) -> None:
    given = {"PATH": PATH, "A": "1", "B": "two\nlines", "LD_PRELOAD": "", "BASH_ENV": "/nowhere"}
    for name in ("env", "/usr/bin/env"):
        ran = rig.run(
            policy(("/", READ)), "", program="/usr/bin/env", arguments=(name, "-0"), environment=given
        )
        found = dict(entry.split("=", 1) for entry in ran.output.rstrip("\0").split("\0"))
        found.pop("PWD", None)  # Bubblewrap tells where it has gone to.
        assert found == given


def test_a_variable_for_the_loader_has_no_power_over_the_launcher(rig: Rig, base: Path) -> None:
    ran = rig.run(
        policy(("/", READ)),
        "",
        program="/bin/true",
        arguments=("/bin/true",),
        environment={"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{base}/loader"},
    )
    assert ran.status == 0
    # The command's own loader cannot write there, and the launcher's was not asked to.
    assert not list(base.glob("loader*"))


@pytest.mark.parametrize("number", [9, 15, 6])
def test_the_death_of_a_command_by_a_signal_is_told_as_a_shell_does(rig: Rig, number: int) -> None:
    assert rig.run(policy(("/", READ)), f"kill -{number} $$").status == 128 + number


def test_mount_points_are_given_back_once_and_again(rig: Rig, base: Path) -> None:
    ws = base / "ws"
    ws.mkdir()
    limits = workspace(ws)
    view = rig.build_view(limits)
    lease = rig.mount_points.acquire(view.mount_points)
    assert len(os.listdir(ws)) == 4
    confinement = rig.confine(limits, view, lease=lease)
    confinement.release()
    assert os.listdir(ws) == []
    confinement.release()


def test_a_mount_source_that_is_gone_lets_nothing_run(rig: Rig, base: Path) -> None:
    ws = base / "ws"
    ws.mkdir()
    limits = policy(("/", READ), (ws, WRITE))
    view = rig.build_view(limits)
    ws.rmdir()
    wrapped = rig.confine(limits, view).wrap(command("sh", "-c", f"echo ran > {base}/ran"))
    done = subprocess.run(
        wrapped.arguments,
        executable=wrapped.program,
        env={},
        pass_fds=wrapped.passed,
        check=False,
        stderr=subprocess.PIPE,
    )
    assert wrapped.status is not None
    said = os.pread(wrapped.status, 4096, 0)
    close(wrapped)
    assert done.returncode == 1
    assert b"bwrap: Can't find source path" in done.stderr
    assert b"exit-code" not in said


# -- limits of a thread


def test_limits_of_a_thread_leave_the_command_as_it_is(rig: Rig) -> None:
    for limits, seen, backend in (
        (OFFLINE, View("host", ()), SeccompOnly()),
        (policy(("/", READ)), View("read", ()), Landlock(rig.own)),
    ):
        sandbox = Sandbox(view=seen, sources=rig.sources)
        confinement = BackendConfinement(limits, "/", "its name", backend, sandbox)
        wrapped = confinement.wrap(command("name", "x", environment={"A": "1"}))
        assert confinement.backend == "its name"
        assert not confinement.namespaces
        assert (wrapped.program, wrapped.arguments, wrapped.environment) == (
            "/bin/sh",
            ("name", "x"),
            {"A": "1"},
        )
        assert (wrapped.passed, wrapped.status, wrapped.takes_terminal) == ((), None, False)
        assert wrapped.limit is not None
        confinement.release()


def test_sources_of_masks_are_empty_and_closed(rig: Rig) -> None:
    assert isinstance(rig.sources, Sources)
    for path in (rig.sources.empty_file, rig.sources.empty_folder):
        assert os.stat(path).st_mode & 0o7777 == 0
