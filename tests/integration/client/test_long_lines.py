"""A line that a terminal would cut raises an error with the way out, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from execclient import Executor, LineTooLong, Process, Refused
from execclient.expect import RemoteSpawn

MOST = 4095


async def terminal(executor: Executor, settings: str) -> Process:
    """`cat` on a terminal that has these settings."""
    process = await executor.start(["sh", "-c", f"stty -echo {settings}; printf up; exec cat"], tty=True)
    await read_until(process, b"up")
    return process


async def read_until(process: Process, end: bytes) -> bytes:
    output = b""
    async with asyncio.timeout(60):
        async for _, data in process:
            output += data
            if output.endswith(end):
                break
    return output


async def test_a_line_that_would_be_cut_raises_an_error_and_writes_nothing(executor: Executor) -> None:
    process = await terminal(executor, "")
    for data in (b"x" * (MOST + 1), "short\n" + "x" * 5000 + "\nshort\n"):
        with pytest.raises(LineTooLong, match="nothing was written") as raised:
            await process.write(data)
        assert isinstance(raised.value, Refused)
        assert raised.value.code == "line_too_long"
        assert raised.value.reason is not None
        assert "a pipe instead of a terminal" in raised.value.reason
    await process.write(b"x" * MOST + b"\n")
    assert await read_until(process, b"\n") == b"x" * MOST + b"\r\n"


async def test_input_that_a_person_types_is_cut_by_the_terminal(executor: Executor) -> None:
    process = await terminal(executor, "")
    await process.write(b"x" * 5000 + b"\n", whole_lines=False)
    assert await read_until(process, b"\n") == b"x" * MOST + b"\r\n"


async def test_raw_terminals_and_pipes_have_no_limit(executor: Executor) -> None:
    process = await terminal(executor, "raw")
    await process.write(b"x" * 100_000 + b"\n")
    assert await read_until(process, b"\n") == b"x" * 100_000 + b"\n"
    assert (await executor.run(["cat"], input=b"x" * 100_000)).stdout == b"x" * 100_000


async def test_the_part_of_a_large_write_that_was_accepted_is_named(executor: Executor) -> None:
    process = await terminal(executor, "")
    lines = b"x" * 1023 + b"\n"
    with pytest.raises(LineTooLong, match="the 1048576 bytes before were written"):
        await process.write(lines * 1024 + b"x" * 5000 + b"\n")


async def test_run_with_a_terminal_does_not_cut_its_input(executor: Executor) -> None:
    with pytest.raises(LineTooLong):
        await executor.run(["cat"], input=b"x" * 5000 + b"\n", tty=True)


def test_a_spawned_program_is_not_sent_a_part_of_a_line(url: str) -> None:
    with RemoteSpawn(["cat"], url=url, echo=False, timeout=60) as child:
        with pytest.raises(LineTooLong):
            child.sendline("x" * 5000)
        child.sendline("whole")
        child.expect("whole\r\n")


async def test_run_in_a_terminal_refuses_a_file_with_a_long_line(url: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"x" * 5000 + b"\n")
    command = [sys.executable, "-m", "execclient.commands", "run", "--url", url, "-t", "cat"]
    with text.open("rb") as file:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 125
    assert b"a line of 5000 bytes" in errors
