"""Calls in daemon threads, and look-ups of addresses."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from execprotocol.daemon_thread import addresses, run_in_daemon_thread


async def test_what_is_called_runs_in_another_thread_and_its_result_comes() -> None:
    assert await run_in_daemon_thread(threading.get_ident) != threading.get_ident()
    assert await run_in_daemon_thread("{}{end}".format, "a", end="b") == "ab"


async def test_what_it_raises_is_raised() -> None:
    with pytest.raises(FileNotFoundError):
        await run_in_daemon_thread(os.stat, "/nowhere")


async def test_who_is_cancelled_goes_at_once_and_a_late_result_is_dropped() -> None:
    gate, left = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait()
        left.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_daemon_thread(work)
    gate.set()
    assert await asyncio.to_thread(left.wait, 10)
    await asyncio.sleep(0.01)  # a callback of the loop that failed would be told as a warning


def test_neither_the_loop_nor_the_interpreter_waits_for_what_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # without a writer, opening it blocks for ever
    program = (
        "import asyncio, sys\n"
        "from execprotocol.daemon_thread import run_in_daemon_thread\n"
        "async def main():\n"
        "    opening = asyncio.ensure_future(run_in_daemon_thread(open, sys.argv[1]))\n"
        "    await asyncio.wait([opening], timeout=0.1)\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "fifo")]
    assert subprocess.run(command, capture_output=True, timeout=10, check=True).stdout == b"ended\n"


async def test_an_address_is_its_own_and_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object, **__: object) -> None:
        raise AssertionError("a thread was started")

    monkeypatch.setattr(threading, "Thread", no_thread)
    assert [info[4][:2] for info in await addresses("127.0.0.1", 80)] == [("127.0.0.1", 80)]
    assert [info[4][:2] for info in await addresses("::1", 80)] == [("::1", 80)]


async def test_a_name_is_looked_up() -> None:
    assert ("127.0.0.1", 80) in [info[4][:2] for info in await addresses("localhost", 80)]


@pytest.mark.parametrize("text", ["a..test", "a" * 64 + ".test"])
async def test_what_can_be_no_name_is_an_error(text: str) -> None:
    with pytest.raises(socket.gaierror, match="empty or too long"):
        await addresses(text, 80)
