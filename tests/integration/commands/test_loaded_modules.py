"""The modules that the frequent commands load: each costs every call of a script some milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.integration.commands.conftest import CommandLine

NEVER = {
    *("argcomplete", "click", "cryptography", "httpcore", "picows", "pydantic", "pydantic_core", "rich"),
    *("psutil", "structlog", "tree_sitter", "typer", "uvloop"),
    *("execclient.expect", "execclient.govern", "execclient.patch", "execclient.sync", "execclient.tools"),
    *("execclient.connection.relay", "execclient.connection.stdio", "execclient.connection.websocket"),
    "execserver.cli",
}
"""Modules that no command needs that talks to a daemon over a Unix socket."""

FILES = {"execclient.local_files", "execclient.transfer", "random", "tempfile"}
"""Modules that only `cp` needs."""

CONNECTION = {"asyncio", "execclient.session.session", "msgspec", "ssl"}
"""Modules that are needed only with a connection."""


def loaded(execserver: CommandLine, *arguments: str) -> set[str]:
    """The modules that a command loads."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "execserver", *arguments],
        env=execserver.environment,
        cwd=execserver.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--", "true"],
        ["run", "-d", "true"],
        ["ps"],
        ["ps", "--argv", "--json"],
        ["logs", "ID"],
        ["logs", "--tail", "1", "ID"],
        ["kill", "-CONT", "ID"],
        ["attach", "ID"],
    ],
    ids=" ".join,
)
def test_a_frequent_command_loads_no_more_than_it_needs(
    execserver: CommandLine, arguments: list[str]
) -> None:
    command = ("sleep", "1") if "attach" in arguments else ("sleep", "50")
    (process,) = execserver("run", "-d", *command).stdout.decode().split()

    modules = loaded(execserver, *[process if each == "ID" else each for each in arguments])

    assert modules >= CONNECTION
    assert modules & (NEVER | FILES) == set()


def test_a_copy_loads_no_more_than_it_needs(execserver: CommandLine) -> None:
    (execserver.folder / "file").write_bytes(os.urandom(10))

    modules = loaded(execserver, "cp", "file", f":{execserver.folder}/copy")

    assert modules >= CONNECTION
    assert modules & NEVER == set()
    assert (execserver.folder / "copy").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["help"], ["version"], ["run", "--help"], ["ps", "--help"], ["policy", "check", "--help"]],
    ids=" ".join,
)
def test_help_loads_argparse_and_little_else(execserver: CommandLine, arguments: list[str]) -> None:
    modules = loaded(execserver, *arguments)

    assert "execclient.commands.app" in modules
    assert modules & (NEVER | CONNECTION) == set()


def test_errors_and_policies_are_loaded_without_a_connection() -> None:
    code = (
        "import execclient, sys; execclient.NotFound; execclient.RunResult; "
        "assert {'asyncio', 'msgspec'}.isdisjoint(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=40)
