"""Extensions of the reference: signals, terminal sizes, end of input, and attaching."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from execclient import (
    Chunk,
    Executor,
    NoSuchProcess,
    OutputGap,
    Process,
    Refused,
    StdinUnavailable,
    Unsupported,
    WaitTimeout,
    connect,
)
from tests.conftest import StartServer
from tests.integration.client.conftest import EVERY_TRANSPORT
from tests.support.wire import alive, wait_gone

PATIENCE = 10.0

TRAPS = """
trap 'echo HUP' HUP; trap 'echo USR1' USR1; trap 'echo RT' RTMIN+3
echo ready; while :; do sleep 0.02; done
"""


async def all_of(process: Process) -> bytes:
    return b"".join([data async for _, data in process])


async def until(process: Process, wanted: bytes) -> bytes:
    seen = b""
    async for _, data in process:
        seen += data
        if wanted in seen:
            return seen
    raise AssertionError(f"the output ended without {wanted!r}: {seen!r}")


async def test_names_are_short_and_each_is_another(executor: Executor) -> None:
    names = {(await executor.start(["true"])).id for _ in range(20)}

    assert len(names) == 20
    assert all(len(name) == 8 and name.isalnum() and name.islower() for name in names)
    assert (await executor.start(["true"], id="my own")).id == "my own"


@EVERY_TRANSPORT
async def test_end_of_file_comes_behind_what_was_written(executor: Executor) -> None:
    process = await executor.start(["cat"], stdin=True)
    await process.write("one")
    await process.write("two")
    await process.close_stdin()
    await process.close_stdin()

    with pytest.raises(StdinUnavailable):
        await process.write("three")
    assert await all_of(process) == b"onetwo"
    assert (await process.wait(), process.cause) == (0, "normal")


async def test_what_has_no_input_to_end_says_so(executor: Executor) -> None:
    plain = await executor.start(["sleep", "60"])
    with pytest.raises(StdinUnavailable):
        await plain.close_stdin()

    terminal = await executor.start(["cat"], tty=True)
    assert terminal.tty
    with pytest.raises(Refused, match="0x04"):
        await terminal.close_stdin()


@pytest.mark.parametrize("sig", ["SIGUSR1", "usr1", signal.SIGUSR1, int(signal.SIGUSR1)])
async def test_signals_have_names_and_numbers(executor: Executor, sig: str | int) -> None:
    process = await executor.start(["bash", "-c", TRAPS])
    await until(process, b"ready\n")

    assert await process.signal(sig)
    await until(process, b"USR1\n")
    assert await process.signal("KILL")
    assert (await process.wait(), process.cause) == (137, "signal")
    assert not await process.signal("HUP")


@EVERY_TRANSPORT
async def test_a_real_time_signal_is_sent(executor: Executor) -> None:
    process = await executor.start(["bash", "-c", TRAPS])
    await until(process, b"ready\n")

    assert await process.signal(signal.SIGRTMIN + 3)

    await until(process, b"RT\n")


async def test_an_unknown_signal_is_an_error_here(executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])
    for none in (0, 999, -9):
        with pytest.raises(ValueError, match=f"^there is no signal {none} on this machine: give a name"):
            await process.signal(none)
    wrong: Any
    for wrong in (True, 9.0, None, b"TERM"):
        with pytest.raises(
            TypeError, match=f"sig is a name as 'TERM' or a number, not {type(wrong).__name__}"
        ):
            await process.signal(wrong)
    assert process.exit_code is None


async def test_a_scope_bounds_who_gets_a_signal(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "sleep 61 & setsid sleep 62 & echo $!; exec sleep 60"])
    outsider = int((await anext(process)).data)
    assert process.pid is not None

    assert await process.signal("TERM", scope="leader")
    assert await process.wait() == 143
    assert alive(outsider)
    assert await process.signal("TERM", scope="tree")
    assert await asyncio.to_thread(wait_gone, outsider, PATIENCE)
    await process.wait_closed()


async def test_without_the_extension_an_interrupt_is_all_there_is(executor: Executor) -> None:
    process = await executor.start(
        ["sh", "-c", "trap 'exit 7' INT; echo ready; while :; do sleep 0.02; done"]
    )
    await until(process, b"ready\n")
    executor._session.capabilities = frozenset()

    with pytest.raises(Unsupported, match=r"process/signal\.scope"):
        await process.signal("TERM")
    with pytest.raises(Unsupported, match=r"process/signal\.scope"):
        await process.terminate()
    with pytest.raises(Unsupported, match=r"process/signal\.scope"):
        await process.kill("leader")
    assert await process.signal("INT")
    assert await process.wait() == 7


@EVERY_TRANSPORT
async def test_a_terminal_is_resized_and_the_process_is_told(executor: Executor) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done"
    process = await executor.start(["sh", "-c", script], tty=True, size=(10, 20))
    await until(process, b"10 20\r\n")

    assert await process.resize(50, 132)

    await until(process, b"50 132\r\n")
    await process.kill()
    await process.wait()
    assert not await process.resize(1, 1)


async def test_what_has_no_terminal_is_not_resized(executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])
    with pytest.raises(Refused):
        await process.resize(1, 1)


async def test_a_wait_has_a_limit_that_ends_nothing(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "sleep 60 & read line"], stdin=True)
    with pytest.raises(WaitTimeout):
        await process.wait(timeout=0.1)
    with pytest.raises(TimeoutError):
        await process.wait_closed(timeout=0.1)

    await process.write("\n")
    assert await process.wait(timeout=PATIENCE) == 0
    with pytest.raises(WaitTimeout):
        await process.wait_closed(timeout=0.1)


async def test_a_started_process_has_its_time_limits(executor: Executor) -> None:
    limited = await executor.start(["sleep", "60"], timeout=0.3)
    idle = await executor.start(["cat"], stdin=True, idle_timeout=0.3)

    assert (await limited.wait(), limited.cause) == (124, "timeout")
    assert (await idle.wait(), idle.cause) == (124, "idleTimeout")


async def test_input_counts_as_activity_for_limits_that_are_kept_here(executor: Executor) -> None:
    executor._session.capabilities -= {"process/start.idleTimeoutMs"}
    for idle, pause in ((2.0, 0.2), (8.0, 0.8)):
        process = await executor.start(["sh", "-c", "cat >/dev/null"], stdin=True, idle_timeout=idle)
        with suppress(StdinUnavailable):
            for _ in range(13):
                await asyncio.sleep(pause)
                await process.write("x")
            break

    assert process.exit_code is None
    assert (await process.wait(), process.cause) == (124, "idleTimeout")


async def test_a_start_that_is_repeated_attaches_to_the_first(executor: Executor) -> None:
    first = await executor.start(["cat"], id="once", stdin=True, if_exists="attach")
    await first.write("before ")
    await until(first, b"before ")

    again = await executor.start(["cat"], id="once", stdin=True, if_exists="attach")
    await again.write("after")
    await again.close_stdin()

    assert again.pid == first.pid
    assert await all_of(again) == b"before after"
    assert await all_of(first) == b"after"
    with pytest.raises(Refused, match="argv"):
        await executor.start(["true"], id="once", stdin=True, if_exists="attach")
    with pytest.raises(Refused, match="exists"):
        await executor.start(["cat"], id="once", stdin=True)


@EVERY_TRANSPORT
async def test_an_own_process_is_attached_to_at_any_number(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "echo one; read x; echo two; read x; echo three"], stdin=True)
    await until(process, b"one\n")
    page = await process.read()

    whole = await executor.attach(process.id)
    behind = await executor.attach(process.id, after_seq=page.next_seq - 1)
    assert (whole.pid, whole.tty, whole.session_id) == (process.pid, False, executor.session_id)
    await whole.write("\n")
    await process.write("\n")

    assert await all_of(whole) == b"one\ntwo\nthree\n"
    assert await all_of(behind) == b"two\nthree\n"
    assert await all_of(process) == b"two\nthree\n"
    ended = await executor.attach(process.id)
    assert (await all_of(ended), ended.exit_code, ended.cause) == (b"one\ntwo\nthree\n", 0, "normal")


async def test_what_is_not_there_cannot_be_attached_to(executor: Executor) -> None:
    with pytest.raises(NoSuchProcess, match="nothing"):
        await executor.attach("nothing")


@EVERY_TRANSPORT
async def test_processes_are_listed_with_what_is_asked_for(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "echo x; exec sleep 60"], tty=True, size=(30, 90), cwd="/")
    await until(process, b"x\r\n")
    ended = await executor.start(["sh", "-c", "exit 3"])
    await ended.wait_closed()

    running, closed = await executor.processes()
    assert (running.process_id, running.session_id) == (process.id, executor.session_id)
    assert (running.pid, running.state, running.tty, running.size) == (process.pid, "running", True, (30, 90))
    assert (running.argv, running.cwd, running.exit_code) == (None, None, None)
    assert running.age_ms >= 0
    assert running.retained_bytes == 3
    assert running.rss_bytes
    assert running.process_count == 1
    assert (closed.process_id, closed.state, closed.exit_code, closed.cause) == (
        ended.id,
        "closed",
        3,
        "normal",
    )

    told = (await executor.processes(argv=True))[0]
    assert told.argv == ("sh", "-c", "echo x; exec sleep 60")
    assert told.cwd == "/"


# -- other sessions


@pytest.fixture(params=["unix", "ws"])
def trusted_url(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A daemon that lets its clients reach each other's processes."""
    if request.param == "unix":
        return start_server(f"unix://{tmp_path}/s").url
    (tmp_path / "token").write_text("sesame")
    monkeypatch.setenv("EXECSERVER_TOKEN_FILE", str(tmp_path / "token"))
    flags = ("--ws-auth", "capability-token", "--ws-token-file", str(tmp_path / "token"))
    return start_server("ws://127.0.0.1:0", *flags).url


async def test_observers_of_a_process_get_the_same_chunks_as_its_owner(trusted_url: str) -> None:
    script = "read x; for n in $(seq 200); do head -c $((n * 37)) /dev/urandom; echo $n >&2; done; exit 5"
    async with connect(trusted_url) as owner, connect(trusted_url) as first, connect(trusted_url) as second:
        process = await owner.start(["bash", "-c", script], stdin=True)
        seen = [
            await other.attach(process.id, session_id=owner.session_id) for other in (first, second, first)
        ]
        await process.write("\n")
        owned, *observed = await asyncio.gather(*(chunks_of(each) for each in (process, *seen)))

        assert sum(len(chunk.data) for chunk in owned) > 700_000
        assert all(each == owned for each in observed)
        assert [await each.wait() for each in seen] == [5, 5, 5]
        assert {each.pid for each in seen} == {process.pid}


async def chunks_of(process: Process) -> list[Chunk]:
    return [chunk async for chunk in process]


async def test_observers_recover_lost_connections_and_miss_nothing(trusted_url: str) -> None:
    script = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; [ $((i % 50)) = 0 ] && sleep 0.02; done"
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start(["bash", "-c", f"read x; {script}"], stdin=True)
        observers = [await other.attach(process.id, session_id=owner.session_id) for _ in range(2)]
        await process.write("\n")

        async def cut() -> None:
            while process.exit_code is None:
                await asyncio.sleep(0.03)
                (other if os.urandom(1)[0] % 2 else owner).drop_connection()

        cutting = asyncio.create_task(cut())
        outputs = await asyncio.gather(*(all_of(each) for each in (process, *observers)))
        await cutting

        count = b"".join(b"%d\n" % n for n in range(1, 2001))
        assert outputs == [count] * 3
        assert other.recoveries > 0


async def test_an_observer_may_begin_in_the_middle_or_after_the_end(trusted_url: str) -> None:
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start(["sh", "-c", "echo one; read x; echo two; exit 3"], stdin=True)
        await until(process, b"one\n")
        behind = await other.attach(
            process.id, session_id=owner.session_id, after_seq=(await process.read()).next_seq - 1
        )
        await process.write("\n")
        await process.wait_closed()

        late = await other.attach(process.id, session_id=owner.session_id)
        assert await all_of(behind) == b"two\n"
        assert await all_of(late) == b"one\ntwo\n"
        over = await other.attach(
            process.id, session_id=owner.session_id, after_seq=(await process.read()).next_seq - 1
        )
        assert await all_of(over) == b""
        assert [each.exit_code for each in (behind, late, over)] == [3, 3, 3]


ECHO_AND_TELL = """
import os, signal, sys, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
def tell():
    while signal.sigwait({signal.SIGINT}):
        os.write(1, b"int\\n")
threading.Thread(target=tell, daemon=True).start()
for line in iter(sys.stdin.readline, ""):
    os.write(1, line.encode())
"""
"""Echoes lines, and tells of interrupts; a shell that is about to read when one comes would read on."""


async def test_an_observer_can_write_signal_and_leave(trusted_url: str) -> None:
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start([sys.executable, "-c", ECHO_AND_TELL], stdin=True)
        async with await other.attach(process.id, session_id=owner.session_id) as observed:
            await observed.write("hello\n")
            await until(observed, b"hello\n")
            assert await observed.signal("INT")
            await until(observed, b"int\n")
        await process.write("still here\n")
        await until(process, b"still here\n")
        assert process.exit_code is None

        again = await other.attach(process.id, session_id=owner.session_id)
        await other.close()
        await process.write("and still\n")
        await until(process, b"and still\n")
        assert again.exit_code is None


async def test_the_right_to_resize_goes_to_who_asked_last(trusted_url: str) -> None:
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done"
    async with connect(trusted_url) as owner, connect(trusted_url) as one, connect(trusted_url) as two:
        process = await owner.start(["sh", "-c", script], tty=True)
        await until(process, b"ready")
        watching = await one.attach(process.id, session_id=owner.session_id)
        with pytest.raises(Refused):
            await watching.resize(30, 90)
        typing = await two.attach(process.id, session_id=owner.session_id, interactive=True)
        assert await typing.resize(31, 91)
        await until(process, b"31 91")
        two.drop_connection()
        assert await typing.resize(32, 92)
        await until(watching, b"32 92")


async def test_where_clients_are_not_known_they_do_not_reach_each_other(start_server: StartServer) -> None:
    url = start_server("ws://127.0.0.1:0").url
    async with connect(url) as owner, connect(url) as other:
        process = await owner.start(["sleep", "60"])

        with pytest.raises(Refused, match="--ws-auth"):
            await other.processes(all_sessions=True)
        with pytest.raises(Refused, match="--ws-auth"):
            await other.attach(process.id, session_id=owner.session_id)


async def test_processes_of_all_sessions_are_listed(trusted_url: str) -> None:
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start(["sleep", "60"])

        assert await other.processes() == []
        (info,) = await other.processes(all_sessions=True)
        assert (info.process_id, info.session_id) == (process.id, owner.session_id)


async def test_an_observer_that_does_not_read_misses_some_and_is_told(trusted_url: str) -> None:
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start(["sh", "-c", "read x; seq 1 500000; echo end"], stdin=True)
        observed = await other.attach(process.id, session_id=owner.session_id, buffer_bytes=100_000)
        await process.write("\n")
        owned = hashlib.sha256(await all_of(process)).hexdigest()
        await observed.wait_closed()

        with pytest.raises(OutputGap) as raised:
            await anext(observed)
        rest = await all_of(observed)
        assert raised.value.lost_bytes
        whole = "".join(f"{n}\n" for n in range(1, 500_001)).encode() + b"end\n"
        assert owned == hashlib.sha256(whole).hexdigest()
        assert rest == whole[raised.value.lost_bytes :]


async def test_detaching_lets_processes_live_and_resuming_finds_them(trusted_url: str) -> None:
    executor = await connect(trusted_url)
    kept = await executor.start(["sh", "-c", "echo before; read x; echo $x"], stdin=True)
    await until(kept, b"before\n")
    await executor.detach()
    assert kept.pid is not None
    assert alive(kept.pid)

    async with connect(trusted_url, session_id=executor.session_id) as again:
        process = await again.attach(kept.id)
        assert (process.pid, process.tty) == (kept.pid, False)
        await process.write("after\n")
        assert await all_of(process) == b"before\nafter\n"


async def test_a_process_that_is_let_go_of_outlives_block_and_executor(trusted_url: str) -> None:
    async with connect(trusted_url) as executor:
        async with await executor.start(["sleep", "60"]) as process:
            await process.detach()
        info = (await executor.processes())[0]
        assert info.state == "running"
    assert process.pid is not None
    assert alive(process.pid)


async def test_a_kill_ends_the_tree_of_the_session_that_owns_the_process(trusted_url: str) -> None:
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start(["sh", "-c", "sleep 60 & echo; wait"], id="same")
        untouched = await other.start(["sleep", "60"], id="same")
        observed = await other.attach("same", session_id=owner.session_id)
        await until(process, b"\n")

        await observed.kill()

        assert await process.wait(PATIENCE) == 128 + signal.SIGKILL
        await observed.linger()
        assert observed.output.closed
        assert untouched.exit_code is None
        await other.kill_trees({"same"})
        assert await untouched.wait(PATIENCE) == 128 + signal.SIGKILL


async def test_every_byte_is_observed_as_it_was_written(trusted_url: str) -> None:
    program = "import os, sys; sys.stdin.read(1); [os.write(1, bytes([n])) for n in range(256)]"
    async with connect(trusted_url) as owner, connect(trusted_url) as other:
        process = await owner.start([sys.executable, "-c", program], stdin=True)
        observed = await other.attach(process.id, session_id=owner.session_id)
        await process.close_stdin()

        assert await all_of(observed) == bytes(range(256)) == await all_of(process)


TEXT = "aß€𝄞z"
SPLITS = [(first, second) for second in range(len(TEXT.encode()) + 1) for first in range(second + 1)]


async def test_characters_are_whole_wherever_a_child_cuts_its_writes(executor: Executor) -> None:
    program = f"""
import os, sys
data = {TEXT.encode()!r}
for first, second in {SPLITS!r}:
    for piece in (data[:first], data[first:second], data[second:], b"\\n"):
        os.write(1, piece)
        os.write(2, piece)
        sys.stdin.readline()
"""
    process = await executor.start([sys.executable, "-c", program], stdin=True)
    await process.write("\n" * 4 * len(SPLITS))
    text = {"stdout": "", "stderr": ""}
    async for stream, piece in process.text():
        text[stream] += piece

    assert text == dict.fromkeys(text, (TEXT + "\n") * len(SPLITS))
