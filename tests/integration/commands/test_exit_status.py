"""The table of exit statuses in `docs/reference/command-line.md`, compared with the code and the commands."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from execclient import results
from execclient.commands import failures, patch, policy
from execprotocol.command_line import OUTPUT_CLOSED
from execserver.__main__ import DAEMON_COMMANDS
from tests.conftest import StartServer
from tests.integration.commands.conftest import EXECSERVER, CommandLine
from tests.support.wire import Server

TABLE = Path(__file__).parents[3] / "docs/reference/command-line.md"

AT_DAEMON = {
    "run": ["true"],
    "attach": ["x"],
    "ps": [],
    "ports": [],
    "forward": ["8080"],
    "logs": ["x"],
    "kill": ["x"],
    "cp": ["here", ":there"],
    "search": ["x"],
    "glob": ["*"],
    "watch": ["."],
    "patch": ["good.patch"],
}
"""Commands that use a daemon, with arguments."""

COMMANDS = [*DAEMON_COMMANDS, *AT_DAEMON, "console", "policy", "completion"]

CONSTANTS = {
    *(failures.INCOMPLETE, failures.NO_DAEMON, results.TIMED_OUT, failures.FAILED),
    *(failures.CANNOT_EXECUTE, failures.NOT_FOUND, OUTPUT_CLOSED),
    *(patch.NOT_APPLIED, patch.UNUSABLE, policy.UNUSABLE, *policy.STATUS.values()),
}

CAUSES: dict[tuple[str, int], list[str]] = {
    **{(command, 2): [command, "--no-such-option"] for command in COMMANDS},
    **{
        (command, 69): [command, "--url", "unix:///nonexistent/s", *AT_DAEMON[command]]
        for command in AT_DAEMON
    },
    **{(command, 125): [command, "--url", "ftp://x", *AT_DAEMON[command]] for command in AT_DAEMON},
    ("drain", 69): ["drain", "--url", "unix:///nonexistent/s"],
    ("mcp", 2): ["mcp", "--no-such-option"],
    ("mcp", 125): ["mcp", "--url", "ftp://x"],
    ("console", 125): ["console", "--url", "ftp://x"],
    ("serve", 0): ["serve", "--help"],
    ("audit", 0): ["audit", "--help"],
    ("audit", 1): ["audit", "verify", "none"],
    ("config", 0): ["config", "check"],
    ("doctor", 0): ["doctor", "--help"],
    ("uninstall", 0): ["uninstall", "--help"],
    ("relay", 0): ["relay", "key", "key"],
    ("run", 0): ["run", "true"],
    ("attach", 0): ["attach", "--since-seq", "0", "ENDED"],
    ("ps", 0): ["ps"],
    ("logs", 0): ["logs", "ENDED"],
    ("kill", 0): ["kill", "RUNNING"],
    ("cp", 0): ["cp", ":/etc/passwd", "copy"],
    ("ports", 0): ["ports"],
    ("search", 0): ["search", "", "FOLDER"],
    ("glob", 0): ["glob", "here", "FOLDER"],
    ("patch", 0): ["patch", "--cwd", ".", "good.patch"],
    ("policy", 0): ["policy", "check", "ls"],
    ("completion", 0): ["completion", "bash"],
    ("serve", 1): ["serve", "--config", "none.toml"],
    ("config", 1): ["config", "show", "--config", "none.toml"],
    ("doctor", 1): ["doctor", "--config", "none.toml"],
    ("uninstall", 1): ["uninstall", "--dry-run", "--config", "none.toml"],
    ("relay", 1): ["relay", "token", "list", "--state-dir", "none"],
    ("kill", 1): ["kill", "nobody"],
    ("cp", 1): ["cp", "-r", "tree", ":TARGET"],
    ("search", 1): ["search", "in no file", "FOLDER"],
    ("glob", 1): ["glob", "no-such-name", "FOLDER"],
    ("patch", 1): ["patch", "bad.patch"],
    ("policy", 1): ["policy", "check", "--rules", "none.rules", "ls"],
    ("policy", 10): ["policy", "check", "--approval", "untrusted", "rm", "x"],
    ("policy", 20): ["policy", "check", "--approval", "never", "rm", "-rf", "/"],
    ("run", 124): ["run", "--timeout", "0.1", "sleep", "50"],
    ("run", 126): ["run", "/etc/passwd"],
    ("run", 127): ["run", "no-such-program"],
    ("run", 141): ["run", "echo"],
    ("ps", 141): ["ps"],
    ("logs", 141): ["logs", "ENDED"],
    ("ports", 141): ["ports"],
    ("search", 141): ["search", "", "FOLDER"],
    ("glob", 141): ["glob", "here", "FOLDER"],
    ("config", 141): ["config", "show"],
    ("doctor", 141): ["doctor"],
    ("relay", 141): ["relay", "key", "another-key"],
    ("console", 141): ["console"],
    ("policy", 141): ["policy", "check", "ls"],
    ("completion", 141): ["completion", "zsh"],
}
"""A command line for each row and command of the table."""

NEED_THE_SDK_OF_MCP = {("mcp", 0), ("mcp", 69)}
"""Their test is in `tests/third_party/mcp/test_exit_status.py`."""

DRAIN = {("drain", 0), ("drain", 1)}
"""Their tests are in `tests/conformance/test_draining.py`: the daemon here must not drain."""


CHANGES = {("console", 0), ("forward", 0), ("watch", 0), ("watch", 1), ("watch", 141)}
"""They need a signal or a change meanwhile: their tests are in `test_forward.py`, `test_watch.py` and
`tests/console/test_server.py`."""


def documented() -> set[tuple[str, int]]:
    """The commands and numbers of the table."""
    table = TABLE.read_text().partition("## Exit status")[2].partition("\n## ")[0]
    found = set()
    for status, commands in re.findall(r"^\| (\d+) \| ([^|]*) \|", table, re.MULTILINE):
        named = [*COMMANDS, "mcp"] if commands == "all" else re.findall(r"`(\w+)`", commands)
        found |= {(name, int(status)) for name in named}
    return found


def test_the_table_has_every_status_that_the_code_has() -> None:
    assert {status for _, status in documented()} == CONSTANTS | {0, 2}
    assert documented() == set(CAUSES) | NEED_THE_SDK_OF_MCP | DRAIN | CHANGES


@pytest.fixture
def server(start_server: StartServer, tmp_path: Path) -> Server:
    """A daemon that keeps what ended until the last program has asked for it."""
    return start_server(f"unix://{tmp_path}/s", "--session-ttl", "30", "--process-ttl", "600")


@pytest.fixture
def prepared(execserver: CommandLine) -> dict[str, str]:
    """Files and processes that the command lines name."""
    folder = execserver.folder
    (folder / "here").touch()
    (folder / "tree").mkdir()
    os.mkfifo(folder / "tree/fifo")
    hunk = "*** Update File: none\n@@\n-a\n+b\n"
    (folder / "good.patch").write_text(f"*** Begin Patch\n*** Add File: {folder}/new\n+a\n*** End Patch\n")
    (folder / "bad.patch").write_text(f"*** Begin Patch\n{hunk}*** End Patch\n")
    (running,) = execserver("run", "-d", "--ttl", "10m", "sleep", "600").stdout.decode().split()
    (ended,) = execserver("run", "-d", "--ttl", "5m", "echo", "x").stdout.decode().split()
    assert execserver("logs", "-f", ended).stdout == b"x\n"
    return {
        "RUNNING": running,
        "ENDED": ended,
        ":TARGET": f":{folder}/target",
        ".": str(folder),
        "FOLDER": str(folder),
    }


def status_of(execserver: CommandLine, arguments: list[str], *, read: bool) -> tuple[int, str]:
    """Exit status and stderr of a command; unless `read`, the reader of its stdout is gone."""
    ours, theirs = os.pipe()
    if not read:
        os.close(ours)
    try:
        done = subprocess.run(
            [*EXECSERVER, *arguments],
            env={
                **execserver.environment,
                "PYTHONUNBUFFERED": "",
                "EXECSERVER_CONFIG": "",
                "HOME": str(execserver.folder),
            },
            cwd=execserver.folder,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=40,
        )
    finally:
        os.close(theirs)
        if read:
            os.close(ours)
    return done.returncode, done.stderr


@pytest.mark.timeout(300)  # a hundred programs: 15 s in CI, two minutes at a load of 15 on two processors
def test_every_status_of_the_table_is_what_the_command_ends_with(
    execserver: CommandLine, prepared: dict[str, str]
) -> None:
    def ended(cause: tuple[tuple[str, int], list[str]]) -> tuple[int, str]:
        (_, status), arguments = cause
        given = [prepared.get(each, each) for each in arguments]
        return status_of(execserver, given, read=status != OUTPUT_CLOSED)

    with ThreadPoolExecutor(4) as pool:
        results = dict(zip(CAUSES, pool.map(ended, CAUSES.items()), strict=True))
    assert {key: result for key, result in results.items() if result[0] != key[1]} == {}


def test_the_status_of_the_process_is_passed_on(execserver: CommandLine) -> None:
    for code, status in (("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137)):
        assert execserver("run", "sh", "-c", code).returncode == status
    (ended,) = execserver("run", "-d", "sh", "-c", "exit 7").stdout.decode().split()
    execserver("logs", "-f", ended)
    assert execserver("attach", ended).returncode == 7
