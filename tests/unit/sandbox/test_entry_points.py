"""A backend from an entry point is used while it is seen to confine, and refused whatever else it does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from execprotocol.errors import InvalidRequest
from execserver.launch_spec import LaunchSpec
from execserver.sandbox import entry_points, selection
from execserver.sandbox.backend import BackendError
from execserver.sandbox.diagnostics import proof
from execserver.sandbox.diagnostics.probe import ProbeResult, probe_backend
from execserver.sandbox.options import DaemonPaths, SandboxOptions
from execserver.sandbox.policy import Policy
from execserver.sandbox.sandboxes import Sandboxes
from tests.sandbox.other_backends import LIARS, add_package
from tests.unit.sandbox.rig import PATH, READ, policy, workspace

KINDS = {
    name: name
    for name in (
        *("Honest", "Unconfined", "FilesOnly", "NetworkOnly", "Readable", "Leaking", "Inheriting", "Telling"),
        *("Pretending", "Silent", "Raising", "Refusing", "Crashing", "Hanging", "HangingLater", "Nothing"),
        *("Incomplete", "Broken", "Fickle"),
    )
}

COMMAND = LaunchSpec("/bin/sh", ("sh", "-c", "true"), "/", {"PATH": PATH})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages with all the backends, which this process finds."""
    folder = tmp_path / "packages"
    folder.mkdir()
    add_package(folder, LIARS, **KINDS)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop(LIARS.stem, None)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def boxes(packages: Path, tmp_path: Path) -> Iterator[Callable[[str], Sandboxes]]:
    """The sandboxes of a daemon whose setting names a backend."""
    made: list[Sandboxes] = []

    def make(name: str) -> Sandboxes:
        options = SandboxOptions(spool_dir=str(tmp_path / "own"), backend=name)
        made.append(Sandboxes(options, DaemonPaths(), {"PATH": PATH}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def tried(name: str, state: Path) -> ProbeResult:
    """The result of the daemon's trials."""
    seconds = 1 if name == "HangingLater" else proof.TIMEOUT
    return probe_backend(name, entry_points.load(name), str(state), timeout=seconds)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def no_more_than(before: set[str]) -> bool:
    """Whether no more descriptors are open; those of removed folders are closed a moment later."""
    deadline = time.monotonic() + 20
    while len(open_descriptors()) > len(before):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_one_that_confines_is_used(packages: Path, state: Path) -> None:
    result = probe_backend("Honest", entry_points.load("Honest"), str(state))
    assert (result.works, result.reason) == (True, "")
    assert os.listdir(state) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Unconfined", "a file could be written where only reading was allowed"),
        ("FilesOnly", "it shares the host's namespaces: net"),
        ("NetworkOnly", "a file could be written where only reading was allowed"),
        ("Readable", "a folder that is hidden could be listed"),
        ("Leaking", "it passes descriptors on: /"),
        ("Inheriting", "it passes descriptors on: /"),
        ("Telling", "it passes variables of the daemon on: "),
        ("Pretending", "where that is allowed (the file is not there)"),
        ("Crashing", "Crashing failed: out of luck"),
        ("HangingLater", "did not end within 1 s; it was killed"),
    ],
)
def test_one_that_does_not_confine_is_found_out(name: str, words: str, packages: Path, state: Path) -> None:
    os.environ["OF_THE_DAEMON"] = "secret"
    before = open_descriptors()
    try:
        result = tried(name, state)
    finally:
        del os.environ["OF_THE_DAEMON"]
        for fd in open_descriptors() - before:
            if os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(int(fd)):
                os.close(int(fd))  # of `Inheriting`
    assert not result.works
    assert words in result.reason
    assert result.fix
    assert os.listdir(state) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raising", "raised in wrap: RuntimeError: no such luck"),
        ("Nothing", "returned NoneType from wrap, not LaunchSpec"),
        ("Silent", "returned a launch without a status file"),
        ("Incomplete", "has no method inspect"),
        ("Broken", "raised in its constructor: OSError: a file is missing"),
    ],
)
def test_one_that_breaks_the_protocol_is_told_with_the_method(
    name: str, words: str, packages: Path, state: Path
) -> None:
    before = open_descriptors()
    with pytest.raises(BackendError, match=words):
        tried(name, state)
    assert os.listdir(state) == []
    assert open_descriptors() == before


def test_one_that_hangs_is_not_waited_for_twice(packages: Path, state: Path) -> None:
    loaded = entry_points.load("Hanging")
    assert isinstance(loaded, entry_points.GuardedBackend)
    loaded.timeout = 2
    with pytest.raises(BackendError, match="hung in wrap for 2 s"):
        probe_backend("Hanging", loaded, str(state))
    threads = set(threading.enumerate())
    with pytest.raises(BackendError, match="until the daemon is started again"):
        probe_backend("Hanging", loaded, str(state))
    assert set(threading.enumerate()) <= threads


def test_a_result_that_comes_too_late_is_closed(packages: Path) -> None:
    ends = os.pipe()
    late = threading.Event()

    def slow() -> LaunchSpec:
        late.wait(20)
        return LaunchSpec("/bin/true", ("true",), "/", {}, passed=(ends[1],))

    call = entry_points._Call(slow, entry_points.close_launch)
    thread = threading.Thread(target=call.run)
    thread.start()
    assert not call.wait(0.05)
    late.set()
    thread.join()
    assert os.read(ends[0], 1) == b"", "its descriptor is closed"
    os.close(ends[0])


# -- the choice


def test_only_the_backend_that_is_named_is_loaded(packages: Path, boxes: Callable[[str], Sandboxes]) -> None:
    assert boxes("auto").prepare(policy(("/", READ)), COMMAND).backend == "bubblewrap"
    assert not (packages / "was loaded").exists()
    assert boxes("Honest").prepare(policy(("/", READ)), COMMAND).backend == "Honest"
    assert (packages / "was loaded").exists()


def test_a_backend_that_is_named_and_not_installed_is_refused_with_those_that_are(
    boxes: Callable[[str], Sandboxes],
) -> None:
    expected = r"names 'crum', and installed are: Broken, .*, Unconfined; without a package: auto, bubble"
    with pytest.raises(InvalidRequest, match=expected):
        boxes("crum").prepare(policy(("/", READ)), COMMAND)


def test_two_packages_with_one_name_are_refused(packages: Path, boxes: Callable[[str], Sandboxes]) -> None:
    (packages / "other-1.0.dist-info").mkdir()
    (packages / "other-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"
    )
    (packages / "other-1.0.dist-info/entry_points.txt").write_text(
        "[execserver.sandbox_backends]\nHonest = other:Honest\n"
    )
    with pytest.raises(InvalidRequest, match="several packages have it: lying_backends, other"):
        boxes("Honest").prepare(policy(("/", READ)), COMMAND)


def test_a_lie_is_refused_and_nothing_else_takes_over(
    boxes: Callable[[str], Sandboxes], tmp_path: Path
) -> None:
    (tmp_path / "ws").mkdir()
    with pytest.raises(
        InvalidRequest, match="the sandbox backend FilesOnly runs but does not confine"
    ) as caught:
        boxes("FilesOnly").prepare(workspace(tmp_path / "ws"), COMMAND)
    assert caught.value.name == "sandbox_unavailable"
    assert os.listdir(tmp_path / "ws") == []


def test_a_limit_on_the_network_alone_needs_no_named_backend(boxes: Callable[[str], Sandboxes]) -> None:
    offline = Policy(unrestricted=True, network=False)
    assert boxes("Unconfined").prepare(offline, COMMAND).backend == "seccomp"


def test_a_launcher_that_is_replaced_after_its_proof_is_tried_again(
    packages: Path, boxes: Callable[[str], Sandboxes], tmp_path: Path
) -> None:
    one = boxes("Honest")
    one.release(one.prepare(policy(("/", READ)), COMMAND))
    launcher = packages / "launcher"
    honest = launcher.read_text()
    launcher.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    with pytest.raises(InvalidRequest, match="a file could be written where only reading was allowed"):
        one.prepare(policy(("/", READ)), COMMAND)
    launcher.write_text(honest)
    one.launch_failed()
    one.release(one.prepare(policy(("/", READ)), COMMAND))


def test_code_that_changes_what_it_does_is_found_out_by_the_next_trials(
    boxes: Callable[[str], Sandboxes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_TRUSTED_SECONDS", 0.5)
    one = boxes("Fickle")
    one.release(one.prepare(policy(("/", READ)), COMMAND))
    time.sleep(0.5)
    with pytest.raises(InvalidRequest, match="a file could be written where only reading was allowed"):
        one.prepare(policy(("/", READ)), COMMAND)


def test_a_backend_that_fails_at_a_start_leaves_nothing_and_is_tried_again(
    boxes: Callable[[str], Sandboxes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ws").mkdir()
    one = boxes("Honest")
    one.release(one.prepare(workspace(tmp_path / "ws"), COMMAND))
    before = open_descriptors()
    loaded = sys.modules[LIARS.stem]
    monkeypatch.setattr(loaded.Honest, "wrap", loaded.Raising.wrap)
    with pytest.raises(InvalidRequest, match="raised in wrap: RuntimeError: no such luck"):
        one.prepare(workspace(tmp_path / "ws"), COMMAND)
    assert os.listdir(tmp_path / "ws") == []
    assert not [name for name in os.listdir(tmp_path / "own") if name.startswith("sandbox-")]
    assert no_more_than(before)


# -- folders


def test_the_folder_of_a_sandbox_goes_with_it(boxes: Callable[[str], Sandboxes], tmp_path: Path) -> None:
    def folders() -> list[str]:
        return [name for name in os.listdir(tmp_path / "own") if name.startswith("sandbox-")]

    one = boxes("Honest")
    one.release(one.prepare(policy(("/", READ)), COMMAND))
    before = open_descriptors()
    unused, used = (one.prepare(policy(("/", READ)), COMMAND) for _ in range(2))
    assert len(folders()) == 2
    launch = used.wrap(COMMAND, gated=True)
    assert launch.gate is not None
    os.write(launch.gate, b"x")
    assert proof.run(launch, 20).returncode == 0
    with pytest.raises(ValueError, match="has been used"):
        used.wrap(COMMAND)
    for confinement in (unused, used):
        one.release(confinement)
    assert folders() == []
    assert no_more_than(before)


def test_limits_reach_a_command_through_its_backend(
    boxes: Callable[[str], Sandboxes], tmp_path: Path
) -> None:
    def spawn() -> int:
        raise AssertionError

    (tmp_path / "ws").mkdir()
    one = boxes("Honest")
    first, second = (one.prepare(workspace(tmp_path / "ws"), COMMAND) for _ in range(2))
    limited = replace(COMMAND, spawn=spawn, read_only=(str(tmp_path / "elsewhere"),))
    launch = first.wrap(limited)
    assert launch.spawn is spawn
    entry_points.close_launch(launch)
    with pytest.raises(ValueError, match="cannot have limits: grant less writing"):
        second.wrap(replace(limited, read_only=(str(tmp_path / "ws/groups"),)))
    for confinement in (first, second):
        one.release(confinement)


def test_folders_of_a_dead_daemon_are_removed_unless_their_launcher_runs(state: Path) -> None:
    dead, running = entry_points.SandboxFolder(str(state)), entry_points.SandboxFolder(str(state))
    (Path(dead.path) / "config").write_text("x")
    (state / "other").mkdir()
    (lock,) = dead.take_lock()
    os.close(lock)
    entry_points.sweep(str(state))
    assert sorted(os.listdir(state)) == sorted(["other", os.path.basename(running.path)])
    running.release()
    assert os.listdir(state) == ["other"]


SWEEPER = """
import sys
from execserver.sandbox.entry_points import sweep
print("begins", flush=True)
while True:
    sweep(sys.argv[1])
"""


def test_a_folder_is_kept_while_other_daemons_sweep(state: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SWEEPER, state], stdout=subprocess.PIPE) as sweeper:
        assert sweeper.stdout is not None
        assert sweeper.stdout.readline() == b"begins\n"
        try:
            for _ in range(300):
                folder = entry_points.SandboxFolder(str(state))
                (Path(folder.path) / "config").write_text("x")
                folder.release()
            assert sweeper.poll() is None
        finally:
            sweeper.kill()
