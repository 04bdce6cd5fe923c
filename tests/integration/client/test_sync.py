from __future__ import annotations

import asyncio
import gc
import hashlib
import inspect
import linecache
import os
import pydoc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Self
from weakref import WeakSet

import pytest

import execclient
from execclient import (
    Chunk,
    DaemonNotRunning,
    ExecServerError,
    ExecutorClosed,
    OutputGap,
    SystemFailure,
    loop_thread,
    sync,
)
from execclient.sync import Executor, connect
from tests.support.threads import settled
from tests.support.wire import wait_gone

PATIENCE = 10.0
PROPERTIES = (property, cached_property)
SKINS = ("Executor", "Process", "FileSystem", "Forward", "PortEvents", "TextStream", "LineStream", "Watch")
TWINS = {"__iter__": "__aiter__", "__next__": "__anext__", "__enter__": "__aenter__", "__exit__": "__aexit__"}


@pytest.fixture
def blocking(url: str) -> Iterator[Executor]:
    """A session from a thread without a loop."""
    with connect(url) as executor:
        yield executor


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def public(kind: type) -> dict[str, Any]:
    names = {name for name in dir(kind) if not name.startswith("_")}
    return {name: inspect.getattr_static(kind, name) for name in names}


@pytest.mark.parametrize("name", SKINS)
def test_a_class_has_the_names_and_the_signatures_of_its_twin(name: str) -> None:
    ours, theirs = public(getattr(sync, name)), public(getattr(execclient, name))

    assert sorted(ours) == sorted(theirs)
    for each, member in theirs.items():
        assert isinstance(ours[each], PROPERTIES) == isinstance(member, PROPERTIES), each
        if callable(member):
            assert inspect.signature(ours[each]) == inspect.signature(member), each
            assert not inspect.iscoroutinefunction(ours[each]), each
            assert inspect.getdoc(ours[each]), each


@pytest.mark.parametrize("name", SKINS)
def test_a_class_iterates_and_is_a_context_manager_where_its_twin_is(name: str) -> None:
    ours, theirs = getattr(sync, name), getattr(execclient, name)

    for blocking, asynchronous in TWINS.items():
        if theirs is execclient.Executor and blocking in ("__enter__", "__exit__"):
            theirs = execclient.connect  # which is what is entered there
        assert hasattr(ours, blocking) == hasattr(theirs, asynchronous), blocking
        assert not hasattr(ours, asynchronous), asynchronous


def test_connect_takes_what_its_twin_takes() -> None:
    ours = inspect.signature(connect).parameters
    theirs = inspect.signature(execclient.connect).parameters

    assert list(ours.values()) == list(theirs.values())
    assert inspect.signature(connect).return_annotation == "Executor"
    assert pydoc.plain(pydoc.render_doc(connect)).splitlines()[2].endswith("-> 'Executor'")


def test_the_output_of_a_process_is_described(blocking: Executor) -> None:
    with blocking.start(["cat"], id="reader", stdin=True) as process:
        assert repr(process.output) == "<OutputQueue of process reader, waiting chunks: 0>"


async def test_instances_have_the_attributes_of_their_twins(url: str) -> None:
    async with execclient.connect(url) as theirs:
        their_process = await theirs.start(["true"])
        with connect(url) as ours:
            process = ours.start(["true"])

            for blocking, asynchronous in ((ours, theirs), (process, their_process), (ours.fs, theirs.fs)):
                names = [{name for name in vars(each) if name[0] != "_"} for each in (blocking, asynchronous)]
                properties = {name for name in dir(blocking) if name[0] != "_"}
                assert names[1] <= names[0] | properties
                assert names[0] <= names[1] | {name for name in dir(asynchronous) if name[0] != "_"}


def test_importing_it_pulls_in_neither_pexpect_nor_anything_heavy() -> None:
    listing = subprocess.run(
        [sys.executable, "-c", "import execclient.sync, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    heavy = {
        "pexpect",
        "ptyprocess",
        "pydantic",
        "structlog",
        "uvloop",
        "picows",
        "websockets",
        "argparse",
    }
    assert "execclient.sync" in listing
    assert heavy.isdisjoint(name.partition(".")[0] for name in listing)


def test_a_command_is_run(blocking: Executor) -> None:
    result = blocking.run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert (result.exit_code, result.text, result.stderr_text) == (3, "out\n", "err\n")


def test_errors_are_those_of_the_core(blocking: Executor) -> None:
    with pytest.raises(SystemFailure):
        blocking.run(["/nowhere/at-all"])
    with pytest.raises(TypeError, match="argv is a list"):
        blocking.run("true")


def test_a_process_is_talked_to_and_iterated_over(blocking: Executor) -> None:
    with blocking.start(["sh", "-c", "echo one; read line; echo $line >&2; exit 4"], stdin=True) as process:
        assert next(process) == Chunk("stdout", b"one\n")
        process.write("two\n")

        assert list(process) == [("stderr", b"two\n")]
        assert (process.wait(), process.exit_code) == (4, 4)
        assert list(process) == []


def test_text_is_decoded_across_chunks(blocking: Executor) -> None:
    script = r"printf '\303'; read line; printf '\274\n\342\202'"
    with blocking.start(["sh", "-c", script], stdin=True) as process:
        process.write("\n")
        text = "".join(text for _, text in process.text())

    assert text == "ü\n\N{REPLACEMENT CHARACTER}"


def test_leaving_the_block_of_a_process_kills_it(blocking: Executor) -> None:
    with blocking.start(["sleep", "1000"]) as process:
        pid = process.pid
    assert pid is not None
    assert wait_gone(pid)


def test_files_are_written_and_read(blocking: Executor, tmp_path: Path) -> None:
    blocking.fs.mkdir(tmp_path / "a" / "b", parents=True)
    blocking.fs.write_text(tmp_path / "a" / "b" / "c", "grüezi")

    assert blocking.fs.read_text(tmp_path / "a" / "b" / "c") == "grüezi"
    assert [entry.name for entry in blocking.fs.iterdir(tmp_path / "a")] == ["b"]


def test_all_output_comes_in_order_while_it_is_consumed(blocking: Executor) -> None:
    script = "import sys\nfor n in range(200_000): sys.stdout.buffer.write(b'%d\\n' % n)"
    expected = hashlib.sha256(b"".join(b"%d\n" % n for n in range(200_000))).hexdigest()

    seen = hashlib.sha256()
    for _, data in blocking.start([sys.executable, "-c", script]):
        seen.update(data)

    assert seen.hexdigest() == expected


def test_several_threads_share_one_executor(blocking: Executor) -> None:
    def echo(number: int) -> str:
        return blocking.run(["echo", str(number)]).text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(echo, range(40))) == [f"{number}\n" for number in range(40)]


def test_several_threads_share_the_output_of_one_process(blocking: Executor) -> None:
    process = blocking.start([sys.executable, "-c", "for n in range(100_000): print(n, flush=not n % 100)"])

    def take() -> list[Chunk]:
        return list(process)

    with ThreadPoolExecutor(4) as pool:
        taken = [data for future in [pool.submit(take) for _ in range(4)] for _, data in future.result()]

    assert len(b"".join(taken)) == sum(len(f"{n}\n") for n in range(100_000))


async def test_it_works_in_a_thread_whose_event_loop_runs(url: str) -> None:
    with connect(url) as executor:
        assert executor.run(["echo", "hello"]).text == "hello\n"


def test_a_dropped_connection_is_not_noticed(shared_url: str) -> None:
    with connect(shared_url) as executor, executor.start(["cat"], stdin=True) as process:
        process.write("one")
        assert next(process).data == b"one"
        executor.drop_connection()
        process.write("two")

        assert next(process).data == b"two"
        assert executor.recoveries == 1


def test_dropped_output_is_a_gap_at_its_place(blocking: Executor) -> None:
    script = "head -c 1000000 /dev/zero; read line; echo end"
    process = blocking.start(["sh", "-c", script], stdin=True, buffer_bytes=1000)
    seen, after = 0, 0
    while seen < 1_000_000:
        page = process.read(after, wait=PATIENCE)
        seen, after = seen + len(page.data), page.next_seq - 1
    process.write("\n")
    process.wait_closed()

    with pytest.raises(OutputGap) as gap:
        next(process)
    rest = b"".join(data for _, data in process)

    assert rest.endswith(b"end\n")
    assert gap.value.lost_bytes == 1_000_004 - len(rest)


# -- interruptions


def interrupted(call: Callable[[], object], fifo: Path) -> list[int]:
    """Make a call that Ctrl-C interrupts as soon as a command has written its pids, and give them."""
    pids: list[int] = []

    def interrupt() -> None:
        pids.extend(int(word) for word in fifo.read_text().split())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)

    def call_it() -> None:
        thread.start()  # the interruption may come within this
        call()

    with pytest.raises(KeyboardInterrupt):
        call_it()
    thread.join()
    return pids


def test_an_interrupted_run_leaves_no_process_behind(blocking: Executor, fifo: Path) -> None:
    command = ["sh", "-c", f"sleep 1000 & echo $$ $! > {fifo}; wait"]

    pids = interrupted(lambda: blocking.run(command), fifo)

    assert [wait_gone(pid, 5) for pid in pids] == [True, True]
    assert blocking.run(["echo", "still"]).text == "still\n"


def test_an_interrupted_iteration_loses_no_output(blocking: Executor, fifo: Path) -> None:
    process = blocking.start(["sh", "-c", f"echo $$ > {fifo}; read line; echo $line"], stdin=True)

    interrupted(lambda: next(process), fifo)

    process.write("hello\n")
    assert next(process).data == b"hello\n"


def test_ctrl_c_at_the_top_of_a_program_ends_it_and_its_commands(url: str, fifo: Path) -> None:
    script = (
        "import sys\nfrom execclient.sync import connect\n"
        "with connect(sys.argv[1]) as executor:\n"
        "    executor.start(['sh', '-c', sys.argv[2]]).wait()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, url, f"echo $$ > {fifo}; exec sleep 1000"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pid = int(fifo.read_text())
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
        program.communicate()

    assert wait_gone(pid, 5)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "Warning" not in errors


LINES = 60
"""More than a call runs before it waits."""

INTERRUPTIBLE = tuple(inspect.getfile(module) for module in (sync, loop_thread, asyncio.base_events))


class Interruption:
    """Within the block Ctrl-C comes at the Nth line that this thread runs of the client's own."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.came = False

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *failure: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in INTERRUPTIBLE:
            return None
        # A signal is looked for after a call and in a loop, so never between a block and its lock's release;
        # a line, the one of the `with` once more, is.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not source.lstrip().startswith("with "):
            self._left -= 1
            if self._left < 0:
                sys.settrace(None)
                self.came = True
                raise KeyboardInterrupt
        return self._trace


def interrupted_at_each_line(call: Callable[[], object]) -> Iterator[int]:
    """Make a call that would last again and again, each time interrupted a line later.

    From the last of these lines on it only looks up now and then.
    """
    for line in range(LINES):
        interruption = Interruption(line)
        with suppress(KeyboardInterrupt), interruption:
            call()
        assert interruption.came
        yield line


def test_a_run_may_be_interrupted_at_any_line(blocking: Executor, recwarn: pytest.WarningsRecorder) -> None:
    for _ in interrupted_at_each_line(lambda: blocking.run(["sleep", "1000"])):
        assert blocking.run(["echo", "still"]).text == "still\n"
        # Where the answer to the start was still on its way, the end is asked for and not waited for.
        assert all(wait_gone(each.pid, 5) for each in blocking.processes() if each.exit_code is None)
    gc.collect()

    assert [str(warning.message) for warning in recwarn] == []


def test_a_start_may_be_interrupted_at_any_line(blocking: Executor, recwarn: pytest.WarningsRecorder) -> None:
    for line in range(LINES):
        with suppress(KeyboardInterrupt), Interruption(line):
            blocking.start(["sleep", "1000"]).kill()
        assert blocking.run(["echo", "still"]).text == "still\n"
    gc.collect()

    assert [str(warning.message) for warning in recwarn] == []


def test_an_iteration_may_be_interrupted_at_any_line(blocking: Executor) -> None:
    process = blocking.start(["cat"], stdin=True)

    for line in interrupted_at_each_line(lambda: next(process)):
        process.write(f"{line}\n")
        assert next(process).data == b"%d\n" % line


def test_connecting_may_be_interrupted_at_any_line(shared_url: str, recwarn: pytest.WarningsRecorder) -> None:
    before = resources()

    for line in range(LINES):
        with suppress(KeyboardInterrupt), Interruption(line):
            connect(shared_url).close()
    gc.collect()

    assert resources(before) == before
    # Where `close` was interrupted before it began, that it was not closed is said, and is true.
    assert {str(warning.message) for warning in recwarn} <= {f"an executor at {shared_url} was not closed"}


def tasks_destroyed_here(call: Callable[[], object], times: int) -> int:
    """How often the end of a task runs a Python function in this thread, while it makes so many calls."""
    destroyed = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal destroyed
        destroyed += event == "call" and frame.f_code is END_OF_A_MEMBER

    gc.collect()
    gc.disable()  # the garbage of other tests has tasks too
    sys.setprofile(count)
    try:
        for _ in range(times):
            with suppress(ExecServerError):
                call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return destroyed


END_OF_A_MEMBER = WeakSet[object]()._remove.__code__  # type: ignore[attr-defined]
"""asyncio keeps all tasks in a weak set. Of an interruption within this function Python prints only that it
came."""


def test_no_call_ends_in_a_function_that_would_lose_an_interruption(
    blocking: Executor, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)

    def timed_out() -> None:
        process = blocking.start(["sleep", "1000"])
        try:
            process.wait(timeout=0.01)
        finally:
            process.kill()

    calls: dict[str, Callable[[], object]] = {
        "an answer": lambda: blocking.fs.exists(tmp_path),
        "an error": lambda: blocking.fs.read_bytes(tmp_path / "missing"),
        "a run": lambda: blocking.run(["true"]),
        "a program that is missing": lambda: blocking.run(["/missing"]),
        "an iteration": lambda: list(blocking.start(["echo", "line"])),
        "lines": lambda: list(blocking.start(["seq", "10"]).lines()),
        "input": lambda: blocking.start(["cat"], stdin=True).communicate(b"line\n"),
        "a time limit": timed_out,
        "a transfer": lambda: blocking.fs.download(file, tmp_path / "copy", progress=lambda _: None),
    }

    assert {name: tasks_destroyed_here(call, 10) for name, call in calls.items()} == dict.fromkeys(calls, 0)


# -- the end


def test_calls_after_close_are_refused(url: str) -> None:
    with connect(url) as executor:
        process = executor.start(["sleep", "1000"])

    for call in (
        lambda: executor.run(["true"]),
        lambda: executor.start(["true"]),
        lambda: executor.fs.read_bytes("x"),
        lambda: next(process),
        process.wait,
        process.terminate,
        executor.drop_connection,
    ):
        with pytest.raises(ExecutorClosed):
            call()
    executor.close()


@pytest.mark.parametrize(
    "wait",
    [lambda process: process.wait(), next, lambda process: process.read(wait=1000)],
    ids=["wait", "iteration", "long poll"],
)
def test_a_call_under_way_ends_with_the_executor(url: str, wait: Callable[[sync.Process], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with connect(url, keep=True) as executor:
            process = executor.start(["cat"], stdin=True)
            waiting = pool.submit(wait, process)
        with pytest.raises(ExecutorClosed):
            waiting.result(PATIENCE)


def test_a_run_under_way_is_killed_with_the_executor(url: str, fifo: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with connect(url) as executor:
            running = pool.submit(executor.run, ["sh", "-c", f"echo $$ > {fifo}; exec sleep 1000"])
            pid = int(fifo.read_text())
        assert running.result(PATIENCE).exit_code == 137
    assert wait_gone(pid, 5)


def test_processes_outlast_an_executor_that_detaches(shared_url: str) -> None:
    executor = connect(shared_url)
    process = executor.start(["sh", "-c", "read line; echo $line; exit 3"], stdin=True, id="mine")
    executor.detach()
    executor.detach()

    with connect(shared_url, session_id=executor.session_id) as again:
        attached = again.attach("mine")
        attached.write("still here\n")
        assert (list(attached), attached.wait()) == ([("stdout", b"still here\n")], 3)
    assert process.exit_code is None


FORKING = """
import os, sys
from execclient.errors import ExecutorClosed
from execclient.sync import connect

executor = connect(sys.argv[1])
process = executor.start(["sh", "-c", "echo first; cat"], stdin=True)
output = iter(process)
print(next(output).data, flush=True)

def refused(action):
    try:
        print(action())
    except ExecutorClosed as error:
        print("fork" in str(error))

child = os.fork()
if not child:
    refused(lambda: executor.run(["true"]))
    refused(lambda: process.write("from the child"))
    refused(lambda: next(output))
    executor.close()
    with connect(sys.argv[1]) as own:
        print(own.run(["echo", "own"]).text, end="")
    sys.stdout.flush()
    del executor, process, output
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
process.write("still here")
process.close_stdin()
print(next(output).data, process.wait())
executor.close()
"""


def test_in_the_child_of_a_fork_it_is_closed_and_the_parents_goes_on(shared_url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", FORKING, shared_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        r"b'first\n'",
        *["True"] * 3,
        "own",
        "5",
        "b'still here' 0",
    ]


Resources = tuple[set[threading.Thread], list[str]]


def resources(before: Resources | None = None) -> Resources:
    gc.collect()
    threads = set(threading.enumerate()) if before is None else settled(before[0])
    return threads, sorted(os.listdir("/proc/self/fd"))


def test_nothing_of_a_closed_executor_is_left(url: str) -> None:
    connect(url).close()
    before = resources()

    for _ in range(3):
        with connect(url) as executor:
            executor.run(["true"])
            executor.start(["sleep", "1000"])
        executor = connect(url)
        executor.close()

    assert resources(before) == before


def test_nothing_of_a_failed_connect_is_left(tmp_path: Path) -> None:
    before = resources()

    with pytest.raises(DaemonNotRunning):
        connect(f"unix://{tmp_path}/none")

    assert resources(before) == before


def test_an_executor_that_was_not_closed_is_warned_of_and_ends(url: str) -> None:
    executor = connect(url)
    pid = executor.start(["sleep", "1000"]).pid
    assert pid is not None

    with pytest.warns(ResourceWarning, match="was not closed"):
        executor = None  # type: ignore[assignment]

    assert wait_gone(pid, 5)


def test_a_blocking_call_on_its_own_loop_is_refused(blocking: Executor) -> None:
    refusals: list[BaseException] = []

    async def call() -> None:
        try:
            blocking.run(["true"])
        except RuntimeError as error:
            refusals.append(error)

    blocking._thread.call(call)

    assert "wait for ever" in str(refusals[0])
