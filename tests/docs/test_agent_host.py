"""The agent host of the manual keeps its word when its connection breaks."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.docs.pages import ROOT
from tests.support.wire import Server

HOST = ROOT / "examples" / "agent_host.py"
COUNT = "i=0; while [ $i -lt 200 ]; do i=$((i + 1)); echo line $i; sleep 0.005; done; exit 7"
EXPECTED = "".join(f"line {number}\n" for number in range(1, 201)).encode()


class Cutter:
    """Passes connections on to a socket, and cuts the first ones after some bytes of answers."""

    def __init__(self, target: str, path: Path, cuts: list[int]) -> None:
        self._target, self._cuts = target, cuts
        self.connections = 0
        self._ends: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                self._ends += [near, far]
                far.connect(self._target)
                allowed = self._cuts[self.connections] if self.connections < len(self._cuts) else None
                self.connections += 1
                for source, sink, limit in ((near, far, None), (far, near, allowed)):
                    thread = threading.Thread(target=self._pass, args=(source, sink, limit))
                    thread.start()
                    self._threads.append(thread)

    def _pass(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                sink.sendall(data if limit is None else data[: limit - passed])
                passed += len(data)
                if limit is not None and passed >= limit:
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(20)
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        for end in (self._listener, *self._ends):
            end.close()


@pytest.fixture
def server(start_server: StartServer, short: Path) -> Server:
    return start_server(f"unix://{short}/socket")


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="host-"))
    yield folder
    shutil.rmtree(folder)


def host(path: str | Path, *argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, str(HOST), str(path), *argv], capture_output=True, timeout=40)


def test_output_and_exit_code_survive_connections_that_break(server: Server, short: Path) -> None:
    cutter = Cutter(str(short / "socket"), short / "cut", [4000, 4000, 2500])
    try:
        done = host(short / "cut", "sh", "-c", COUNT)
    finally:
        cutter.close()
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, b"", 7)
    assert cutter.connections == 4


def test_it_says_why_it_cannot(server: Server, short: Path) -> None:
    assert b"usage" in host(short / "socket").stderr
    nowhere = host(short / "nowhere", "true")
    assert (nowhere.returncode, nowhere.stderr) == (
        1,
        b"agent_host.py: [Errno 2] No such file or directory\n",
    )
