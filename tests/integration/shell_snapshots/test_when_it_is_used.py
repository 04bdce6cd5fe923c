"""When a shell snapshot is restored, made again, or not made at all."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execserver.descendants import children_of
from tests.conftest import StartServer
from tests.integration.shell_snapshots.homes import Home
from tests.support.fs_workers import bubblewrap_works
from tests.support.wire import Client, Json, spawn_stdio, wait_gone

BASH = "/bin/bash"

READ_ONLY = {
    "permissions": {
        "type": "managed",
        "file_system": {
            "type": "restricted",
            "entries": [{"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"}],
        },
        "network": "restricted",
    },
    "windowsSandboxLevel": "disabled",
}

MakeHome = Callable[..., Home]


@pytest.fixture(scope="module")
def client(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with spawn_stdio((), environment, tmp_path_factory.mktemp("cwd")).handshake(extensions=True) as client:
        yield client


@pytest.fixture
def make_home(client: Client, tmp_path: Path) -> MakeHome:
    def make(profile: str, name: str = ".bash_profile") -> Home:
        folder = tmp_path / "home"
        folder.mkdir()
        return Home(client, folder, profile, name)

    return make


def count_runs(home: Home) -> int:
    """How often the profile has run that writes to `runs`."""
    return len((home.folder / "runs").read_text())


COUNTED = 'printf x >>/"$HOME"/runs\n'
"""The slash keeps the file out of those that the profile names: `/$HOME/…` is no path of the text."""


def test_a_profile_is_run_for_the_snapshot_and_not_for_later_commands(make_home: MakeHome) -> None:
    home = make_home(COUNTED + "export A=1\n")
    for _ in range(3):
        assert home.run(BASH, "echo $A", snapshot=True).stdout == b"1\n"
    assert count_runs(home) == 2
    home.run(BASH, "echo $A", snapshot=False)
    assert count_runs(home) == 3


def test_a_slow_profile_costs_its_time_once(make_home: MakeHome) -> None:
    home = make_home("sleep 0.3; export A=1\n")
    home.run(BASH, ":", snapshot=True)
    with_snapshot = min(home.run(BASH, "echo $A", snapshot=True).seconds for _ in range(5))
    login_shell = min(home.run(BASH, "echo $A", snapshot=False).seconds for _ in range(2))
    assert login_shell > 0.3
    assert with_snapshot < login_shell / 3


OBSTACLES = {
    "prints": ("echo hello", "writes to the standard output"),
    "complains": ("echo hello >&2", "writes to the standard error"),
    "exits": ("exit 4", "ends the shell"),
    "becomes another program": ("exec echo instead", "ends the shell"),
    "becomes a silent program": ("exec true", "ends the shell"),
    "reads": ("read -r line; export LINE=$line", "standard input"),
    "replaces the input": ("exec </etc/passwd", "standard input"),
    "replaces the output": ("exec >/dev/null", "ends the shell"),
    "replaces the errors": ("exec 2>/dev/null", "standard error"),
    "leaves a descriptor": ("exec 7</etc/passwd", "descriptor"),
    "sets a trap": ("trap 'echo bye' EXIT", "trap that writes"),
    "ignores a signal": ("trap '' TERM", "trap"),
    "leaves a job": ("sleep 5 >/dev/null 2>&1 &", "background"),
    "leaves a daemon": ("(setsid sleep 5 >/dev/null 2>&1 </dev/null &)", "background"),
    "lowers its priority": ("renice -n 17 $$ >/dev/null; :", "priority"),
    "makes a value anew": ("export NONCE=$RANDOM$RANDOM", "each time"),
    "is a syntax error": ("if then", "standard error"),
    "disables a builtin": ("enable -n echo", "builtins"),
    "starts job control": ("set -m", ""),
    "has a huge state": ("for i in {1..70}; do declare v$i=\"$(printf %070000d 1)\"; done", "MiB"),
    "uses the call": ("export COPY=$CODEX_TOOL_CALL_ID", "CODEX_TOOL_CALL_ID"),
}  # fmt: skip


@pytest.mark.parametrize(("profile", "reason"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_a_profile_that_cannot_be_kept_runs_for_each_command(
    profile: str, reason: str, make_home: MakeHome
) -> None:
    home = make_home(COUNTED + profile + "\n")
    script = 'read -r x; echo "<$x$LINE>"; trap -p; echo err >&2; type enable echo; echo $-; exit 3'
    call = {"CODEX_TOOL_CALL_ID": "call_0123456789"}
    for _ in range(2):
        results = [
            home.run(BASH, script, snapshot=snapshot, typed=b"one\ntwo\n", env=call)
            for snapshot in (True, False)
        ]
        assert results[0] == results[1]
        if reason:
            assert results[0].obstacle is not None
            assert reason in results[0].obstacle
    if reason:
        runs = count_runs(home)
        home.run(BASH, script, snapshot=True, typed=b"", env=call)
        assert count_runs(home) == runs + 1


def test_a_profile_that_hangs_costs_no_more_than_the_time_of_the_command(make_home: MakeHome) -> None:
    home = make_home("sleep 60; echo never\n")
    result = home.run(BASH, "echo late", snapshot=True, timeoutMs=700)
    assert (result.stdout, result.cause) == (b"", "timeout")
    assert result.obstacle == "the profile takes longer than 0.7 s"
    assert result.seconds < 5


def test_an_edited_profile_takes_effect_at_once(make_home: MakeHome) -> None:
    home = make_home('export A=1\n. "$HOME/.rest"\n[ -d ~/later ] && PATH=~/later:$PATH\n')
    home.file(".rest", "B=1\n")
    script = "echo $A $B; case $PATH in *later*) echo later;; esac"

    def shown() -> bytes:
        snapshot, login = (home.run(BASH, script, snapshot=each) for each in (True, False))
        assert snapshot == login
        return snapshot.stdout

    assert shown() == b"1 1\n"
    home.file(".rest", "B=2\n")
    assert shown() == b"1 2\n"
    (home.folder / "later").mkdir()
    assert shown() == b"1 2\nlater\n"
    home.file(".bash_profile", "A=3\n")
    assert shown() == b"3\n"
    (home.folder / ".bash_profile").unlink()
    home.file(".profile", "A=4\n")
    assert shown() == b"4\n"
    time.sleep(0.05)
    assert home.run(BASH, script, snapshot=True).obstacle is None


def test_a_profile_that_changes_its_own_files_is_given_up(make_home: MakeHome) -> None:
    home = make_home(COUNTED + "date +%N >~/.changed\nexport A=1\n")
    results = [home.run(BASH, "echo $A", snapshot=True) for _ in range(11)]
    assert {result.stdout for result in results} == {b"1\n"}
    reasons = [result.obstacle for result in results]
    assert reasons == [reasons[0]] * 8 + ["the files of the profile change all the time"] * 3
    runs = count_runs(home)
    home.run(BASH, "echo $A", snapshot=True)
    assert count_runs(home) == runs + 1


def test_each_folder_environment_and_scope_has_its_own(make_home: MakeHome) -> None:
    home = make_home(COUNTED + "export WHERE=$PWD GIVEN=$OTHER\n")
    starts: list[dict[str, Json]] = [
        {"cwd": "file:///usr"},
        {"cwd": "file:///etc"},
        {"cwd": "file:///usr", "env": {"OTHER": "1"}},
        {"cwd": "file:///usr", "scope": "another"},
    ]
    for _ in range(2):
        for start in starts:
            snapshot, login = (
                home.run(BASH, "echo $WHERE $GIVEN", snapshot=each, **start) for each in (True, False)
            )
            assert snapshot == login
            assert snapshot.obstacle is None
    assert count_runs(home) == 2 * len(starts) + 2 * len(starts)


def test_the_id_of_the_call_makes_no_other_snapshot(make_home: MakeHome) -> None:
    home = make_home(COUNTED)
    for call in ("call_one_one", "call_two_two"):
        result = home.run(BASH, "echo $CODEX_TOOL_CALL_ID", snapshot=True, env={"CODEX_TOOL_CALL_ID": call})
        assert result.stdout.decode() == f"{call}\n"
    assert count_runs(home) == 2


def test_a_function_of_the_profile_reports_errors_from_another_place(make_home: MakeHome) -> None:
    # The one difference: bash notes where it has read a function.
    home = make_home("\n\n# A comment.\nf() { no_such_command; }\n")
    login, snapshot = (home.run(BASH, "f", snapshot=each).stderr.decode() for each in (False, True))
    assert login == f"{home.folder}/.bash_profile: line 4: no_such_command: command not found\n"
    assert re.sub(r"^/proc/self/fd/\d+: line \d+: ", "", snapshot) == "no_such_command: command not found\n"


def test_what_the_policy_drops_is_in_no_snapshot(make_home: MakeHome) -> None:
    home = make_home("export DEPLOY_TOKEN=s3cret\n")
    policy = {
        "inherit": "all",
        "ignoreDefaultExcludes": False,
        "exclude": ["*_PAT"],
        "set": {},
        "includeOnly": [],
    }
    login = home.run(BASH, "echo $DEPLOY_TOKEN", snapshot=False, envPolicy=policy)
    result = home.run(BASH, "echo $DEPLOY_TOKEN", snapshot=True, envPolicy=policy)
    assert result == login
    assert result.obstacle is not None
    assert "DEPLOY_TOKEN" in result.obstacle
    assert "s3cret" not in result.obstacle
    home.file(".bash_profile", "MY_PAT=s3cret\n")
    assert "MY_PAT" in str(home.run(BASH, ":", snapshot=True, envPolicy=policy).obstacle)
    home.file(".bash_profile", "HARMLESS=s3cret\n")
    assert home.run(BASH, ":", snapshot=True, envPolicy=policy).obstacle is None


def test_input_reaches_the_command_whole(make_home: MakeHome) -> None:
    home = make_home("export A=1\n")
    data = os.urandom(60_000)
    for _ in range(2):
        result = home.run(BASH, "cat", snapshot=True, typed=data)
        assert (result.stdout, result.obstacle) == (data, None)


def test_only_a_login_script_has_one(make_home: MakeHome) -> None:
    home = make_home("export A=1\n")
    assert "not for sh" in str(home.run("/bin/sh", ":", snapshot=True).obstacle)
    assert "terminal" in str(home.run(BASH, ":", snapshot=True, tty=True).obstacle)
    assert "SCRIPT" in str(home.run(BASH, ":", snapshot=True, arg0="other").obstacle)
    missing = home.client.refused(
        "process/start",
        home.client.start_params(
            ["/no/bash", "-lc", ":"],
            shellSnapshot={"scopeId": "s", "shell": {"name": "bash", "path": "/no/bash"}},
        ),
    )
    assert "No such file" in missing.message


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")
def test_it_holds_in_a_sandbox(make_home: MakeHome) -> None:
    home = make_home("sleep 0.2; f() { echo f; }; export A=1; touch ~/written 2>/dev/null\n")
    script = "f; echo $A; touch ~/x 2>/dev/null || echo denied; ls ~; echo $$\n"
    script += "for f in /proc/$$/fd/*; do [ -e $f ] && echo $f; done"
    for _ in range(2):
        results = [home.run(BASH, script, snapshot=each, sandbox=READ_ONLY) for each in (True, False)]
        assert results[0] == results[1]
        assert results[0].obstacle is None
        assert b"denied" in results[0].stdout
    assert not (home.folder / "written").exists()
    assert min(home.run(BASH, ":", snapshot=True, sandbox=READ_ONLY).seconds for _ in range(5)) < 0.2
    # The one without a sandbox is another one.
    assert b"denied" not in home.run(BASH, script, snapshot=True).stdout


@pytest.mark.skipif(not bubblewrap_works(), reason="needs bubblewrap and user namespaces")
def test_a_daemon_of_the_profile_in_a_sandbox_is_noticed(make_home: MakeHome) -> None:
    home = make_home("(setsid sleep 5 >/dev/null 2>&1 </dev/null &)\n")
    result = home.run(BASH, "echo here", snapshot=True, sandbox=READ_ONLY)
    assert result.stdout == b"here\n"
    assert "background" in str(result.obstacle)


def test_nothing_of_the_profile_outlives_a_server_that_is_killed(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(f"unix://{tmp_path}/s")
    profile = tmp_path / ".bash_profile"
    profile.write_text('echo $$ >"$HOME/pid"; exec sleep 1000\n')
    with server.connect() as client:
        params = client.start_params(
            [BASH, "-lc", ":"],
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            shellSnapshot={"scopeId": "s", "shell": {"name": "bash", "path": BASH}},
        )
        client.request("process/start", params)
        # A process with a later number, which the next server continues with.
        pid = _written(tmp_path / "pid")
        client.start("/bin/sleep", "1000")
        (killed,) = children_of(server.pid) - {pid}
        os.kill(killed, signal.SIGKILL)
        wait_gone(pid)


def _written(path: Path) -> int:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if path.exists() and (text := path.read_text().strip()):
            return int(text)
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")
