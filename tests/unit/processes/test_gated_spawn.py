"""A spawn whose program begins when its process has been looked at."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from execserver.processes.gated_spawn import GatedSpawn


def started(gated: GatedSpawn, *argv: str, limit: Callable[[str], None] | None = None) -> int:
    actions = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    return gated.start(argv[0], argv, {"A": "b"}, actions, [], limit)


def test_the_program_waits_until_its_process_was_entered(tmp_path: Path) -> None:
    gated, file = GatedSpawn(), tmp_path / "ran"
    pid = started(gated, "/bin/sh", "-c", f"touch {file}")
    time.sleep(0.2)
    assert not file.exists()
    entered: list[tuple[int, bool]] = []
    gated.finish(lambda pid: entered.append((pid, file.exists())))
    assert entered == [(pid, False)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert file.exists()


def test_a_process_that_cannot_be_entered_never_runs_its_program(tmp_path: Path) -> None:
    gated, file = GatedSpawn(), tmp_path / "ran"
    pid = started(gated, "/bin/sh", "-c", f"touch {file}")

    def refuse(_pid: int) -> None:
        raise PermissionError("no group")

    with pytest.raises(PermissionError, match="no group"):
        gated.finish(refuse)
    assert not gated.reaped
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    assert not file.exists()


def test_a_program_that_is_missing_is_reported_and_reaped(tmp_path: Path) -> None:
    gated = GatedSpawn()
    pid = started(gated, str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        gated.finish(lambda _pid: None)
    assert gated.reaped
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@pytest.mark.parametrize("limiting", [None, 0.0, 0.001, 0.2])
def test_a_child_for_which_no_descriptor_is_left_is_killed_and_reaped(limiting: float | None) -> None:
    def limit(_gate: str) -> None:
        time.sleep(limiting or 0)

    before = set(psutil.Process().children())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    null = os.open(os.devnull, os.O_RDWR)
    copies = [null]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                copies.append(os.dup(null))
        for _ in range(3):  # for the gate and the lifeline
            os.close(copies.pop())
        with pytest.raises(OSError, match="Too many open files"):
            started(GatedSpawn(), "/bin/true", limit=None if limiting is None else limit)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for copy in copies:
            os.close(copy)
    assert not any(thread.name == "gated spawn" for thread in threading.enumerate())
    assert set(psutil.Process().children()) <= before


def test_limits_of_the_thread_that_cannot_be_taken_on_start_nothing() -> None:
    def refuse(_gate: str) -> None:
        raise OSError(1, "no limits")

    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no limits"):
        GatedSpawn().start("/bin/true", ["true"], {}, [], [], refuse)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("argv", "env"), [(["a\0b"], {}), (["a"], {"": "x"}), (["a"], {"b=c": "x"})])
def test_what_no_program_can_be_given_is_refused(argv: list[str], env: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        GatedSpawn().start("/bin/true", argv, env, [], [])


def test_many_gates_leave_no_descriptor() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        gated = GatedSpawn()
        pid = started(gated, "/bin/true")
        gated.finish(lambda _pid: None)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert set(os.listdir("/proc/self/fd")) == before
