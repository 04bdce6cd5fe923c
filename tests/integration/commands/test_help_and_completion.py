from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from execclient.commands.app import COMMANDS as CLIENT_COMMANDS
from execserver.__main__ import DAEMON_COMMANDS
from tests.integration.commands.conftest import EXECSERVER, CommandLine, until

COMMANDS = {*DAEMON_COMMANDS, *CLIENT_COMMANDS, "help", "version"}


def complete(execserver: CommandLine, *words: str) -> list[str]:
    """The words that bash is offered for the last of the words."""
    line = " ".join(["execserver", *words])
    answer = execserver.folder / "answer"
    done = subprocess.run(
        EXECSERVER,
        env={
            **execserver.environment,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        },
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stderr == ""
    return answer.read_text().split()


def test_help_lists_all_commands(execserver: CommandLine) -> None:
    shown = execserver("--help").stdout.decode()

    assert set(re.findall(r"^    (\w+)\s", shown, re.MULTILINE)) >= COMMANDS


@pytest.mark.parametrize("command", sorted(CLIENT_COMMANDS))
def test_each_command_has_help(execserver: CommandLine, command: str) -> None:
    done = execserver(command, "--help")

    assert done.returncode == 0
    assert f"execserver {command}" in done.stdout.decode()


@pytest.mark.parametrize(
    ("words", "same_as"),
    [
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "policy", "check"], ["policy", "check", "--help"]),
        (["help", "config"], ["config", "--help"]),
        (["help", "help"], ["--help"]),
        (["version"], ["--version"]),
        (["-V"], ["--version"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_help_and_version_are_commands_too(
    execserver: CommandLine, words: list[str], same_as: list[str]
) -> None:
    done = execserver(*words)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == execserver(*same_as).stdout != b""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sp"], "execserver: error: no such command: sp; did you mean ps?"),
        (["atach", "x"], "execserver: error: no such command: atach; did you mean attach?"),
        (["conf", "show"], "execserver: error: no such command: conf; did you mean config?"),
        (["help", "rnu"], "execserver: error: no such command: rnu; did you mean run?"),
        (["hlep"], "execserver: error: no such command: hlep; did you mean help?"),
        (["exec"], "execserver: error: no such command: exec; did you mean run?"),
        (["ls"], "execserver: error: no such command: ls; did you mean ps?"),
        (["list"], "execserver: error: no such command: list; did you mean ps?"),
        (["grep"], "execserver: error: no such command: grep; did you mean search?"),
        (["rm", "x"], "execserver: error: no such command: rm; did you mean kill?"),
        (["stop", "x"], "execserver: error: no such command: stop; did you mean kill?"),
        (["--url", "stdio:"], "execserver: error: no command is given"),
        (["--url"], "execserver: error: no command is given"),
        (["--url=x", "doctor"], "execserver doctor: error: no such option: --url"),
        (["logs", "-z", "x"], "execserver logs: error: no such option: -z\n"),
        (["cp", "-l", "a", ":b"], "execserver cp: error: no such option: -l\n"),
        (["--verison"], "execserver: error: no such option: --verison; did you mean --version?"),
        (["logs", "--folow", "x"], "execserver logs: error: no such option: --folow; did you mean --follow?"),
        (["ps", "x"], "execserver ps: error: unexpected argument: x"),
        (["config", "show", "--jsn"], "execserver config show: error: no such option: --jsn; did you mean"),
        (
            ["doctor", "--listn=x"],
            "execserver doctor: error: no such option: --listn; did you mean --listen?",
        ),
        (
            ["serve", "--listn", "x"],
            "execserver serve: error: no such option: --listn; did you mean --listen?",
        ),
        (["relay", "serv"], "execserver relay: error: argument COMMAND: invalid choice: 'serv'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_misspelled_name_is_an_error_that_names_the_nearest(
    execserver: CommandLine, words: list[str], message: str
) -> None:
    done = execserver(*words)

    assert (done.returncode, done.stdout) == (2, b"")
    assert message in done.stderr.decode()


def test_what_follows_two_dashes_is_never_an_option(execserver: CommandLine) -> None:
    """A script writes them before names that it does not know."""
    (execserver.folder / "-source").write_text("content")

    done = execserver("cp", "-q", "--", "-source", f":{execserver.folder}/-copy")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (execserver.folder / "-copy").read_text() == "content"

    for name in ("--url=unix:///nonexistent/socket", "-9", "-s", "--signal=HUP"):
        for options in ((), ("-9",)):
            done = execserver("kill", *options, "--", name)
            assert f"execserver: no process {name}" in done.stderr.decode()
    done = execserver("kill", "one", "-9", "--", "another")
    assert (done.returncode, b"options stand before" in done.stderr or b"unexpected" in done.stderr) == (
        2,
        True,
    )


def test_an_error_about_an_argument_does_not_control_the_terminal(execserver: CommandLine) -> None:
    for words in (
        ["p\x1b]0;title\x07s"],
        ["cp", "--\x1b[31m", "a", ":b"],
        ["run", "--timeout", "\x9b1m", "true"],
    ):
        done = execserver(*words)
        assert done.returncode == 2
        assert not set(done.stderr.decode()) & set("\x1b\x07\x9b")


def test_commands_of_both_programs_are_completed(execserver: CommandLine) -> None:
    assert set(complete(execserver, "")) == COMMANDS
    assert complete(execserver, "at") == ["attach"]


def test_options_and_signals_are_completed(execserver: CommandLine) -> None:
    assert complete(execserver, "run", "--det") == ["--detach"]
    assert complete(execserver, "kill", "-s", "SIGUS") == ["SIGUSR1", "SIGUSR2"]
    assert complete(execserver, "kill", "-s", "USR") == ["USR1", "USR2"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["serve", "--log-l"], {"--log-level"}),
        (["doctor", "--js"], {"--json"}),
        (["uninstall", "--dry"], {"--dry-run"}),
        (["config", ""], {"show", "check"}),
        (["config", "show", "--js"], {"--json"}),
        (["relay", ""], {"serve", "token", "environments", "key"}),
        (["relay", "serve", "--li"], {"--listen"}),
        (["relay", "token", "cr"], {"create"}),
        (["ser"], {"serve"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_daemon_s_commands_are_completed_with_their_options(
    execserver: CommandLine, words: list[str], offered: set[str]
) -> None:
    assert set(complete(execserver, *words)) == offered


def test_options_of_the_daemon_may_stand_before_the_command(execserver: CommandLine) -> None:
    elsewhere = CommandLine("unix:///nowhere", execserver.folder)

    done = elsewhere("--url", execserver.url, "run", "echo", "--url", "x")
    assert (done.returncode, done.stdout) == (0, b"--url x\n"), done.stderr
    assert elsewhere(f"--url={execserver.url}", "ps", "-q").returncode == 0
    done = elsewhere("--token-file", "none", f"--url={execserver.url}", "ps")
    assert (done.returncode, b"token_file= does not go with" in done.stderr) == (125, True)


def test_process_ids_are_completed_but_for_those_that_a_shell_would_obey(execserver: CommandLine) -> None:
    import asyncio

    from execclient import connect

    async def start() -> None:
        async with connect(execserver.url, keep=True) as executor:
            for name in ("pone", "ptwo", "p$(touch broken)"):
                await executor.start(["sleep", "50"], id=name)

    asyncio.run(start())
    # The daemon has a second for its answer.
    until(lambda: complete(execserver, "attach", "p") == ["pone", "ptwo"])
    until(lambda: complete(execserver, "kill", "--url", execserver.url, "pon") == ["pone"])


def test_without_a_daemon_nothing_is_offered_and_nothing_is_said(execserver: CommandLine) -> None:
    assert complete(execserver, "attach", "--url", "unix:///nonexistent/socket", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(execserver: CommandLine, shell: str) -> None:
    done = execserver("completion", shell)

    assert done.returncode == 0
    assert b"_ARGCOMPLETE" in done.stdout
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=done.stdout, check=True, timeout=20)


@pytest.mark.parametrize("words", [["completion", "bash"], ["config", "show"], ["doctor"]])
def test_a_full_disk_for_the_output_is_an_error_in_words(execserver: CommandLine, words: list[str]) -> None:
    with open("/dev/full", "wb") as full, execserver.start(*words, stdout=full) as process:
        _, errors = process.communicate(timeout=20)

    message = b"execserver: output cannot be written: No space left on device\n"
    assert (process.returncode, errors) == (1, message)


def test_bash_completes_with_the_script(execserver: CommandLine) -> None:
    folder = os.path.dirname(sys.executable)
    script = (
        "source <(execserver completion bash); COMP_WORDS=(execserver lo); COMP_CWORD=1; "
        "COMP_LINE='execserver lo'; COMP_POINT=${#COMP_LINE}; "
        '_python_argcomplete execserver; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**execserver.environment, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )

    assert done.stdout.split() == ["logs"]


def test_serving_loads_nothing_of_the_command_line_of_the_client() -> None:
    code = "import sys, execserver.__main__, execserver.server; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert not [
        name for name in loaded if name.partition(".")[0] in {"argparse", "argcomplete", "execclient"}
    ]
