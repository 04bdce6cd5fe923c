"""Settings from files and variables, seen at real services. `EXECSERVER_CONFIG` and XDG_CONFIG_HOME always
lead into the test's folder, so that files of the machine are never read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.service import eventually
from tests.sandbox.profiles import WORKSPACE, context
from tests.support.servers import server_of
from tests.support.wire import Server, UpgradeRefusedError, connect_ws, path_uri

EXECSERVER = [sys.executable, "-I", "-m", "execserver"]
TIMEOUT = 30

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a Unix socket's path has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="set-"))
    (path / "execserver").mkdir()
    (path / "cwd").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    """Run `execserver ARGUMENTS` in an empty folder: `run("serve", env={"EXECSERVER_X": "1"})`."""
    processes = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            **(env or {}),
        }
        process = subprocess.Popen(
            [*EXECSERVER, *arguments],
            env=environment,
            cwd=folder / "cwd",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT)
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def write_config(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "execserver" / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def stop(process: subprocess.Popen[str]) -> str:
    """End a service that must end well; returns its stderr."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    return errors


def refusal(process: subprocess.Popen[str]) -> str:
    """The stderr of a service that must refuse to start with status 1 and nothing on stdout."""
    out, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (1, ""), errors
    return errors


def test_a_service_listens_where_the_file_says(run: Run, folder: Path) -> None:
    write_config(folder, f'listen = ["unix://{folder}/a", "ws://127.0.0.1:0"]\n')
    service = run("serve")
    assert first_line(service) == f"unix://{folder}/a"
    assert first_line(service).startswith("ws://127.0.0.1:")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{folder}/a")
    stop(service)


def test_flag_beats_variable_beats_file_beats_default(run: Run, folder: Path) -> None:
    write_config(folder, f'listen = ["unix://{folder}/file"]\n')
    variable = {"EXECSERVER_LISTEN": f"unix://{folder}/variable"}
    flag = ["--listen", f"unix://{folder}/flag"]
    services = [
        run("serve", *flag, env=variable),
        run("serve", env=variable),
        run("serve"),
        run("serve", env={"EXECSERVER_CONFIG": ""}),
    ]
    assert [first_line(service) for service in services] == [
        f"unix://{folder}/flag",
        f"unix://{folder}/variable",
        f"unix://{folder}/file",
        f"unix://{folder}/run/execserver/execserver.sock",
    ]
    for service in services:
        stop(service)


def test_stdio_from_the_file_is_served(run: Run, folder: Path) -> None:
    write_config(folder, 'listen = ["stdio"]\n')
    service = run("serve")
    request = {"id": 1, "method": "initialize", "params": {"clientName": "test"}}
    assert service.stdin is not None
    service.stdin.write(json.dumps(request) + "\n")
    service.stdin.flush()
    assert json.loads(first_line(service))["id"] == 1
    service.stdin.close()
    assert service.wait(TIMEOUT) == 0


def test_the_server_goes_by_file_and_variables(run: Run, folder: Path) -> None:
    write_config(folder, f'listen = ["unix://{folder}/a"]\nlog_format = "console"\nlog_level = "error"\n')
    loud = run("serve", env={"EXECSERVER_LOG_LEVEL": "info"})
    first_line(loud)
    errors = stop(loud)
    assert "ready" in errors
    assert not errors.startswith("{")
    quiet = run("serve")
    first_line(quiet)
    assert stop(quiet) == ""


def test_a_token_file_is_looked_for_beside_the_configuration_file(run: Run, folder: Path) -> None:
    (folder / "execserver" / "token").write_text("sesame\n")
    write_config(
        folder, 'listen = ["ws://127.0.0.1:0"]\nws_auth = "capability-token"\nws_token_file = "token"\n'
    )
    service = run("serve")
    url = first_line(service)
    with pytest.raises(UpgradeRefusedError):
        connect_ws(url)
    connect_ws(url, {"Authorization": "Bearer sesame"}).close()
    stop(service)


@pytest.mark.parametrize("listen", [True, False], ids=["with a flag", "without a flag"])
@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("session_ttl = 3\nsesion_ttl = 4\n", ":2: ", "unknown key 'sesion_ttl'; did you mean session_ttl?"),
        ('\nsession_ttl = "3"\n', ":2: ", "session_ttl: must be a number of seconds"),
        ("listen = [\n", ":2:1: ", "Invalid value"),
        ('# x\nlisten = "stdio"\n', ":2: ", "listen: must be a list of strings"),
        ('# x\nlisten = ["wss://x"]\n', ":2: ", "listen: unsupported --listen value 'wss://x'"),
    ],
)
def test_a_file_that_is_no_good_is_refused_by_line_once(
    run: Run, folder: Path, text: str, place: str, reason: str, listen: bool
) -> None:
    path = write_config(folder, text)
    flags = ["--listen", f"unix://{folder}/a"] if listen else []
    errors = refusal(run("serve", *flags))
    assert errors.startswith(f"execserver: {path}{place}{reason}")
    assert errors.count(str(path)) == 1
    assert errors.count("\n") == 1
    assert not (folder / "a").exists()
    assert refusal(run("config", "show", *flags)) == errors


def test_a_file_that_others_can_write_is_refused(run: Run, folder: Path) -> None:
    path = write_config(folder, 'listen = ["stdio"]\n', 0o666)
    errors = refusal(run("serve"))
    assert f"configuration file {path} decides who may connect: file {path} of " in errors
    assert "can be written by others (mode 0666)" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_file_that_is_asked_for_must_exist(run: Run, folder: Path, how: str) -> None:
    write_config(folder, 'listen = ["stdio"]\n')
    service = run("serve", "--config", "x") if how == "flag" else run("serve", env={"EXECSERVER_CONFIG": "x"})
    assert refusal(service) == f"execserver: configuration file {folder}/cwd/x: No such file or directory\n"


def test_a_wrong_variable_is_refused_by_name(run: Run, folder: Path) -> None:
    environment = {"EXECSERVER_CONFIG": "", "EXECSERVER_PROCESS_TTL": "soon"}
    errors = refusal(run("serve", "--listen", f"unix://{folder}/a", env=environment))
    assert errors.startswith("execserver: EXECSERVER_PROCESS_TTL: must be a number of seconds")


def test_an_unknown_variable_is_told_and_does_not_matter(run: Run, folder: Path) -> None:
    write_config(folder, f'listen = ["unix://{folder}/a"]\n')
    service = run("serve", env={"EXECSERVER_PROCES_TTL": "3"})
    assert first_line(service) == f"unix://{folder}/a"
    assert "EXECSERVER_PROCES_TTL means nothing; did you mean EXECSERVER_PROCESS_TTL?" in stop(service)


def test_show_needs_no_working_directory(folder: Path) -> None:
    write_config(folder, "session_ttl = 3\n")
    command = 'rmdir "$PWD" && exec "$@"'
    show = subprocess.run(
        ["sh", "-c", command, "sh", *EXECSERVER, "config", "show"],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        cwd=folder / "cwd",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (show.returncode, show.stderr) == (0, "")
    assert "session_ttl = 3.0" in show.stdout


def test_show_says_what_a_service_would_go_by(run: Run, folder: Path) -> None:
    path = write_config(folder, f'\nlisten = ["unix://{folder}/a"]\n')
    out, errors = run("config", "show", "--session-ttl", "5").communicate(timeout=TIMEOUT)
    assert errors == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f'listen = ["unix://{folder}/a"] # file {path}:2' in lines
    assert "session_ttl = 5.0 # flag --session-ttl" in lines
    assert "process_ttl = 80.0 # default" in lines


# -- the file's place as the mount point of a sandbox


@pytest.mark.parametrize("first", ["runs", "was killed"])
def test_a_daemon_starts_while_a_sandbox_keeps_the_place_of_its_missing_file(
    folder: Path, first: str
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    place = folder / "execserver/config.toml"
    servers = [Server(f"unix://{folder}/first", env=environment, cwd=folder)]
    try:
        with servers[0].connect() as client:
            sandbox = context(WORKSPACE, cwd=folder, roots=[folder])
            client.shell("echo on; cat", cwd=path_uri(folder), sandbox=sandbox, pipeStdin=True).wait_output(
                b"on\n"
            )
            assert place.is_dir()
            if first == "was killed":
                pids = [servers[0].pid, server_of(servers[0].pid, TIMEOUT)]
                for number in (signal.SIGSTOP, signal.SIGKILL):
                    for pid in pids:
                        os.kill(pid, number)
                servers[0].process.wait(TIMEOUT)

            servers.append(Server(f"unix://{folder}/second", env=environment, cwd=folder))

            if first == "was killed":
                assert eventually(lambda: not place.exists(), TIMEOUT)
            assert place.exists() == (first == "runs")
    finally:
        for server in reversed(servers):
            server.stop()
    assert eventually(lambda: not place.exists(), TIMEOUT)
