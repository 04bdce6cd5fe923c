from __future__ import annotations

import asyncio
import hashlib
import pickle
import time

import pytest

from execclient import (
    Chunk,
    Executor,
    NoSuchProcess,
    OutputGap,
    Process,
    StdinUnavailable,
    TextStream,
    connect,
)
from tests.support.wire import wait_gone

PATIENCE = 10.0


async def until(stream: TextStream, wanted: str) -> str:
    seen = ""
    async for _, text in stream:
        seen += text
        if wanted in seen:
            return seen
    raise AssertionError(f"the output ended without {wanted!r}: {seen!r}")


async def test_output_is_iterated_as_it_comes(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "echo one; read line; echo $line >&2; exit 4"], stdin=True)
    first = await anext(process)
    assert first == Chunk("stdout", b"one\n")

    await process.write("two\n")

    assert [(stream, data) async for stream, data in process] == [("stderr", b"two\n")]
    assert (await process.wait(), process.exit_code) == (4, 4)


async def test_chunks_have_the_times_at_which_the_server_took_them(executor: Executor) -> None:
    before = time.time()
    process = await executor.start(["sh", "-c", "echo one; read line; echo two"], stdin=True)
    first = await anext(process)
    between = time.time()
    await process.write("\n")
    second = await anext(process)

    assert first.at is not None
    assert second.at is not None
    # Times have whole milliseconds.
    assert before - 0.001 <= first.at <= between <= second.at + 0.001
    page = await process.read()
    assert [chunk.at for chunk in page.chunks] == [first.at, second.at]
    assert pickle.loads(pickle.dumps(first)).at == first.at
    stream, data = first
    assert (stream, data) == first == Chunk("stdout", b"one\n")


async def test_the_process_id_is_told(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "echo $$"])

    assert int((await anext(process)).data) == process.pid


async def test_a_terminal_can_be_talked_to(executor: Executor) -> None:
    shell = await executor.start(["sh"], tty=True, env={"PS1": "$ "})
    screen = shell.text()

    await until(screen, "$ ")
    await shell.write("echo $((6 * 7))ü\n")
    await until(screen, "\n42ü\r\n$ ")
    await shell.write("cat\nmeow\n")
    await until(screen, "\nmeow\r\nmeow")  # the second one by cat: it has the terminal now
    await shell.write(b"\x03")
    await until(screen, "^C\r\n$ ")
    await shell.write("exit 5\n")

    assert await shell.wait() == 5


async def test_a_long_poll_waits_for_output_and_reads_on(executor: Executor) -> None:
    process = await executor.start(["cat"], stdin=True)
    waiting = asyncio.create_task(process.read(wait=PATIENCE))
    await process.write("one")
    first = await waiting
    assert (first.data, first.exited, first.closed) == (b"one", False, False)

    again = await process.read(after_seq=first.next_seq - 1)
    assert again.chunks == []

    waiting = asyncio.create_task(process.read(after_seq=first.next_seq - 1, wait=PATIENCE))
    await process.write("two")
    second = await waiting
    assert second.data == b"two"
    assert (await process.read()).data == b"onetwo"
    assert (await process.read(max_bytes=1)).data == b"one"


async def test_a_long_poll_that_runs_out_is_empty(executor: Executor) -> None:
    process = await executor.start(["cat"], stdin=True)
    begin = time.monotonic()
    page = await process.read(wait=0.2)

    assert page.chunks == []
    assert 0.15 < time.monotonic() - begin < PATIENCE


async def test_a_long_poll_sees_the_end(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "exit 9"])
    await process.wait_closed()
    page = await process.read()

    assert (page.exited, page.exit_code, page.closed) == (True, 9, True)


async def test_large_input_arrives_once_and_in_order(executor: Executor) -> None:
    data = bytes(range(256)) * 12_000
    process = await executor.start(["sh", "-c", f"head -c {len(data)} | sha256sum"], stdin=True)

    await process.write(data)

    assert (await anext(process)).data.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_writes_that_are_made_at_once_stay_whole(executor: Executor) -> None:
    process = await executor.start(["cat"], stdin=True)
    lines = [f"{n} ".encode() * 100 + b"\n" for n in range(100)]

    await asyncio.gather(*(process.write(line) for line in lines))

    received = b""
    async for _, data in process:
        received += data
        if len(received) == sum(map(len, lines)):
            break
    assert received == b"".join(lines)
    await process.kill()


async def test_a_process_without_input_says_so(executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])

    with pytest.raises(StdinUnavailable, match="stdin=True"):
        await process.write("x")


async def test_a_process_that_has_ended_takes_no_input(executor: Executor) -> None:
    process = await executor.start(["true"], stdin=True)
    await process.wait_closed()

    with pytest.raises(StdinUnavailable):
        await process.write("x")


async def test_interrupt_is_a_signal_that_a_process_can_handle(executor: Executor) -> None:
    script = "trap 'echo caught; exit 6' INT; echo ready; while :; do sleep 0.05; done"
    process = await executor.start(["sh", "-c", script])
    await anext(process)

    await process.interrupt()

    assert [chunk.data async for chunk in process] == [b"caught\n"]
    assert await process.wait() == 6


async def test_terminate_sends_sigterm_and_says_whether_it_was_delivered(executor: Executor) -> None:
    process = await executor.start(["sleep", "60"])

    assert await process.terminate() is True
    assert (await process.wait(), process.returncode, process.cause) == (143, 143, "signal")
    assert await process.terminate() is False


async def test_the_scope_tree_reaches_what_outlived_the_process(executor: Executor) -> None:
    process = await executor.start(["sh", "-c", "setsid sleep 60 & echo $!"])
    child = int((await anext(process)).data)
    await process.wait()

    await process.kill()

    assert await asyncio.to_thread(wait_gone, child, PATIENCE)
    await process.wait_closed()


async def test_leaving_the_block_of_a_process_kills_it(executor: Executor) -> None:
    async with await executor.start(["sleep", "60"]) as process:
        pid = process.pid

    assert pid is not None
    assert await asyncio.to_thread(wait_gone, pid, PATIENCE)


async def test_leaving_the_block_of_the_executor_kills_what_still_runs(url: str) -> None:
    async with connect(url) as executor:
        process = await executor.start(["sleep", "60"])

    assert process.pid is not None
    assert await asyncio.to_thread(wait_gone, process.pid, PATIENCE)


async def test_untaken_output_is_dropped_beyond_its_limit_and_stated(executor: Executor) -> None:
    script = "yes 0123456789abcde | head -c 4000000"
    process = await executor.start(["sh", "-c", script], buffer_bytes=1_000_000)
    await process.wait_closed()

    with pytest.raises(OutputGap) as raised:
        await anext(process)
    rest = b"".join([data async for _, data in process])

    assert raised.value.lost_bytes is not None
    assert len(rest) <= 1_000_000
    assert raised.value.lost_bytes + len(rest) == 4_000_000


async def test_a_process_of_another_session_is_unknown(shared_url: str) -> None:
    async with connect(shared_url) as executor, connect(shared_url) as other:
        process = await other.start(["sleep", "60"])
        stranger = Process(executor._session, process.output)
        with pytest.raises(NoSuchProcess):
            await stranger.read()
        with pytest.raises(NoSuchProcess):
            await stranger.write("x")
