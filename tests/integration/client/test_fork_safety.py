"""A forked child does not keep connections of its parent open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.support.relay_service import wait_until

OUTLIVED = """
import os, sys, time
from execclient.sync import connect

executor = connect(sys.argv[1])
process = executor.start(["sh", "-c", "echo $$; exec sleep 1000"])
command = next(iter(process)).data.decode().strip()
child = os.fork()
if not child:
    time.sleep(100)
    os._exit(0)
print(command, child, flush=True)
time.sleep(100)
"""

CLOSING = """
import os, sys, time
from execclient.sync import connect

executor = connect(sys.argv[1])
child = os.fork()
if not child:
    time.sleep(100)
    os._exit(0)
try:
    print(executor.run(["echo", "still here"]).text, end="")
    begin = time.monotonic()
    executor.close()
    print(time.monotonic() - begin)
finally:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""

IN_THE_CHILD = """
import asyncio, os, socket, sys, uvloop
from execclient.fork_safety import withhold

class Got(asyncio.Protocol):
    def __init__(self):
        self.data = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.data.set_result(data)

async def connected():
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Got, sock=ours)
    withhold(transport)
    return transport, protocol, theirs

async def main():
    kept, protocol, peer = await connected()
    closed, _, other = await connected()
    number = closed.get_extra_info("socket").fileno()
    closed.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    file = open(sys.argv[1])
    assert file.fileno() == number, (file.fileno(), number)

    child = os.fork()
    if not child:
        print(os.readlink(f"/proc/self/fd/{kept.get_extra_info('socket').fileno()}"), file.read(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    peer.send(b"the parent's goes on")
    print(await protocol.data)
    print(file.read())

asyncio.run(main()) if sys.argv[2] == "asyncio" else uvloop.run(main())
"""


@pytest.fixture(params=["unix", "ws", "stdio"])
def hasty_url(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A daemon that keeps a session that was left for a second."""
    if request.param == "stdio":
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        return "stdio:"
    place = f"unix://{tmp_path}/s" if request.param == "unix" else "ws://127.0.0.1:0"
    return start_server(place, "--session-ttl", "1").url


@contextmanager
def program(text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """It runs; what it has written on its standard error is shown when it is wrong."""
    command = [sys.executable, "-W", "error", "-c", text, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_what_a_program_ran_ends_with_it_though_a_forked_child_lives_on(hasty_url: str) -> None:
    with program(OUTLIVED, hasty_url) as running:
        assert running.stdout is not None
        command, child = map(int, running.stdout.readline().split())
        try:
            assert Path(f"/proc/{command}").exists()
            running.kill()
            wait_until(lambda: not Path(f"/proc/{command}").exists(), 20)
            assert Path(f"/proc/{child}").exists()
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_closing_does_not_wait_for_a_forked_child(hasty_url: str) -> None:
    for _ in range(3):  # one may meet a machine that stands still
        with program(CLOSING, hasty_url) as running:
            said, seconds = running.communicate(timeout=60)[0].splitlines()
        if float(seconds) < 3.5:
            break

    assert said == "still here"
    # A daemon over stdio that does not see the end of its input is killed 4 s later.
    assert float(seconds) < 3.5
    assert running.returncode == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_only_what_is_still_a_connection_is_taken_from_the_child(loop: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")

    with program(IN_THE_CHILD, str(tmp_path / "file"), loop) as running:
        lines = running.communicate(timeout=60)[0].splitlines()

    # Both read the one open file of the system.
    assert lines == ["/dev/null content", 'b"the parent\'s goes on"', ""]
    assert running.returncode == 0
