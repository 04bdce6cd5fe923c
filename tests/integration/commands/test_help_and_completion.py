from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from execclient.commands import completion
from execserver.__main__ import CLIENT_COMMANDS, COMPLETION_VARIABLE, RELAY_COMMAND
from tests.integration.commands.conftest import EXECSERVER, CommandLine

COMMANDS = {"serve", "config", "doctor", *RELAY_COMMAND, *CLIENT_COMMANDS}


def complete(execserver: CommandLine, *words: str) -> list[str]:
    """What bash is offered for the last of the words."""
    done = subprocess.run(
        EXECSERVER,
        env={
            **execserver.environment,
            COMPLETION_VARIABLE: "complete_bash",
            "COMP_WORDS": " ".join(["execserver", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_help_lists_all_commands(execserver: CommandLine) -> None:
    shown = execserver("--help").stdout.decode()

    listed = set(re.findall(r"^    (\w+)\s", shown, re.MULTILINE))
    assert listed >= COMMANDS - {"completion"}
    assert "completion" in shown


@pytest.mark.parametrize("command", sorted(CLIENT_COMMANDS))
def test_each_command_has_help(execserver: CommandLine, command: str) -> None:
    done = execserver(command, "--help")

    assert done.returncode == 0
    assert f"execserver {command}" in done.stdout.decode()


def test_commands_of_both_programs_are_completed(execserver: CommandLine) -> None:
    assert set(complete(execserver, "")) == COMMANDS
    assert complete(execserver, "at") == ["attach"]


def test_options_and_signals_are_completed(execserver: CommandLine) -> None:
    assert complete(execserver, "run", "--det") == ["--detach"]
    assert complete(execserver, "kill", "-s", "SIGUS") == ["SIGUSR1", "SIGUSR2"]
    assert complete(execserver, "kill", "-s", "USR") == ["USR1", "USR2"]


def test_process_ids_are_completed_but_for_those_that_a_shell_would_obey(execserver: CommandLine) -> None:
    import asyncio

    from execclient import connect

    async def start() -> None:
        async with connect(execserver.url, keep=True) as executor:
            for name in ("pone", "ptwo", "p$(touch broken)"):
                await executor.start(["sleep", "50"], id=name)

    asyncio.run(start())
    assert complete(execserver, "attach", "p") == ["pone", "ptwo"]
    assert complete(execserver, "kill", "--url", execserver.url, "pon") == ["pone"]


def test_without_a_daemon_nothing_is_offered_and_nothing_is_said(execserver: CommandLine) -> None:
    assert complete(execserver, "attach", "--url", "unix:///nonexistent/socket", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(execserver: CommandLine, shell: str) -> None:
    done = execserver("completion", shell)

    assert done.returncode == 0
    assert completion.VARIABLE.encode() in done.stdout
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=done.stdout, check=True, timeout=20)


def test_bash_completes_with_the_script(execserver: CommandLine) -> None:
    folder = os.path.dirname(sys.executable)
    script = (
        "source <(execserver completion bash); COMP_WORDS=(execserver lo); COMP_CWORD=1; "
        '_execserver_completion execserver; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**execserver.environment, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    assert done.stdout == "logs\n"


def test_the_shells_and_the_console_script_mean_the_same_variable() -> None:
    assert completion.VARIABLE == COMPLETION_VARIABLE


def test_serving_loads_nothing_of_the_command_line_of_the_client() -> None:
    code = "import sys, execserver.__main__, execserver.server; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert not [name for name in loaded if name.partition(".")[0] in {"typer", "execclient", "shellingham"}]
