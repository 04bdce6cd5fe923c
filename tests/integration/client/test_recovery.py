"""A lost connection, with a real daemon: no output is lost or delivered twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from execclient import Executor, OutcomeUnknown, OutputGap, Process, connect
from tests.conftest import StartServer
from tests.support.wire import wait_gone

CUTS = 40
PATIENCE = 10.0

# Slow enough that what is written during a recovery fits what the daemon keeps (1 MiB).
COUNTER = [
    "sh",
    "-c",
    "i=0; trap 'echo end; exit 0' INT; while :; do i=$((i + 1)); echo $i; sleep 0.001; done",
]


class CuttingProxy:
    """Forwards connections to a daemon, and cuts them when it is told, wherever a message may be."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._transports: list[asyncio.WriteTransport] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.budget: int | None = None
        """Bytes to the client after which the connection is cut; None for never."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        upstream_reader, upstream_writer = await asyncio.open_unix_connection(self._target)
        self._transports = [writer.transport, upstream_writer.transport]
        for task in (
            asyncio.create_task(self._forward(reader, upstream_writer)),
            asyncio.create_task(self._forward(upstream_reader, writer, to_client=True)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def cut(self) -> None:
        """End the connection at once."""
        for transport in self._transports:
            transport.abort()

    async def close(self) -> None:
        """End everything."""
        self.cut()
        await asyncio.gather(*self._tasks)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool = False
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if to_client and self.budget is not None:
                    data, self.budget = data[: self.budget], self.budget - len(data)
                writer.write(data)
                if to_client and self.budget is not None and self.budget <= 0:
                    self.budget = None
                    await writer.drain()
                    self.cut()
                    return
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
def url(shared_url: str) -> str:
    """A daemon whose sessions outlive their connections."""
    return shared_url


@pytest.fixture
async def proxy(start_server: StartServer, tmp_path: Path) -> AsyncIterator[CuttingProxy]:
    """A proxy to the daemon of the test, at `tmp_path/proxy`."""
    made = CuttingProxy(start_server(f"unix://{tmp_path}/s").url.removeprefix("unix://"))
    server = await asyncio.start_unix_server(made.serve, tmp_path / "proxy")
    yield made
    server.close()
    await made.close()
    await server.wait_closed()


async def counted(process: Process) -> list[bytes]:
    """The lines that a counter wrote, to its end."""
    return b"".join([data async for _, data in process]).splitlines()


def whole_count(lines: list[bytes]) -> bool:
    return len(lines) > 1 and lines[-1] == b"end" and lines[:-1] == [b"%d" % n for n in range(1, len(lines))]


async def test_a_counter_survives_random_cuts_of_its_connection(executor: Executor) -> None:
    chance = random.Random(21)
    process = await executor.start(COUNTER)
    output = b""
    next_cut = 1
    async for _, data in process:
        output += data
        if executor.recoveries < CUTS and output.count(b"\n") >= next_cut:
            executor.drop_connection()
            next_cut = output.count(b"\n") + chance.randrange(1, 40)
        elif executor.recoveries >= CUTS:
            break
    await process.interrupt()
    output += b"".join([data async for _, data in process])

    assert executor.recoveries >= CUTS
    assert whole_count(output.splitlines()), output[-200:]


async def test_two_counters_survive_cuts_in_the_middle_of_messages(
    proxy: CuttingProxy, tmp_path: Path
) -> None:
    chance = random.Random(22)
    async with connect(f"unix://{tmp_path}/proxy") as executor:
        processes = [await executor.start(COUNTER) for _ in range(2)]
        counts = [asyncio.create_task(counted(process)) for process in processes]
        for _ in range(CUTS):
            recoveries = executor.recoveries
            proxy.budget = chance.randrange(1, 3000)
            async with asyncio.timeout(PATIENCE):
                while executor.recoveries == recoveries:
                    await processes[0].read(after_seq=1 << 40, wait=0.02)
        await asyncio.gather(*(process.interrupt() for process in processes))
        lines = await asyncio.gather(*counts)

    assert executor.recoveries >= CUTS
    assert all(whole_count(each) for each in lines), [each[-3:] for each in lines]


async def test_writes_survive_random_cuts(executor: Executor) -> None:
    chance = random.Random(23)
    process = await executor.start(["cat"], stdin=True)
    lines = [b"line %d\n" % n for n in range(400)]

    async def write() -> None:
        for line in lines:
            writing = asyncio.create_task(process.write(line))
            if chance.random() < 0.1:
                await asyncio.sleep(0)
                executor.drop_connection()
            await writing

    async def read() -> bytes:
        received = b""
        async for _, data in process:
            received += data
            if len(received) >= sum(map(len, lines)):
                return received
        raise AssertionError("the output ended")

    received, _ = await asyncio.gather(read(), write())

    assert received == b"".join(lines)
    assert executor.recoveries > 10


async def test_runs_survive_cuts_once_they_are_started(executor: Executor) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9; do echo $n; sleep 0.02; done; exit 4"
    process = await executor.start(["sh", "-c", script])
    task = asyncio.create_task(executor.run(["sh", "-c", script]))
    for _ in range(2):  # by the first the start is sent, and by the second it is answered
        await executor.fs.stat("/")
    async for _ in process:
        executor.drop_connection()

    result = await task
    assert (result.exit_code, result.text) == (4, "1\n2\n3\n4\n5\n6\n7\n8\n9\n")


async def test_a_long_poll_goes_on_over_a_cut(executor: Executor) -> None:
    process = await executor.start(["cat"], stdin=True)
    reading = asyncio.create_task(process.read(wait=PATIENCE))
    await executor.fs.stat("/")  # the daemon has the read, too
    executor.drop_connection()
    await process.write("here")

    assert (await reading).data == b"here"


async def test_the_end_of_a_process_is_seen_after_the_cut_in_which_it_happened(
    executor: Executor, tmp_path: Path
) -> None:
    process = await executor.start(["sh", "-c", "echo before; read line; echo after; exit 3"], stdin=True)
    await anext(process)
    writing = asyncio.create_task(process.write("\n"))
    await asyncio.sleep(0)
    executor.drop_connection()
    await writing

    assert [data async for _, data in process] == [b"after\n"]
    assert await process.wait() == 3


async def test_files_can_be_read_over_a_cut_and_a_write_says_that_it_is_unknown(
    executor: Executor, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"content")
    reading = asyncio.create_task(executor.fs.read_bytes("file"))
    writing = asyncio.create_task(executor.fs.write_bytes("other", b"x"))
    await asyncio.sleep(0)
    executor.drop_connection()

    assert await reading == b"content"
    with pytest.raises(OutcomeUnknown, match="fs/writeFile"):
        await writing
    await executor.fs.write_bytes("third", b"y")  # the first write may come late
    assert (tmp_path / "third").read_bytes() == b"y"


async def test_a_start_that_is_cut_leaves_no_process_behind(executor: Executor, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    starting = asyncio.create_task(executor.start(["sh", "-c", script], id="named"))
    await asyncio.sleep(0)
    executor.drop_connection()
    with pytest.raises(OutcomeUnknown, match="process/start"):
        await starting

    # Ordered behind the terminate: the daemon answers it when that is done.
    await executor.run(["true"])
    pid = tmp_path / "pid"
    if pid.exists() and pid.read_text():
        assert await asyncio.to_thread(wait_gone, int(pid.read_text()), PATIENCE)


async def test_a_command_whose_start_is_cut_runs_once_and_gives_all_its_output(
    executor: Executor, tmp_path: Path
) -> None:
    script = f"echo begun >> {tmp_path}/begun; seq 1000"
    for turn in range(1, 9):
        running = asyncio.create_task(executor.run(["sh", "-c", script]))
        for _ in range(turn):
            await asyncio.sleep(0)
        executor.drop_connection()

        assert (await running).stdout == b"".join(b"%d\n" % number for number in range(1, 1001))
        assert (tmp_path / "begun").read_text() == "begun\n" * turn


async def test_a_command_that_was_forgotten_over_a_long_cut_does_not_run_again(
    start_server: StartServer, tmp_path: Path
) -> None:
    daemon = start_server(f"unix://{tmp_path}/s", "--process-ttl", "0.3").url
    proxy = CuttingProxy(daemon.removeprefix("unix://"))
    server = await asyncio.start_unix_server(proxy.serve, tmp_path / "proxy")
    async with connect(f"unix://{tmp_path}/proxy", recovery_timeout=PATIENCE) as executor:
        server.close()  # no new connections
        proxy.budget = 0  # the response is cut off
        running = asyncio.create_task(executor.run(["sh", "-c", f"echo begun >> {tmp_path}/begun"]))
        async with connect(daemon) as other:
            while not await forgotten(other):
                await asyncio.sleep(0.05)
        async with await asyncio.start_unix_server(proxy.serve, tmp_path / "proxy"):
            with pytest.raises(OutcomeUnknown):
                await running
            assert (await executor.run(["true"])).exit_code == 0
        assert (tmp_path / "begun").read_text() == "begun\n"
    await proxy.close()


async def forgotten(executor: Executor) -> bool:
    """Whether the daemon has forgotten a process."""
    return bool((await executor.call("process/listForgotten", {}))["processes"])


async def test_a_background_child_does_not_delay_the_result_for_as_long_as_connections_are_cut(
    executor: Executor,
) -> None:
    async def cut() -> None:
        while True:
            await asyncio.sleep(0.2)  # no connection lasts for the half second
            executor.drop_connection()

    cutting = asyncio.create_task(cut())
    try:
        async with asyncio.timeout(30):  # not the sixty of the child
            result = await executor.run(["sh", "-c", "sleep 60 & echo done"])
    finally:
        cutting.cancel()

    assert (result.exit_code, result.stdout) == (0, b"done\n")
    assert executor.recoveries > 1


@pytest.mark.parametrize("cut", [False, True], ids=["stalled", "cut"])
async def test_what_the_daemon_could_not_keep_is_an_output_gap(
    start_server: StartServer, tmp_path: Path, cut: bool
) -> None:
    url = start_server(f"unix://{tmp_path}/s", "--retained-output-bytes", "65536").url
    os.mkfifo(tmp_path / "done")
    script = f"yes 0123456789abcde | head -c 3000000; echo; echo end; echo > {tmp_path}/done"
    async with connect(url) as executor:
        process = await executor.start(["sh", "-c", script])
        if cut:
            executor.drop_connection()
        # The whole client stands still, as on a machine that sleeps, until the process has written all.
        (tmp_path / "done").read_bytes()

        received, lost = b"", 0
        while process.exit_code != 0 or received[-5:] != b"\nend\n":
            try:
                async for _, data in process:
                    received += data
            except OutputGap as gap:
                lost += gap.lost_bytes or 0

    assert lost > 1_000_000
    assert lost + len(received) == 3_000_005


async def test_closing_in_the_middle_of_a_recovery_is_quick_and_kills(url: str) -> None:
    begin = time.monotonic()
    async with connect(url) as executor:
        process = await executor.start(["sleep", "60"])
        executor.drop_connection()

    assert time.monotonic() - begin < PATIENCE
    assert process.pid is not None
    assert await asyncio.to_thread(wait_gone, process.pid, PATIENCE)


async def test_a_block_that_is_cancelled_kills_its_process_all_the_same(shared_url: str) -> None:
    async with connect(shared_url) as executor:
        process = await executor.start(["sleep", "60"])
        assert process.pid is not None

        async def inside() -> None:
            async with process:
                await asyncio.Event().wait()

        task = asyncio.create_task(inside())
        await asyncio.sleep(0)
        executor.drop_connection()
        for _ in range(2):  # the second cancels the leaving
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await asyncio.to_thread(wait_gone, process.pid, 10)
