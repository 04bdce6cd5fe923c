from __future__ import annotations

import contextlib
import itertools
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from execserver import descendants
from execserver.descendants import (
    find_descendants,
    kill_descendants,
    names_below,
    set_own_tag,
    signal_descendants,
    tag_of,
    tag_value,
)
from tests.support.wire import wait_gone


@pytest.fixture
def instance() -> Iterator[int]:
    before = descendants.own_limit()
    number = descendants.new_instance()
    yield number
    descendants.clear_own_tag(before)
    assert kill_descendants(number) == []


def start(instance: int, number: int, program: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Run a shell program under a tag; it writes pids to stdout, one a line, and then `go`."""
    before = descendants.own_limit()
    set_own_tag(tag_value(instance, number))
    process = subprocess.Popen(["/bin/sh", "-c", program], stdout=subprocess.PIPE)
    descendants.clear_own_tag(before)
    assert process.stdout is not None
    pids = [int(line) for line in iter(process.stdout.readline, b"go\n") if line]
    process.stdout.close()
    return process, pids


def untagged(program: str = "echo; exec sleep 600") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["/bin/sh", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def ended(pidfd: int, seconds: float = 0) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


# A daemon: double fork, own session, empty environment. The substitution ends when the shell between has
# ended and the daemon's `sleep` has begun.
DAEMON = """
daemon=$(setsid env -i /bin/sh -c 'echo $$; exec sleep 600 > /dev/null' &)
echo $daemon
echo go
exec sleep 600
"""
SEVEN = "for i in 1 2 3 4 5 6 7; do sleep 600 & echo $!; done"


def test_a_tag_holds_instance_and_number_up_to_their_limits() -> None:
    for instance, number in ((1, 0), (2**30 - 1, 2**32 - 1), (12345, 7)):
        value = tag_value(instance, number)
        assert value < 2**63
        assert descendants.split_tag(value) == (instance, number)
    for instance, number in ((0, 0), (2**30, 0), (1, 2**32), (1, -1)):
        with pytest.raises(ValueError, match="no tag"):
            tag_value(instance, number)


def test_an_ordinary_limit_is_no_tag() -> None:
    assert descendants.split_tag(200_000) is None
    assert descendants.split_tag(resource.RLIM_INFINITY) is None
    assert tag_of(os.getpid()) is None


def test_instances_are_random_and_in_range() -> None:
    numbers = {descendants.new_instance() for _ in range(100)}
    assert len(numbers) > 95
    assert all(0 < number < 2**30 for number in numbers)


def test_the_own_tag_leaves_the_hard_limit_and_can_be_taken_off(instance: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_RTTIME)
    set_own_tag(tag_value(instance, 3))
    assert resource.getrlimit(resource.RLIMIT_RTTIME) == (tag_value(instance, 3), before[1])
    assert tag_of(os.getpid()) == tag_value(instance, 3)
    descendants.clear_own_tag()
    assert tag_of(os.getpid()) is None


def test_a_low_hard_limit_is_said_in_clear_words() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_RTTIME, (1000, 1000))\n"
        "from execserver import descendants\n"
        "try: descendants.set_own_tag(descendants.tag_value(1))\n"
        "except descendants.TagUnavailableError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert "hard limit RLIMIT_RTTIME is 1000 µs" in result.stdout


def test_the_tag_of_a_stranger_without_permission_comes_from_proc(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, [pid] = start(instance, 9, "echo $$; echo go; exec sleep 600")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "prlimit", refuse)
    assert tag_of(pid) == tag_value(instance, 9)
    assert tag_of(os.getpid()) is None
    monkeypatch.undo()
    process.kill()
    process.wait()
    assert tag_of(pid) is None


def test_a_daemon_in_its_own_session_with_an_empty_environment_is_a_member(instance: int) -> None:
    process, [daemon] = start(instance, 4, DAEMON)
    assert find_descendants(instance) == {process.pid, daemon}
    assert find_descendants(instance, 4) == {process.pid, daemon}
    assert find_descendants(instance, [3, 4]) == {process.pid, daemon}
    assert find_descendants(instance, 5) == find_descendants(instance, []) == set()
    assert kill_descendants(instance, 4) == []
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("children_files", [True, False])
def test_descendants_with_another_tag_are_members(
    instance: int, children_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descendants, "_HAS_CHILDREN_FILES", children_files)
    nested = descendants.new_instance()
    program = (
        f'{sys.executable} -I -c "import os, subprocess; from execserver.descendants import *; '
        f"set_own_tag(tag_value({nested}, 1)); os.write(1, b'%d\\n' % os.getpid()); "
        "subprocess.run(['/bin/sh', '-c', 'echo \\$\\$; echo go; exec sleep 600'])\"; exec sleep 600"
    )
    process, pids = start(instance, 1, program)
    assert find_descendants(instance, 1) == {process.pid, *pids}
    assert kill_descendants(instance) == []
    process.wait()
    assert find_descendants(nested) == set()


def test_excluded_processes_bound_the_descent_of_a_number_but_not_of_the_instance(instance: int) -> None:
    # As in the server: it bears the number of its last spawn, and its child another one.
    other = descendants.new_instance()
    program = (
        f'{sys.executable} -I -c "import os, subprocess; from execserver.descendants import *; '
        f"before = own_limit(); set_own_tag(tag_value({other}, 1)); "
        "child = subprocess.Popen(['sleep', '600']); clear_own_tag(before); "
        "os.write(1, b'%d\\ngo\\n' % child.pid); child.wait()\"; exec sleep 600"
    )
    process, [child] = start(instance, 8, program)
    middle = next(iter(find_descendants(instance) - {process.pid, child}))
    assert find_descendants(instance, 8, exclude=[middle]) == {process.pid}
    assert find_descendants(instance, exclude=[middle]) == {process.pid, child}
    assert kill_descendants(instance) == []
    process.wait()


def test_without_tags_a_tree_is_named_by_its_root(instance: int) -> None:
    root = untagged("sleep 600 & echo $!; sleep 600 & wait")
    assert find_descendants(instance) == set()
    found = find_descendants(instance, roots=[root.pid])
    assert root.pid in found
    assert len(found) >= 2
    assert kill_descendants(instance, roots=[root.pid]) == []
    assert root.wait() == -signal.SIGKILL


def test_the_caller_and_the_excluded_are_never_hit(instance: int) -> None:
    kept, [kept_pid] = start(instance, 1, "echo $$; echo go; exec sleep 600")
    killed, _ = start(instance, 1, "echo $$; echo go; exec sleep 600")
    set_own_tag(tag_value(instance, 1))
    assert kill_descendants(instance, exclude=[kept_pid]) == []
    assert killed.wait() == -signal.SIGKILL
    assert kept.poll() is None
    kept.kill()
    kept.wait()


def test_other_instances_and_untagged_processes_are_not_hit(instance: int) -> None:
    other = descendants.new_instance()
    neighbour, [pid] = start(other, 1, "echo $$; echo go; exec sleep 600")
    stranger = untagged()
    mine, _ = start(instance, 1, "echo $$; echo go; exec sleep 600")
    assert kill_descendants(instance) == []
    mine.wait()
    assert find_descendants(other) == {pid}
    assert stranger.poll() is None
    assert kill_descendants(other) == []
    neighbour.wait()
    stranger.kill()
    stranger.wait()


def test_zombies_are_no_members(instance: int) -> None:
    process, [pid] = start(instance, 1, "echo $$; echo go; exec sleep 600")
    pidfd = os.pidfd_open(pid)
    process.kill()
    assert ended(pidfd, 10)
    os.close(pidfd)
    assert tag_of(pid) == tag_value(instance, 1)
    assert find_descendants(instance) == set()
    process.wait()


def test_a_process_whose_main_thread_ended_is_a_member(instance: int) -> None:
    program = (
        "import ctypes, os, threading, time\n"
        "def work():\n"
        "    while open('/proc/self/stat').read().split()[2] != 'Z': time.sleep(0.001)\n"
        "    os.write(1, b'%d\\ngo\\n' % os.getpid()); time.sleep(600)\n"
        "threading.Thread(target=work).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process, [pid] = start(instance, 1, f'exec {sys.executable} -I -c "{program}"')
    assert find_descendants(instance) == {pid}
    assert kill_descendants(instance) == []
    process.wait()


def test_a_pid_that_is_no_member_at_the_second_look_is_not_signalled(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = untagged()
    scans = iter([{stranger.pid}])

    def scan(*_: object, exclude: Collection[int] = (), roots: Collection[int] = ()) -> set[int]:
        return next(scans, set())

    monkeypatch.setattr(descendants, "find_descendants", scan)
    assert kill_descendants(instance) == []
    monkeypatch.undo()
    assert Path(f"/proc/{stranger.pid}/stat").read_text().split()[2] not in "TZ"
    stranger.kill()
    stranger.wait()


def test_a_program_that_forks_without_end_is_killed(instance: int) -> None:
    # Each link starts the next one in its own session and ends a moment later.
    link = "echo go; while :; do setsid sleep 600 & n=$((n+1)); [ $n -gt 2000 ] && sleep 600; done"
    process, _ = start(instance, 1, link)
    assert kill_descendants(instance, timeout=20) == []
    assert process.wait() == -signal.SIGKILL


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """No more than so many can be opened meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if not os.path.exists(f"/proc/self/fd/{number}"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("left", range(2, 10))
def test_more_members_than_descriptors_are_killed_in_turns(instance: int, left: int) -> None:
    process, pids = start(instance, 1, f"{SEVEN}; echo go; wait")
    handles = [os.pidfd_open(pid) for pid in pids]
    with descriptors_left(left):
        assert kill_descendants(instance, timeout=20) == []
    assert [ended(handle) for handle in handles] == [True] * 7
    process.wait()
    for handle in handles:
        os.close(handle)


def test_the_time_limit_counts_from_the_last_end_of_a_process(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, now = descendants.read_proc, 0.0

    def slowly(path: str) -> bytes:  # as on a busy machine
        nonlocal now
        now += 0.001
        return read(path)

    process, _ = start(instance, 1, "for i in $(seq 32); do sleep 600 & done; echo go; wait")
    with descriptors_left(6), monkeypatch.context() as patched:
        patched.setattr(descendants, "read_proc", slowly)
        patched.setattr(descendants, "time", SimpleNamespace(monotonic=lambda: now))
        patched.setattr(descendants, "_RESCAN_S", 20.0)  # by the real clock
        assert kill_descendants(instance, timeout=0.5) == []
        assert now > 0.5, "the limit was never reached"
    process.wait()


@pytest.mark.parametrize("left", [0, 1])
def test_without_descriptors_no_process_is_killed_and_the_caller_is_told(instance: int, left: int) -> None:
    process, _ = start(instance, 1, "echo go; exec sleep 600")
    with descriptors_left(left), pytest.raises(OSError):
        kill_descendants(instance, timeout=600)
    assert process.poll() is None
    assert kill_descendants(instance) == []
    process.wait()


def test_members_that_cannot_be_looked_at_are_not_taken_for_dead(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = start(instance, 1, "echo go; exec sleep 600")
    list_folder = os.listdir
    with contextlib.ExitStack() as shortage:

        def list_and_be_short(path: str) -> list[str]:
            names = list_folder(path)
            monkeypatch.undo()
            shortage.enter_context(descriptors_left(0))
            return names

        # As when another thread takes the last descriptor in the middle of a look.
        monkeypatch.setattr(os, "listdir", list_and_be_short)
        with pytest.raises(OSError):
            find_descendants(instance)
    assert find_descendants(instance) == {process.pid}
    assert kill_descendants(instance) == []
    process.wait()


def test_a_process_born_during_a_scan_that_finds_none_is_killed(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = start(instance, 1, DAEMON)
    born: list[subprocess.Popen[bytes]] = []
    scan = find_descendants

    def scan_and_bear(*arguments: Any, **named: Any) -> set[int]:
        found = scan(*arguments, **named)
        if not found and not born:
            born.append(start(instance, 1, "echo go; exec sleep 600")[0])
        return found

    monkeypatch.setattr(descendants, "find_descendants", scan_and_bear)
    assert kill_descendants(instance) == []
    monkeypatch.undo()
    assert [child.wait(5) for child in (process, *born)] == [-signal.SIGKILL, -signal.SIGKILL]


def test_kernel_threads_are_never_members(instance: int) -> None:
    if Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("no kernel threads in this pid namespace")
    assert find_descendants(instance, roots=[2]) == set()


def test_killing_works_from_a_worker_thread(instance: int) -> None:
    process, _ = start(instance, 1, DAEMON)
    result: list[list[int]] = []
    thread = threading.Thread(target=lambda: result.append(kill_descendants(instance)))
    thread.start()
    thread.join()
    assert result == [[]]
    process.wait()


def test_no_descriptor_is_left_open(instance: int) -> None:
    before = os.listdir("/proc/self/fd")
    process, _ = start(instance, 1, DAEMON)
    kill_descendants(instance)
    process.wait()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_those_that_may_not_be_signalled_are_named_at_once(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, [pid] = start(instance, 1, "echo $$; echo go; exec sleep 600")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("execserver.descendants.signal.pidfd_send_signal", refuse)
    assert kill_descendants(instance, timeout=600) == [pid]
    monkeypatch.undo()
    process.kill()
    process.wait()


def test_children_of_names_the_living_children() -> None:
    child = untagged()
    assert child.pid in descendants.children_of(os.getpid())
    child.kill()
    child.wait()
    assert child.pid not in descendants.children_of(os.getpid())


# -- other signals


def _state(pid: int) -> str | None:
    """The letter of its state; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return None


def _all_stop(instance: int, count: int | None = None) -> bool:
    """Whether all descendants stop; a process does so when it next comes to run."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = find_descendants(instance)
        states = [state for pid in found if (state := _state(pid))]
        if set(states) == {"T"} and count in (None, len(states)):
            return True
        time.sleep(0.01)
    return False


def test_a_signal_reaches_every_member_once_but_those_that_are_passed_over(instance: int) -> None:
    process, [daemon] = start(instance, 4, DAEMON)
    other, _ = start(instance, 5, "echo go; exec sleep 600")
    passed = {process.pid}
    assert signal_descendants(instance, 4, signal.SIGUSR1, passed=passed) == 1
    assert passed == {process.pid, daemon}
    assert signal_descendants(instance, 4, signal.SIGUSR1, passed=passed) == 0
    assert signal_descendants(instance, 6, signal.SIGUSR1, passed=set()) == 0
    assert wait_gone(daemon)
    assert find_descendants(instance) == {process.pid, other.pid}
    assert kill_descendants(instance) == []
    assert (process.wait(), other.wait()) == (-signal.SIGKILL, -signal.SIGKILL)


def test_sigstop_overtakes_those_that_are_born_meanwhile(instance: int) -> None:
    born = "while :; do (setsid sleep 0.01 &); (exec true); done"
    process, _ = start(instance, 4, f"echo go; {born}")
    try:
        signal_descendants(instance, 4, signal.SIGSTOP, passed=set())
        assert _all_stop(instance)
    finally:
        assert kill_descendants(instance) == []
        process.wait()


def test_more_members_than_are_signalled_at_once_all_get_it(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descendants, "_SIGNALLED_AT_ONCE", 3)
    process, _ = start(instance, 4, f"{SEVEN}; echo go; wait")
    assert signal_descendants(instance, 4, signal.SIGSTOP, passed=set()) == 8
    assert _all_stop(instance, 8)
    assert kill_descendants(instance) == []
    process.wait()


@pytest.mark.parametrize("left", range(2, 10))
def test_more_members_than_descriptors_all_get_a_signal(instance: int, left: int) -> None:
    process, _ = start(instance, 4, f"{SEVEN}; echo go; wait")
    with descriptors_left(left):
        assert signal_descendants(instance, 4, signal.SIGSTOP, passed=set()) == 8
    assert _all_stop(instance, 8)
    assert kill_descendants(instance) == []
    process.wait()


def test_without_a_descriptor_no_process_is_signalled_and_the_caller_is_told(instance: int) -> None:
    process, _ = start(instance, 4, "echo go; exec sleep 600")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Room for a look at the processes and no handle beside it cannot be told apart; so for nothing.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError):
            signal_descendants(instance, 4, signal.SIGTERM, passed=set())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.poll() is None
    assert kill_descendants(instance) == []
    process.wait()


THREADED = """
import subprocess, sys, threading
def start():
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    over.wait()
over = threading.Event()
threading.Thread(target=start).start()
zombie = subprocess.Popen(["true"])
import os
os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
print("go", flush=True)
"""


def test_the_names_below_a_process_are_those_of_all_its_living_descendants(instance: int) -> None:
    process, _ = start(instance, 1, "sh -c 'sleep 600 & wait' & sleep 600 >/dev/null & echo go; wait")
    deadline = time.monotonic() + 60
    while sorted(names_below(process.pid, 100)) != [b"sh", b"sleep", b"sleep"]:
        assert time.monotonic() < deadline, names_below(process.pid, 100)
        time.sleep(0.01)
    assert len(names_below(process.pid, 2)) == 2
    kill_descendants(instance)
    process.wait()
    assert names_below(process.pid, 100) == []


def test_a_zombie_has_no_name_and_the_child_of_a_thread_has_one(instance: int) -> None:
    process, _ = start(instance, 1, f"exec {sys.executable} -I -c '{THREADED}'")
    deadline = time.monotonic() + 60
    while (names := names_below(process.pid, 100)) != [b"sleep"]:
        assert time.monotonic() < deadline, names
        time.sleep(0.01)
    kill_descendants(instance)
    process.wait()
