"""A daemon that drains: no new sessions, the old ones end or move away in time. Real daemons and commands."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.sandbox.profiles import READ_ROOT, context, restricted
from tests.support.servers import server_of
from tests.support.wire import (
    PATIENCE,
    Client,
    Json,
    Server,
    alive,
    decode,
    path_uri,
    spawn_stdio,
    wait_gone,
)

DRAIN = [sys.executable, "-m", "execserver", "drain"]

COUNT = "i=0; while [ $i -lt 200 ]; do i=$((i + 1)); echo $i; sleep 0.01; done"
NUMBERS = "".join(f"{number}\n" for number in range(1, 201)).encode()

ASK = """
import socket
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
    control.connect({path!r})
    try:
        control.send(b'{{"type": "status"}}')
    except BrokenPipeError:
        pass
    print(control.recv(4096).decode())
"""

Start = Callable[..., Server]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="drain-") as path:
        yield Path(path)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXECSERVER_")}
    return {**kept, "EXECSERVER_CONFIG": "", "XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start a daemon: `start(*flags, listen=URL)`."""
    servers: list[Server] = []

    def begin(*flags: str, listen: str = "", **variables: str) -> Server:
        place = listen or f"unix://{folder}/{len(servers)}.sock"
        servers.append(Server(place, *flags, env=environment(folder) | variables))
        return servers[-1]

    yield begin
    for server in servers:
        if server.running:
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGINT)  # at once, also with a grace
        server.stop()


def drain(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `execserver drain`."""
    return subprocess.run(
        [*DRAIN, *flags],
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def drained(folder: Path, *flags: str) -> str:
    """Run it with success; what it prints."""
    result = drain(folder, *flags)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(server: Server) -> None:
    """A new session is refused, and another connection may try."""
    with server.connect(handshake=False) as client:
        params = {"clientName": "new", "resumeSessionId": None}
        error = client.refused("initialize", params)
        assert error.code == -32011
        assert "opens no new sessions" in error.message
        assert client.refused("initialize", params).code == -32011, "the connection is still new"


def notices(client: Client) -> list[Json]:
    return [each["params"] for each in client.notifications if each["method"] == "executor/draining"]


def wait_notices(client: Client, count: int) -> list[Json]:
    client.wait_until(lambda: len(notices(client)) >= count, what="the notice of a drain")
    return notices(client)


def whole_output(client: Client, process_id: str) -> bytes:
    """All output of a process that ends, also of the time before the connection."""
    output, after = b"", 0
    while True:
        params = {"processId": process_id, "afterSeq": after, "waitMs": 1000}
        page = client.call("process/read", params)
        output += b"".join(decode(chunk["chunk"]) for chunk in page["chunks"])
        after = page["nextSeq"] - 1
        if page["closed"]:
            return output


@pytest.mark.statement("H60", "H61")
def test_sessions_go_on_while_new_ones_are_refused(start: Start, folder: Path) -> None:
    server = start()
    with server.connect(extensions=True) as client, server.connect() as stock:
        counting = client.shell(COUNT)
        assert drained(folder) == "draining: 2 sessions are left\n"
        assert wait_notices(client, 1) == [{"endsInMs": None}]
        refused(server)
        assert client.shell("echo further").wait_closed().output == b"further\n"
        assert counting.wait_closed().output == NUMBERS
        assert notices(stock) == [], "it did not ask for extensions"
        assert drain(folder, "--wait", "0.3").stderr == (
            "execserver: 2 sessions are left after 0.3 s; the daemon is still draining\n"
        )
        client.call("session/end", {})
        stock.call("session/end", {})
    assert drained(folder, "--wait") == "draining: no sessions are left\n"
    assert server.running, "the command ends no daemon"


@pytest.mark.statement("H60", "H61")
def test_a_detached_session_is_resumed_during_a_drain(start: Start, folder: Path) -> None:
    server = start()
    with server.connect(extensions=True) as client:
        session = client.session_id
        process = client.start("sleep", "600")
    drained(folder)
    with server.connect(resume=session, extensions=True) as client:
        assert wait_notices(client, 1) == [{"endsInMs": None}]
        assert client.process(process.id).read()["exited"] is False
        assert drain(folder, "--wait", "0.1").returncode == 1
        client.call("session/end", {})
    assert drained(folder, "--wait", "5") == "draining: no sessions are left\n"


@pytest.mark.statement("H62")
def test_a_cancelled_drain_opens_sessions_again(start: Start, folder: Path) -> None:
    server = start()
    drained(folder)
    refused(server)
    assert drained(folder, "--cancel") == ""
    with server.connect() as client:
        assert client.shell("echo again").wait_closed().output == b"again\n"


@pytest.mark.statement("H62")
def test_a_drain_outlives_a_killed_server_and_an_upgrade(start: Start, folder: Path) -> None:
    server = start()
    with server.connect(extensions=True) as client:
        session, counting = client.session_id, client.shell(COUNT)
        drained(folder)
        killed = server_of(server.pid, PATIENCE)
        os.kill(killed, signal.SIGKILL)
        client.wait_end()
        name = counting.id
    assert wait_gone(killed)
    refused(server)
    with server.connect(resume=session, extensions=True) as client:
        assert wait_notices(client, 1) == [{"endsInMs": None}]
        assert whole_output(client, name) == NUMBERS
        server.process.send_signal(signal.SIGHUP)
        client.wait_end()
    refused(server)
    with server.connect(resume=session) as client:
        client.call("session/end", {})
    assert drained(folder, "--wait", "10") == "draining: no sessions are left\n"


@pytest.mark.statement("H61", "H63")
def test_sigterm_with_a_grace_ends_the_service_with_its_last_session(start: Start, folder: Path) -> None:
    server = start("--drain-grace", "60")
    with server.connect(extensions=True) as client:
        counting = client.shell(COUNT)
        server.process.send_signal(signal.SIGTERM)
        [notice] = wait_notices(client, 1)
        assert 50_000 < notice["endsInMs"] <= 60_000
        refused(server)
        assert counting.wait_closed().output == NUMBERS
        assert drain(folder, "--cancel").stderr == (
            "execserver: the service is ending, by SIGTERM: that cannot be cancelled\n"
        )
        assert server.running
        client.call("session/end", {})
    assert server.process.wait(PATIENCE) == 0
    assert list(folder.glob("execserver/instances/*")) == []


@pytest.mark.statement("H63")
def test_at_the_end_of_the_grace_the_processes_are_killed(start: Start, folder: Path) -> None:
    server = start("--drain-grace", "1")
    with server.connect(extensions=True) as client:
        process = client.shell("setsid sh -c 'echo $$; exec sleep 600' & wait")
        orphan = int(process.wait_output(lambda output: output.endswith(b"\n")))
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert process.wait_closed().exit_code == 137
        assert time.monotonic() - begin >= 1
        client.wait_end()
    assert server.process.wait(PATIENCE) == 0
    assert not alive(orphan)
    assert "the drain grace is over with 1 sessions left" in server.stderr


@pytest.mark.statement("H63")
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_service_at_once(start: Start, folder: Path, second: signal.Signals) -> None:
    server = start("--drain-grace", "600")
    with server.connect(extensions=True) as client:
        process = client.start("sleep", "600")
        server.process.send_signal(signal.SIGTERM)
        wait_notices(client, 1)
        server.process.send_signal(second)
        assert process.wait_closed().exit_code == 137
        assert server.process.wait(PATIENCE) == 0


def test_without_sessions_or_a_grace_sigterm_ends_the_service_at_once(start: Start) -> None:
    for flags in (("--drain-grace", "600"), ()):
        server = start(*flags)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.statement("H62", "H63")
def test_a_server_that_is_killed_during_the_grace_is_replaced(start: Start, folder: Path) -> None:
    server = start("--drain-grace", "60")
    with server.connect(extensions=True) as client:
        session, counting = client.session_id, client.shell(COUNT)
        server.process.send_signal(signal.SIGTERM)
        wait_notices(client, 1)
        os.kill(server_of(server.pid, PATIENCE), signal.SIGKILL)
        client.wait_end()
        name = counting.id
    with server.connect(resume=session, extensions=True) as client:
        [notice] = wait_notices(client, 1)
        assert notice["endsInMs"] < 60_000
        assert whole_output(client, name) == NUMBERS
        client.call("session/end", {})
    assert server.process.wait(PATIENCE) == 0


def test_health_and_pages_show_a_drain(start: Start, folder: Path) -> None:
    server = start(listen="ws://127.0.0.1:0")
    ready = f"{server.url.replace('ws', 'http', 1)}/readyz"
    with server.connect() as client:
        assert client.call("server/health")["status"] == "ok"
        with urlopen(ready, timeout=PATIENCE) as page:
            assert page.status == 200
        drained(folder)
        assert client.call("server/health")["status"] == "draining"
        metrics = urlopen(server.url.replace("ws", "http", 1) + "/metrics", timeout=PATIENCE).read().decode()
        assert "\nexecserver_draining 1.0\n" in metrics
        result = subprocess.run(
            [sys.executable, "-c", f"import urllib.request as u; u.urlopen({ready!r})"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "HTTP Error 503" in result.stderr


# -- which daemon


def test_a_daemon_over_stdio_cannot_drain(folder: Path) -> None:
    client = spawn_stdio(env=environment(folder))
    with client:
        client.handshake()
        result = drain(folder)
        assert result.returncode == 1
        assert "a daemon over stdio has one client and ends with it: it cannot drain" in result.stderr
        assert client.shell("echo on").wait_closed().output == b"on\n"


def test_one_of_several_daemons_is_named_by_its_url(start: Start, folder: Path) -> None:
    first, second = start(), start()
    ambiguous = drain(folder)
    assert ambiguous.returncode == 1
    assert "several daemons run: name one with --url" in ambiguous.stderr
    assert first.url in ambiguous.stderr
    assert second.url in ambiguous.stderr
    drained(folder, "--url", second.url)
    refused(second)
    with first.connect() as client:
        assert client.shell("true").wait_closed().exit_code == 0


def test_without_a_daemon_the_command_names_where_it_looked(folder: Path) -> None:
    result = drain(folder)
    assert result.returncode == 69
    assert f"{folder}/execserver" in result.stderr


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon"])
def test_an_invalid_time_to_wait_is_refused(folder: Path, seconds: str) -> None:
    result = drain(folder, f"--wait={seconds}")
    assert result.returncode == 2
    assert f"argument --wait: must be a number of seconds, at least 0, not '{seconds}'" in result.stderr


def test_a_drain_without_sessions_ends_at_once_also_without_time_to_wait(start: Start, folder: Path) -> None:
    start()
    assert drained(folder, "--wait", "0") == "draining: no sessions are left\n"


def test_the_socket_of_a_killed_daemon_is_passed_over(start: Start, folder: Path) -> None:
    killed = start()
    below = server_of(killed.pid, PATIENCE)
    killed.process.kill()
    killed.process.wait()
    assert wait_gone(below)
    assert drain(folder).returncode == 69
    server = start()
    drained(folder)
    refused(server)
    names = {path.name for path in folder.glob("execserver/instances/*")}
    assert len(names) == 2, "the record and the socket of the daemon that runs"


def test_a_command_in_a_sandbox_cannot_drain_its_daemon(start: Start, folder: Path) -> None:
    server = start()
    with server.connect() as client:
        permissions = restricted(READ_ROOT, network="enabled")
        sandbox = context(permissions, cwd=folder, roots=[folder])
        env = {"XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "PATH": os.environ["PATH"]}
        process = client.start(*DRAIN, cwd=path_uri(folder), sandbox=sandbox, env=env)
        assert process.wait_closed().exit_code == 69, "its folder is hidden"
        [path] = folder.glob("execserver/instances/*.sock")
        script = ASK.format(path=str(path))
        outside = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert '"type": "state"' in outside.stdout, outside.stderr
        confined = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", sys.executable]
        inside = subprocess.run([*confined, "-c", script], capture_output=True, text=True, check=False)
        assert "sandbox or a container" in inside.stdout, inside.stderr
        assert client.call("server/health")["status"] == "ok"


def test_packets_that_are_no_request_do_not_end_the_service(start: Start, folder: Path) -> None:
    server = start()
    [path] = folder.glob("execserver/instances/*.sock")
    for junk in (b"[" * 60_000, b"\xff", b"{}", b'{"type": 1}', b'{"type": "\\ud800\\n"}', b"x" * 100_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(PATIENCE)
            control.connect(str(path))
            control.sendmsg([junk], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))])
            with contextlib.suppress(ConnectionResetError):
                answer = control.recv(4096)
                assert answer == b"" or b"this service is of another version" in answer

    drained(folder)
    refused(server)


# -- under a service manager


def test_the_service_manager_is_told_how_long_the_stop_may_take(start: Start, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE)
        manager.bind(f"{folder}/notify")
        server = start("--drain-grace", "60", NOTIFY_SOCKET=f"{folder}/notify")
        with server.connect(extensions=True) as client:
            server.process.send_signal(signal.SIGTERM)
            wait_notices(client, 1)
            os.kill(server_of(server.pid, PATIENCE), signal.SIGKILL)
            client.wait_end()
            session = client.session_id
        with server.connect(resume=session) as client:
            client.call("session/end", {})
        assert server.process.wait(PATIENCE) == 0
        told = []
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                told.append(manager.recv(4096).decode())
    stopping = [message for message in told if "STOPPING=1" in message]
    assert len(stopping) == 1
    assert "EXTEND_TIMEOUT_USEC=80000000" in stopping[0]
    after = told[told.index(stopping[0]) + 1 :]
    assert not any("READY=1" in message for message in after), "a new server makes no ready service of it"


def test_a_server_that_hangs_does_not_use_up_the_grace(folder: Path) -> None:
    program = (
        "import sys; from execserver.supervisor import drain, program, start; "
        "drain.ANSWER_S = program.STOP_GRACE_S = 0.5; sys.exit(start.run(sys.argv[1:]))"
    )
    listen = f"unix://{folder}/s.sock"
    service = subprocess.Popen(
        [sys.executable, "-c", program, "--listen", listen, "--drain-grace", "600"],
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    assert service.stdout.readline().strip() == listen
    os.kill(server_of(service.pid, PATIENCE), signal.SIGSTOP)
    service.send_signal(signal.SIGTERM)
    _, errors = service.communicate(timeout=PATIENCE)
    assert service.returncode == 0
    assert "the server has not answered for 0.5 s" in errors
