"""Spawning from a limited thread."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from pathlib import Path

import pytest

from execserver.sandbox import seccomp
from execserver.sandbox.thread_limits import (
    deny_new_privileges,
    drop_capabilities,
    install_filter,
    spawn_limited,
)

OFFLINE = seccomp.program(network=False, files_limited=True)


def go_offline() -> None:
    deny_new_privileges()
    install_filter(OFFLINE)


def nothing() -> None:
    pass


def spawn(script: str) -> int:
    return os.posix_spawn("/bin/sh", ["sh", "-c", script], os.environ)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def status(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def own_threads() -> dict[str, dict[str, str]]:
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found[thread] = status(Path("/proc/self/task", thread, "status").read_text())
    return found


def status_of_child(limit: object, tmp_path: Path) -> dict[str, str]:
    assert callable(limit)
    out = tmp_path / "status"
    assert exit_code(spawn_limited(limit, lambda: spawn(f"cat /proc/self/status > '{out}'"))) == 0
    return status(out.read_text())


def test_the_result_is_what_spawn_returned() -> None:
    thing = object()
    assert spawn_limited(nothing, lambda: thing) is thing


def test_the_child_and_its_children_have_the_limits(tmp_path: Path) -> None:
    without = status_of_child(nothing, tmp_path)
    limited = status_of_child(go_offline, tmp_path)
    assert (limited["Seccomp"], limited["NoNewPrivs"]) == ("2", "1")
    assert int(limited["Seccomp_filters"]) == int(without["Seccomp_filters"]) + 1


def test_the_daemons_threads_do_not_have_the_limits() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        before = own_threads()
        assert exit_code(spawn_limited(go_offline, lambda: spawn("true"))) == 0
        after = own_threads()
    finally:
        stop.set()
        other.join()
    # Others end at any time: Python has joined a thread a moment before the kernel is done with it.
    lasting = before.keys() & after.keys()
    assert {str(os.getpid()), str(other.native_id)} <= lasting
    for name in ("Seccomp", "Seccomp_filters", "NoNewPrivs", "CapEff", "CapPrm"):
        assert [after[thread][name] for thread in lasting] == [before[thread][name] for thread in lasting]
    socket.socket(socket.AF_INET).close()
    assert exit_code(spawn("exit 3")) == 3


def test_the_limits_hold_in_the_thread_when_it_spawns() -> None:
    with pytest.raises(PermissionError):
        spawn_limited(go_offline, lambda: socket.socket(socket.AF_INET))
    socket.socket(socket.AF_INET).close()


def test_two_spawns_after_each_other_do_not_add_up(tmp_path: Path) -> None:
    first = status_of_child(go_offline, tmp_path)
    second = status_of_child(go_offline, tmp_path)
    assert first["Seccomp_filters"] == second["Seccomp_filters"]


def test_a_limit_that_cannot_be_taken_on_means_no_spawn() -> None:
    error = OSError("no such limit")
    spawned = []

    def limit() -> None:
        raise error

    with pytest.raises(OSError, match="no such limit") as caught:
        spawn_limited(limit, lambda: spawned.append(1))
    assert caught.value is error
    assert spawned == []


def test_an_error_of_the_spawn_comes_to_the_caller() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        spawn_limited(go_offline, lambda: os.posix_spawn("/nowhere/program", ["program"], {}))
    assert caught.value.filename == "/nowhere/program"


def test_even_an_exit_of_the_thread_comes_to_the_caller() -> None:
    def leave() -> None:
        raise SystemExit(4)

    with pytest.raises(SystemExit, match="4"):
        spawn_limited(leave, nothing)


def test_no_garbage_is_collected_in_the_thread() -> None:
    assert gc.isenabled()
    assert not spawn_limited(nothing, gc.isenabled)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        spawn_limited(nothing, nothing)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_child_starts_in_the_callers_working_directory(tmp_path: Path) -> None:
    home = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(tmp_path)
    try:
        pid = spawn_limited(go_offline, lambda: spawn("pwd > here"))
    finally:
        os.fchdir(home)
        os.close(home)
    assert exit_code(pid) == 0
    assert (tmp_path / "here").read_text() == f"{tmp_path}\n"


def test_without_capabilities_no_program_gets_one(tmp_path: Path) -> None:
    def limit() -> None:
        deny_new_privileges()
        drop_capabilities()

    limited = status_of_child(limit, tmp_path)
    assert {int(limited[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert limited["NoNewPrivs"] == "1"


def test_a_filter_that_is_none_is_an_error_that_says_so() -> None:
    def limit() -> None:
        deny_new_privileges()
        install_filter(b"\xff" * 8)

    with pytest.raises(OSError, match="cannot install a seccomp filter: Invalid argument") as caught:
        spawn_limited(limit, nothing)
    assert caught.value.errno == 22


def test_an_empty_filter_is_an_error() -> None:
    with pytest.raises(OSError, match="cannot install a seccomp filter"):
        spawn_limited(lambda: install_filter(b""), nothing)


def test_many_spawns_leave_no_thread_and_no_descriptor() -> None:
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert exit_code(spawn_limited(go_offline, lambda: spawn("true"))) == 0
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
