from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from execclient.commands import streams


async def test_output_comes_out_in_order_through_memory_and_file_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MEMORY_BYTES", 10_000)
    reading, writing = os.pipe()
    output = streams.OutputWriter()
    expected = b""
    for turn in range(3):
        pieces = [f"{turn}:{n};".encode() * 50 for n in range(2000)]
        for piece in pieces:
            output.put(writing, piece)
        data = b"".join(pieces)
        expected += data
        taken = await asyncio.to_thread(_take, reading, len(data))
        assert taken == data
        await output.settled()
    assert output.failure is None
    for descriptor in (reading, writing):
        os.close(descriptor)


async def test_a_reader_that_is_gone_is_noticed_and_nothing_waits_for_it() -> None:
    reading, writing = os.pipe()
    output = streams.OutputWriter()
    os.close(reading)
    output.put(writing, b"x")
    await output.failed.wait()
    output.put(writing, b"y")
    await output.settled()

    assert output.is_closed
    os.close(writing)


def test_missing_streams_are_opened() -> None:
    code = (
        "import os\n"
        "os.closerange(0, 3)\n"
        "from execclient.commands.app import open_missing\n"
        "from execclient.commands.streams import is_empty_input\n"
        "open_missing()\n"
        "assert [os.readlink(f'/proc/self/fd/{n}') for n in range(3)] == ['/dev/null'] * 3\n"
        "assert is_empty_input()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def _take(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += os.read(descriptor, count - len(data))
    return data
