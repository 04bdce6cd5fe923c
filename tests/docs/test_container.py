"""The Dockerfile of the manual, step by step, without a container: what it copies, installs and runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.docs.pages import ROOT
from tests.support.wire import Server

FILE = ROOT / "examples" / "container" / "Dockerfile"
HEALTH = ROOT / "examples" / "container" / "healthcheck.py"
SOCKET = "/run/execserver/execserver.sock"

KNOWN = {
    "FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "ENV", "HEALTHCHECK", "STOPSIGNAL", "CMD",
}  # fmt: skip

PROCESS_1 = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.geteuid() != 0:
    PROCESS_1 += ["--user", "--map-root-user"]


def instructions() -> list[tuple[str, str]]:
    """The instructions in order, continued lines joined and remarks left out."""
    lines = [line for line in FILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined)]


def all_of(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def only(name: str) -> str:
    (rest,) = all_of(name)
    return rest


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="image-"))
    yield made
    shutil.rmtree(made)


def test_it_is_a_dockerfile_whose_programs_are_not_run_as_root() -> None:
    words = [word for word, _ in instructions()]
    assert words[0] == "FROM"
    assert set(words) == KNOWN
    assert only("USER") == "agent"
    assert words.index("USER") < words.index("CMD")
    for command in all_of("RUN"):
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0, command
    assert f"--directory --owner agent --group agent --mode 0700 {os.path.dirname(SOCKET)}" in " ".join(
        all_of("RUN")
    )


@pytest.mark.manual
@pytest.mark.timeout(180)
def test_the_files_that_it_copies_are_enough_to_install_from(folder: Path) -> None:
    image = folder / "image"
    for copied in all_of("COPY"):
        *sources, target = shlex.split(copied)
        for source in sources:
            place = image / target.lstrip("/") / ("" if target.endswith("/") else ".")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                file = place / source if target.endswith("/") else image / target.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, file)
    install = next(part for part in re.split(r"\s*&&\s*", " ".join(all_of("RUN"))) if "pip install" in part)
    arguments = shlex.split(install.replace(" /src", f" {image}/src"))
    arguments = arguments[arguments.index("pip") :]
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "--no-deps", "--quiet", "--target", str(folder / "installed")],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    version = subprocess.run(
        [sys.executable, "-m", "execserver", "--version"],
        env={**os.environ, "PYTHONPATH": str(folder / "installed")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout.startswith("execserver ")


def command(folder: Path) -> tuple[list[str], dict[str, str]]:
    """`CMD` and `ENV` as they are, with the socket below the folder."""
    variables = dict(part.split("=", 1) for part in shlex.split(only("ENV")))
    environment = {
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **variables,
    }
    environment["EXECSERVER_LISTEN"] = environment["EXECSERVER_LISTEN"].replace(
        "/run/execserver", str(folder)
    )
    return json.loads(only("CMD")), environment


def beside(process: psutil.Process) -> list[str]:
    """A command that runs another one in the container, as `docker exec` does."""
    users = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(process.pid), *users, "--pid", "--mount"]


def check_health(folder: Path, inside: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    _, _, check = only("HEALTHCHECK").partition("CMD ")
    program, script, path = json.loads(check)
    assert (program, Path(script).name, path) == ("python", HEALTH.name, SOCKET)
    return subprocess.run(
        [*inside, sys.executable, str(HEALTH), str(folder / "execserver.sock")],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_its_command_serves_as_process_1_reaps_orphans_and_ends_at_the_stop_signal(folder: Path) -> None:
    argv, environment = command(folder)
    outer = subprocess.Popen(
        [*PROCESS_1, *argv], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert outer.stdout is not None
        assert outer.stdout.readline() == environment["EXECSERVER_LISTEN"] + "\n"
        (first,) = psutil.Process(outer.pid).children()
        done = check_health(folder, beside(first))
        assert (done.returncode, done.stderr) == (0, "")
        assert leave_an_orphan(folder / "execserver.sock", beside(first)) == "1"
        first.send_signal(getattr(signal, only("STOPSIGNAL")))
        assert outer.wait(20) == 0
    finally:
        outer.kill()
        outer.wait()
        if outer.stdout is not None:
            outer.stdout.close()
    assert check_health(folder).returncode != 0


def leave_an_orphan(path: Path, inside: Sequence[str]) -> str:
    """The parent of a process whose parent has ended, once it has a new one; it then ends itself."""
    parent = 'cut -d" " -f4 /proc/$$/stat'
    script = f'sh -c \'while [ "$({parent})" = "$1" ]; do :; done; {parent}\' x $$ &'
    host = ROOT / "examples" / "agent_host.py"
    done = subprocess.run(
        [*inside, sys.executable, str(host), str(path), "sh", "-c", script],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_health_check_tells_a_daemon_that_serves(folder: Path, environment: dict[str, str]) -> None:
    assert check_health(folder).returncode != 0
    with Server(f"unix://{folder}/execserver.sock", env=environment, cwd=folder):
        assert check_health(folder).returncode == 0


def test_the_health_check_fails_on_another_answer(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "execserver.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with contextlib.closing(connection):
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\nstopping")

        thread = threading.Thread(target=answer)
        thread.start()
        done = check_health(folder)
        thread.join(20)
    assert (done.returncode, done.stderr) == (1, "not ready: [b'503']\n")
