"""`execserver serve` as a service manager runs it: the real supervisor with the real server below it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from execprotocol.trust import owner_name
from execserver.memory import DESCRIPTOR_TABLE_ENTRIES as ENTRIES
from tests.support.service_manager import ServiceManager, only_child, passing
from tests.support.wire import (
    PATIENCE,
    UpgradeRefusedError,
    connect_unix,
    connect_ws,
    server_command,
    wait_state,
)

# Half of it is between two beats: short enough for a test, long enough for a busy machine.
WATCHDOG_USEC = 200_000


class Service:
    """One start of the service."""

    def __init__(
        self, folder: Path, manager: ServiceManager, passed: Sequence[socket.socket], flags: Sequence[str]
    ) -> None:
        descriptors = [each.fileno() for each in passed]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        self.process = subprocess.Popen(
            [*(passing(descriptors) if descriptors else []), *server_command(), *flags],
            env={
                **manager.environment,
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "RUNTIME_DIRECTORY": str(folder),
                "WATCHDOG_USEC": str(WATCHDOG_USEC),
                "INVOCATION_ID": "kept",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            pass_fds=descriptors,
            cwd=folder,
            start_new_session=True,
        )

    def log(self) -> str:
        # Opened anew: the service writes at the offset that our descriptor shares with its own.
        return Path(f"/proc/self/fd/{self._log.fileno()}").read_text()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """End the service, also after a failed test; the server ends with its supervisor."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


Start = Callable[..., Service]


@pytest.fixture
def manager(folder: Path) -> Iterator[ServiceManager]:
    with ServiceManager(folder / "notify") as manager:
        yield manager


@pytest.fixture
def serve(folder: Path, manager: ServiceManager) -> Iterator[Start]:
    """Start a service: `serve(SOCKET, …, flags=[…])`."""
    services: list[Service] = []

    def begin(*passed: socket.socket, flags: Sequence[str] = ()) -> Service:
        services.append(Service(folder, manager, passed, flags))
        return services[-1]

    yield begin
    for service in services:
        service.end()


@pytest.fixture
def unix(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(f"{folder}/door")
        listening.listen()
        yield listening


def listen_on_tcp(address: str) -> socket.socket:
    return socket.create_server((address, 0))


def url_of(tcp: socket.socket) -> str:
    host, port = tcp.getsockname()
    return f"ws://{host}:{port}"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def refusal(url: str, token: str) -> bytes:
    with pytest.raises(UpgradeRefusedError) as refused:
        connect_ws(url, bearer(token))
    assert refused.value.status == 401
    return refused.value.body


def test_passed_sockets_are_served_as_what_they_are(
    serve: Start, folder: Path, manager: ServiceManager, unix: socket.socket
) -> None:
    with listen_on_tcp("127.0.0.1") as tcp:
        service = serve(unix, tcp)
        ready = manager.message()
        assert ready == {
            "READY": "1",
            "MAINPID": str(service.process.pid),
            "STATUS": f"Serving on unix://{folder}/door {url_of(tcp)}",
        }
        for client in (connect_unix(folder / "door"), connect_ws(url_of(tcp))):
            with client:
                assert client.handshake().shell("echo $((6 * 7))").wait_closed().output == b"42\n"
        assert service.stop() == 0


def test_commands_see_nothing_of_the_service_manager(
    serve: Start, folder: Path, manager: ServiceManager, unix: socket.socket
) -> None:
    service = serve(unix)
    with connect_unix(folder / "door").handshake() as client:
        policy = {
            "inherit": "all",
            "ignoreDefaultExcludes": True,
            "exclude": [],
            "set": {},
            "includeOnly": [],
        }
        own = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "WATCHDOG_USEC": "1", "NOTIFY_SOCKET": "/x"}
        command = client.start("/usr/bin/env", envPolicy=policy, env=own).wait_closed()
        names = {line.partition(b"=")[0].decode() for line in command.output.splitlines()}
        assert "INVOCATION_ID" in names
        assert not [name for name in names if name.startswith(("LISTEN_", "WATCHDOG_", "NOTIFY_SOCKET"))]
        descriptors = client.shell("ls /proc/self/fd").wait_closed().output.split()
        assert descriptors == [b"0", b"1", b"2", b"3"]  # the last one is the listing itself
    assert service.stop() == 0


def test_a_client_that_waits_in_the_backlog_is_served_by_the_start_it_caused_and_by_the_next(
    serve: Start, folder: Path, manager: ServiceManager, unix: socket.socket
) -> None:
    for _ in range(2):
        with connect_unix(folder / "door") as client:
            asked = client.request("initialize", {"clientName": "early"})
            service = serve(unix)
            assert client.result(asked)["sessionId"]
            client.notify("initialized", {})
            assert client.shell("exit 3").wait_closed().exit_code == 3
        assert service.stop() == 0
        assert (folder / "door").exists()


def test_the_exposure_of_a_passed_address_is_checked_like_any_other(
    serve: Start, manager: ServiceManager
) -> None:
    with listen_on_tcp("0.0.0.0") as tcp:
        service = serve(tcp)
        assert service.process.wait(PATIENCE) == 1
        assert f"{url_of(tcp)} is reachable from other machines: give --ws-auth" in service.log()
        assert not [message for message in manager.rest() if "READY" in message]


def test_the_watchdog_is_fed_while_the_loop_of_the_server_turns(
    serve: Start, manager: ServiceManager, unix: socket.socket
) -> None:
    service = serve(unix)
    assert "READY" in manager.message()
    for _ in range(3):
        assert manager.message() == {"WATCHDOG": "1"}

    server = only_child(service.process.pid)
    os.kill(server, signal.SIGSTOP)
    wait_state([server], "T")
    # The supervisor is as alive as before; five beats' time without one.
    manager.wait_quiet(WATCHDOG_USEC / 2e6 * 5)

    os.kill(server, signal.SIGCONT)
    for _ in range(3):
        assert manager.message() == {"WATCHDOG": "1"}
    assert service.stop() == 0


def test_a_reload_takes_a_new_token_and_a_new_server_and_keeps_the_commands(
    serve: Start, folder: Path, manager: ServiceManager
) -> None:
    (folder / "token").write_text("first-token\n")
    with listen_on_tcp("127.0.0.1") as tcp:
        url = url_of(tcp)
        flags = ["--ws-auth", "capability-token", "--ws-token-file", "token"]
        service = serve(tcp, flags=flags)
        ready = manager.message()
        with connect_ws(url, bearer("first-token")).handshake() as old:
            process = old.shell("read line; echo $line", pipeStdin=True)
            (folder / "token").write_text("second-token\n")
            assert refusal(url, "second-token") == b"invalid websocket bearer token"

            server = only_child(service.process.pid)
            service.process.send_signal(signal.SIGHUP)
            assert int(manager.until("RELOADING")["MONOTONIC_USEC"]) > 0
            assert manager.until("READY") == ready
            assert not os.path.exists(f"/proc/{server}")

            assert refusal(url, "first-token") == b"invalid websocket bearer token"
            with connect_ws(url, bearer("second-token")).handshake(resume=old.session_id) as new:
                assert new.shell("echo new", processId="new").wait_closed().output == b"new\n"
                resumed = new.process(process.id)
                assert resumed.write("still here\n", "w1") == "accepted"
                assert resumed.wait_closed().output == b"still here\n"
        assert service.stop() == 0
        assert "first-token" not in service.log()
        assert "second-token" not in service.log()


@pytest.mark.parametrize("fault", ["missing", "empty", "short", "writable"])
def test_a_reload_that_fails_keeps_the_old_token_and_says_why(
    serve: Start, folder: Path, manager: ServiceManager, fault: str
) -> None:
    token = folder / "token"
    token.write_text("first-token\n")
    with listen_on_tcp("127.0.0.1") as tcp:
        url = url_of(tcp)
        service = serve(tcp, flags=["--ws-auth", "capability-token", "--ws-token-file", str(token)])
        manager.until("READY")
        reason = {
            "missing": f"--ws-token-file: cannot read {token}: No such file or directory",
            "empty": f"--ws-token-file: {token} is empty",
            "short": "--ws-token-file: the token must have at least 6 bytes, better 32: "
            "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
            "writable": f"--ws-token-file decides who may connect: file {token} of "
            f"{owner_name(os.geteuid())} can be written by others (mode 0666): chmod 600 {token}",
        }[fault]
        if fault == "missing":
            token.unlink()
        elif fault == "writable":
            token.chmod(0o666)
        else:
            token.write_text({"empty": "\n", "short": "guess\n"}[fault])

        service.process.send_signal(signal.SIGHUP)
        manager.until("RELOADING")
        assert manager.until("READY")["STATUS"] == f"Reload failed: {reason}"
        assert f"execserver: reload failed, nothing has changed: {reason}\n" in service.log()
        connect_ws(url, bearer("first-token")).handshake().close()

        token.write_text("third-token\n")
        token.chmod(0o600)
        service.process.send_signal(signal.SIGHUP)
        assert manager.until("READY")["STATUS"] == f"Serving on {url}"
        connect_ws(url, bearer("third-token")).handshake().close()
        refusal(url, "first-token")
        assert service.stop() == 0


def test_a_new_shared_secret_is_taken_too(serve: Start, folder: Path, manager: ServiceManager) -> None:
    import jwt

    old, new = "o" * 32, "n" * 32
    (folder / "secret").write_text(old)
    with listen_on_tcp("127.0.0.1") as tcp:
        url = url_of(tcp)
        flags = ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", "secret"]
        service = serve(tcp, flags=flags)
        manager.until("READY")
        connect_ws(url, bearer(jwt.encode({"exp": 1 << 40}, old))).handshake().close()
        (folder / "secret").write_text(new)
        service.process.send_signal(signal.SIGHUP)
        manager.until("READY")
        connect_ws(url, bearer(jwt.encode({"exp": 1 << 40}, new))).handshake().close()
        assert refusal(url, jwt.encode({"exp": 1 << 40}, old)) == b"invalid websocket jwt"
        assert service.stop() == 0


def test_stopping_is_told_before_the_commands_end(
    serve: Start, folder: Path, manager: ServiceManager, unix: socket.socket
) -> None:
    service = serve(unix)
    with connect_unix(folder / "door").handshake() as client:
        process = client.shell("echo ready; exec sleep 600")
        process.wait_output(b"ready\n")
        manager.until("READY")
        service.process.terminate()
        assert manager.until("STOPPING") == {"STOPPING": "1", "STATUS": "Stopping"}
        process.wait_exited()
        assert service.process.wait(PATIENCE) == 0
        assert not [message for message in manager.rest() if set(message) & {"READY", "STOPPING"}]


def test_the_server_has_room_for_descriptors_before_it_has_threads(
    serve: Start, manager: ServiceManager, unix: socket.socket
) -> None:
    service = serve(unix)
    manager.message()

    status = Path(f"/proc/{only_child(service.process.pid)}/status").read_text()

    size = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize:"))
    assert size >= min(ENTRIES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--listn", "x"], 2, "no such option: --listn; did you mean --listen?"),
        (["--session-ttl", "soon"], 2, "--session-ttl: must be a number of seconds"),
        (["--ws-auth", "capability-token", "--ws-token-file", "none"], 1, "--ws-token-file: cannot read"),
        (["--config", "/none"], 1, "/none"),
        ([], 1, "in use by process"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_flags_are_reported_before_a_socket_in_use(
    flags: list[str], code: int, message: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/s")
        other.listen()

        done = subprocess.run(
            [*server_command(), "--listen", f"unix://{tmp_path}/s", *flags],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "EXECSERVER_CONFIG": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert ("in use" in done.stderr) == (not flags)
