"""The client library, beside what the load generator gets from the same server over such a socket, too."""

import asyncio
import time

import execclient
from benchmarks.server import ServerUnderTest
from benchmarks.wire import Connection
from benchmarks.workloads.model import MIB, Measured, Row, Sizes, Workload, fresh_id, start

COMMAND = ["/bin/true"]
WARM_UP = 20


def _argv(sizes: Sizes) -> list[str]:
    return ["/bin/dd", "if=/dev/zero", "bs=1M", f"count={sizes.output_mib}", "status=none"]


def _generated(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> tuple[float, float]:
    """Commands a second, one after the other, and megabytes of output a second."""
    for turn in range(sizes.library_runs + WARM_UP):
        if turn == WARM_UP:
            began = time.perf_counter()
        connection.send(connection.frame(start(fresh_id(), COMMAND)))
        connection.count_closed(1)
    runs = sizes.library_runs / (time.perf_counter() - began)
    began = time.perf_counter()
    connection.send(connection.frame(start(fresh_id(), _argv(sizes))))
    connection.read_until_closed()
    return runs, sizes.output_mib * MIB / 1e6 / (time.perf_counter() - began)


def _generate(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    runs, stream = _generated(server, connection, sizes)
    return {
        "library_run": runs,
        "library_run_sync": runs,
        "library_stream": stream,
        "library_stream_sync": stream,
    }


def _library(server: ServerUnderTest, connection: Connection, sizes: Sizes) -> Measured:
    runs, stream = asyncio.run(_asynchronous(server.url, sizes))
    runs_sync, stream_sync = _synchronous(server.url, sizes)
    return {
        "library_run": runs,
        "library_run_sync": runs_sync,
        "library_stream": stream,
        "library_stream_sync": stream_sync,
    }


async def _asynchronous(url: str, sizes: Sizes) -> tuple[float, float]:
    async with execclient.connect(url) as executor:
        for turn in range(sizes.library_runs + WARM_UP):
            if turn == WARM_UP:
                began = time.perf_counter()
            await executor.run(COMMAND)
        runs = sizes.library_runs / (time.perf_counter() - began)
        began = time.perf_counter()
        size = 0
        async for chunk in await executor.start(_argv(sizes)):
            size += len(chunk.data)
        return runs, _megabytes_a_second(size, time.perf_counter() - began, sizes)


def _synchronous(url: str, sizes: Sizes) -> tuple[float, float]:
    from execclient import sync

    with sync.connect(url) as executor:
        for turn in range(sizes.library_runs + WARM_UP):
            if turn == WARM_UP:
                began = time.perf_counter()
            executor.run(COMMAND)
        runs = sizes.library_runs / (time.perf_counter() - began)
        began = time.perf_counter()
        size = sum(len(chunk.data) for chunk in executor.start(_argv(sizes)))
        return runs, _megabytes_a_second(size, time.perf_counter() - began, sizes)


def _megabytes_a_second(size: int, seconds: float, sizes: Sizes) -> float:
    if size != sizes.output_mib * MIB:
        raise AssertionError(f"{size} bytes instead of {sizes.output_mib} MiB")
    return size / 1e6 / seconds


WORKLOADS = (
    Workload(
        "library",
        _library,
        (
            Row("library_run", "run(/bin/true), one after the other", "run/s", "higher"),
            Row("library_run_sync", "the same, sync", "run/s", "higher"),
            Row("library_stream", "iterating over output of dd bs=1M", "MB/s", "higher"),
            Row("library_stream_sync", "the same, sync", "MB/s", "higher"),
        ),
        frozenset({"unix"}),
        generator=_generate,
    ),
)
