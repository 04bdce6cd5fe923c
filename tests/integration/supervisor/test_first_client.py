"""A daemon that is started by its only client, whose first requests wait before there is a server; and the
environment and signals that the first server gets."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.service import Service, eventually
from tests.support.servers import server_of
from tests.support.wire import PATIENCE, alive, wait_gone

EXECSERVER = str(Path(sys.executable).with_name("execserver"))
INITIALIZE = b'{"id":1,"method":"initialize","params":{"clientName":"test"}}\n'
INITIALIZED = b'{"method":"initialized","params":{}}\n'
START = (
    b'{"id":2,"method":"process/start","params":{"processId":"p","argv":["/bin/echo","hello"],'
    b'"cwd":"file:///","env":{},"tty":false}}\n'
)
INHERIT = {"inherit": "all", "ignoreDefaultExcludes": True, "exclude": [], "set": {}, "includeOnly": []}


class Daemon:
    """A daemon on pipes, the first of which has data before the daemon starts."""

    def __init__(self, folder: Path, waiting: bytes, *arguments: str, env: Mapping[str, str]) -> None:
        read_end, self._input = os.pipe()
        os.write(self._input, waiting)
        self._process = subprocess.Popen(
            [EXECSERVER, "serve", *arguments],
            stdin=read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": f"{folder}/state", **env},
            cwd=folder,
        )
        os.close(read_end)
        self.pid = self._process.pid

    def write(self, data: bytes) -> None:
        os.write(self._input, data)

    def message(self) -> dict[str, Any]:
        """The next message."""
        assert self._process.stdout is not None
        message: dict[str, Any] = json.loads(self._process.stdout.readline())
        return message

    def messages_until_closed(self) -> list[dict[str, Any]]:
        """The messages until the command has ended."""
        messages = [self.message()]
        while messages[-1].get("method") != "process/closed":
            messages.append(self.message())
        return messages

    def is_silent(self) -> bool:
        """Whether no message arrives for a moment."""
        assert self._process.stdout is not None
        return not select.select([self._process.stdout], [], [], 0.3)[0]

    @property
    def server(self) -> int:
        """The process id of the server."""
        return server_of(self.pid, PATIENCE)

    def end(self) -> int:
        """The end of the input; the exit status."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1
        with self._process:
            return self._process.wait(PATIENCE)


Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a daemon: `start(BYTES THAT WAIT, ARGUMENT...)`."""
    daemons: list[Daemon] = []

    def begin(waiting: bytes, *arguments: str, **env: str) -> Daemon:
        daemons.append(Daemon(tmp_path, waiting, *(arguments or ("--listen", "stdio")), env=env))
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.end()


@pytest.mark.parametrize("cut", range(0, len(INITIALIZE + INITIALIZED + START), 13))
def test_requests_are_answered_once_wherever_what_waited_was_cut(cut: int, start: Start) -> None:
    sent = INITIALIZE + INITIALIZED + START
    daemon = start(sent[:cut])
    if cut >= len(INITIALIZE):
        first = daemon.message()
        daemon.write(sent[cut:])
    else:
        daemon.write(sent[cut:])
        first = daemon.message()
    assert first["id"] == 1
    messages = daemon.messages_until_closed()
    assert [message["id"] for message in messages if "id" in message] == [2]
    assert daemon.is_silent()
    assert daemon.end() == 0


def test_a_session_is_opened_once(start: Start) -> None:
    daemon = start(INITIALIZE + INITIALIZED)
    session_id = daemon.message()["result"]["sessionId"]
    daemon.write(START)
    daemon.messages_until_closed()
    daemon.write(b'{"id":4,"method":"initialize","params":{"clientName":"again"}}\n')
    assert "only be sent once" in daemon.message()["error"]["message"]
    read = {"processId": "p", "sessionId": session_id}
    daemon.write(json.dumps({"id": 5, "method": "process/read", "params": read}).encode() + b"\n")
    assert daemon.message()["result"]["exitCode"] == 0


TOUCH = START.replace(b'["/bin/echo","hello"]', b'["/usr/bin/touch","%b"]')


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_requests_to_a_daemon_without_output_are_executed(closed: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", EXECSERVER, "serve", "--listen", "stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE + INITIALIZED + TOUCH % os.fsencode(mark))
        process.stdin.flush()
        assert eventually(mark.exists, PATIENCE)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_a_daemon_in_a_folder_that_is_gone_serves(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with subprocess.Popen(
        ["/bin/sh", "-c", 'rmdir "$0"; exec "$@"', str(gone), EXECSERVER, "serve", "--listen", "stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=gone,
    ) as process:
        answer, _ = process.communicate(INITIALIZE, PATIENCE)
    assert json.loads(answer)["result"]["environmentInfo"]["cwd"] == "file:///"
    assert process.returncode == 0


def test_a_client_that_is_gone_already_ends_the_daemon(start: Start) -> None:
    daemon = start(INITIALIZE + INITIALIZED)
    server = daemon.server
    assert daemon.end() == 0
    assert wait_gone(server, PATIENCE)
    assert not alive(daemon.pid)


def test_the_end_of_the_input_behind_the_first_request_is_seen(start: Start) -> None:
    daemon = start(INITIALIZE)
    assert daemon.end() == 0


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def begin(*launcher: str, **env: str) -> Service:
        folder = tmp_path_factory.mktemp("s")
        services.append(Service("unix", folder, launcher=launcher, env=env))
        return services[-1]

    yield begin
    for service in services:
        service.end()


def test_every_server_takes_a_strange_environment_alike(tmp_path_factory: Any) -> None:
    """Repeated names, and an empty one."""
    program = (
        "import ctypes, sys; names = [b'DUP=first', b'DUP=second', b'=nameless', b'PATH=/usr/bin:/bin', "
        "b'HOME=' + sys.argv[1].encode()]; argv = [a.encode() for a in sys.argv[2:]]; "
        "array = lambda items: (ctypes.c_char_p * (len(items) + 1))(*items, None); "
        "ctypes.CDLL(None).execve(argv[0], array(argv), array(names))"
    )
    folder = tmp_path_factory.mktemp("s")
    service = Service("unix", folder, launcher=(sys.executable, "-I", "-c", program, str(folder)))
    try:
        for kill in (True, False):
            client = service.connect()
            seen = client.start("/usr/bin/env", envPolicy=INHERIT).wait_closed().output.splitlines()
            assert [line for line in seen if line.startswith((b"DUP", b"="))] == [b"DUP=first"]
            if kill:
                service.signal_server(signal.SIGKILL)
                service.wait_for_new_server()
    finally:
        service.end()


def test_signals_that_the_launcher_ignored_are_not_ignored_in_the_server(
    serve: Callable[..., Service],
) -> None:
    ignoring = serve("/bin/sh", "-c", 'trap "" USR1 INT QUIT; exec "$@"', "sh")
    status = Path(f"/proc/{ignoring.server_pid}/status").read_text()
    ignored = int(status.partition("SigIgn:\t")[2].split()[0], 16)
    assert not ignored & (1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGQUIT - 1))
