"""The probe against the real bubblewrap and against bubblewraps that fail in every way."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from execserver.sandbox.diagnostics.launch_failures import explain
from execserver.sandbox.diagnostics.probe import NEEDED, ProbeResult, find, probe

BWRAP = shutil.which("bwrap")
needs_bubblewrap = pytest.mark.skipif(BWRAP is None, reason="there is no bubblewrap on this machine")
needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-Ur", "true"], capture_output=True, check=False).returncode != 0,
    reason="user namespaces may not be made here",
)

HELP = "usage: bwrap [OPTIONS...] [--] COMMAND [ARGS...]\n\n" + "".join(
    f"    --{name}    words about --other-words\n" for name in sorted(NEEDED)
)
ARGUMENTS_OF_COMMAND = 'while [ "$1" != -- ]; do shift; done; shift'

Fake = Callable[..., str]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """A bubblewrap that answers `--version` and `--help`, and then runs a script."""

    def make(script: str, version: str = "bubblewrap 0.8.0", options: str = HELP) -> str:
        path = tmp_path / "fake-bwrap"
        (tmp_path / "help").write_text(options)
        path.write_text(
            "#!/bin/sh\n"
            f'case "$1" in --version) echo "{version}"; exit;; --help) cat {tmp_path}/help; exit;; esac\n'
            f"{script}\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


@needs_bubblewrap
def test_the_real_bubblewrap_works_and_the_probe_leaves_nothing(state: Path) -> None:
    result = probe(None, str(state))
    if not result.works:  # a machine that forbids namespaces; then it must say so, and how to change it
        assert result.reason
        assert result.fix
    else:
        assert (result.reason, result.fix) == ("", "")
        assert result.sealed is not None or Path("/proc/sys/vm/memfd_noexec").read_text() == "2\n"
        assert result.is_current
        assert result.features >= NEEDED
        assert tuple(map(int, result.version.split("."))) >= (0, 8, 0)
    assert os.listdir(state) == []


def test_without_bubblewrap_the_package_is_named(state: Path, tmp_path: Path) -> None:
    result = find(None, str(tmp_path))
    if BWRAP is None:
        assert isinstance(result, ProbeResult)
        assert "apt install bubblewrap" in result.fix


def test_a_relative_folder_in_the_path_gives_no_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    result = find(None, ".")
    assert isinstance(result, ProbeResult) if BWRAP is None else result == BWRAP


@pytest.mark.parametrize("kind", ["home", "writable by others", "another user's"])
def test_a_folder_in_which_a_command_could_plant_a_program_gives_no_bubblewrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    (folder / "bwrap").write_text("#!/bin/sh\n")
    (folder / "bwrap").chmod(0o755)
    safe = str(folder / "bwrap")
    assert (find(None, str(folder)) == safe) == (os.geteuid() == 0)
    if kind == "home":
        monkeypatch.setenv("HOME", str(tmp_path))
    elif kind == "writable by others":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    assert find(None, f"{folder}:{folder}/") != safe
    assert find(safe, "") == safe, "it may be named"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_text("#!/bin/sh\n"), "may not be executed"),
    ],
    ids=["missing", "folder", "not executable"],
)
def test_a_configured_program_that_cannot_be_one_is_named_with_the_setting(
    make: Callable[[Path], object], words: str, state: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine"
    make(path)
    if path.is_file() and os.access(path, os.X_OK):
        path.chmod(0o644)
    result = probe(str(path), str(state))
    assert not result.works
    assert f"the setting bubblewrap names {path}" in result.reason
    assert words in result.reason
    assert result.fix


def test_a_file_that_the_kernel_cannot_run_is_a_reason(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"\x7fELF garbage")
    path.chmod(0o755)
    result = probe(str(path), str(state))
    assert not result.works
    assert "cannot be run: Exec format error" in result.reason


@pytest.mark.parametrize("option", ["--version", "--help"])
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("echo no memory >&2; exit 3", "failed with status 3: no memory"),
        ("exit 1", "failed with status 1: without a message"),
        ("kill -KILL $$", "failed with status -9: without a message"),
    ],
)
def test_an_answer_that_fails_is_reported_as_failed_and_not_as_an_old_version(
    option: str, end: str, words: str, state: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine"
    path.write_text(f'#!/bin/sh\ntest "$1" = {option} && {{ {end}; }}\necho bubblewrap 0.8.0\n')
    path.chmod(0o755)
    result = probe(str(path), str(state))
    assert result.reason == f"`{path} {option}` {words}"
    assert result.fix == f"run `{path} {option}` by hand"


@pytest.mark.parametrize(
    ("version", "options", "words"),
    [
        ("bubblewrap 0.6.2", HELP, "bubblewrap 0.6.2 ({path}) is too old: 0.8.0 is needed"),
        ("bubblewrap 0.8", HELP.replace("--disable-userns ", "--x "), "0.8 ({path}) lacks --disable-userns,"),
        ("0.8.0", HELP, "is not bubblewrap"),
        ("", HELP, "is not bubblewrap"),
    ],
)
def test_an_old_or_poor_bubblewrap_is_refused_with_the_version_that_is_needed(
    version: str, options: str, words: str, fake: Fake, state: Path
) -> None:
    path = fake("exit 0", version, options)
    result = probe(path, str(state))
    assert not result.works
    assert words.format(path=path) in result.reason
    assert "0.8.0" in result.fix


def test_a_bubblewrap_that_does_not_confine_is_found_out(fake: Fake, state: Path) -> None:
    result = probe(fake(f'{ARGUMENTS_OF_COMMAND}; exec "$@"'), str(state))
    assert not result.works
    assert "runs but does not confine: a file could be written where only reading" in result.reason
    assert "external" in result.fix
    assert os.listdir(state) == []


def test_one_that_writes_the_forbidden_file_and_then_fails_is_found_out_too(fake: Fake, state: Path) -> None:
    result = probe(fake(f'{ARGUMENTS_OF_COMMAND}; "$@" >/dev/null; exit 1'), str(state))
    assert "does not confine" in result.reason


@pytest.mark.parametrize("answer", ["", "{}", "[]", "null", '{"open": 1}', "nonsense"])
def test_one_that_runs_nothing_and_says_all_is_well_is_found_out(
    answer: str, fake: Fake, state: Path
) -> None:
    result = probe(fake(f"printf '%s' '{answer}'; exit 0"), str(state))
    assert not result.works
    assert result.reason
    assert os.listdir(state) == []


@needs_bubblewrap
@needs_namespaces
@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ("--unshare-net", "shares the host's namespaces: net"),
        ("--unshare-pid", "shares the host's namespaces: pid"),
        ("--cap-drop", "it has capabilities"),
        ("--seccomp", "no seccomp filter is on"),
    ],
)
def test_each_wall_that_is_missing_is_named(
    left_out: str, words: str, fake: Fake, state: Path, tmp_path: Path
) -> None:
    if not probe(BWRAP, str(state)).works:
        pytest.skip("bubblewrap does not work here")
    filtering = tmp_path / "filter.py"
    filtering.write_text(
        "import os, sys\n"
        "at = sys.argv.index('--')\n"
        "words = os.read(int(sys.argv[2]), 1 << 20).decode().split('\\0')[:-1]\n"
        f"left = {left_out!r}\n"
        "while left in words:\n"
        "    place = words.index(left)\n"
        "    del words[place:place + (2 if left in ('--cap-drop', '--seccomp') else 1)]\n"
        "if left == '--cap-drop': words += ['--cap-add', 'ALL']\n"
        f"os.execv({BWRAP!r}, ['bwrap', *words, *sys.argv[at:]])\n"
    )
    result = probe(fake(f'exec {sys.executable} {filtering} "$@"'), str(state))
    assert not result.works
    assert words in result.reason


def test_one_that_hangs_is_killed_with_all_that_it_started(fake: Fake, state: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"setsid sh -c 'echo $$ >>{pids}; exec sleep 600' & echo $$ >>{pids}; wait"
    result = probe(fake(script), str(state), timeout=4)
    assert not result.works
    assert "did not end within 4 s" in result.reason
    numbers = [int(line) for line in pids.read_text().split()]
    assert len(numbers) == 2
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.listdir(state) == []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# A probe that is killed while its bubblewrap hangs.
_PROBING = "import sys; from execserver.sandbox.diagnostics.probe import probe; probe(*sys.argv[1:])"


def test_files_of_a_killed_probe_are_removed_by_a_probe_a_minute_later(
    fake: Fake, state: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    hanging = fake(f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 600")
    killed = subprocess.Popen([sys.executable, "-c", _PROBING, hanging, str(state)])
    deadline = time.monotonic() + 30
    while not pid.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    os.kill(int(pid.read_text()), signal.SIGKILL)
    (left,) = state.iterdir()
    assert stat.S_IMODE((left / "empty-folder").stat().st_mode) == 0

    failing = fake("exit 1")
    probe(failing, str(state))
    assert list(state.iterdir()) == [left]  # it may be that of another daemon's probe
    hour_ago = time.time() - 3600
    os.utime(left, (hour_ago, hour_ago))
    # Mode 000 keeps out root without capabilities, too.
    powerless = ["setpriv", "--bounding-set", "-all"] if os.geteuid() == 0 else []
    subprocess.run([*powerless, sys.executable, "-c", _PROBING, failing, str(state)], check=True)
    assert os.listdir(state) == []


def test_only_old_folders_of_probes_are_removed_and_no_link_is_followed(
    fake: Fake, state: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "empty-folder").mkdir(parents=True)
    (elsewhere / "precious").touch()
    (state / "probe-link").symlink_to(elsewhere)
    (state / "probe-file").touch()
    (state / "other").mkdir()
    (state / "probe-old").mkdir()
    (state / "probe-old" / "empty-folder").symlink_to(elsewhere / "empty-folder")
    (state / "probe-old" / "link").symlink_to(elsewhere)
    (state / "probe-young").mkdir()
    hour_ago = time.time() - 3600
    for name in ("probe-link", "probe-file", "other", "probe-old"):
        os.utime(state / name, (hour_ago, hour_ago), follow_symlinks=False)
    probe(fake("exit 1"), str(state))
    assert sorted(os.listdir(state)) == ["other", "probe-file", "probe-link", "probe-young"]
    assert sorted(os.listdir(elsewhere)) == ["empty-folder", "precious"]


def test_one_that_hangs_when_asked_for_its_version_is_a_reason(state: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    assert "did not answer within 1 s" in probe(str(path), str(state), timeout=1).reason


def test_a_state_folder_that_is_gone_is_a_reason(fake: Fake, state: Path) -> None:
    state.rmdir()
    result = probe(fake("exit 0"), str(state))
    assert not result.works
    assert "could not be tried" in result.reason
    assert str(state) in result.fix


# ------------------------------------------------------------------ words of bubblewrap, to cause and fix

USERNS = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged "
    "user namespaces. See <https://deb.li/bubblewrap> or <file:///usr/share/doc/bubblewrap/README.Debian.gz>."
)


def settings(folder: Path, **values: str) -> str:
    """A procfs with the settings of another kernel."""
    for name, value in values.items():
        path = folder / "sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    return str(folder)


@pytest.mark.parametrize(
    ("text", "values", "cause", "fix"),
    [
        (USERNS, {"kernel__unprivileged_userns_clone": "0"}, "userns_clone is 0", "userns_clone=1"),
        (USERNS, {"user__max_user_namespaces": "0"}, "max_user_namespaces is 0", "max_user_namespaces=10000"),
        (
            "bwrap: setting up uid map: Permission denied",
            {"kernel__apparmor_restrict_unprivileged_userns": "1"},
            "AppArmor",
            "profile bwrap /opt/bwrap flags=(unconfined)",
        ),
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            {"kernel__apparmor_restrict_unprivileged_userns": "1"},
            "AppArmor",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (USERNS, {}, "may not be made or used here", "seccomp=unconfined"),
        ("bwrap: Failed to make / slave: Permission denied", {}, "may not be made", "apparmor=unconfined"),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            {},
            "a new /proc may not be mounted",
            "systempaths=unconfined",
        ),
        (
            "bwrap: Creating new namespace failed: nesting or /proc/…/max_*_namespaces exceeded (ENOSPC)",
            {"user__max_net_namespaces": "0", "user__max_user_namespaces": "9"},
            "user.max_net_namespaces is 0",
            "`sysctl user.max_net_namespaces=10000`",
        ),
        ("bwrap: … exceeded (ENOSPC)", {}, "nested too deep", "user.max_*_namespaces"),
        ("bwrap: Unknown option --disable-userns", {}, "too old", "apt install bubblewrap"),
        (
            "bwrap: Unable to set up system call filtering: prctl(PR_SET_SECCOMP) reported EINVAL.",
            {},
            "refused the seccomp filter",
            "CONFIG_SECCOMP_FILTER",
        ),
        (
            "bwrap: --disable-userns is not supported in the setuid version of bubblewrap",
            {},
            "set-user-id",
            "chmod u-s /opt/bwrap",
        ),
        ("bwrap: something new\n", {}, "bubblewrap failed: bwrap: something new", "doctor.md"),
        ("", {}, "bubblewrap failed: no message", "/opt/bwrap --ro-bind / /"),
    ],
)
def test_the_words_of_bubblewrap_become_cause_and_fix(
    text: str, values: dict[str, str], cause: str, fix: str, tmp_path: Path
) -> None:
    failure = explain(text, "/opt/bwrap", settings(tmp_path, **values))
    assert cause in failure.cause
    assert fix in failure.fix
    if text:
        assert text.strip()[-20:] in failure.cause


def test_the_probe_tells_what_the_launch_said(fake: Fake, state: Path) -> None:
    result = probe(fake('echo "bwrap: Can\'t mount proc on /newroot/proc: x" >&2; exit 1'), str(state))
    assert "a new /proc may not be mounted" in result.reason
    assert "systempaths=unconfined" in result.fix


def test_a_launch_that_ends_without_a_word_is_told_with_its_status(fake: Fake, state: Path) -> None:
    assert "no message, status 3" in probe(fake("exit 3"), str(state)).reason
    assert "no message, status -9" in probe(fake("kill -9 $$"), str(state)).reason


PROBING = (
    "import sys; sys.path.insert(0, sys.argv[2])\n"
    "from execserver.sandbox.diagnostics.probe import probe\n"
    "result = probe(None, sys.argv[1]); print(result.works, result.reason, '|', result.fix)"
)


def probe_below(script: str, state: Path) -> str:
    """The result of the probe in a user namespace that a shell script has prepared."""
    root = str(Path(__file__).parents[3])
    command = f'{script}; exec "$0" "$@"'
    arguments = [sys.executable, "-c", PROBING, str(state), root]
    done = subprocess.run(
        ["unshare", "-Urmpf", "--mount-proc", "sh", "-ec", command, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_bubblewrap
@needs_namespaces
@pytest.mark.parametrize("kind", ["user", "net"])
def test_a_kernel_that_allows_no_namespaces_is_told_with_the_setting(kind: str, state: Path) -> None:
    said = probe_below(f"echo 0 >/proc/sys/user/max_{kind}_namespaces", state)
    assert said.startswith(f"False user.max_{kind}_namespaces is 0")
    assert f"sysctl user.max_{kind}_namespaces=10000" in said


@needs_bubblewrap
@needs_namespaces
def test_a_proc_that_is_covered_in_part_is_told_as_a_container_has_it(state: Path) -> None:
    said = probe_below("mount -t tmpfs none /proc/irq", state)
    assert said.startswith("False a new /proc may not be mounted")
    assert "systempaths=unconfined" in said


def test_the_files_of_the_probe_are_private(fake: Fake, state: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    probe(fake(f"stat -c %a {state}/probe-* >{seen}; exit 1"), str(state))
    assert int(seen.read_text(), 8) & (stat.S_IRWXG | stat.S_IRWXO) == 0
