"""The Containerfile of the manual without an engine: what it says, and process 1 on the root of this machine.

`make container-check` builds and runs the image itself (`tests/container/image_check.py`).
"""

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
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container import checks
from tests.container.container import Container
from tests.docs.pages import ROOT
from tests.sandbox_user import remove_tree, user_named
from tests.support.wire import Server

FILE = ROOT / "examples" / "container" / "Containerfile"
HEALTH = ROOT / "examples" / "container" / "healthcheck.py"
SOCKET = "/run/execserver/execserver.sock"

KNOWN = {
    "FROM", "LABEL", "ARG", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "ENV", "HEALTHCHECK", "STOPSIGNAL",
    "ENTRYPOINT", "CMD",
}  # fmt: skip

USER = user_named("user")


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


def test_its_programs_are_not_run_as_root() -> None:
    words = [word for word, _ in instructions()]
    assert words[0] == "FROM"
    assert set(words) == KNOWN
    assert only("USER") == "10001:10001"
    assert words.index("USER") < words.index("ENTRYPOINT")
    steps = " ".join(all_of("RUN"))
    assert "useradd --uid 10001 " in steps
    for command in all_of("RUN"):
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0, command
    made = re.findall(r"--mode 0700 (.+)$", steps)[0].split()
    assert set(json.loads(only("VOLUME"))) == set(made)
    assert os.path.dirname(SOCKET) in made


def test_it_copies_what_a_checkout_with_wheels_has() -> None:
    sources = [source for copied in all_of("COPY") for source in shlex.split(copied)[:-1]]
    for source in sources:
        assert (ROOT / source).exists() or source == "dist/*.whl"
    assert "DIST ?= dist\n" in (ROOT / "Makefile").read_text()
    assert "dist" not in (ROOT / ".dockerignore").read_text().split()


def test_its_licence_is_that_of_the_project() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', only("LABEL")))
    assert labels["title"] == "execserver"
    assert labels["licenses"] == "Apache-2.0"


def check_health(folder: Path, *page: str) -> subprocess.CompletedProcess[str]:
    _, _, check = only("HEALTHCHECK").partition("CMD ")
    program, script, path = json.loads(check)
    assert (program, Path(script).name, path) == ("python3", HEALTH.name, SOCKET)
    return subprocess.run(
        [sys.executable, str(HEALTH), str(folder / "execserver.sock"), *page],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a container of namespaces")
def test_its_command_serves_as_process_1_reaps_confines_and_ends_at_the_stop_signal() -> None:
    """On the root of this machine, read-only, as an ordinary user; fails where namespaces are forbidden."""
    assert USER is not None
    volume = Path(tempfile.mkdtemp(prefix="volume-", dir="/var/tmp"))
    (volume / "execserver").mkdir(mode=0o700)
    (volume / "work").mkdir(mode=0o700)
    USER.give(volume)
    variables = dict(part.split("=", 1) for part in shlex.split(only("ENV")))
    variables |= {"XDG_STATE_HOME": "/run", "HOME": "/run/work"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    inside = ["env", "-i", f"PATH={path}", *(f"{name}={value}" for name, value in variables.items())]
    program = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    again = ["setpriv", f"--reuid={USER.uid}", f"--regid={USER.gid}", "--clear-groups", *inside]
    try:
        with Container(
            Path("/"),
            [*USER.prefix, *inside, *program],
            [*again, "--chdir=/run/work"],
            {"/run": volume},
            read_only=True,
        ) as container:
            assert container.said == variables["EXECSERVER_LISTEN"]
            checks.check_life(container, "execserver")
            assert checks.check_doctor(container, "execserver")["sandbox"] == "ok"
            checks.check_confined(container, sys.executable, "/run/work")
            assert signal.Signals[only("STOPSIGNAL")] is signal.SIGTERM
            checks.check_stop(container, "execserver")
    finally:
        remove_tree(volume)


def test_the_health_check_tells_a_daemon_that_serves(folder: Path, environment: dict[str, str]) -> None:
    assert check_health(folder).returncode != 0
    with Server(f"unix://{folder}/execserver.sock", env=environment, cwd=folder):
        for page in ([], ["/livez"]):
            assert check_health(folder, *page).returncode == 0
        assert check_health(folder, "/no-such-page").returncode == 1


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
