"""SIGHUP to a daemon without a terminal: the code that is installed now takes over, commands go on.

The service runs from a copy of its packages, in an environment of its own, so that the copy can be changed as
an installation does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import execprotocol
import execserver
from tests.support.background import IN_BACKGROUND, Left
from tests.support.wire import PATIENCE, Client, ConnectionEndedError, connect_unix, decode


class Installation:
    """A copy of the packages with an interpreter that finds it, and a service that runs from it."""

    def __init__(self, folder: Path, *, is_earlier: bool) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self._python = folder / "venv/bin/python"
        packages = next((folder / "venv/lib").glob("python*/site-packages"))
        self.package = packages / "execserver"
        ignored = shutil.ignore_patterns("__pycache__")
        for package in (execserver, execprotocol):
            shutil.copytree(package.__path__[0], packages / package.__name__, ignore=ignored)
        # Behind the copy: everything else that this environment has.
        (packages / "others.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
        if is_earlier:
            self.change_layout(2, 1)
        self._clients = contextlib.ExitStack()
        self.config = folder / "config.toml"
        self.config.touch(mode=0o600)
        self._socket = folder / "door"
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [self._python, "-I", "-m", "execserver", "serve", "--listen", f"unix://{self._socket}"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "XDG_STATE_HOME": str(folder / "state"),
                "EXECSERVER_CONFIG": str(self.config),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            cwd=folder,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), self.log

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def connect(self, resume: str | None = None) -> Client:
        client = connect_unix(self._socket)
        self._clients.callback(client.close)
        return client.handshake(resume, extensions=True)

    def replace(self, module: str, old: str, new: str) -> None:
        """Change a line of the installed code."""
        path = self.package / module
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def change_layout(self, old: int, new: int) -> None:
        """Let the installed code be of the version with another layout of the index: 1 had no times."""
        arena, code = "spool/arena.py", {1: "ordinal", 2: "ordinal or WITH_TIMES"}
        versions = {1: "1\nEARLIER_LAYOUTS: tuple[int, ...] = ()\n", 2: "2\nEARLIER_LAYOUTS = (1,)\n"}
        self.replace(arena, f"LAYOUT_VERSION = {versions[old]}", f"LAYOUT_VERSION = {versions[new]}")
        self.replace(arena, f"[base + ORDINAL] = {code[old]}\n", f"[base + ORDINAL] = {code[new]}\n")

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def wait_for_log(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            threading.Event().wait(0.02)

    def end(self) -> None:
        self._clients.close()
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self.process.communicate()
        self._log.close()


@contextlib.contextmanager
def installation(*, is_earlier: bool = False) -> Iterator[Installation]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exec-", dir="/tmp")))
        made = Installation(folder, is_earlier=is_earlier)
        stack.callback(made.end)
        yield made


@pytest.fixture
def installed() -> Iterator[Installation]:
    with installation() as made:
        yield made


@pytest.fixture
def earlier() -> Iterator[Installation]:
    """A service of the version before times were kept."""
    with installation(is_earlier=True) as made:
        yield made


def version(client: Client) -> str:
    return str(client.call("environment/info")["executorVersion"])


def test_new_code_takes_over_while_commands_run(installed: Installation) -> None:
    client = installed.connect()
    identity = client.call("environment/info")["providerId"]
    cat = client.start("/bin/cat", pipeStdin=True)
    assert cat.write("before\n", "1") == "accepted"
    cat.wait_output(b"before\n")
    terminal = client.start("/bin/sh", tty=True)
    terminal.write("name=kept\n", "1")

    installed.replace("__init__.py", f'"{execserver.__version__}"', '"99.0"')
    installed.reload()
    client.wait_end()

    client = installed.connect(client.session_id)
    assert version(client) == "99.0"
    assert client.call("environment/info")["providerId"] == identity
    cat = client.process(cat.id)
    assert cat.write("before\n", "1") == "accepted"  # known: it is not written twice
    assert cat.write("after\n", "2") == "accepted"
    cat.wait_output(b"after\n")
    assert b"".join(decode(chunk["chunk"]) for chunk in cat.read()["chunks"]) == b"before\nafter\n"
    terminal = client.process(terminal.id)
    terminal.write("echo $name; exit 5\n", "2")
    assert terminal.wait_closed().exit_code == 5
    assert b"kept" in b"".join(decode(chunk["chunk"]) for chunk in terminal.read()["chunks"])


def test_every_request_that_was_read_is_answered(installed: Installation) -> None:
    client = installed.connect()
    process = client.start("/bin/sleep", "600")
    poll = client.request("process/read", {"processId": process.id, "afterSeq": 0, "waitMs": 600_000})
    # Behind it, so it was read when this is answered.
    client.call("environment/info")

    installed.reload()

    assert client.result(poll)["chunks"] == []
    client.wait_end()
    assert not installed.connect(client.session_id).process(process.id).read()["exited"]


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3, 0.6])
def test_a_session_that_is_ended_over_an_upgrade_leaves_nothing(
    installed: Installation, pause: float
) -> None:
    left = Left()
    client = installed.connect()
    client.shell(IN_BACKGROUND.format(sleep=left.sleep)).wait_closed()
    client.start(*left.argv, tty=True)
    left.wait_running(2)
    try:
        installed.reload()
        threading.Event().wait(pause)
        for _ in range(3):  # what was not read is asked for again
            with contextlib.suppress(ConnectionEndedError, OSError):
                client.call("session/end")
                break
            client = installed.connect(client.session_id)
        assert not left.pids
    finally:
        left.kill()


@pytest.mark.parametrize("fault", ["broken code", "unusable settings", "another supervisor", "another index"])
def test_what_would_not_start_is_not_made_room_for(installed: Installation, fault: str) -> None:
    client = installed.connect()
    if fault == "broken code":
        installed.replace("server.py", "from __future__ import annotations\n", "this is no Python\n")
        reason = "SyntaxError"
    elif fault == "unusable settings":
        installed.config.write_text("session_ttl = -1\n")
        reason = "session_ttl"
    else:
        module = {"another supervisor": "supervisor/packets.py", "another index": "spool/arena.py"}[fault]
        installed.replace(module, "VERSION = ", "VERSION = 100 + ")
        reason = "stop the service and start it again"
    installed.reload()
    installed.wait_for_log("reload failed, nothing has changed")
    assert reason in installed.log
    assert version(client) == execserver.__version__
    assert client.shell("echo still here").wait_closed().output == b"still here\n"


def test_settings_and_limits_of_now_hold_after_an_upgrade(installed: Installation) -> None:
    client = installed.connect()
    process = client.shell("read line; head -c 300000 /dev/zero", pipeStdin=True)
    installed.config.write_text("retained_output_bytes = 100000\n")
    installed.reload()
    client.wait_end()
    client = installed.connect(client.session_id)
    process = client.process(process.id)
    process.write("\n", "1")
    process.wait_closed()
    page = process.read()
    kept = sum(len(decode(chunk["chunk"])) for chunk in page["chunks"])
    assert kept <= 100_000
    assert page["lostBytes"] == 300_000 - kept


def test_five_upgrades_in_a_row_lose_nothing(installed: Installation) -> None:
    client = installed.connect()
    process = client.shell("seq 1 200000 | while read n; do echo $n; done; exit 7")
    for _ in range(5):
        installed.reload()
        client.wait_end()
        client = installed.connect(client.session_id)
    process = client.process(process.id)
    after, output = 0, b""
    while True:
        page = process.read(after, wait_ms=10_000)
        output += b"".join(decode(chunk["chunk"]) for chunk in page["chunks"])
        after = page["nextSeq"] - 1
        if page["closed"]:
            break
    assert page["exitCode"] == 7
    assert output.split() == [b"%d" % number for number in range(1, 200_001)]


def test_a_version_with_times_takes_over_output_without_and_not_the_reverse(earlier: Installation) -> None:
    client = earlier.connect()
    cat = client.start("/bin/cat", pipeStdin=True)
    lines = [b"%d\n" % number for number in range(100)]
    for line in lines[:70]:  # more than a block of the index
        cat.write(line, line.decode())
        cat.wait_output(line)
    before = cat.read()["chunks"]
    assert len(before) == 70
    assert not any("at" in chunk for chunk in before)

    earlier.change_layout(1, 2)
    earlier.reload()
    client.wait_end()
    client = earlier.connect(client.session_id)

    cat = client.process(cat.id)
    for line in lines[70:]:
        cat.write(line, line.decode())
    cat.wait_output(lines[-1])
    after = cat.read()["chunks"]
    assert after[:70] == before
    assert b"".join(decode(chunk["chunk"]) for chunk in after) == b"".join(lines)
    assert not any("at" in chunk for chunk in after)
    process = client.shell("echo new", processId="new").wait_closed()
    assert all(chunk["at"] for chunk in process.read()["chunks"])

    earlier.change_layout(2, 1)
    earlier.reload()
    earlier.wait_for_log("reload failed, nothing has changed")
    assert "stop the service and start it again" in earlier.log
    assert process.read()["chunks"]
