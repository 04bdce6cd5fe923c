"""`initialize` at a daemon that is started for one client: answered before the server is loaded, once, and as
the server would."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

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
    """A daemon on pipes, the first of which has something in it before the daemon is there."""

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
        """What comes until the command has ended."""
        messages = [self.message()]
        while messages[-1].get("method") != "process/closed":
            messages.append(self.message())
        return messages

    def is_silent(self) -> bool:
        """Whether nothing comes for a moment."""
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


def answered_at_once(waiting: bytes, folder: Path, *arguments: str, **env: str) -> tuple[bytes, bytes]:
    """What the first stage alone writes to a client, and keeps for the server."""
    program = (
        "import os\n"
        "from execserver import __main__, first_answer\n"
        "from execserver.supervisor import start\n"
        "answer = first_answer.answer_first\n"
        "def answer_first(environment):\n"
        "    first = answer(environment)\n"
        "    os.write(2, first.rest if first else b'')\n"
        "first_answer.answer_first = answer_first\n"
        "start.run = lambda argv, serve, answered: 0\n"
        "__main__.main()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, "serve", *(arguments or ("--listen", "stdio"))],
        input=waiting,
        capture_output=True,
        env={"HOME": str(folder), **env},
        check=True,
        cwd=folder,
    )
    return done.stdout, done.stderr


def test_the_answer_is_the_one_that_the_server_makes(start: Start, tmp_path: Path) -> None:
    mine = start(INITIALIZE).message()
    # A variable of ours is not plain: the server itself answers.
    servers = start(INITIALIZE, EXECSERVER_LOG_LEVEL="error").message()
    early, _ = answered_at_once(INITIALIZE, tmp_path)
    answers = [mine, servers, json.loads(early)]
    for answer in answers:
        session = UUID(answer["result"].pop("sessionId"))
        assert (session.version, session.variant) == (4, UUID(int=1 << 63).variant)
        assert answer["result"]["environmentInfo"].pop("providerId").startswith("execserver:")
    assert mine == servers == json.loads(json.dumps(answers[2]))
    assert list(mine["result"]["environmentInfo"]) == list(servers["result"]["environmentInfo"])


def test_it_needs_no_library(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['msgspec'] = sys.modules['uvloop'] = None; "
        "from execserver.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, "serve", "--listen", "stdio"],
        input=INITIALIZE,
        capture_output=True,
        env={"HOME": str(tmp_path)},
        check=False,
        timeout=PATIENCE,
    )
    assert json.loads(done.stdout)["id"] == 1
    assert done.returncode == 1, done.stderr


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


def test_the_promised_session_is_the_one_that_is_attached(start: Start) -> None:
    daemon = start(INITIALIZE + INITIALIZED)
    promised = daemon.message()["result"]["sessionId"]
    daemon.write(START)
    daemon.messages_until_closed()
    daemon.write(b'{"id":4,"method":"initialize","params":{"clientName":"again"}}\n')
    assert "only be sent once" in daemon.message()["error"]["message"]
    read = {"processId": "p", "sessionId": promised}
    daemon.write(json.dumps({"id": 5, "method": "process/read", "params": read}).encode() + b"\n")
    assert daemon.message()["result"]["exitCode"] == 0


@pytest.mark.parametrize(
    "waiting",
    [
        b"",
        INITIALIZE[:-1],
        b"\n" + INITIALIZE,
        INITIALIZED + INITIALIZE,
        b"Content-Length: 62\r\n\r\n" + INITIALIZE,
        INITIALIZE.replace(b'"id":1', b'"id":1,"jsonrpc":"2.0"'),
        INITIALIZE.replace(b'"test"', b'"test","extensions":{"execserver":1}'),
    ],
)
def test_what_is_not_plain_is_kept_for_the_server(waiting: bytes, tmp_path: Path) -> None:
    assert answered_at_once(waiting, tmp_path) == (b"", waiting)


def test_a_daemon_with_settings_lets_the_server_answer(tmp_path: Path) -> None:
    assert answered_at_once(INITIALIZE, tmp_path)[0]
    assert answered_at_once(INITIALIZE, tmp_path, EXECSERVER_SESSION_TTL="1") == (b"", b"")
    assert answered_at_once(INITIALIZE, tmp_path, "--listen", "stdio", "--session-ttl", "1") == (b"", b"")
    assert answered_at_once(INITIALIZE, tmp_path, "--listen", f"unix://{tmp_path}/s") == (b"", b"")
    config = tmp_path / ".config/execserver/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("session_ttl = 1\n")
    assert answered_at_once(INITIALIZE, tmp_path) == (b"", b"")


def test_a_folder_whose_name_fills_the_answer_is_the_servers_affair(tmp_path: Path) -> None:
    folder = tmp_path
    while len(os.fsencode(folder)) < 1500:
        folder /= "ü" * 100
    folder.mkdir(parents=True)
    assert answered_at_once(INITIALIZE, folder) == (b"", INITIALIZE)


def test_an_answer_of_any_size_is_sent_once(start: Start) -> None:
    size = len(json.dumps(start(INITIALIZE).message(), separators=(",", ":"))) + 1
    for wanted in (4095, 4096, 4097):
        request_id = "x" * (wanted - size - 1)  # in quotes, instead of one digit
        daemon = start(INITIALIZE.replace(b'"id":1', b'"id":"%b"' % request_id.encode()) + INITIALIZED)
        assert daemon.message()["id"] == request_id
        daemon.write(START)
        assert [message["id"] for message in daemon.messages_until_closed() if "id" in message] == [2]


TOUCH = START.replace(b'["/bin/echo","hello"]', b'["/usr/bin/touch","%b"]')


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_what_was_sent_to_a_daemon_without_output_is_done(closed: str, tmp_path: Path) -> None:
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


# -- the first server is a copy of the supervisor


def command_line(service: Service) -> bytes:
    return Path(f"/proc/{service.server_pid}/cmdline").read_bytes()


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


def test_a_server_is_a_copy_only_where_that_is_the_same(serve: Callable[..., Service]) -> None:
    def is_copy(service: Service) -> bool:
        return b"execserver.cli" not in command_line(service)

    assert is_copy(serve())
    assert is_copy(serve(PYTHON_VERSION="3"))
    assert is_copy(serve(sys.executable, "-I"))
    assert not is_copy(serve(sys.executable, "-O"))
    assert not is_copy(serve(sys.executable, "-W", "error"))
    assert not is_copy(serve(PYTHONPATH="/nowhere"))
    assert not is_copy(serve(PYTHON_GIL="1"))
    assert not is_copy(serve(PYTHONDONTWRITEBYTECODE="1"))
    assert not is_copy(serve(NOTIFY_SOCKET="@nobody"))
    assert not is_copy(
        serve(LANG="de_DE.ISO-8859-1", PYTHONUTF8="0", LC_ALL="POSIX", PYTHONCOERCECLOCALE="0")
    )


def test_a_copy_is_like_a_server_of_its_own_program(serve: Callable[..., Service]) -> None:
    def looks(service: Service) -> dict[str, Any]:
        service.open_everything()
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{service.server_pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        client = service.connect()
        out = client.start(
            "/bin/sh",
            "-c",
            "env; ulimit -a; grep ^Sig[^Q] /proc/self/status; pwd; ls /proc/self/fd",
            envPolicy=INHERIT,
        ).wait_closed()
        links = sorted(
            re.sub(r"\d+", "N", os.readlink(f"/proc/{service.server_pid}/fd/{name}"))
            for name in os.listdir(f"/proc/{service.server_pid}/fd")
        )
        folder = str(service.path.parent)
        return {
            # Without the two that are glibc's own: what it spawns it gives those ignored.
            "signals": [int(status[name], 16) & ~(3 << 31) for name in ("SigBlk", "SigIgn", "SigCgt")],
            "descriptors": [link for link in links if not link.startswith("/proc/")],
            "command": [line.replace(folder, "") for line in out.output.decode().splitlines()],
            "session": os.getsid(service.server_pid) == service.server_pid,
            "cwd": os.readlink(f"/proc/{service.server_pid}/cwd"),
        }

    mine, spawned = looks(serve()), looks(serve(PYTHONDONTWRITEBYTECODE="1"))
    spawned["command"].remove("PYTHONDONTWRITEBYTECODE=1")
    assert mine == spawned


def test_a_copy_takes_a_strange_environment_as_its_successor_does(tmp_path_factory: Any) -> None:
    """Names that stand twice, and none: only a program of its own can hand them on."""
    program = (
        "import ctypes, sys; names = [b'DUP=first', b'DUP=second', b'=nameless', b'PATH=/usr/bin:/bin', "
        "b'HOME=' + sys.argv[1].encode()]; argv = [a.encode() for a in sys.argv[2:]]; "
        "array = lambda items: (ctypes.c_char_p * (len(items) + 1))(*items, None); "
        "ctypes.CDLL(None).execve(argv[0], array(argv), array(names))"
    )
    folder = tmp_path_factory.mktemp("s")
    service = Service("unix", folder, launcher=(sys.executable, "-I", "-c", program, str(folder)))
    try:
        assert b"execserver.cli" not in command_line(service)
        for kill in (True, False):
            client = service.connect()
            seen = client.start("/usr/bin/env", envPolicy=INHERIT).wait_closed().output.splitlines()
            assert [line for line in seen if line.startswith((b"DUP", b"="))] == [b"DUP=first"]
            if kill:
                service.signal_server(signal.SIGKILL)
                service.successor()
    finally:
        service.end()


def test_what_was_ignored_when_the_service_began_is_not_in_the_server(serve: Callable[..., Service]) -> None:
    ignoring = serve("/bin/sh", "-c", 'trap "" USR1 INT QUIT; exec "$@"', "sh")
    status = Path(f"/proc/{ignoring.server_pid}/status").read_text()
    ignored = int(status.partition("SigIgn:\t")[2].split()[0], 16)
    assert not ignored & (1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGQUIT - 1))
