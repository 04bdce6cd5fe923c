"""The check of each mechanism, with simulated faults and with files of other machines."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from execserver.sandbox.bubblewrap import SealedProgram
from execserver.sandbox.diagnostics import mechanisms
from execserver.sandbox.diagnostics.doctor import Report
from execserver.sandbox.diagnostics.mechanisms import Check
from execserver.sandbox.diagnostics.probe import ProbeResult

ROOT = Path(__file__).parents[3]
WORKING = ProbeResult(True, "", "", "0.11.0", frozenset({"argv0", "bind"}), "/usr/bin/bwrap")
BROKEN = ProbeResult(False, "it does not", "do this", "0.8.0", frozenset(), "/usr/bin/bwrap")
ABSENT = ProbeResult(False, "the program is missing", "install it")


def write(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def in_namespace(script: str, expression: str) -> str:
    """The value of an expression in a user namespace that a shell has prepared."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from execserver.sandbox.diagnostics import mechanisms\n"
        f"print(*({expression}), sep='\\n')"
    )
    command = [
        "unshare",
        "-Ur",
        "sh",
        "-ec",
        f'{script}; exec "$0" "$@"',
        sys.executable,
        "-c",
        program,
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip("user namespaces may not be made here")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_kernel_without_user_namespaces_is_told_with_the_setting() -> None:
    said = in_namespace("echo 0 >/proc/sys/user/max_user_namespaces", "mechanisms.kernel(False, 'bwrap')")
    user, mount, pid, network, managed, seccomp = said.splitlines()
    for line in (user, mount, pid, network):
        assert "status='missing'" in line
        assert "ENOSPC" in line
        assert "user.max_user_namespaces is 0" in line
    assert "requests for one are refused" in managed
    assert "name='seccomp', status='ok'" in seccomp


def test_a_mechanism_that_only_bubblewrap_may_use_is_ok_when_it_works() -> None:
    said = in_namespace("echo 0 >/proc/sys/user/max_user_namespaces", "mechanisms.kernel(True, 'bwrap')")
    assert said.count("status='ok'") == 5
    assert said.count("but for bubblewrap") == 4
    assert "name='managed network', status='warning', detail='was not tried'" in said


def test_a_managed_network_is_ok_where_a_process_outside_can_listen_in_one() -> None:
    assert "name='managed network', status='ok'" in in_namespace("true", "mechanisms.kernel(True, 'bwrap')")


def test_network_namespaces_alone_can_be_missing() -> None:
    said = in_namespace("echo 0 >/proc/sys/user/max_net_namespaces", "mechanisms.kernel(False, 'bwrap')")
    missing = [line for line in said.splitlines() if "status='missing'" in line]
    assert len(missing) == 1
    assert "network namespaces" in missing[0]


def test_trials_that_cannot_be_run_are_missing_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    checks = [
        check for check in mechanisms.kernel(False, "/usr/bin/bwrap") if check.name != "managed network"
    ]
    assert {check.status for check in checks} == {"missing"}
    assert all("/does/not/exist" in check.detail for check in checks)
    assert all(check.cause and check.fix for check in checks)


@pytest.mark.parametrize(
    ("value", "works", "status", "detail"),
    [
        (None, False, "ok", "no restriction"),
        ("0\n", False, "ok", "does not restrict"),
        ("1\n", True, "ok", "lets bubblewrap"),
        ("1\n", False, "warning", "restricts"),
    ],
)
def test_the_restriction_of_apparmor_is_a_fault_only_where_it_hits_bubblewrap(
    value: str | None, works: bool, status: str, detail: str, tmp_path: Path
) -> None:
    if value is not None:
        write(tmp_path, sys__kernel__apparmor_restrict_unprivileged_userns=value)
    check = mechanisms.apparmor_check("/opt/b/bwrap", works, str(tmp_path))
    assert (check.status, detail in check.detail) == (status, True)
    assert ("profile bwrap /opt/b/bwrap flags=(unconfined)" in check.fix) is (status == "warning")


def test_a_low_hard_limit_leaves_no_room_for_tags() -> None:
    assert mechanisms.tag_check().status == "ok" or resource.getrlimit(resource.RLIMIT_RTTIME)[1] > 0
    program = (
        "import resource, sys; sys.path.insert(0, sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_RTTIME, (1000, 1000))\n"
        "from execserver.sandbox.diagnostics import mechanisms; print(mechanisms.tag_check())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT)], capture_output=True, text=True, check=True
    )
    assert "status='warning'" in done.stdout
    assert "RLIMIT_RTTIME is 1000 µs" in done.stdout
    assert "LimitRTTIME=infinity" in done.stdout


def test_tools_that_are_missing_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "TOOL_PATH", "/does/not/exist")
    setsid, bash = mechanisms.tool_checks()
    assert (setsid.status, setsid.fix) == ("missing", "install util-linux")
    assert (bash.status, bash.fix) == ("warning", "install bash")


def test_root_is_warned() -> None:
    assert mechanisms.user_check(0).status == "warning"
    assert mechanisms.user_check(1000) == Check("user", "ok", "uid 1000")


def test_a_state_folder_that_cannot_be_used_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    check, path = mechanisms.state_folder_check(str(file), {}, os.geteuid())
    assert path is None
    assert check.status == "missing"
    assert str(file) in check.cause
    assert check.fix
    check, path = mechanisms.state_folder_check(str(tmp_path / "new"), {}, os.geteuid())
    assert (check.status, path) == ("ok", str(tmp_path / "new"))


@pytest.mark.parametrize("result", [BROKEN, None])
def test_a_sandbox_that_does_not_work_or_was_not_tried_is_missing(result: ProbeResult | None) -> None:
    for allowed in (False, True):
        check = mechanisms.sandbox_check(result, allowed)
        assert check.status == "missing"
        assert check.cause
        assert check.fix
    assert mechanisms.sandbox_check(WORKING, False).status == "ok"


def test_bubblewrap_is_told_with_path_version_and_what_it_can_do_beside() -> None:
    unsealed = "/usr/bin/bwrap 0.11.0, with --argv0; no sealed copy can be executed"
    assert mechanisms.bubblewrap_check(WORKING).detail == f"{unsealed}, so commands may not trace processes"
    sealed = replace(WORKING, sealed=SealedProgram("/bin/sh"))
    assert mechanisms.bubblewrap_check(sealed).detail == "/usr/bin/bwrap 0.11.0, with --argv0"
    assert mechanisms.bubblewrap_check(BROKEN).status == "ok"
    check = mechanisms.bubblewrap_check(ABSENT)
    assert (check.status, check.cause, check.fix) == ("missing", ABSENT.reason, ABSENT.fix)


def test_landlock_is_asked_for_only_where_it_is_allowed() -> None:
    assert mechanisms.landlock_check(False).status == "ok"
    assert "--allow-landlock" in mechanisms.landlock_check(False).detail
    assert mechanisms.landlock_check(True).status in ("ok", "warning")


def test_a_report_is_good_when_nothing_is_missing() -> None:
    warning = Check("b", "warning", "so so", "cause of it", "fix of it")
    report = Report((Check("long name", "ok", "fine"), warning))
    assert report.ok
    assert report.as_text().splitlines() == [
        "ok       long name  fine",
        "warning  b          so so",
        "         cause: cause of it",
        "         fix: fix of it",
        "",
        "Requests that ask for a sandbox are confined.",
    ]
    bad = Report((warning, Check("c", "missing", "gone", "x", "y")))
    assert not bad.ok
    assert "are refused" in bad.as_text().splitlines()[-1]
