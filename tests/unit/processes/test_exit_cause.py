"""Why a process ended: what is decided, and on what evidence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execprotocol.process import ExitCause
from execserver.processes.exit_cause import OomCounter, cgroup_of, exit_cause, may_be_out_of_memory, oom_kills

KILLED = 128 + signal.SIGKILL
OURS: tuple[ExitCause, ...] = ("terminated", "timeout", "idleTimeout", "sessionExpired", "serviceStop")


def cause(
    code: int,
    *,
    by_signal: bool = True,
    ending: ExitCause | None = None,
    before: int | None = 3,
    now: int | None = 3,
    launched: bool = False,
    warned: bool = False,
) -> ExitCause:
    return exit_cause(
        code,
        by_signal=by_signal,
        ending=ending,
        oom_kills_before=before,
        oom_kills_now=now,
        launched=launched,
        warned=warned,
    )


@pytest.mark.parametrize("code", [0, 1, 137, 255])
@pytest.mark.parametrize("ending", [None, *OURS, "unknown"])
def test_whatever_status_a_program_gives_is_its_own(code: int, ending: ExitCause | None) -> None:
    assert cause(code, by_signal=False, ending=ending, now=4) == "normal"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGSEGV, signal.SIGSYS])
@pytest.mark.parametrize("ending", [None, *OURS, "unknown"])
def test_a_signal_that_we_do_not_kill_with_is_a_signal(number: int, ending: ExitCause | None) -> None:
    assert cause(128 + number, ending=ending, now=4) == "signal"


@pytest.mark.parametrize("code", [0, 3, 137, 128 + signal.SIGTERM, 128 + signal.SIGXCPU])
@pytest.mark.parametrize("ending", ["timeout", "idleTimeout"])
def test_every_end_after_a_warning_is_for_the_limit(code: int, ending: ExitCause) -> None:
    assert cause(code, by_signal=code > 128, ending=ending, now=4, warned=True) == ending


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGXFSZ])
@pytest.mark.parametrize("ending", [None, "terminated"])
def test_the_signals_of_resource_limits_are_limits(number: int, ending: ExitCause | None) -> None:
    assert cause(128 + number, ending=ending) == "limit"


@pytest.mark.parametrize("ending", OURS)
def test_a_kill_of_ours_is_what_we_said_it_would_be(ending: ExitCause) -> None:
    assert cause(KILLED, ending=ending) == ending
    assert cause(KILLED, ending=ending, now=4) == ending
    assert not may_be_out_of_memory(KILLED, ending)


def test_a_kill_that_is_not_ours_is_for_memory_when_the_kernel_counted_one() -> None:
    assert may_be_out_of_memory(KILLED, None)
    assert cause(KILLED, before=3, now=4) == "outOfMemory"
    assert cause(KILLED, before=3, now=3) == "signal"


@pytest.mark.parametrize(("before", "now"), [(None, 4), (3, None), (None, None), (4, 3)])
def test_without_both_counts_nothing_is_said_of_memory(before: int | None, now: int | None) -> None:
    assert cause(KILLED, before=before, now=now) == "signal"


def test_a_kill_that_a_dead_server_may_have_sent_is_unknown_unless_the_kernel_counted_one() -> None:
    assert may_be_out_of_memory(KILLED, "unknown")
    assert cause(KILLED, ending="unknown") == "unknown"
    assert cause(KILLED, ending="unknown", now=4) == "outOfMemory"


@pytest.mark.parametrize(
    ("code", "ending", "wanted"),
    [
        (0, "timeout", "normal"),
        (1, None, "normal"),
        (128, None, "normal"),
        (KILLED, "timeout", "timeout"),
        (KILLED, None, "signal"),
        (128 + signal.SIGSEGV, None, "signal"),
        (128 + signal.SIGXCPU, None, "limit"),
        (255, None, "normal"),
    ],
)
def test_a_launcher_passes_a_signal_on_as_a_status(
    code: int, ending: ExitCause | None, wanted: ExitCause
) -> None:
    assert cause(code, by_signal=False, launched=True, ending=ending) == wanted


def test_the_kernels_count_can_be_read_and_costs_little() -> None:
    first = oom_kills()
    assert first is not None
    assert first >= 0
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        count = oom_kills()
        assert count is not None
        assert count >= first
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0::/system.slice/execserver.service\n", "/system.slice/execserver.service"),
        ("4:memory:/a\n0::/\n", "/"),
        ("4:memory:/a\n", None),
        ("0::/odd:name\n", "/odd:name"),
        ("", None),
    ],
)
def test_the_cgroup_is_the_one_of_version_2(text: str, wanted: str | None) -> None:
    assert cgroup_of(text) == wanted


def test_the_counter_is_looked_at_once_a_second_and_not_at_each_start() -> None:
    now, looks = [0.0], iter(range(100))
    counter = OomCounter(lambda: next(looks), lambda: now[0])
    assert [counter.before_start() for _ in range(1000)] == [0] * 1000
    now[0] = 1.1
    assert counter.before_start() == 1
    assert counter.look() == 2
    assert counter.before_start() == 2


@pytest.fixture
def short_of_memory() -> Iterator[Path]:
    """A cgroup with 8 MiB of memory; its list of members."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = root / f"execserver-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(8 << 20))
        except OSError:
            folder.rmdir()
            continue
        yield folder / "cgroup.procs"
        folder.rmdir()
        return
    pytest.skip("no cgroup can be made here")


def test_a_kill_by_the_kernel_for_memory_is_told_from_another_kill(
    short_of_memory: Path,
) -> None:
    counter = OomCounter()
    before = counter.before_start()
    script = f"open({str(short_of_memory)!r}, 'w').write('0'); b'x' * (64 << 20)"
    greedy = subprocess.run([sys.executable, "-c", script], check=False)
    assert greedy.returncode == -signal.SIGKILL
    assert cause(KILLED, before=before, now=counter.look()) == "outOfMemory"

    before = counter.before_start()
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        other.kill()
    assert other.returncode == -signal.SIGKILL
    assert cause(KILLED, before=before, now=counter.look()) == "signal"
