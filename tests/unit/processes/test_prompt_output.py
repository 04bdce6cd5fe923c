"""Looking for what a child says to its input: while that pays, for a moment, and from one place."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Iterator

import pytest

from execserver.processes import prompt_output
from execserver.processes.poller import READABLE, Watch
from execserver.processes.prompt_output import TOGETHER_SECONDS, PromptPredictor, wait_for_output

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) == 1, reason="with a single processor the server never waits"
)

OFTEN = 2000


class Output:
    """Something that is read, and how often it was served."""

    def __init__(self, fd: int) -> None:
        self.taken: list[bytes] = []
        self.epoll = select.epoll()
        self.watch = Watch(self.epoll, {}, fd, self._take)
        self.watch.set(READABLE)

    def _take(self, events: int) -> None:
        assert events == READABLE
        self.taken.append(os.read(self.watch.fd, 100))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def output(pipe: tuple[int, int]) -> Iterator[Output]:
    output = Output(pipe[0])
    yield output
    output.epoll.close()


def prompts(predictor: PromptPredictor, writes: int) -> int:
    """After how many of so many separate writes the server waits."""
    count = 0
    for _ in range(writes):
        predictor._last = 0.0
        count += predictor.is_prompt()
    return count


def test_an_answer_that_is_there_is_taken_and_makes_a_good_habit(
    pipe: tuple[int, int], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_output, "WAIT_SECONDS", 20.0)
    predictor = PromptPredictor(terminal=False)
    os.write(pipe[1], b"answer")
    wait_for_output(predictor, [output.watch])
    assert output.taken == [b"answer"]
    assert prompts(predictor, 100) == 100


def test_an_answer_that_comes_during_the_look_is_taken(
    pipe: tuple[int, int], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_output, "WAIT_SECONDS", 20.0)
    answer = threading.Timer(0.05, os.write, (pipe[1], b"later"))
    answer.start()
    wait_for_output(PromptPredictor(terminal=False), [output.watch])
    answer.join()
    assert output.taken == [b"later"]


def test_a_look_takes_from_all_outputs_that_have_something(pipe: tuple[int, int], output: Output) -> None:
    other = os.pipe2(os.O_NONBLOCK)
    second = Output(other[0])
    os.write(pipe[1], b"one")
    os.write(other[1], b"two")
    wait_for_output(PromptPredictor(terminal=False), [output.watch, second.watch])
    assert (output.taken, second.taken) == ([b"one"], [b"two"])
    second.epoll.close()
    for end in other:
        os.close(end)


def test_a_terminals_answer_is_taken() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    output = Output(master)
    predictor = PromptPredictor(terminal=True)
    # The first look may be over before the kernel's worker is.
    os.write(slave, b"echo")
    deadline = time.monotonic() + 20
    while not output.taken and time.monotonic() < deadline:
        wait_for_output(predictor, [output.watch])
    assert output.taken == [b"echo"]
    output.epoll.close()
    os.close(slave)
    wait_for_output(predictor, [output.watch])
    os.close(master)


def test_what_is_not_read_any_more_is_not_touched(pipe: tuple[int, int], output: Output) -> None:
    os.write(pipe[1], b"for later")
    output.watch.set(0)
    wait_for_output(PromptPredictor(terminal=False), [output.watch])
    assert not output.taken


def test_a_silent_child_is_looked_at_ever_more_seldom(output: Output) -> None:
    predictor = PromptPredictor(terminal=False)
    looks = 0
    for _ in range(OFTEN):
        predictor._last = 0.0
        if predictor.is_prompt():
            looks += 1
            wait_for_output(predictor, [output.watch])
    # At 1, 3, 7, … 511 writes, and then at every 256th.
    assert looks <= 8 + OFTEN // 256 + 1
    assert not output.taken


def test_one_answer_makes_up_for_all_silence(
    pipe: tuple[int, int], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_output, "WAIT_SECONDS", 20.0)
    predictor = PromptPredictor(terminal=False)
    for _ in range(20):
        predictor.observed(answered=False)
    assert prompts(predictor, 256) == 1
    os.write(pipe[1], b"awake")
    wait_for_output(predictor, [output.watch])
    assert prompts(predictor, 100) == 100


def test_of_writes_that_come_together_only_the_first_is_followed_by_a_look() -> None:
    predictor = PromptPredictor(terminal=False)
    assert predictor.is_prompt()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        # On a machine that others use a moment may pass between two lines.
        began = time.perf_counter()
        predictor.observed(answered=True)
        second = predictor.is_prompt()
        if time.perf_counter() - began < TOGETHER_SECONDS:
            assert not second
            break
    else:
        pytest.fail("never got to ask in time")
    time.sleep(TOGETHER_SECONDS * 2)
    assert predictor.is_prompt()


def test_with_a_single_processor_there_is_no_wait() -> None:
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from execserver.processes.prompt_output import PromptPredictor\n"
        "print(PromptPredictor(terminal=False).is_prompt())\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout == "False\n"
