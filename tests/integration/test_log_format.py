"""Log lines of a daemon: text for people on a terminal, JSON everywhere else, or as the setting says."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.endpoint import socket_folder
from tests.conftest import StartServer
from tests.sandbox_user import remove_tree
from tests.support.wire import PATIENCE

TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[info\] ready listeners=\['unix:///.+'\]")


def logged(stderr: str, *flags: str, command: Sequence[str] = ("serve",), **variables: str) -> str:
    """What a daemon writes to stderr from its start to its end.

    Args:
        stderr: what it is: a `terminal`, a `pipe` or a `file`.
    """
    folder = socket_folder()
    environment = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder), **variables}
    output, written = pty.openpty() if stderr == "terminal" else os.pipe()
    if stderr == "file":
        written = os.open(folder / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "execserver", *command, *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=written, env=environment, cwd=folder,
            text=True,
        )  # fmt: skip
        os.close(written)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.terminate()
        assert process.wait(PATIENCE) == 0
        process.stdout.close()
        return (folder / "log").read_text() if stderr == "file" else everything(output)
    finally:
        os.close(output)
        remove_tree(folder)


def everything(descriptor: int) -> str:
    found = b""
    with contextlib.suppress(OSError):  # a terminal without a writer
        while piece := os.read(descriptor, 65536):
            found += piece
    return found.decode().replace("\r\n", "\n")


def lines(text: str) -> list[str]:
    assert text.endswith("\n")
    return text.splitlines()


def test_on_a_terminal_lines_are_for_people() -> None:
    first, *rest = lines(logged("terminal", NO_COLOR="1"))
    assert TEXT_LINE.fullmatch(first)
    assert not any(line.startswith("{") for line in rest)
    assert all(line.isprintable() for line in (first, *rest))


def test_on_a_terminal_lines_are_colored_unless_asked_not_to() -> None:
    colored = logged("terminal")
    assert "\x1b[" in colored
    assert TEXT_LINE.fullmatch(lines(re.sub(r"\x1b\[[0-9;]*m", "", colored))[0])


@pytest.mark.parametrize("stderr", ["pipe", "file"])
def test_elsewhere_lines_are_json(stderr: str) -> None:
    found = [json.loads(line) for line in lines(logged(stderr))]
    assert [line["event"] for line in found] == ["ready", "stopping"]


def test_either_can_be_asked_for_everywhere() -> None:
    assert json.loads(lines(logged("terminal", "--log-format", "json"))[0])["event"] == "ready"
    assert TEXT_LINE.fullmatch(lines(logged("pipe", EXECSERVER_LOG_FORMAT="text"))[0])  # and no colors


def test_a_relay_does_the_same(tmp_path: Path) -> None:
    command = ("relay", "serve", "--listen", "http://127.0.0.1:0", "--state-dir", str(tmp_path / "state"))
    assert "[info]" in logged("terminal", command=command, NO_COLOR="1")
    assert json.loads(lines(logged("pipe", command=command))[0])["level"]


def test_a_client_that_comes_and_goes_is_a_detail(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(f"unix://{tmp_path}/s", "--log-level", "debug")
    with server.connect() as client:
        client.start("/bin/sleep", "600")
        client.call("session/end")
    deadline = time.monotonic() + PATIENCE
    while "session ended" not in server.stderr:
        assert time.monotonic() < deadline, server.stderr
        time.sleep(0.01)

    found = [(line["event"], line["level"]) for line in map(json.loads, server.stderr.splitlines())]
    assert [each for each in found if each[1] != "debug"] == [("ready", "info")]
    assert {"session opened", "session ends as its client asks", "session ended"} <= {
        name for name, _ in found
    }
