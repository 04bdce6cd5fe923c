"""A daemon with `require_sandbox`: its start, a restart of its server, an upgrade, and its diagnostics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.sandbox import landlock
from tests.conformance.endpoint import socket_folder
from tests.sandbox.profiles import READ_ONLY, context
from tests.sandbox_user import remove_tree
from tests.support.wire import PATIENCE, Client, ReplyError, Server, StartError, connect_unix, path_uri

EXECSERVER = [sys.executable, "-I", "-m", "execserver"]


def environment_of(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}


@pytest.fixture
def here() -> Iterator[Path]:
    """A folder that is short enough for sockets."""
    folder = socket_folder()
    yield folder
    remove_tree(folder)


Serve = Callable[..., Server]


@pytest.fixture
def serve(here: Path) -> Iterator[Serve]:
    """Starts a daemon with flags; it has to end well."""
    servers = []

    def start(*flags: str) -> Server:
        servers.append(Server(f"unix://{here}/s", *flags, env=environment_of(here), cwd=here))
        return servers[-1]

    yield start
    assert [server.stop() for server in servers] == [0] * len(servers)


def connect(folder: Path) -> Client:
    return connect_unix(folder / "s", standard=True)


def unconfined(client: Client) -> ReplyError:
    return client.refused("process/start", client.start_params(["/bin/true"], processId="unconfined"))


def confined(client: Client) -> bytes:
    return client.shell("echo confined", cwd="file:///", sandbox=context(READ_ONLY)).wait_closed().output


def configure(folder: Path, text: str) -> None:
    path = folder / "config.toml"
    path.write_text(text)
    path.chmod(0o600)


def bwrap_in(folder: Path) -> Path:
    """A copy of bubblewrap that a test can remove."""
    found = shutil.which("bwrap")
    assert found is not None
    return Path(shutil.copy(found, folder / "bwrap"))


def server_pid(client: Client) -> int:
    pid = client.call("server/health")["pid"]
    assert isinstance(pid, int)
    return pid


def wait_for_another(folder: Path, pid: int) -> Client:
    """A connection to the server after this one."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline
        try:
            client = connect(folder).handshake()
            if server_pid(client) != pid:
                return client
            client.close()
        except OSError:
            pass
        time.sleep(0.02)


# -- the start


@pytest.mark.parametrize("broken", ["missing", "no bubblewrap", "does not confine"])
def test_the_daemon_does_not_start_where_it_cannot_confine(here: Path, serve: Serve, broken: str) -> None:
    bubblewrap = here / "bwrap"
    if broken != "missing":
        script = "echo bubblewrap 0.9.0" if broken == "does not confine" else "echo something else"
        bubblewrap.write_text(f"#!/bin/sh\n{script}\n")
        bubblewrap.chmod(0o755)
    with pytest.raises(StartError) as caught:
        serve("--require-sandbox", "--bubblewrap", str(bubblewrap))
    assert caught.value.status == 1
    for part in ("require_sandbox", str(bubblewrap), "execserver doctor"):
        assert part in caught.value.stderr
    assert not (here / "s").exists()


def test_the_daemon_starts_without_it_on_the_same_machine(here: Path, serve: Serve) -> None:
    serve("--bubblewrap", str(here / "none"))
    with connect(here).handshake() as client:
        assert client.shell("echo on", cwd=path_uri(here)).wait_closed().output == b"on\n"


@pytest.mark.skipif(landlock.unavailable() is not None, reason="the kernel's Landlock is too old")
def test_landlock_is_enough_where_it_is_allowed(here: Path, serve: Serve) -> None:
    serve("--require-sandbox", "--bubblewrap", str(here / "none"), "--allow-landlock")
    with connect(here).handshake() as client:
        assert "require_sandbox" in unconfined(client).message
        assert confined(client) == b"confined\n"
        assert client.call("fs/readDirectory", {"path": "file:///"})["entries"]


# -- life


def test_a_new_server_requires_sandboxes_too(here: Path, serve: Serve) -> None:
    serve("--require-sandbox")
    with connect(here).handshake() as client:
        pid = server_pid(client)
        os.kill(pid, signal.SIGKILL)
    with wait_for_another(here, pid) as client:
        assert "require_sandbox" in unconfined(client).message
        assert confined(client) == b"confined\n"


def test_a_new_server_starts_nothing_if_sandboxes_are_gone(here: Path, serve: Serve) -> None:
    """It serves, because running processes would end with the service; every start is refused."""
    bubblewrap = bwrap_in(here)
    serve("--require-sandbox", "--bubblewrap", str(bubblewrap))
    with connect(here).handshake() as client:
        pid = server_pid(client)
        params = client.start_params(
            ["/bin/sh", "-c", "echo started; cat"],
            cwd="file:///", sandbox=context(READ_ONLY), pipeStdin=True,
        )  # fmt: skip
        client.call("process/start", params)
        running = client.process(params["processId"])
        running.wait_output(b"started\n")
        session = client.session_id
        bubblewrap.unlink()
        os.kill(pid, signal.SIGKILL)
    wait_for_another(here, pid).close()
    with connect(here).handshake(session) as client:
        assert "require_sandbox" in unconfined(client).message
        sandboxed = client.start_params(
            ["/bin/true"], cwd="file:///", sandbox=context(READ_ONLY), processId="confined"
        )
        assert str(bubblewrap) in client.refused("process/start", sandboxed).message
        running = client.process(params["processId"])
        assert running.write("alive\n", "1") == "accepted"
        running.wait_output(b"alive\n")


def test_an_upgrade_brings_the_setting_and_ends_nothing(here: Path, serve: Serve) -> None:
    configure(here, f'listen = ["unix://{here}/s"]\n')
    server = serve("--config", str(here / "config.toml"))
    with connect(here).handshake() as client:
        pid, session = server_pid(client), client.session_id
        params = client.start_params(["/bin/cat"], pipeStdin=True)
        client.call("process/start", params)
        configure(here, f'listen = ["unix://{here}/s"]\nrequire_sandbox = true\n')
        server.process.send_signal(signal.SIGHUP)
        client.wait_end()
    wait_for_another(here, pid).close()
    with connect(here).handshake(session) as client:
        assert "require_sandbox" in unconfined(client).message
        running = client.process(params["processId"])
        assert running.write("alive\n", "1") == "accepted"
        running.wait_output(b"alive\n")
        running.terminate()


def test_an_upgrade_that_could_not_confine_is_refused(here: Path, serve: Serve) -> None:
    configure(here, f'listen = ["unix://{here}/s"]\n')
    server = serve("--config", str(here / "config.toml"))
    with connect(here).handshake() as client:
        pid = server_pid(client)
        configure(here, f'require_sandbox = true\nbubblewrap = "{here}/none"\n')
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE
        while "no upgrade" not in server.stderr:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert "require_sandbox is set" in server.stderr
        assert server_pid(client) == pid
        assert client.shell("echo on", cwd=path_uri(here)).wait_closed().output == b"on\n"


# -- diagnostics


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXECSERVER, *arguments],
        env=environment_of(folder), cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def requirement(folder: Path, *flags: str) -> dict[str, str]:
    checks = json.loads(run(folder, "doctor", "--json", *flags).stdout)["checks"]
    found: dict[str, str] = next(check for check in checks if check["name"] == "require_sandbox")
    return found


def test_the_doctor_says_whether_sandboxes_are_required(here: Path) -> None:
    off = requirement(here)
    assert (off["status"], off["detail"][:4]) == ("ok", "off:")
    on = requirement(here, "--require-sandbox")
    assert (on["status"], on["detail"][:3]) == ("ok", "on:")
    impossible = requirement(here, "--require-sandbox", "--bubblewrap", str(here / "none"))
    assert impossible["status"] == "missing"
    assert "would not start" in impossible["detail"]
    assert str(here / "none") in impossible["cause"]


def test_config_check_says_that_the_daemon_would_not_start(here: Path) -> None:
    assert run(here, "config", "check", "--require-sandbox").returncode == 0
    done = run(here, "config", "check", "--require-sandbox", "--bubblewrap", str(here / "none"))
    assert done.returncode == 1
    assert "require_sandbox is set" in done.stderr
