"""Killed daemons leave no mount points behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.sandbox.mount_points.registry import MountPoints
from tests.unit.sandbox.mount_point_daemons import (
    NAMES,
    entries,
)

# Kills itself before its Nth system call of those that matter, for all N; then another daemon sweeps.
_KILLED_EVERYWHERE = """
import fcntl, os, signal, sys
from execserver.sandbox.mount_points.registry import MountPoints

state, workspace, *names = sys.argv[1:]
paths = [f"{workspace}/{name}" for name in names]
calls = [(os, name) for name in ("open", "write", "ftruncate", "mkdir", "setxattr", "unlink", "rmdir")]
calls += [(os, "close"), (fcntl, "flock")]

def count_down(left):
    for module, name in calls:
        def counted(*arguments, real=getattr(module, name), **options):
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*arguments, **options)
        setattr(module, name, counted)

before = os.listdir(workspace)
kills = made = 0
while True:
    child = os.fork()
    if child == 0:
        count_down(kills)
        MountPoints(state).acquire(paths).release()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    made += os.listdir(workspace) != before
    sweeper = MountPoints(state)
    sweeper.sweep()
    left = [*os.listdir(f"{state}/mount-points"), *os.listdir(workspace)]
    assert left == ["lock", *before], (kills, left)
    sweeper.close()
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, (kills, status)
    kills += 1
print(kills, made)
"""


def test_a_kill_at_any_system_call_leaves_nothing_for_long(state: Path, workspace: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _KILLED_EVERYWHERE, str(state), str(workspace), ".git", ".aws"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    kills, made = map(int, result.stdout.split())
    assert kills > 20
    assert made > 10
    assert os.listdir(workspace) == ["a.txt"]


_KILLED_AT_RANDOM = """
import os, random, signal, sys, time
from execserver.sandbox.mount_points.registry import MountPoints

state, workspace, *names = sys.argv[1:]
before = os.listdir(workspace)
made = 0
for _ in range(100):
    children = []
    for seed in range(2):
        child = os.fork()
        if child == 0:
            random.seed()
            points = MountPoints(state)
            leases = []
            while True:
                if len(leases) < 3:
                    wanted = random.sample(names, random.randint(1, len(names)))
                    leases.append(points.acquire([f"{workspace}/{name}" for name in wanted]))
                else:
                    leases.pop(random.randrange(3)).release()
        children.append(child)
    time.sleep(random.uniform(0, 0.01))
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    made += os.listdir(workspace) != before
sweeper = MountPoints(state)
sweeper.sweep()
print(made)
"""


def test_a_hundred_random_kills_and_a_sweep_leave_the_listing_as_it_was(state: Path, workspace: Path) -> None:
    (workspace / ".hidden").mkdir()
    before = sorted((entry.name, entry.inode()) for entry in os.scandir(workspace))
    result = subprocess.run(
        [sys.executable, "-c", _KILLED_AT_RANDOM, str(state), str(workspace), *NAMES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 5  # of the kills really left something
    assert sorted((entry.name, entry.inode()) for entry in os.scandir(workspace)) == before
    assert entries(state) == []


def test_a_daemon_stopped_with_the_registry_in_its_hand_holds_up_others_for_seconds_only(
    points: MountPoints, workspace: Path, state: Path
) -> None:
    # Stops itself where the intent is written and the folder is not made.
    program = (
        "import os, signal, sys\n"
        "from execserver.sandbox.mount_points.registry import MountPoints\n"
        "os.mkdir = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "points = MountPoints(sys.argv[1])\n"
        "points.acquire([sys.argv[2]])\n"
    )
    points.sweep()  # so that the folders of the registry exist
    stopped = subprocess.Popen([sys.executable, "-c", program, str(state), f"{workspace}/.git"])
    try:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        assert len(entries(state)) == 1
        with pytest.raises(OSError, match="locked by another program") as refused:
            points.acquire([f"{workspace}/.aws"])
        assert refused.value.filename == f"{state}/mount-points"
        assert os.listdir(workspace) == ["a.txt"]
    finally:
        stopped.kill()
        stopped.wait()
    assert points.sweep() == []
    assert entries(state) == []
